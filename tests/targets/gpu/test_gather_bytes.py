"""Words gathered from a vector's bytes, run by a machine that permutes arrays of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlir import ir
from mlir.dialects import func

from tiledsl.dialects.context import context
from tiledsl.targets.gpu import emit
from tiledsl.targets.gpu.gather_bytes import ByteGatherer
from tiledsl.targets.gpu.machine import Machine


class Permuter:
    """Counts permutations and leaves the bytes that each result has under its value."""

    permutes_bytes = True

    def __init__(self) -> None:
        self.bytes_of: dict[ir.Value, list[int]] = {}
        self.count = 0

    def permute_bytes(self, first: ir.Value, second: ir.Value, order: Sequence[int]) -> ir.Value:
        held = [*self.bytes_in(first), *self.bytes_in(second)]
        made = emit.i32(self.count)
        self.bytes_of[made] = [held[i] for i in order]
        self.count += 1
        return made

    def bytes_in(self, word: ir.Value) -> list[int]:
        """Give the places in the vector that a word's bytes come from."""
        found = self.bytes_of.get(word)
        if found is None:  # a word of the vector: extract(bitcast(slice))
            slice_ = cast("Any", word.owner).operands[0].owner.operands[0].owner
            start = slice_.attributes["offsets"][0].value * (_width(slice_.operands[0]) // 8)
            found = [start + i for i in range(4)]
        return found


def _width(value: ir.Value) -> int:
    return emit.width_of(value.type)


def gathered(bits: int, count: int, vectors: Sequence[Sequence[int]]) -> tuple[list[int], int]:
    """Return the bytes of all vectors of registers, and how many permutations they took."""
    machine = Permuter()
    with context(), ir.Location.unknown():
        module = ir.Module.create()
        type_ = emit.vector_of(count, emit.integer(bits))
        with ir.InsertionPoint(module.body):
            function = func.FuncOp("f", ([type_], []))
        block = function.add_entry_block()
        with ir.InsertionPoint(block):
            gatherer = ByteGatherer(cast(Machine, machine), block.arguments[0])
            found: list[int] = []
            for registers in vectors:
                words = gatherer.gather(registers)
                if str(words.type) == "i16":
                    half = cast("Any", words.owner)
                    at = half.attributes["static_position"][0]
                    word = half.operands[0].owner.operands[0].owner.operands[0]
                    found += machine.bytes_in(word)[2 * at : 2 * at + 2]
                else:
                    for word in cast("Any", words.owner).operands:
                        found += machine.bytes_in(word)
    return found, machine.count


@pytest.mark.parametrize("bits", [8, 16])
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_any_registers_come_in_any_order(bits: int, data: st.DataObject) -> None:
    size, count = bits // 8, 32
    each = data.draw(st.sampled_from([n for n in (2, 4, 8) if n * size != 2 or size == 1]))
    order = data.draw(st.permutations(range(count)))
    vectors = [order[i : i + each] for i in range(0, count, each)]
    found, _ = gathered(bits, count, vectors)
    assert found == [r * size + b for r in order for b in range(size)]


def test_four_words_are_transposed_by_eight_permutations() -> None:
    places = np.arange(16).reshape(4, 4)
    found, count = gathered(8, 16, [places.T.ravel().tolist()])
    assert found == places.T.ravel().tolist()
    assert count == 8


def test_two_words_of_halves_are_transposed_by_two() -> None:
    assert gathered(16, 4, [[0, 2, 1, 3]]) == ([0, 1, 4, 5, 2, 3, 6, 7], 2)


def test_pairs_of_bytes_share_a_permutation_two_by_two() -> None:
    pairs = [[i, 4 + i] for i in range(4)]
    found, count = gathered(8, 8, pairs)
    assert found == [byte for pair in pairs for byte in pair]
    assert count == 2


def test_words_that_stay_as_they_are_are_not_gathered() -> None:
    machine = cast(Machine, Permuter())
    with context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            i8, i32 = (emit.zero(emit.vector_of(16, emit.integer(bits))) for bits in (8, 32))
            assert not ByteGatherer.suits(machine, i8, [4, 5, 6, 7, 0, 1, 2, 3])
            assert ByteGatherer.suits(machine, i8, [4, 5, 6, 8])
            assert ByteGatherer.suits(machine, i8, [1, 2, 3, 4])
            assert ByteGatherer.suits(machine, i8, [3, 7])
            assert not ByteGatherer.suits(machine, i8, [3])
            assert not ByteGatherer.suits(machine, i32, [3, 2, 1, 0])
