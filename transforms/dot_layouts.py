"""The layouts of every dot's operands: the instruction's that was chosen, or those of plain FMAs.

`select_mma` writes its choice onto the dot as attributes; a choice travels as

    tgpu.instruction    its name in the target's table
    tgpu.layouts        the texts of the layouts of a, b and the accumulator

A dot without them is multiplied by fused multiply-adds in each thread, which then holds whole rows
of a and columns of b.
"""

from __future__ import annotations

from typing import Any, cast

from mlir import ir

from tiledsl.dialects import tile
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_blocked import default
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
    texts = [ir.StringAttr.get(str(one)) for one in (product.a, product.b, product.acc)]
    attributes[LAYOUTS] = cast("Any", ir.ArrayAttr).get(texts)


def product_of(op: tile.DotOp, lanes: int, warps: int) -> Product:
    """Give the layouts of a dot."""
    attributes = op.operation.attributes
    if LAYOUTS in attributes:
        texts = [ir.StringAttr(text).value for text in ir.ArrayAttr(attributes[LAYOUTS])]
        a, b, acc = map(LinearLayout.parse, texts)
        return Product(a, b, acc)
    acc = default(shape_of(op.acc.type), lanes, warps, _FMA_VECTOR)
    operands = fma_operands(acc, shape_of(op.a.type)[-1])
    return Product(operands.a, operands.b, acc)


def products(graph: TileGraph, lanes: int, warps: int) -> dict[Node, Product]:
    """Give the layouts of every dot of a function."""
    return {
        node: product_of(node.op, lanes, warps)
        for node in graph.nodes
        if isinstance(node.op, tile.DotOp)
    }
