"""Compute again, from shared memory, what would wait in registers while a program meets.

A reduction of a row that several warps share makes all of them meet, and whatever is computed from
the row before and used behind lies in registers meanwhile: of a softmax all exponentials, of a
layer norm all differences. Where those are many, few programs have room on a processor, and memory
idles while they reduce. A row that is copied to shared memory instead, asynchronously, costs no
register on its way, and each stretch between two meetings reads its own copy, a few elements at a
time, and computes from it again what it needs. Memory then has as much to do as shared memory holds
rows. The values are the same, but that where products may be contracted with sums (`fp_contract`)
what is computed again may be contracted with what stands there.

A *stretch* is what stands between two ops of a block at which all warps meet: reductions that they
share, barriers, atomics whose result all take. Of the values that one stretch leaves to later ones
those are computed again, in each stretch that uses them, that

- follow from loads in the same block by a few ops, each of which works element by element (what
  such ops take besides is kept: scalars, what is repeated along a row, indices and masks); and
- are `least` registers of a thread or more, all together.

The loads are copied by `cp.async`: pieces of 16 bytes, from one address to the next, and all must
fit into half of shared memory. What is used only in later stretches, and what the kernel does not
write, is not copied but loaded late (`tgpu.late`), piece by piece: weights, say.

Kernels that use shared memory for more than reductions and small exchanges stay as they are:
products, pipelined loops. So do all on AMD's GPUs, whose pipeline has no such pass: what threads
copy to shared memory there goes through registers, or 4 bytes at a time on most chips.

Before: the `tgpu` level, after `pipeline_loops` and `copy_boxes`.
After: the same; in a kernel with copies `tgpu.pieces` says how many registers to work on at a time.

    %x = "tile.load"(%p) : tensor<1x32768xf32, @rows>
    %m = "tile.reduce"(%x) ...
    %d = arith.subf %x, %m
becomes
    %s = "tgpu.alloc"() : () -> !tgpu.shared<tensor<1x32768xf32, @shared0>>
    "tgpu.async_copy"(%p, %s) ... "tgpu.async_commit"() ... "tgpu.async_wait"() {pending = 0}
    %x = "tgpu.local_load"(%s) : ...
    %m = "tile.reduce"(%x) ...
    %x1 = "tgpu.local_load"(%s) : ...
    %d = arith.subf %x1, %m
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlir import ir

from tiledsl.dialects import tgpu, tile
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.layouts import Layouts
from tiledsl.dialects.types import storage_bits
from tiledsl.transforms.kernels import kernels
from tiledsl.transforms.layout_rules import is_elementwise
from tiledsl.transforms.rewrite import build
from tiledsl.transforms.row_copies import RowCopies, meets, shares_more
from tiledsl.transforms.simplify import remove_dead

_REGISTER_BITS = 32
_PIECE = 8
"""Registers of a tile that a thread computes with at once, between two reads of shared memory."""
_MOST_OPS = 32
"""Ops that are worth doing again rather than keeping what they give."""


def rematerialize(module: ir.Module, *, least: int, shared_bytes: int) -> None:
    """Run the pass described above on `module`, in place.

    Args:
        module: What to change.
        least: Registers of a thread, of 32 bits, from which on values are computed again.
        shared_bytes: The shared memory that a program may have.
    """
    layouts = Layouts(module)
    for kernel in kernels(module):
        if shares_more(kernel, layouts):
            continue
        copies = RowCopies(kernel, layouts, shared_bytes // 2)
        for block in _blocks(kernel.operation):
            _Block(block, copies, least).run()
        if copies.buffers:
            pieces = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), _PIECE)
            kernel.operation.attributes[tgpu.PIECES] = pieces
            remove_dead(kernel.operation)


def _blocks(op: ir.Operation) -> Iterator[ir.Block]:
    for region in op.regions:
        for block in region.blocks:
            yield block
            for inner in list(block.operations):
                yield from _blocks(inner.operation)


class _Block:
    """The stretches of one block."""

    def __init__(self, block: ir.Block, copies: RowCopies, least: int) -> None:
        self._copies = copies
        self._least = least
        self._stretches: list[list[ir.Operation]] = [[]]
        for op in block.operations:
            self._stretches[-1].append(op.operation)
            if meets(op.operation, copies.layouts):
                self._stretches.append([])
        self._made: dict[ir.Value, int] = {
            result: number
            for number, ops in enumerate(self._stretches)
            for op in ops
            for result in op.results
        }
        """The stretch of each value of the block."""

    def run(self) -> None:
        """Compute again what is used in later stretches, where it is much."""
        if len(self._stretches) == 1:
            return
        first, last = self._uses()
        chosen: dict[ir.Value, list[tile.LoadOp]] = {}
        for end in range(1, len(self._stretches)):
            across = [v for v, made in self._made.items() if made < end <= last.get(v, 0)]
            found = {value: which for value in across if (which := self._loads_of(value))}
            if sum(map(self._registers, found)) >= self._least:
                chosen |= found
        for value, which in list(chosen.items()):
            late = first[value] > self._made[value] and value == which[0].result
            if (late and self._copies.may_be_late(which[0])) or not self._copies.take(which):
                del chosen[value]
        if chosen:
            loads: dict[ir.Value, tile.LoadOp] = {
                load.result: load for which in chosen.values() for load in which
            }
            self._compute_again(chosen.keys() | loads.keys(), loads)
            self._load_late(first)

    def _uses(self) -> tuple[dict[ir.Value, int], dict[ir.Value, int]]:
        """Return the first and the last stretch that uses each value, in inner blocks too."""
        first: dict[ir.Value, int] = {}
        last: dict[ir.Value, int] = {}
        for number, ops in enumerate(self._stretches):
            for op in ops:
                for one in (op.opview, *operations(op)):
                    for operand in one.operation.operands:
                        first.setdefault(operand, number)
                        last[operand] = number
        return first, last

    def _load_late(self, first: Mapping[ir.Value, int]) -> None:
        """Let loads behind a meeting, or used only there, wait until they are needed."""
        for value, made in self._made.items():
            load = value.owner.opview
            if not isinstance(load, tile.LoadOp) or load.volatile:
                continue
            if value not in self._copies.data:
                continue
            if first.get(value, made) > 0 and self._copies.may_be_late(load):
                load.operation.attributes[tgpu.LATE] = ir.UnitAttr.get()

    def _registers(self, value: ir.Value) -> int:
        bits = max(storage_bits(value.type), 16)
        return self._copies.layouts.of(value.type).registers * bits // _REGISTER_BITS

    def _loads_of(self, value: ir.Value) -> list[tile.LoadOp]:
        """Return the loads that a value follows from by a few ops; none if it cannot be so."""
        loads: list[tile.LoadOp] = []
        seen: set[ir.Value] = set()
        stack = [value]
        while stack:
            one = stack.pop()
            if one in seen or one not in self._copies.data:
                continue
            seen.add(one)
            op = one.owner.opview if one in self._made else None
            if op is None or len(seen) > _MOST_OPS:
                return []
            if isinstance(op, tile.LoadOp) and self._copies.can_copy(op):
                loads.append(op)
            elif _is_repeatable(op):
                stack += op.operation.operands
            else:
                return []
        return loads

    def _compute_again(self, wanted: set[ir.Value], loads: Mapping[ir.Value, tile.LoadOp]) -> None:
        """Give each stretch its own values, built before the first op that uses them."""
        every = [op for ops in self._stretches for op in ops]
        for load in loads.values():
            self._copies.wait(load, every[every.index(load.operation) + 1 :])
        operands: dict[ir.Value, Sequence[ir.Value]] = {
            value: list(value.owner.operation.operands) for value in self._made
        }
        for number, ops in enumerate(self._stretches):
            again = _Again(number, self._made, operands, loads, self._copies)
            for op in ops:
                for one in (op.opview, *operations(op)):
                    given = one.operation.operands
                    for place, operand in enumerate(given):
                        if operand in wanted:
                            with ir.InsertionPoint(op), op.location:
                                given[place] = again.of(operand)


@dataclass
class _Again:
    """Values of other stretches, and of loads, in one stretch.

    Attributes:
        stretch: Which.
        made: The stretch of each value of the block, and
        operands: what the op that makes it was given before any was replaced.
        loads: What is copied to shared memory, and
        copies: where.
        here: What was built.
    """

    stretch: int
    made: Mapping[ir.Value, int]
    operands: Mapping[ir.Value, Sequence[ir.Value]]
    loads: Mapping[ir.Value, tile.LoadOp]
    copies: RowCopies
    here: dict[ir.Value, ir.Value] = field(default_factory=dict[ir.Value, ir.Value])

    def of(self, value: ir.Value) -> ir.Value:
        """Build a value at the insertion point, if it is not of this stretch already."""
        load = self.loads.get(value)
        if value in self.here:
            return self.here[value]
        if load is None and (value not in self.copies.data or self.made[value] == self.stretch):
            return value
        self.here[value] = self._clone(value) if load is None else self.copies.read(load)
        return self.here[value]

    def _clone(self, value: ir.Value) -> ir.Value:
        op = value.owner.operation
        operands = [self.of(operand) for operand in self.operands[value]]
        held: Any = op.attributes
        attributes: dict[str, ir.Attribute] = {name: held[name] for name in held}
        ip = ir.InsertionPoint.current
        return build(op.name, operands, value.type, ip, op.location, attributes)


def _is_repeatable(op: ir.OpView) -> bool:
    """Whether an op works element by element, or only arranges them anew."""
    arranges = isinstance(op, tile.ExpandDimsOp | tile.ReshapeOp)
    return len(op.operation.results) == 1 and (arranges or is_elementwise(op))
