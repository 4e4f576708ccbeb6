"""Barriers of a workgroup, and fences.

`s_barrier` is both halves at once; gfx12 has them apart: `s_barrier_signal -1` arrives, and
`s_barrier_wait -1` waits until all waves have. A barrier waits for waves, not for their memory:
what a wave has under way in LDS does not become known to others by it (`waits.LdsClocks`).

Fences order caches, which are not emulated, so they do nothing here. What they stand beside in the
text, the waits, is what counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.amdgpu.emulator.decode import Context, Ending, Entry
from tiledsl.targets.amdgpu.emulator.memory_units import WORKGROUP
from tiledsl.targets.amdgpu.emulator.text import Constant, Parsed
from tiledsl.targets.gpu.emulator.barriers import ALL, Barriers, BarrierWait
from tiledsl.targets.gpu.emulator.program import End, InstructionClass, Step
from tiledsl.targets.gpu.emulator.scheduler import Mask

if TYPE_CHECKING:
    from tiledsl.targets.amdgpu.emulator.machine import Machine

_OF_WORKGROUP = -1
"""How gfx12 spells the workgroup's barrier."""


class _SignalWait:
    """A `scheduler.Wait` of waves that signalled a barrier earlier, perhaps in different phases."""

    def __init__(self, barriers: Barriers, signalled: NDArray[np.int64]) -> None:
        self._barriers = barriers
        self._signalled = signalled

    def ready(self, mask: Mask) -> Mask:
        """Return which waves may go on."""
        found = np.zeros_like(mask)
        for phase in np.unique(self._signalled[mask]):
            asking = mask & (self._signalled == phase)
            phases = np.full(len(self._barriers.phase), phase)
            found |= self._barriers.passed(asking, WORKGROUP, phases)
        return found

    def describe(self, mask: Mask) -> str:
        """Say what it is."""
        del mask
        return "the other waves' s_barrier_signal"


class _Meeting(BarrierWait):
    def describe(self, mask: Mask) -> str:
        """Say what it is."""
        del mask
        return "the other waves' s_barrier"


def _barrier(parsed: Parsed, context: Context) -> End:
    """Decode `s_barrier`."""
    del parsed
    following, at = context.following, context.instruction.index

    def end(machine: Machine) -> None:
        machine.memory.waits.met()
        barriers = machine.memory.barriers
        phase = barriers.arrive(machine.active, WORKGROUP, ALL, at)
        wait = _Meeting(barriers, WORKGROUP, phase)
        machine.scheduler.park(machine.active.copy(), following, wait, following - 1)

    return end


def _check(parsed: Parsed) -> None:
    """Refuse the barriers of clusters and traps, and named ones."""
    which = parsed.operands[0]
    if not isinstance(which, Constant) or which.integer != _OF_WORKGROUP:
        raise CompilerBug(f"the AMDGPU emulator knows no other barrier than -1: {parsed.text}")


def _signal(parsed: Parsed, context: Context) -> Step:
    """Decode `s_barrier_signal`."""
    _check(parsed)
    at = context.instruction.index

    def step(machine: Machine) -> None:
        memory = machine.memory
        phase = memory.barriers.arrive(machine.active, WORKGROUP, ALL, at)
        waves = np.flatnonzero(machine.active)
        memory.signalled[waves] = phase[waves // machine.cohort.warps]

    return step


def _wait(parsed: Parsed, context: Context) -> End:
    """Decode `s_barrier_wait`."""
    _check(parsed)
    following = context.following

    def end(machine: Machine) -> None:
        memory = machine.memory
        wait = _SignalWait(memory.barriers, memory.signalled.copy())
        machine.scheduler.park(machine.active.copy(), following, wait, following - 1)

    return end


def _leave(parsed: Parsed, context: Context) -> Step:
    """Decode `s_barrier_leave`: the barrier of a workgroup expects all that have not ended."""
    del parsed, context
    return lambda machine: None


_KIND = InstructionClass.SYNCHRONIZE
TABLE: dict[str, Entry | Ending] = {
    "s_barrier": Ending(_barrier, _KIND),
    "s_barrier_signal": Entry(_signal, _KIND),
    "s_barrier_wait": Ending(_wait, _KIND),
    "s_barrier_leave": Entry(_leave, _KIND),
}
