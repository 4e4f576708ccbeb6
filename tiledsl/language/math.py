"""Elementwise functions: selection, extrema, exponentials and logarithms, rounding, products.

Arguments broadcast, and promote as operators do. Functions of real numbers take integers and bools
too, as float32 (64-bit integers as float64). Results are within 2 ulp of the real value on every
target unless the kernel is compiled with `fast_math`; `sqrt` and `/` are correctly rounded.
"""

from __future__ import annotations

from enum import Enum

from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import DType, float32, promote, to_inexact, uint32, uint64, unwrap
from tiledsl.language import casts, elementwise
from tiledsl.language.builder import current
from tiledsl.language.operands import (
    as_value,
    broadcast_values,
    is_number,
    operand_dtype,
    operand_pair,
    promote_values,
)
from tiledsl.language.value import Operand, Value, describe, loading, upstream


class PropagateNan(Enum):
    """What `maximum`, `minimum` and `clamp` do with NaN."""

    NONE = 0
    """Ignore it: the result is the other operand."""
    ALL = 1
    """Give NaN where an operand is NaN."""


def cast(
    input: Operand, dtype: object, fp_downcast_rounding: str | None = None, bitcast: bool = False
) -> Value:
    """Return `input` converted to another element type, as `x.to(dtype)` is.

    Args:
        input: A value or a number.
        dtype: The type.
        fp_downcast_rounding: "rtne" or None: floats round to nearest even.
        bitcast: Whether to keep the bits instead of the number.
    """
    return casts.to(as_value(input), dtype, bitcast, fp_downcast_rounding)


# --- selection and extrema -----------------------------------------------------------------------


def where(condition: Operand, x: Operand, y: Operand) -> Value:
    """Return x where the condition is true (not zero), elsewhere y.

    Both x and y are computed; a load that must not happen needs its own mask.
    """
    truth = casts.truth(as_value(condition))
    a, b = promote_values(x, y, "`where`")
    truth, a, b = broadcast_values(truth, a, b, what="`where`")
    return elementwise.select(truth, a, b)


def maximum(x: Operand, y: Operand, propagate_nan: object = PropagateNan.ALL) -> Value:
    """Return the larger of two; NaN where either is, unless `propagate_nan` is NONE."""
    if not _propagates(propagate_nan):
        return fmax(x, y)
    return _extremum("maximum", "arith.max", "arith.maximumf", "arith.ori", x, y)


def minimum(x: Operand, y: Operand, propagate_nan: object = PropagateNan.ALL) -> Value:
    """Return the smaller of two; NaN where either is, unless `propagate_nan` is NONE."""
    if not _propagates(propagate_nan):
        return fmin(x, y)
    return _extremum("minimum", "arith.min", "arith.minimumf", "arith.andi", x, y)


def fmax(x: Operand, y: Operand) -> Value:
    """Return the larger of two; where one is NaN, the other."""
    return _extremum("fmax", "arith.max", "arith.maxnumf", "arith.ori", x, y)


def fmin(x: Operand, y: Operand) -> Value:
    """Return the smaller of two; where one is NaN, the other."""
    return _extremum("fmin", "arith.min", "arith.minnumf", "arith.andi", x, y)


def _propagates(choice: object) -> bool:
    choice = unwrap(choice)
    if not isinstance(choice, PropagateNan | bool):
        raise KernelError(f"expected propagate_nan to be a PropagateNan, found {describe(choice)}")
    return bool(choice.value) if isinstance(choice, PropagateNan) else choice


def _extremum(
    what: str, integer: str, floating: str, logical: str, x: Operand, y: Operand
) -> Value:
    a, b = operand_pair(x, y, f"`{what}`")
    _require_number(a, what)
    if a.dtype.is_floating():
        return upstream(floating, a, b)
    if a.dtype.is_bool():
        return upstream(logical, a, b)
    return upstream(f"{integer}{'s' if a.dtype.is_int_signed() else 'u'}i", a, b)


