"""What the suite compares with: sample data, NumPy's answer under our rules, exact comparison.

Outputs come from `poisoned`: filled with a pattern no kernel writes, and longer than asked for, so
that `check` sees both what a kernel left out and what it wrote too much.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tiledsl import dtypes
from tiledsl.dtypes import DType

Array = np.ndarray[Any, np.dtype[Any]]

SIZES = (1, 7, 255, 256, 257, 1000)
"""Lengths about a block of 256: below, at, above, and several blocks with a ragged end."""
PLAIN_SIZES = (7, 255, 1000)
"""Those of which a kernel is told nothing, not being 1 or multiples of 16: one compilation for all."""

BOOL = dtypes.bool_
SIGNED = (dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64)
UNSIGNED = (dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64)
INTEGERS = (*SIGNED, *UNSIGNED)
FLOATS = (dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64)
FP8 = (dtypes.float8e4m3fn, dtypes.float8e5m2)
ALL = (BOOL, *INTEGERS, *FLOATS, *FP8)

GUARD = 64
_POISON = 0xA5


def poisoned(count: int, dtype: DType) -> Array:
    """Return an output of `count` elements and `GUARD` more, full of poison."""
    return np.full((count + GUARD) * dtype.itemsize, _POISON, np.uint8).view(dtype.numpy)


def is_poison(array: Array) -> bool:
    """Return whether nothing was written to any element."""
    return bool((np.ascontiguousarray(array).view(np.uint8) == _POISON).all())


# --- data ----------------------------------------------------------------------------------------


def sample(dtype: DType, count: int, seed: int = 0) -> Array:
    """Return values all over the range of `dtype`, the awkward ones among them.

    Half of a float sample has magnitudes of everyday size; a good part of the rest is specials:
    nan, infinities, zeros of both signs, subnormals and extremes.
    """
    rng = np.random.default_rng((seed, dtype.primitive_bitwidth, count))
    if dtype.is_bool():
        return rng.integers(0, 2, count).astype(np.bool_)
    if dtype.is_int():
        low, high = int(dtype.lowest), int(dtype.highest)
        wide = rng.integers(low, high, count, dtype=dtype.numpy, endpoint=True)
        small = rng.integers(max(low, -9), 9, count).astype(dtype.numpy)
        specials = rng.choice(np.array([low, high, 0, 1, high - 1, low + 1], dtype.numpy), count)
        return np.choose(rng.integers(0, 3, count), [wide, small, specials])
    bits = rng.integers(0, 256, count * dtype.itemsize, dtype=np.uint8).view(dtype.numpy)
    everyday = cast(rng.standard_normal(count) * 8, dtype)
    specials = float_specials(dtype)[rng.integers(0, len(float_specials(dtype)), count)]
    which = rng.choice(3, count, p=[0.3, 0.5, 0.2])
    out = bits.copy()
    out[which == 1] = everyday[which == 1]
    out[which == 2] = specials[which == 2]
    return out


def one_zero(values: Array) -> Array:
    """Return the values with every zero positive: which of two zeros is greater is nobody's rule."""
    with np.errstate(invalid="ignore"):
        return np.where(values.astype(np.float64) == 0, np.zeros_like(values), values)


def without_nan(values: Array) -> Array:
    """Return the values with 1 for every NaN."""
    return np.where(is_nan(values), np.ones_like(values), values)


def float_specials(dtype: DType) -> Array:
    """Return nan, infinities (the largest, where there are none), zeros, subnormals, extremes."""
    info: Any = ml_dtypes.finfo  # untyped there
    limits = info(dtype.numpy)
    tiny, sub = float(limits.smallest_normal), float(limits.smallest_subnormal)
    values = [np.nan, np.inf, 0.0, 1.0, 0.5, tiny, sub, 3 * sub, float(dtype.highest)]
    return cast(np.array([sign * v for v in values for sign in (1, -1)]), dtype, saturate=False)


