"""Whole warps: what matrix instructions and exchanges see of a machine's registers.

A register is an array over threads; those instructions act on warps, (warps, 32). `Warps` are the
warps of the active threads, once `convergence` has brought them together. It turns registers into
rows and rows into registers, without a copy where every warp of the cohort takes part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.findings import Kind
from tiledsl.targets.gpu.emulator.program import Instruction
from tiledsl.targets.nvptx.chips import WARP_SIZE
from tiledsl.targets.nvptx.emulator import text as ptx
from tiledsl.targets.nvptx.emulator.operands import Context, Reader, Scatter, Writer

if TYPE_CHECKING:
    from tiledsl.targets.nvptx.emulator.machine import Machine

Array = NDArray[Any]


class Warps:
    """The warps of the active threads.

    Attributes:
        every: Whether they are all warps of the cohort, and all their threads.
        index: Their flat numbers, ascending.
    """

    __slots__ = ("every", "index", "machine")

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.every = machine.count == machine.threads
        active = machine.active.reshape(-1, WARP_SIZE)
        self.index: NDArray[np.intp] = (
            np.arange(len(active)) if self.every else np.flatnonzero(active.any(1))
        )

    def __len__(self) -> int:
        return len(self.index)

    def rows(self, values: Any) -> Array:
        """Return what a reader gave as (warps, 32)."""
        every = np.broadcast_to(values, self.machine.threads).reshape(-1, WARP_SIZE)
        return every if self.every else every[self.index]

    @property
    def threads(self) -> NDArray[np.intp]:
        """Their flat threads, (warps, 32), the ended ones too."""
        return self.index[:, None] * WARP_SIZE + np.arange(WARP_SIZE)

    def whole(self, instruction: Instruction) -> Warps:
        """Report warps some of whose threads have ended: what they then do is undefined."""
        if self.every:
            return self
        missing = ~self.machine.active.reshape(-1, WARP_SIZE)[self.index]
        if missing.any():
            access = self.machine.access(instruction, self.threads.reshape(-1))
            access.report(
                Kind.UNDEFINED,
                missing.reshape(-1),
                lambda at: f"lane {at % WARP_SIZE} has ended; all of the warp must execute this",
            )
        return self


class Outputs:
    """Registers that an instruction writes in every lane of its warps."""

    def __init__(self, context: Context, operand: ptx.Operand, type_: str) -> None:
        items = operand.items if isinstance(operand, ptx.Vector) else (operand,)
        self._write: list[Writer] = [context.write(item, type_) for item in items]
        self._scatter: list[Scatter] = [context.scatter(item, type_) for item in items]

    def __len__(self) -> int:
        return len(self._write)

    def put(self, warps: Warps, values: Array) -> None:
        """Write values, (registers, warps, 32)."""
        machine = warps.machine
        if warps.every:
            for write, value in zip(self._write, values, strict=True):
                write(machine, np.array(value).reshape(-1))
            return
        lanes = machine.lanes
        active = machine.active.reshape(-1, WARP_SIZE)[warps.index]
        for scatter, value in zip(self._scatter, values, strict=True):
            scatter(machine, lanes, value[active])


def inputs(warps: Warps, readers: Sequence[Reader]) -> list[Array]:
    """Return each operand's register as (warps, 32)."""
    return [warps.rows(reader(warps.machine)) for reader in readers]


def lane_table(function: Callable[[Array], Array]) -> Array:
    """Tabulate something of each lane of a warp."""
    return function(np.arange(WARP_SIZE))
