"""Vector integer instructions: arithmetic, bits, shifts, selection and moves, mostly one line each.

Names differ between generations (`v_add_u32` is `v_add_nc_u32` from RDNA on); `_LATER` lists both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.amdgpu.emulator.bits import (
    count_ones,
    first_one,
    high_product,
    leading_signs,
    leading_zeros,
    reverse_bits,
)
from tiledsl.targets.amdgpu.emulator.decode import Context, Entry
from tiledsl.targets.amdgpu.emulator.functions import (
    Binary,
    Function,
    Ternary,
    multiply_add,
    nested,
    saturated,
    swapped,
)
from tiledsl.targets.amdgpu.emulator.text import Parsed
from tiledsl.targets.amdgpu.emulator.vector import (
    Carrying,
    Operation,
    operation,
)
from tiledsl.targets.gpu.emulator.program import InstructionClass, Step

Array = NDArray[Any]

# --- functions -----------------------------------------------------------------------------------


def _shift(function: Binary, bits: int, kind: Any) -> Binary:
    """Return a shift of the second source by the first, modulo the width."""
    mask = np.uint32(bits - 1)
    if np.dtype(kind).itemsize == 4:
        return lambda a, b: function(b, (a & mask).view(kind))
    return lambda a, b: function(b, (a & a.dtype.type(bits - 1)).astype(kind))


def _low24(a: Array) -> Array:
    return a & np.uint32(0xFFFFFF)


def _signed24(a: Array) -> Array:
    return (a << np.int32(8)) >> np.int32(8)


def _multiply24(a: Array, b: Array) -> Array:
    return _low24(a) * _low24(b)


def _multiply_signed24(a: Array, b: Array) -> Array:
    return _signed24(a) * _signed24(b)


def _high24(a: Array, b: Array) -> Array:
    return (_low24(a).astype(np.uint64) * _low24(b).astype(np.uint64)) >> np.uint64(32)


def _high_signed24(a: Array, b: Array) -> Array:
    return (_signed24(a).astype(np.int64) * _signed24(b).astype(np.int64)) >> np.int64(32)


def _extract_unsigned(a: Array, offset: Array, size: Array) -> Array:
    size = size & np.uint32(31)
    return (a >> (offset & np.uint32(31))) & ((np.uint32(1) << size) - np.uint32(1))


def _extract_signed(a: Array, offset: Array, size: Array) -> Array:
    offset, size = offset & np.uint32(31), size & np.uint32(31)
    moved = (a >> offset.view(np.int32)).astype(np.int64)
    up = np.int64(64) - size.astype(np.int64)
    field = (moved << np.minimum(up, 63)) >> np.minimum(up, 63)
    return np.where(size == 0, 0, field).astype(np.int32)


def _insert(mask: Array, inside: Array, outside: Array) -> Array:
    return (mask & inside) | (~mask & outside)


def _align(unit: int) -> Ternary:
    """Return 32 bits of a above b, from unit x (c mod 32 / unit) on."""
    places = np.uint32(32 // unit - 1)

    def function(a: Array, b: Array, c: Array) -> Array:
        both = (a.astype(np.uint64) << np.uint64(32)) | b
        return both >> ((c & places) * np.uint32(unit)).astype(np.uint64)

    return function


def permute_bytes(a: Array, b: Array, selector: Array) -> Array:
    """Return four bytes, each chosen by a byte of the selector: 0 to 3 from b, 4 to 7 from a.

    8 to 11 repeat the sign of half 0 to 3 of a above b, 12 is 0x00, and what is above that 0xff.
    """
    both = (a.astype(np.uint64) << np.uint64(32)) | b
    result = np.zeros(np.broadcast_shapes(both.shape, selector.shape), np.uint32)
    for place in range(4):
        chosen = (selector >> np.uint32(8 * place)) & np.uint32(0xFF)
        byte = both >> (np.minimum(chosen, 7) * np.uint32(8)).astype(np.uint64) & np.uint64(0xFF)
        if (chosen > 7).any():
            half = (np.clip(chosen, 8, 11) - 8) * np.uint32(16) + np.uint32(15)
            sign = (both >> half.astype(np.uint64) & np.uint64(1)) * np.uint64(0xFF)
            fixed = np.where(chosen == 12, np.uint64(0), np.uint64(0xFF))
            byte = np.where(chosen > 11, fixed, np.where(chosen > 7, sign, byte))
        result |= byte.astype(np.uint32) << np.uint32(8 * place)
    return result


def _sum_differences(bits: int, shift: int = 0) -> Ternary:
    """Return c plus the absolute differences of the fields of a and b."""
    mask = np.uint32((1 << bits) - 1)

    def function(a: Array, b: Array, c: Array) -> Array:
        total = np.uint32(0)
        for place in range(0, 32, bits):
            one = (a >> np.uint32(place) & mask).astype(np.int64)
            other = (b >> np.uint32(place) & mask).astype(np.int64)
            total = total + np.abs(one - other).astype(np.uint32)
        return (total << np.uint32(shift)) + c

    return function


def _median(a: Array, b: Array, c: Array) -> Array:
    return np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))


def _field(size: Array, offset: Array) -> Array:
    one = np.uint32(1)
    return ((one << (size & np.uint32(31))) - one) << (offset & np.uint32(31))


# --- carries -------------------------------------------------------------------------------------


def _add(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    return total, total < a


def _add_in(a: Array, b: Array, carry: Array) -> tuple[Array, Array]:
    partial = a + b
    total = partial + carry
    return total, (partial < a) | (total < partial)


def _subtract(a: Array, b: Array) -> tuple[Array, Array]:
    return a - b, a < b


def _subtract_reversed(a: Array, b: Array) -> tuple[Array, Array]:
    return b - a, b < a


def _subtract_in(a: Array, b: Array, borrow: Array) -> tuple[Array, Array]:
    partial = a - b
    return partial - borrow, (a < b) | (partial < borrow)


def _subtract_reversed_in(a: Array, b: Array, borrow: Array) -> tuple[Array, Array]:
    return _subtract_in(b, a, borrow)


def _multiply_add(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    total = a.astype(np.uint64) * b.astype(np.uint64) + c
    return total, total < c


def _multiply_add_signed(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    product = a.astype(np.int64) * b.astype(np.int64)
    total = product + c
    return total, ((product ^ total) & (c ^ total)) < 0


def _carrying(function: Function, takes_carry: bool, end: int) -> Entry:
    sources = ("u32", "u32", "carry") if takes_carry else ("u32", "u32")
    return Entry(Carrying("u32", sources, function, np.uint32(end)), InstructionClass.INTEGER)


def _carry_table() -> dict[str, Entry]:
    top = 0xFFFFFFFF
    table = {
        "v_add_co_u32": _carrying(_add, False, top),
        "v_sub_co_u32": _carrying(_subtract, False, 0),
        "v_subrev_co_u32": _carrying(_subtract_reversed, False, 0),
        "v_addc_co_u32": _carrying(_add_in, True, top),
        "v_subb_co_u32": _carrying(_subtract_in, True, 0),
        "v_subbrev_co_u32": _carrying(_subtract_reversed_in, True, 0),
    }
    later = {
        "v_addc_co_u32": "v_add_co_ci_u32", "v_subb_co_u32": "v_sub_co_ci_u32",
        "v_subbrev_co_u32": "v_subrev_co_ci_u32",
    }  # fmt: skip
    table |= {new: table[old] for old, new in later.items()}
    for name, kind, function in (
        ("u64_u32", "u", _multiply_add),
        ("i64_i32", "i", _multiply_add_signed),
    ):
        decode = Carrying(f"{kind}64", (f"{kind}32", f"{kind}32", f"{kind}64"), function)
        table[f"v_mad_{name}"] = Entry(decode, InstructionClass.INTEGER)
        table[f"v_mad_co_{name}"] = Entry(decode, InstructionClass.INTEGER)
    return table


# --- what depends on the lane, or is not one function --------------------------------------------


def _count_below(high: bool) -> Entry:
    """Return the entry of v_mbcnt: a number plus how many lower lanes' bits a mask has."""

    def decode(parsed: Parsed, context: Context) -> Step:
        lane = np.arange(context.wave_size, dtype=np.int64)
        below = np.clip(lane - 32 if high else lane, 0, 32)
        mask = ((np.int64(1) << below) - 1).astype(np.uint32)[None, :]
        count = Operation("u32", ("u32", "u32"), lambda a, b: count_ones(a & mask) + b)
        return count(parsed, context)

    return Entry(decode, InstructionClass.INTEGER)


