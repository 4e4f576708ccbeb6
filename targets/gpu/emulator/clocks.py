"""Which access happened before which: one vector clock a warp, joined at synchronization.

Each warp counts time for itself, and knows how far it has seen the other warps of its block, or of
the blocks of its cluster, which synchronize as well. What a warp did at time t of its own is
ordered before another warp's access if that warp has seen t.

Barriers of every kind come down to two acts: `release` (make what I did so far known under some
name, and begin a new time) and `acquire` (learn what was released). All warps are flat numbers.

What programs let each other know is one number more in each clock, which barriers pass on like the
rest: how many releases at the scope of the chip it knows of (see `releases`).

Accesses of one warp count as ordered by its own program. (NVIDIA's threads of one warp could
differ where they diverged; the text that we run synchronizes them at `bar.warp.sync` or meets at
a collective, and no such race is looked for here.)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Warps = NDArray[np.intp]
Clock = NDArray[np.uint32]
"""(..., warps a cluster + 1): how far each warp of the cluster, mostly one block, is known, and at
last which releases are."""


class Clocks:
    """The clocks of a cohort's warps."""

    def __init__(self, blocks: int, warps: int, cluster: int = 1) -> None:
        """Begin with nothing known.

        Args:
            blocks: Blocks of the cohort.
            warps: Warps a block.
            cluster: Blocks a cluster; those of one follow one another.
        """
        self.warps = warps
        self.group = warps * cluster
        """Warps a cluster."""
        self.groups = blocks // cluster
        self.width = self.group + 1
        """Numbers of one clock."""
        self.seen: Clock = np.zeros((blocks * warps, self.width), np.uint32)
        """What each flat warp has seen of each warp of its cluster (of itself: its own time), and
        at last the number of the latest release that it has acquired."""
        self.fresh: NDArray[np.uint32] | None = None
        """Where each warp may have a cache of its own: up to which release that shows all."""
        self._every = np.arange(blocks * warps)
        self.rank = self._every % self.group
        """Each flat warp's number in its cluster."""
        self.seen[self._every, self.rank] = 1
        self.version = 0
        """Changes whenever any clock does."""
        self.learned = 0
        """Changes whenever a warp has learnt of another, or ended."""
        self.ended: Callable[[], NDArray[np.bool_]] | None = None
        """Says which flat warps have ended: nobody need wait for them to learn anything."""
        self._times: tuple[int, Clock] | None = None
        self._common: tuple[int, Clock] | None = None

    def now(self, warp: Warps) -> Clock:
        """Return each warp's own time."""
        return self.seen[warp, self.rank[warp]]

    def times(self) -> Clock:
        """Return every warp's own time, (clusters, warps); one array while none changes."""
        if self._times is None or self._times[0] != self.version:
            own = self.seen[self._every, self.rank]
            self._times = self.version, own.reshape(self.groups, self.group)
        return self._times[1]

    def common(self) -> Clock:
        """Return how far each warp is known to all warps of its cluster that have not ended."""
        if self._common is None or self._common[0] != self.learned:
            seen = self.seen[:, : self.group]
            if self.ended is not None and (over := self.ended()).any():
                seen = np.where(over[:, None], np.uint32(0xFFFFFFFF), seen)
            least = seen.reshape(self.groups, self.group, self.group).min(1)
            self._common = self.learned, least
        return self._common[1]

    def release(self, warp: Warps) -> Clock:
        """Return what each of the (distinct) warps knows, (n, width); its next time begins."""
        return self.publish(warp)

    def publish(self, warp: Warps) -> Clock:
        """Do as `release`, of global memory alone: some chip's shared memory may be later."""
        known = self.seen[warp]
        self.seen[warp, self.rank[warp]] += 1
        self.version += 1
        return known

    def acquire(self, warp: Warps, known: Clock) -> None:
        """Let each of the (distinct) warps learn what was released, (n, width)."""
        self.seen[warp] = np.maximum(self.seen[warp], known)
        self.version += 1
        self.learned += 1
