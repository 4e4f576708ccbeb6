"""Give a leaf of a variable a type, and a value of that type inside a region.

A Python number is weak here too: it takes the type of the run-time value that it meets if the weak
promotion gives that very type, and its own default (int32, int64 if need be, float32, bool) when
it meets none.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
from mlir import ir

from tiledsl.control_flow.trees import UNSET, children, is_leaf, rebuild
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dialects.tile import BitcastOp
from tiledsl.dtypes import (
    DType,
    as_dtype,
    bool_,
    default_dtype,
    float32,
    int32,
    int64,
    promote_weak,
)
from tiledsl.language.builder import Region, current
from tiledsl.language.operands import weak_meets
from tiledsl.language.types import constant_attribute, tile_of, to_ir
from tiledsl.language.value import Number, TileType, Value, describe


def own_type(leaf: object) -> TileType:
    """Return the type that a leaf has by itself."""
    if isinstance(leaf, Value):
        return leaf.type
    if isinstance(leaf, np.generic):
        return TileType(as_dtype(cast("Any", leaf).dtype), ())
    return TileType(default_dtype(cast("Number", leaf)), ())


def is_weak_integer(leaf: object) -> bool:
    """Return whether a leaf is a Python integer, which takes a wider type if it meets one."""
    return isinstance(leaf, int) and not isinstance(leaf, bool | np.generic)


def _is_weak(leaf: object) -> bool:
    return not isinstance(leaf, Value | np.generic)


def fits(leaf: object, type_: TileType) -> bool:
    """Return whether a leaf is of a type, or a weak number that takes it."""
    if not _is_weak(leaf):
        return own_type(leaf) == type_ or (
            isinstance(leaf, Value) and not type_.shape and weak_meets(leaf, type_.dtype)
        )
    if type_.shape or type_.dtype.is_ptr():
        return False
    number = cast("Number", leaf)
    kind = bool if isinstance(number, bool) else float if isinstance(number, float) else int
    dtype = type_.dtype
    if dtype.is_bool() != (kind is bool) or promote_weak(dtype, kind) is not dtype:
        return False
    return not dtype.is_int() or dtype.holds(int(number))


def common_type(first: object, second: object) -> TileType | None:
    """Return the type that two leaves can both have, or None."""
    if _is_weak(first) and _is_weak(second):
        return TileType(_weak_type(cast("Number", first), cast("Number", second)), ())
    for leaf, other in ((first, second), (second, first)):
        if not _is_weak(leaf) and fits(other, own_type(leaf)):
            return own_type(leaf)
    return None


def _weak_type(first: Number, second: Number) -> DType:
    if isinstance(first, float) or isinstance(second, float):
        return float32
    if isinstance(first, bool) and isinstance(second, bool):
        return bool_
    low, high = sorted((int(first), int(second)))
    widest = default_dtype(low if -low > high else high)
    if not widest.holds(low):
        raise KernelError(f"expected integers that fit one type, found {first} and {second}")
    return widest


def materialize(leaf: object, type_: TileType, region: Region) -> ir.Value:
    """Return a leaf as an MLIR value of a type, for use at the end of a closed or open region.

    Raises:
        KernelError: It was made in a region that has ended before.
    """
    if isinstance(leaf, Value):
        handle = leaf.held_at(region)
        if leaf.dtype is type_.dtype:
            return handle
        return current().create("arith.extsi", [handle], [to_ir(type_.dtype)], region=region).result
    number = cast("Number", leaf.item()) if isinstance(leaf, np.generic) else cast("Number", leaf)
    attribute = constant_attribute(number, type_.dtype, ())
    made = current().create(
        "arith.constant", [], [to_ir(type_.dtype)], {"value": attribute}, region
    )
    return made.results[0]


def blank(value: object, region: Region | None = None) -> object:
    """Return `value` with zeros for run-time leaves, made at the end of a region.

    It stands for a result that is not there on this path, and that nobody reads.
    """
    if isinstance(value, Value):
        return _zero(value.type, region or current().region)
    if is_leaf(value):
        return value
    held = children(value)
    if held is None:
        return value
    return rebuild(value, {key: blank(item, region) for key, item in held.items()})


def _zero(type_: TileType, region: Region) -> Value:
    builder = current()
    dtype = int64 if type_.dtype.is_ptr() else type_.dtype
    attribute = constant_attribute(0, dtype, type_.shape)
    types = [tile_of(dtype, type_.shape)]
    made = builder.create("arith.constant", [], types, {"value": attribute}, region)
    handle = made.results[0]
    if type_.dtype.is_ptr():
        pointers = tile_of(type_.dtype, type_.shape)
        location = builder.location()
        handle = BitcastOp.build(handle, results=[pointers], loc=location, ip=region.ip).result
    return Value(handle, type_.dtype, type_.shape, region)


class Missing(NamedTuple):
    """Why a variable has no value, and what the author can do about it."""

    words: str
    hint: str


def begin_hint(name: str, value: object, where: str) -> str:
    """Return how to give a variable a value before it gets one like `value`.

    Args:
        name: The variable.
        value: What it would hold then.
        where: Before what, as "the loop".
    """
    text = _zero_text(value)
    if text is None:
        return f"give `{name}` a value before {where}: {leaf_text(value)}"
    return f"give `{name}` a value before {where}, as {name} = {text}"


def _zero_text(value: object) -> str | None:
    """Return an expression for a zero of the type of `value`, None of a pointer or container."""
    if not is_leaf(value) or own_type(value).dtype.is_ptr():
        return None
    dtype, shape = own_type(value).dtype, own_type(value).shape
    plain = {bool_: "False", int32: "0", float32: "0.0"}.get(dtype)
    if not shape and plain is not None:
        return plain
    return f"tile.zeros({shape}, tile.{'int1' if dtype.is_bool() else dtype})"


def leaf_text(value: object) -> str:
    """Say what a variable holds, for a message that names its types."""
    if value is UNSET:
        return "no value"
    return own_type(value).words if is_leaf(value) else describe(value)
