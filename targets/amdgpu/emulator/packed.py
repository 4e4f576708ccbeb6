"""Packed arithmetic (v_pk_*), dot products and mixed-precision multiply-adds: the VOP3P encoding.

A packed instruction does one operation twice, on the halves of 32-bit registers or on the registers
of a pair. `op_sel` says which half of each source feeds the low result (by default the low one),
`op_sel_hi` which feeds the high result (by default the high one); `neg_lo` and `neg_hi` negate for
each. In mixed-precision instructions `op_sel_hi` says instead whether a source is float16, and
`op_sel` which half it is.

Dot products of floats are exact sums rounded once to the result, which is at least as exact as the
hardware; of integers they wrap, or saturate under `clamp`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.amdgpu.emulator import floats
from tiledsl.targets.amdgpu.emulator.decode import Context, Entry
from tiledsl.targets.amdgpu.emulator.functions import (
    Binary,
    Function,
    multiply_add,
    saturated,
)
from tiledsl.targets.amdgpu.emulator.operands import Read, Write, reader, writer
from tiledsl.targets.amdgpu.emulator.text import Constant, Operand, Parsed, Register
from tiledsl.targets.gpu.emulator.program import InstructionClass, Step

Array = NDArray[Any]


def _selected(parsed: Parsed, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return which half of each source feeds the low and the high result."""
    low = parsed.bits("op_sel") or (0,) * count
    high = parsed.bits("op_sel_hi") or (1,) * count
    return low, high


