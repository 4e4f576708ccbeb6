"""Loops and branches: the same `scf` ops, carrying what tiles and pointers have become.

Conditions and bounds are scalars, the same in every thread, so no thread leaves the others; but for
combine functions, which each thread runs on values of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlir import ir
from mlir.dialects import scf

from tiledsl.dialects import tgpu
from tiledsl.targets.gpu.lowering import Handler, Lowering, Role


def _parts(
    lowering: Lowering, olds: Sequence[ir.Value], like: Sequence[ir.Value]
) -> list[ir.Value]:
    return [
        part for old, target in zip(olds, like, strict=True) for part in lowering.parts(old, target)
    ]


def _types(lowering: Lowering, olds: Sequence[ir.Value]) -> list[ir.Type]:
    return [type_ for old in olds for type_ in lowering.part_types(old)]


def _bind(lowering: Lowering, olds: Sequence[ir.Value], values: Sequence[ir.Value]) -> None:
    rest = iter(values)
    for old in olds:
        lowering.bind(old, rest)


def _body(
    lowering: Lowering, block: ir.Block, at: ir.Block, targets: Sequence[ir.Value], skip: int = 0
) -> list[ir.Value]:
    """Lower a block's ops into `at`; return what its terminator hands to `targets`."""
    *ops, last = block.operations
    with ir.InsertionPoint(at):
        for op in ops:
            lowering.lower(op)
        return _parts(lowering, list(last.operation.operands)[skip:], targets)


def _for(lowering: Lowering, op: Any) -> None:
    operation = op.operation
    old = operation.regions[0].blocks[0]
    counter, *carried = old.arguments
    bounds = [lowering.decision(v) for v in list(operation.operands)[:3]]
    inits = _parts(lowering, list(operation.operands)[3:], carried)
    made = scf.ForOp(*bounds, inits)
    if "unsignedCmp" in operation.attributes:
        made.operation.attributes["unsignedCmp"] = operation.attributes["unsignedCmp"]
    lowering.bind(counter, iter([made.induction_variable]))
    _bind(lowering, carried, list(made.inner_iter_args))
    yields = _body(lowering, old, made.body, carried)
    with ir.InsertionPoint(made.body):
        scf.YieldOp(yields)
    _bind(lowering, list(operation.results), list(made.operation.results))


def _if(lowering: Lowering, op: Any) -> None:
    operation = op.operation
    results = list(operation.results)
    has_else = len(operation.regions) > 1 and len(operation.regions[1].blocks) > 0
    condition = lowering.decision(operation.operands[0])
    made = scf.IfOp(condition, _types(lowering, results), has_else=has_else)
    sides = [made.then_block, made.else_block] if has_else else [made.then_block]
    parts = isinstance(operation.operands[0].owner, tgpu.ProducerOp)
    roles = (Role.PRODUCER, Role.CONSUMER) if parts else (lowering.role, lowering.role)
    for region, block, role in zip(operation.regions, sides, roles, strict=False):
        with lowering.playing(role):
            yields = _body(lowering, region.blocks[0], block, results)
        with ir.InsertionPoint(block):
            scf.YieldOp(yields)
    _bind(lowering, results, list(made.operation.results))


def _while(lowering: Lowering, op: Any) -> None:
    operation = op.operation
    before, after = (region.blocks[0] for region in operation.regions)
    started, passed = list(before.arguments), list(after.arguments)
    results = list(operation.results)
    made = scf.WhileOp(
        _types(lowering, results), _parts(lowering, list(operation.operands), started)
    )
    location = operation.location
    types = [_types(lowering, started), _types(lowering, passed)]
    blocks = [
        region.blocks.append(*some, arg_locs=[location] * len(some))
        for region, some in zip(made.operation.regions, types, strict=True)
    ]
    _bind(lowering, started, list(blocks[0].arguments))
    handed = _body(lowering, before, blocks[0], passed, skip=1)
    condition = list(before.operations)[-1].operation.operands[0]
    with ir.InsertionPoint(blocks[0]):
        scf.ConditionOp(lowering.decision(condition), handed)
    _bind(lowering, passed, list(blocks[1].arguments))
    again = _body(lowering, after, blocks[1], started)
    with ir.InsertionPoint(blocks[1]):
        scf.YieldOp(again)
    _bind(lowering, results, list(made.operation.results))


HANDLERS: dict[str, Handler] = {"scf.for": _for, "scf.if": _if, "scf.while": _while}
