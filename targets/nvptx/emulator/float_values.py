"""Floating point as PTX has it: exact sums and products, rounded once in any direction.

NumPy rounds to nearest even in the type of its operands, which is what `.rn` asks of f32 and f64.
All else is made of two steps: an *exact* result as a pair of float64 whose sum it is, and one
rounding of that pair. The pair becomes one float64 by rounding to odd: a result that is not exact
gets an odd last bit, so it keeps its side of every tie and of every value of a narrower type (Boldo
and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to
odd", 2008).

Where float64 itself is the type asked for and an intermediate may overflow or lose bits below the
subnormal numbers, the few lanes concerned are computed with Python's fractions.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator import fused
from tiledsl.targets.gpu.emulator.fused import two_sum
from tiledsl.targets.nvptx.emulator.operands import Values, select

Reals = NDArray[np.float64]

BFLOAT = np.dtype(ml_dtypes.bfloat16)
_NORMAL: dict[Any, Any] = {
    np.dtype(np.float16): np.float16(2.0**-14),
    BFLOAT: ml_dtypes.bfloat16(2.0**-126),
    np.dtype(np.float32): np.float32(2.0**-126),
    np.dtype(np.float64): np.float64(2.0**-1022),
}
"""The least normal number of each type."""


_CANONICAL: dict[int, Any] = {2: np.uint16(0x7FFF), 4: np.uint32(0x7FFFFFFF)}
"""The NaN that arithmetic gives, by bytes; f64 hands on the operand's, see `propagate`."""
_QUIET = np.uint64(1 << 51)
"""The bit of a NaN of f64 that says that it does not signal."""


def canonical(values: Values) -> Values:
    """Return values whose NaNs are the one that NVIDIA's arithmetic gives."""
    if values.dtype.itemsize == 8 or np.ndim(values) == 0 or not values.size:
        return values
    lowest = np.minimum.reduce(values, axis=None)  # a NaN if any is one
    if lowest == lowest:
        return values
    return select(np.isnan(values), _CANONICAL[values.dtype.itemsize].view(values.dtype), values)


def quiet(values: Values) -> Values:
    """Return f64 with what NaNs signal cleared, their signs and other bits kept."""
    bits = np.ascontiguousarray(values).view(np.uint64) | _QUIET
    found: Values = select(
        np.isnan(values), bits.view(np.float64).reshape(np.shape(values)), values
    )
    return found


def propagate(found: Values, *operands: Values) -> Values:
    """Return f64 results with the first operand that is a NaN, quiet, where one is."""
    if not np.isnan(found).any():
        return found
    for one in reversed(operands):
        found = select(np.isnan(one), quiet(one), found)
    return found


def flush(values: Values) -> Values:
    """Return values with subnormal numbers replaced by zeros of their sign."""
    least = _NORMAL[values.dtype]
    return select(np.abs(values) < least, np.copysign(values.dtype.type(0), values), values)


def least_normal(kind: Any) -> Any:
    """Return the least normal number of a type."""
    return _NORMAL[kind]


def saturate(values: Values) -> Values:
    """Return values clamped to 0 to 1; a NaN becomes 0."""
    one, zero = values.dtype.type(1), values.dtype.type(0)
    found: Values = select(values > zero, select(values > one, one, values), zero)
    return found


# --- exact pairs ---------------------------------------------------------------------------------


def to_odd(high: Reals, low: Reals) -> Reals:
    """Return a pair as one float64, rounded to odd; `high` is the pair's sum to nearest."""
    bits = np.asarray(high).view(np.int64)
    inexact = (low != 0) & np.isfinite(high) & np.isfinite(low) & ((bits & 1) == 0)
    if not inexact.any():
        return high
    toward = select(low > 0, np.inf, -np.inf)
    return select(inexact, np.nextafter(high, toward), high)


# --- rounding ------------------------------------------------------------------------------------