def _negations(parsed: Parsed, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    none = (0,) * count
    return parsed.bits("neg_lo") or none, parsed.bits("neg_hi") or none


def _negated(operand: Operand, negate: int) -> Operand:
    return replace(operand, negated=not operand.negated) if negate else operand


# --- packed halves -------------------------------------------------------------------------------


def _halves(kind: str, count: int, function: Function, clamped: Function | None = None) -> Entry:
    """Return the entry of an operation on both halves of 32 bits."""
    real = kind in ("f16", "bf16")

    def decode(parsed: Parsed, context: Context) -> Step:
        destination, *sources = parsed.operands
        if "clamp" in parsed and clamped is None and not real:
            raise CompilerBug(f"the AMDGPU emulator does not know this clamp: {parsed.text}")
        compute = clamped if "clamp" in parsed and clamped is not None else function
        reads: list[list[Read]] = []
        for halves, negate in zip(_selected(parsed, count), _negations(parsed, count), strict=True):
            reads.append(
                [
                    reader(_negated(one, minus), kind, context, half)
                    for one, minus, half in zip(sources, negate, halves, strict=True)
                ]
            )
        writes = [writer(destination, kind, context, half) for half in (0, 1)]
        saturate = real and "clamp" in parsed

        def step(m: Any) -> None:
            results = [compute(*(read(m) for read in one)) for one in reads]
            for write, value in zip(writes, results, strict=True):
                write(
                    m, np.clip(np.nan_to_num(value, nan=0.0), 0, 1) if saturate else np.array(value)
                )

        return step

    return Entry(decode, InstructionClass.FLOAT if real else InstructionClass.INTEGER)


# --- packed pairs of float32 ---------------------------------------------------------------------


def _pairs(count: int, function: Function) -> Entry:
    """Return the entry of an operation on both registers of pairs."""

    def decode(parsed: Parsed, context: Context) -> Step:
        destination, *sources = parsed.operands
        if not isinstance(destination, Register):
            raise CompilerBug(f"{parsed.text}: expected registers")
        reads = [
            [
                _word_reader(_negated(one, minus), half, context)
                for one, minus, half in zip(sources, negate, halves, strict=True)
            ]
            for halves, negate in zip(
                _selected(parsed, count), _negations(parsed, count), strict=True
            )
        ]
        writes = [
            writer(Register("v", destination.index + place), "f32", context) for place in (0, 1)
        ]

        def step(m: Any) -> None:
            results = [function(*(read(m) for read in one)) for one in reads]
            for write, value in zip(writes, results, strict=True):
                write(m, value)

        return step

    return Entry(decode, InstructionClass.FLOAT)


def _word_reader(operand: Operand, half: int, context: Context) -> Read:
    if isinstance(operand, Register):
        part = replace(operand, index=operand.index + half, count=1)
        return reader(part, "f32", context)
    if half and isinstance(operand, Constant):
        raise CompilerBug(f"{context.instruction.text}: the high word of a constant is not known")
    return reader(operand, "f32", context)


# --- mixed precision -----------------------------------------------------------------------------


def _mixed(result: str, half: int, small: str = "f16") -> Entry:
    """Return the entry of v_fma_mix: sources are float32, or halves of registers.

    Args:
        result: "f32", or the kind of the half that is written.
        half: Which half, of 16 bits.
        small: The kind of sources of 16 bits.
    """

    def decode(parsed: Parsed, context: Context) -> Step:
        destination, *sources = parsed.operands
        places = parsed.bits("op_sel") or (0, 0, 0)
        narrow = parsed.bits("op_sel_hi") or (0, 0, 0)
        # neg_lo and neg_hi are printed as - and || here.
        a, b, c = (
            reader(one, small if short else "f32", context, place if short else 0)
            for one, place, short in zip(sources, places, narrow, strict=True)
        )
        write = writer(destination, result, context, half)
        clamp = "clamp" in parsed

        def step(m: Any) -> None:
            values = (np.asarray(read(m), np.float32) for read in (a, b, c))
            value = _fuse(result, *values)
            write(m, np.clip(np.nan_to_num(value, nan=0.0), 0, 1) if clamp else value)

        return step

    return Entry(decode, InstructionClass.FLOAT)


def _fuse(result: str, a: Array, b: Array, c: Array) -> Array:
    if result == "f32":
        return floats.fma(a, b, c)
    product = np.multiply(a, b, dtype=np.float64)
    total = floats.sum_to_odd(*np.broadcast_arrays(product, floats.wide(c)))
    return total if result == "bf16" else total.astype(np.float16)


# --- dot products --------------------------------------------------------------------------------


def _fields(word: Array, bits: int, signed: bool) -> list[NDArray[np.int64]]:
    """Return the integers of some bits that a word consists of."""
    values: list[NDArray[np.int64]] = []
    for place in range(0, 32, bits):
        field = (word.astype(np.int64) >> place) & ((1 << bits) - 1)
        if signed:
            top = 1 << (bits - 1)
            field = (field ^ top) - top
        values.append(field)
    return values


def _dot_integers(bits: int, signs: str, accumulates: bool = False) -> Entry:
    """Return the entry of a dot product of integers.

    Args:
        bits: Of each.
        signs: "i", "u", or "iu" where `neg_lo` says which sources are signed.
        accumulates: The destination is the addend.
    """

    def decode(parsed: Parsed, context: Context) -> Step:
        destination, *sources = parsed.operands
        if accumulates:
            sources = [*sources, destination]
        signed = (signs == "i",) * 2
        if signs == "iu":
            signed = tuple(bool(one) for one in (parsed.bits("neg_lo") or (0, 0, 0))[:2])
        a, b, c = (reader(one, "u32", context) for one in sources)
        write = writer(destination, "u32", context)
        low, high = (0, 2**32 - 1) if signs == "u" else (-(2**31), 2**31 - 1)
        clamp = "clamp" in parsed

        def step(m: Any) -> None:
            first, second = _fields(a(m), bits, signed[0]), _fields(b(m), bits, signed[1])
            addend = c(m)
            total = (addend if signs == "u" else addend.view(np.int32)).astype(np.int64)
            for one, other in zip(first, second, strict=True):
                total = total + one * other
            write(m, (np.clip(total, low, high) if clamp else total).astype(np.uint32))

        return step

    return Entry(decode, InstructionClass.INTEGER)


@dataclass(frozen=True)
class DotFloats:
    """A dot product of two pairs of 16-bit floats, plus an addend.

    Attributes:
        small: The kind of the pairs.
        result: The kind of the addend and the result.
        accumulates: The destination is the addend.
    """

    small: str
    result: str
    accumulates: bool = False

    def parts(self, parsed: Parsed, context: Context) -> tuple[Read, Write]:
        """Return what computes the result, and what writes it."""
        destination, *sources = parsed.operands
        if self.accumulates:
            sources = [*sources, destination]
        low, high = _selected(parsed, 3)
        minus, minus_high = _negations(parsed, 3)
        pairs = [
            [reader(_negated(sources[i], sign[i]), self.small, context, half[i]) for i in (0, 1)]
            for half, sign in ((low, minus), (high, minus_high))
        ]
        addend = reader(_negated(sources[2], minus[2]), self.result, context, low[2])
        dtype = {"f32": np.float32, "f16": np.float16, "bf16": np.float64}[self.result]

        def compute(m: Any) -> Array:
            products = [np.multiply(one(m), other(m), dtype=np.float64) for one, other in pairs]
            return _exact_sum(products[0], products[1], floats.wide(addend(m))).astype(dtype)

        return compute, writer(destination, self.result, context)

    def __call__(self, parsed: Parsed, context: Context) -> Step:
        """Decode one instruction."""
        compute, write = self.parts(parsed, context)
        return lambda m: write(m, compute(m))


def _dot_floats(small: str, result: str, accumulates: bool = False) -> Entry:
    return Entry(DotFloats(small, result, accumulates), InstructionClass.FLOAT)


def _exact_sum(a: Array, b: Array, c: Array) -> Array:
    """Return the sum of three, rounded to odd: within one rounding of exact."""
    a, b, c = np.broadcast_arrays(a, b, c)
    first = a + b
    b_part = first - a
    lost = (a - (first - b_part)) + (b - b_part)
    return floats.sum_to_odd(first + c, np.where(np.isfinite(lost), lost, 0.0))


# --- tables --------------------------------------------------------------------------------------


def _integer_table() -> dict[str, Entry]:
    table: dict[str, Entry] = {}
    fifteen = np.uint16(15)
    for kind, dtype in (("u16", np.uint16), ("i16", np.int16)):
        for name, count, function in (
            ("add", 2, np.add), ("sub", 2, np.subtract), ("mad", 3, multiply_add)
        ):  # fmt: skip
            clamped = saturated(function, dtype)
            table[f"v_pk_{name}_{kind}"] = _halves(kind, count, function, clamped)
        table[f"v_pk_min_{kind}"] = _halves(kind, 2, np.minimum)
        table[f"v_pk_max_{kind}"] = _halves(kind, 2, np.maximum)
    shifts: dict[str, tuple[str, Binary]] = {
        "v_pk_lshlrev_b16": ("u16", lambda a, b: b << (a & fifteen)),
        "v_pk_lshrrev_b16": ("u16", lambda a, b: b >> (a & fifteen)),
        "v_pk_ashrrev_i16": ("i16", lambda a, b: b >> (a & np.int16(15))),
        "v_pk_mul_lo_u16": ("u16", np.multiply),
    }
    return table | {name: _halves(kind, 2, function) for name, (kind, function) in shifts.items()}


def _float_table() -> dict[str, Entry]:
    table: dict[str, Entry] = {}
    for spelled in ("", "_num"):
        table[f"v_pk_min{spelled}_f16"] = _halves("f16", 2, floats.minimum_number)
        table[f"v_pk_max{spelled}_f16"] = _halves("f16", 2, floats.maximum_number)
    return table | {
        "v_pk_add_f16": _halves("f16", 2, np.add),
        "v_pk_mul_f16": _halves("f16", 2, np.multiply),
        "v_pk_fma_f16": _halves("f16", 3, floats.fma16),
        "v_pk_minimum_f16": _halves("f16", 2, floats.minimum),
        "v_pk_maximum_f16": _halves("f16", 2, floats.maximum),
        "v_pk_minimum3_f16": _halves(
            "f16", 3, lambda a, b, c: floats.minimum(floats.minimum(a, b), c)
        ),
        "v_pk_maximum3_f16": _halves(
            "f16", 3, lambda a, b, c: floats.maximum(floats.maximum(a, b), c)
        ),
        "v_pk_add_f32": _pairs(2, np.add),
        "v_pk_mul_f32": _pairs(2, np.multiply),
        "v_pk_fma_f32": _pairs(3, floats.fma),
    }


def _dot_table() -> dict[str, Entry]:
    table: dict[str, Entry] = {}
    for bits, count in ((16, 2), (8, 4), (4, 8)):
        for signs in ("i", "u"):
            name = f"v_dot{count}_{signs}32_{signs}{bits}"
            table[name] = _dot_integers(bits, signs)
        table[f"v_dot{count}_i32_iu{bits}"] = _dot_integers(bits, "iu")
        table[f"v_dot{count}c_i32_i{bits}"] = _dot_integers(bits, "i", accumulates=True)
    for small in ("f16", "bf16"):
        table[f"v_dot2_f32_{small}"] = _dot_floats(small, "f32")
        table[f"v_dot2c_f32_{small}"] = _dot_floats(small, "f32", accumulates=True)
        table[f"v_dot2acc_f32_{small}"] = table[f"v_dot2c_f32_{small}"]
        table[f"v_dot2_{small}_{small}"] = _dot_floats(small, small)
    return table


def _mixed_table() -> dict[str, Entry]:
    table: dict[str, Entry] = {}
    for name in ("fma", "mad"):
        table[f"v_{name}_mix_f32"] = _mixed("f32", 0)
        table[f"v_{name}_mixlo_f16"] = _mixed("f16", 0)
        table[f"v_{name}_mixhi_f16"] = _mixed("f16", 1)
    return table


TABLE: dict[str, Entry] = {
    **_integer_table(), **_float_table(), **_dot_table(), **_mixed_table()
}  # fmt: skip
