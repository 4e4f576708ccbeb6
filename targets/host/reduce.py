"""Lower `tile.reduce`: loops over the result, and inside over the axis.

Lanes lie along the axis where it is the innermost one, and are combined with each other at the end:
at once if the order is free, else for each vector before it joins what came before. Otherwise they
lie along the result, each with its own total. Where the order is free several totals are kept, so
that one addition need not wait for the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlir import ir

from tiledsl.dialects import tile
from tiledsl.dialects.types import shape_of
from tiledsl.targets.host.body import Body
from tiledsl.targets.host.code import EQ
from tiledsl.targets.host.combine import Combiner
from tiledsl.targets.host.evaluate import Evaluator
from tiledsl.targets.host.index import Bits, Index, compact, log2, number
from tiledsl.targets.host.lanes import Lanes, Spread, Uniform
from tiledsl.targets.host.machine_types import element_of_vector, integer, value_type, width_of
from tiledsl.targets.host.nest import Cover, cover

_MOST_LANES = 6
_TOTALS = 2
"""Running totals (log2) for each lane where the order is free."""


@dataclass(frozen=True)
class Axis:
    """How the axis of a reduction or scan is walked.

    Attributes:
        along: Lane bits that lie along the axis.
        cover: Lanes and loops over the other dimensions (and the lanes along the axis).
        loop_bits: Bits of the index along the axis that loops provide.
        dimension: Which dimension it is.
    """

    along: int
    cover: Cover
    loop_bits: int
    dimension: int

    def index(self, rest: Bits) -> Index:
        """Return the source's index; `rest` are the axis's bits above those of the lanes."""
        bits = self.cover.index[self.dimension][: self.along] + rest
        return (*self.cover.index[: self.dimension], bits, *self.cover.index[self.dimension + 1 :])


def axes(shape: Sequence[int], dimension: int, lanes: int) -> list[Axis]:
    """Return the ways to walk an axis with at most so many lane bits, the usual one first."""
    others = [d for d in range(len(shape) - 1, -1, -1) if d != dimension]
    innermost = all(shape[d] == 1 for d in others if d > dimension)
    bits = log2(shape[dimension])
    along = min(lanes, bits)
    # The axis's loops are the caller's: to `cover` the axis is as long as its lanes.
    short = [1 << along if d == dimension else size for d, size in enumerate(shape)]
    first = Axis(along, cover(short, lanes, [dimension, *others]), bits - along, dimension)
    short[dimension] = 1
    second = Axis(0, cover(short, lanes, [*others, dimension]), bits, dimension)
    return [first, second] if innermost else [second, first]


def lower_reduce(body: Body, op: tile.ReduceOp) -> None:
    """Lower one reduction."""
    combiner = Combiner(body, op.combine)
    shape = shape_of(op.sources[0].type)
    widest = max((value_type(s.type) for s in op.sources), key=width_of)
    lanes = body.lane_bits(widest) if combiner.elementwise else 0
    axis = min(axes(shape, op.axis, lanes), key=lambda axis: _cost(body, op, axis))
    buffers = [body.destination(r) if shape_of(r.type) else None for r in op.operation.results]
    nest, evaluator = body.nest()
    for count in axis.cover.loops:
        nest.open(count)
    totals = _Reduction(body, op, combiner, axis, evaluator).run()
    for result, buffer, total in zip(op.operation.results, buffers, totals, strict=True):
        if buffer is None:
            assert isinstance(total, Uniform)
            body.set_scalar(result, total)
            continue
        source = axis.index(())
        index, _ = compact((*source[: op.axis], *source[op.axis + 1 :]), axis.cover.lanes)
        evaluator.write(buffer, index, total)
        body.arena.touch(buffer.slot)
    nest.close_all()
    for result, buffer in zip(op.operation.results, buffers, strict=True):
        if buffer is not None:
            body.set_buffer(result, buffer)


def _cost(body: Body, op: tile.ReduceOp, axis: Axis) -> int:
    """Return the cost of a walk: accesses an element, where lanes left unused count as well."""
    index = axis.index(number(0, axis.loop_bits))
    each = 2 + body.order.cost([(source, index) for source in op.sources])
    return each << (_MOST_LANES - axis.cover.lanes)


class _Reduction:
    def __init__(
        self, body: Body, op: tile.ReduceOp, combiner: Combiner, axis: Axis, evaluator: Evaluator
    ) -> None:
        self._code = body.code
        self._sources = op.sources
        self._combiner = combiner
        self._axis = axis
        self._evaluator = evaluator
        self._nest = evaluator.nest
        self._lanes = 1 << axis.cover.lanes
        self._rows = self._lanes >> axis.along

    def run(self) -> list[Lanes]:
        """Return the totals, one lane for each element of the result."""
        if not self._axis.loop_bits:
            return self._folded(self._elements(()))
        if self._combiner.identity is not None:
            return self._any_order(self._combiner.identity)
        return self._in_order()

    def _elements(self, rest: Bits) -> list[Lanes]:
        index = self._axis.index(rest)
        return [self._evaluator.at(source, index) for source in self._sources]

    def _folded(self, values: list[Lanes]) -> list[Lanes]:
        return self._combiner.fold(self._evaluator, values, self._lanes, self._axis.along)

    def _any_order(self, identity: ir.Value) -> list[Lanes]:
        """Keep several vectors of totals; combine them, then their lanes, after the loop."""
        bits = min(_TOTALS, self._axis.loop_bits)
        arithmetic = self._evaluator.arithmetic
        start = arithmetic.vector(Uniform(identity), self._lanes)
        carried = self._nest.open(1 << self._axis.loop_bits - bits, [start] * (1 << bits))
        level = self._nest.depth
        totals: list[ir.Value] = []
        for which, total in enumerate(carried):
            rest = number(which, bits) + _counter(level, self._axis.loop_bits - bits)
            given = [self._lane_value(total, level)]
            made = self._combiner.apply(self._evaluator, given, self._elements(rest), self._lanes)
            totals.append(arithmetic.vector(made[0], self._lanes))
        parts = self._close(totals, self._lanes)
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [
                self._combiner.apply(self._evaluator, [a], [b], self._lanes)[0] for a, b in pairs
            ]
        return self._folded(parts)

    def _in_order(self) -> list[Lanes]:
        """Combine the lanes of each step first, then the steps one after the other."""
        arithmetic = self._evaluator.arithmetic
        zeros = [
            arithmetic.vector(Uniform(self._code.constant(value_type(s.type), 0)), self._rows)
            for s in self._sources
        ]
        carried = self._nest.open(1 << self._axis.loop_bits, zeros)
        level = self._nest.depth
        step = self._folded(self._elements(_counter(level, self._axis.loop_bits)))
        before = [self._lane_value(value, level, self._rows) for value in carried]
        both = self._combiner.apply(self._evaluator, before, step, self._rows)
        first = is_first(self._evaluator, level)
        merged = [
            choose(self._evaluator, first, s, b, self._rows)
            for s, b in zip(step, both, strict=True)
        ]
        return self._close([arithmetic.vector(m, self._rows) for m in merged], self._rows)

    def _close(self, values: list[ir.Value], lanes: int) -> list[Lanes]:
        results = self._nest.close(values)
        level = self._nest.depth
        self._evaluator.forget_above(level)
        return [self._lane_value(value, level, lanes) for value in results]

    def _lane_value(self, value: ir.Value, level: int, lanes: int | None = None) -> Lanes:
        lanes = self._lanes if lanes is None else lanes
        return Uniform(value, level) if lanes == 1 else Spread(value, level)


def _counter(level: int, bits: int) -> Bits:
    return tuple((level, bit) for bit in range(bits))


def is_first(evaluator: Evaluator, level: int, first: int = 0) -> Uniform:
    """Return whether the counter of a loop has the value of its first trip."""
    nest, code = evaluator.nest, evaluator.arithmetic.code
    counter, at = nest.counters[level - 1], nest.at(level)
    return Uniform(code.compare(EQ, counter, code.constant(integer(64), first), at), level)


def choose(evaluator: Evaluator, flag: Lanes, a: Lanes, b: Lanes, lanes: int) -> Lanes:
    """Return a where a bool holds, else b."""
    vector = evaluator.arithmetic.vector(a, lanes)
    element = element_of_vector(vector.type)
    return evaluator.arithmetic.apply("arith.select", [flag, a, b], element, lanes)
