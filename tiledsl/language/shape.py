"""Functions that change a tile's shape and keep its elements: `reshape`, `trans`, `join`, `cat`.

Elements keep their row-major order unless a function says otherwise. Sizes are powers of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import cast

from tiledsl.dialects import tile
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import unwrap
from tiledsl.language import indexing
from tiledsl.language.operands import (
    as_value,
    broadcast_values,
    promote_values,
    static_int,
    static_shape,
)
from tiledsl.language.operands import broadcast_to as _broadcast_to
from tiledsl.language.types import Shape, check_shape
from tiledsl.language.value import Operand, Value, build, build_all, describe


def _listed(arguments: tuple[object, ...]) -> list[object]:
    """Return integers given one by one or as one sequence: `f(x, 2, 4)`, `f(x, (2, 4))`."""
    if len(arguments) == 1:
        only = unwrap(arguments[0])
        if isinstance(only, tuple | list):
            return list(cast("Sequence[object]", only))
        return [only]
    return list(arguments)


# --- broadcasting --------------------------------------------------------------------------------


def broadcast(input: Operand, other: Operand) -> tuple[Value, Value]:
    """Return two values repeated to their common shape, as NumPy broadcasts."""
    first, second = broadcast_values(as_value(input), as_value(other), what="`broadcast`")
    return first, second


def broadcast_to(input: Operand, *shape: object) -> Value:
    """Return a value repeated to a shape, as NumPy's `broadcast_to`.

    Raises:
        KernelError: It does not broadcast to that shape.
    """
    return _broadcast_to(as_value(input), static_shape(_listed(shape)))


def expand_dims(input: Operand, axis: int | Sequence[int]) -> Value:
    """Return a value with dimensions of size 1 at the given places of the result's shape."""
    value = as_value(input)
    axes = [static_int(a, "`axis`") for a in _listed((axis,))]
    rank = value.ndim + len(axes)
    for a in axes:
        if not -rank <= a < rank:
            raise KernelError(f"expected an axis from {-rank} to {rank - 1}, found {a}")
    places = sorted(a % rank for a in axes)
    if len(set(places)) != len(places):
        raise KernelError(f"expected axes that differ, found {tuple(axes)}")
    for place in places:
        value = indexing.expand_dims(value, place)
    return value


# --- reshaping -----------------------------------------------------------------------------------


def reshape(input: Operand, *shape: object, can_reorder: bool = False) -> Value:
    """Return the same elements, in row-major order, under another shape.

    Args:
        input: A tile, or a scalar for a shape of one element.
        *shape: The sizes, or one sequence of them; one may be -1 and follows from the others.
        can_reorder: Accepted as in Triton; the order is kept in any case.

    Raises:
        KernelError: The number of elements differs.
    """
    value = as_value(input)
    sizes = [static_int(n, "each size in shape") for n in _listed(shape)]
    if sizes.count(-1) == 1:
        rest = prod(n for n in sizes if n != -1)
        if rest > 0 and value.numel % rest == 0:
            sizes[sizes.index(-1)] = value.numel // rest
    wanted = tuple(sizes)
    if any(n < 0 for n in wanted) or prod(wanted) != value.numel:
        raise KernelError(
            f"expected a shape of {value.numel} elements, as {value.shape} has, found {wanted}"
        )
    check_shape(wanted)
    return _reshaped(value, wanted)


def _reshaped(value: Value, shape: Shape) -> Value:
    if value.shape == shape:
        return value
    if not value.shape:
        return _broadcast_to(value, shape)
    if not shape:
        return _only_element(value)
    return build(tile.ReshapeOp, value, dtype=value.dtype, shape=shape)


def _only_element(value: Value) -> Value:
    """Return the scalar in a tile of one element."""
    from tiledsl.language import reduce  # it needs math, which needs this floor

    while value.shape:
        value = cast("Value", reduce.max(value, axis=0))
    return value


def view(input: Operand, *shape: object) -> Value:
    """Return `reshape(input, *shape)`: Triton's older name, with the order kept."""
    return reshape(input, *shape)


def ravel(input: Operand) -> Value:
    """Return the elements in row-major order as a one-dimensional tile."""
    value = as_value(input)
    return _reshaped(value, (value.numel,))


# --- permuting -----------------------------------------------------------------------------------


def trans(input: Operand, *dims: object) -> Value:
    """Return the tile with its dimensions permuted; the last two swap if none are given.

    Args:
        input: A tile.
        *dims: Dimension i of the result is dimension dims[i] of the input.
    """
    value = as_value(input)
    if not dims:
        if value.ndim < 2:
            raise KernelError(f"expected a tile of 2 or more dimensions, found {describe(value)}")
        order = (*range(value.ndim - 2), value.ndim - 1, value.ndim - 2)
        return indexing.permuted(value, order)
    return permute(value, *dims)


