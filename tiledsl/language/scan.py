"""Inclusive prefix combinations along an axis, and histograms.

Element i of a scan combines elements 0 to i; with `reverse`, elements i to the last one. Types and
rounding are those of the reductions (see `reduce`): narrow integers are summed in 32 bits, narrow
floats accumulate in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from tiledsl.dialects import tile
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import as_dtype, bool_, int32, unwrap
from tiledsl.language import casts
from tiledsl.language.combine import Combine, combine_symbol
from tiledsl.language.operands import as_value, broadcast_to, static_int
from tiledsl.language.reduce import (
    accumulating,
    add,
    check_group,
    mul,
    static_axis,
    sum,
    sum_dtype,
)
from tiledsl.language.types import MAX_ELEMENTS
from tiledsl.language.value import Operand, Value, build, build_all, describe


def associative_scan(
    input: Operand | Sequence[Operand],
    axis: int,
    combine_fn: Combine,
    reverse: bool = False,
) -> Any:
    """Combine each element with all before it along an axis.

    Args:
        input: A tile, or a tuple of tiles of one shape, which combine together.
        axis: The dimension, negative ones counting from the end.
        combine_fn: An associative function, as of `tile.reduce`: a's elements come before b's in
            the scan's direction.
        reverse: Whether to begin at the end.

    Returns:
        A tile of the input's shape and type; a tuple of them for a tuple.
    """
    several = isinstance(input, tuple | list)
    tiles = [_tile(v, "associative_scan") for v in (cast("Any", input) if several else [input])]
    results = _scan(tiles, axis, combine_fn, reverse, kind="", own=False)
    return tuple(results) if several else results[0]


def cumsum(input: Operand, axis: int = 0, reverse: bool = False, dtype: object = None) -> Value:
    """Return the running sums along an axis; `dtype` as of `tile.sum`."""
    return _running(input, axis, reverse, dtype, add, "add", "cumsum")


def cumprod(input: Operand, axis: int = 0, reverse: bool = False, dtype: object = None) -> Value:
    """Return the running products along an axis; `dtype` as of `tile.sum`."""
    return _running(input, axis, reverse, dtype, mul, "mul", "cumprod")


def _running(
    input: Operand,
    axis: object,
    reverse: object,
    dtype: object,
    function: Combine,
    kind: str,
    what: str,
) -> Value:
    value = _tile(input, what)
    if unwrap(dtype) is not None:
        value = casts.to(value, as_dtype(dtype))
    [result] = _scan([accumulating(value)], axis, function, reverse, kind, own=True)
    return casts.to(result, sum_dtype(value.dtype))


def _scan(
    tiles: Sequence[Value], axis: object, function: Combine, reverse: object, kind: str, own: bool
) -> list[Value]:
    check_group(tiles, "scan")
    shape = tiles[0].shape
    return build_all(
        tile.ScanOp,
        tiles,
        types=[(t.dtype, t.shape) for t in tiles],
        axis=static_axis(axis, shape),
        combine=combine_symbol(function, [t.dtype for t in tiles], own),
        kind=kind or None,
        reverse=True if unwrap(reverse) else None,
    )


def _tile(value: Operand, what: str) -> Value:
    value = unwrap(value)
    if not isinstance(value, Value) or not value.shape or value.dtype.is_ptr():
        raise KernelError(
            f"expected a tile of numbers as the argument of `{what}`, found {describe(value)}"
        )
    return value


def histogram(input: Operand, num_bins: int, mask: Operand | None = None) -> Value:
    """Count how often each of 0, 1, ..., num_bins - 1 occurs.

    Args:
        input: A one-dimensional tile of integers; elements outside the bins are not counted.
        num_bins: A power of two known at compile time.
        mask: Which elements count; all by default.

    Returns:
        An int32 tile of shape (num_bins,).

    Raises:
        KernelError: The input is no such tile, or input times bins exceeds the largest tile.
    """
    value = _tile(input, "histogram")
    bins = static_int(num_bins, "`num_bins`")
    if value.ndim != 1 or not value.dtype.is_int():
        raise KernelError(
            "expected a one-dimensional tile of integers as the argument of `histogram`, "
            f"found {describe(value)}"
        )
    if bins < 1 or bins & (bins - 1) or bins * value.numel > MAX_ELEMENTS:
        raise KernelError(
            "expected `num_bins` to be a power of two and at most "
            f"{MAX_ELEMENTS // value.numel} for {value.numel} elements, found {bins}"
        )
    line = build(tile.MakeRangeOp, dtype=int32, shape=(bins,), start=0, end=bins)
    # int32 holds every bin; a wider element is compared in its own type.
    wide = casts.to(value, int32) if value.dtype.primitive_bitwidth < 32 else value
    matches = wide[:, None] == casts.to(line, wide.dtype)[None, :]
    if mask is not None:
        kept = as_value(mask)
        if kept.dtype is not bool_:
            raise KernelError(f"expected `mask` to be a bool tile, found {describe(kept)}")
        matches = matches & broadcast_to(kept, value.shape)[:, None]
    return sum(matches, axis=0)
