"""Say, in IR, whether a later trip of a loop exists, without computing what might wrap.

A loop from `lower` to `upper` by `step` has a trip `ahead` trips after the one at `i` if more than
`ahead * step` is left to the upper bound. What is left, as an unsigned number, always fits: it is
the sum `i + ahead * step` that may not.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlir import ir

from tiledsl.transforms.axis_facts import AxisFacts
from tiledsl.transforms.axis_rules import integer_width
from tiledsl.transforms.facts_arithmetic import range_of
from tiledsl.transforms.lanes import Lanes


@dataclass(frozen=True)
class Trips:
    """The trips of one `scf.for`.

    Attributes:
        loop: The loop.
        surely: How many trips it has at least.
        most: How many it has at most.
        step: The step if it is a constant.
    """

    loop: ir.Operation
    surely: int
    most: int
    step: int | None

    @staticmethod
    def of(loop: ir.Operation, facts: AxisFacts) -> Trips:
        """Read a loop."""
        width = integer_width(loop.operands[0].type)
        lower, upper, step = (range_of(facts.of(loop.operands[i]), width) for i in range(3))

        def fitting(length: int, by: int) -> int:
            return (length - 1) // max(1, by) + 1 if length > 0 else 0

        surely = fitting(upper.lo - lower.hi, step.hi)
        return Trips(loop, surely, fitting(upper.hi - lower.lo, step.lo), step.value)

    def _bounds(self) -> tuple[Lanes, Lanes, Lanes]:
        lower, upper, step = (Lanes(self.loop.operands[i]) for i in range(3))
        return lower, upper, step

    def _more_than(self, left: Lanes, trips: int) -> Lanes:
        """Build whether more trips than `trips` fit into what is left, which is not nothing."""
        width = integer_width(left.type)
        if self.step is not None and self.step * trips < 1 << width:
            return left.constant(self.step * trips).ult(left)
        whole = (left - 1).binary("arith.divui", Lanes(self.loop.operands[2]))
        return left.constant(trips - 1).ult(whole)

    def early(self, trip: int) -> Lanes | None:
        """Build, before the loop, whether it has trip number `trip`; None if it surely has."""
        if trip < self.surely:
            return None
        lower, upper, _ = self._bounds()
        any_ = lower.lt(upper)
        return any_ if trip == 0 else any_ & self._more_than(upper - lower, trip)

    def later(self, at: Lanes, ahead: int) -> Lanes:
        """Build, in the loop, whether a trip follows `ahead` trips after the one at `at`."""
        _, upper, _ = self._bounds()
        return self._more_than(upper - at, ahead)

    def at(self, start: Lanes, trips: int) -> Lanes:
        """Build the loop's variable `trips` trips after it is `start`; it wraps at the end."""
        if trips == 0:
            return start
        _, _, step = self._bounds()
        by = start.constant(self.step * trips) if self.step is not None else step * trips
        return start + by
