"""Fused multiply-add of float64, which NumPy lacks: a b + c rounded once, to nearest even.

Where exponents are moderate it takes error-free sums and products and one rounding "to odd"
(Boldo and Melquiond, "Emulation of FMA and Correctly Rounded Sums", IEEE Trans. Computers 57(4),
2008). The few values elsewhere go through exact rational numbers, one by one. Of float32, float64
is wide enough for the product, so that only the sum is left to round to odd.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]

_LOW, _HIGH = 2.0**-400, 2.0**400
"""Magnitudes between which nothing below can overflow or lose bits."""
_BELOW_FLOAT32, _HALF_FLOAT32 = np.uint64((1 << 29) - 1), np.uint64(1 << 28)
"""The bits of a float64 that a float32 lacks, and half a unit among them."""
_NORMAL_FLOAT32 = np.uint64((1023 - 126) << 53)
"""Twice the bits of the least float32 that is normal."""


def fused_multiply_add(a: Any, b: Any, c: Any) -> Reals:
    """Return a b + c, correctly rounded, of arrays that broadcast."""
    a, b, c = np.broadcast_arrays(*(np.asarray(one, np.float64) for one in (a, b, c)))
    with np.errstate(all="ignore"):
        high, low = _two_product(a, b)
        middle, rest = two_sum(c, low)
        top, below = two_sum(high, middle)
        total: Reals = top + sum_to_odd(rest, below)
        total = np.where(total == 0, a * b + c, total)  # exact, and of the right sign
        hard = _extreme(a) | _extreme(b) | _extreme(c)
        if hard.any():
            total = np.array(total)
            for at in np.flatnonzero(hard):
                total.flat[at] = _exactly(a.flat[at], b.flat[at], c.flat[at])
    return total


def fused_float32(a: Any, b: Any, c: Any) -> NDArray[np.float32]:
    """Return a b + c of float32 values, held as float32 or float64, correctly rounded."""
    with np.errstate(all="ignore"):
        product: Reals = np.asarray(np.multiply(a, b, dtype=np.float64))
        total = np.asarray(product + c)
        bits = total.view(np.uint64)
        # Rounding twice differs only where the first result lies halfway between two float32, which
        # is elsewhere for those below the normal ones.
        if ((bits & _BELOW_FLOAT32) == _HALF_FLOAT32).any() or _smallest(bits) < _NORMAL_FLOAT32:
            total = sum_to_odd(*np.broadcast_arrays(product, np.asarray(c, np.float64)))
        found: NDArray[np.float32] = total.astype(np.float32)
        return found


def _smallest(bits: NDArray[np.uint64]) -> np.uint64:
    """Return twice the bits of the smallest magnitude that is not 0, less 1."""
    one = np.uint64(1)
    found: np.uint64 = np.min((bits << one) - one)
    return found


def sum_to_odd(a: Reals, b: Reals) -> Reals:
    """Return a + b rounded to odd: what is then rounded to fewer bits is rounded once."""
    total, error = two_sum(a, b)
    bits = total.view(np.int64)
    even = (error != 0) & np.isfinite(total) & ((bits & 1) == 0)
    if not even.any():
        return total
    away = (error > 0) == (total > 0)
    return (bits + np.where(even, np.where(away, 1, -1), 0)).view(np.float64)


def _extreme(x: Reals) -> NDArray[np.bool_]:
    size = np.abs(x)
    return ((size < _LOW) & (size != 0)) | ~(size < _HIGH)


def _exactly(a: np.float64, b: np.float64, c: np.float64) -> float:
    """Return a b + c of any values."""
    if not (np.isfinite(a) and np.isfinite(b) and np.isfinite(c)):
        overflows = np.isfinite(a) and np.isfinite(b)  # a product that is finite all the same
        return float(c if overflows else a * b + c)
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    if exact == 0:
        return float(a * b + c)  # which has the right sign
    try:
        return float(exact)
    except OverflowError:
        return float(np.copysign(np.inf, 1.0 if exact > 0 else -1.0))


def two_sum(a: Reals, b: Reals) -> tuple[Reals, Reals]:
    """Return the rounded sum and what it lacks, exactly (Knuth)."""
    total = a + b
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)


def _two_product(a: Reals, b: Reals) -> tuple[Reals, Reals]:
    """Return the rounded product and what it lacks, exactly (Dekker)."""
    total = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    error = ((a_high * b_high - total) + a_high * b_low + a_low * b_high) + a_low * b_low
    return total, error


def _halves(x: Reals) -> tuple[Reals, Reals]:
    high = x * 134217729.0  # 2^27 + 1
    high = high - (high - x)
    return high, x - high
