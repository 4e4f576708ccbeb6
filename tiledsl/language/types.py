"""From element types and shapes to MLIR types and constant attributes.

A constant is rounded here, once, to the type that it has in the kernel, by the rules of casts:
nearest even, and saturating for fp8 (docs/semantics.md).
"""

from __future__ import annotations

import math
from functools import cache

from mlir import ir

from tiledsl.dialects.context import context
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dialects.types import pointer_to, tile_type
from tiledsl.dtypes import DType

Shape = tuple[int, ...]

MAX_ELEMENTS = 1 << 20
"""Elements of the largest tile: Triton's limit, beyond what the registers of a program hold."""

_INTEGERS = {f"{sign}{bits}": f"i{bits}" for sign in "iu" for bits in (8, 16, 32, 64)}
_FLOATS = {"fp16": "f16", "bf16": "bf16", "fp32": "f32", "fp64": "f64"}
_MLIR = {"i1": "i1", **_INTEGERS, **_FLOATS, "fp8e4m3": "f8E4M3FN", "fp8e5m2": "f8E5M2"}


@cache
def to_ir(dtype: DType) -> ir.Type:
    """Return the MLIR type of a scalar of `dtype`; integers are signless."""
    if dtype.is_ptr():
        return pointer_to(to_ir(dtype.element_ty))
    return ir.Type.parse(_MLIR[dtype.signature], context())


def tile_of(dtype: DType, shape: Shape) -> ir.Type:
    """Return the MLIR type of a tile, or of a scalar where `shape` is ()."""
    return tile_type(shape, to_ir(dtype))


def round_float(value: float, dtype: DType) -> float:
    """Return `value` saturated as a cast to `dtype` does, to be rounded by MLIR."""
    if dtype.is_fp8() and not math.isnan(value):
        return min(max(value, dtype.lowest), dtype.highest)
    return value


def constant_attribute(value: bool | int | float, dtype: DType, shape: Shape) -> ir.Attribute:
    """Return `value` as the attribute of an `arith.constant` of `dtype` and `shape`.

    Raises:
        KernelError: An integer is outside the type's range.
    """
    element = to_ir(dtype)
    if dtype.is_floating():
        one: ir.Attribute = ir.FloatAttr.get(element, round_float(float(value), dtype), _unknown())
    elif dtype.is_bool():
        one = ir.IntegerAttr.get(element, int(bool(value)))
    else:
        one = ir.IntegerAttr.get(element, _bits(int(value), dtype))
    if not shape:
        return one
    return ir.DenseElementsAttr.get_splat(tile_of(dtype, shape), one)


@cache
def _unknown() -> ir.Location:
    return ir.Location.unknown(context())


def _bits(value: int, dtype: DType) -> int:
    """Return an integer as the signed number with the same bits, which signless attributes hold."""
    if not dtype.holds(value):
        raise KernelError(
            f"expected an integer that fits {dtype} ({dtype.lowest} to {dtype.highest}), "
            f"found {value}"
        )
    negative = dtype.is_int_unsigned() and value >> (dtype.primitive_bitwidth - 1)
    return value - (1 << dtype.primitive_bitwidth) if negative else value


def check_shape(shape: Shape) -> None:
    """Require a tile's sizes to be powers of two and its elements not too many.

    Raises:
        KernelError: They are not.
    """
    for size in shape:
        if size < 1 or size & (size - 1):
            hint = None
            if size > 1:
                hint = f"take {1 << size.bit_length()} and mask the elements past {size}"
            raise KernelError(
                f"expected tile sizes that are powers of two, found {shape}", hint=hint
            )
    if math.prod(shape) > MAX_ELEMENTS:
        raise KernelError(
            f"expected a tile of at most {MAX_ELEMENTS} elements, found {math.prod(shape)} "
            f"in {shape}"
        )
