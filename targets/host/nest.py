"""The loops around the lanes, and where code of each level goes.

A nest visits every element of a tile once: loops over the parts of it that the lanes do not cover,
lanes innermost. Level 0 is before the nest, level n inside its n-th loop; code that needs only an
outer counter is put before the loops inside, so nothing is left for LLVM to hoist past memory
operations that it cannot tell apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlir import ir

from tiledsl.targets.host.build import For
from tiledsl.targets.host.code import Code
from tiledsl.targets.host.index import LANE, Bits, Index, log2
from tiledsl.targets.host.machine_types import integer


class Nest:
    """Loops that are open, outermost first.

    Args:
        code: Builds the ops.
        at: Where the nest stands.
    """

    def __init__(self, code: Code, at: ir.InsertionPoint) -> None:
        self.code = code
        self._outside = at
        self._places: list[ir.InsertionPoint] = [at]
        self._loops: list[For] = []
        self.counters: list[ir.Value] = []

    @property
    def depth(self) -> int:
        """The level of the innermost loop."""
        return len(self._loops)

    def at(self, level: int) -> ir.InsertionPoint:
        """Return where code of a level goes now."""
        return self._places[level]

    def open(
        self, count: int, carried: Sequence[ir.Value] = (), backwards: bool = False
    ) -> list[ir.Value]:
        """Open a loop of `count` trips inside the others; return the carried values in it.

        Args:
            count: Trips.
            carried: Values at the first trip.
            backwards: Whether its counter goes from `count` - 1 down to 0.
        """
        i64 = integer(64)
        constant = self.code.constant
        bounds = (constant(i64, 0), constant(i64, count), constant(i64, 1))
        loop = For(bounds, carried, self._places[-1])
        self._places[-1] = ir.InsertionPoint(loop.op)
        self._places.append(loop.body)
        self._loops.append(loop)
        counter = loop.counter
        if backwards:
            counter = self.code.binary("subi", constant(i64, count - 1), counter, loop.body)
        self.counters.append(counter)
        return loop.carried

    def close(self, yields: Sequence[ir.Value] = ()) -> list[ir.Value]:
        """Close the innermost loop with the next trip's values; return the last trip's."""
        loop = self._loops.pop()
        self.counters.pop()
        self._places.pop()
        # What follows the loop at its parent's level goes to that block's end.
        self._places[-1] = self._loops[-1].body if self._loops else self._outside
        return loop.finish(yields)

    def close_all(self) -> None:
        """Close every loop; none carries a value."""
        while self._loops:
            self.close()


@dataclass(frozen=True)
class Cover:
    """How a tile's index bits are shared out between lanes and loops.

    Attributes:
        index: For each dimension, its bits: the lowest from the lanes, the rest from a loop.
        loops: Trips of each loop, outermost first.
        lanes: Number of lane bits.
    """

    index: Index
    loops: tuple[int, ...]
    lanes: int


def cover(shape: Sequence[int], lanes: int, order: Sequence[int], first_level: int = 1) -> Cover:
    """Share out a tile's index bits.

    Args:
        shape: The tile's.
        lanes: The most lane bits to use.
        order: The dimensions, the one that lanes take first at the front; loops nest in this order
            too, the front innermost.
        first_level: The level of the outermost loop.
    """
    taken: dict[int, int] = {}
    left = lanes
    for dimension in order:
        taken[dimension] = min(left, log2(shape[dimension]))
        left -= taken[dimension]
    looped = [d for d in reversed(order) if log2(shape[d]) > taken[d]]
    level = {dimension: first_level + i for i, dimension in enumerate(looped)}
    index: list[Bits] = [()] * len(shape)
    start = 0
    for dimension in order:
        own = tuple((LANE, start + bit) for bit in range(taken[dimension]))
        start += taken[dimension]
        rest = log2(shape[dimension]) - taken[dimension]
        index[dimension] = own + tuple((level[dimension], bit) for bit in range(rest))
    trips = tuple(shape[dimension] >> taken[dimension] for dimension in looped)
    return Cover(tuple(index), trips, start)
