"""How a run-time range becomes the bounds of an `scf.for`, which wants a positive step.

A positive step known to be so is used as it is. Otherwise the loop counts its trips, 0, 1, ..., and
the variable is start + trip * step; the number of trips is computed without overflow in unsigned
arithmetic, and is 0 for a step of 0.
"""

from __future__ import annotations

from mlir import ir

from tiledsl.dtypes import DType, int64, uint64
from tiledsl.language import casts, elementwise
from tiledsl.language.ranges import range as run_time_range
from tiledsl.language.value import Value, constant, upstream


class Trips:
    """The bounds of a loop over `counted`.

    Attributes:
        counter: The type that the loop counts in.
        bounds: Lower bound, upper bound and step of the `scf.for`.
    """

    def __init__(self, counted: run_time_range) -> None:
        self._dtype = counted.dtype
        self.counter: DType = counted.counter
        self._start, stop, self._step = (
            _converted(bound, self.counter) for bound in (counted.start, counted.stop, counted.step)
        )
        self.bounds = self._start, stop, self._step
        self._counts_trips = self._dtype is uint64 or not _is_positive(self._step.handle)
        if self._counts_trips:
            self.counter = int64
            count = _trip_count(self._start, stop, self._step, self._dtype is uint64)
            self.bounds = constant(0, int64), count, constant(1, int64)

    def variable(self, count: Value) -> Value:
        """Return the loop variable of a trip, from the induction variable of the `scf.for`."""
        if self._counts_trips:
            # The product and the sum may wrap: the result is in range.
            count = casts.to(count, self._start.dtype)
            moved = upstream("arith.muli", count, self._step)
            count = upstream("arith.addi", self._start, moved)
        return casts.to(count, self._dtype)


def _converted(bound: Value | int, dtype: DType) -> Value:
    return constant(bound, dtype) if isinstance(bound, int) else casts.to(bound, dtype)


def _trip_count(start: Value, stop: Value, step: Value, unsigned: bool) -> Value:
    """Return how many trips `range(start, stop, step)` makes, as an int64.

    Args:
        start: The first value.
        stop: The bound.
        step: A signed number.
        unsigned: Whether the bounds are uint64, held as int64.
    """
    bounds = uint64 if unsigned else int64
    first, last, by = (casts.to(v, int64) for v in (start, stop, step))
    zero, one = constant(0, int64), constant(1, uint64)
    upward = elementwise.greater(by, zero)
    low, high = elementwise.select(upward, first, last), elementwise.select(upward, last, first)
    size = casts.to(elementwise.select(upward, by, elementwise.sub(0, by)), uint64)
    distance = casts.to(elementwise.sub(high, low), uint64)
    # ceil(distance / size) for distance > 0; a size of 0 is replaced where it divides.
    divisor = upstream("arith.maxui", size, one)
    whole = upstream("arith.divui", elementwise.sub(distance, one), divisor)
    ordered = elementwise.less(casts.to(low, bounds), casts.to(high, bounds))
    runs = elementwise.bit_and(ordered, elementwise.not_equal(by, zero))
    return elementwise.select(runs, casts.to(elementwise.add(whole, one), int64), zero)


def _is_positive(handle: ir.Value) -> bool:
    """Return whether an integer is seen to be positive: constants, sizes of the grid, products."""
    owner = handle.owner
    if isinstance(owner, ir.Block):
        return False
    op = owner.operation
    if op.name == "arith.constant":
        return ir.IntegerAttr(op.attributes["value"]).value > 0
    if op.name == "tile.num_programs":
        return True
    if op.name in ("arith.muli", "arith.extsi"):
        return all(_is_positive(operand) for operand in op.operands)
    return False