def ordinary(dtype: DType, count: int, seed: int = 0, scale: float = 1.0) -> Array:
    """Return normally distributed values rounded to `dtype`; small integers for an integer type."""
    rng = np.random.default_rng((seed, 77, count))
    values = rng.standard_normal(count) * scale
    if dtype.is_bool():
        return values > 0
    if dtype.is_int():
        return np.rint(np.abs(values) if dtype.is_int_unsigned() else values).astype(dtype.numpy)
    return cast(values, dtype)


def whole(dtype: DType, count: int, seed: int = 0, limit: int = 4) -> Array:
    """Return random integers of magnitude at most `limit`, which any type here holds exactly."""
    rng = np.random.default_rng((seed, 99, count))
    low = 0 if dtype.is_int_unsigned() or dtype.is_bool() else -limit
    high = 1 if dtype.is_bool() else limit
    return rng.integers(low, high, count, endpoint=True).astype(dtype.numpy)


# --- the rules of casts --------------------------------------------------------------------------


def cast(values: Array, dtype: DType, saturate: bool = True) -> Array:
    """Return `values` cast by the documented rules.

    To a float: one rounding to nearest even from any type, saturating to the largest finite value
    for fp8. From a float to an integer: truncation, saturating, 0 for NaN. Between integers: the
    low bits. To a bool: whether it is not zero.

    Args:
        values: Of any type.
        dtype: The result's type.
        saturate: False keeps what is too large for fp8 as ml_dtypes rounds it.
    """
    target = dtype.numpy
    if values.dtype == target:
        return values
    with np.errstate(all="ignore"):
        if dtype.is_bool():
            return values.astype(np.float32) != 0 if values.dtype.itemsize < 4 else values != 0
        if dtype.is_int():
            return (
                values.astype(target) if values.dtype.kind in "iub" else _to_integer(values, dtype)
            )
        if dtype.primitive_bitwidth >= 32:
            return values.astype(target)
        narrow = _odd_float32(values)
        if dtype.is_fp8() and saturate:
            narrow = np.clip(narrow, np.float32(dtype.lowest), np.float32(dtype.highest))
        return narrow.astype(target)


def _to_integer(values: Array, dtype: DType) -> Array:
    wide = np.trunc(values.astype(np.float64))
    low, high = int(dtype.lowest), int(dtype.highest)
    inside = np.where((wide > low) & (wide < high), wide, 0).astype(dtype.numpy)
    too_low, too_high = dtype.numpy.type(low), dtype.numpy.type(high)
    return np.where(wide >= high, too_high, np.where(wide <= low, too_low, inside))


def _odd_float32(values: Array) -> Array:
    """Return float32 rounded to odd, from which any narrower float is the correct single rounding."""
    if values.dtype.itemsize < 4:
        return values.astype(np.float32)
    if values.dtype.kind in "iu":
        wide = values.astype(np.float64)
        wide = _make_odd(wide, _compare_integers(values, wide), np.uint64)
    else:
        wide = values.astype(np.float64)
    narrow = wide.astype(np.float32)
    back = narrow.astype(np.float64)
    away = np.where(np.isnan(wide), 0, np.sign(np.abs(back) - np.abs(wide)))
    away = np.where(np.isinf(wide), 0, away)
    return _make_odd(narrow, away, np.uint32)


def _compare_integers(exact: Array, rounded: Array) -> Array:
    """Return the sign of |rounded| - |exact|, where `rounded` is float64."""
    signs = [
        (abs(int(r)) > abs(int(e))) - (abs(int(r)) < abs(int(e)))
        for r, e in zip(rounded.tolist(), exact.tolist(), strict=True)
    ]
    return np.array(signs)


def _make_odd(rounded: Array, away: Array, bits: Any) -> Array:
    """Truncate what was rounded away from zero, then set the last bit of all that is inexact."""
    codes = rounded.view(bits) - (away > 0).astype(bits)
    return np.where(away != 0, codes | bits(1), codes).astype(bits).view(rounded.dtype)


