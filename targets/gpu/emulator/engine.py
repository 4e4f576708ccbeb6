"""The loop that executes a cohort: pick a group, run its basic block, ask its end where it goes.

A vendor's machine derives from `Engine`, adds its registers and overrides `enter`, which is told
which units the coming steps are for. It may override `execute` to look at each step, and gives its
`registers` and `memories` so that a loop that repeats itself is seen (`endless`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tiledsl.targets.gpu.emulator.cohort import Cohort
from tiledsl.targets.gpu.emulator.endless import Arrays, Repetition
from tiledsl.targets.gpu.emulator.findings import Kind
from tiledsl.targets.gpu.emulator.program import BasicBlock, Instruction
from tiledsl.targets.gpu.emulator.scheduler import Mask, Scheduler

_ASK = 64
"""Basic blocks that a group may run alone before those that wait are asked again, and before it is
asked whether it gets anywhere."""


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
        block: The number of the block that is executed.
    """

    UNITS = "threads"
    """What the units are called."""

    def __init__(self, cohort: Cohort, blocks: Sequence[BasicBlock], units: int) -> None:
        self.cohort = cohort
        self.blocks = blocks
        self.scheduler = Scheduler(units)
        self.active: Mask = self.scheduler.live.copy()
        self.full = True
        self.count = units
        self.block = 0
        self._repetition = Repetition()

    def registers(self) -> Arrays | None:
        """Return all registers, integers, always the same arrays; None where nobody says."""
        return None

    def memories(self) -> Arrays:
        """Return the bytes of all memory that the kernel can write, as `registers`."""
        return ()

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
        """Run every unit to its end, to a deadlock, or until a loop is found to have no end.

        Raises:
            KeyboardInterrupt: Somebody interrupts; it says what was executed.
        """
        try:
            self._run()
        except KeyboardInterrupt:
            raise KeyboardInterrupt(describe_place(self.blocks[self.block])) from None

    def _run(self) -> None:
        scheduler, counters = self.scheduler, self.cohort.counters
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
                self.block = block
                looking = scheduler.turns % _ASK == 0
                if looking and self._is_endless():
                    return
                following = self.execute(self.blocks[block])
                if following is None:
                    break
                if looking and scheduler.parked:
                    scheduler.release()
                if not scheduler.alone:
                    scheduler.go(self.active, following)
                    break
                block = following
            if scheduler.parked:
                scheduler.release()

    def _is_endless(self) -> bool:
        """Look at the group that is about to go on; reports it if it gets nowhere, and says so."""
        if self.cohort.progress is not None:
            self.cohort.progress[0] = self.block
        limit = self.cohort.step_limit
        if self.scheduler.turns >= limit:
            self._report_endless(
                f"no end after {limit:,} steps (basic blocks) of a warp; `step_limit=` or "
                "TILEDSL_EMULATE_STEPS allows more"
            )
            return True
        registers = self.registers() if self.scheduler.alone else None
        if registers is None:
            return False
        place = self.block, self.active.tobytes()
        if not self._repetition.look(place, registers, self.memories()):
            return False
        waiting = sum(int(np.count_nonzero(one.mask)) for one in self.scheduler.parked)
        others = f" while {waiting} wait" if waiting else ""
        self._report_endless(
            f"{self.count} {self.UNITS} spin{others}, and nothing changes any more: "
            "no register, no memory"
        )
        return True

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

    def _report_endless(self, message: str) -> None:
        block = self.blocks[self.block]
        self.cohort.report(
            Kind.ENDLESS, _last_with_source(block), message, self.first_thread(self.active)
        )


def describe_place(block: BasicBlock) -> str:
    """Say where a block is: what a line of the author's was executed, as far as is known."""
    instruction = _last_with_source(block)
    source = instruction.source
    where = "" if source is None else f"{source.file}:{source.line}: "
    return f"{where}emulating `{instruction.text}`"


def _last_with_source(block: BasicBlock) -> Instruction:
    """Return a block's last instruction that has a line, or else its last."""
    known = [one for one in block.instructions if one.source is not None]
    return (known or block.instructions)[-1]
