"""Scalar integer instructions: arithmetic, bits, comparisons, selection, EXEC, MODE, and no-ops.

Most are a line in a table: kinds, NumPy function, and what SCC becomes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.amdgpu.emulator.decode import Context, Decoder, Ending, Entry
from tiledsl.targets.amdgpu.emulator.functions import Binary, Compute, Function, Unary, composed
from tiledsl.targets.amdgpu.emulator.operands import (
    Write,
    fixed,
    scalar_reader,
    scalar_writer,
    set_scc,
)
from tiledsl.targets.amdgpu.emulator.text import EXEC, Parsed, Register
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


def high_product(kind: Any) -> Binary:
    """Return the function for the upper 32 bits of a product of that 64-bit kind."""
    return lambda a, b: (a.astype(kind) * b.astype(kind)) >> kind(32)


def shift_left(bits: int) -> Binary:
    """Return `a << (b mod bits)`."""
    kind = np.uint64 if bits == 64 else np.uint32
    mask = kind(bits - 1)
    return lambda a, b: a << (b.astype(kind) & mask)


def shift_right(bits: int, signed: bool = False) -> Binary:
    """Return `a >> (b mod bits)`, arithmetic or logical."""
    kind: Any = {(32, False): np.uint32, (64, False): np.uint64, (32, True): np.int32,
                 (64, True): np.int64}[bits, signed]  # fmt: skip
    return lambda a, b: a >> (b.astype(kind) & kind(bits - 1))


def _extract(kind: Any) -> Binary:
    """Return a bit field of `a`: b holds its offset, and its width from bit 16 on."""
    bits = np.dtype(kind).itemsize * 8
    unsigned = np.uint64 if bits == 64 else np.uint32

    def function(a: Array, b: Array) -> Array:
        offset = (b & np.uint32(bits - 1)).astype(unsigned)
        size = ((b >> np.uint32(16)) & np.uint32(0x7F)).astype(unsigned)
        size = np.minimum(size, unsigned(bits) - offset)
        up = np.where(size == 0, 0, unsigned(bits) - offset - size).astype(unsigned)
        top = (a.view(unsigned) << up).view(kind)
        down = np.minimum(unsigned(bits) - size, unsigned(bits - 1))
        return np.where(size == 0, kind(0), top >> down.astype(kind))

    return function


def _field_mask(kind: Any) -> Binary:
    bits = np.dtype(kind).itemsize * 8

    def function(a: Array, b: Array) -> Array:
        size, offset = (one.astype(kind) & kind(bits - 1) for one in (a, b))
        return ((kind(1) << size) - kind(1)) << offset

    return function


def count_ones(a: Array) -> Array:
    """Return how many bits are set."""
    return np.bitwise_count(a).astype(np.uint32)


def reverse_bits(a: Array) -> Array:
    """Return the bits in reverse order."""
    bytes_ = np.ascontiguousarray(a)[..., None].view(np.uint8)
    turned = np.packbits(np.unpackbits(bytes_, axis=-1, bitorder="little"), axis=-1)
    return np.ascontiguousarray(turned[..., ::-1]).view(a.dtype)[..., 0]


def first_one(a: Array) -> Array:
    """Return the position of the lowest bit set, -1 without any."""
    low = a & (~a + a.dtype.type(1))
    place = np.bitwise_count(low - a.dtype.type(1)).astype(np.int32)
    return np.where(a == 0, np.int32(-1), place)


def leading_zeros(a: Array) -> Array:
    """Return how many bits are 0 above the highest one, -1 without any."""
    filled = a.copy()
    shift = 1
    while shift < a.itemsize * 8:
        filled |= filled >> a.dtype.type(shift)
        shift *= 2
    zeros = a.itemsize * 8 - np.bitwise_count(filled).astype(np.int32)
    return np.where(a == 0, np.int32(-1), zeros)


def leading_signs(a: Array) -> Array:
    """Return how many bits from the top equal the sign, -1 where all do."""
    unsigned = np.uint64 if a.itemsize == 8 else np.uint32
    return leading_zeros(np.where(a < 0, ~a, a).view(unsigned))


def _bit(a: Array, b: Array) -> Array:
    return (a >> (b.astype(a.dtype) & a.dtype.type(a.itemsize * 8 - 1))) & a.dtype.type(1)


def _whole_quads(a: Array) -> Array:
    kind = a.dtype.type
    ones = kind(0x1111111111111111 & (1 << 8 * a.itemsize) - 1)
    any_ = (a | a >> kind(1) | a >> kind(2) | a >> kind(3)) & ones
    return any_ * kind(15)


def _quad_mask(a: Array) -> Array:
    kind = a.dtype.type
    out = np.zeros_like(a)
    for quad in range(2 * a.itemsize):
        out |= ((a >> kind(4 * quad) & kind(15)) != 0).astype(a.dtype) << kind(quad)
    return out


def _replicate(a: Array) -> Array:
    out = np.zeros(a.shape, np.uint64)
    for bit in range(32):
        out |= (a.astype(np.uint64) >> np.uint64(bit) & np.uint64(1)) * np.uint64(3 << 2 * bit)
    return out


def _set_bit(value: int) -> Binary:
    def function(old: Array, place: Array) -> Array:
        kind = old.dtype.type
        bit = kind(1) << (place.astype(old.dtype) & kind(old.itemsize * 8 - 1))
        return old | bit if value else old & ~bit

    return function


def pack_halves(first: int, second: int) -> Binary:
    """Return half `first` of a below half `second` of b."""
    low, high = np.uint32(16 * first), np.uint32(16 * second)
    return lambda a, b: (
        (a >> low & np.uint32(0xFFFF)) | ((b >> high & np.uint32(0xFFFF)) << np.uint32(16))
    )


def _signed(bits: int) -> Unary:
    kind = {8: np.int8, 16: np.int16}[bits]
    return lambda a: a.astype(kind).astype(np.int32)


_LOGIC: dict[str, Binary] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "andn2": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b,
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
}
_LATER_NAMES = {"andn2": "and_not1", "orn2": "or_not1", "andn1": "and_not0", "orn1": "or_not0"}
"""What RDNA3 and later call instructions of CDNA."""
RELATIONS: dict[str, Binary] = {
    "eq": np.equal, "lg": np.not_equal, "ne": np.not_equal, "gt": np.greater,
    "ge": np.greater_equal, "lt": np.less, "le": np.less_equal,
}  # fmt: skip


def _logic_table() -> dict[str, Entry]:
    table: dict[str, Entry] = {}
    for name, function in _LOGIC.items():
        for spelled in {name, _LATER_NAMES.get(name, name)}:
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
        return lambda m: set_scc(m, _bit(a(m), b(m)) == value)

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

_SAVING: dict[str, Binary] = {
    **_LOGIC,
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
        for spelled in {name, _LATER_NAMES.get(name, name)}:
            for bits in (32, 64):
                table[f"s_{spelled}_saveexec_b{bits}"] = _save_exec(bits, function, False)
                if name in ("andn1", "andn2"):
                    table[f"s_{spelled}_wrexec_b{bits}"] = _save_exec(bits, function, True)
    return table


# --- hardware registers --------------------------------------------------------------------------

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


_NOTHING = (
    "s_nop", "s_clause", "s_delay_alu", "s_wait_alu", "s_waitcnt_depctr", "s_setprio", "s_sleep",
    "s_inst_prefetch", "s_set_inst_prefetch_distance", "s_icache_inv", "s_code_end", "s_sendmsg",
    "s_version", "s_incperflevel", "s_decperflevel", "s_ttracedata", "s_ttracedata_imm",
    "s_setprio_inc_wg", "s_sethalt",
)  # fmt: skip
"""What concerns time alone; or the release of registers (s_sendmsg), which nothing here needs."""


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
            f"s_bfm_{b}": operation(b, "u32 u32", _field_mask(unsigned)),
            f"s_bfe_{u}": operation(u, f"{u} u32", _extract(unsigned), True),
            f"s_bfe_{i}": operation(i, f"{i} u32", _extract(signed), True),
            f"s_not_{b}": operation(b, b, np.invert, True),
            f"s_brev_{b}": operation(b, b, reverse_bits),
            f"s_wqm_{b}": operation(b, b, _whole_quads, True),
            f"s_quadmask_{b}": operation(b, b, _quad_mask, True),
            f"s_bcnt1_i32_{b}": operation("u32", b, count_ones, True),
            f"s_bcnt0_i32_{b}": operation("u32", b, lambda a: count_ones(~a), True),
            f"s_ff1_i32_{b}": operation("i32", b, first_one),
            f"s_ff0_i32_{b}": operation("i32", b, lambda a: first_one(~a)),
            f"s_flbit_i32_{b}": operation("i32", b, leading_zeros),
            f"s_bitset0_{b}": _updating(b, "u32", _set_bit(0)),
            f"s_bitset1_{b}": _updating(b, "u32", _set_bit(1)),
            f"s_mov_{b}": operation(b, b, lambda a: a),
            f"s_cmov_{b}": _conditional_move(b),
            f"s_cselect_{b}": _conditional(b),
        }
        table[f"s_ctz_i32_{b}"] = table[f"s_ff1_i32_{b}"]
        table[f"s_clz_i32_{u}"] = table[f"s_flbit_i32_{b}"]
    table["s_flbit_i32"] = table["s_cls_i32"] = operation("i32", "i32", leading_signs)
    table["s_flbit_i32_i64"] = table["s_cls_i32_i64"] = operation("i32", "i64", leading_signs)
    table |= {
        "s_sext_i32_i8": operation("i32", "u32", _signed(8)),
        "s_sext_i32_i16": operation("i32", "u32", _signed(16)),
        "s_bitreplicate_b64_b32": operation("u64", "u32", _replicate),
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
    **_exec_table(),
    **{name: Entry(_nothing, InstructionClass.CONTROL) for name in _NOTHING},
    "s_getpc_b64": _entry(_program_counter),
    "s_setreg_b32": _entry(_set_register),
    "s_setreg_imm32_b32": _entry(_set_register),
    "s_getreg_b32": _entry(_get_register),
    "s_round_mode": _entry(_mode_immediate(0)),
    "s_denorm_mode": _entry(_mode_immediate(4)),
}
