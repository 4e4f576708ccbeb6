"""Branches, jumps, traps and the end of a wave.

A wave has one program counter, so a branch splits the group only where its waves disagree; lanes
diverge by EXEC, which is no business of control flow here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.amdgpu.assertions import said_at
from tiledsl.targets.amdgpu.emulator.decode import CODE_ADDRESS, Context, EndDecoder, Ending, Entry
from tiledsl.targets.amdgpu.emulator.operands import scalar_reader, scalar_writer
from tiledsl.targets.amdgpu.emulator.text import EXEC, VCC, Name, Parsed, Register
from tiledsl.targets.gpu.emulator.program import End, InstructionClass

Condition = Callable[[Any], NDArray[np.bool_]]


def _label(parsed: Parsed, context: Context) -> int:
    last = parsed.operands[-1]
    if not isinstance(last, Name):
        raise CompilerBug(f"{parsed.text}: expected a label")
    return context.target(last.text)


def _branch(parsed: Parsed, context: Context) -> End:
    target = _label(parsed, context)
    return lambda m: target


def _split(condition: Condition, taken: int, following: int) -> End:
    """Return the end that goes to `taken` where a condition on waves, (waves,), holds."""

    def end(m: Any) -> int | None:
        there = condition(m) & m.active
        count = int(np.count_nonzero(there))
        if count == m.count:
            return taken
        if count == 0:
            return following
        m.scheduler.go(there, taken)
        m.scheduler.go(m.active & ~there, following)
        return None

    return end


def _conditional(make: Callable[[Context], Condition]) -> EndDecoder:
    def decode(parsed: Parsed, context: Context) -> End:
        return _split(make(context), _label(parsed, context), context.following)

    return decode


def _scc(value: bool) -> Callable[[Context], Condition]:
    return lambda context: lambda m: m.scc if value else ~m.scc


def _mask(register: int, zero: bool) -> Callable[[Context], Condition]:
    """Return the condition that a lane mask is 0, or that it is not."""

    def make(context: Context) -> Condition:
        pair = context.wave_size == 64
        kind = "u64" if pair else "u32"
        read = scalar_reader(Register("s", register, 1 + pair), kind, context)
        return (lambda m: read(m) == 0) if zero else (lambda m: read(m) != 0)

    return make


def _end_program(parsed: Parsed, context: Context) -> End:
    def end(m: Any) -> None:
        m.leave()

    return end


def _trap(parsed: Parsed, context: Context) -> End:
    instruction = context.instruction
    says = said_at(instruction.source, context.assertions)

    def end(m: Any) -> None:
        threads = np.unique(m.thread_of[m.lanes])
        if not len(threads):  # a wave whose lanes are all off traps, too
            threads = m.thread_of[np.flatnonzero(m.active)[:1], 0]
        m.cohort.report_trap(instruction, says, threads)
        m.leave()

    return end


def _jump(parsed: Parsed, context: Context) -> End:
    """Decode s_setpc_b64."""
    return _jump_to(parsed, context, parsed.operands[0])


def _call(parsed: Parsed, context: Context) -> End:
    """Decode s_swappc_b64: jump, and save where to return to."""
    save = scalar_writer(parsed.operands[0], "u64", context)
    jump = _jump_to(parsed, context, parsed.operands[1])
    back = np.array([context.address + 8], np.uint64)

    def end(m: Any) -> int | None:
        target = jump(m)
        save(m, back)
        return target

    return end


def _jump_to(parsed: Parsed, context: Context, operand: Any) -> End:
    read = scalar_reader(operand, "u64", context)
    text = parsed.text

    def end(m: Any) -> int | None:
        address = np.broadcast_to(read(m), (m.waves,))
        targets = np.unique(address[m.active])
        for target in targets:
            block = m.code.block_at(int(target) - CODE_ADDRESS >> 3)
            if block is None:
                raise CompilerBug(f"{text}: a jump to {int(target):#x}, where no block begins")
            if len(targets) == 1:
                return block
            m.scheduler.go(m.active & (address == target), block)
        return None

    return end


_CONDITIONS: dict[str, Callable[[Context], Condition]] = {
    "scc0": _scc(False),
    "scc1": _scc(True),
    "vccz": _mask(VCC, True),
    "vccnz": _mask(VCC, False),
    "execz": _mask(EXEC, True),
    "execnz": _mask(EXEC, False),
}


def _ending(decode: EndDecoder) -> Ending:
    return Ending(decode, InstructionClass.CONTROL)


TABLE: dict[str, Entry | Ending] = {
    "s_branch": _ending(_branch),
    **{f"s_cbranch_{name}": _ending(_conditional(make)) for name, make in _CONDITIONS.items()},
    "s_endpgm": _ending(_end_program),
    "s_trap": _ending(_trap),
    "s_setpc_b64": _ending(_jump),
    "s_swappc_b64": _ending(_call),
}
