"""What functions of the language do with their arguments: to values, to one type, to one shape."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any, TypeGuard, cast

import numpy as np

from tiledsl.dialects import tile
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import DType, as_dtype, default_dtype, int32, promote, promote_weak, unwrap
from tiledsl.language import casts
from tiledsl.language.builder import current
from tiledsl.language.indexing import expand_dims
from tiledsl.language.positions import text_of
from tiledsl.language.types import Shape, check_shape
from tiledsl.language.value import Number, Operand, Value, build, constant, describe


def is_number(value: object) -> TypeGuard[Number]:
    """Return whether `value` is a weak Python number."""
    return isinstance(value, bool | int | float) and not isinstance(value, np.generic)


def as_value(value: Operand, like: DType | None = None, shape: Shape = ()) -> Value:
    """Return any operand as a `Value`.

    Args:
        value: A Value, a Python number (weak), a NumPy scalar (of its own type), a constexpr.
        like: The type that a Python number promotes with; without it a number takes its own.
        shape: The shape that a number is given; that of a Value stays.

    Raises:
        KernelError: It is none of these, or a number does not fit the type.
    """
    value = unwrap(value)
    if isinstance(value, Value):
        return value
    if isinstance(value, np.generic):
        return constant(cast("Number", value.item()), as_dtype(cast("Any", value).dtype), shape)
    if not is_number(value):
        raise KernelError(f"expected a tile or a number, found {describe(value)}")
    dtype = default_dtype(value) if like is None else _weak_dtype(like, value)
    return constant(value, dtype, shape)


def _weak_dtype(like: DType, value: Number) -> DType:
    kind = bool if isinstance(value, bool) else float if isinstance(value, float) else int
    dtype = promote_weak(like, kind)
    if dtype is None:
        raise KernelError(f"expected an operand for {like}, found {describe(value)}")
    if dtype.is_int() and not dtype.holds(int(value)):
        raise KernelError(
            f"expected a number that fits {dtype} ({dtype.lowest} to {dtype.highest}), "
            f"found {value}",
            hint=f"convert the other operand first, as x.to(tile.{default_dtype(value)})",
        )
    return dtype


def static_int(value: object, what: str) -> int:
    """Return an argument that must be an integer known at compile time.

    Args:
        value: The argument.
        what: Its name in messages, as "`end` of arange".

    Raises:
        KernelError: It is not.
    """
    value = unwrap(value)
    if isinstance(value, np.integer):
        value = value.item()
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    hint = None
    if isinstance(value, Value):
        hint = "make it a parameter annotated `tile.constexpr`"
    raise KernelError(
        f"expected {what} to be an integer known at compile time, found {describe(value)}",
        hint=hint,
    )


def static_shape(shape: object, what: str = "shape") -> Shape:
    """Return a `shape` argument: an integer or a sequence of them, all powers of two.

    Raises:
        KernelError: It is none.
    """
    shape = unwrap(shape)
    if isinstance(shape, list | tuple):
        items = cast("Sequence[object]", shape)
        sizes = tuple(static_int(n, f"each size in {what}") for n in items)
    else:
        sizes = (static_int(shape, what),)
    check_shape(sizes)
    return sizes


# --- types and shapes of several operands --------------------------------------------------------


def operand_dtype(value: Operand) -> DType | None:
    """Return the type of an operand, or None for a weak Python number."""
    value = unwrap(value)
    if isinstance(value, Value):
        return value.dtype
    return as_dtype(cast("Any", value).dtype) if isinstance(value, np.generic) else None


def promote_values(left: Operand, right: Operand, what: str) -> tuple[Value, Value]:
    """Return two operands converted to the type that JAX's table gives; shapes stay.

    Args:
        left: One operand.
        right: The other.
        what: The operation in messages, as "`+`".

    Raises:
        KernelError: The table has no common type.
    """
    return _promoted(left, right, what, ())


def operand_pair(left: Operand, right: Operand, what: str) -> tuple[Value, Value]:
    """Return two operands in one type, by JAX's table, and one shape, by NumPy's broadcasting."""
    shapes = [x.shape for x in (unwrap(left), unwrap(right)) if isinstance(x, Value)]
    shape = shapes[0] if len(shapes) == 1 else ()
    first, second = broadcast_values(*_promoted(left, right, what, shape), what=what)
    return first, second


def _promoted(left: Operand, right: Operand, what: str, shape: Shape) -> tuple[Value, Value]:
    """Return both operands in one type; numbers become constants of `shape`."""
    first = as_value(left, operand_dtype(right), shape)
    second = as_value(right, first.dtype, shape)
    if weak_meets(first, second.dtype):
        first = casts.to(first, second.dtype)
    elif weak_meets(second, first.dtype):
        second = casts.to(second, first.dtype)
    dtype = promote(first.dtype, second.dtype)
    if dtype is None:
        raise KernelError(
            f"expected operands of {what} to have a common type, "
            f"found {first.dtype} and {second.dtype}",
            hint=_promotion_hint(first.dtype, second.dtype),
        )
    return casts.to(first, dtype), casts.to(second, dtype)


def weak_meets(value: Value, dtype: DType) -> bool:
    """Return whether a number that a loop carries takes a wider integer type that it meets."""
    return value.weak and dtype.is_int() and dtype.primitive_bitwidth > int32.primitive_bitwidth


def _promotion_hint(left: DType, right: DType) -> str | None:
    if left.is_fp8() or right.is_fp8():
        other = right if left.is_fp8() else left
        target = "float32" if other.is_fp8() else other.name
        return f"8-bit floats convert only when told to: x.to(tile.{target})"
    return None


def broadcast_shapes(*shapes: Shape) -> Shape | None:
    """Return the shape that NumPy broadcasts to, or None."""
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        return None


def broadcast_to(value: Value, shape: Shape) -> Value:
    """Return `value` repeated to `shape`, as NumPy's `broadcast_to`.

    Raises:
        KernelError: It does not broadcast to that shape, or the shape has too many elements.
    """
    if value.shape == shape:
        return value
    check_shape(shape)
    if not value.shape:
        return build(tile.SplatOp, value, dtype=value.dtype, shape=shape)
    if broadcast_shapes(value.shape, shape) != shape:
        raise KernelError(f"expected a shape that broadcasts to {shape}, found {value.shape}")
    while value.ndim < len(shape):
        value = expand_dims(value, 0)
    if value.shape == shape:
        return value
    return build(tile.BroadcastOp, value, dtype=value.dtype, shape=shape)


def broadcast_values(*values: Value, what: str) -> list[Value]:
    """Return values brought to one shape, as NumPy broadcasts; types stay.

    Raises:
        KernelError: The shapes do not fit together.
    """
    shapes = [value.shape for value in values]
    if all(shape == shapes[0] for shape in shapes):
        return list(values)
    shape = broadcast_shapes(*shapes)
    if shape is None:
        raise KernelError(
            f"expected operands of {what} to broadcast, found {_listed(shapes)}",
            hint=_broadcast_hint(values),
        )
    return [broadcast_to(value, shape) for value in values]


def _listed(shapes: Sequence[Shape]) -> str:
    return ", ".join(map(str, shapes[:-1])) + f" and {shapes[-1]}"


def _broadcast_hint(values: Sequence[Value]) -> str | None:
    """Return what to write where one operand needs a new last dimension to fit."""
    if len(values) != 2:
        return None
    for i in (1, 0):
        value, other = values[i], values[1 - i]
        widened = (*value.shape, 1)
        name = _operand_text(i)
        if name and value.ndim == 1 < other.ndim and broadcast_shapes(widened, other.shape):
            return f"{name}[:, None] has shape {widened}"
    return None


def _operand_text(index: int) -> str | None:
    """Return the source of an operand of the binary expression being executed, if it is a name."""
    span = current().span()
    try:
        node = ast.parse(text_of(span).strip(), mode="eval").body if span else None
    except SyntaxError:
        return None
    if isinstance(node, ast.BinOp):
        side = (node.left, node.right)[index]
        return ast.unparse(side) if isinstance(side, ast.Name | ast.Attribute) else None
    return None
