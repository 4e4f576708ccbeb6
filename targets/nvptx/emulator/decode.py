"""PTX instructions to steps and ends of basic blocks: once a kernel, before anything runs.

To add a family of instructions, write a module with

    def _add(instruction: Parsed, context: Context) -> Step | Ending:
        options = Options(instruction)
        kind = options.last(("u32", "s32"))     # takes the last modifier
        saturate = options.flag("sat")          # takes .sat if it is there
        options.done()                          # anything left is an unknown instruction
        to, a, b = instruction.operands
        return context.compute(to, kind, np.add, [(a, kind), (b, kind)])

    TABLE: Table = {"add.u32": Opcode(_add, InstructionClass.INTEGER), ...}

and name it in `_FAMILIES` below. A key is a stem with a last modifier ("add.u32" finds
`add.sat.u32`) or a prefix ("cp.async.commit_group", "bar.sync"); see `opcodes`. `operands` says
what readers and writers promise; `Context.instruction` is what findings and counters are filed
under; keep it at decoding, it changes. What touches shared memory says its granule with
`context.note_shared`.

A predicate is applied here: a guarded step sees only the threads whose predicate holds as active,
and is not called where there are none. A guarded ending likewise; the others go on after it.

An instruction that may wait or branch returns an `Ending`. One that waits for something after its
own effect parks its threads at the next block:

    def build(place: Place) -> End:
        def end(machine: Machine) -> int | None:
            ...                                               # arrive
            if nothing_to_wait_for: return place.following
            machine.scheduler.park(machine.active, place.following, SomeWait(...), place.block)
            return None
        return end
    return Ending(build)

One that first needs all of its warp uses `convergence.collective` or `.gather`. One that has to be
tried again (a wait whose answer may be "not yet") is `Ending(build, alone=True)` and parks at
`place.block`. State between steps is a part of the machine: `machine.part(Copies)`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.gpu.emulator.program import BasicBlock, End, Instruction, Step
from tiledsl.targets.gpu.source_lines import source_lines
from tiledsl.targets.nvptx.emulator import (
    atomics,
    bits,
    block_barriers,
    calls,
    clusters,
    comparisons,
    control,
    convert,
    cp_async,
    exchange,
    fences,
    floats,
    integer,
    ldmatrix,
    matrix,
    mbarrier,
    memory,
    moves,
    register_pool,
    tensor_copy,
    wgmma,
)
from tiledsl.targets.nvptx.emulator.machine import Machine
from tiledsl.targets.nvptx.emulator.opcodes import Ending, Opcode, Place, Table, unknown
from tiledsl.targets.nvptx.emulator.operands import Context
from tiledsl.targets.nvptx.emulator.orders import is_strong
from tiledsl.targets.nvptx.emulator.text import Function, Label, Parsed, Symbol

_FAMILIES: tuple[Table, ...] = (
    moves.TABLE,
    integer.TABLE,
    bits.TABLE,
    floats.TABLE,
    comparisons.TABLE,
    convert.TABLE,
    memory.TABLE,
    atomics.TABLE,
    control.TABLE,
    block_barriers.TABLE,
    calls.TABLE,
    exchange.TABLE,
    ldmatrix.TABLE,
    matrix.TABLE,
    clusters.TABLE,
    cp_async.TABLE,
    mbarrier.TABLE,
    wgmma.TABLE,
    tensor_copy.TABLE,
    fences.TABLE,
    register_pool.TABLE,
)
"""Every family; no two have the same key."""


def _merged(families: Iterable[Table]) -> dict[str, Opcode]:
    table: dict[str, Opcode] = {}
    for family in families:
        twice = table.keys() & family.keys()
        if twice:
            raise CompilerBug(f"two families of instructions have {sorted(twice)}")
        table.update(family)
    return table


_TABLE = _merged(_FAMILIES)


def opcode(instruction: Parsed) -> Opcode:
    """Return how an instruction is decoded.

    Raises:
        CompilerBug: No family has it.
    """
    words = instruction.opcode.split(".")
    found = _TABLE.get(instruction.opcode) or _TABLE.get(f"{words[0]}.{words[-1]}")
    for count in range(len(words), 0, -1):
        found = found or _TABLE.get(".".join(words[:count]))
    if found is None:
        raise unknown(instruction)
    return found


@dataclass
class _Block:
    """A basic block in the making."""

    label: str
    steps: list[Step] = field(default_factory=list[Step])
    instructions: list[Instruction] = field(default_factory=list[Instruction])
    build: Ending | None = None


def decode(function: Function, text: str, context: Context) -> list[BasicBlock]:
    """Return the basic blocks of a kernel; `context` then says what it needs of a machine."""
    context.tables = function.tables
    blocks, labels = _split(function, text, context)
    blocks.append(_Block("", build=Ending(_returning)))  # past the last instruction
    finished: list[BasicBlock] = []
    for number, block in enumerate(blocks):
        place = Place(number, number + 1, labels)
        end = _going_on(place) if block.build is None else block.build.build(place)
        finished.append(BasicBlock(block.steps, end, block.instructions, block.label))
    return finished


def _split(function: Function, text: str, context: Context) -> tuple[list[_Block], dict[str, int]]:
    """Decode the instructions, block by block; returns the blocks, and each label's."""
    sources = source_lines(text)
    blocks = [_Block("")]
    labels: dict[str, int] = {}
    targets = _targets(function)
    count = 0
    for statement in function.body:
        current = blocks[-1]
        if isinstance(statement, Label):
            if statement.name not in targets:
                continue  # a mark for debuggers
            if current.instructions:
                current = _Block(statement.name)
                blocks.append(current)
            current.label = current.label or statement.name
            labels[statement.name] = len(blocks) - 1
            continue
        found = opcode(statement)
        source = sources[statement.line]
        strong = is_strong(statement.modifiers)
        instruction = Instruction(count, statement.text, found.kind, source, strong)
        context.instruction = instruction
        count += 1
        made = found.decode(statement, context)
        if not isinstance(made, Ending):
            current.steps.append(_guarded_step(made, statement, context))
            current.instructions.append(instruction)
            continue
        if made.alone and current.instructions:
            current = _Block("")
            blocks.append(current)
        current.instructions.append(instruction)
        current.build = _guarded_ending(made, statement, context)
        blocks.append(_Block(""))
    return blocks, labels


