"""What DPP and SDWA do to the operands of a vector instruction.

DPP lets source 0 come from another lane of the row. A lane whose source does not exist, or is
switched off, reads 0 under `bound_ctrl:1` and otherwise writes nothing; `row_mask` and `bank_mask`
switch off writes too. SDWA (CDNA) picks bytes or words of sources, and of the destination.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.amdgpu.emulator.constants import DTYPES, plain, width
from tiledsl.targets.amdgpu.emulator.decode import Context
from tiledsl.targets.amdgpu.emulator.operands import Read, Write, reader, widen, writer
from tiledsl.targets.amdgpu.emulator.text import Operand, Parsed, Register

Lanes = NDArray[np.intp]

_CONTROLS = (
    "quad_perm", "row_shl", "row_shr", "row_ror", "wave_shl", "wave_rol", "wave_shr", "wave_ror",
    "row_mirror", "row_half_mirror", "row_bcast", "row_newbcast", "row_share", "row_xmask", "dpp8",
)  # fmt: skip


def is_dpp(parsed: Parsed) -> bool:
    """Say whether source 0 comes from other lanes."""
    return any(one in parsed for one in _CONTROLS)


def _source_lanes(parsed: Parsed, size: int) -> tuple[Lanes, NDArray[np.bool_]]:
    """Return each lane's source lane, and whether there is one."""
    lane = np.arange(size)
    row, place = lane & ~15, lane & 15
    every = np.ones(size, np.bool_)
    control = next(one for one in _CONTROLS if one in parsed)
    spelled = parsed.modifiers[control]  # empty where there is nothing to say: row_mirror
    pattern = (parsed.bits(control) or ()) if spelled else ()
    amount = pattern[0] if pattern else 0
    if control == "quad_perm":
        return (lane & ~3) + np.array(pattern)[lane & 3], every
    if control == "dpp8":
        return (lane & ~7) + np.array(pattern)[lane & 7], every
    if control == "row_shl":
        return np.minimum(lane + amount, row + 15), place + amount < 16
    if control == "row_shr":
        return np.maximum(lane - amount, row), place - amount >= 0
    if control == "row_bcast":
        source = (lane // (amount + 1)) * (amount + 1) - 1
        return np.maximum(source, 0), source >= 0
    if control in ("wave_shl", "wave_shr"):
        source = lane + (1 if control == "wave_shl" else -1)
        return np.clip(source, 0, size - 1), (source >= 0) & (source < size)
    whole: dict[str, Lanes] = {
        "row_ror": row + ((place - amount) & 15),
        "wave_rol": (lane + 1) % size,
        "wave_ror": (lane - 1) % size,
        "row_mirror": row + 15 - place,
        "row_half_mirror": (lane & ~7) + 7 - (lane & 7),
        "row_newbcast": row + amount,
        "row_share": row + amount,
        "row_xmask": row + (place ^ amount),
    }
    return whole[control], every


def dpp(parsed: Parsed, context: Context, read: Read, write: Write) -> tuple[Read, Write]:
    """Return source 0's reader and the destination's writer under DPP.

    Args:
        parsed: The instruction.
        context: The decoder's.
        read: Reads source 0 of the lane itself.
        write: Writes active lanes.
    """
    source, exists = _source_lanes(parsed, context.wave_size)
    lane = np.arange(context.wave_size)
    rows, banks = parsed.integer("row_mask", 15), parsed.integer("bank_mask", 15)
    wanted = ((rows >> (lane >> 4)) & 1 != 0) & ((banks >> ((lane & 15) >> 2)) & 1 != 0)
    bound = parsed.integer("bound_ctrl", 0) == 1 or "dpp8" in parsed
    fetch_inactive = parsed.integer("fi", 0) == 1
    whole = bool(exists.all())

    def valid(m: Any) -> NDArray[np.bool_] | None:
        """Return where the source may be read; None for everywhere."""
        if m.lanes_full or fetch_inactive:
            return None if whole else exists
        return m.lanes[:, source] & exists

    def moved(m: Any) -> NDArray[Any]:
        value = np.broadcast_to(read(m), m.lanes.shape)[:, source]
        there = valid(m)
        return value if there is None else np.where(there, value, value.dtype.type(0))

    def masked(m: Any, value: Any) -> None:
        there = None if bound else valid(m)
        if there is None and wanted.all():
            write(m, value)
            return
        lanes, full = m.lanes, m.lanes_full
        m.lanes = lanes & wanted if there is None else lanes & wanted & there
        m.lanes_full = False
        write(m, value)
        m.lanes, m.lanes_full = lanes, full

    return moved, masked


# --- SDWA ----------------------------------------------------------------------------------------

_SELECT = re.compile(r"(BYTE|WORD|DWORD)(?:_(\d))?$")


def _selection(parsed: Parsed, name: str) -> tuple[int, int]:
    """Return the bits that a selector takes, and the lowest one's place."""
    match = _SELECT.match(parsed.modifiers.get(name, "DWORD"))
    if match is None:
        raise CompilerBug(f"{parsed.text}: unknown {name}")
    bits = {"BYTE": 8, "WORD": 16, "DWORD": 32}[match[1]]
    return bits, bits * int(match[2] or 0)


def sdwa_reader(parsed: Parsed, operand: Operand, kind: str, context: Context, name: str) -> Read:
    """Return what reads a source of which SDWA selects a part.

    Args:
        parsed: The instruction.
        operand: The source.
        kind: What it is read as.
        context: The decoder's.
        name: The modifier that selects, `src0_sel` or `src1_sel`.
    """
    bits, shift = _selection(parsed, name)
    kind = plain(kind)
    if kind == "bf16":
        short = sdwa_reader(parsed, operand, "u16", context, name)
        return lambda m: widen(short(m))
    if bits >= width(kind) and shift == 0:
        return reader(operand, kind, context)
    assert isinstance(operand, Register)
    whole = reader(Register(operand.file, operand.index), "u32", context)
    up, down = np.uint32(32 - bits - shift), np.uint32(32 - bits)
    part: Callable[[Any], Any] = {
        (False, 8): np.uint32, (False, 16): np.uint32, (True, 8): np.int32, (True, 16): np.int32,
    }[operand.extended, bits]  # fmt: skip
    signed = part is np.int32
    unsigned: Any = np.uint16 if width(kind) == 16 else np.uint32
    dtype = DTYPES[kind]

    def read(m: Any) -> NDArray[Any]:
        raised = whole(m) << up
        taken = raised.view(np.int32) >> down.view(np.int32) if signed else raised >> down
        return taken.astype(unsigned).view(dtype)

    bare = Register(operand.file, operand.index, 1, None, operand.negated, operand.absolute)
    return _signs(read, bare, kind)


def _signs(read: Read, operand: Register, kind: str) -> Read:
    if kind[0] != "f" or not (operand.negated or operand.absolute):
        return read

    def signed(m: Any) -> NDArray[Any]:
        value = np.abs(read(m)) if operand.absolute else read(m)
        return np.negative(value) if operand.negated else value

    return signed


def sdwa_writer(parsed: Parsed, kind: str, context: Context) -> Write:
    """Return what writes the part of the destination that SDWA selects."""
    bits, shift = _selection(parsed, "dst_sel")
    kind = plain(kind)
    destination = parsed.operands[0]
    if bits == 32:
        return writer(destination, kind, context, zero_high=True)
    unused = parsed.modifiers.get("dst_unused", "UNUSED_PAD")
    whole = writer(destination, "u32", context)
    old = reader(destination, "u32", context)
    unsigned: Any = np.uint16 if width(kind) == 16 else np.uint32
    dtype = DTYPES[kind]
    mask, place = np.uint32((1 << bits) - 1), np.uint32(shift)

    def write(m: Any, value: Any) -> None:
        raw = np.ascontiguousarray(value, dtype).view(unsigned).astype(np.uint32)
        part = (raw & mask) << place
        if unused == "UNUSED_PRESERVE":
            part = part | (old(m) & ~(mask << place))
        elif unused == "UNUSED_SEXT":
            up = np.int32(32 - bits - shift)
            part = ((part.view(np.int32) << up) >> up).view(np.uint32)
        whole(m, part)

    return write
