"""Trace a few lines of the language into a function, and run it on NumPy arrays.

`traced(f, int32[8], ...)` calls `f` on run-time values of these types inside a builder, as a kernel
would be traced, and returns the module; what `f` returns are the function's results. `evaluated`
runs it, one program on whole tiles, with reductions and scans by their combine functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from mlir import ir

from tests.transforms.arith_evaluator import Array
from tests.transforms.tile_interpreter import Machine, Memory
from tiledsl.dialects import contracts, tile
from tiledsl.dialects.context import context
from tiledsl.dtypes import DType, pointer_type
from tiledsl.language import builder as builders
from tiledsl.language.builder import Builder
from tiledsl.language.types import tile_of
from tiledsl.language.value import Value
from tiledsl.targets.target import Options

Kind = DType | tuple[DType, tuple[int, ...]]


def traced(function: Callable[..., Any], *kinds: Kind, options: Options | None = None) -> ir.Module:
    """Return a module with `function` traced on values of `kinds`, checked.

    Args:
        function: Takes one value a kind; returns a value, a tuple of them, or None.
        *kinds: An element type for a scalar, (element type, shape) for a tile.
        options: What the compilation is asked for.
    """
    pairs = [kind if isinstance(kind, tuple) else (kind, ()) for kind in kinds]
    types = [tile_of(dtype, shape) for dtype, shape in pairs]
    unknown = ir.Location.unknown(context())
    with context(), unknown:
        module = ir.Module.create()
        made = _function(module, types, [])
        block = ir.Block.create_at_start(made.regions[0], types, [unknown] * len(types))
        builder = Builder(module, block, options or Options(), None)
        handles = cast("Sequence[ir.Value]", block.arguments)
        values = [
            Value(handle, dtype, shape, builder.region)
            for handle, (dtype, shape) in zip(handles, pairs, strict=True)
        ]
        try:
            with builders.tracing(builder):
                results = _listed(function(*values))
            handles = [value.handle for value in results]
            builder.create("func.return", handles, [])
        finally:
            # What is left over must die before the module whose values it uses.
            builder.finish()
        signature = ir.FunctionType.get(types, [handle.type for handle in handles])
        made.attributes["function_type"] = ir.TypeAttr.get(signature)
    contracts.check(module, contracts.TILE)
    return module


def _function(module: ir.Module, types: list[ir.Type], results: list[ir.Type]) -> ir.Operation:
    return cast("Any", ir.Operation).create(
        "func.func",
        attributes={
            "sym_name": ir.StringAttr.get("f"),
            "function_type": ir.TypeAttr.get(ir.FunctionType.get(types, results)),
        },
        regions=1,
        ip=ir.InsertionPoint(module.body),
    )


def _listed(result: object) -> list[Value]:
    if result is None:
        return []
    found = list(cast("Sequence[object]", result)) if isinstance(result, tuple | list) else [result]
    for value in found:
        assert isinstance(value, Value), f"expected a value, found {value!r}"
    return cast("list[Value]", found)


class _Program(Machine):
    """A machine that also combines by combine functions and does atomics, one lane at a time."""

    module: ir.Module

    def _ours(self, op: ir.OpView, operands: list[Any]) -> Sequence[Any]:
        match op:
            case tile.ReduceOp():
                return self._reduced(op, operands)
            case tile.ScanOp():
                return self._scanned(op, operands)
            case tile.AtomicRmwOp():
                return [self._rmw(op)]
            case tile.AtomicCasOp():
                return [self._cas(op)]
            case _:
                return super()._ours(op, operands)

    def _combine(self, name: str, first: list[Array], second: list[Array]) -> list[Array]:
        for op in self.module.body.operations:
            if ir.StringAttr(op.operation.attributes["sym_name"]).value == name:
                block = op.operation.regions[0].blocks[0]
                return self._enter(block, [*first, *second])
        raise AssertionError(f"no function {name}")

    def _reduced(self, op: tile.ReduceOp, sources: list[Array]) -> list[Array]:
        total = [s.take(0, op.axis) for s in sources]
        for i in range(1, sources[0].shape[op.axis]):
            total = self._combine(op.combine, total, [s.take(i, op.axis) for s in sources])
        return total

    def _scanned(self, op: tile.ScanOp, sources: list[Array]) -> list[Array]:
        size = sources[0].shape[op.axis]
        order = list(range(size))[:: -1 if op.reverse else 1]
        total = [s.take(order[0], op.axis) for s in sources]
        parts = {order[0]: total}
        for i in order[1:]:
            total = self._combine(op.combine, total, [s.take(i, op.axis) for s in sources])
            parts[i] = total
        return [np.stack([parts[i][k] for i in range(size)], op.axis) for k in range(len(sources))]

    def _rmw(self, op: tile.AtomicRmwOp) -> Array:
        rule = _RMW[op.kind]
        mask = None if op.mask is None else self.values[op.mask]
        return self._each(self.values[op.ptr], self.values[op.value], mask, rule)

    def _cas(self, op: tile.AtomicCasOp) -> Array:
        compare, value = self.values[op.compare], self.values[op.value]
        pairs = np.empty(np.shape(value), object)
        for at in np.ndindex(np.shape(value)):
            pairs[at] = (compare[at], value[at])
        found = self._each(
            self.values[op.ptr],
            pairs,
            None,
            lambda old, pair: pair[1] if old.tobytes() == pair[0].tobytes() else old,
        )
        return found.astype(value.dtype)

    def _each(
        self, pointers: Array, values: Array, mask: Array | None, rule: Callable[..., Any]
    ) -> Array:
        found = np.zeros(np.shape(pointers), values.dtype)
        for at in np.ndindex(np.shape(pointers)):
            if mask is not None and not mask[at]:
                continue
            address = int(pointers[at])
            size = self.memory.arrays[(address >> 40) - 1].dtype.itemsize
            found[at] = old = self.memory.read(address, size)
            self.memory.write(address, size, rule(old, values[at]))
        return found


def _unsigned(function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def rule(old: Any, new: Any) -> Any:
        kind = f"u{old.dtype.itemsize}"
        return np.asarray(function(old.view(kind), new.view(kind))).view(old.dtype)

    return rule


_RMW: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda old, new: old + new,
    "fadd": lambda old, new: old + new,
    "max": np.maximum,
    "min": np.minimum,
    "fmax": np.maximum,
    "fmin": np.minimum,
    "umax": _unsigned(np.maximum),
    "umin": _unsigned(np.minimum),
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "xchg": lambda old, new: new,
}


def evaluated(function: Callable[..., Any], *arguments: Any) -> Any:
    """Trace `function` on the types of `arguments` and run it on them.

    Args:
        function: As of `traced`.
        *arguments: Arrays and NumPy scalars, which are values; or `Pointer`s.

    Returns:
        An array, with the author's type; a tuple of them for a tuple; None for None.
    """
    dtypes: list[DType] = []

    def noted(*values: Value) -> Any:
        result = function(*values)
        dtypes.extend(value.dtype for value in _listed(result))
        return result

    arrays = [a.array for a in arguments if isinstance(a, Pointer)]
    module = traced(noted, *(_kind(a) for a in arguments))
    machine = _Program(Memory([a.view(_signless(a.dtype)) for a in arrays]))
    machine.module = module
    given: list[Array] = []
    count = 0
    for a in arguments:
        if isinstance(a, Pointer):
            given.append(machine.memory.pointer(count))
            count += 1
        else:
            array = np.asarray(a)
            given.append(array.view(_signless(array.dtype)))
    results = machine.run(module, *given)
    found = [np.asarray(r).view(d.numpy) for r, d in zip(results, dtypes, strict=True)]
    return None if not found else found[0] if len(found) == 1 else tuple(found)


class Pointer:
    """An argument that is a pointer to the first element of an array."""

    def __init__(self, array: Array) -> None:
        self.array = array


def _kind(argument: Any) -> Kind:
    from tiledsl.dtypes import as_dtype

    if isinstance(argument, Pointer):
        return pointer_type(as_dtype(argument.array.dtype))
    array = np.asarray(argument)
    return (as_dtype(array.dtype), array.shape)


def _signless(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"i{dtype.itemsize}") if dtype.kind == "u" else dtype