def _targets(function: Function) -> set[str]:
    """Return the labels that something branches to."""
    found = {name for table in function.tables.values() for name in table}
    for statement in function.body:
        if isinstance(statement, Parsed):
            found |= {one.name for one in statement.operands if isinstance(one, Symbol)}
    return found


def _returning(place: Place) -> End:
    """Build the end of a kernel whose text does not say `ret`."""

    def end(machine: Machine) -> None:
        machine.end(machine.active)

    return end


def _going_on(place: Place) -> End:
    following = place.following
    return lambda machine: following


def _guarded_step(step: Step, statement: Parsed, context: Context) -> Step:
    """Return a step that acts where its guard holds."""
    if statement.guard is None:
        return step
    slot, negated = context.slot(statement.guard.register), statement.guard.negated

    def guarded(machine: Machine) -> None:
        predicate = machine.regs[slot]
        mask = machine.active & ~predicate if negated else machine.active & predicate
        count = int(np.count_nonzero(mask))
        if count == machine.count:
            step(machine)
        elif count:
            machine.narrowed(mask, step)

    return guarded


def _guarded_ending(ending: Ending, statement: Parsed, context: Context) -> Ending:
    """Return an ending that acts where its guard holds; the others go on after it."""
    if statement.guard is None:
        return ending
    slot, negated = context.slot(statement.guard.register), statement.guard.negated

    def build(place: Place) -> End:
        inner = ending.build(place)

        def end(machine: Machine) -> int | None:
            predicate = machine.regs[slot]
            mask = machine.active & ~predicate if negated else machine.active & predicate
            count = int(np.count_nonzero(mask))
            if count == machine.count:
                return inner(machine)
            if count == 0:
                return place.following
            machine.scheduler.go(machine.active & ~mask, place.following)
            following = machine.narrowed(mask, inner)
            if following is not None:
                machine.scheduler.go(mask, following)
            return None

        return end

    return Ending(build, ending.alone)
