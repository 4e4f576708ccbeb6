"""Matrix products of tiles.

    operands                accumulator     result by default
    f16, bf16, fp8          f32             f32
    f32                     f32             f32, by full products; `input_precision` allows less
    f64                     f64             f64
    int8, uint8             int32           int32, wrapping

Operands of two types promote as operators do; two kinds of fp8, or fp8 with f16, meet in f16, which
holds them exactly.
"""

from __future__ import annotations

from tiledsl.dialects import tile
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dialects.tile import PRECISION
from tiledsl.dtypes import DType, as_dtype, float16, float32, float64, int32, promote, unwrap
from tiledsl.language import casts
from tiledsl.language.operands import as_value, broadcast_to, is_number
from tiledsl.language.types import Shape
from tiledsl.language.value import Operand, Value, build, constant, describe


def dot(
    input: Operand,
    other: Operand,
    acc: Operand | None = None,
    input_precision: str | None = None,
    allow_tf32: bool | None = None,
    max_num_imprecise_acc: int | None = None,
    out_dtype: object = None,
) -> Value:
    """Return acc + input @ other.

    Args:
        input: (M, K), or (B, M, K).
        other: (K, N), or (B, K, N).
        acc: (M, N), or (B, M, N); nothing is added without it. It keeps its own precision if that
            is float32, float64 or int32, and is converted otherwise.
        input_precision: How float32 operands multiply: "ieee" (the default), "tf32" (rounded to 10
            bits first) or "tf32x3" (three products of such halves, nearly exact).
        allow_tf32: Triton's older spelling: True is "tf32".
        max_num_imprecise_acc: Accepted as in Triton; sums always have the accumulator's type.
        out_dtype: The result's type; by default that of `acc`, or of the table above.

    Raises:
        KernelError: Shapes or types do not fit.
    """
    a, b = _operands(input, other)
    shape = _product_shape(a, b)
    accumulator = _accumulator_type(a.dtype)
    given = unwrap(acc)
    result = accumulator
    if unwrap(out_dtype) is not None:
        result = as_dtype(out_dtype)
    elif isinstance(given, Value):
        result = given.dtype
    if result.is_floating() != accumulator.is_floating() or result.is_bool():
        raise KernelError(
            f"expected a result of dot of {a.dtype} to be {_kind(accumulator)}, found {result}"
        )
    made = build(
        tile.DotOp,
        a,
        b,
        _accumulator(given, accumulator, shape),
        dtype=accumulator,
        shape=shape,
        precision=_precision(input_precision, allow_tf32),
        a_unsigned=a.dtype.is_int_unsigned() or None,
        b_unsigned=b.dtype.is_int_unsigned() or None,
    )
    return casts.to(made, result)


def _kind(dtype: DType) -> str:
    return "a float type" if dtype.is_floating() else "an integer type"


def _operands(input: Operand, other: Operand) -> tuple[Value, Value]:
    """Return both operands in a type that matrix instructions or multiply-adds take."""
    pair: list[Value] = []
    for operand, name in ((input, "first"), (other, "second")):
        value = unwrap(operand)
        if not isinstance(value, Value) or value.ndim not in (2, 3):
            raise KernelError(
                f"expected a tile of 2 or 3 dimensions as the {name} operand of dot, "
                f"found {describe(value)}"
            )
        dtype = value.dtype
        if not dtype.is_floating() and not (dtype.is_int() and dtype.primitive_bitwidth == 8):
            raise KernelError(
                "expected operands of dot that are floats or 8-bit integers, "
                f"found {describe(value)}",
                hint="convert them, as x.to(tile.float32)",
            )
        pair.append(value)
    a, b = pair
    if a.dtype is b.dtype or (a.dtype.is_int() and b.dtype.is_int()):
        return a, b
    met = _meet(a.dtype, b.dtype)
    return casts.to(a, met), casts.to(b, met)


def _meet(left: DType, right: DType) -> DType:
    if left.is_fp8() and right.is_fp8():
        return float16
    met = promote(left, right)
    if met is None:  # fp8 with a wider float, which holds it
        met = right if left.is_fp8() else left
    if left.is_int() or right.is_int():
        raise KernelError(
            f"expected operands of dot that are both floats or both 8-bit integers, "
            f"found {left} and {right}"
        )
    return met


def _product_shape(a: Value, b: Value) -> Shape:
    fits = a.ndim == b.ndim and a.shape[-1] == b.shape[-2] and a.shape[:-2] == b.shape[:-2]
    if not fits:
        raise KernelError(
            f"expected operands of dot of shapes (M, K) and (K, N), found {a.shape} and {b.shape}",
            hint=_transposed_hint(a.shape, b.shape),
        )
    return (*a.shape[:-1], b.shape[-1])


def _transposed_hint(a: Shape, b: Shape) -> str | None:
    """Return what to write where the second operand is the wrong way round."""
    if len(a) == len(b) == 2 and a[1] == b[1] and a[1] != b[0]:
        return f"the transposed second operand has shape {b[::-1]}: tile.dot(a, tile.trans(b))"
    return None


def _accumulator_type(dtype: DType) -> DType:
    if dtype.is_int():
        return int32
    return float64 if dtype is float64 else float32


def _accumulator(given: Operand | None, dtype: DType, shape: Shape) -> Value:
    if given is None:
        return constant(0, dtype, shape)
    if is_number(given):
        return constant(casts.cast_number(given, dtype), dtype, shape)
    acc = as_value(given)
    if acc.shape != shape and acc.shape:
        raise KernelError(f"expected `acc` of shape {shape}, found {describe(acc)}")
    if acc.dtype.is_floating() != dtype.is_floating() or acc.dtype.is_bool():
        raise KernelError(f"expected `acc` of {dtype}, found {describe(acc)}")
    return broadcast_to(casts.to(acc, dtype), shape)


def _precision(input_precision: object, allow_tf32: object) -> str:
    named, allowed = unwrap(input_precision), unwrap(allow_tf32)
    if named is not None and allowed is not None:
        raise KernelError("expected `input_precision` or `allow_tf32`, found both")
    if named is None:
        return "tf32" if allowed else "ieee"
    if named not in PRECISION:
        listed = ", ".join(f'"{p}"' for p in PRECISION)
        raise KernelError(f"expected input_precision to be one of {listed}, found {named!r}")
    return str(named)
