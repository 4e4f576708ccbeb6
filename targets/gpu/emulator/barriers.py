"""Barriers of a thread block: arrive, and wait until everybody has.

One class serves NVIDIA's sixteen named barriers (`bar.sync`, `bar.arrive`, units are threads) and
AMD's (`s_barrier`, and `s_barrier_signal` with `s_barrier_wait`, units are waves). A barrier of a
block is in a *phase*; it ends when as many units as it expects have arrived. What each warp did
before it arrived is released to all that wait for that phase.

Where a barrier expects all units of its block, those that have ended count no more: `reconsider`
is called after units end.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.clocks import Clocks
from tiledsl.targets.gpu.emulator.scheduler import Mask

ALL = 0
"""As the number of units expected: every unit of the block that has not ended."""


def distinct(numbers: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the different numbers among small ones (of blocks or warps), in order.

    NumPy's `unique` takes ten times as long, and barriers are frequent.
    """
    return np.flatnonzero(np.bincount(numbers))


class Barriers:
    """The barriers of all blocks of a cohort."""

    def __init__(
        self,
        clocks: Clocks,
        block_of: NDArray[np.intp],
        warp_of: NDArray[np.intp],
        live: Mask,
        count: int = 16,
    ) -> None:
        """Make `count` barriers a block.

        Args:
            clocks: The warps' clocks.
            block_of: Block of each unit.
            warp_of: Flat warp of each unit.
            live: The scheduler's mask of units that have not ended; read whenever it matters.
            count: Barriers a block.
        """
        blocks = int(block_of[-1]) + 1
        self._clocks = clocks
        self._block_of = block_of
        self._warp_of = warp_of
        self._live = live
        self._arrived = np.zeros((blocks, count), np.int64)
        self._expected = np.zeros((blocks, count), np.int64)
        self._gathering = np.zeros((blocks, count, clocks.width), np.uint32)
        self._released = np.zeros((blocks, count, clocks.width), np.uint32)
        self.phase = np.zeros((blocks, count), np.int64)
        """How often each barrier has completed."""
        self._place = np.full((blocks, count), -1, np.int64)
        self.mixed = np.zeros((blocks, count), np.bool_)
        """Whether units arrived from different instructions in the phase that completed last."""
        clocks.ended = self._ended_warps

    def arrive(
        self, mask: Mask, barrier: int, expected: int = ALL, at: int = 0
    ) -> NDArray[np.int64]:
        """Let units arrive; returns the phase, by block, that ends with this arrival's.

        Args:
            mask: Which units.
            barrier: Which barrier of their blocks.
            expected: How many units it takes, or `ALL`.
            at: The instruction, for `mixed`.
        """
        phase = self.phase[:, barrier].copy()
        units = np.flatnonzero(mask)
        blocks = self._block_of[units]
        warps = distinct(self._warp_of[units])
        known = self._clocks.release(warps)
        of_warp = warps // self._clocks.warps
        gathering = self._gathering[:, barrier]
        np.maximum.at(gathering, of_warp, known)
        there = distinct(blocks)
        first = self._arrived[there, barrier] == 0
        different = ~first & (self._place[there, barrier] != at)
        self.mixed[there[first], barrier] = False
        self.mixed[there[different], barrier] = True
        self._place[there, barrier] = at
        self._arrived[:, barrier] += np.bincount(blocks, minlength=len(self.phase))
        self._expected[there, barrier] = expected
        self._complete()
        return phase

    def _ended_warps(self) -> Mask:
        over = np.ones(len(self._clocks.rank), np.bool_)
        over[self._warp_of[self._live]] = False
        return over

    def reconsider(self) -> None:
        """Complete barriers whose missing units have ended."""
        self._clocks.learned += 1
        self._complete()

    def _complete(self) -> None:
        alive = np.bincount(self._block_of[self._live], minlength=len(self.phase))
        expected = np.where(self._expected == ALL, alive[:, None], self._expected)
        done = (self._arrived > 0) & (self._arrived >= expected)
        if not done.any():
            return
        self._released[done] = self._gathering[done]
        self._gathering[done] = 0
        self._arrived[done] = 0
        self.phase[done] += 1

    def passed(self, mask: Mask, barrier: int, phase: NDArray[np.int64]) -> Mask:
        """Return which units' barrier has completed since `phase`, by block, and let them learn.

        Args:
            mask: Which units ask.
            barrier: Which barrier.
            phase: What `arrive` returned.
        """
        over = self.phase[:, barrier] > phase
        ready = mask & over[self._block_of]
        if ready.any():
            warps = distinct(self._warp_of[ready])
            self._clocks.acquire(warps, self._released[warps // self._clocks.warps, barrier])
        return ready


class BarrierWait:
    """A `scheduler.Wait` for one phase of one barrier."""

    def __init__(self, barriers: Barriers, barrier: int, phase: NDArray[np.int64]) -> None:
        self._barriers = barriers
        self._barrier = barrier
        self._phase = phase

    def ready(self, mask: Mask) -> Mask:
        """Return which units may go on."""
        return self._barriers.passed(mask, self._barrier, self._phase)

    def describe(self, mask: Mask) -> str:
        """Say which barrier it is."""
        return f"barrier {self._barrier}"
