"""Move an op to where its result is first needed."""

from __future__ import annotations

from mlir import ir


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
                user = user.parent.operation
            if first is None or user.is_before_in_block(first):
                first = user
    if first is None:
        op.erase()
    else:
        op.move_before(first)
