"""Lower `tile.scan`: loops over the other dimensions, and inside along the axis.

Lanes along the axis are scanned within a vector in log2 steps (Hillis and Steele, "Data parallel
algorithms", 1986), which keeps the order of arguments; the last element then carries over to the
next vector. Otherwise lanes lie along other dimensions, and each step is one combination.
"""

from __future__ import annotations

import numpy as np
from mlir import ir

from tiledsl.dialects import tile
from tiledsl.dialects.types import shape_of
from tiledsl.targets.host.body import Body
from tiledsl.targets.host.combine import Combiner
from tiledsl.targets.host.evaluate import Evaluator
from tiledsl.targets.host.lanes import Lanes, Spread, Uniform
from tiledsl.targets.host.machine_types import integer, value_type, width_of
from tiledsl.targets.host.reduce import Axis, axes, choose, is_first


def lower_scan(body: Body, op: tile.ScanOp) -> None:
    """Lower one scan."""
    combiner = Combiner(body, op.combine)
    shape = shape_of(op.sources[0].type)
    widest = max((value_type(s.type) for s in op.sources), key=width_of)
    lanes = body.lane_bits(widest) if combiner.elementwise else 0
    axis = axes(shape, op.axis, lanes)[0]
    buffers = [body.destination(result) for result in op.operation.results]
    nest, evaluator = body.nest()
    for count in axis.cover.loops:
        nest.open(count)
    scan = _Scan(op, combiner, axis, evaluator)
    trips = 1 << axis.loop_bits
    carried = nest.open(trips, scan.zeros(), backwards=op.reverse) if trips > 1 else []
    index = axis.index(tuple((nest.depth, bit) for bit in range(axis.loop_bits)))
    values = scan.within([evaluator.at(source, index) for source in op.sources])
    if trips > 1:
        values = scan.after(carried, values, trips)
    for buffer, value in zip(buffers, values, strict=True):
        evaluator.write(buffer, index, value)
        body.arena.touch(buffer.slot)
    if trips > 1:
        nest.close(scan.last(values))
    nest.close_all()
    for result, buffer in zip(op.operation.results, buffers, strict=True):
        body.set_buffer(result, buffer)


class _Scan:
    def __init__(
        self, op: tile.ScanOp, combiner: Combiner, axis: Axis, evaluator: Evaluator
    ) -> None:
        self._op = op
        self._combiner = combiner
        self._axis = axis
        self._evaluator = evaluator
        self._arithmetic = evaluator.arithmetic
        self._lanes = 1 << axis.cover.lanes
        self._group = (1 << axis.along) - 1

    def zeros(self) -> list[ir.Value]:
        """Return what is carried into the first trip, where nobody looks at it."""
        code = self._arithmetic.code
        types = [value_type(source.type) for source in self._op.sources]
        zeros = [Uniform(code.constant(type_, 0)) for type_ in types]
        return [self._arithmetic.vector(zero, self._lanes) for zero in zeros]

    def within(self, values: list[Lanes]) -> list[Lanes]:
        """Scan the lanes along the axis."""
        lane = np.arange(self._lanes)
        place = lane & self._group
        for step in (1 << bit for bit in range(self._axis.along)):
            if self._op.reverse:
                reached, source = place + step <= self._group, lane + step
            else:
                reached, source = place >= step, lane - step
            picks = np.where(reached, source, lane)
            earlier = [self._picked(value, picks) for value in values]
            both = self._combiner.apply(self._evaluator, earlier, values, self._lanes)
            flags = self._arithmetic.code.table(integer(1), reached.astype(np.int64))
            values = [
                choose(self._evaluator, Spread(flags, 0), new, old, self._lanes)
                for new, old in zip(both, values, strict=True)
            ]
        return values

    def after(self, carried: list[ir.Value], values: list[Lanes], trips: int) -> list[Lanes]:
        """Combine with what came before, but for the first trip."""
        level = self._evaluator.nest.depth
        before: list[Lanes] = [
            Uniform(value, level) if self._lanes == 1 else Spread(value, level) for value in carried
        ]
        both = self._combiner.apply(self._evaluator, before, values, self._lanes)
        first = is_first(self._evaluator, level, trips - 1 if self._op.reverse else 0)
        return [
            choose(self._evaluator, first, old, new, self._lanes)
            for new, old in zip(both, values, strict=True)
        ]

    def last(self, values: list[Lanes]) -> list[ir.Value]:
        """Return, in every lane, the last element along the axis."""
        lane = np.arange(self._lanes)
        picks = lane & ~self._group if self._op.reverse else lane | self._group
        picked = [self._picked(value, picks) for value in values] if self._axis.along else values
        return [self._arithmetic.vector(value, self._lanes) for value in picked]

    def _picked(self, value: Lanes, picks: np.ndarray) -> Lanes:
        if isinstance(value, Uniform):
            return value
        vector = self._arithmetic.vector(value, self._lanes)
        at = self._evaluator.nest.at(value.level)
        return Spread(self._arithmetic.code.shuffle(vector, list(picks), at), value.level)
