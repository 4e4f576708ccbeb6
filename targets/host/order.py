"""Choose the dimension along which a nest's lanes lie, by what memory they touch.

Lanes usually lie along the last dimension. Where the tiles that a nest reads and writes run along
another one, as those of a transposed matrix do, lanes along that one make vectors of neighbours out
of gathers and scatters. Only speed hangs on the choice, so facts about addresses are enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mlir import ir

from tiledsl.dialects import tile
from tiledsl.dialects.types import is_tile, shape_of
from tiledsl.targets.host import index as indexing
from tiledsl.targets.host.index import LANE, Index
from tiledsl.targets.host.plan import Plan
from tiledsl.transforms.axis_facts import AxisFacts

Reads = list[tuple[ir.Value, Index]]
"""Tiles and the element that the lanes take of each."""


class Order:
    """Costs of orders in one function.

    Args:
        plan: Which tiles are kept.
        function: The function, for facts about its addresses.

    Attributes:
        kept: The order in which the elements of each kept tile lie, row-major ones left out.
    """

    def __init__(self, plan: Plan, function: ir.OpView) -> None:
        self._plan = plan
        self._facts = AxisFacts(function)
        self.kept: dict[ir.Value, tuple[int, ...]] = {}

    def cost(self, reads: Reads, writes: Sequence[tuple[ir.Value, Index]] = ()) -> int:
        """Return about how many accesses lanes make that are not vectors.

        Args:
            reads: What is computed.
            writes: Tiles of pointers that are written through.
        """
        total = sum(self._pointer_cost(pointer, index) for pointer, index in writes)
        left, seen = list(reads), set[tuple[ir.Value, Index]]()
        while left:
            value, index = left.pop()
            if (value, index) in seen or not is_tile(value.type):
                continue
            seen.add((value, index))
            op = self._plan.computed(value)
            if op is None:
                total += _buffer_cost(index, self.kept.get(value))
                continue
            if isinstance(op, tile.LoadOp):
                total += self._pointer_cost(op.ptr, index)
            left += self._sources(op, value, index)
        return total

    def cost_of_making(self, op: ir.OpView, value: ir.Value, index: Index) -> int:
        """Return the cost of computing a kept tile."""
        own = self._pointer_cost(op.ptr, index) if isinstance(op, tile.LoadOp) else 0
        return own + self.cost(self._sources(op, value, index))

    @staticmethod
    def _sources(op: ir.OpView, value: ir.Value, index: Index) -> Reads:
        """Return what an op reads to compute an element."""
        lanes = indexing.lane_bits(index)
        found = source_indices(op, value, index)
        pairs = zip(op.operation.operands, found, strict=True)
        return [
            (operand, indexing.compact(source, lanes)[0])
            for operand, source in pairs
            if is_tile(operand.type)
        ]

    def _pointer_cost(self, pointer: ir.Value, index: Index) -> int:
        lanes = indexing.lane_bits(index)
        if lanes == 0:
            return 0
        facts = self._facts.of(pointer)
        run = tuple((LANE, bit) for bit in range(lanes))
        for dimension, bits in enumerate(index):
            if bits[:lanes] == run and facts.contiguity[dimension] >= 1 << lanes:
                return 0
        return 1 << lanes


def _buffer_cost(index: Index, order: Sequence[int] | None) -> int:
    lanes = indexing.lane_bits(index)
    run = tuple((LANE, bit) for bit in range(lanes))
    return 0 if indexing.linear(index, order)[:lanes] == run else 1 << lanes


def orders(shape: Sequence[int]) -> Iterable[list[int]]:
    """Yield the orders to try: each dimension in front, the last one first."""
    usual = list(range(len(shape) - 1, -1, -1))
    yield usual
    for first in usual[1:]:
        if shape[first] > 1:
            yield [first, *(d for d in usual if d != first)]


def source_indices(op: ir.OpView, value: ir.Value, index: Index) -> list[Index]:
    """Return, for each operand of an op, the element of it that `value` takes at an index."""
    match op:
        case tile.ExpandDimsOp():
            return [(*index[: op.axis], *index[op.axis + 1 :])]
        case tile.BroadcastOp():
            return [indexing.unbroadcast(index, shape_of(op.source.type))]
        case tile.ReshapeOp():
            return [indexing.split(indexing.linear(index), shape_of(op.source.type))]
        case tile.TransOp():
            return [indexing.untransposed(index, op.order)]
        case tile.SplitOp():
            which = 0 if value == op.first else 1
            return [(*index, indexing.number(which, 1))]
        case tile.JoinOp():
            return [index[:-1]] * 2
        case tile.CatOp():
            axis: int = op.axis
            return [(*index[:axis], index[axis][:-1], *index[axis + 1 :])] * 2
        case _:
            return [index] * len(op.operation.operands)
