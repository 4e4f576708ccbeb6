"""Conversions between every pair of types: cvt, its packed forms, and cvt.pack.

Each conversion decodes to an exact value and rounds once. Out of the range of an integer it clamps,
as PTX says for float sources whatever the instruction says, and for integers where it says `.sat`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.fused import two_sum
from tiledsl.targets.gpu.emulator.program import InstructionClass, Step
from tiledsl.targets.nvptx.emulator.float_values import (
    BFLOAT,
    canonical,
    flush,
    narrow,
    narrow_pair,
    saturate,
)
from tiledsl.targets.nvptx.emulator.integer import clamp
from tiledsl.targets.nvptx.emulator.opcodes import Opcode, Options, Table, unknown
from tiledsl.targets.nvptx.emulator.operands import TYPES, Context, Type, Values, select
from tiledsl.targets.nvptx.emulator.text import Parsed

_SCALARS = (
    *(f"{letter}{bits}" for letter in "su" for bits in (8, 16, 32, 64)),
    *("f16", "bf16", "f32", "f64"),
)
_MODES = ("rn", "rz", "rm", "rp", "rna")
_WHOLE: dict[str, Callable[[Values], Values]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}
"""Rounding to whole numbers."""


@dataclass(frozen=True)
class _Small:
    """A type that only cvt knows, of which a register holds two: element 0 in the low bits.

    Attributes:
        element: The NumPy type of one.
        bits: Of one, as packed.
        largest: The largest finite value.
        nan: The code of a NaN; None where there is none (a NaN becomes the largest value).
    """

    element: Any
    bits: int
    largest: float
    nan: int | None


_SMALL: dict[str, _Small] = {
    "e4m3x2": _Small(ml_dtypes.float8_e4m3fn, 8, 448.0, 0x7F),
    "e5m2x2": _Small(ml_dtypes.float8_e5m2, 8, 57344.0, 0x7F),
    "e2m3x2": _Small(ml_dtypes.float6_e2m3fn, 8, 7.5, None),
    "e3m2x2": _Small(ml_dtypes.float6_e3m2fn, 8, 28.0, None),
    "e2m1x2": _Small(ml_dtypes.float4_e2m1fn, 4, 6.0, None),
    "ue8m0x2": _Small(ml_dtypes.float8_e8m0fnu, 8, 2.0**127, 0xFF),
}


_finfo: Callable[[Any], Any] = ml_dtypes.finfo


def _convert(instruction: Parsed, context: Context) -> Step:
    """Decode cvt, by its last two modifiers."""
    to, source = instruction.modifiers[-2:]
    if to in _SMALL or source in _SMALL or to in ("f16x2", "bf16x2"):
        return _convert_packed(instruction, context)
    if to == "tf32":
        return _convert_tf32(instruction, context)
    return _convert_scalar(instruction, context)


# --- scalars -------------------------------------------------------------------------------------


def _is_float(kind: Type) -> bool:
    return kind.element.kind not in "iub"


def _convert_scalar(instruction: Parsed, context: Context) -> Step:
    options = Options(instruction)
    source, to = TYPES[options.last(_SCALARS)], TYPES[options.last(_SCALARS)]
    whole = options.choice(tuple(_WHOLE), "")
    mode = options.choice(_MODES, "rn")
    flushes, saturates = options.flag("ftz"), options.flag("sat")
    relu, finite = options.flag("relu"), options.flag("satfinite")
    options.done()
    convert = _conversion(source, to, whole, mode, saturates)

    def compute(values: Values) -> Values:
        if flushes and source.name == "f32":
            values = canonical(flush(values))
        found = convert(values)
        if saturates and _is_float(to):
            found = saturate(found)
        if relu:
            found = _at_least_zero(found)
        if finite:
            found = _finite(found)
        return flush(found) if flushes and to.name == "f32" else found

    destination, operand = instruction.operands
    return context.compute(destination, to.name, compute, [(operand, source.name)])


def _at_least_zero(values: Values) -> Values:
    found: Values = select(values <= 0, values.dtype.type(0), values)  # -0 too
    return found


def _finite(values: Values) -> Values:
    largest: Any = _finfo(values.dtype).max
    found: Values = select(np.isinf(values), np.copysign(largest, values), values)
    return found


def _conversion(
    source: Type, to: Type, whole: str, mode: str, saturates: bool
) -> Callable[[Values], Values]:
    """Return what converts values of one type to another."""
    if _is_float(source) and _is_float(to):
        return lambda values: _with_nans(values, float_to_float(values, to, whole, mode), source)
    if _is_float(source):
        return lambda values: float_to_integer(values, to, whole or "rzi")
    if _is_float(to):
        return lambda values: integer_to_float(values, to, mode)
    if saturates:
        return lambda values: _clamped_integer(values, source, to)
    return lambda values: _resized(values, to)


def _resized(values: Values, to: Type) -> Values:
    found: Values = values.astype(to.element)
    return found if found is not values else np.array(values)


def _clamped_integer(values: Values, source: Type, to: Type) -> Values:
    if source.bits == 64 and not source.signed:  # what int64 cannot hold is too large for any other
        limit = np.uint64(np.iinfo(to.element).max)
        found: Values = np.minimum(values, limit).astype(to.element)
        return found
    if to.bits == 64:
        low = values.dtype.type(0) if not to.signed else values
        raised: Values = np.maximum(values, low).astype(to.element)
        return raised
    return clamp(values.astype(np.int64), to)


def _with_nans(values: Values, found: Values, source: Type) -> Values:
    """Return converted floats with the NaNs that the chip gives.

    To and from f64, and from bf16 to f32, a NaN keeps its sign and as many of its bits as fit; with
    f64 it becomes quiet. All others are the canonical one.
    """
    lost = np.isnan(values)
    if not lost.any():
        return found
    widths = source.bits, 8 * found.dtype.itemsize
    if source.element == BFLOAT and widths[1] == 32:
        return (np.ascontiguousarray(values).view(np.uint16).astype(np.uint32) << 16).view(
            np.float32
        )
    if 64 not in widths or widths[0] == widths[1]:
        return canonical(found)
    narrower, wider = sorted((source.element, found.dtype), key=lambda kind: kind.itemsize)
    shift = np.uint64(52 - (int(_finfo(narrower).nmant)))
    bits = np.ascontiguousarray(values).view(f"u{source.bits // 8}").astype(np.uint64)
    if narrower == found.dtype:
        top = np.uint64((1 << 8 * narrower.itemsize - 1) - 1)
        kept = (bits >> shift & top) | bits >> np.uint64(63) << np.uint64(8 * narrower.itemsize - 1)
        quiet_bit = np.uint64(1 << int(_finfo(narrower).nmant) - 1)
        codes = (kept | quiet_bit).astype(f"u{narrower.itemsize}").view(found.dtype)
    else:
        fraction = bits & np.uint64((1 << int(_finfo(narrower).nmant)) - 1)
        sign = bits >> np.uint64(source.bits - 1) << np.uint64(63)
        codes = (sign | np.uint64(0x7FF8 << 48) | fraction << shift).view(wider)
    kept_or_found: Values = select(lost, codes.reshape(np.shape(found)), found)
    return kept_or_found


def float_to_float(values: Values, to: Type, whole: str, mode: str) -> Values:
    """Return floats as another type; with `whole`, first rounded to whole numbers."""
    if whole:
        rounded = _WHOLE[whole](values.astype(np.float64))
        return narrow(rounded, to.element) if to.bits < 64 else rounded
    if values.dtype.itemsize < to.bits // 8 or values.dtype == to.element:
        return np.array(values.astype(to.element))  # exact
    return narrow(values.astype(np.float64), to.element, mode)


def float_to_integer(values: Values, to: Type, whole: str) -> Values:
    """Return floats rounded to whole numbers and clamped.

    A NaN becomes 0; but where either type has 64 bits, only the highest bit set.
    """
    wide = values.dtype.itemsize == 8 or to.bits == 64
    rounded = _WHOLE[whole](values.astype(np.float64))
    limits = np.iinfo(to.element)
    above, below = rounded >= float(limits.max) + 1.0, rounded <= float(limits.min)
    inside = select(above | below | np.isnan(rounded), 0.0, rounded)
    unsigned_64 = to.bits == 64 and not to.signed
    found: Values = inside.astype(np.uint64 if unsigned_64 else np.int64).astype(to.element)
    most, least = to.element.type(limits.max), to.element.type(limits.min)
    found = select(above, most, select(below, least, found))
    missing = np.array(1 << (to.bits - 1) if wide else 0, f"u{to.bits // 8}").view(to.element)
    return select(np.isnan(rounded), missing, found)


def integer_to_float(values: Values, to: Type, mode: str) -> Values:
    """Return integers as floats."""
    element = values.dtype
    if element.itemsize < 8:
        exact = values.astype(np.float64)
        return narrow(exact, to.element, mode) if to.bits < 64 else exact
    high = (values >> element.type(32)).astype(np.float64) * 2.0**32
    low = (values & element.type(0xFFFFFFFF)).astype(np.float64)
    return narrow_pair(*two_sum(high, low), to.element, mode)


# --- pairs ---------------------------------------------------------------------------------------


def _convert_packed(instruction: Parsed, context: Context) -> Step:
    """Decode conversions of two values at once: from two f32, or from one register of a pair."""
    options = Options(instruction)
    source = options.last((*_SMALL, "f32", "f16x2", "bf16x2", "f16", "bf16"))
    to = options.last((*_SMALL, "f16x2", "bf16x2"))
    mode = options.choice(_MODES, "rn")
    relu, finite = options.flag("relu"), options.flag("satfinite")
    options.done()
    destination, *operands = instruction.operands

    def compute(*sources: Values) -> Values:
        pair = _pair(source, sources)
        if relu:
            pair = select(pair <= 0, 0.0, pair)
        return _packed(pair, to, mode, finite)

    kind = source if source in TYPES else f"b{2 * _SMALL[source].bits}"
    width = TYPES[to].bits if to in TYPES else 2 * _SMALL[to].bits
    if source in ("f32", "f16", "bf16") and len(operands) != 2:
        raise unknown(instruction, "expected two sources")
    return context.compute(destination, f"b{width}", compute, [(one, kind) for one in operands])


def _pair(source: str, operands: tuple[Values, ...]) -> NDArray[np.float64]:
    """Return the values of a pair as (threads, 2) float64."""
    if source in _SMALL:
        return unpack_small(operands[0], source)
    if len(operands) == 2:  # the first one is the upper
        upper, lower = np.broadcast_arrays(*operands)
        return np.stack([lower, upper], -1).astype(np.float64)
    return operands[0].astype(np.float64)


def unpack_small(codes: Values, name: str) -> NDArray[np.float64]:
    """Return the values of packed pairs of a small type."""
    small = _SMALL[name]
    mask = codes.dtype.type((1 << small.bits) - 1)
    both = np.stack([codes & mask, codes >> codes.dtype.type(small.bits) & mask], -1)
    found: Any = both.astype(np.uint8).view(small.element).astype(np.float64)
    return found


def _packed(pair: NDArray[np.float64], to: str, mode: str, finite: bool) -> Values:
    """Return pairs rounded to a type, as the bits of one register."""
    if to in TYPES:
        found = canonical(narrow(pair, TYPES[to].element, mode))
        bits = np.ascontiguousarray(_finite(found) if finite else found)
        return bits.view(np.uint32).reshape(-1)
    small = _SMALL[to]
    codes = encode_small(pair, small, mode).astype(np.uint16)
    words = codes[..., 0] | codes[..., 1] << np.uint16(small.bits)
    found: Values = words.astype(f"u{2 * small.bits // 8}")
    return found


def encode_small(values: NDArray[np.float64], small: _Small, mode: str) -> NDArray[np.uint8]:
    """Return codes of a small type, clamped to finite values (`.satfinite`, which PTX requires)."""
    if small.element is ml_dtypes.float8_e8m0fnu:
        return _encode_exponent(values, mode)
    clipped = np.clip(values, -small.largest, small.largest)
    single = narrow(clipped, np.float32)  # of f32 and halves, exact: they have no more bits
    codes = single.astype(small.element).view(np.uint8)
    lost = np.isnan(values)
    if small.nan is not None:
        return select(lost, np.uint8(small.nan), codes)
    largest = np.array(small.largest).astype(small.element).view(np.uint8)
    return select(lost, largest, codes)


def _encode_exponent(values: NDArray[np.float64], mode: str) -> NDArray[np.uint8]:
    """Return codes of ue8m0: a power of two, rounded toward zero or up."""
    fraction, exponent = np.frexp(np.abs(values))
    power = exponent - 1 + ((fraction > 0.5) & (mode == "rp"))
    codes = np.clip(select(values == 0, -127, power), -127, 127) + 127
    codes = select(np.isinf(values), 254, codes)
    return select(np.isnan(values), 255, codes).astype(np.uint8)


# --- tf32 ----------------------------------------------------------------------------------------


def _convert_tf32(instruction: Parsed, context: Context) -> Step:
    options = Options(instruction)
    options.last(("f32",))
    options.last(("tf32",))
    mode = options.choice(("rna", "rn", "rz"))
    relu, finite = options.flag("relu"), options.flag("satfinite")
    options.done()

    def compute(values: Values) -> Values:
        found = round_tf32(values, mode)
        if relu:
            found = select(values <= 0, np.uint32(0), found)
        if finite:  # as the chip does it: one less of what is no finite number
            large = found & np.uint32(0x7FFFFFFF) >= np.uint32(0x7F800000)
            found = select(large, found - np.uint32(0x2000), found)
        return found

    to, source = instruction.operands
    return context.compute(to, "b32", compute, [(source, "f32")])


def round_tf32(values: Values, mode: str) -> Values:
    """Return f32 as tf32: a sign, 8 bits of exponent, 10 of fraction, and zeros below.

    `rna` cuts a NaN like any other number, which may leave an infinity.
    """
    bits = np.ascontiguousarray(values).view(np.uint32).reshape(np.shape(values))
    half = np.uint32(0x1000)
    if mode == "rna":
        moved = bits + half
    elif mode == "rn":
        moved = bits + (half - np.uint32(1)) + (bits >> np.uint32(13) & np.uint32(1))
    else:
        moved = bits
    finite = np.isfinite(values)
    found = select(finite, moved, bits) & np.uint32(0xFFFFE000)
    if mode == "rna":
        return found
    missing: Values = select(np.isnan(values), np.uint32(0x7FFFE000), found)
    return missing


# --- packing integers ----------------------------------------------------------------------------

_PACKED_RANGE = {
    f"{letter}{bits}": (
        -(1 << bits - 1) if letter == "s" else 0,
        (1 << bits - 1) - 1 if letter == "s" else (1 << bits) - 1,
        bits,
    )
    for letter in "us"
    for bits in (2, 4, 8, 16)
}


def _pack(instruction: Parsed, context: Context) -> Step:
    """Decode cvt.pack: two clamped integers, below what a third register holds."""
    options = Options(instruction)
    options.flag("pack")
    if not options.flag("sat"):
        raise unknown(instruction)
    with_third = options.flag("b32")
    options.last(("s32",))
    low, high, bits = _PACKED_RANGE[options.last(tuple(_PACKED_RANGE))]
    options.done()
    to, *sources = instruction.operands
    mask = np.int64((1 << bits) - 1)

    def compute(first: Values, second: Values, *rest: Values) -> Values:
        upper = np.clip(first.astype(np.int64), low, high) & mask
        lower = np.clip(second.astype(np.int64), low, high) & mask
        word = upper << bits | lower
        for third in rest:
            word = word | third.astype(np.int64) << 2 * bits
        found: Values = word.astype(np.uint32)
        return found

    kinds = ["s32", "s32", *(["u32"] if with_third else [])]
    return context.compute(to, "u32", compute, list(zip(sources, kinds, strict=True)))


TABLE: Table = {
    "cvt": Opcode(_convert, InstructionClass.CONVERT),
    "cvt.pack": Opcode(_pack, InstructionClass.CONVERT),
}
