"""Turn masks that are always true into no mask at all.

A ragged kernel masks every access, yet most programs of a grid, and many kernels altogether, never
meet the edge: block sizes divide the extents, or a loop's bound says as much. A mask costs
registers, predicates and vector width, so conditions that ranges or loops' bounds prove are folded
to true or false; an access whose mask is true loses it, one whose mask is false is not made.

Before: any valid `tile` or `tgpu` module; best while divisions are not yet expanded.
After: no load, store or atomic has a mask that is known throughout. Nothing else changes.

    %t = "tile.load"(%p, %m, %other) ...   // %m: 0..127 < 128
becomes
    %t = "tile.load"(%p) ...
"""

from __future__ import annotations

from mlir import ir

from tiledsl.dialects import tgpu, tile
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.types import element_of, is_float, is_pointer
from tiledsl.transforms.axis_facts import AxisFacts
from tiledsl.transforms.axis_rules import integer_width
from tiledsl.transforms.comparisons import Comparisons
from tiledsl.transforms.fold import constant, integer
from tiledsl.transforms.rewrite import attributes_of

Masked = tile.LoadOp | tile.StoreOp | tile.AtomicRmwOp | tgpu.AsyncCopyOp


def drop_true_masks(module: ir.Module) -> None:
    """Run the pass described above on `module`, in place."""
    _fold_comparisons(module)
    facts = AxisFacts(module)
    # All facts first: an analysis does not outlive the ops that it was made of.
    known = [(op, _truths(op, facts)) for op in operations(module.operation)]
    for op, truths in known:
        if isinstance(op, Masked) and truths:
            _drop(op, truths[0])
        elif isinstance(op, tile.AssertOp) and truths == [True]:
            op.operation.erase()
        elif op.operation.name in ("arith.andi", "arith.ori") and truths:
            _fold_logic(op.operation, truths)


def _fold_comparisons(module: ir.Module) -> None:
    """Replace comparisons that are proved by their result."""
    compared = [op for op in operations(module.operation) if op.operation.name == "arith.cmpi"]
    if not compared:
        return
    comparisons = Comparisons(AxisFacts(module))
    decided = [comparisons.decide(op.operation) for op in compared]
    for op, known in zip(compared, decided, strict=True):
        if known is not None:
            result = op.operation.results[0]
            result.replace_all_uses_with(integer(op, result.type, int(known)))
            op.operation.erase()


def _truths(op: ir.OpView, facts: AxisFacts) -> list[bool | None]:
    """Give what is known of a mask, of a condition, or of both sides of a logic op."""

    def truth(value: ir.Value) -> bool | None:
        known = facts.of(value).value
        return None if known is None else bool(known)

    if isinstance(op, Masked):
        return [] if op.mask is None else [truth(op.mask)]
    if isinstance(op, tile.AssertOp):
        return [truth(op.condition)]
    operation = op.operation
    logic = operation.name in ("arith.andi", "arith.ori")
    if logic and integer_width(operation.results[0].type) == 1:
        return [truth(value) for value in operation.operands]
    return []


def _fold_logic(op: ir.Operation, truths: list[bool | None]) -> None:
    """Replace a logic op by the side that decides it, or that is left."""
    neutral = op.name == "arith.andi"
    for known, this, other in zip(truths, op.operands, reversed(list(op.operands)), strict=True):
        if known is not None:
            op.results[0].replace_all_uses_with(other if known == neutral else this)
            return


def _drop(op: Masked, mask: bool | None) -> None:
    if mask is None:
        return
    if mask:
        _unmasked(op)
        return
    if isinstance(op, tgpu.AsyncCopyOp):
        return  # it still fills the buffer with zeros
    for result in op.operation.results:
        value = _unread(op, result.type)
        if value is None:
            return
        result.replace_all_uses_with(value)
    op.operation.erase()


def _unread(op: Masked, type_: ir.Type) -> ir.Value | None:
    """Build what an access gives that is not made: `other`, or 0; None for pointers."""
    if isinstance(op, tile.LoadOp) and op.other is not None:
        return op.other
    if is_pointer(type_):
        return None  # there is no constant pointer
    if is_float(type_):
        return constant(op, type_, ir.FloatAttr.get(element_of(type_), 0.0))
    return integer(op, type_, 0)


def _unmasked(op: Masked) -> None:
    """Build the same access without its mask."""
    attributes = attributes_of(op.operation)
    attributes.pop("operandSegmentSizes", None)
    operands: list[ir.Value | None]
    match op:
        case tile.LoadOp():
            operands = [op.ptr, None, None]
        case tgpu.AsyncCopyOp():
            operands = [op.ptr, op.buffer, None]
        case _:
            operands = [op.ptr, op.value, None]
    results = list(op.operation.results)
    made = type(op).build(
        *operands,
        results=[result.type for result in results],
        loc=op.operation.location,
        ip=ir.InsertionPoint(op.operation),
        **attributes,
    )
    for old, new in zip(results, made.operation.results, strict=True):
        old.replace_all_uses_with(new)
    op.operation.erase()