def clamp(
    x: Operand,
    min: Operand,
    max: Operand,
    propagate_nan: object = PropagateNan.ALL,
) -> Value:
    """Return x held to [min, max]; a NaN stays NaN, unless `propagate_nan` is NONE."""
    return minimum(maximum(x, min, propagate_nan), max, propagate_nan)


def _require_number(value: Value, what: str) -> None:
    if value.dtype.is_ptr():
        raise KernelError(
            f"expected a number as the argument of `{what}`, found {describe(value)}",
            hint=loading(value),
        )


def abs(x: Operand) -> Value:
    """Return the magnitude; that of the most negative integer is itself, as it wraps."""
    return elementwise.absolute(as_value(x))


# --- functions of real numbers -------------------------------------------------------------------


def _inexact(x: Operand, what: str) -> Value:
    """Return the argument of a function of real numbers in the type that it computes in."""
    value = as_value(x)
    _require_number(value, what)
    return casts.to(value, to_inexact(value.dtype))


def _function(name: str, x: Operand) -> Value:
    flags = {"fastmath": current().function_flags}
    return upstream(f"math.{name}", _inexact(x, name), attributes=flags)


def exp(x: Operand) -> Value:
    """Return e^x."""
    return _function("exp", x)


def exp2(x: Operand) -> Value:
    """Return 2^x."""
    return _function("exp2", x)


def expm1(x: Operand) -> Value:
    """Return e^x - 1, exact to the last places near 0 too."""
    return _function("expm1", x)


def log(x: Operand) -> Value:
    """Return the natural logarithm: -inf of 0, NaN of negative numbers."""
    return _function("log", x)


def log2(x: Operand) -> Value:
    """Return the logarithm to base 2."""
    return _function("log2", x)


def log10(x: Operand) -> Value:
    """Return the logarithm to base 10."""
    return _function("log10", x)


def log1p(x: Operand) -> Value:
    """Return log(1 + x), exact to the last places near 0 too."""
    return _function("log1p", x)


def sqrt(x: Operand) -> Value:
    """Return the square root, correctly rounded; NaN of negative numbers."""
    return _function("sqrt", x)


def sqrt_rn(x: Operand) -> Value:
    """Return the square root, correctly rounded even with `fast_math`."""
    return upstream("math.sqrt", _inexact(x, "sqrt_rn"))


def rsqrt(x: Operand) -> Value:
    """Return 1 / sqrt(x)."""
    return _function("rsqrt", x)


def sin(x: Operand) -> Value:
    """Return the sine of x in radians, exactly reduced for every x."""
    return _function("sin", x)


def cos(x: Operand) -> Value:
    """Return the cosine of x in radians, exactly reduced for every x."""
    return _function("cos", x)


def tanh(x: Operand) -> Value:
    """Return the hyperbolic tangent."""
    return _function("tanh", x)


def erf(x: Operand) -> Value:
    """Return the error function."""
    return _function("erf", x)


def sigmoid(x: Operand) -> Value:
    """Return 1 / (1 + e^-x); 16-bit floats are computed in float32 and rounded once."""
    value = _inexact(x, "sigmoid")
    wide = _at_least_single(value)
    # The exponential of -|x| cannot overflow, so that the tail on the left keeps its precision.
    power = exp(-elementwise.absolute(wide))
    return casts.to(where(wide < 0, power, 1.0) / (1.0 + power), value.dtype)


def softmax(
    x: Operand, dim: int | None = None, keep_dims: bool = False, ieee_rounding: bool = False
) -> Value:
    """Return e^x over its sum along a dimension, the largest x subtracted first.

    Args:
        x: A tile.
        dim: The dimension; the first one by default, as in Triton.
        keep_dims: Accepted as in Triton; the result always has the shape of x.
        ieee_rounding: Whether the division is correctly rounded even with `fast_math`.
    """
    from tiledsl.language import reduce  # it needs this module

    value = _inexact(x, "softmax")
    wide = _at_least_single(value)
    axis = 0 if unwrap(dim) is None else dim
    powers = exp(wide - reduce.max(wide, axis, keep_dims=True))
    total = reduce.sum(powers, axis, keep_dims=True)
    divide = div_rn if unwrap(ieee_rounding) else fdiv
    return casts.to(divide(powers, total), value.dtype)


