"""What a workgroup tells the others of its stores: caches written back and invalidated.

A workgroup *releases* what it stored by an atomic on global memory, once the stores are complete
(`waits`): they are in the cache that all workgroups share then, but on gfx940 and later, which has
several of those, only if `buffer_wbl2 sc1` wrote them back before. It *acquires* what was released
by invalidating its caches, at the scope of the device:

    gfx90a    buffer_wbinvl1_vol           gfx11    buffer_gl1_inv, then buffer_gl0_inv
    gfx940    buffer_inv sc1               gfx12    global_inv scope:SCOPE_DEV

Before gfx10 the waves of a workgroup have one cache, so what one acquired, the others have after
a barrier. Later they may be on two units, each with a cache of its own, which its waves invalidate
after the barrier (`buffer_gl0_inv`, `global_inv scope:SCOPE_SE`).

A load whose hints lead it past these caches sees what is there without that (`Instruction.strong`).

Source: LLVM's "User Guide for AMDGPU Backend", memory models of gfx90a, gfx942, gfx10-11 and gfx12.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.amdgpu.emulator.decode import GFX940, WIDE, Context, Entry
from tiledsl.targets.amdgpu.emulator.text import Parsed
from tiledsl.targets.gpu.emulator.clocks import Clocks
from tiledsl.targets.gpu.emulator.program import InstructionClass, Step

if TYPE_CHECKING:
    from tiledsl.targets.amdgpu.emulator.machine import Machine

_GFX10 = 0x1000


class Orders:
    """What the waves of a cohort have done to their caches."""

    def __init__(self, machine: Machine, clocks: Clocks) -> None:
        self._machine = machine
        self._clocks = clocks
        self._releases = machine.cohort.memory.races.releases
        self._writes_back = GFX940 <= machine.code.chip.number < _GFX10
        self._written_back = np.zeros(machine.waves, np.bool_)
        if machine.code.chip.number >= _GFX10:
            clocks.fresh = np.zeros(machine.waves, np.uint32)

    def release(self, threads: NDArray[np.intp]) -> None:
        """Let an atomic by some flat threads release what their waves have written back."""
        cohort = self._machine.cohort
        waves = np.unique(cohort.warp_of[threads])
        if self._writes_back:
            waves = waves[self._written_back[waves]]
            self._written_back[waves] = False
        self._releases.release(cohort, waves)

    def write_back(self) -> None:
        """Let the active waves' stores get to where all workgroups see them."""
        self._written_back[self._machine.active] = True

    def acquire(self) -> None:
        """Invalidate, for the active waves, what they share with other workgroups' waves."""
        waves = np.flatnonzero(self._machine.active)
        self._releases.acquire(self._machine.cohort, waves)

    def refresh(self) -> None:
        """Invalidate the active waves' own cache."""
        if self._clocks.fresh is not None:
            waves = np.flatnonzero(self._machine.active)
            self._clocks.fresh[waves] = self._clocks.seen[waves, -1]


def _nothing(machine: Machine) -> None:
    """Do nothing: what it does to caches concerns no other workgroup."""


def _write_back(parsed: Parsed, context: Context) -> Step:
    del context
    if "sc1" not in parsed.rest.split():
        return _nothing
    return lambda machine: machine.memory.orders.write_back()


def _invalidate(parsed: Parsed, context: Context) -> Step:
    """Decode what invalidates all caches, or fewer if its scope says so."""
    scope = parsed.rest.split()
    if parsed.stem == "buffer_inv" and "sc1" not in scope:
        return _nothing
    if context.generation < 12 or any(f"scope:{wide}" in scope for wide in WIDE):
        return _acquire
    return _refresh if "scope:SCOPE_SE" in scope else _nothing


def _acquire(machine: Machine) -> None:
    machine.memory.orders.acquire()
    machine.memory.orders.refresh()


def _refresh(machine: Machine) -> None:
    machine.memory.orders.refresh()


def _invalidate_shared(parsed: Parsed, context: Context) -> Step:
    del parsed, context
    return lambda machine: machine.memory.orders.acquire()


def _invalidate_own(parsed: Parsed, context: Context) -> Step:
    del parsed, context
    return _refresh


def _scalar_or_system(parsed: Parsed, context: Context) -> Step:
    """Decode what concerns the caches of constants, or stores on their way to other devices."""
    del parsed, context
    return _nothing


_KIND = InstructionClass.SYNCHRONIZE
TABLE: dict[str, Entry] = {
    "buffer_wbl2": Entry(_write_back, _KIND),
    "buffer_gl1_inv": Entry(_invalidate_shared, _KIND),
    "buffer_gl0_inv": Entry(_invalidate_own, _KIND),
    "buffer_inv": Entry(_invalidate, _KIND),
    "buffer_wbinvl1": Entry(_invalidate, _KIND),
    "buffer_wbinvl1_vol": Entry(_invalidate, _KIND),
    "global_inv": Entry(_invalidate, _KIND),
    "global_wbinv": Entry(_invalidate, _KIND),
    **{
        name: Entry(_scalar_or_system, _KIND)
        for name in ("s_dcache_inv", "s_dcache_wb", "s_dcache_inv_vol", "s_gl1_inv", "global_wb")
    },
}
