"""Build branches and loops of `scf` from functions that build what is in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from mlir import ir

Make = Callable[[], Sequence[ir.Value]]
MakeFrom = Callable[[Sequence[ir.Value]], Sequence[ir.Value]]


def _create(
    name: str, results: Sequence[ir.Type], operands: Sequence[ir.Value], regions: int
) -> ir.Operation:
    create = cast("Any", ir.Operation).create
    return create(name, results=list(results), operands=list(operands), regions=regions)


def _block(op: ir.Operation, region: int, types: Sequence[ir.Type]) -> ir.Block:
    blocks = cast("Any", op.regions[region].blocks)
    return blocks.append(*types, arg_locs=[op.location] * len(types))


def if_else(
    condition: ir.Value, then: Make, otherwise: Make, types: Sequence[ir.Type]
) -> list[ir.Value]:
    """Build an `scf.if` that gives values of `types`; gives its results."""
    op = _create("scf.if", types, [condition], 2)
    for region, make in enumerate((then, otherwise)):
        with ir.InsertionPoint(_block(op, region, [])):
            _create("scf.yield", [], make(), 0)
    return list(op.results)


def for_each(
    bounds: Sequence[ir.Value], inits: Sequence[ir.Value], body: Callable[..., Sequence[ir.Value]]
) -> list[ir.Value]:
    """Build an `scf.for`; `body` takes the variable and the list of what is carried."""
    types = [value.type for value in inits]
    op = _create("scf.for", types, [*bounds, *inits], 1)
    block = _block(op, 0, [bounds[0].type, *types])
    with ir.InsertionPoint(block):
        counter, *carried = block.arguments
        _create("scf.yield", [], body(counter, carried), 0)
    return list(op.results)


def while_(
    inits: Sequence[ir.Value], goes_on: Callable[[Sequence[ir.Value]], ir.Value], body: MakeFrom
) -> list[ir.Value]:
    """Build an `scf.while` that carries the same values all around."""
    types = [value.type for value in inits]
    op = _create("scf.while", types, inits, 2)
    before, after = (_block(op, region, types) for region in (0, 1))
    with ir.InsertionPoint(before):
        carried = list(before.arguments)
        _create("scf.condition", [], [goes_on(carried), *carried], 0)
    with ir.InsertionPoint(after):
        _create("scf.yield", [], body(list(after.arguments)), 0)
    return list(op.results)
