"""Inclusive prefix combinations within a warp: over registers, then lanes, then back to registers.

The layout is ordered along the axis (`transforms.ordered`) and no warp bit moves along it. Each
thread combines its run one register after another. The runs' totals are scanned between lanes, one
shuffle a lane bit: a lane whose bit is set combines the total of the last lane of the lower half of
its block, whose number is the lane's with that bit clear and all lower ones set. At last each
thread combines what the lane before it has with its own registers.

With `reverse` everything runs from the other end: bits count as set where they are clear.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir
from mlir.dialects import arith

from tiledsl.dialects import tile
from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.dialects.layout import LinearLayout
from tiledsl.targets.gpu import emit
from tiledsl.targets.gpu.combine import Combine, Values
from tiledsl.targets.gpu.emit import i32
from tiledsl.targets.gpu.lowering import Handler, Lowering
from tiledsl.targets.gpu.place import Place
from tiledsl.targets.gpu.shape import registers_between
from tiledsl.targets.gpu.shuffle import shuffle_index
from tiledsl.transforms.ordered import is_ordered


def _scan(lowering: Lowering, op: tile.ScanOp) -> None:
    layout = lowering.layout(op.sources[0])
    if not is_ordered(layout, op.axis, across_warps=False):
        raise CompilerBug(f"expected a layout ordered along axis {op.axis} in {op}")
    scan = _Scan(lowering, layout, op.axis, Combine(lowering, op.combine), op.reverse)
    results = scan.run([lowering.value(source) for source in op.sources])
    for result, value in zip(op.results_, results, strict=True):
        order = registers_between(layout, lowering.layout(result), op)
        lowering.define(result, emit.shuffle(value, order))


class _Scan:
    """One scan of tiles of one layout.

    A *step* is the vector of those registers of a thread that have one place in its run.
    """

    def __init__(
        self,
        lowering: Lowering,
        layout: LinearLayout,
        axis: int,
        combine: Combine,
        reverse: bool,
    ) -> None:
        self._place: Place = lowering.place
        self._combine = combine
        self._reverse = reverse
        field = (layout.shape[axis] - 1) << layout.axis_shift(axis)
        along = sum(1 << i for i, c in enumerate(layout.flat("register")) if c & field)
        self._lane_bits = [1 << i for i, c in enumerate(layout.flat("lane")) if c & field]
        runs: dict[int, list[int]] = {}
        for register in range(layout.registers):
            runs.setdefault(register & along, []).append(register)
        self._steps = [runs[place] for place in sorted(runs, reverse=reverse)]

    def run(self, values: Values) -> Values:
        """Return the scan of each source."""
        steps = [[emit.shuffle(value, step) for value in values] for step in self._steps]
        for i in range(1, len(steps)):
            steps[i] = self._combine(steps[i - 1], steps[i])
        if self._lane_bits:
            before = self._lanes_before(steps[-1])
            is_first = self._is_first()
            steps = [_choose(is_first, step, self._combine(before, step)) for step in steps]
        order = [register for step in self._steps for register in step]
        back = sorted(range(len(order)), key=order.__getitem__)
        return [
            emit.shuffle(emit.concatenate([step[i] for step in steps]), back)
            for i in range(len(values))
        ]

    def _lanes_before(self, totals: Values) -> Values:
        """Return what all earlier lanes' totals combine to; of no use in the first lane."""
        lower = 0
        for bit in self._lane_bits:
            source = self._source(bit, lower)
            got = [shuffle_index(self._place, total, source) for total in totals]
            # A lane of the upper half goes on from the lower one.
            upper = self._is_set(bit)
            totals = _choose(upper, self._combine(got, totals), totals)
            lower |= bit
        return [shuffle_index(self._place, total, self._previous()) for total in totals]

    def _source(self, bit: int, lower: int) -> ir.Value:
        """Return the last lane of the half of the block that comes first."""
        kept = arith.andi(self._place.thread, i32(~(bit | lower)))
        return arith.ori(kept, i32(bit if self._reverse else lower))

    def _previous(self) -> ir.Value:
        """Return the lane before this one along the axis: a decrement of scattered bits."""
        thread, mask = self._place.thread, sum(self._lane_bits)
        others = arith.andi(thread, i32(~mask))
        if self._reverse:
            moved = arith.addi(arith.ori(thread, i32(~mask)), i32(1))
        else:
            moved = arith.subi(arith.andi(thread, i32(mask)), i32(1))
        return arith.ori(arith.andi(moved, i32(mask)), others)

    def _is_set(self, bit: int) -> ir.Value:
        held = arith.andi(self._place.thread, i32(bit))
        return emit.compare("eq" if self._reverse else "ne", held, i32(0))

    def _is_first(self) -> ir.Value:
        mask = sum(self._lane_bits)
        held = arith.andi(self._place.thread, i32(mask))
        return emit.compare("eq", held, i32(mask if self._reverse else 0))


def _choose(condition: ir.Value, yes: Sequence[ir.Value], no: Sequence[ir.Value]) -> Values:
    return [emit.select(condition, a, b) for a, b in zip(yes, no, strict=True)]


HANDLERS: dict[str, Handler] = {"tile.scan": _scan}
