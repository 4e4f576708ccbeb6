"""The registers that the warps of a block share: setmaxnreg.

A block begins with as many registers a thread as it was compiled for. `setmaxnreg.dec` gives some
of a warp's back to the block, `setmaxnreg.inc` takes some and waits until there are enough: a
kernel whose warps ask for more than others give back never goes on, and is found deadlocked.

Source: PTX ISA 9.7.20.5, "setmaxnreg".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tiledsl.targets.gpu.emulator.findings import Kind
from tiledsl.targets.gpu.emulator.program import End, InstructionClass
from tiledsl.targets.gpu.emulator.scheduler import Mask
from tiledsl.targets.nvptx.chips import MAX_REGISTERS_PER_THREAD, WARP_SIZE
from tiledsl.targets.nvptx.emulator import text as ptx
from tiledsl.targets.nvptx.emulator.convergence import gather
from tiledsl.targets.nvptx.emulator.opcodes import Ending, Opcode, Options, Place, Table, unknown
from tiledsl.targets.nvptx.emulator.operands import Context
from tiledsl.targets.nvptx.emulator.warps import Warps

if TYPE_CHECKING:
    from tiledsl.targets.nvptx.emulator.machine import Machine

_LEAST, _MOST, _STEP = 24, 256, 8


class RegisterPool:
    """Who has how many registers: a part of a machine."""

    def __init__(self, machine: Machine) -> None:
        layout, warps = machine.layout, machine.cohort.warps
        share = layout.chip.registers_per_sm // machine.cohort.threads // _STEP * _STEP
        self.entry = layout.registers_at_entry or min(share, MAX_REGISTERS_PER_THREAD)
        """Registers a thread that a kernel begins with."""
        self.held = np.full((machine.cohort.blocks, warps), self.entry)
        """By block and warp, registers a thread."""

    def free(self, block: int) -> int:
        """Return the registers a thread of one warp that a block has to give."""
        return self.held.shape[1] * self.entry - int(self.held[block].sum())

    def take(self, block: int, warp: int, count: int) -> bool:
        """Give a warp so many registers a thread; says whether there were enough."""
        wanted = count - int(self.held[block, warp])
        if wanted > self.free(block):
            return False
        self.held[block, warp] = count
        return True


class _Registers:
    """A `scheduler.Wait` for registers."""

    def __init__(self, machine: Machine, count: int) -> None:
        self._machine = machine
        self._count = count

    def ready(self, mask: Mask) -> Mask:
        """Give registers to the warps that can have them."""
        return take(self._machine, mask, self._count)

    def describe(self, mask: Mask) -> str:
        """Say what they wait for."""
        machine = self._machine
        first = int(np.flatnonzero(mask)[0])
        free = machine.part(RegisterPool).free(int(machine.cohort.block_of[first]))
        return f"{self._count} registers a thread, of which their block has {free} to give"


def take(machine: Machine, mask: Mask, count: int) -> Mask:
    """Let the warps of some threads have `count` registers a thread; returns who got them."""
    pool, warps = machine.part(RegisterPool), machine.cohort.warps
    got = np.zeros(len(mask), np.bool_)
    for warp in np.flatnonzero(mask.reshape(-1, WARP_SIZE).any(1)):
        if pool.take(int(warp) // warps, int(warp) % warps, count):
            got[warp * WARP_SIZE : (warp + 1) * WARP_SIZE] = True
    return got & mask


def _decode(instruction: ptx.Parsed, context: Context) -> Ending:
    options = Options(instruction)
    options.ignore("sync", "aligned", "u32")
    grows = options.choice({"inc", "dec"}) == "inc"
    options.done()
    (operand,) = instruction.operands
    count = operand.value if isinstance(operand, ptx.Immediate) else 0
    if not _LEAST <= count <= _MOST or count % _STEP:
        raise unknown(instruction, "expected 24 to 256 registers, a multiple of 8")
    here = context.instruction

    def check(machine: Machine) -> None:
        held = machine.part(RegisterPool).held.reshape(-1)[Warps(machine).index]
        wrong = held > count if grows else held < count
        if wrong.any():
            has = int(held[np.flatnonzero(wrong)[0]])
            message = f"a warp that has {has} registers a thread cannot go to {count}"
            thread = int(machine.lanes[0])
            machine.cohort.report(Kind.UNDEFINED, here, message, thread, int(wrong.sum()))

    def build(place: Place) -> End:
        def end(machine: Machine) -> int | None:
            check(machine)
            got = take(machine, machine.active, count)
            if int(np.count_nonzero(got)) == machine.count:
                return place.following
            if got.any():
                machine.scheduler.go(got, place.following)
            rest = machine.active & ~got
            wait = _Registers(machine, count)
            machine.scheduler.park(rest, place.following, wait, place.block)
            return None

        return end

    return gather(build)


TABLE: Table = {"setmaxnreg": Opcode(_decode, InstructionClass.SYNCHRONIZE)}