def narrow(values: Reals, kind: Any, mode: str = "rn") -> Values:
    """Return float64 (exact, or rounded to odd) rounded once to a narrower type.

    Args:
        values: What to round.
        kind: A NumPy type.
        mode: "rn" (nearest even), "rz" (toward zero), "rm" (down) or "rp" (up).
    """
    element = np.dtype(kind)
    if element == BFLOAT:
        return _narrow_bfloat(values, mode)
    near: Values = values.astype(element)
    return near if mode == "rn" else _directed(near, near.astype(np.float64), values, mode)


def narrow_pair(high: Reals, low: Reals, kind: Any, mode: str = "rn") -> Values:
    """Return a pair, of which `high` is the sum to nearest, rounded once to any type."""
    if np.dtype(kind) != np.float64:
        return narrow(to_odd(high, low), kind, mode)
    if mode == "rn":
        return high
    down = (low < 0) & ((mode == "rm") | ((mode == "rz") & (high > 0)))
    up = (low > 0) & ((mode == "rp") | ((mode == "rz") & (high < 0)))
    found = select(down, np.nextafter(high, -np.inf), high)
    return select(up, np.nextafter(high, np.inf), found)


def _narrow_bfloat(values: Reals, mode: str) -> Values:
    """Round to bf16 by way of f32 rounded to odd: ml_dtypes would round to f32 first."""
    single = values.astype(np.float32)
    wide = single.astype(np.float64)
    bits = single.view(np.uint32)
    inexact = (wide != values) & np.isfinite(wide) & ((bits & np.uint32(1)) == 0)
    if inexact.any():
        toward = select(values > wide, np.float32(np.inf), np.float32(-np.inf))
        single = select(inexact, np.nextafter(single, toward), single)
    near: Values = single.astype(BFLOAT)
    return near if mode == "rn" else _directed(near, near.astype(np.float64), values, mode)


def _directed(near: Values, wide: Reals, exact: Reals, mode: str) -> Values:
    """Return the neighbour of the nearest value that a directed mode wants."""
    above, below = wide > exact, wide < exact
    if mode == "rz":
        down, up = above & (exact > 0), below & (exact < 0)
    elif mode == "rm":
        down, up = above, np.zeros_like(above)
    else:
        down, up = np.zeros_like(above), below
    found = select(down, _neighbour(near, -1), near)
    return select(up, _neighbour(near, 1), found).astype(near.dtype)


def _neighbour(values: Values, direction: int) -> Values:
    """Return the next value of the type, up or down."""
    unsigned = np.dtype(f"u{values.dtype.itemsize}")
    bits = np.ascontiguousarray(values).view(unsigned).astype(np.int64)
    sign = np.int64(1) << np.int64(values.dtype.itemsize * 8 - 1)
    if values.dtype.itemsize == 8:
        return np.nextafter(values, np.float64(np.inf * direction))
    order = select(bits & sign, -(bits & ~sign), bits) + direction
    back = select(order < 0, -order | sign, order)
    # From the least negative number up there is a zero, which is negative.
    back = select((order == 0) & (direction > 0), sign, back)
    return back.astype(unsigned).view(values.dtype).reshape(np.shape(values))


def signed_zeros(result: Values, a: Values, b: Values, mode: str) -> Values:
    """Return the sum of a and b with the sign of a zero: rounding down, one that cancels is -0."""
    if mode != "rm":
        return result
    negative = (result == 0) & (a == -b) & (np.signbit(a) | np.signbit(b))
    found: Values = select(negative, np.copysign(result, -1), result)
    return found


# --- operations ----------------------------------------------------------------------------------

Mode = str


def add(a: Values, b: Values, mode: Mode = "rn") -> Values:
    """Return a + b."""
    if mode == "rn":
        return a + b
    first, second = a.astype(np.float64), b.astype(np.float64)
    if a.dtype == np.float64:
        lanes = _finite(first, second)
        found = _on_lanes(operator.add, mode, first + second, lanes, first, second)
    else:
        found = narrow(to_odd(*two_sum(first, second)), a.dtype, mode)
    return signed_zeros(found, first, second, mode)


def subtract(a: Values, b: Values, mode: Mode = "rn") -> Values:
    """Return a - b."""
    return a - b if mode == "rn" else add(a, -b, mode)


