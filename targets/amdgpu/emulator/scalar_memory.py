"""Scalar loads: a wave reads consecutive words, at one address, into scalar registers.

They are asynchronous and may complete in any order (`waits`). Addresses are rounded down to words;
a buffer load reads 0 past the end that its descriptor gives.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.amdgpu.emulator.decode import Context, Entry
from tiledsl.targets.amdgpu.emulator.lanes import POISON
from tiledsl.targets.amdgpu.emulator.operands import Read, scalar_reader
from tiledsl.targets.amdgpu.emulator.text import Constant, Operand, Parsed, Register, registers_of
from tiledsl.targets.amdgpu.emulator.waits import Event
from tiledsl.targets.gpu.emulator.cohort import Access, Mask
from tiledsl.targets.gpu.emulator.program import InstructionClass, Step

Words = NDArray[np.uint32]


def _offset_reader(parsed: Parsed, context: Context) -> Read:
    """Return what reads the sum of the offsets: immediate, register or both."""
    constant = parsed.integer("offset")
    operand: Operand = parsed.operands[2]
    if isinstance(operand, Constant) and operand.integer is not None:
        value = np.array([constant + operand.integer], np.int64)
        return lambda m: value
    read = scalar_reader(operand, "u32", context)
    return lambda m: read(m).astype(np.int64) + constant


def _load(words: int, size: int = 4, signed: bool = False) -> Entry:
    """Return the entry of a load of some words, or of one element smaller than a word."""

    def decode(parsed: Parsed, context: Context) -> Step:
        destination, base = parsed.operands[:2]
        if not isinstance(destination, Register) or not isinstance(base, Register):
            raise CompilerBug(f"{parsed.text}: expected scalar registers")
        pointer = scalar_reader(Register("s", base.index, 2), "u64", context)
        offset = _offset_reader(parsed, context)
        buffer = base.count == 4
        limit = scalar_reader(Register("s", base.index + 2), "u32", context) if buffer else None
        instruction = context.instruction
        registers = registers_of([destination])
        mask = np.uint64(~(size - 1) & (1 << 64) - 1)

        def fetch_for(m: Any) -> Any:
            waves = np.flatnonzero(m.active)
            start = pointer(m)
            if buffer:
                start = start & np.uint64((1 << 48) - 1)
            moved = np.broadcast_to(offset(m), (m.waves,))
            address = (start + moved.astype(np.uint64) & mask)[waves]
            limits = None if limit is None else limit(m)[waves].copy()
            access = Access(m.cohort, instruction, m.thread_of[waves, 0])
            first = moved[waves].copy()

            def fetch() -> Words:
                if limits is not None:
                    return _bounded(m, access, address, first, limits)
                values = m.cohort.memory.load(access, address, size, words, align=size)
                return _extended(values.reshape(len(waves), words), size, signed)

            return fetch

        def _bounded(m: Any, access: Access, address: Any, first: Any, limits: Any) -> Words:
            result = np.zeros((len(address), words), np.uint32)
            for word in range(words):
                inside = first + size * word + size <= limits
                part = Access(m.cohort, instruction, access.lanes[inside])
                step = np.uint64(size * word)
                values = m.cohort.memory.load(part, address[inside] + step, size, 1, align=size)
                result[inside, word] = _extended(values, size, signed)
            return result

        def step(m: Any) -> None:
            active = m.active

            def deliver(values: Words | None, mask: Mask | None) -> None:
                rows = active if mask is None else mask
                for word in range(words):
                    row = m.s_u32[destination.index + word]
                    if values is None:
                        row[rows] = POISON
                    else:
                        row[rows] = values[rows[active], word]

            m.memory.issue(Event.SCALAR, instruction, registers, fetch_for(m), deliver)

        return step

    return Entry(decode, InstructionClass.SCALAR_MEMORY)


def _extended(values: NDArray[Any], size: int, signed: bool) -> Words:
    if size == 4:
        return values
    if signed:
        kind = np.int8 if size == 1 else np.int16
        return values.view(kind).astype(np.int32).view(np.uint32)
    return values.astype(np.uint32)


def _table() -> dict[str, Entry]:
    table: dict[str, Entry] = {}
    for words in (1, 2, 3, 4, 8, 16):
        for prefix in ("s_load", "s_buffer_load"):
            suffix = "" if words == 1 else f"x{words}"
            table[f"{prefix}_dword{suffix}"] = _load(words)
            table[f"{prefix}_b{32 * words}"] = _load(words)
    for prefix in ("s_load", "s_buffer_load"):
        for size in (1, 2):
            table[f"{prefix}_u{8 * size}"] = _load(1, size)
            table[f"{prefix}_i{8 * size}"] = _load(1, size, signed=True)
    return table


TABLE: dict[str, Entry] = _table()