def permute(input: Operand, *dims: object) -> Value:
    """Return the tile whose dimension i is dimension dims[i] of the input.

    Raises:
        KernelError: `dims` is no permutation of the dimensions.
    """
    value = as_value(input)
    order = [static_int(d, "each dimension") for d in _listed(dims)]
    wrapped = [d % value.ndim if -value.ndim <= d < value.ndim else d for d in order]
    if sorted(wrapped) != list(range(value.ndim)):
        raise KernelError(
            f"expected a permutation of {value.ndim} dimensions, found {tuple(order)}"
        )
    return indexing.permuted(value, wrapped)


def flip(input: Operand, dim: int | None = None) -> Value:
    """Return the tile with its elements along one dimension (the last by default) in reverse."""
    value = as_value(input)
    axis = value.ndim - 1 if unwrap(dim) is None else static_int(dim, "`dim`")
    if not value.shape or not -value.ndim <= axis < value.ndim:
        raise KernelError(f"expected a dimension of {describe(value)}, found {axis}")
    axis %= value.ndim
    shape, size = value.shape, value.shape[axis]
    # Reversing is inverting each bit of the index: halves of each bit's dimension change places.
    bits = size.bit_length() - 1
    spread = (*shape[:axis], *(2,) * bits, *shape[axis + 1 :])
    value = _reshaped(value, spread)
    for bit in range(axis, axis + bits):
        order = [d for d in range(len(spread)) if d != bit] + [bit]
        low, high = split(indexing.permuted(value, order))
        swapped = join(high, low)
        back = [order.index(d) for d in range(len(spread))]
        value = indexing.permuted(swapped, back)
    return _reshaped(value, shape)


# --- joining and splitting -----------------------------------------------------------------------


def join(a: Operand, b: Operand) -> Value:
    """Return two values stacked along a new last dimension of size 2; they broadcast."""
    first, second = broadcast_values(*promote_values(a, b, "`join`"), what="`join`")
    if not first.shape:
        first, second = _broadcast_to(first, (1,)), _broadcast_to(second, (1,))
        return _reshaped(_joined(first, second), (2,))
    return _joined(first, second)


def _joined(first: Value, second: Value) -> Value:
    return build(tile.JoinOp, first, second, dtype=first.dtype, shape=(*first.shape, 2))


def split(a: Operand) -> tuple[Value, Value]:
    """Return the two tiles that `join` joined: the elements at 0 and at 1 of the last dimension.

    Raises:
        KernelError: The last dimension is not of size 2.
    """
    value = as_value(a)
    if not value.shape or value.shape[-1] != 2:
        raise KernelError(f"expected a last dimension of size 2, found {describe(value)}")
    scalar = value.ndim == 1
    if scalar:
        value = _reshaped(value, (1, 2))
    kind = (value.dtype, value.shape[:-1])
    first, second = build_all(tile.SplitOp, value, types=[kind, kind])
    return (_only_element(first), _only_element(second)) if scalar else (first, second)


def interleave(a: Operand, b: Operand) -> Value:
    """Return a tile twice as long along the last dimension: a's and b's elements in turn."""
    joined = join(a, b)
    if joined.ndim == 1:
        return joined
    *outer, last, two = joined.shape
    return _reshaped(joined, (*outer, last * two))


def cat(input: Operand, other: Operand, can_reorder: bool = False, dim: int = 0) -> Value:
    """Return two tiles of one shape, one after the other along a dimension.

    Args:
        input: The first half.
        other: The second half.
        can_reorder: Accepted as in Triton; the order is kept in any case.
        dim: The dimension, which becomes twice as large.

    Raises:
        KernelError: The shapes differ, or there is no such dimension.
    """
    first, second = promote_values(input, other, "`cat`")
    if not first.shape or first.shape != second.shape:
        raise KernelError(
            f"expected two tiles of one shape, found {describe(first)} and {describe(second)}"
        )
    axis = static_int(dim, "`dim`")
    if not -first.ndim <= axis < first.ndim:
        raise KernelError(
            f"expected a dimension from {-first.ndim} to {first.ndim - 1}, found {axis}"
        )
    axis %= first.ndim
    shape = tuple(2 * n if d == axis else n for d, n in enumerate(first.shape))
    check_shape(shape)
    return build(tile.CatOp, first, second, dtype=first.dtype, shape=shape, axis=axis)
