"""Addresses of shared memory that are given otherwise than by `ld` and `st`.

Offsets are into the window of the thread's own block. A generic address becomes one by taking the
window's start away: what lies elsewhere is then far out of bounds and reported as such.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.nvptx.emulator import text as ptx
from tiledsl.targets.nvptx.emulator.machine import SHARED_WINDOW
from tiledsl.targets.nvptx.emulator.operands import Context

if TYPE_CHECKING:
    from tiledsl.targets.nvptx.emulator.machine import Machine

Offsets = NDArray[np.int64]


def offsets(
    context: Context, operand: ptx.Operand, *, generic: bool = False
) -> Callable[[Machine], Offsets]:
    """Return what reads an address as offsets into shared memory, for all threads."""
    read = context.address(operand)
    if generic:
        window = np.uint64(SHARED_WINDOW)
        return lambda machine: (read(machine) - window).view(np.int64)
    return lambda machine: read(machine).view(np.int64)


def is_generic(instruction: ptx.Parsed) -> bool:
    """Say whether an instruction on shared memory names no state space."""
    spaces = {"shared", "shared::cta", "shared::cluster"}
    return not spaces & set(instruction.modifiers)