def _at_least_single(value: Value) -> Value:
    return casts.to(value, float32) if value.dtype.primitive_bitwidth < 32 else value


# --- rounding ------------------------------------------------------------------------------------


def _rounding(name: str, x: Operand) -> Value:
    value = as_value(x)
    _require_number(value, name)
    # An integer is its own floor and ceiling.
    return upstream(f"math.{name}", value) if value.dtype.is_floating() else value


def floor(x: Operand) -> Value:
    """Return the greatest integer at most x, in the type of x."""
    return _rounding("floor", x)


def ceil(x: Operand) -> Value:
    """Return the least integer at least x, in the type of x."""
    return _rounding("ceil", x)


def trunc(x: Operand) -> Value:
    """Return x without its fraction, in the type of x."""
    return _rounding("trunc", x)


def rint(x: Operand) -> Value:
    """Return the integer nearest to x, ties to the even one, in the type of x."""
    return _rounding("roundeven", x)


# --- products and quotients ----------------------------------------------------------------------


def fma(x: Operand, y: Operand, z: Operand) -> Value:
    """Return x * y + z, rounded once; integers wrap."""
    dtype = _common([x, y, z], "`fma`")
    a, b, c = (casts.to(as_value(v, dtype), dtype) for v in (x, y, z))
    a, b, c = broadcast_values(a, b, c, what="`fma`")
    return upstream("math.fma", a, b, c) if dtype.is_floating() else a * b + c


def _common(operands: list[Operand], what: str) -> DType:
    """Return the type that several operands promote to; Python numbers are weak."""
    typed = [t for t in map(operand_dtype, operands) if t is not None]
    first = typed[0] if typed else as_value(operands[0]).dtype
    for other in typed[1:]:
        met = promote(first, other)
        if met is None:
            raise KernelError(
                f"expected operands of {what} to have a common type, found {first} and {other}"
            )
        first = met
    for number in (unwrap(v) for v in operands):
        if is_number(number):
            first = as_value(number, first).dtype
    if first.is_ptr():
        raise KernelError(f"expected numbers as arguments of {what}, found {first}")
    return first


def umulhi(x: Operand, y: Operand) -> Value:
    """Return the high half of the product of two integers, taken as unsigned, of 32 or 64 bits."""
    a, b = operand_pair(x, y, "`umulhi`")
    if not a.dtype.is_int() or a.dtype.primitive_bitwidth < 32:
        raise KernelError(f"expected 32- or 64-bit integers for `umulhi`, found {describe(a)}")
    dtype = a.dtype
    if dtype.primitive_bitwidth == 32:
        wide = casts.to(casts.to(a, uint32), uint64) * casts.to(casts.to(b, uint32), uint64)
        return casts.to(wide >> 32, dtype)
    return casts.to(_high_half(casts.to(a, uint64), casts.to(b, uint64)), dtype)


def _high_half(a: Value, b: Value) -> Value:
    """Return the high 64 bits of a 128-bit product, by halves of 32 bits."""
    low = 0xFFFFFFFF
    a0, a1, b0, b1 = a & low, a >> 32, b & low, b >> 32
    middle = a1 * b0 + ((a0 * b0) >> 32)
    other = a0 * b1 + (middle & low)
    return a1 * b1 + (middle >> 32) + (other >> 32)


def fdiv(x: Operand, y: Operand, ieee_rounding: bool = False) -> Value:
    """Return x / y of floats; `ieee_rounding` as `div_rn`."""
    return div_rn(x, y) if unwrap(ieee_rounding) else elementwise.truediv(x, y)


def div_rn(x: Operand, y: Operand) -> Value:
    """Return x / y, correctly rounded even with `fast_math`."""
    a, b = promote_values(x, y, "`div_rn`")
    _require_number(a, "div_rn")
    dtype = to_inexact(a.dtype)
    a, b = broadcast_values(casts.to(a, dtype), casts.to(b, dtype), what="`div_rn`")
    return upstream("arith.divf", a, b)
