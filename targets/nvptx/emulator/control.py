"""Control flow: branches, and what ends threads."""

from __future__ import annotations

import numpy as np

from tiledsl.targets.gpu.emulator.program import End, InstructionClass, Step
from tiledsl.targets.nvptx.emulator.machine import Machine
from tiledsl.targets.nvptx.emulator.opcodes import Ending, Opcode, Options, Place, Table, unknown
from tiledsl.targets.nvptx.emulator.operands import Context
from tiledsl.targets.nvptx.emulator.text import Parsed, Symbol


def _branch(instruction: Parsed, context: Context) -> Ending:
    options = Options(instruction)
    options.ignore("uni")
    options.done()
    (target,) = instruction.operands
    if not isinstance(target, Symbol):
        raise unknown(instruction)
    name = target.name

    def build(place: Place) -> End:
        block = place.labels[name]
        return lambda machine: block

    return Ending(build)


def _branch_table(instruction: Parsed, context: Context) -> Ending:
    """Decode `brx.idx index, table`."""
    options = Options(instruction)
    options.ignore("idx", "uni")
    options.done()
    index, table = instruction.operands
    if not isinstance(table, Symbol) or table.name not in context.tables:
        raise unknown(instruction)
    read, names = context.read(index, "u32"), context.tables[table.name]

    def build(place: Place) -> End:
        targets = [place.labels[name] for name in names]

        def end(machine: Machine) -> None:
            which = np.minimum(read(machine), np.uint32(len(targets) - 1))
            for i, block in enumerate(targets):
                mask = machine.active & (which == i)
                if mask.any():
                    machine.scheduler.go(mask, block)

        return end

    return Ending(build)


def _exit(instruction: Parsed, context: Context) -> Ending:
    options = Options(instruction)
    options.ignore("uni")
    options.done()

    def build(place: Place) -> End:
        def end(machine: Machine) -> None:
            machine.end(machine.active)

        return end

    return Ending(build)


def _trap(instruction: Parsed, context: Context) -> Ending:
    """Decode `trap`: what the thread printed last says why."""
    who = context.instruction

    def build(place: Place) -> End:
        def end(machine: Machine) -> None:
            machine.cohort.report_trap(who, machine.last_words(machine.lanes), machine.lanes)
            machine.end(machine.active)

        return end

    return Ending(build)


def _nothing(instruction: Parsed, context: Context) -> Step:
    return lambda machine: None


TABLE: Table = {
    "bra": Opcode(_branch, InstructionClass.CONTROL),
    "brx": Opcode(_branch_table, InstructionClass.CONTROL),
    "ret": Opcode(_exit, InstructionClass.CONTROL),
    "exit": Opcode(_exit, InstructionClass.CONTROL),
    "trap": Opcode(_trap, InstructionClass.CONTROL),
    "brkpt": Opcode(_nothing, InstructionClass.CONTROL),
    "nanosleep": Opcode(_nothing, InstructionClass.CONTROL),
}
