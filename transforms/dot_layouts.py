"""The layouts of every dot's operands: the instruction's that was chosen, or those of plain FMAs.

`select_mma` writes its choice onto the dot as attributes; a choice travels as

    tgpu.instruction    its name in the target's table
    tgpu.layouts        the texts of the layouts of a, b and the accumulator; "" for an operand
                        that is read in shared memory

A dot without them is multiplied by fused multiply-adds in each thread, which then holds whole rows
of a and columns of b.
"""

from __future__ import annotations

import math
from typing import Any, cast

from mlir import ir

from tiledsl.dialects import tile
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_blocked import blocked
from tiledsl.dialects.layout_mma import fma_operands
from tiledsl.dialects.types import shape_of
from tiledsl.transforms.layout_inference import Product
from tiledsl.transforms.tile_graph import Node, TileGraph

INSTRUCTION, LAYOUTS = "tgpu.instruction", "tgpu.layouts"
_FMA_VECTOR = 4


def record(op: tile.DotOp, instruction: str, product: Product) -> None:
    """Write the choice of an instruction onto a dot."""
    attributes = op.operation.attributes
    attributes[INSTRUCTION] = ir.StringAttr.get(instruction)
    texts = [ir.StringAttr.get("" if one is None else str(one)) for one in product.all]
    attributes[LAYOUTS] = cast("Any", ir.ArrayAttr).get(texts)


def product_of(op: tile.DotOp, lanes: int, warps: int) -> Product:
    """Give the layouts of a dot."""
    attributes = op.operation.attributes
    if LAYOUTS in attributes:
        texts = [ir.StringAttr(text).value for text in ir.ArrayAttr(attributes[LAYOUTS])]
        a, b = (LinearLayout.parse(text) if text else None for text in texts[:2])
        return Product(a, b, LinearLayout.parse(texts[2]))
    acc = fma_accumulator(shape_of(op.acc.type), lanes, warps)
    operands = fma_operands(acc, shape_of(op.a.type)[-1])
    return Product(operands.a, operands.b, acc)


def fma_accumulator(shape: tuple[int, ...], lanes: int, warps: int) -> LinearLayout:
    """Give the layout of an accumulator of plain FMAs: boxes as square as can be.

    A thread that holds r rows and c columns reads r + c elements for r * c products. Neighbouring
    columns, as many as a wide access takes, lie in one thread.

    Args:
        shape: (M, N), or (B, M, N).
        lanes: Threads of a warp.
        warps: Warps of a program.
    """
    *batch, m, n = shape
    matrices = math.prod(batch)
    # Matrices are shared among warps; among lanes only where they are too small for one warp.
    warp_groups = min(warps, matrices)
    warps //= warp_groups
    lane_groups = min(matrices // warp_groups, max(1, lanes * warps // (m * n)), lanes)
    lanes //= lane_groups
    each = max(1, m * n // (lanes * warps))
    columns = min(n, 1 << each.bit_length() // 2)
    rows = min(m, each // columns)
    columns = min(n, each // rows)

    def share(count: int, wide: int, tall: int) -> tuple[int, int]:
        """Split threads over the places along n and m that boxes leave, squarely."""
        across = min(wide, max(1 << (count.bit_length() // 2), count // max(1, tall)), count)
        return count // across, across

    lane = share(lanes, n // columns, m // rows)
    left = max(1, m // rows // lane[0]), max(1, n // columns // lane[1])
    warp = share(warps, left[1], left[0])
    box = [*[1] * len(batch), 1, min(columns, _FMA_VECTOR)]
    if not batch:
        return blocked(shape, box, lane, warp)
    return blocked(shape, box, [lane_groups, *lane], [warp_groups, *warp])


def products(graph: TileGraph, lanes: int, warps: int) -> dict[Node, Product]:
    """Give the layouts of every dot of a function."""
    return {
        node: product_of(node.op, lanes, warps)
        for node in graph.nodes
        if isinstance(node.op, tile.DotOp)
    }
