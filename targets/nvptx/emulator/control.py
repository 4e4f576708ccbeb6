"""Control flow: branches, ends of threads, barriers of a block, calls of the driver's functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tiledsl.targets.gpu.emulator.barriers import ALL, BarrierWait
from tiledsl.targets.gpu.emulator.findings import Kind
from tiledsl.targets.gpu.emulator.program import End, InstructionClass, Step
from tiledsl.targets.nvptx.emulator.convergence import gather
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
            first = int(machine.lanes[0])
            message = machine.printed.get(first, "").strip() or "the kernel trapped"
            machine.cohort.report(Kind.ASSERTION, who, message, first, machine.count)
            machine.end(machine.active)

        return end

    return Ending(build)


def _nothing(instruction: Parsed, context: Context) -> Step:
    return lambda machine: None


# --- barriers ------------------------------------------------------------------------------------


def _barrier(instruction: Parsed, context: Context) -> Ending:
    """Decode `bar.sync`, `bar.arrive` and their longer names."""
    options = Options(instruction)
    options.ignore("cta", "aligned")
    waits = options.choice(("sync", "arrive")) == "sync"
    options.done()
    which = context.read(instruction.operands[0], "u32")
    given = instruction.operands[1:]
    expected = context.read(given[0], "u32") if given else None
    who = context.instruction

    def build(place: Place) -> End:
        def end(machine: Machine) -> int | None:
            number = _uniform(machine, which)
            count = ALL if expected is None else _uniform(machine, expected)
            barriers = machine.barriers
            phase = barriers.arrive(machine.active, number, count, who.index)
            if not waits:
                return place.following
            passed = barriers.passed(machine.active, number, phase)
            if int(np.count_nonzero(passed)) == machine.count:
                return place.following
            wait = BarrierWait(barriers, number, phase)
            if passed.any():
                machine.scheduler.go(passed, place.following)
            machine.scheduler.park(machine.active & ~passed, place.following, wait, place.block)
            return None

        return end

    return gather(build)


def _uniform(machine: Machine, read: Callable[[Machine], Any]) -> int:
    """Return the value of an operand that all active threads agree on (the first one's)."""
    value = read(machine)
    return int(value[machine.lanes[0]] if np.ndim(value) else value)


TABLE: Table = {
    "bra": Opcode(_branch, InstructionClass.CONTROL),
    "brx": Opcode(_branch_table, InstructionClass.CONTROL),
    "ret": Opcode(_exit, InstructionClass.CONTROL),
    "exit": Opcode(_exit, InstructionClass.CONTROL),
    "trap": Opcode(_trap, InstructionClass.CONTROL),
    "brkpt": Opcode(_nothing, InstructionClass.CONTROL),
    "nanosleep": Opcode(_nothing, InstructionClass.CONTROL),
    "bar.sync": Opcode(_barrier, InstructionClass.SYNCHRONIZE),
    "bar.arrive": Opcode(_barrier, InstructionClass.SYNCHRONIZE),
    "bar.cta.sync": Opcode(_barrier, InstructionClass.SYNCHRONIZE),
    "bar.cta.arrive": Opcode(_barrier, InstructionClass.SYNCHRONIZE),
    "barrier.sync": Opcode(_barrier, InstructionClass.SYNCHRONIZE),
    "barrier.arrive": Opcode(_barrier, InstructionClass.SYNCHRONIZE),
    "barrier.cta.sync": Opcode(_barrier, InstructionClass.SYNCHRONIZE),
    "barrier.cta.arrive": Opcode(_barrier, InstructionClass.SYNCHRONIZE),
}
