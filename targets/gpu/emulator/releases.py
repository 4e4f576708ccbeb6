"""What programs of a launch let each other know: releases and acquires at the scope of the chip.

In a kernel with atomics on global memory programs may hand each other what they stored, if the one
*releases* it (an atomic or a fence that does so, at the chip's scope or a wider one) and the other
one *acquires* after that; what is in between, usually one atomic's value, says when. Which atomic
it was is not asked here, so that any release and any acquire in the right order will do: what is
found to be unordered is so in every case, but not all that is unordered is found.

A release is numbered, and covers all that its warp did, and what barriers let it know of the other
warps of its program; kept are, for each warp of the launch, the times of the latest `_KEPT`
releases that covered more than the one before. An acquire takes note of the number of the latest
release, in the last column of the warp's clock, so that barriers pass it on to the other warps.

Clusters of several blocks have ways of their own to release; in kernels with any nothing is found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.clocks import Warps

if TYPE_CHECKING:
    from tiledsl.targets.gpu.emulator.cohort import Cohort

_KEPT = 4


class Releases:
    """The releases of the launch under way."""

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, warps: int) -> None:
        """Begin a launch of so many warps."""
        self._count = 0
        self._warps = warps
        self._times: NDArray[np.uint32] | None = None
        """Of each kept release of each warp, the latest first: its time; 0 where there is none."""
        self._numbers: NDArray[np.uint32] | None = None

    def release(self, cohort: Cohort, warp: Warps) -> None:
        """Let other programs know of what some (distinct) flat warps did, and know of."""
        clocks = cohort.clocks
        if not cohort.atomic or clocks is None or not len(warp):
            return
        self._count += 1
        known = clocks.publish(warp)[:, :-1]
        if self._times is None or self._numbers is None:
            warps = max(self._warps, int(cohort.launch_warp.max()) + 1)
            self._times = np.zeros((_KEPT, warps), np.uint32)
            self._numbers = np.zeros_like(self._times)
        group, row = np.unique(warp // clocks.group, return_inverse=True)
        latest = np.zeros((len(group), clocks.group), np.uint32)
        np.maximum.at(latest, row, known)
        who = cohort.launch_warp.reshape(-1, clocks.group)[group]
        more = latest > self._times[0, who]
        who = who[more]
        for kept, new in ((self._times, latest[more]), (self._numbers, self._count)):
            kept[1:, who] = kept[:-1, who]
            kept[0, who] = new

    def acquire(self, cohort: Cohort, warp: Warps) -> None:
        """Let some (distinct) flat warps know of all releases so far."""
        if cohort.atomic and cohort.clocks is not None:
            cohort.clocks.seen[warp, -1] = self._count

    def ordered(
        self, cohort: Cohort, number: NDArray[np.int64], time: NDArray[np.uint32], own: Warps
    ) -> NDArray[np.bool_]:
        """Say whether what warps of other programs did comes before what some flat warps do now.

        Args:
            cohort: The flat warps' cohort.
            number: Those who did it, by their number in the launch, (n, m).
            time: Their times then, (n, m).
            own: Who does something now, (n,).
        """
        if cohort.clustered:
            return np.ones(number.shape, np.bool_)
        if self._times is None or self._numbers is None:
            return np.zeros(number.shape, np.bool_)
        assert cohort.clocks is not None
        covering = (self._times[:, number] >= time).sum(0)
        first = self._numbers[np.maximum(covering - 1, 0), number]
        acquired = cohort.clocks.seen[:, -1] if cohort.clocks.fresh is None else cohort.clocks.fresh
        known = first <= acquired[own][:, None]
        # Where all that is kept covers it, an older release may have been the first.
        return (covering == _KEPT) | (covering > 0) & known