def multiply(a: Values, b: Values, mode: Mode = "rn") -> Values:
    """Return a * b."""
    if mode == "rn":
        return a * b
    if a.dtype == np.float64:
        return _on_lanes(operator.mul, mode, a * b, _finite(a, b), a, b)
    return narrow(a.astype(np.float64) * b.astype(np.float64), a.dtype, mode)


def divide(a: Values, b: Values, mode: Mode = "rn") -> Values:
    """Return a / b."""
    if mode == "rn":
        return a / b
    if a.dtype == np.float64:
        return _on_lanes(Fraction.__truediv__, mode, a / b, _finite(a, b) & (b != 0), a, b)
    # No quotient that is not an f32 is so near to one that f64 could not tell them apart.
    return narrow(a.astype(np.float64) / b.astype(np.float64), a.dtype, mode)


def square_root(a: Values, mode: Mode = "rn") -> Values:
    """Return the square root of a."""
    if mode == "rn":
        found: Values = np.sqrt(a)
        return found
    if a.dtype == np.float64:
        return _square_root_exactly(a, mode)
    return narrow(np.sqrt(a.astype(np.float64)), a.dtype, mode)


def fused_multiply_add(a: Values, b: Values, c: Values, mode: Mode = "rn") -> Values:
    """Return a * b + c, rounded once."""
    if a.dtype == np.float64:
        return _fused_64(a, b, c, mode)
    if a.dtype == np.float32 and mode == "rn":
        return fused.fused_float32(a, b, c)
    product = a.astype(np.float64) * b.astype(np.float64)  # exact: twice the bits fit
    third = c.astype(np.float64)
    total = to_odd(*two_sum(product, third))
    return signed_zeros(narrow(total, a.dtype, mode), product, third, mode)


def _fused_fractions(a: Fraction, b: Fraction, c: Fraction) -> Fraction:
    return a * b + c


def _fused_64(a: Values, b: Values, c: Values, mode: Mode) -> Values:
    near: Values = fused.fused_multiply_add(a, b, c)
    if mode == "rn":
        return near
    found = _on_lanes(_fused_fractions, mode, near, _finite(a, b, c), a, b, c)
    product = a * b
    underflows = (product == 0) & (a != 0) & (b != 0)
    return select(underflows, found, signed_zeros(found, product, c, mode))


def _on_lanes(
    exact: Callable[..., Fraction], mode: Mode, near: Values, lanes: Values, *operands: Values
) -> Values:
    """Return `near` with the lanes of a mask computed exactly and rounded once."""
    near, lanes, *wide = np.broadcast_arrays(near, lanes, *operands)
    if not lanes.any():
        return near
    found = np.array(near, np.float64)
    for at in zip(*np.nonzero(lanes), strict=True):
        result = exact(*(Fraction(float(one[at])) for one in wide))
        if result != 0:  # else the near one is it, and has the right sign
            found[at] = round_fraction(result, mode)
    return found


def _finite(*operands: Values) -> Values:
    found: Values = np.bool_(True)
    for one in operands:
        found = found & np.isfinite(one)
    return found


def round_fraction(value: Fraction, mode: Mode = "rn") -> float:
    """Return a fraction, which is not 0, as a float64 rounded in a mode."""
    try:
        near = float(value)
    except OverflowError:
        near = math.inf if value > 0 else -math.inf
    if mode == "rn" or (math.isfinite(near) and Fraction(near) == value):
        if near == 0 and value < 0:
            return -0.0
        return near
    above = near > value
    down = mode == "rm" or (mode == "rz" and value > 0)
    if above and down:
        return math.nextafter(near, -math.inf)
    if not above and not down:
        return math.nextafter(near, math.inf)
    return math.copysign(near, 1 if value > 0 else -1)


def _square_root_exactly(a: Values, mode: Mode) -> Values:
    near = np.array(np.sqrt(a))
    for at in zip(*np.nonzero(np.isfinite(near) & (near != 0)), strict=True):
        root, value = float(near[at]), Fraction(float(a[at]))
        square = Fraction(root) ** 2
        if square > value and mode in ("rz", "rm"):
            near[at] = math.nextafter(root, 0.0)
        elif square < value and mode == "rp":
            near[at] = math.nextafter(root, math.inf)
    return near
