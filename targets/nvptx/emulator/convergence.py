"""Instructions that a warp executes as one: those that find only a part of it wait for the rest.

Threads of a warp may come to a collective (a shuffle, a vote, a matrix instruction, an aligned
barrier) in groups that have not met yet. `gather` lets whoever comes first wait, at the
collective's own block, until the others are there or have ended; then all of them execute it in one
step. If they never come, nothing can go on at last, and `Machine` reports a divergent barrier.

A family decodes a collective as

    return collective(step)                   # .sync of the whole warp, .aligned
    return collective(step, members)          # `members` reads the membermask
    return gather(build)                      # `build` makes the `End` that follows (a barrier)

where `step` and the end find every thread of the warps that they act on active (or every thread
that its membermask names), except those that have ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.program import End, Step
from tiledsl.targets.gpu.emulator.scheduler import Mask
from tiledsl.targets.nvptx.chips import WARP_SIZE
from tiledsl.targets.nvptx.emulator.opcodes import Ending, Place
from tiledsl.targets.nvptx.emulator.operands import Reader

if TYPE_CHECKING:
    from tiledsl.targets.nvptx.emulator.machine import Machine


def warp_bits(mask: Mask) -> NDArray[np.uint32]:
    """Return the threads of a mask as 32 bits a warp, lane 0 lowest."""
    return np.packbits(mask, bitorder="little").view(np.uint32)


def of_warps(warps: NDArray[Any]) -> NDArray[Any]:
    """Return a value a warp as one a thread."""
    return np.repeat(warps, WARP_SIZE)


class Gathering:
    """A `scheduler.Wait` for the rest of one's warp, at one collective."""

    divergent = True

    def __init__(self, machine: Machine, members: Reader | None) -> None:
        self._machine = machine
        self._members = members
        self.there: Mask = np.zeros(machine.threads, np.bool_)
        """Who waits."""

    def ready(self, mask: Mask) -> Mask:
        """Return who finds all of its warp here."""
        return mask & self.complete(self.there)

    def complete(self, here: Mask) -> Mask:
        """Return the threads of the warps that are here with everyone they need."""
        bits = warp_bits(here)
        if self._members is None:
            wanted = warp_bits(self._machine.live)
        else:
            masks = np.broadcast_to(self._members(self._machine), self._machine.threads)
            named = np.where(here, masks, np.uint32(0)).reshape(-1, WARP_SIZE)
            wanted = np.bitwise_or.reduce(named, axis=1) & warp_bits(self._machine.live)
        return of_warps((wanted & ~bits) == 0)

    def describe(self, mask: Mask) -> str:
        """Say what is missing."""
        bits = int(warp_bits(mask)[np.flatnonzero(mask)[0] // WARP_SIZE])
        return f"only lanes {bits:#010x} of a warp come to an instruction that all must execute"


def gather(build: Callable[[Place], End], members: Reader | None = None) -> Ending:
    """Return an ending that is executed by whole warps.

    Args:
        build: Makes what they do.
        members: Reads the membermask, uint32; without it all of the warp must come.
    """

    def build_gathered(place: Place) -> End:
        inner = build(place)

        def end(machine: Machine) -> int | None:
            wait = machine.gatherings.get(place.block)
            if machine.full:
                if wait is not None:
                    wait.there &= ~machine.active
                return inner(machine)
            if wait is None:
                wait = machine.gatherings[place.block] = Gathering(machine, members)
            return _act(machine, wait, inner, place)

        return end

    return Ending(build_gathered, alone=True)


def _act(machine: Machine, wait: Gathering, inner: End, place: Place) -> int | None:
    """Execute a collective for the warps that are whole; the others wait."""
    active = machine.active
    wait.there &= ~active
    whole = active & wait.complete(active)
    count = int(np.count_nonzero(whole))
    if count == machine.count:
        return inner(machine)
    if count:
        following = machine.narrowed(whole, inner)
        if following is not None:
            machine.scheduler.go(whole, following)
    rest = active & ~whole
    wait.there |= rest
    machine.scheduler.park(rest, place.block, wait, place.block)
    return None


def collective(step: Step, members: Reader | None = None) -> Ending:
    """Return an ending that executes a step by whole warps, and goes on."""

    def build(place: Place) -> End:
        def end(machine: Machine) -> int:
            step(machine)
            return place.following

        return end

    return gather(build, members)
