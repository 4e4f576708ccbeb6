"""Which products of warpgroups may still be in flight when a loop's next trip begins.

A product that waits for itself leaves the matrix units idle while threads meet and issue copies.
Where a loop does nothing with the sum but add to it, the wait may let one product fly on: the
next trip's is queued behind it. What it reads must then stay for one trip longer, so a pipelined
loop needs one more slot (`schedule.Copies.lag`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from mlir import ir

from tiledsl.dialects import tgpu, tile
from tiledsl.dialects.contracts import operations
from tiledsl.transforms.boxes import can_read
from tiledsl.transforms.rewrite import replace_uses_except, terminator

_BOUNDS = 3
"""Operands of an `scf.for` in front of what it carries."""


@dataclass(frozen=True, eq=False)
class Chain:
    """A product whose sum a loop carries and does nothing else with.

    Attributes:
        product: The product.
        wait: The wait for it.
        carried: Number of the carried value.
    """

    product: tgpu.WarpgroupMmaOp
    wait: tgpu.WarpgroupWaitOp
    carried: int


def find_chain(loop: ir.Operation, copied: Collection[ir.Value]) -> Chain | None:
    """Return the chain of a loop that has no other product of warpgroups, None if there is none.

    Args:
        loop: An `scf.for`.
        copied: Loads of its body that go through slots of shared memory. A product must read its
            operands there: registers and what is stored of them are rewritten too soon.
    """
    products = [op for op in operations(loop) if isinstance(op, tgpu.WarpgroupMmaOp)]
    if len(products) != 1:
        return None
    (product,) = products
    body = loop.regions[0].blocks[0]
    operands = [product.operation.operands[i] for i in (0, 1)]
    if product.operation.block != body or any(value not in copied for value in operands):
        return None
    if not all(_is_read_in_place(use) for value in operands for use in value.uses):
        return None
    wait = _only_user(product.output)
    if not isinstance(wait, tgpu.WarpgroupWaitOp) or _only_user(wait.output) is None:
        return None
    last = terminator(body)
    (use,) = wait.output.uses
    if use.owner.operation != last or product.acc != body.arguments[1 + use.operand_number]:
        return None
    if _only_user(product.acc) is None:
        return None
    return Chain(product, wait, use.operand_number)


def let_fly(chain: Chain, loop: ir.Operation) -> None:
    """Wait for a trip's product in the next trip, and for the last one behind the loop.

    What the sum begins with is computed before the loop, also where it makes no trip: assigned on
    the way around the loop it would be, for ptxas, in the middle of a product (its warning C7515),
    and each product would wait for the one before.

    Args:
        chain: The product.
        loop: The loop that it is in, which carries its sum in the same place.
    """
    place = _BOUNDS + chain.carried
    begin: ir.Value = loop.operands[place]
    loop.operands[place] = tgpu.AnchorOp.build(
        begin, results=[begin.type], loc=loop.location, ip=ir.InsertionPoint(loop)
    ).output
    wait = chain.wait.operation
    wait.attributes["pending"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 1)
    sums = loop.results[chain.carried]
    last = tgpu.WarpgroupWaitOp.build(
        sums, results=[sums.type], pending=0, loc=wait.location, ip=ir.InsertionPoint.after(loop)
    )
    replace_uses_except(sums, last.output, last.operation)


def _is_read_in_place(use: ir.OpOperand) -> bool:
    """Whether a product reads what a load brings where it lands."""
    load = use.owner.operation.operands[use.operand_number].owner
    return not isinstance(load, tile.DescriptorLoadOp) or can_read(use, load)


def _only_user(value: ir.Value) -> ir.OpView | None:
    users = [use.owner for use in value.uses]
    return users[0] if len(users) == 1 else None
