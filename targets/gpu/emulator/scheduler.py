"""Which units execute next: groups at the same place, furthest behind first.

A *unit* is the smallest thing that has a program counter: a thread on NVIDIA, a wave on AMD. A
group is a set of units at the start of the same basic block. The group at the lowest block runs
until it diverges, waits, ends or reaches a block where others are or may come; so units that parted
meet again where LLVM laid out the join. A group that has run `_PATIENCE` blocks while others could
run lets them go first, so spinning on what another group has to write makes progress.

A group that cannot go on is parked with a `Wait`; parked groups are asked again whenever nothing
else can run or something was released. If nothing can run and no wait is ready, the kernel is
deadlocked, and that is a finding that says who waits for what.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]

_PATIENCE = 2048


class Wait(Protocol):
    """What a parked group waits for."""

    def ready(self, mask: Mask) -> Mask:
        """Return which of the units in `mask` may go on now; those are released by this call."""
        ...

    def describe(self, mask: Mask) -> str:
        """Say what the units in `mask` wait for."""
        ...


@dataclass
class Group:
    """Units at the start of one block.

    Attributes:
        block: The basic block's number.
        mask: Which units.
        turns: Blocks executed, for fairness.
    """

    block: int
    mask: Mask
    turns: int = 0


@dataclass
class Parked:
    """Units that wait.

    Attributes:
        block: Where they go on.
        mask: Which units.
        wait: What for.
        at: The block that they wait at the end of.
        turns: Blocks executed so far.
    """

    block: int
    mask: Mask
    wait: Wait
    at: int
    turns: int = 0


class Scheduler:
    """The groups of a cohort."""

    def __init__(self, units: int) -> None:
        self.live: Mask = np.ones(units, np.bool_)
        """Units that have not ended."""
        self.live_count = units
        self._runnable: dict[int, Group] = {0: Group(0, self.live.copy())}
        self.parked: list[Parked] = []
        self.turns = 0
        """Blocks that the group which was picked last has executed; the engine counts on."""

    @property
    def alone(self) -> bool:
        """Whether no other group than the one that was picked could run."""
        return not self._runnable

    def pick(self) -> Group | None:
        """Take the group that runs next; None where none can."""
        if not self._runnable:
            return None
        if len(self._runnable) == 1:
            group = self._runnable.popitem()[1]
        else:
            best = min(self._runnable.values(), key=lambda one: (one.turns // _PATIENCE, one.block))
            group = self._runnable.pop(best.block)
        self.turns = group.turns
        return group

    def go(self, mask: Mask, block: int, turns: int | None = None) -> None:
        """Put units (a mask that the scheduler may keep) at the start of a block.

        Args:
            mask: Which units.
            block: Where.
            turns: How many blocks they have executed; left out, as many as the group that was
                picked last, of which they are a part.
        """
        turns = self.turns if turns is None else turns
        there = self._runnable.get(block)
        if there is None:
            self._runnable[block] = Group(block, mask, turns)
        else:
            there.mask = there.mask | mask
            there.turns = max(there.turns, turns)

    def park(self, mask: Mask, block: int, wait: Wait, at: int) -> None:
        """Let units wait, and go on at `block` then."""
        self.parked.append(Parked(block, mask, wait, at, self.turns))

    def exit(self, mask: Mask) -> None:
        """End units."""
        self.live &= ~mask
        self.live_count = int(np.count_nonzero(self.live))

    def release(self) -> bool:
        """Let go on whoever's wait is over; says whether anybody's was."""
        progress = False
        left: list[Parked] = []
        for parked in self.parked:
            ready = parked.wait.ready(parked.mask)
            if not ready.any():
                left.append(parked)
                continue
            progress = True
            self.go(ready, parked.block, parked.turns)
            rest = parked.mask & ~ready
            if rest.any():
                left.append(replace(parked, mask=rest))
        self.parked = left
        return progress
