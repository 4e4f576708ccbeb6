"""Kinds of operands, and the operands that are constants: numbers, symbols, apertures.

A kind says what an operand is read or written as: "u32", "i32", "f32" and their like of 16 and 64
bits, "b32" for bits without a meaning (read as unsigned), and "bf16", which is read as float32 and
rounded to nearest even when written.

A small integer stands for its bits in whatever the operand is, a decimal fraction for that value in
the operand's format (of integers: the float of the same width). A 32-bit literal is the high half
of a float64, and is extended to 64-bit integers by sign if the operand is signed.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.amdgpu.emulator.decode import Context
from tiledsl.targets.amdgpu.emulator.text import Constant, Name, Operand
from tiledsl.targets.gpu.emulator import formats

Array = NDArray[Any]


DTYPES: dict[str, Any] = {
    "u16": np.uint16, "i16": np.int16, "f16": np.float16, "bf16": np.float32,
    "u32": np.uint32, "i32": np.int32, "f32": np.float32,
    "u64": np.uint64, "i64": np.int64, "f64": np.float64,
}  # fmt: skip


SHARED_BASE = 1 << 48


PRIVATE_BASE = 2 << 48
"""Where LDS and private memory lie among flat addresses: above all that a process can have."""


UNSIGNED: dict[int, Any] = {16: np.uint16, 32: np.uint32, 64: np.uint64}


def width(kind: str) -> int:
    """Return the bits of a kind."""
    return int(kind[-2:])


def plain(kind: str) -> str:
    """Return the kind that "b32" and its like are read as."""
    return "u" + kind[1:] if kind[0] == "b" and kind != "bf16" else kind


def constant_bits(operand: Constant, kind: str) -> int:
    """Return the bits that a constant stands for in an operand of a kind."""
    bits = width(kind)
    if operand.real is not None:
        found = {16: formats.F16, 32: formats.F32, 64: formats.F64}[bits]
        found = formats.BF16 if kind == "bf16" else found
        return int(found.encode(np.array([operand.real], np.float64))[0])
    assert operand.integer is not None
    value = operand.integer
    if operand.literal and bits == 64:
        value &= 0xFFFFFFFF
        if kind == "f64":
            return value << 32
        if kind == "i64":
            value = (value ^ 0x80000000) - 0x80000000
    return value & ((1 << bits) - 1)


_SYMBOL = re.compile(r"([\w.$]+)(?:\+(\d+))?@(rel32|gotpcrel32)@(lo|hi)(?:[-+]\d+)?$")


_DIFFERENCE = re.compile(r"\(([\w.$]+)-([\w.$]+)\)(&4294967295|>>32)$")


def _symbol_bits(name: str, context: Context) -> int | None:
    """Return the value of a symbolic 32-bit literal: a distance from the last `s_getpc_b64`."""
    match = _SYMBOL.match(name)
    if match is not None:
        symbol = match[1] + ("@got" if match[3] == "gotpcrel32" else "")
        if symbol not in context.symbols:
            raise CompilerBug(f"{context.instruction.text}: there is no symbol {match[1]}")
        distance = context.symbols[symbol] + int(match[2] or 0) - context.anchor
        return (distance >> (32 if match[4] == "hi" else 0)) & 0xFFFFFFFF
    match = _DIFFERENCE.match(name)
    if match is not None:
        distance = context.symbols[match[1]] - context.symbols[match[2]]
        return (distance >> (32 if match[3] == ">>32" else 0)) & 0xFFFFFFFF
    return None


def fixed_bits(operand: Operand, kind: str, context: Context) -> int | None:
    """Return the bits of an operand that is always the same for all waves; else None."""
    if isinstance(operand, Constant):
        return constant_bits(operand, kind)
    if isinstance(operand, Name):
        if operand.text == "null":
            return 0
        if operand.text in ("src_shared_base", "src_private_base"):
            base = SHARED_BASE if "shared" in operand.text else PRIVATE_BASE
            return base if width(kind) == 64 else 0
        return _symbol_bits(operand.text, context)
    return None


def fixed(operand: Operand, kind: str, context: Context) -> int | None:
    """Return an integer operand's value if the text fixes it, modifiers left aside; else None."""
    bits = fixed_bits(operand, plain(kind), context)
    if bits is None:
        return None
    if kind[0] == "i":
        top = 1 << (width(kind) - 1)
        return (bits ^ top) - top
    return bits


def fixed_array(bits: int, kind: str, shape: tuple[int, ...]) -> Array:
    """Return an array of some shape whose elements have these bits."""
    if kind == "bf16":
        return np.full(shape, bits << 16, np.uint32).view(np.float32)
    return np.full(shape, bits, UNSIGNED[width(kind)]).view(DTYPES[kind])


def high_half(operand: Operand) -> int:
    """Return the upper 16 bits of a constant: an integer has 32, a fraction is of 16."""
    integer = operand.integer if isinstance(operand, Constant) else None
    return 0 if integer is None else (integer >> 16) & 0xFFFF
