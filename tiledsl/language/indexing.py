"""New dimensions of tiles: `x[:, None]`, `x[None, ...]`, and the permutation behind `x.T`."""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType
from typing import Any, cast

from tiledsl.dialects import tile
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.language.value import Value, build, describe


def expand_dims(value: Value, axis: int) -> Value:
    """Return `value` with a dimension of size 1 before dimension `axis` (0 <= axis <= rank)."""
    shape = (*value.shape[:axis], 1, *value.shape[axis:])
    if not value.shape:
        return build(tile.SplatOp, value, dtype=value.dtype, shape=shape)
    return build(tile.ExpandDimsOp, value, dtype=value.dtype, shape=shape, axis=axis)


def permuted(value: Value, order: Sequence[int]) -> Value:
    """Return `value` with dimension i being its dimension order[i]."""
    if len(order) < 2:
        return value
    shape = tuple(value.shape[d] for d in order)
    return build(tile.TransOp, value, dtype=value.dtype, shape=shape, order=list(order))


def indexed(value: Value, key: object) -> Value:
    """Return `value[key]`, where the key holds `None`, `:` and `...` alone."""
    keys = cast("tuple[object, ...]", key if isinstance(key, tuple) else (key,))
    kept = sum(1 for k in keys if k is not None and not isinstance(k, EllipsisType))
    for k in keys:
        if not (k is None or isinstance(k, EllipsisType) or _is_whole(k)):
            raise KernelError(
                f"expected `None` and `:` as indices of a tile, found {_index_text(k)}",
                hint="elements are picked while they are loaded, by their pointers",
            )
    if kept > value.ndim or sum(isinstance(k, EllipsisType) for k in keys) > 1:
        raise KernelError(
            f"expected at most {value.ndim} indices of {describe(value)}, found {kept}"
        )
    axis, skipped = 0, value.ndim - kept
    for k in keys:
        if k is None:
            value = expand_dims(value, axis)
        axis += skipped if isinstance(k, EllipsisType) else 1
    return value


def _is_whole(key: object) -> bool:
    """Return whether an index is `:`; a value's own `==` must not be asked."""
    return isinstance(key, slice) and key == slice(None)


def _index_text(key: object) -> str:
    if isinstance(key, slice):
        bounds = cast("tuple[object, object]", (cast("Any", key).start, cast("Any", key).stop))
        parts = ["" if p is None else str(p) for p in bounds]
        return "`" + ":".join(parts) + "`"
    return describe(key)
