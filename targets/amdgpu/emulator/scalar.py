"""Scalar integer instructions: arithmetic, bits, comparisons, selection, EXEC, MODE, and no-ops.

Most are a line in a table: kinds, NumPy function, and what SCC becomes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.amdgpu.emulator.bits import (
    RELATIONS,
    bit_at,
    count_ones,
    extract,
    field_mask,
    first_one,
    high_product,
    leading_signs,
    leading_zeros,
    pack_halves,
    quad_mask,
    replicate,
    reverse_bits,
    set_bit,
    shift_left,
    shift_right,
    sign_extended,
    whole_quads,
)
from tiledsl.targets.amdgpu.emulator.constants import fixed
from tiledsl.targets.amdgpu.emulator.decode import Context, Decoder, Ending, Entry
from tiledsl.targets.amdgpu.emulator.functions import Binary, Compute, Function, composed
from tiledsl.targets.amdgpu.emulator.operands import Write, scalar_reader, scalar_writer, set_scc
from tiledsl.targets.amdgpu.emulator.text import Parsed
from tiledsl.targets.gpu.emulator.program import InstructionClass, Step

Array = NDArray[Any]
Flagged = Callable[..., tuple[Any, Any]]
"""Returns a value and SCC."""


def _entry(decode: Decoder) -> Entry:
    return Entry(decode, InstructionClass.SCALAR)


# --- one result, SCC derived from it -------------------------------------------------------------


def _steps(write: Write, compute: Compute, flags: bool) -> Step:
    """Return the step that writes a value, and SCC by whether it is not 0."""
    if not flags:
        return lambda m: write(m, compute(m))

    def step(m: Any) -> None:
        value = compute(m)
        write(m, value)
        set_scc(m, value != 0)

    return step


def operation(result: str, sources: str, function: Function, flags: bool = False) -> Entry:
    """Return the entry of an instruction that writes `function` of its sources.

    Args:
        result: The kind written.
        sources: The kinds of the sources, between blanks.
        function: Of their values.
        flags: Whether SCC says if the result is not 0.
    """
    kinds = sources.split()

    def decode(parsed: Parsed, context: Context) -> Step:
        write = scalar_writer(parsed.operands[0], result, context)
        reads = [
            scalar_reader(one, kind, context)
            for one, kind in zip(parsed.operands[1:], kinds, strict=True)
        ]
        return _steps(write, composed(function, reads), flags)

    return _entry(decode)


def _flagged(result: str, sources: str, function: Flagged) -> Entry:
    """Return the entry of an instruction whose function returns the value and SCC."""
    kinds = sources.split()

    def decode(parsed: Parsed, context: Context) -> Step:
        write = scalar_writer(parsed.operands[0], result, context)
        reads = [
            scalar_reader(one, kind, context)
            for one, kind in zip(parsed.operands[1:], kinds, strict=True)
        ]

        def step(m: Any) -> None:
            value, condition = function(*(read(m) for read in reads))
            write(m, value)
            set_scc(m, condition)

        return step

    return _entry(decode)


def _with_scc(result: str, sources: str, function: Flagged) -> Entry:
    """Return the entry of one whose function also gets SCC, and returns (value, SCC or None)."""
    kinds = sources.split()

    def decode(parsed: Parsed, context: Context) -> Step:
        write = scalar_writer(parsed.operands[0], result, context)
        reads = [
            scalar_reader(one, kind, context)
            for one, kind in zip(parsed.operands[1:], kinds, strict=True)
        ]

        def step(m: Any) -> None:
            value, condition = function(m.scc, *(read(m) for read in reads))
            write(m, value)
            if condition is not None:
                set_scc(m, condition)

        return step

    return _entry(decode)


def _updating(kind: str, source: str, function: Binary) -> Entry:
    """Return the entry of one whose destination is its first source too."""

    def decode(parsed: Parsed, context: Context) -> Step:
        write = scalar_writer(parsed.operands[0], kind, context)
        old = scalar_reader(parsed.operands[0], kind, context)
        read = scalar_reader(parsed.operands[1], source, context)
        return lambda m: write(m, function(old(m), read(m)))

    return _entry(decode)


def comparison(kind: str, function: Binary) -> Entry:
    """Return the entry of a comparison of two sources, whose result is SCC."""

    def decode(parsed: Parsed, context: Context) -> Step:
        a, b = (scalar_reader(one, kind, context) for one in parsed.operands)
        return lambda m: set_scc(m, function(a(m), b(m)))

    return _entry(decode)


# --- functions -----------------------------------------------------------------------------------


def _add_carry(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    return total, total < a


def _subtract_borrow(a: Array, b: Array) -> tuple[Array, Array]:
    return a - b, a < b


def _add_overflow(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    return total, ((a ^ total) & (b ^ total)) < 0


def _subtract_overflow(a: Array, b: Array) -> tuple[Array, Array]:
    total = a - b
    return total, ((a ^ b) & (a ^ total)) < 0


def _add_with_carry(scc: Array, a: Array, b: Array) -> tuple[Array, Array]:
    total = a.astype(np.uint64) + b + scc
    return total.astype(np.uint32), total >> np.uint64(32) != 0


def _subtract_with_borrow(scc: Array, a: Array, b: Array) -> tuple[Array, Array]:
    total = a.astype(np.int64) - b.astype(np.int64) - scc
    return total.astype(np.uint32), total < 0


def _shift_add(amount: int) -> Flagged:
    def function(a: Array, b: Array) -> tuple[Array, Array]:
        total = (a.astype(np.uint64) << np.uint64(amount)) + b
        return total.astype(np.uint32), total >> np.uint64(32) != 0

    return function


def _least(a: Array, b: Array) -> tuple[Array, Array]:
    return np.minimum(a, b), a < b


def _most(a: Array, b: Array) -> tuple[Array, Array]:
    return np.maximum(a, b), a > b


LOGIC: dict[str, Binary] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "andn2": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b,
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
}
LATER_NAMES = {"andn2": "and_not1", "orn2": "or_not1", "andn1": "and_not0", "orn1": "or_not0"}
"""What RDNA3 and later call instructions of CDNA."""


def _logic_table() -> dict[str, Entry]:
    table: dict[str, Entry] = {}
    for name, function in LOGIC.items():
        for spelled in {name, LATER_NAMES.get(name, name)}:
            for bits in (32, 64):
                kind = f"b{bits}"
                table[f"s_{spelled}_b{bits}"] = operation(kind, f"{kind} {kind}", function, True)
    return table


def _compare_table() -> dict[str, Entry]:
    table = {
        f"s_cmp_{name}_{kind}": comparison(kind, RELATIONS[name])
        for name in ("eq", "lg", "gt", "ge", "lt", "le")
        for kind in ("i32", "u32")
    }
    table |= {f"s_cmp_{name}_u64": comparison("u64", RELATIONS[name]) for name in ("eq", "lg")}
    for name in ("eq", "lg", "gt", "ge", "lt", "le"):
        for kind in ("i32", "u32"):
            table[f"s_cmpk_{name}_{kind}"] = _compare_short(kind, RELATIONS[name])
    for bits in (32, 64):
        table[f"s_bitcmp0_b{bits}"] = _bit_comparison(bits, 0)
        table[f"s_bitcmp1_b{bits}"] = _bit_comparison(bits, 1)
    return table


def _bit_comparison(bits: int, value: int) -> Entry:
    def decode(parsed: Parsed, context: Context) -> Step:
        a = scalar_reader(parsed.operands[0], f"b{bits}", context)
        b = scalar_reader(parsed.operands[1], "u32", context)
        return lambda m: set_scc(m, bit_at(a(m), b(m)) == value)

    return _entry(decode)


# --- 16-bit immediates ---------------------------------------------------------------------------


def _short(parsed: Parsed, context: Context, position: int, signed: bool = True) -> int:
    """Return the 16-bit immediate at a position, extended."""
    value = fixed(parsed.operands[position], "u32", context)
    if value is None:
        raise CompilerBug(f"{parsed.text}: expected an immediate")
    value &= 0xFFFF
    return (value ^ 0x8000) - 0x8000 if signed else value


def _compare_short(kind: str, function: Binary) -> Entry:
    def decode(parsed: Parsed, context: Context) -> Step:
        a = scalar_reader(parsed.operands[0], kind, context)
        dtype = np.int32 if kind == "i32" else np.uint32
        b = np.array([_short(parsed, context, 1, kind == "i32")], dtype)
        return lambda m: set_scc(m, function(a(m), b))

    return _entry(decode)


def _move_short(parsed: Parsed, context: Context) -> Step:
    write = scalar_writer(parsed.operands[0], "i32", context)
    value = np.array([_short(parsed, context, 1)], np.int32)
    return lambda m: write(m, value)


def _move_short_if(parsed: Parsed, context: Context) -> Step:
    write = scalar_writer(parsed.operands[0], "i32", context)
    old = scalar_reader(parsed.operands[0], "i32", context)
    value = np.array([_short(parsed, context, 1)], np.int32)
    return lambda m: write(m, np.where(m.scc, value, old(m)))


def _add_short(parsed: Parsed, context: Context) -> Step:
    write = scalar_writer(parsed.operands[0], "i32", context)
    old = scalar_reader(parsed.operands[0], "i32", context)
    value = np.array([_short(parsed, context, 1)], np.int32)

    def step(m: Any) -> None:
        total, overflow = _add_overflow(old(m), value)
        write(m, total)
        set_scc(m, overflow)

    return step


def _multiply_short(parsed: Parsed, context: Context) -> Step:
    write = scalar_writer(parsed.operands[0], "i32", context)
    old = scalar_reader(parsed.operands[0], "i32", context)
    value = np.array([_short(parsed, context, 1)], np.int32)
    return lambda m: write(m, old(m) * value)


# --- EXEC ----------------------------------------------------------------------------------------


# --- hardware registers --------------------------------------------------------------------------


def _conditional(kind: str) -> Entry:
    def choose(scc: Array, a: Array, b: Array) -> tuple[Array, None]:
        return np.where(scc, a, b), None

    return _with_scc(kind, f"{kind} {kind}", choose)


def _conditional_move(kind: str) -> Entry:
    def decode(parsed: Parsed, context: Context) -> Step:
        write = scalar_writer(parsed.operands[0], kind, context)
        old = scalar_reader(parsed.operands[0], kind, context)
        new = scalar_reader(parsed.operands[1], kind, context)
        return lambda m: write(m, np.where(m.scc, new(m), old(m)))

    return _entry(decode)


def _arithmetic_table() -> dict[str, Entry]:
    u, i = "u32 u32", "i32 i32"
    table = {
        "s_add_u32": _flagged("u32", u, _add_carry),
        "s_sub_u32": _flagged("u32", u, _subtract_borrow),
        "s_add_i32": _flagged("i32", i, _add_overflow),
        "s_sub_i32": _flagged("i32", i, _subtract_overflow),
        "s_addc_u32": _with_scc("u32", u, _add_with_carry),
        "s_subb_u32": _with_scc("u32", u, _subtract_with_borrow),
        "s_addk_i32": _entry(_add_short),
        "s_mulk_i32": _entry(_multiply_short),
        "s_absdiff_i32": operation("i32", i, lambda a, b: np.abs(a - b), True),
        "s_abs_i32": operation("i32", "i32", np.abs, True),
        "s_mul_i32": operation("u32", u, np.multiply),
        "s_mul_hi_u32": operation("u32", u, high_product(np.uint64)),
        "s_mul_hi_i32": operation("i32", i, high_product(np.int64)),
        "s_mul_u64": operation("u64", "u64 u64", np.multiply),
        "s_add_nc_u64": operation("u64", "u64 u64", np.add),
        "s_sub_nc_u64": operation("u64", "u64 u64", np.subtract),
        "s_min_i32": _flagged("i32", i, _least),
        "s_min_u32": _flagged("u32", u, _least),
        "s_max_i32": _flagged("i32", i, _most),
        "s_max_u32": _flagged("u32", u, _most),
    }
    table |= {f"s_lshl{n}_add_u32": _flagged("u32", u, _shift_add(n)) for n in (1, 2, 3, 4)}
    later = {
        "s_add_u32": "s_add_co_u32", "s_sub_u32": "s_sub_co_u32", "s_add_i32": "s_add_co_i32",
        "s_sub_i32": "s_sub_co_i32", "s_addc_u32": "s_add_co_ci_u32",
        "s_subb_u32": "s_sub_co_ci_u32", "s_addk_i32": "s_addk_co_i32",
    }  # fmt: skip
    table |= {new: table[old] for old, new in later.items()}
    return table


def _bits_table() -> dict[str, Entry]:
    table: dict[str, Entry] = {}
    for bits, unsigned, signed in ((32, np.uint32, np.int32), (64, np.uint64, np.int64)):
        b, u, i = f"b{bits}", f"u{bits}", f"i{bits}"
        table |= {
            f"s_lshl_{b}": operation(b, f"{b} u32", shift_left(bits), True),
            f"s_lshr_{b}": operation(b, f"{b} u32", shift_right(bits), True),
            f"s_ashr_{i}": operation(i, f"{i} u32", shift_right(bits, True), True),
            f"s_bfm_{b}": operation(b, "u32 u32", field_mask(unsigned)),
            f"s_bfe_{u}": operation(u, f"{u} u32", extract(unsigned), True),
            f"s_bfe_{i}": operation(i, f"{i} u32", extract(signed), True),
            f"s_not_{b}": operation(b, b, np.invert, True),
            f"s_brev_{b}": operation(b, b, reverse_bits),
            f"s_wqm_{b}": operation(b, b, whole_quads, True),
            f"s_quadmask_{b}": operation(b, b, quad_mask, True),
            f"s_bcnt1_i32_{b}": operation("u32", b, count_ones, True),
            f"s_bcnt0_i32_{b}": operation("u32", b, lambda a: count_ones(~a), True),
            f"s_ff1_i32_{b}": operation("i32", b, first_one),
            f"s_ff0_i32_{b}": operation("i32", b, lambda a: first_one(~a)),
            f"s_flbit_i32_{b}": operation("i32", b, leading_zeros),
            f"s_bitset0_{b}": _updating(b, "u32", set_bit(0)),
            f"s_bitset1_{b}": _updating(b, "u32", set_bit(1)),
            f"s_mov_{b}": operation(b, b, lambda a: a),
            f"s_cmov_{b}": _conditional_move(b),
            f"s_cselect_{b}": _conditional(b),
        }
        table[f"s_ctz_i32_{b}"] = table[f"s_ff1_i32_{b}"]
        table[f"s_clz_i32_{u}"] = table[f"s_flbit_i32_{b}"]
    table["s_flbit_i32"] = table["s_cls_i32"] = operation("i32", "i32", leading_signs)
    table["s_flbit_i32_i64"] = table["s_cls_i32_i64"] = operation("i32", "i64", leading_signs)
    table |= {
        "s_sext_i32_i8": operation("i32", "u32", sign_extended(8)),
        "s_sext_i32_i16": operation("i32", "u32", sign_extended(16)),
        "s_bitreplicate_b64_b32": operation("u64", "u32", replicate),
        "s_pack_ll_b32_b16": operation("u32", "u32 u32", pack_halves(0, 0)),
        "s_pack_lh_b32_b16": operation("u32", "u32 u32", pack_halves(0, 1)),
        "s_pack_hh_b32_b16": operation("u32", "u32 u32", pack_halves(1, 1)),
        "s_pack_hl_b32_b16": operation("u32", "u32 u32", pack_halves(1, 0)),
        "s_movk_i32": _entry(_move_short),
        "s_cmovk_i32": _entry(_move_short_if),
    }
    return table


TABLE: dict[str, Entry | Ending] = {
    **_arithmetic_table(),
    **_bits_table(),
    **_logic_table(),
    **_compare_table(),
}
