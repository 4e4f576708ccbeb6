"""Float arithmetic as AMD's units do it: one rounding to nearest even, subnormals kept, IEEE minimum.

NumPy's own +, - and * round once and keep subnormal numbers, as the hardware does in the mode that
kernels run in. Here is what NumPy has not: fused multiply-add with one rounding, minimum and
maximum that tell the zeros apart, and the functions of the transcendental unit.

Fused multiply-add goes by way of float64. Of float32 the product is exact there, and so only the sum
rounds before the result does; that matters only where the float64 sum lies half way between two
float32 (or is tiny), and there the sum is rounded to odd first, which makes the two roundings one
(Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008). Float64 itself uses their
algorithm with error-free transformations, and integers where exponents are extreme.

The transcendental unit is documented to within 1 ulp; here results are float64's rounded once. It
takes subnormal float32 for zero and returns none, which LLVM's expansions count on.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_TIE, _TAIL = np.uint64(1 << 28), np.uint64((1 << 29) - 1)
"""What the 29 bits of a float64 that a float32 lacks hold half way between two float32; all of them."""
_SMALLEST = np.finfo(np.float32).smallest_normal


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the rounded sum and its error."""
    total = a + b
    other = total - a
    return total, (a - (total - other)) + (b - other)


def _odd(total: Array, error: Array) -> Array:
    """Return `total + error` rounded to odd, `total` being that sum rounded to nearest."""
    bits = np.ascontiguousarray(total).view(np.int64).copy()
    fix = (error != 0) & np.isfinite(error) & ((bits & 1) == 0)
    away = (error > 0) == (total > 0)
    bits += np.where(fix, np.where(away, 1, -1), 0)
    return bits.view(np.float64)


def sum_to_odd(a: Array, b: Array) -> Array:
    """Return a + b of float64 rounded to odd, for one more rounding to a narrower format."""
    total, error = _two_sum(a, b)
    return _odd(total, error)


def fma(a: Array, b: Array, c: Array) -> Array:
    """Return a * b + c of float32, rounded once."""
    product = np.multiply(a, b, dtype=np.float64)
    total = np.add(product, c)
    result = total.astype(np.float32)
    tail = total.view(np.uint64) & _TAIL
    doubtful = (tail == _TIE) | (np.abs(result) <= _SMALLEST)
    if doubtful.any():
        result = sum_to_odd(product, np.asarray(c, np.float64)).astype(np.float32)
    return result


def fma16(a: Array, b: Array, c: Array) -> Array:
    """Return a * b + c of float16, rounded once."""
    product = np.multiply(a, b, dtype=np.float32)  # exact: 22 bits
    return sum_to_odd(product.astype(np.float64), np.asarray(c, np.float64)).astype(np.float16)


def _split(value: Array) -> tuple[Array, Array]:
    """Return halves of 26 bits whose sum is the value (Veltkamp)."""
    scaled = value * 134217729.0
    high = scaled - (scaled - value)
    return high, value - high


def fma64(a: Array, b: Array, c: Array) -> Array:
    """Return a * b + c of float64, rounded once."""
    a, b, c = np.broadcast_arrays(a, b, c)
    product = a * b
    (ah, al), (bh, bl) = _split(a), _split(b)
    error = ((ah * bh - product) + ah * bl + al * bh) + al * bl
    low_sum, low_error = _two_sum(c, error)
    high_sum, high_error = _two_sum(product, low_sum)
    tail = _odd(*_two_sum(low_error, high_error))
    result = high_sum + tail
    special = ~np.isfinite(product) | ~np.isfinite(c) | (product == 0) | (a == 0) | (b == 0)
    special &= ~np.isfinite(a) | ~np.isfinite(b) | ~np.isfinite(c) | (a == 0) | (b == 0)
    result = np.where(special, product + c, result)
    exact = _extreme(a, b, c, product) & ~special
    for place in zip(*np.nonzero(exact), strict=True):
        result[place] = _fraction_fma(float(a[place]), float(b[place]), float(c[place]))
    return result


def _extreme(a: Array, b: Array, c: Array, product: Array) -> Array:
    """Say where float64's error-free transformations may lose something."""
    sizes = [np.abs(one) for one in (a, b, c, product)]
    large = np.maximum.reduce(sizes) > 2.0**990
    small = (sizes[3] < 2.0**-900) | ((sizes[2] < 2.0**-900) & (sizes[2] > 0))
    return large | small


def _fraction_fma(a: float, b: float, c: float) -> float:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return a * b + c
    try:
        return exact.numerator / exact.denominator
    except OverflowError:
        return float("inf") if exact > 0 else float("-inf")


_UNSIGNED: dict[int, Any] = {2: np.uint16, 4: np.uint32, 8: np.uint64}


def _bits(value: Array) -> Array:
    return np.ascontiguousarray(value).view(_UNSIGNED[value.itemsize])


def minimum_number(a: Array, b: Array) -> Array:
    """Return the smaller, the number of a number and a NaN, and -0 of the two zeros."""
    kind = a.dtype
    return np.where(a == b, _bits(a) | _bits(b), _bits(np.fmin(a, b))).view(kind)


def maximum_number(a: Array, b: Array) -> Array:
    """Return the larger, the number of a number and a NaN, and +0 of the two zeros."""
    kind = a.dtype
    return np.where(a == b, _bits(a) & _bits(b), _bits(np.fmax(a, b))).view(kind)


def minimum(a: Array, b: Array) -> Array:
    """Return the smaller as IEEE 754-2019 says: NaN of anything and a NaN, -0 of the two zeros."""
    kind = a.dtype
    return np.where(a == b, _bits(a) | _bits(b), _bits(np.minimum(a, b))).view(kind)


def maximum(a: Array, b: Array) -> Array:
    """Return the larger as IEEE 754-2019 says: NaN of anything and a NaN, +0 of the two zeros."""
    kind = a.dtype
    return np.where(a == b, _bits(a) & _bits(b), _bits(np.maximum(a, b))).view(kind)


def flush(value: Array) -> Array:
    """Make subnormal numbers zero of their sign."""
    smallest = np.finfo(value.dtype).smallest_normal
    zero = np.copysign(value.dtype.type(0), value)
    return np.where(np.abs(value) < smallest, zero, value)


def to_integer(low: int, high: int, dtype: Any) -> Any:
    """Return what converts floats to integers by truncation, to the nearest in range; NaN gives 0."""

    def convert(value: Array) -> Array:
        wide = np.trunc(np.asarray(value, np.float64))
        clipped = np.clip(wide, low, high)
        return np.where(np.isnan(wide), 0.0, clipped).astype(np.int64).astype(dtype)

    return convert
