"""Gather small registers into words by permutations of bytes, where a machine has them.

A vector of 8- or 16-bit registers lies packed in words. To write it transposed, each word that is
stored takes its bytes from several of those, which LLVM does by masks, shifts and ors. A machine
that permutes the bytes of two words at once (`Machine.permute_bytes`) needs one instruction for a
word made of two and three for one made of four. Of those three the first two are shared: what
interleaves two words serves two results, so to transpose four words takes eight.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir

from tiledsl.targets.gpu import emit
from tiledsl.targets.gpu.machine import Machine

_WORD = 4


class ByteGatherer:
    """Makes words of a vector's registers.

    Args:
        machine: One that permutes bytes.
        value: A vector of 8- or 16-bit registers, a whole number of words.
    """

    def __init__(self, machine: Machine, value: ir.Value) -> None:
        self._machine = machine
        self._value = value
        self._size = emit.width_of(value.type) // 8
        self._words: dict[int, ir.Value] = {}
        self._pairs: dict[tuple[int, int, int, int], ir.Value] = {}

    @staticmethod
    def suits(machine: Machine, value: ir.Value, registers: Sequence[int]) -> bool:
        """Whether to gather those registers: not if words stay as they are."""
        size = emit.width_of(value.type) // 8
        if not machine.permutes_bytes or size not in (1, 2):
            return False
        each = _WORD // size
        if emit.registers_of(value) % each:
            return False
        if len(registers) == 2 and size == 1:
            return True
        if len(registers) % each:
            return False
        words = [list(registers[i : i + each]) for i in range(0, len(registers), each)]
        return any(w != list(range(w[0], w[0] + each)) or w[0] % each for w in words)

    def gather(self, registers: Sequence[int]) -> ir.Value:
        """Return registers packed in a vector of words; two bytes in half a word.

        A word's upper half is stored as it is, so half the pairs cost nothing.
        """
        places = [int(r) * self._size + byte for r in registers for byte in range(self._size)]
        if len(places) < _WORD:
            word, start = self._pair(*places)
            return emit.extract(emit.bitcast(emit.splat(word, 1), emit.integer(16)), start // 2)
        words = [self._word(places[i : i + _WORD]) for i in range(0, len(places), _WORD)]
        return emit.from_elements(words)

    def _word(self, places: Sequence[int]) -> ir.Value:
        """Make a word of the bytes at four places of the vector."""
        sources = list(dict.fromkeys(place // _WORD for place in places))
        if len(sources) <= 2:
            order = [place % _WORD + _WORD * sources.index(place // _WORD) for place in places]
            if order == [0, 1, 2, 3]:
                return self._source(sources[0])
            first, last = self._source(sources[0]), self._source(sources[-1])
            return self._machine.permute_bytes(first, last, order)
        (low, low_at), (high, high_at) = self._pair(*places[:2]), self._pair(*places[2:])
        order = [low_at, low_at + 1, _WORD + high_at, _WORD + high_at + 1]
        return self._machine.permute_bytes(low, high, order)

    def _pair(self, first: int, second: int) -> tuple[ir.Value, int]:
        """Return a word that holds two bytes side by side, and where in it."""
        (a, i), (b, j) = divmod(first, _WORD), divmod(second, _WORD)
        if a == b and j == i + 1 and i % 2 == 0:
            return self._source(a), i
        # Bytes at the same place of two words are interleaved with their neighbours.
        together = i == j
        start = i - i % 2 if together else i
        key = (a, b, start, start if together else j)
        if key not in self._pairs:
            order = [start, _WORD + start, start + 1, _WORD + start + 1]
            if not together:
                order = [i, _WORD + j, i, _WORD + j]
            words = self._source(a), self._source(b)
            self._pairs[key] = self._machine.permute_bytes(*words, order)
        return self._pairs[key], i % 2 * 2 if together else 0

    def _source(self, number: int) -> ir.Value:
        if number not in self._words:
            each = _WORD // self._size
            part = emit.part(self._value, number * each, each)
            self._words[number] = emit.extract(emit.bitcast(part, emit.integer(32)), 0)
        return self._words[number]