# --- comparison ----------------------------------------------------------------------------------


def check(out: Array, expected: Array, what: str = "") -> None:
    """Assert that `out` begins with `expected` and that nothing after it was written.

    Bit for bit, -0.0 and 0.0 apart; any NaN equals any NaN.
    """
    flat = expected.ravel()
    assert out.dtype == flat.dtype, f"{what}: {out.dtype} is not {flat.dtype}"
    check_equal(out[: flat.size], flat, what)
    assert is_poison(out[flat.size :]), f"{what}: wrote past its end"


def check_equal(got: Array, expected: Array, what: str = "") -> None:
    """Assert equality bit for bit; any NaN equals any NaN."""
    assert got.shape == expected.shape, f"{what}: shape {got.shape} is not {expected.shape}"
    same = bits_of(got) == bits_of(expected)
    if expected.dtype.kind not in "iub":
        same |= is_nan(got) & is_nan(expected)
    wrong = np.flatnonzero(~same.ravel())
    assert wrong.size == 0, _describe(what, wrong, got.ravel(), expected.ravel())


def check_close(
    out: Array, expected: Array, ulps: float, what: str = "", floor: float = 0.0
) -> None:
    """Assert that `out` begins with `expected` to within some units in the last place.

    Args:
        out: From `poisoned`.
        expected: The exact answer in a wider type.
        ulps: Of the type of `out`, at the expected value.
        what: For the message.
        floor: An absolute error that is allowed beside.
    """
    flat = expected.ravel()
    got = out[: flat.size]
    assert is_poison(out[flat.size :]), f"{what}: wrote past its end"
    with np.errstate(all="ignore"):
        rounded = flat.astype(out.dtype).astype(np.longdouble)
        found = got.astype(np.longdouble)
        error = np.abs(found - flat.astype(np.longdouble))
        allowed = ulps * _unit(flat, out.dtype) + floor
        fine = (error <= allowed) | (found == rounded) | (np.isnan(found) & np.isnan(rounded))
        # Overflow may come half a unit early or late.
        top = np.longdouble(float(ml_dtypes.finfo(out.dtype).max))  # pyright: ignore
        fine |= np.isinf(found) & (np.abs(flat) > top * (1 - ulps * 2.0 ** -_digits(out.dtype)))
        fine &= (np.sign(found) == np.sign(rounded)) | (error <= allowed) | np.isnan(rounded)
    wrong = np.flatnonzero(~fine)
    assert wrong.size == 0, _describe(what, wrong, got, flat)


def _digits(dtype: np.dtype[Any]) -> int:
    info: Any = ml_dtypes.finfo
    return int(info(dtype).nmant) + 1


def _unit(values: Array, dtype: np.dtype[Any]) -> Array:
    info: Any = ml_dtypes.finfo
    limits = info(dtype)
    least = np.longdouble(float(limits.smallest_normal))
    magnitude = np.maximum(np.abs(np.nan_to_num(values.astype(np.longdouble))), least)
    return np.ldexp(np.longdouble(1), np.frexp(magnitude)[1] - _digits(dtype))


def bits_of(array: Array) -> Array:
    """Return the elements' bits as unsigned integers."""
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").reshape(array.shape)


def is_nan(array: Array) -> Array:
    """Return which elements are NaN, for every float type."""
    with np.errstate(invalid="ignore"):  # a signalling NaN says so when it is converted
        return np.isnan(array.astype(np.float64))


def _describe(what: str, wrong: Array, got: Array, expected: Array) -> str:
    lines = [f"  [{i}] {got[i]!r} is not {expected[i]!r}" for i in wrong[:8].tolist()]
    return "\n".join([f"{what}: {wrong.size} of {expected.size} elements differ", *lines])
