"""The loop that executes a cohort: pick a group, run its basic block, ask its end where it goes.

A vendor's machine derives from `Engine`, adds its registers and overrides `enter`, which is told
which units the coming steps are for. It may override `execute` to look at each step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tiledsl.targets.gpu.emulator.cohort import Cohort
from tiledsl.targets.gpu.emulator.findings import Finding, Kind
from tiledsl.targets.gpu.emulator.program import BasicBlock
from tiledsl.targets.gpu.emulator.scheduler import Mask, Scheduler

LIMIT = 20_000_000
"""Basic blocks that a cohort executes before it is said not to end."""

_ASK = 64
"""Basic blocks that a group may run alone before those that wait are asked again."""


class Engine:
    """What runs; see the module's docstring.

    Attributes:
        cohort: What it runs for.
        blocks: The program's basic blocks.
        scheduler: Its groups; its units are the vendor's.
        active: The units that the current steps are for.
        full: Whether those are all units that have not ended. Then registers may be written
            without a mask; memory may not.
        count: How many units are active.
    """

    def __init__(self, cohort: Cohort, blocks: Sequence[BasicBlock], units: int) -> None:
        self.cohort = cohort
        self.blocks = blocks
        self.scheduler = Scheduler(units)
        self.active: Mask = self.scheduler.live.copy()
        self.full = True
        self.count = units

    def enter(self, mask: Mask) -> None:
        """Make `mask` the current group."""
        self.active = mask
        self.count = int(np.count_nonzero(mask))
        self.full = self.count == self.scheduler.live_count

    def execute(self, block: BasicBlock) -> int | None:
        """Run one block for the current group; returns where it goes on, as `program.End` does."""
        for step in block.steps:
            step(self)
        return block.end(self)

    def active_warps(self) -> int:
        """Return in how many warps some unit is active, for counting."""
        return self.count

    def run(self) -> None:
        """Run every unit to its end, or to a deadlock."""
        scheduler, counters = self.scheduler, self.cohort.counters
        left = LIMIT
        while True:
            group = scheduler.pick()
            if group is None:
                if scheduler.release():
                    continue
                if scheduler.parked:
                    self._report_deadlock()
                return
            self.enter(group.mask)
            block = group.block
            while True:
                if counters is not None:
                    counters.executed(block, self.active_warps())
                scheduler.turns += 1
                left -= 1
                following = self.execute(self.blocks[block])
                if left < 0:
                    self._report_endless(block)
                    return
                if following is None:
                    break
                if scheduler.parked and scheduler.turns % _ASK == 0:
                    scheduler.release()
                if not scheduler.alone:
                    scheduler.go(self.active, following)
                    break
                block = following
            if scheduler.parked:
                scheduler.release()

    def first_thread(self, mask: Mask) -> int:
        """Return the flat thread of the first unit in a mask."""
        units = len(self.scheduler.live)
        threads = len(self.cohort.block_of)
        return int(np.flatnonzero(mask)[0]) * (threads // units)

    def _report_deadlock(self) -> None:
        parked = self.scheduler.parked
        waits = "; ".join(
            f"{int(np.count_nonzero(one.mask))} wait for {one.wait.describe(one.mask)}"
            for one in parked
        )
        for one in parked:
            self.cohort.report(
                Kind.DEADLOCK,
                self.blocks[one.at].instructions[-1],
                f"nothing can go on: {waits}",
                self.first_thread(one.mask),
            )

    def _report_endless(self, block: int) -> None:
        instruction = self.blocks[block].instructions[-1]
        message = f"no end after {LIMIT} basic blocks: it waits for what nobody does"
        self.cohort.findings.add(Finding(Kind.DEADLOCK, message, instruction))
