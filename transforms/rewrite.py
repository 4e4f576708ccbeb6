"""Edits of IR that several passes make, typed: the bindings' own stubs leave these types open.

An `ir.Operation` hashes by what it holds: after an operand or attribute of it has changed, no set
and no dictionary finds it again. Keep what is known of ops by their results, which hash by
themselves, or change ops last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from mlir import ir


def retype(value: ir.Value, type_: ir.Type) -> None:
    """Change the type of a value in place; the caller keeps its op valid."""
    cast("Any", value).set_type(type_)


def replace_uses_except(old: ir.Value, new: ir.Value, user: ir.Operation) -> None:
    """Replace every use of `old` but those by `user`."""
    cast("Any", old).replace_all_uses_except(new, user)


def is_used(value: ir.Value) -> bool:
    """Whether anything uses `value`."""
    return any(True for _ in value.uses)


def build(
    name: str,
    operands: Sequence[ir.Value],
    result: ir.Type,
    ip: ir.InsertionPoint,
    loc: ir.Location,
    attributes: Mapping[str, ir.Attribute] | None = None,
) -> ir.Value:
    """Build an op of one result, upstream's own builders being untyped."""
    op = cast("Any", ir.Operation).create(
        name, [result], list(operands), dict(attributes or {}), ip=ip, loc=loc
    )
    return cast("ir.Value", op.results[0])


def splat(type_: ir.Type, value: float, ip: ir.InsertionPoint, loc: ir.Location) -> ir.Value:
    """Build a constant: a scalar, or a tile with the same number in every element."""
    element = type_.element_type if isinstance(type_, ir.RankedTensorType) else type_
    one: Any = (
        ir.FloatAttr.get(element, value)
        if isinstance(element, ir.FloatType)
        else ir.IntegerAttr.get(element, int(value))
    )
    whole = one if element == type_ else ir.DenseElementsAttr.get_splat(type_, one)
    return build("arith.constant", [], type_, ip, loc, {"value": whole})


def sink(op: ir.Operation) -> None:
    """Move `op` to just before its first user, or the op of its own block that holds it.

    The caller answers for it that nothing in between matters to `op`. Without users it is erased.
    """
    block = op.block
    first: ir.Operation | None = None
    for result in op.results:
        for use in result.uses:
            user = use.owner.operation
            while user.block != block:
                user = cast("ir.Operation", user.parent).operation
            if first is None or user.is_before_in_block(first):
                first = user
    if first is None:
        op.erase()
    else:
        op.move_before(first)


def ancestor(op: ir.Operation, block: ir.Block) -> ir.Operation | None:
    """Return the op of `block` that is `op` or holds it, None if there is none."""
    found: ir.Operation | None = op
    while found is not None and found.block != block:
        outer: Any = found.parent
        found = None if outer is None or outer.name == "func.func" else outer.operation
    return found


def in_order(ops: Sequence[ir.Operation]) -> list[ir.Operation]:
    """Return ops of one block in their order."""
    return sorted(ops, key=lambda op: sum(other.is_before_in_block(op) for other in ops))


def terminator(block: ir.Block) -> ir.Operation:
    """Give the last op of a block."""
    return block.operations[len(block.operations) - 1].operation


def attributes_of(op: ir.Operation) -> dict[str, ir.Attribute]:
    """Give an op's attributes by name."""
    attributes = cast("Any", op.attributes)
    found = [cast("ir.NamedAttribute", attributes[i]) for i in range(len(attributes))]
    return {named.name: named.attr for named in found}


def is_inside(value: ir.Value, loop: ir.Operation) -> bool:
    """Whether a value is made in a loop, or carried by it."""
    owner = value.owner
    op = owner.owner.operation if isinstance(owner, ir.Block) else owner.operation.parent
    while op is not None and op.name != "func.func":
        if op.operation == loop:
            return True
        op = op.parent
    return False