_TABLE_BITS = (0xF0, 0xCC, 0xAA)


def _any_logic(bits: int) -> Entry:
    """Return the entry of v_bitop3: bit (4 a + 2 b + c) of a table, for each bit of the sources."""
    kind = f"u{bits}"

    def decode(parsed: Parsed, context: Context) -> Step:
        table = parsed.integer("bitop3")
        terms = [place for place in range(8) if table >> place & 1]

        def logic(*sources: Array) -> Array:
            result: Array = sources[0] & ~sources[0]
            for place in terms:
                wanted = [place >> 2 & 1, place >> 1 & 1, place & 1]
                a, b, c = (s if w else ~s for s, w in zip(sources, wanted, strict=True))
                result = result | (a & b & c)
            return result

        def opposite(*sources: Array) -> Array:
            return ~logic(*sources)

        if len(terms) > 4:
            terms = [place for place in range(8) if place not in terms]
            return Operation(kind, (kind,) * 3, opposite)(parsed, context)
        return Operation(kind, (kind,) * 3, logic)(parsed, context)

    return Entry(decode, InstructionClass.INTEGER)


# --- tables of functions -------------------------------------------------------------------------

_U, _UU, _UUU = "u32", "u32 u32", "u32 u32 u32"
_I, _II, _III = "i32", "i32 i32", "i32 i32 i32"


