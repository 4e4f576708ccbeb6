"""VOPD: two vector instructions in one. Both read their sources before either writes its result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.amdgpu.emulator.decode import Context, Entry, entry_of
from tiledsl.targets.amdgpu.emulator.operands import Read, Write
from tiledsl.targets.amdgpu.emulator.packed import DotFloats
from tiledsl.targets.amdgpu.emulator.text import Parsed
from tiledsl.targets.amdgpu.emulator.vector import Operation
from tiledsl.targets.gpu.emulator.program import InstructionClass, Step


def _half(parsed: Parsed, context: Context) -> tuple[Read, Write]:
    """Return what computes and what writes one of the two, known under its name without `dual`."""
    stem = parsed.stem.replace("v_dual_", "v_", 1)
    single = replace(parsed, stem=stem, mnemonic=stem, dual=None)
    entry = entry_of(single)
    if not isinstance(entry, Entry) or not isinstance(entry.decode, Operation | DotFloats):
        raise CompilerBug(f"the AMDGPU emulator does not know this half of a pair: {parsed.text}")
    return entry.decode.parts(single, context)


def _decode(parsed: Parsed, context: Context) -> Step:
    if parsed.dual is None:
        raise CompilerBug(f"{parsed.text}: half of a pair stands alone")
    first, write_first = _half(parsed, context)
    second, write_second = _half(parsed.dual, context)
    # Most operations return new arrays; a move returns the register itself.
    moves = "v_dual_mov_b32" in (parsed.stem, parsed.dual.stem)

    def step(m: Any) -> None:
        a, b = first(m), second(m)
        if moves:
            b = np.array(b)
        write_first(m, a)
        write_second(m, b)

    return step


TABLE: dict[str, Entry] = {"v_dual_": Entry(_decode, InstructionClass.FLOAT)}
