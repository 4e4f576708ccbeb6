"""When warps of their own copy a loop's boxes, how many, and who gets their registers.

A thread that computes and copies as well waits in each trip until all warps have read a slot, with
little work queued meanwhile. That costs nothing while products are long and one is in flight: two
warpgroups, more than 128 columns each, both operands in shared memory. With one warpgroup, or
narrow products, it does; and where the first operand comes from registers, because a trip then
waits for its own product (`product_overlap`).

One warp copies as fast as four. But registers are dealt out to four at a time, alike, and a warp
that only copies needs few: two consuming warpgroups that have several products in flight, or a
large one from registers, take most of those of a producing warpgroup.
"""

from __future__ import annotations

import math
import re

from mlir import ir

from tiledsl.dialects import tgpu
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.types import bit_width, shape_of

ASKED = "tile.warp_specialize"
WARPGROUP = 4
"""Warps."""
PRODUCERS, CONSUMERS = 40, 232
"""Registers of a thread of one producing and two consuming warpgroups: shared out alike it would be
168 of each. Nor are there more beside a single warp, which takes as many as four do."""
_WARPS, _WARP_SIZE = "tile.num_warps", 32
_MANY_SUMS = 128
"""Of a thread: 168 registers are too few for these and a first operand from registers. ptxas lets
each instruction of such a product wait for the one before (its warning C7512)."""
_NARROW = 128
"""Columns of a product up to which a producer of its own pays, if both operands are in memory."""


def is_asked_for(loop: ir.Operation, kernel: ir.OpView) -> bool:
    """Whether the author wants a producer for a loop, or says nothing and it should pay."""
    if tgpu.PRODUCERS in kernel.operation.attributes:
        return False
    around = loop
    while around.name == "scf.for":
        if ASKED in around.attributes:
            return ir.BoolAttr(around.attributes[ASKED]).value
        parent = around.parent
        assert parent is not None
        around = parent.operation
    return _pays(loop, kernel)


def takes_a_warpgroup(
    loop: ir.Operation, kernel: ir.OpView, several: bool, max_registers: int | None
) -> bool:
    """Whether the producer of a loop is a warpgroup, which leaves its registers to consumers.

    Args:
        loop: The loop.
        kernel: The kernel that it is of.
        several: Whether it has several products in flight.
        max_registers: The author's limit of registers a thread, or None. Where it allows fewer than
            consumers would take they would wait for them for ever.
    """
    needs = several or any(_is_large(one, kernel) for one in _products(loop))
    may = max_registers is None or max_registers >= CONSUMERS
    return needs and may and warps_of(kernel) == 2 * WARPGROUP


def warps_of(kernel: ir.OpView) -> int:
    """Return how many warps a kernel's author asked for, one if it does not say."""
    attributes = kernel.operation.attributes
    return ir.IntegerAttr(attributes[_WARPS]).value if _WARPS in attributes else 1


def _pays(loop: ir.Operation, kernel: ir.OpView) -> bool:
    """Whether a loop has one product, of one warpgroup or narrow or from registers."""
    products = _products(loop)
    if len(products) != 1:
        return False
    columns = re.search(r"n(\d+)k", products[0].instruction)
    narrow = columns is not None and int(columns[1]) <= _NARROW
    # More warps than eight have no registers to spare for one more.
    apart = not products[0].a_shared and warps_of(kernel) <= 2 * WARPGROUP
    return narrow or apart or warps_of(kernel) == WARPGROUP


def _products(loop: ir.Operation) -> list[tgpu.WarpgroupMmaOp]:
    return [op for op in operations(loop) if isinstance(op, tgpu.WarpgroupMmaOp)]


def _is_large(product: tgpu.WarpgroupMmaOp, kernel: ir.OpView) -> bool:
    """Whether a product takes its first operand from registers, and has many sums beside."""
    sums = math.prod(shape_of(product.result.type)) * bit_width(product.result.type) // 32
    return not product.a_shared and sums >= _MANY_SUMS * warps_of(kernel) * _WARP_SIZE
