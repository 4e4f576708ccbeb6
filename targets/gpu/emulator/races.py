"""Which earlier accesses to shared memory an access is not ordered after.

Of a granule it is enough to know who wrote it last and when (`Writes`), for whoever overwrote
another's write without a barrier has been found already; of reads and atomics, each warp's time of
its last one (`Others`). An access is a race where one of those is by another warp, at a time that
its own warp has not seen.

A correct kernel has a barrier between conflicting accesses, so nearly every question is answered by
what is cheap to compare: an access that every warp has learnt of can conflict with nothing any more
and is dropped from the *open* ones, and open ones that touched bytes elsewhere are passed over.
Only what is left is looked at granule by granule; what `Others` hold by granule is not even
computed before that.

Contract: `low` and `high` bound the bytes of all lanes in the window of their block, `flat` are
positions in the windows of all blocks, and `warp` is the flat warp of each lane.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.clocks import Clock, Clocks
from tiledsl.targets.gpu.emulator.program import Instruction
from tiledsl.targets.gpu.emulator.words import Words, zero_bytes

Positions = NDArray[np.int64]
Warps = NDArray[np.intp]

_KEPT = 64
"""Accesses that are kept as they came; more of them are worked in, to bound memory."""


@dataclass
class Touch:
    """One executed access.

    Attributes:
        instruction: What accessed.
        warp: Flat warp of each lane.
        flat: Position of each lane's first byte.
        width: Bytes a lane.
        low: The first byte in the window of any lane.
        high: One past the last one.
    """

    instruction: Instruction
    warp: Warps
    flat: Positions
    width: int
    low: int
    high: int


@dataclass(frozen=True)
class Race:
    """What an access is not ordered after.

    Attributes:
        lanes: Which lanes race.
        granule: For each lane, the first granule that does, counted from the access's first.
        rank: Number in its block of the warp that made the other access there.
        by: Index of the instruction that made it, as far as 16 bits tell.
    """

    lanes: NDArray[np.bool_]
    granule: NDArray[np.intp]
    rank: NDArray[np.int64]
    by: NDArray[np.int64]


@dataclass
class _Open:
    """Accesses between two changes of the clocks that some warp may not know of."""

    version: int
    time: Clock
    present: NDArray[np.bool_]
    low: int
    high: int


class _History:
    """The accesses of one kind."""

    def __init__(self, clocks: Clocks, granules: int, shift: int) -> None:
        """Begin with none.

        Args:
            clocks: The warps' clocks.
            granules: How many there are in the windows of all blocks.
            shift: Binary logarithm of a granule's bytes.
        """
        self._clocks = clocks
        self._granules = granules
        self._shift = shift
        self._open: list[_Open] = []
        self._learned = -1

    def note(self, touch: Touch) -> None:
        """Add an access."""
        version = self._clocks.version
        last = self._open[-1] if self._open else None
        if last is None or last.version != version:
            self._drop_known()
            present = np.zeros(len(self._clocks.rank), np.bool_)
            last = _Open(version, self._clocks.times(), present, touch.low, touch.high)
            self._open.append(last)
        last.low, last.high = min(last.low, touch.low), max(last.high, touch.high)
        last.present[touch.warp] = True

    def may_race(self, touch: Touch) -> bool:
        """Say whether it takes a look at granules to know."""
        if not self._open:
            return False
        self._drop_known()
        return any(one.low < touch.high and one.high > touch.low for one in self._open)

    def _drop_known(self) -> None:
        """Forget the accesses that every warp has learnt of."""
        if self._learned == self._clocks.learned:
            return
        self._learned = self._clocks.learned
        common = self._clocks.common()
        self._open = [
            one for one in self._open if ((one.time > common).ravel() & one.present).any()
        ]

    def _where(self, touch: Touch, size: int) -> tuple[Positions, int]:
        """Return the place in a shadow of `size` bytes a granule, and how many granules."""
        return (touch.flat >> self._shift) * size, touch.width >> self._shift


class Writes(_History):
    """Who wrote each granule last, and when: time << bits | rank + 1 in 4 bytes, 0 for nobody."""

    def __init__(self, clocks: Clocks, granules: int, shift: int) -> None:
        super().__init__(clocks, granules, shift)
        self._bits = np.uint32(max(6, clocks.group.bit_length()))
        self._rank = np.uint32((1 << int(self._bits)) - 1)
        self._last = Words(zero_bytes(4 * granules))
        self._by = Words(zero_bytes(2 * granules))

    def note(self, touch: Touch) -> None:
        """Add a write."""
        super().note(touch)
        rank = (self._clocks.rank[touch.warp] + 1).astype(np.uint32)
        packed = self._clocks.now(touch.warp) << self._bits | rank
        by = np.full(len(packed), touch.instruction.index & 0xFFFF, np.uint16)
        for shadow, values, size in ((self._last, packed, 4), (self._by, by, 2)):
            place, count = self._where(touch, size)
            if count > 1:
                values = np.broadcast_to(values[:, None], (len(values), count))
            shadow.scatter(place, values, size, count)

    def races(self, touch: Touch) -> Race | None:
        """Find the writes that an access is not ordered after."""
        if not self.may_race(touch):
            return None
        place, count = self._where(touch, 4)
        packed = self._last.gather(place, 4, count).reshape(len(place), count)
        if count > 1 and (packed == packed[:, :1]).all():
            packed = packed[:, :1]  # each lane's granules were written together
        rank = (packed & self._rank).astype(np.int64) - 1
        others = np.flatnonzero(
            np.logical_or.reduce((rank >= 0) & (rank != self._clocks.rank[touch.warp][:, None]), 1)
        )
        if not len(others):
            return None
        seen = self._clocks.seen[touch.warp[others, None], rank[others]]
        where = np.zeros(packed.shape, np.bool_)
        where[others] = ((packed[others] >> self._bits) > seen) & (rank[others] >= 0)
        if not where.any():
            return None
        place, count = self._where(touch, 2)
        by = self._by.gather(place, 2, count).reshape(len(place), count)
        return _race(where, rank, by.astype(np.int64))


class Others(_History):
    """When each warp last read (or updated) each granule, and by which instruction."""

    def __init__(self, clocks: Clocks, granules: int, shift: int) -> None:
        super().__init__(clocks, granules, shift)
        self._pending: list[tuple[Touch, NDArray[np.uint32]]] = []
        self._last: dict[int, tuple[Words, Words]] = {}
        """Of each warp: its times, 0 for never, and the indices of its instructions."""

    def note(self, touch: Touch) -> None:
        """Add an access."""
        super().note(touch)
        self._pending.append((touch, self._clocks.now(touch.warp)))
        if len(self._pending) > _KEPT:
            self._work_in()

    def races(self, touch: Touch) -> Race | None:
        """Find the accesses that an access is not ordered after."""
        if not self.may_race(touch):
            return None
        self._work_in()
        place, count = self._where(touch, 4)
        own = self._clocks.rank[touch.warp]
        rank = np.full((len(place), count), -1, np.int64)
        instruction = np.zeros_like(rank)
        for other, (times, by) in self._last.items():
            time = times.gather(place, 4, count).reshape(len(place), count)
            unseen = (time > self._clocks.seen[touch.warp, other][:, None]) & (own != other)[
                :, None
            ]
            if unseen.any():
                rank[unseen] = other
                instruction[unseen] = by.gather(place, 4, count).reshape(unseen.shape)[unseen]
        where = rank >= 0
        return _race(where, rank, instruction) if where.any() else None

    def _work_in(self) -> None:
        for touch, time in self._pending:
            place, count = self._where(touch, 4)
            rank = self._clocks.rank[touch.warp]
            for one in np.unique(rank).tolist():
                if one not in self._last:
                    size = 4 * self._granules
                    self._last[one] = Words(zero_bytes(size)), Words(zero_bytes(size))
                times, by = self._last[one]
                mine = rank == one
                values = time[mine]
                if count > 1:
                    values = np.broadcast_to(values[:, None], (len(values), count))
                times.scatter(place[mine], values, 4, count)
                index = np.full(values.shape, touch.instruction.index, np.uint32)
                by.scatter(place[mine], index, 4, count)
        self._pending = []


def _race(where: NDArray[np.bool_], rank: NDArray[np.int64], by: NDArray[np.int64]) -> Race:
    """Make a race of what holds for each granule of each lane."""
    lanes = np.logical_or.reduce(where, 1)
    first = where.argmax(1)
    every = np.arange(len(first))
    return Race(lanes, first, rank[every, first], by[every, first])


def granules_of(flat: Positions, width: int, shift: int) -> Positions:
    """Return the granules that each lane's access of `width` bytes covers, (lanes, granules)."""
    first = flat >> shift
    count = width >> shift
    return first[:, None] if count == 1 else first[:, None] + np.arange(count)
