"""What an instruction tells programs of each other: `.release`, `.acquire` and what has both.

Within a program its barriers are what orders memory here, so orders of the scope of a block change
nothing. Those of wider scopes are told to `Releases`, which says who may see whose stores.

Source: PTX ISA 8, "Memory Consistency Model".
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from tiledsl.targets.gpu.emulator.program import Step
from tiledsl.targets.nvptx.emulator.warps import Warps

if TYPE_CHECKING:
    from tiledsl.targets.nvptx.emulator.machine import Machine

_RELEASES = frozenset({"release", "acq_rel", "sc", "seq_cst"})
_ACQUIRES = frozenset({"acquire", "acq_rel", "sc", "seq_cst"})
_STRONG = frozenset({"volatile", "relaxed", "acquire", "release", "mmio", "reduce"})
"""The last one of `cp.reduce`, which makes as many relaxed atomics."""


def is_strong(modifiers: Collection[str]) -> bool:
    """Say whether an access with such modifiers needs no order with other programs' accesses."""
    return not _STRONG.isdisjoint(modifiers)


def with_order(step: Step, modifiers: Collection[str], *, both: bool = False) -> Step:
    """Return a step that releases before it and acquires after it, as its modifiers say.

    With `both` it does the two whatever they say, unless its scope is a block.
    """
    releases = both or not _RELEASES.isdisjoint(modifiers)
    acquires = both or not _ACQUIRES.isdisjoint(modifiers)
    if "cta" in modifiers or not (releases or acquires):
        return step

    def ordered(machine: Machine) -> None:
        warps, told = Warps(machine).index, machine.memory.races.releases
        if releases:
            told.release(machine.cohort, warps)
        step(machine)
        if acquires:
            told.acquire(machine.cohort, warps)

    return ordered
