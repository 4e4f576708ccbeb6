"""Reductions along an axis, or over a whole tile: `sum`, `max`, `argmax`, `any`, `reduce`, ...

Values are NumPy's: NaN propagates through `max` and `min`, and the first NaN wins `argmax` and
`argmin`; ties go to the first index, which is an int32. Sums of integers narrower than 32 bits are
of 32 bits with the same sign, a bool counts as int32 (JAX's rule with 32-bit defaults). Sums of
16-bit and 8-bit floats accumulate in float32 and round once, at the end; the order of float
additions is free, so the last bits may differ between targets.

The `kind` of a `tile.reduce` is not empty where the function commutes, too: "add", "mul", "max",
"min", "umax", "umin", "and", "or", "xor", "argmax", "argmin". An author's function need not
commute: its arguments keep the elements' order.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, cast

from tiledsl.dialects import tile
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dialects.op import SLOTS
from tiledsl.dtypes import DType, as_dtype, float32, int32, uint32, unwrap
from tiledsl.language import casts
from tiledsl.language.combine import Combine, combine_symbol
from tiledsl.language.math import maximum, minimum, where
from tiledsl.language.operands import broadcast_to, static_int
from tiledsl.language.value import Operand, Value, build, build_all, describe, loading


def reduce(
    input: Operand | Sequence[Operand],
    axis: int | None,
    combine_fn: Combine,
    keep_dims: bool = False,
) -> Any:
    """Combine the elements along an axis.

    Args:
        input: A tile, or a tuple of tiles of one shape, which combine together.
        axis: Which dimension disappears, negative ones counting from the end; None for all of them,
            in row-major order.
        combine_fn: An associative function: (a, b) -> c, or (a0, a1, ..., b0, b1, ...) ->
            (c0, c1, ...) for a tuple; a's elements come before b's. It is traced once, on scalars.
        keep_dims: Whether reduced dimensions stay, with size 1.

    Returns:
        A tile without the axis, a scalar where no dimension is left; a tuple of them for a tuple.

    Raises:
        KernelError: The shapes differ, there is no such axis, or the function does not fit.
    """
    several = isinstance(input, tuple | list)
    tiles = [_tile(v, "reduce") for v in (cast("Sequence[Operand]", input) if several else [input])]
    kind = _known_kind(combine_fn, tiles)
    results = _reduce(tiles, axis, combine_fn, kind, keep_dims, own=bool(kind))
    return tuple(results) if several else results[0]


def _known_kind(function: Combine, tiles: Sequence[Value]) -> str:
    """Return the kind of an operator or function of the language that commutes."""
    if len(tiles) != 1:
        return ""
    unsigned = "u" if _is_unsigned(tiles[0].dtype) else ""
    operators = cast("Any", operator)  # whose stubs leave some types open
    named: dict[object, str] = {
        operators.add: "add",
        operators.mul: "mul",
        operators.and_: "and",
        operators.or_: "or",
        operators.xor: "xor",
        maximum: f"{unsigned}max",
        minimum: f"{unsigned}min",
    }
    try:
        return named.get(function, "")
    except TypeError:  # no hash: not one of them
        return ""


def _is_unsigned(dtype: DType) -> bool:
    return dtype.is_int_unsigned() or dtype.is_bool()


def check_group(tiles: Sequence[Value], verb: str) -> None:
    """Require tiles that combine together to be of one shape and not too many.

    Args:
        tiles: What was given.
        verb: "reduce" or "scan".

    Raises:
        KernelError: They are not.
    """
    if not 1 <= len(tiles) <= SLOTS:
        raise KernelError(f"expected 1 to {SLOTS} tiles to {verb} together, found {len(tiles)}")
    shape = tiles[0].shape
    for other in tiles[1:]:
        if other.shape != shape:
            raise KernelError(
                f"expected tiles of one shape to {verb} together, found {shape} and {other.shape}"
            )


def _tile(value: Operand, what: str) -> Value:
    value = unwrap(value)
    if not isinstance(value, Value) or not value.shape:
        raise KernelError(f"expected a tile as the argument of `{what}`, found {describe(value)}")
    if value.dtype.is_ptr():
        hint = loading(value)
        raise KernelError(f"expected numbers to `{what}`, found {describe(value)}", hint=hint)
    return value


def static_axis(axis: object, shape: tuple[int, ...]) -> int:
    """Return an axis argument as 0 <= axis < rank.

    Raises:
        KernelError: There is no such dimension.
    """
    number = static_int(axis, "`axis`")
    if not -len(shape) <= number < len(shape):
        raise KernelError(
            f"expected an axis from {-len(shape)} to {len(shape) - 1}, found {number} for a tile "
            f"of shape {shape}"
        )
    return number % len(shape)


def _reduce(
    tiles: Sequence[Value],
    axis: object,
    function: Combine,
    kind: str,
    keep_dims: object,
    own: bool = True,
) -> list[Value]:
    check_group(tiles, "reduce")
    shape = tiles[0].shape
    axis = unwrap(axis)
    if axis is None:
        flat = (prod(shape),)
        tiles = [_reshaped(t, flat) for t in tiles]
        at, left = 0, ()
        kept = (1,) * len(shape)
    else:
        at = static_axis(axis, shape)
        left = (*shape[:at], *shape[at + 1 :])
        kept = (*shape[:at], 1, *shape[at + 1 :])
    dtypes = [t.dtype for t in tiles]
    results = build_all(
        tile.ReduceOp,
        tiles,
        types=[(dtype, left) for dtype in dtypes],
        axis=at,
        combine=combine_symbol(function, dtypes, own),
        kind=kind or None,
    )
    if not unwrap(keep_dims):
        return results
    return [_reshaped(r, kept) if r.shape else broadcast_to(r, kept) for r in results]


def _reshaped(value: Value, shape: tuple[int, ...]) -> Value:
    if value.shape == shape:
        return value
    return build(tile.ReshapeOp, value, dtype=value.dtype, shape=shape)


# --- the functions combined with -----------------------------------------------------------------


def add(a: Value, b: Value) -> Value:
    """Combine by +."""
    return a + b


def mul(a: Value, b: Value) -> Value:
    """Combine by *."""
    return a * b


def _and(a: Value, b: Value) -> Value:
    return a & b


def _or(a: Value, b: Value) -> Value:
    return a | b


def _xor(a: Value, b: Value) -> Value:
    return a ^ b


def _picker(better: Callable[[Value, Value], Value]) -> Combine:
    """Return the function that keeps the better of two (value, index) pairs, ties the first index.

    A NaN is better than any number, as NumPy has it. The function commutes.
    """

    def pick(a: Value, i: Value, b: Value, j: Value) -> tuple[Value, Value]:
        wins, ties = better(a, b), a == b
        if a.dtype.is_floating():
            a_nan, b_nan = a != a, b != b
            wins, ties = wins | (a_nan & ~b_nan), ties | (a_nan & b_nan)
        first = wins | (ties & (i < j))
        return where(first, a, b), where(first, i, j)

    return pick


_largest = _picker(operator.gt)
_largest.__name__ = "argmax"
_smallest = _picker(operator.lt)
_smallest.__name__ = "argmin"


# --- sums ----------------------------------------------------------------------------------------


def sum_dtype(dtype: DType) -> DType:
    """Return the type of a sum of elements of `dtype`."""
    if dtype.is_bool():
        return int32
    if dtype.is_int() and dtype.primitive_bitwidth < 32:
        return int32 if dtype.is_int_signed() else uint32
    return dtype


def accumulating(value: Value) -> Value:
    """Return `value` in the type that its sums and products accumulate in."""
    small = value.dtype.is_floating() and value.dtype.primitive_bitwidth < 32
    return casts.to(value, float32 if small else sum_dtype(value.dtype))


def sum(
    input: Operand, axis: int | None = None, keep_dims: bool = False, dtype: object = None
) -> Value:
    """Sum along an axis, or over all elements where `axis` is None.

    Args:
        input: A tile.
        axis: Which dimension disappears.
        keep_dims: Whether it stays, with size 1.
        dtype: Convert the elements to this type first. By default bools and integers narrower than
            32 bits are summed as 32-bit integers of their sign; floats keep their type, narrow
            ones accumulate in float32.
    """
    value = _tile(input, "sum")
    if unwrap(dtype) is not None:
        value = casts.to(value, as_dtype(dtype))
    [total] = _reduce([accumulating(value)], axis, add, "add", keep_dims)
    return casts.to(total, sum_dtype(value.dtype))


def xor_sum(input: Operand, axis: int | None = None, keep_dims: bool = False) -> Value:
    """Combine integers or bools along an axis by exclusive or."""
    value = _bitwise(input, "xor_sum")
    return _reduce([value], axis, _xor, "xor", keep_dims)[0]


def reduce_or(input: Operand, axis: int | None = None, keep_dims: bool = False) -> Value:
    """Combine integers or bools along an axis by inclusive or."""
    value = _bitwise(input, "reduce_or")
    return _reduce([value], axis, _or, "or", keep_dims)[0]


def _bitwise(input: Operand, what: str) -> Value:
    value = _tile(input, what)
    if value.dtype.is_floating():
        raise KernelError(f"expected integers or bools to `{what}`, found {describe(value)}")
    return value


def any(input: Operand, axis: int | None = None, keep_dims: bool = False) -> Value:
    """Return whether some element along an axis is not zero (NaN is not)."""
    truth = casts.truth(_tile(input, "any"))
    return _reduce([truth], axis, _or, "or", keep_dims)[0]


def all(input: Operand, axis: int | None = None, keep_dims: bool = False) -> Value:
    """Return whether no element along an axis is zero."""
    truth = casts.truth(_tile(input, "all"))
    return _reduce([truth], axis, _and, "and", keep_dims)[0]


# --- extrema -------------------------------------------------------------------------------------


def max(
    input: Operand,
    axis: int | None = None,
    return_indices: bool = False,
    return_indices_tie_break_left: bool = True,
    keep_dims: bool = False,
) -> Any:
    """Return the largest element along an axis, NaN where there is one.

    Args:
        input: A tile.
        axis: Which dimension disappears; None for all.
        return_indices: Whether to return (values, indices); indices are int32, of the flattened
            tile where `axis` is None.
        return_indices_tie_break_left: Accepted as in Triton; ties always go to the first index.
        keep_dims: Whether the dimension stays, with size 1.
    """
    value = _tile(input, "max")
    if unwrap(return_indices):
        return tuple(_arg(value, axis, _largest, "argmax", keep_dims))
    kind = "umax" if _is_unsigned(value.dtype) else "max"
    return _reduce([value], axis, maximum, kind, keep_dims)[0]


def min(
    input: Operand,
    axis: int | None = None,
    return_indices: bool = False,
    return_indices_tie_break_left: bool = True,
    keep_dims: bool = False,
) -> Any:
    """Return the smallest element along an axis, NaN where there is one; see `max`."""
    value = _tile(input, "min")
    if unwrap(return_indices):
        return tuple(_arg(value, axis, _smallest, "argmin", keep_dims))
    kind = "umin" if _is_unsigned(value.dtype) else "min"
    return _reduce([value], axis, minimum, kind, keep_dims)[0]


def argmax(
    input: Operand, axis: int | None = None, tie_break_left: bool = True, keep_dims: bool = False
) -> Value:
    """Return the index of the largest element along an axis, an int32.

    The first NaN wins, if there is one; ties go to the first index (whatever `tie_break_left`).
    With `axis` None the index is into the flattened tile.
    """
    return _arg(_tile(input, "argmax"), axis, _largest, "argmax", keep_dims)[1]


def argmin(
    input: Operand, axis: int | None = None, tie_break_left: bool = True, keep_dims: bool = False
) -> Value:
    """Return the index of the smallest element along an axis; see `argmax`."""
    return _arg(_tile(input, "argmin"), axis, _smallest, "argmin", keep_dims)[1]


def _arg(value: Value, axis: object, pick: Combine, kind: str, keep_dims: object) -> list[Value]:
    shape = value.shape
    if unwrap(axis) is None:
        flat = _reshaped(value, (prod(shape),))
        results = _reduce([flat, _positions(flat.shape, 0)], 0, pick, kind, False)
        if not unwrap(keep_dims):
            return results
        return [broadcast_to(r, (1,) * len(shape)) for r in results]
    at = static_axis(axis, shape)
    return _reduce([value, _positions(shape, at)], at, pick, kind, keep_dims)


def _positions(shape: tuple[int, ...], axis: int) -> Value:
    """Return a tile of `shape` whose elements are their indices along `axis`."""
    size = shape[axis]
    line = build(tile.MakeRangeOp, dtype=int32, shape=(size,), start=0, end=size)
    around = tuple(size if d == axis else 1 for d in range(len(shape)))
    return broadcast_to(_reshaped(line, around), shape)
