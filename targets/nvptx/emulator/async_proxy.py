"""Which plain writes to shared memory the asynchronous proxy cannot see yet.

TMA and `wgmma` look at shared memory through another path than loads and stores do. What a thread
wrote plainly they see only after it executed `fence.proxy.async` (and a barrier told whoever issues
them). Without the fence a kernel is right on most days, so it is a finding here: a granule is
*plain* from a write until its warp fences, and an asynchronous read of it is reported.

What `cp.async` copies is written plainly, too; only TMA's copies are the asynchronous proxy's own.
It is kept by warp: a fence by any thread of a warp counts for all of it.

Source: PTX ISA 8.7, "Async proxy", and 9.7.13.4, "fence.proxy.async".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.cohort import Access, Lanes
from tiledsl.targets.gpu.emulator.findings import Kind
from tiledsl.targets.gpu.emulator.shared_memory import Granules

if TYPE_CHECKING:
    from tiledsl.targets.nvptx.emulator.machine import Machine


class AsyncProxy:
    """The plain granules of a machine: a part of it, made with it (`Context.parts`)."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._shared = machine.shared
        self._plain = np.zeros(machine.shared.granule_count, np.int32)
        """One more than the flat warp that wrote each granule plainly since it fenced; or 0."""
        machine.shared.on_write = self._note

    def _note(self, warp: NDArray[np.intp], granules: Granules) -> None:
        self._plain[granules] = warp[:, None] + 1

    def fence(self, warps: NDArray[np.intp], within: Granules | None = None) -> None:
        """Make what some warps wrote (within some granules) visible to the asynchronous proxy."""
        fenced = np.zeros(len(self._machine.clocks.rank) + 1, np.bool_)
        fenced[warps + 1] = True
        plain = np.flatnonzero(self._plain) if within is None else within.reshape(-1)
        self._plain[plain[fenced[self._plain[plain]]]] = 0

    def written(self, granules: Granules) -> None:
        """Note that the asynchronous proxy itself wrote granules."""
        self._plain[granules] = 0

    def check(self, access: Access, granules: Granules) -> None:
        """Report asynchronous reads, one a lane, of granules that are plain."""
        writers = self._plain[granules]
        bad = np.logical_or.reduce(writers > 0, 1)
        if not bad.any():
            return

        def message(at: int) -> str:
            warp = int(writers[at].max()) - 1
            rank = int(self._machine.clocks.rank[warp])
            byte = self._shared.byte_of(int(granules[at, 0]))
            return (
                f"an asynchronous read of shared memory at byte {byte}, which warp {rank} wrote "
                "without fence.proxy.async after it"
            )

        access.report(Kind.MISSING_WAIT, bad, message)

    def check_bytes(self, access: Access, lanes: Lanes, offset: NDArray[np.int64], n: int) -> None:
        """Report asynchronous reads of `n` bytes at each lane's offset."""
        self.check(access, self._shared.granules(lanes, offset, n))
