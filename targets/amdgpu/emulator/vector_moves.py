"""Vector instructions that move bits as they are: moves, selection, swaps, and lanes to scalars."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.amdgpu.emulator.decode import Context, Entry
from tiledsl.targets.amdgpu.emulator.operands import (
    Read,
    reader,
    scalar_reader,
    scalar_writer,
    writer,
)
from tiledsl.targets.amdgpu.emulator.text import Operand, Parsed, Register
from tiledsl.targets.amdgpu.emulator.vector import operation
from tiledsl.targets.gpu.emulator.program import InstructionClass, Step

Array = NDArray[Any]


def _swap(kind: str) -> Entry:
    def decode(parsed: Parsed, context: Context) -> Step:
        first, second = parsed.operands
        reads = [reader(one, kind, context) for one in parsed.operands]
        writes = [writer(one, kind, context) for one in (second, first)]

        def step(m: Any) -> None:
            a, b = (np.array(read(m)) for read in reads)
            writes[0](m, a)
            writes[1](m, b)

        return step

    return Entry(decode, InstructionClass.MOVE)


def _move_pair(parsed: Parsed, context: Context) -> Step:
    """Decode v_pk_mov_b32: op_sel says which word of each source goes to the result."""
    destination, *sources = parsed.operands
    halves = parsed.bits("op_sel") or (0, 0)
    assert isinstance(destination, Register)
    reads = [_half_reader(one, half, context) for one, half in zip(sources, halves, strict=True)]
    places = (destination.index, destination.index + 1)
    writes = [writer(Register("v", place), "u32", context) for place in places]

    def step(m: Any) -> None:
        low, high = (np.array(read(m)) for read in reads)
        writes[0](m, low)
        writes[1](m, high)

    return step


def _half_reader(operand: Operand, half: int, context: Context) -> Read:
    if isinstance(operand, Register):
        return reader(Register(operand.file, operand.index + half), "u32", context)
    return reader(operand, "u32", context)


def _first_lane(parsed: Parsed, context: Context) -> Step:
    """Decode v_readfirstlane_b32: the lowest active lane's value, lane 0's where none is active."""
    read = reader(parsed.operands[1], "u32", context)
    write = scalar_writer(parsed.operands[0], "u32", context)

    def step(m: Any) -> None:
        value = np.broadcast_to(read(m), m.lanes.shape)
        first = 0 if m.lanes_full else np.argmax(m.lanes, axis=1)
        write(m, value[np.arange(m.waves), first])

    return step


def _read_lane(parsed: Parsed, context: Context) -> Step:
    read = reader(parsed.operands[1], "u32", context)
    lane = scalar_reader(parsed.operands[2], "u32", context)
    write = scalar_writer(parsed.operands[0], "u32", context)
    mask = np.uint32(context.wave_size - 1)

    def step(m: Any) -> None:
        value = np.broadcast_to(read(m), m.lanes.shape)
        write(m, value[np.arange(m.waves), lane(m) & mask])

    return step


def _write_lane(parsed: Parsed, context: Context) -> Step:
    destination = parsed.operands[0]
    assert isinstance(destination, Register)
    value = scalar_reader(parsed.operands[1], "u32", context)
    lane = scalar_reader(parsed.operands[2], "u32", context)
    mask = np.uint32(context.wave_size - 1)
    index = destination.index

    def step(m: Any) -> None:
        values = np.broadcast_to(value(m), (m.waves,))
        lanes = np.broadcast_to(lane(m) & mask, (m.waves,))
        waves = np.flatnonzero(m.active)
        m.v_u32[index][waves, lanes[waves]] = values[waves]

    return step


def _move_table() -> dict[str, Entry]:
    move = InstructionClass.MOVE

    def same(a: Array) -> Array:
        return a

    table = {
        f"v_mov_b{bits}": operation(f"b{bits}", f"b{bits}", same, move) for bits in (16, 32, 64)
    }
    for name in ("v_accvgpr_read_b32", "v_accvgpr_write_b32", "v_accvgpr_mov_b32"):
        table[name] = operation("b32", "b32", same, move)
    for bits in (16, 32):
        kind = f"b{bits}"
        sources = f"{kind} {kind} mask"
        table[f"v_cndmask_{kind}"] = operation(
            kind, sources, lambda a, b, c: np.where(c, b, a), move
        )
        table[f"v_swap_{kind}"] = _swap(kind)
    exchange = InstructionClass.EXCHANGE
    table |= {
        "v_pk_mov_b32": Entry(_move_pair, move),
        "v_readfirstlane_b32": Entry(_first_lane, exchange),
        "v_readlane_b32": Entry(_read_lane, exchange),
        "v_writelane_b32": Entry(_write_lane, exchange),
    }
    return table


TABLE: dict[str, Entry] = _move_table()
