"""Conversions between element types: `x.to(dtype)`.

Numbers convert as NumPy's do where NumPy defines it: integers wrap, floats round to nearest even, a
bool is 0 or 1, anything but zero is true (NaN too), and the source's signedness decides. Where GPUs
force a choice: float to integer truncates, saturates and gives 0 for NaN; to fp8 saturates to the
largest finite value. Pointers convert to other pointers, to and from 64-bit integers.
"""

from __future__ import annotations

import math

from mlir import ir

from tiledsl.dialects import tile
from tiledsl.dialects.context import context
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import DType, as_dtype, float32, int64, unwrap
from tiledsl.language.value import Number, Value, build, constant, describe, loading, upstream

# arith's numbering of comparison predicates.
_NE, _UNE = 1, 13


def to(
    value: Value, dtype: object, bitcast: bool = False, fp_downcast_rounding: str | None = None
) -> Value:
    """Return `value` converted to `dtype`; see `Value.to`.

    Raises:
        KernelError: There is no such conversion.
    """
    target = as_dtype(dtype)
    if unwrap(fp_downcast_rounding) not in (None, "rtne"):
        raise KernelError(
            f'expected fp_downcast_rounding to be None or "rtne", found {fp_downcast_rounding!r}'
        )
    if target is value.dtype:
        return value
    if unwrap(bitcast):
        return _same_bits(value, target)
    if value.dtype.is_ptr() or target.is_ptr():
        return _pointer(value, target)
    if target.is_bool():
        return _truth(value)
    if value.dtype.is_floating():
        return _from_float(value, target)
    return _from_integer(value, target)


def truth(value: Value) -> Value:
    """Return whether each element is anything but zero."""
    return value if value.dtype.is_bool() else _truth(value)


def _same_bits(value: Value, target: DType) -> Value:
    if value.dtype.primitive_bitwidth != target.primitive_bitwidth:
        raise KernelError(
            f"expected a bitcast between types of one width, found {value.dtype} "
            f"({value.dtype.primitive_bitwidth} bits) to {target} ({target.primitive_bitwidth})"
        )
    if value.dtype.is_int() and target.is_int():
        return Value(value.handle, target, value.shape, value.region)
    return build(tile.BitcastOp, value, dtype=target, shape=value.shape)


def _pointer(value: Value, target: DType) -> Value:
    source = value.dtype
    fits = (source.is_ptr() or source.is_int()) and (target.is_ptr() or target.is_int())
    if not fits or source.primitive_bitwidth != 64 or target.primitive_bitwidth != 64:
        raise KernelError(
            f"expected a pointer to become another pointer or a 64-bit integer, found {source} "
            f"to {target}",
            hint=None if target.is_ptr() else loading(value),
        )
    return build(tile.BitcastOp, value, dtype=target, shape=value.shape)


def _truth(value: Value) -> Value:
    if value.dtype.is_ptr():
        value = _pointer(value, int64)
    if value.dtype.is_fp8():
        value = to(value, float32)
    zero = constant(0, value.dtype, value.shape)
    name, predicate = ("arith.cmpf", _UNE) if value.dtype.is_floating() else ("arith.cmpi", _NE)
    return compare(name, predicate, value, zero)


def compare(name: str, predicate: int, left: Value, right: Value) -> Value:
    """Return the comparison `arith.cmpi` or `arith.cmpf` of two values of one type and shape."""
    from tiledsl.dtypes import bool_

    attribute = ir.IntegerAttr.get(ir.IntegerType.get_signless(64, context()), predicate)
    return upstream(name, left, right, dtype=bool_, attributes={"predicate": attribute})


def _from_float(value: Value, target: DType) -> Value:
    if target.is_floating():
        source = value.dtype
        widens = target.primitive_bitwidth > source.primitive_bitwidth and not source.is_fp8()
        if widens:
            return upstream("arith.extf", value, dtype=target)
        return build(tile.CastOp, value, dtype=target, shape=value.shape)
    signed = target.is_int_signed()
    return build(tile.CastOp, value, dtype=target, shape=value.shape, signed=signed)


def _from_integer(value: Value, target: DType) -> Value:
    signed = value.dtype.is_int_signed()
    if target.is_fp8():
        # There is no direct conversion; float32 holds every integer below fp8's largest value.
        return to(_from_integer(value, float32), target)
    if target.is_floating():
        return upstream("arith.sitofp" if signed else "arith.uitofp", value, dtype=target)
    old, new = value.dtype.primitive_bitwidth, target.primitive_bitwidth
    if new > old:
        return upstream("arith.extsi" if signed else "arith.extui", value, dtype=target)
    if new < old:
        return upstream("arith.trunci", value, dtype=target)
    return Value(value.handle, target, value.shape, value.region)


def cast_number(value: Number, dtype: DType) -> Number:
    """Return a Python number as `dtype` holds it, by the rules of casts; rounding is left to MLIR.

    Raises:
        KernelError: An integer does not fit the integer type: a literal that cannot be meant.
    """
    if dtype.is_bool():
        return value != 0
    if dtype.is_floating():
        return float(value)
    if dtype.is_ptr():
        raise KernelError(f"expected a number type, found {dtype}")
    if isinstance(value, float):
        if math.isnan(value):
            return 0
        return int(min(max(value, dtype.lowest), dtype.highest))
    if not dtype.holds(int(value)):
        raise KernelError(
            f"expected a number that fits {dtype} ({dtype.lowest} to {dtype.highest}), "
            f"found {describe(value)}"
        )
    return int(value)
