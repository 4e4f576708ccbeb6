"""Float arithmetic as AMD's units do it: one rounding to nearest even, subnormals kept.

NumPy's own +, - and * round once and keep subnormal numbers, as the hardware does in the mode that
kernels run in. Here is what NumPy has not: fused multiply-add with one rounding, minimum and
maximum that tell the zeros apart, and the functions of the transcendental unit.

Fused multiply-add goes by way of float64. Of float32 the product is exact there, and so only the
sum rounds before the result does; that matters only where the float64 sum lies half way between two
float32 (or is tiny), and there the sum is rounded to odd first, which makes the two roundings one
(`targets.gpu.emulator.fused`, which does float64's too).

The transcendental unit is documented to within 1 ulp; here results are float64's rounded once. It
takes subnormal float32 for zero and returns none, which LLVM's expansions count on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.amdgpu.emulator.functions import Unary
from tiledsl.targets.gpu.emulator.fused import sum_to_odd

Array = NDArray[Any]

_TIE, _TAIL = np.uint64(1 << 28), np.uint64((1 << 29) - 1)
"""The 29 bits of a float64 that a float32 lacks: as they are half way between two; all of them."""
_SMALLEST = np.finfo(np.float32).smallest_normal


def wide(value: Array) -> Array:
    """Return values as float64."""
    return np.asarray(value, np.float64)


def fma(a: Array, b: Array, c: Array) -> Array:
    """Return a * b + c of float32, rounded once."""
    product = np.multiply(a, b, dtype=np.float64)
    total = np.add(product, c)
    result = total.astype(np.float32)
    tail = total.view(np.uint64) & _TAIL
    doubtful = (tail == _TIE) | (np.abs(result) <= _SMALLEST)
    if doubtful.any():
        result = sum_to_odd(*np.broadcast_arrays(product, wide(c))).astype(np.float32)
    return result


def fma16(a: Array, b: Array, c: Array) -> Array:
    """Return a * b + c of float16, rounded once."""
    product = np.multiply(a, b, dtype=np.float32)  # exact: 22 bits
    return sum_to_odd(*np.broadcast_arrays(wide(product), wide(c))).astype(np.float16)


_UNSIGNED: dict[int, Any] = {2: np.uint16, 4: np.uint32, 8: np.uint64}


def _bits(value: Array) -> Array:
    return np.ascontiguousarray(value).view(_UNSIGNED[value.itemsize])


def quiet(value: Array) -> Array:
    """Return values with signaling NaNs made quiet, as any arithmetic does."""
    if value.dtype != np.float16:
        return value * value.dtype.type(1)
    bits = _bits(value)
    return np.where(np.isnan(value), bits | np.uint16(0x0200), bits).view(np.float16)


def minimum_number(a: Array, b: Array) -> Array:
    """Return the smaller, the number of a number and a NaN, and -0 of the two zeros."""
    kind = a.dtype
    return np.where(a == b, _bits(a) | _bits(b), _bits(quiet(np.fmin(a, b)))).view(kind)


def maximum_number(a: Array, b: Array) -> Array:
    """Return the larger, the number of a number and a NaN, and +0 of the two zeros."""
    kind = a.dtype
    return np.where(a == b, _bits(a) & _bits(b), _bits(quiet(np.fmax(a, b)))).view(kind)


def minimum(a: Array, b: Array) -> Array:
    """Return the smaller as IEEE 754-2019 says: NaN of anything and a NaN, -0 of the two zeros."""
    kind = a.dtype
    return np.where(a == b, _bits(a) | _bits(b), _bits(quiet(np.minimum(a, b)))).view(kind)


def maximum(a: Array, b: Array) -> Array:
    """Return the larger as IEEE 754-2019 says: NaN of anything and a NaN, +0 of the two zeros."""
    kind = a.dtype
    return np.where(a == b, _bits(a) & _bits(b), _bits(quiet(np.maximum(a, b)))).view(kind)


def flush(value: Array) -> Array:
    """Make subnormal numbers zero of their sign."""
    smallest = np.finfo(value.dtype).smallest_normal
    zero = np.copysign(value.dtype.type(0), value)
    return np.where(np.abs(value) < smallest, zero, value)


def to_integer(low: int, high: int, dtype: Any) -> Unary:
    """Return what truncates floats to integers, to the nearest in range; NaN gives 0."""

    def convert(value: Array) -> Array:
        wide = np.trunc(np.asarray(value, np.float64))
        clipped = np.clip(wide, low, high)
        return np.where(np.isnan(wide), 0.0, clipped).astype(np.int64).astype(dtype)

    return convert


# --- parts of a number ---------------------------------------------------------------------------

_EXPONENT_BITS = {2: 5, 4: 8, 8: 11}


def exponent(value: Array) -> NDArray[np.int64]:
    """Return the exponent field."""
    bits = _bits(value)
    size = _EXPONENT_BITS[value.itemsize]
    mantissa = 8 * value.itemsize - 1 - size
    return (bits >> bits.dtype.type(mantissa)).astype(np.int64) & ((1 << size) - 1)


def is_subnormal(value: Array) -> Array:
    """Return which numbers are subnormal."""
    return (exponent(value) == 0) & (value != 0)


def fraction(value: Array) -> Array:
    """Return value - floor(value), below 1."""
    kind = value.dtype.type
    below = np.nextafter(kind(1), kind(0))
    return np.where(np.isnan(value), value, np.minimum(value - np.floor(value), below))


def mantissa(value: Array) -> Array:
    """Return the significand in [0.5, 1), signed; what is not finite as it is."""
    return np.where(np.isfinite(value), np.frexp(value)[0], value)


def binary_exponent(value: Array) -> Array:
    """Return the exponent that goes with `mantissa`; 0 of what is not finite."""
    return np.where(np.isfinite(value), np.frexp(value)[1], 0)


def scale(value: Array, power: Array) -> Array:
    """Return value * 2**power, rounded once."""
    if value.dtype == np.float64:
        return np.ldexp(value, np.clip(power, -5000, 5000).astype(np.int64))
    exact = np.ldexp(wide(value), np.clip(power.astype(np.int64), -400, 400))
    return exact.astype(value.dtype)


# --- the transcendental unit ---------------------------------------------------------------------


def _approximate(function: Unary) -> Unary:
    """Return a function of float32 as the unit computes it: subnormals are zero, in and out."""

    def evaluate(value: Array) -> Array:
        return flush(function(wide(flush(value))).astype(np.float32))

    return evaluate


def _rounded(function: Unary) -> Unary:
    """Return a function of float16 or float64 by way of float64, rounded once."""
    return lambda value: function(wide(value)).astype(value.dtype)


def _reciprocal(value: Array) -> Array:
    return 1.0 / value


def _inverse_root(value: Array) -> Array:
    return 1.0 / np.sqrt(value)


def _turns(function: Unary, far: float) -> Unary:
    """Return a function of an angle in turns, `far` where it is beyond 256 turns."""

    def evaluate(value: Array) -> Array:
        angle = value - np.rint(value)
        result: Array = function(2 * np.pi * angle)
        # Exact where sine and cosine are.
        quarter = 4 * angle
        result = np.where(quarter == np.rint(quarter), np.rint(result), result)
        return np.where(np.isinf(value), np.nan, np.where(np.abs(value) > 256, far, result))

    return evaluate


FUNCTIONS: dict[str, Unary] = {
    "exp": np.exp2,
    "log": np.log2,
    "rcp": _reciprocal,
    "rsq": _inverse_root,
    "sqrt": np.sqrt,
    "sin": _turns(np.sin, 0.0),
    "cos": _turns(np.cos, 1.0),
}
"""The functions of the unit on float64; angles are in turns."""


def unit_function(name: str, kind: str) -> Unary:
    """Return a function of the unit for "f16", "f32" or "f64"."""
    return (_approximate if kind == "f32" else _rounded)(FUNCTIONS[name])
