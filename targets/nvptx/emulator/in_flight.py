"""Registers that asynchronous matrix instructions are using, and who touches them too early.

The accumulator of a `wgmma.mma_async` may not be read or written, and its A registers may not be
written, before a `wait_group` that covers it. The emulator multiplies at the issue, so nothing
wrong would show; therefore every instruction is looked at while such registers are in flight.

LLVM copies registers at its leisure (a tied operand of inline assembly, a value that a loop
carries), and ptxas joins the copies again. So a `mov` of a register in flight is no fault: the copy
is then in flight, too, for as long. To overwrite one with something else is a fault.

A machine looks at its instructions (`execute`) only in kernels that have `wgmma`, and at those of a
block only while the block names a register in flight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.findings import Kind
from tiledsl.targets.gpu.emulator.program import BasicBlock, Instruction
from tiledsl.targets.nvptx.chips import WARP_SIZE
from tiledsl.targets.nvptx.emulator import text as ptx
from tiledsl.targets.nvptx.emulator.operands import Context

if TYPE_CHECKING:
    from tiledsl.targets.nvptx.emulator.machine import Machine

Serials = NDArray[np.int64]
"""By flat warp: one more than the serial of the youngest operation that uses a register; or 0."""


@dataclass(frozen=True)
class Registers:
    """What one instruction does to registers, by slot.

    Attributes:
        moves: Whether it only copies.
        exempt: Whether it looks after itself.
        writes: What it writes.
        reads: What it reads.
        guard: The slot of its predicate, and whether that is negated.
    """

    moves: bool
    exempt: bool
    writes: tuple[int, ...]
    reads: tuple[int, ...]
    guard: tuple[int, bool] | None


def registers_of(function: ptx.Function, context: Context) -> Sequence[Registers]:
    """Return what each instruction does to registers; nothing where no kernel needs to know."""
    statements = [one for one in function.body if isinstance(one, ptx.Parsed)]
    if not any(one.opcode.startswith("wgmma.mma_async") for one in statements):
        return ()
    return [_registers(one, context) for one in statements]


def _registers(statement: ptx.Parsed, context: Context) -> Registers:
    first = statement.operands[:1]
    to_memory = bool(first) and isinstance(first[0], ptx.Address)
    read = statement.operands if to_memory else statement.operands[1:]
    written = () if to_memory else first
    guard = statement.guard
    return Registers(
        statement.stem == "mov",
        statement.opcode.startswith("wgmma."),
        tuple(slot for one in written for slot in _slots(one, context)),
        tuple(slot for one in read for slot in _slots(one, context)),
        None if guard is None else (context.slot(guard.register), guard.negated),
    )


def _slots(operand: ptx.Operand, context: Context) -> Iterator[int]:
    """Yield the slots of the registers in an operand."""
    match operand:
        case ptx.Register():
            yield context.slot(operand)
        case ptx.Vector():
            for item in operand.items:
                yield from _slots(item, context)
        case ptx.Pair():
            yield from _slots(operand.first, context)
            yield from _slots(operand.second, context)
        case ptx.Negated():
            yield from _slots(operand.operand, context)
        case ptx.Address():
            yield from _slots(operand.base, context)
        case _:
            return


class InFlight:
    """The registers in flight of a machine: a part of it, made with it (`Context.parts`)."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._warps = machine.threads // WARP_SIZE
        self._writing: dict[int, Serials] = {}
        self._reading: dict[int, Serials] = {}
        self._named: dict[int, frozenset[int]] = {}
        machine.watch = self.execute

    # --- what wgmma says -------------------------------------------------------------------------

    def begin(
        self,
        warps: NDArray[np.intp],
        serial: Serials,
        accumulators: Sequence[int],
        operands: Sequence[int],
        instruction: Instruction,
    ) -> None:
        """Begin an operation of some warps.

        Args:
            warps: The flat warps.
            serial: Of their operation, as `Pending` counts.
            accumulators: Slots that it writes.
            operands: Slots that it reads: A.
            instruction: Itself.
        """
        for slot in operands:
            if self._busy(self._writing, slot, warps):
                self._report(instruction, warps, "A operand still being written by")
        for uses, slots in ((self._writing, accumulators), (self._reading, operands)):
            for slot in slots:
                uses.setdefault(slot, np.zeros(self._warps, np.int64))[warps] = serial + 1

    def finish(self, warps: NDArray[np.bool_], limit: Serials) -> None:
        """End the operations of some warps whose serial is below a limit."""
        for uses in (self._writing, self._reading):
            for slot in list(uses):
                serials = uses[slot]
                serials[warps & (serials <= limit)] = 0
                if not serials.any():
                    del uses[slot]

    # --- what everything else does ---------------------------------------------------------------

    def execute(self, block: BasicBlock) -> int | None:
        """Execute a block as `Engine.execute` does, looking at each instruction if need be."""
        machine = self._machine
        named = self._named.get(id(block))
        if named is None:
            named = self._named[id(block)] = self._names(block)
        if named.isdisjoint(self._writing) and named.isdisjoint(self._reading):
            for step in block.steps:
                step(machine)
            return block.end(machine)
        for step, instruction in zip(block.steps, block.instructions, strict=False):
            self._look(instruction)
            step(machine)
        if len(block.instructions) > len(block.steps):
            self._look(block.instructions[-1])
        return block.end(machine)

    def _names(self, block: BasicBlock) -> frozenset[int]:
        registers = self._machine.layout.instructions
        return frozenset(
            slot
            for one in block.instructions
            for slot in (*registers[one.index].writes, *registers[one.index].reads)
            if not registers[one.index].exempt
        )

    def _look(self, instruction: Instruction) -> None:
        registers = self._machine.layout.instructions[instruction.index]
        if registers.exempt:
            return
        warps = self._active_warps(registers)
        if not len(warps):
            return
        if registers.moves:
            self._move(registers, warps, instruction)
            return
        touched = (*registers.reads, *registers.writes)
        if any(self._busy(self._writing, slot, warps) for slot in touched):
            self._report(instruction, warps, "accumulator of")
        self._look_at_operands(registers, warps, instruction)

    def _move(self, registers: Registers, warps: NDArray[np.intp], here: Instruction) -> None:
        """Let the copies of registers in flight be in flight."""
        nothing = np.zeros(len(warps), np.int64)
        sources = [self._writing[one][warps] for one in registers.reads if one in self._writing]
        serial = np.maximum.reduce(sources) if sources else nothing
        for slot in registers.writes:
            before = self._writing.get(slot)
            if before is not None and ((before[warps] > 0) & (serial == 0)).any():
                self._report(here, warps, "accumulator of")
            if serial.any():
                self._writing.setdefault(slot, np.zeros(self._warps, np.int64))[warps] = serial
        self._look_at_operands(registers, warps, here)

    def _look_at_operands(
        self, registers: Registers, warps: NDArray[np.intp], here: Instruction
    ) -> None:
        if any(self._busy(self._reading, slot, warps) for slot in registers.writes):
            self._report(here, warps, "A operand of")

    def _active_warps(self, registers: Registers) -> NDArray[np.intp]:
        machine = self._machine
        active = machine.active
        if registers.guard is not None:
            slot, negated = registers.guard
            predicate: NDArray[Any] = machine.regs[slot]
            active = active & (~predicate if negated else predicate)
        return np.flatnonzero(active.reshape(-1, WARP_SIZE).any(1))

    @staticmethod
    def _busy(uses: dict[int, Serials], slot: int, warps: NDArray[np.intp]) -> bool:
        serials = uses.get(slot)
        return serials is not None and bool(serials[warps].any())

    def _report(self, instruction: Instruction, warps: NDArray[np.intp], what: str) -> None:
        message = f"a register that is the {what} a wgmma that nobody waited for"
        thread = int(warps[0]) * WARP_SIZE
        self._machine.cohort.report(Kind.MISSING_WAIT, instruction, message, thread, len(warps))