def _arithmetic_table() -> dict[str, Entry]:
    add, subtract = np.add, np.subtract
    reverse = swapped(np.subtract)
    table: dict[str, Entry] = {}
    for bits, unsigned, signed in ((32, np.uint32, np.int32), (16, np.uint16, np.int16)):
        u, i = f"u{bits}", f"i{bits}"
        for name, function in (("add", add), ("sub", subtract), ("subrev", reverse)):
            for spelled in (name, f"{name}_nc"):
                table[f"v_{spelled}_{u}"] = operation(
                    u, f"{u} {u}", function, clamped=saturated(function, unsigned)
                )
                table[f"v_{spelled}_{i}"] = operation(
                    i, f"{i} {i}", function, clamped=saturated(function, signed)
                )
        for kind in (u, i):
            two, three = f"{kind} {kind}", f"{kind} {kind} {kind}"
            least, most = np.minimum, np.maximum
            table |= {
                f"v_min_{kind}": operation(kind, two, least),
                f"v_max_{kind}": operation(kind, two, most),
                f"v_min3_{kind}": operation(kind, three, nested(least, least)),
                f"v_max3_{kind}": operation(kind, three, nested(most, most)),
                f"v_med3_{kind}": operation(kind, three, _median),
                f"v_minmax_{kind}": operation(kind, three, nested(most, least)),
                f"v_maxmin_{kind}": operation(kind, three, nested(least, most)),
            }
    for kind, dtype in (("u16", np.uint16), ("i16", np.int16)):
        for spelled in ("mad", "mad_legacy"):
            table[f"v_{spelled}_{kind}"] = operation(
                kind, f"{kind} {kind} {kind}", multiply_add, clamped=saturated(multiply_add, dtype)
            )
    return table | {
        "v_mul_lo_u16": operation("u16", "u16 u16", np.multiply),
        "v_mad_u32_u16": operation(
            "u32", "u16 u16 u32", lambda a, b, c: a.astype(np.uint32) * b + c
        ),
        "v_mad_i32_i16": operation(
            "i32", "i16 i16 i32", lambda a, b, c: a.astype(np.int32) * b + c
        ),
        "v_mul_lo_u32": operation("u32", _UU, np.multiply),
        "v_mul_hi_u32": operation("u32", _UU, high_product(np.uint64)),
        "v_mul_hi_i32": operation("i32", _II, high_product(np.int64)),
        "v_mul_u32_u24": operation("u32", _UU, _multiply24),
        "v_mul_i32_i24": operation("i32", _II, _multiply_signed24),
        "v_mul_hi_u32_u24": operation("u32", _UU, _high24),
        "v_mul_hi_i32_i24": operation("i32", _II, _high_signed24),
        "v_mad_u32_u24": operation("u32", _UUU, lambda a, b, c: _multiply24(a, b) + c),
        "v_mad_i32_i24": operation("i32", _III, lambda a, b, c: _multiply_signed24(a, b) + c),
        "v_add3_u32": operation("u32", _UUU, lambda a, b, c: a + b + c),
        "v_sad_u8": operation("u32", _UUU, _sum_differences(8)),
        "v_sad_hi_u8": operation("u32", _UUU, _sum_differences(8, 16)),
        "v_sad_u16": operation("u32", _UUU, _sum_differences(16)),
        "v_sad_u32": operation("u32", _UUU, _sum_differences(32)),
    }


