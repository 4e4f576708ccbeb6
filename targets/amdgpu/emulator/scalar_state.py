"""Scalar instructions about the wave itself: EXEC, MODE, the program counter; and no-ops.

EXEC is also changed by any scalar instruction that names it; here are those that save it, too. MODE
says what becomes of subnormal numbers (`operands.flushed`); another rounding than to nearest even
is refused when a kernel chooses it.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.amdgpu.emulator.decode import Context, Decoder, Entry
from tiledsl.targets.amdgpu.emulator.functions import Binary, Compute
from tiledsl.targets.amdgpu.emulator.operands import scalar_reader, scalar_writer, set_scc
from tiledsl.targets.amdgpu.emulator.scalar import LATER_NAMES, LOGIC
from tiledsl.targets.amdgpu.emulator.text import EXEC, Parsed, Register
from tiledsl.targets.gpu.emulator.program import InstructionClass, Step

Array = NDArray[Any]


def _entry(decode: Decoder) -> Entry:
    return Entry(decode, InstructionClass.SCALAR)


_SAVING: dict[str, Binary] = {
    **LOGIC,
    "andn1": lambda a, b: ~a & b,
    "orn1": lambda a, b: ~a | b,
}
"""EXEC becomes this function of the source and EXEC."""


def _save_exec(bits: int, function: Binary, new: bool) -> Entry:
    """Return the entry that changes EXEC, and saves what it was (with `new`: what it becomes)."""
    kind = f"b{bits}"
    register = Register("s", EXEC, bits // 32)

    def decode(parsed: Parsed, context: Context) -> Step:
        save = scalar_writer(parsed.operands[0], kind, context)
        source = scalar_reader(parsed.operands[1], kind, context)
        exec_ = scalar_reader(register, kind, context)
        change = scalar_writer(register, kind, context)

        def step(m: Any) -> None:
            value = function(source(m), exec_(m))
            save(m, value if new else exec_(m))
            set_scc(m, value != 0)
            change(m, value)

        return step

    return _entry(decode)


def _exec_table() -> dict[str, Entry]:
    table: dict[str, Entry] = {}
    for name, function in _SAVING.items():
        for spelled in {name, LATER_NAMES.get(name, name)}:
            for bits in (32, 64):
                table[f"s_{spelled}_saveexec_b{bits}"] = _save_exec(bits, function, False)
                if name in ("andn1", "andn2"):
                    table[f"s_{spelled}_wrexec_b{bits}"] = _save_exec(bits, function, True)
    return table


_HWREG = re.compile(r"hwreg\((\w+)(?:,\s*(\d+),\s*(\d+))?\)")


_MODE = ("HW_REG_MODE", "HW_REG_WAVE_MODE", "1")


def _mode_field(text: str, where: Parsed) -> tuple[int, int]:
    """Return offset and size of a field of MODE."""
    match = _HWREG.search(text)
    if match is None or match[1] not in _MODE:
        raise CompilerBug(f"the AMDGPU emulator knows no hardware register but MODE: {where.text}")
    return int(match[2] or 0), int(match[3] or 32)


def _set_register(parsed: Parsed, context: Context) -> Step:
    offset, size = _mode_field(parsed.rest, parsed)
    value = scalar_reader(parsed.operands[1], "u32", context)
    return _write_mode(offset, size, value)


_ROUNDING = np.uint32(15)
"""The bits of MODE that choose another rounding than to nearest even."""


def _write_mode(offset: int, size: int, value: Compute) -> Step:
    mask = np.uint32(((1 << size) - 1) << offset)

    def step(m: Any) -> None:
        new = (m.mode & ~mask) | (value(m) << np.uint32(offset) & mask)
        if (new[m.active] & _ROUNDING).any():
            raise CompilerBug("the AMDGPU emulator rounds to nearest even only")
        np.copyto(m.mode, new, where=m.active)

    return step


def _mode_immediate(offset: int) -> Decoder:
    """Return the decoder of s_round_mode and s_denorm_mode."""

    def decode(parsed: Parsed, context: Context) -> Step:
        value = np.array([int(parsed.rest, 0)], np.uint32)
        return _write_mode(offset, 4, lambda m: value)

    return decode


def _get_register(parsed: Parsed, context: Context) -> Step:
    offset, size = _mode_field(parsed.rest, parsed)
    write = scalar_writer(parsed.operands[0], "u32", context)
    mask = np.uint32((1 << size) - 1)
    return lambda m: write(m, m.mode >> np.uint32(offset) & mask)


def _program_counter(parsed: Parsed, context: Context) -> Step:
    write = scalar_writer(parsed.operands[0], "u64", context)
    value = np.array([context.address + 8], np.uint64)
    return lambda m: write(m, value)


def _nothing(parsed: Parsed, context: Context) -> Step:
    return lambda m: None


def _ask(parsed: Parsed, context: Context) -> Step:
    """Decode a question to the driver, as code behind a trap has them on gfx1100."""

    def step(m: Any) -> None:
        raise CompilerBug(f"the AMDGPU emulator has no driver that answers: {parsed.text}")

    return step


_NOTHING = (
    "s_nop", "s_clause", "s_delay_alu", "s_wait_alu", "s_waitcnt_depctr", "s_setprio", "s_sleep",
    "s_inst_prefetch", "s_set_inst_prefetch_distance", "s_icache_inv", "s_code_end", "s_sendmsg",
    "s_version", "s_incperflevel", "s_decperflevel", "s_ttracedata", "s_ttracedata_imm",
    "s_setprio_inc_wg", "s_sethalt", "v_nop", "v_pipeflush",
)  # fmt: skip
"""What concerns time alone; or the release of registers (s_sendmsg), which nothing here needs."""


TABLE: dict[str, Entry] = {
    **_exec_table(),
    **{name: Entry(_nothing, InstructionClass.HINT) for name in _NOTHING},
    "s_sendmsg_rtn_b32": _entry(_ask),
    "s_sendmsg_rtn_b64": _entry(_ask),
    "s_getpc_b64": _entry(_program_counter),
    "s_setreg_b32": _entry(_set_register),
    "s_setreg_imm32_b32": _entry(_set_register),
    "s_getreg_b32": _entry(_get_register),
    "s_round_mode": _entry(_mode_immediate(0)),
    "s_denorm_mode": _entry(_mode_immediate(4)),
}
