"""Instructions that move values between the lanes of a wave without memory: permlane and its kin.

A lane whose source lane is switched off reads 0 under `bound_ctrl` and otherwise keeps what it had;
with `fi` (the first bit of op_sel) it reads it all the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.amdgpu.emulator.decode import Context, Entry
from tiledsl.targets.amdgpu.emulator.operands import Read, reader, scalar_reader, writer
from tiledsl.targets.amdgpu.emulator.text import Parsed
from tiledsl.targets.gpu.emulator.program import InstructionClass, Step

Array = NDArray[Any]


def _selectors(parsed: Parsed, context: Context) -> Read:
    """Return what reads the sixteen lane numbers of 4 bits that two scalars hold, (waves, 16)."""
    low, high = (scalar_reader(one, "u32", context) for one in parsed.operands[2:4])
    shifts = np.arange(0, 32, 4, dtype=np.uint32)

    def read(m: Any) -> Array:
        words = [np.broadcast_to(one(m), (m.waves,)) for one in (low, high)]
        fields = [(word[:, None] >> shifts) & np.uint32(15) for word in words]
        return np.concatenate(fields, axis=1).astype(np.intp)

    return read


def _row_permutation(other_row: bool, by_lane: bool) -> Entry:
    """Return the entry of v_permlane16 (of the lane's own row of 16) or x16 (of its neighbour).

    Args:
        other_row: The source lies in the other row of the pair.
        by_lane: The lane numbers are in a vector register, not in two scalars.
    """

    def decode(parsed: Parsed, context: Context) -> Step:
        lane = np.arange(context.wave_size)
        row = (lane & ~15) ^ (16 if other_row else 0)
        read = reader(parsed.operands[1], "u32", context)
        write = writer(parsed.operands[0], "u32", context)
        number = reader(parsed.operands[2], "u32", context) if by_lane else None
        selectors = None if by_lane else _selectors(parsed, context)
        fetch_inactive, bound = ((*(parsed.bits("op_sel") or ()), 0, 0))[:2]

        def step(m: Any) -> None:
            if selectors is not None:
                place = selectors(m)[:, lane & 15]
            else:
                assert number is not None
                place = (number(m) & np.uint32(15)).astype(np.intp)
            source = np.broadcast_to(row + place, m.lanes.shape)
            value = np.take_along_axis(np.broadcast_to(read(m), m.lanes.shape), source, 1)
            if m.lanes_full or fetch_inactive:
                write(m, value)
                return
            there = np.take_along_axis(m.lanes, source, 1)
            if bound:
                write(m, np.where(there, value, np.uint32(0)))
                return
            lanes = m.lanes
            m.lanes = lanes & there
            write(m, value)
            m.lanes = lanes

        return step

    return Entry(decode, InstructionClass.EXCHANGE)


def _halves_exchanged(parsed: Parsed, context: Context) -> Step:
    """Decode v_permlane64_b32: each lane reads the lane 32 away."""
    if context.wave_size != 64:
        return lambda m: None
    read = reader(parsed.operands[1], "u32", context)
    write = writer(parsed.operands[0], "u32", context)
    source = np.arange(64) ^ 32
    return lambda m: write(m, np.broadcast_to(read(m), m.lanes.shape)[:, source])


def _swap(distance: int) -> Entry:
    """Return the entry of v_permlane16_swap or 32.

    Odd rows (of `distance` lanes) of the first register change places with even rows of the second.
    """

    def decode(parsed: Parsed, context: Context) -> Step:
        if "fi" in parsed or "bound_ctrl" in parsed:
            raise CompilerBug(f"the AMDGPU emulator does not know this swap: {parsed.text}")
        reads = [reader(one, "u32", context) for one in parsed.operands[:2]]
        writes = [writer(one, "u32", context) for one in parsed.operands[:2]]
        lane = np.arange(context.wave_size)
        odd = (lane & distance) != 0

        def step(m: Any) -> None:
            first, second = (np.array(read(m)) for read in reads)
            writes[0](m, np.where(odd, second[:, lane ^ distance], first))
            writes[1](m, np.where(odd, second, first[:, lane ^ distance]))

        return step

    return Entry(decode, InstructionClass.EXCHANGE)


TABLE: dict[str, Entry] = {
    "v_permlane16_b32": _row_permutation(False, False),
    "v_permlanex16_b32": _row_permutation(True, False),
    "v_permlane16_var_b32": _row_permutation(False, True),
    "v_permlanex16_var_b32": _row_permutation(True, True),
    "v_permlane64_b32": Entry(_halves_exchanged, InstructionClass.EXCHANGE),
    "v_permlane16_swap_b32": _swap(16),
    "v_permlane32_swap_b32": _swap(32),
}