def _shift_table() -> dict[str, Entry]:
    table: dict[str, Entry] = {}
    for bits, unsigned, signed in (
        (16, np.uint16, np.int16), (32, np.uint32, np.int32), (64, np.uint64, np.int64)
    ):  # fmt: skip
        amount = "u16" if bits == 16 else "u32"
        b, i = f"b{bits}", f"i{bits}"
        left = _shift(np.left_shift, bits, unsigned)
        right = _shift(np.right_shift, bits, unsigned)
        arithmetic = _shift(np.right_shift, bits, signed)
        table |= {
            f"v_lshlrev_{b}": operation(b, f"{amount} {b}", left),
            f"v_lshrrev_{b}": operation(b, f"{amount} {b}", right),
            f"v_ashrrev_{i}": operation(i, f"{amount} {i}", arithmetic),
        }
    thirty_one = np.uint32(31)
    return table | {
        "v_lshl_add_u32": operation("u32", _UUU, lambda a, b, c: (a << (b & thirty_one)) + c),
        "v_add_lshl_u32": operation("u32", _UUU, lambda a, b, c: (a + b) << (c & thirty_one)),
        "v_lshl_or_b32": operation("u32", _UUU, lambda a, b, c: (a << (b & thirty_one)) | c),
        "v_lshl_add_u64": operation(
            "u64", "u64 u32 u64", lambda a, b, c: (a << (b & np.uint32(7)).astype(np.uint64)) + c
        ),
        "v_alignbit_b32": operation("u32", _UUU, _align(1)),
        "v_alignbyte_b32": operation("u32", _UUU, _align(8)),
    }


def _bits_table() -> dict[str, Entry]:
    ternary: dict[str, Ternary] = {
        "v_and_or_b32": lambda a, b, c: (a & b) | c,
        "v_or3_b32": lambda a, b, c: a | b | c,
        "v_xor3_b32": lambda a, b, c: a ^ b ^ c,
        "v_xad_u32": lambda a, b, c: (a ^ b) + c,
        "v_bfe_u32": _extract_unsigned,
        "v_bfi_b32": _insert,
        "v_perm_b32": permute_bytes,
    }
    binary: dict[str, Binary] = {
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
        "xnor": lambda a, b: ~(a ^ b),
    }  # fmt: skip
    table = {name: operation("u32", _UUU, function) for name, function in ternary.items()}
    for name, function in binary.items():
        table[f"v_{name}_b32"] = operation("u32", _UU, function)
        table[f"v_{name}_b16"] = operation("u16", "u16 u16", function)
    return table | {
        "v_not_b32": operation("u32", _U, np.invert),
        "v_not_b16": operation("u16", "u16", np.invert),
        "v_bfe_i32": operation("i32", "i32 u32 u32", _extract_signed),
        "v_bfm_b32": operation("u32", _UU, _field),
        "v_bfrev_b32": operation("u32", _U, reverse_bits),
        "v_ffbh_u32": operation("i32", _U, leading_zeros),
        "v_clz_i32_u32": operation("i32", _U, leading_zeros),
        "v_ffbl_b32": operation("i32", _U, first_one),
        "v_ctz_i32_b32": operation("i32", _U, first_one),
        "v_ffbh_i32": operation("i32", _I, leading_signs),
        "v_cls_i32": operation("i32", _I, leading_signs),
        "v_bcnt_u32_b32": operation("u32", _UU, lambda a, b: count_ones(a) + b),
        "v_mbcnt_lo_u32_b32": _count_below(False),
        "v_mbcnt_hi_u32_b32": _count_below(True),
        "v_bitop3_b32": _any_logic(32),
        "v_bitop3_b16": _any_logic(16),
    }


TABLE: dict[str, Entry] = {
    **_arithmetic_table(),
    **_carry_table(),
    **_shift_table(),
    **_bits_table(),
}
