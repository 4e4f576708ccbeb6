"""Programs, constants, ranges, hints: `program_id`, `arange`, `full`, `cdiv`, `assume` and kin."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from tiledsl.dialects import tile
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import as_dtype, bool_, default_dtype, float32, int32, unwrap
from tiledsl.language import casts, elementwise
from tiledsl.language.builder import current
from tiledsl.language.debug import device_assert
from tiledsl.language.operands import (
    Operand,
    as_value,
    broadcast_to,
    is_number,
    promote_values,
    static_int,
    static_shape,
)
from tiledsl.language.types import check_shape
from tiledsl.language.value import Value, build, build_all, constant, describe


def program_id(axis: int) -> Value:
    """Return the index of this program along an axis of the grid.

    Args:
        axis: 0, 1 or 2.

    Returns:
        An int32 scalar: 0 <= id < num_programs(axis).
    """
    return build(tile.ProgramIdOp, dtype=int32, shape=(), axis=_grid_axis(axis, "program_id"))


def num_programs(axis: int) -> Value:
    """Return the number of programs along an axis of the grid, an int32 scalar of at least 1."""
    return build(tile.NumProgramsOp, dtype=int32, shape=(), axis=_grid_axis(axis, "num_programs"))


def _grid_axis(axis: object, function: str) -> int:
    found = static_int(axis, f"`axis` of {function}")
    if not 0 <= found <= 2:
        raise KernelError(f"expected `axis` of {function} to be 0, 1 or 2, found {found}")
    return found


def arange(start: int, end: int) -> Value:
    """Return the integers start, start + 1, ..., end - 1 as an int32 tile.

    Args:
        start: The first, known at compile time.
        end: One past the last, known at compile time; end - start is a power of two.
    """
    first = static_int(start, "`start` of arange")
    last = static_int(end, "`end` of arange")
    if last <= first:
        raise KernelError(f"expected `end` of arange above `start`, found {first} to {last}")
    if not (int32.holds(first) and int32.holds(last)):
        raise KernelError(f"expected bounds of arange that fit int32, found {first} to {last}")
    check_shape((last - first,))
    return build(tile.MakeRangeOp, dtype=int32, shape=(last - first,), start=first, end=last)


def full(shape: Sequence[int] | int, value: Operand, dtype: object = None) -> Value:
    """Return a tile with `value` in every element.

    Args:
        shape: Its sizes, powers of two known at compile time; () gives a scalar.
        value: A number or a run-time scalar, converted to `dtype`.
        dtype: The element type; without it, that of the value (float32, int32 or bool of a number).
    """
    sizes = static_shape(shape)
    value = unwrap(value)
    if not is_number(value):
        scalar = as_value(value)
        if scalar.shape:
            raise KernelError(f"expected a scalar to fill a tile with, found {describe(scalar)}")
        target = scalar.dtype if dtype is None else as_dtype(dtype)
        return broadcast_to(casts.to(scalar, target), sizes)
    target = default_dtype(value) if dtype is None else as_dtype(dtype)
    return constant(casts.cast_number(value, target), target, sizes)


def zeros(shape: Sequence[int] | int, dtype: object = float32) -> Value:
    """Return a tile of zeros; see `full`."""
    return full(shape, 0, dtype)


def zeros_like(value: Operand) -> Value:
    """Return zeros of the shape and type of `value`."""
    return full_like(value, 0)


def full_like(value: Operand, fill: Operand, dtype: object = None) -> Value:
    """Return `fill` in the shape of `value`, of its type unless `dtype` says another."""
    model = as_value(value)
    return full(model.shape, fill, model.dtype if dtype is None else dtype)


def cdiv(x: Operand, div: Operand) -> Any:
    """Return x / div rounded toward positive infinity, exactly, for integers of any sign.

    Python numbers give a Python number, also outside a kernel.
    """
    x, div = unwrap(x), unwrap(div)
    if isinstance(x, Value) or isinstance(div, Value):
        return _ceil_divide(x, div)
    for operand in (x, div):
        if isinstance(operand, bool) or not isinstance(operand, int | np.integer):
            raise KernelError(f"expected integers in cdiv, found {describe(operand)}")
    if div == 0:
        raise KernelError("expected a divisor other than 0 in cdiv")
    return -(-int(x) // int(div))


def _ceil_divide(x: Operand, div: Operand) -> Value:
    a, b = promote_values(x, div, "cdiv")
    if not a.dtype.is_int():
        raise KernelError(f"expected integers in cdiv, found {describe(a)}")
    divisor = div if is_number(div) else b
    quotient = elementwise.floordiv(a, divisor)
    rest = elementwise.not_equal(elementwise.mod(a, divisor), 0)
    return elementwise.add(quotient, casts.to(rest, quotient.dtype))


def static_assert(condition: object, message: str = "") -> None:
    """Stop the compilation with `message` unless a condition known at compile time is true."""
    condition = unwrap(condition)
    if isinstance(condition, Value):
        raise KernelError(
            "expected a condition of static_assert known at compile time, "
            f"found {describe(condition)}",
            hint="tile.device_assert checks at run time",
        )
    if not condition:
        raise KernelError(f"static_assert: {message}" if message else "static_assert failed")


def static_print(*values: object, sep: str = " ", end: str = "\n") -> None:
    """Print while the kernel is compiled; a run-time value prints as its type."""
    builtins.print(*values, sep=sep, end=end)


# --- hints ---------------------------------------------------------------------------------------


def multiple_of(value: Operand, values: Sequence[int] | int) -> Value:
    """Return `value`, with the author's word that it is a multiple, along each dimension.

    Args:
        value: An integer or pointer, scalar or tile. A pointer's multiple is in elements.
        values: One positive integer a dimension: the first value of each run is a multiple of it.

    In a kernel compiled with `debug=True` it is an assertion, too, of an integer that is no tile.
    """
    return _hinted("multiple_of", "divisibility", value, values, powers=False)


def max_contiguous(value: Operand, values: Sequence[int] | int) -> Value:
    """Return `value`, with the author's word that runs of this length step by one.

    Args:
        value: An integer or pointer tile.
        values: One power of two a dimension.
    """
    return _hinted("max_contiguous", "contiguity", value, values, powers=True)


def max_constancy(value: Operand, values: Sequence[int] | int) -> Value:
    """Return `value`, with the author's word that runs of this length hold equal values.

    Args:
        value: An integer or pointer tile.
        values: One power of two a dimension.
    """
    return _hinted("max_constancy", "constancy", value, values, powers=True)


def _hinted(function: str, attribute: str, value: Operand, values: object, powers: bool) -> Value:
    source = as_value(value)
    if not (source.dtype.is_int() or source.dtype.is_ptr()):
        raise KernelError(f"expected integers or pointers in {function}, found {describe(source)}")
    given = unwrap(values)
    listed = cast("Sequence[object]", given if isinstance(given, list | tuple) else [given])
    numbers = [static_int(n, f"`values` of {function}") for n in listed]
    if len(numbers) != max(source.ndim, 1):
        raise KernelError(
            f"expected {max(source.ndim, 1)} `values` of {function} for {describe(source)}, "
            f"found {len(numbers)}"
        )
    for number in numbers:
        if number < 1 or (powers and number & (number - 1)):
            kind = "powers of two" if powers else "at least 1"
            raise KernelError(f"expected `values` of {function} to be {kind}, found {number}")
    if not source.shape and attribute != "divisibility":
        return source
    if current().options.debug and not source.shape and source.dtype.is_int():
        multiple = elementwise.equal(elementwise.mod(source, numbers[0]), 0)
        device_assert(multiple, f"{function}: expected a multiple of {numbers[0]}")
    hint = {attribute: numbers}
    return build(tile.HintOp, source, dtype=source.dtype, shape=source.shape, **hint)


def assume(condition: Operand) -> None:
    """Give the author's word that a run-time scalar condition holds; passes may rely on it.

    In a kernel compiled with `debug=True` it is an assertion.
    """
    condition = unwrap(condition)
    if not isinstance(condition, Value):
        static_assert(condition, "assume: the condition is false at compile time")
        return
    if condition.shape or condition.dtype is not bool_:
        raise KernelError(f"expected a bool scalar in assume, found {describe(condition)}")
    if current().options.debug:
        device_assert(condition, "assume: expected a true condition")
        return  # what relied on it could prove the assertion by it
    build_all(tile.AssumeOp, condition, types=[])


__all__ = [
    "arange",
    "assume",
    "cdiv",
    "full",
    "full_like",
    "max_constancy",
    "max_contiguous",
    "multiple_of",
    "num_programs",
    "program_id",
    "static_assert",
    "static_print",
    "zeros",
    "zeros_like",
]
