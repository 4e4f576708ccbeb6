"""Combine functions of reductions and scans: an author's function, traced once on scalars.

`tile.reduce` and `tile.scan` name a private `func.func` over scalars. It is traced as a helper is,
once for each function and element types of a kernel. A target applies it to whole registers of
elements, so it must be straight-line code without effects: run-time branches in it become selects
here, run-time loops and memory accesses are the author's mistake.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, cast
from weakref import WeakKeyDictionary

from mlir import ir

from tiledsl.dialects.context import context
from tiledsl.dialects.diagnostics import KernelError, Span
from tiledsl.dialects.op import Op, Symbol
from tiledsl.dtypes import DType
from tiledsl.language import casts
from tiledsl.language.builder import Builder, Region, current
from tiledsl.language.operands import is_number
from tiledsl.language.types import to_ir
from tiledsl.language.value import Value, constant, describe

Combine = Callable[..., Any]

# The bindings' stubs leave the attributes' types open.
_create = cast("Any", ir.Operation).create

_Made = dict[tuple[int, tuple[DType, ...]], tuple[Combine, Symbol]]
_made: WeakKeyDictionary[Builder, _Made] = WeakKeyDictionary()
"""What each kernel's module has; the function is kept so that its `id` stays taken."""


def combine_symbol(function: Combine, dtypes: Sequence[DType], own: bool = False) -> Symbol:
    """Return the symbol of `function` over scalars of `dtypes`, tracing it at its first use.

    Args:
        function: Takes twice as many scalars as there are types, the earlier elements' first, and
            returns as many as there are types.
        dtypes: Element types.
        own: Whether it is one of this package's, which need no rewriting of control flow.

    Raises:
        KernelError: It returns something else, or is no straight-line code of its arguments.
    """
    builder = current()
    made = _made.setdefault(builder, {})
    key = (id(function), tuple(dtypes))
    if key not in made:
        made[key] = function, _trace(builder, function, dtypes, own)
    return made[key][1]


def _trace(builder: Builder, function: Combine, dtypes: Sequence[DType], own: bool) -> Symbol:
    types = [to_ir(dtype) for dtype in dtypes]
    region = builder.open("a combine function", [*types, *types])
    handles = cast("Sequence[ir.Value]", region.block.arguments)
    arguments = [
        Value(handle, dtype, (), region)
        for handle, dtype in zip(handles, [*dtypes, *dtypes], strict=True)
    ]
    result = function(*arguments) if own else _call(function, arguments)
    returned = _checked(result, dtypes, function)
    builder.create("func.return", [value.handle for value in returned], [])
    builder.close()
    _flatten(region.block)
    _require_pure(region.block, function)
    name = _free_name(builder, function, dtypes)
    _place(builder, region, name, types)
    return Symbol(name)


def _call(function: Combine, arguments: Sequence[Value]) -> object:
    from tiledsl.trace import call_helper  # it needs this module

    inner = getattr(function, "fn", function)
    _check_arity(inner, len(arguments))
    return call_helper(inner, arguments, {})


def _check_arity(function: Combine, count: int) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # some built-in functions tell nothing
        return
    try:
        signature.bind(*[None] * count)
    except TypeError:
        name, half = _name(function), _counted(count // 2)
        raise KernelError(
            f"expected `{name}` to take {count} arguments, as it combines {half} with {half}, "
            f"found {name}{signature}"
        ) from None


def _checked(result: object, dtypes: Sequence[DType], function: Combine) -> list[Value]:
    """Return the results as values of the element types; Python numbers take them."""
    items = (
        cast("list[object]", list(cast("Any", result)))
        if (isinstance(result, tuple | list))
        else [result]
    )
    if len(items) != len(dtypes):
        raise KernelError(
            f"expected `{_name(function)}` to return {_counted(len(dtypes))}, as it combines, "
            f"found {_counted(len(items))}"
        )
    values = list[Value]()
    for item, dtype in zip(items, dtypes, strict=True):
        if is_number(item):
            item = constant(casts.cast_number(item, dtype), dtype)
        if not isinstance(item, Value) or item.dtype is not dtype or item.shape:
            raise KernelError(
                f"expected `{_name(function)}` to return a {dtype} scalar, as it combines, "
                f"found {describe(item)}"
            )
        values.append(item)
    return values


def _counted(count: int) -> str:
    return "one value" if count == 1 else f"{count} values"


def _name(function: Combine) -> str:
    return str(getattr(function, "__name__", "the combine function"))


def _free_name(builder: Builder, function: Combine, dtypes: Sequence[DType]) -> str:
    plain = re.sub(r"\W", "", _name(function)) or "combine"
    name = base = "_".join([plain, *(dtype.signature for dtype in dtypes)])
    taken = {
        ir.StringAttr(op.operation.attributes["sym_name"]).value
        for op in builder.module.body.operations
        if "sym_name" in op.operation.attributes
    }
    count = 1
    while name in taken:
        count += 1
        name = f"{base}_{count}"
    return name


def _place(builder: Builder, region: Region, name: str, types: Sequence[ir.Type]) -> None:
    signature = ir.FunctionType.get([*types, *types], list(types), context())
    made = _create(
        "func.func",
        attributes={
            "sym_name": ir.StringAttr.get(name, context()),
            "sym_visibility": ir.StringAttr.get("private", context()),
            "function_type": ir.TypeAttr.get(signature, context()),
        },
        regions=1,
        loc=builder.location(),
        ip=ir.InsertionPoint(builder.module.body),
    )
    region.block.append_to(made.regions[0])


# --- straight-line code --------------------------------------------------------------------------


def _flatten(block: ir.Block) -> None:
    """Turn run-time branches into selects: everything in a combine function can be speculated."""
    for op in list(block.operations):
        for region in op.operation.regions:
            for inner in region.blocks:
                _flatten(inner)
        if op.operation.name == "scf.if":
            _select(op)


def _select(branch: ir.OpView) -> None:
    condition = branch.operation.operands[0]
    yielded: list[list[ir.Value]] = []
    for region in branch.operation.regions:
        if not list(region.blocks):
            continue
        *body, end = region.blocks[0].operations
        for op in body:
            op.operation.move_before(branch.operation)
        yielded.append(list(end.operation.operands))
    for i, result in enumerate(branch.operation.results):
        operands = [condition, yielded[0][i], yielded[1][i]]
        made = _create(
            "arith.select",
            results=[result.type],
            operands=operands,
            loc=branch.location,
            ip=ir.InsertionPoint(branch),
        )
        result.replace_all_uses_with(made.results[0])
    branch.operation.erase()


def _require_pure(block: ir.Block, function: Combine) -> None:
    inside = {block.arguments[i] for i in range(len(block.arguments))}
    for op in block.operations:
        span = Span.of(op.location)
        if op.operation.name.startswith("scf."):
            raise KernelError(
                f"expected `{_name(function)}` to have no run-time loop, as it combines", span
            )
        if isinstance(op, Op) and not op.pure:
            raise KernelError(
                f"expected `{_name(function)}` to access no memory, as it combines", span
            )
        if any(operand not in inside for operand in op.operation.operands):
            raise KernelError(
                f"expected `{_name(function)}` to use its arguments alone, as it combines, "
                "found a run-time value from around it",
                span,
            )
        inside.update(op.operation.results)
