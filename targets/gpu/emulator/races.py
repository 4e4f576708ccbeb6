"""Which earlier accesses to shared memory an access is not ordered after.

A correct kernel has a barrier between conflicting accesses, so nearly every question is answered by
what is cheap to compare. Accesses are kept by *epoch*: all those made while no clock changed. An
epoch that every warp has learnt of can conflict with nothing any more and is dropped; one whose
bytes are elsewhere is passed over. Only what is left is looked at granule by granule: then the
epoch's accesses are folded into one bit mask a granule (which warps of the block touched it), once,
and an access is a race where one of those bits is a warp whose epoch it has not seen.

Contract: `low` and `high` bound the bytes of all lanes in the window of their block, `flat` are
positions in the windows of all blocks, and `warp` is the flat warp of each lane.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.clocks import Clock, Clocks
from tiledsl.targets.gpu.emulator.program import Instruction

Positions = NDArray[np.int64]
Warps = NDArray[np.intp]

_KEPT = 64
"""Accesses of an epoch that are kept as they came; more of them are folded, to bound memory."""


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


@dataclass
class Epoch:
    """Accesses of one kind between two changes of the clocks.

    Attributes:
        version: Of the clocks.
        time: Each warp's time then, (blocks, warps).
        present: Which flat warps accessed anything.
        low: Bounds of all accesses, as `Touch` has them.
        high: See `low`.
        touches: Those not yet folded.
        bits: By granule, the warps of its block that accessed it; made when it is asked for.
        line: By granule, the instruction that accessed it last.
    """

    version: int
    time: Clock
    present: NDArray[np.bool_]
    low: int
    high: int
    touches: list[Touch] = field(default_factory=list[Touch])
    bits: NDArray[np.uint32] | None = None
    line: NDArray[np.int32] | None = None


@dataclass(frozen=True)
class Race:
    """What an access is not ordered after.

    Attributes:
        where: Which granules of which lanes, (lanes, granules an access).
        epoch: When the other accesses happened.
        others: By lane and granule, the warps (bits) that made them.
    """

    where: NDArray[np.bool_]
    epoch: Epoch
    others: NDArray[np.uint32]


class History:
    """The accesses of one kind (reads, writes or atomics) that some warp may not know of."""

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
        self._epochs: list[Epoch] = []
        self._dropped_at = -1
        self.instructions: dict[int, Instruction] = {}
        """Who accessed, by index."""

    def note(self, touch: Touch) -> None:
        """Add an access."""
        version = self._clocks.version
        epoch = self._epochs[-1] if self._epochs else None
        if epoch is None or epoch.version != version:
            self._drop_known()
            present = np.zeros(len(self._clocks.rank), np.bool_)
            epoch = Epoch(version, self._clocks.times(), present, touch.low, touch.high)
            self._epochs.append(epoch)
        epoch.low, epoch.high = min(epoch.low, touch.low), max(epoch.high, touch.high)
        epoch.present[touch.warp] = True
        epoch.touches.append(touch)
        if len(epoch.touches) > _KEPT:
            self._fold(epoch)

    def races(self, touch: Touch) -> Iterator[Race]:
        """Find what an access is not ordered after."""
        if not self._epochs:
            return
        self._drop_known()
        low, high = touch.low, touch.high
        for epoch in self._epochs:
            if epoch.low >= high or epoch.high <= low:
                continue
            if epoch.bits is None and all(
                one.low >= high or one.high <= low for one in epoch.touches
            ):
                continue
            granules = granules_of(touch.flat, touch.width, self._shift)
            unseen = self._unseen(epoch)[touch.warp]
            others = self._folded(epoch)[granules] & unseen[:, None]
            where = others != 0
            if where.any():
                yield Race(where, epoch, others)

    def _drop_known(self) -> None:
        """Forget the epochs that every warp has learnt of."""
        if self._dropped_at == self._clocks.version:
            return
        self._dropped_at = self._clocks.version
        common = self._clocks.common()
        self._epochs = [
            epoch for epoch in self._epochs if ((epoch.time > common).ravel() & epoch.present).any()
        ]

    def _unseen(self, epoch: Epoch) -> NDArray[np.uint32]:
        """Return, by flat warp, the warps (bits) of its block whose accesses it has not seen."""
        blocks, warps = self._clocks.blocks, self._clocks.warps
        seen = self._clocks.seen.reshape(blocks, warps, warps)
        unseen = (epoch.time[:, None, :] > seen) & epoch.present.reshape(blocks, 1, warps)
        weights = np.uint32(1) << np.arange(warps, dtype=np.uint32)
        return (unseen * weights).sum(2, dtype=np.uint32).ravel()

    def _folded(self, epoch: Epoch) -> NDArray[np.uint32]:
        if epoch.touches or epoch.bits is None:
            self._fold(epoch)
        assert epoch.bits is not None
        return epoch.bits

    def _fold(self, epoch: Epoch) -> None:
        if epoch.bits is None:
            epoch.bits = np.zeros(self._granules, np.uint32)
            epoch.line = np.full(self._granules, -1, np.int32)
        assert epoch.line is not None
        for touch in epoch.touches:
            granules = granules_of(touch.flat, touch.width, self._shift)
            rank = self._clocks.rank[touch.warp]
            for one in np.unique(rank):
                epoch.bits[granules[rank == one]] |= np.uint32(1 << int(one))
            epoch.line[granules] = touch.instruction.index
            self.instructions[touch.instruction.index] = touch.instruction
        epoch.touches = []


def granules_of(flat: Positions, width: int, shift: int) -> Positions:
    """Return the granules that each lane's access of `width` bytes covers, (lanes, granules)."""
    first = flat >> shift
    count = width >> shift
    return first[:, None] if count == 1 else first[:, None] + np.arange(count)
