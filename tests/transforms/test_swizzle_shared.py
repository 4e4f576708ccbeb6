"""Layouts of buffers: free of bank conflicts for all who use them, slots and copies included."""

from __future__ import annotations

import pytest
from mlir import ir

from tiledsl.dialects import contracts, tgpu
from tiledsl.dialects.context import parse
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.layouts import Layouts
from tiledsl.dialects.types import held_by, layout_name, storage_bits
from tiledsl.transforms.assign_layouts import assign_layouts
from tiledsl.transforms.matrix_access import matrix_access
from tiledsl.transforms.select_mma import select_mma
from tiledsl.transforms.share_conversions import share_conversions
from tiledsl.transforms.shared_access import shared_access
from tiledsl.transforms.swizzle_shared import swizzle_shared

from .mma_tables import AMPERE
from .tile_kernels import matmul


def swizzle(module: ir.Module) -> ir.Module:
    with module.context, ir.Location.unknown():
        swizzle_shared(module, matrix_loads=True)
    contracts.check(module, contracts.TGPU)
    return module


@pytest.mark.parametrize("element", ["f16", "bf16"])
def test_the_operands_of_a_matmul_are_read_by_ldmatrix_without_conflicts(element: str):
    module = matmul(element=element)
    with module.context, ir.Location.unknown():
        select_mma(module, table=AMPERE, num_warps=4)
        assign_layouts(module, num_warps=4, warp_size=32)
        share_conversions(module)
    swizzle(module)
    layouts = Layouts(module)
    seen = 0
    for op in operations(module.operation):
        if isinstance(op, tgpu.LocalLoadOp):
            held = held_by(op.buffer.type)
            read = matrix_access(layouts.of(op.tile.type), layouts.of(held), storage_bits(held))
            parent = op.operation.parent
            if parent is not None and parent.name == "scf.for":
                assert read is not None
                assert read.degree == 1
                seen += 1
        if isinstance(op, tgpu.LocalStoreOp):
            held = held_by(op.buffer.type)
            written = shared_access(
                layouts.of(op.tile.type), layouts.of(held), storage_bits(held), write=True
            )
            assert written.degree == 1
    assert seen == 2


TEXT = """module {{
  "tgpu.layout"() {{sym_name = "x", map = "register=[[0,1],[0,2],[0,4]] lane=[[0,8],[0,16],[0,32],[1,0],[2,0]] warp=[[4,0],[8,0]] shape=[64,64]"}} : () -> ()
  "tgpu.layout"() {{sym_name = "y", map = "register=[[0,1],[8,0],[0,8]] lane=[[0,2],[0,4],[1,0],[2,0],[4,0]] warp=[[16,0],[32,0]] shape=[64,64]"}} : () -> ()
  "tgpu.layout"() {{sym_name = "plain", map = "offset=[[0,1],[0,2],[0,4],[0,8],[0,16],[0,32],[1,0],[2,0],[4,0],[8,0],[16,0],[32,0]] shape=[64,64]"}} : () -> ()
  func.func @kernel(%i: i32, %p: tensor<64x64x!tile.ptr<f16>, @x>) {{
    %s = "tgpu.alloc"() : () -> !tgpu.shared<tensor<3x64x64xf16, @plain>>
    %t = "tgpu.slot"(%s, %i) : (!tgpu.shared<tensor<3x64x64xf16, @plain>>, i32)
      -> !tgpu.shared<tensor<64x64xf16, @plain>>
    {uses}
    return
  }}
}}"""
COPY = """"tgpu.async_copy"(%p, %t) {operandSegmentSizes = array<i32: 1, 1, 0>} :
  (tensor<64x64x!tile.ptr<f16>, @x>, !tgpu.shared<tensor<64x64xf16, @plain>>) -> ()
"""
LOAD = """%v = "tgpu.local_load"(%t) : (!tgpu.shared<tensor<64x64xf16, @plain>>)
  -> tensor<64x64xf16, @y>
"""


def test_slots_that_are_copied_to_keep_rows_of_16_bytes():
    module = swizzle(parse(TEXT.format(uses=COPY + LOAD)))
    layouts = Layouts(module)
    found = list(operations(module.operation))
    (alloc,) = (op for op in found if isinstance(op, tgpu.AllocOp))
    (slot,) = (op for op in found if isinstance(op, tgpu.SlotOp))
    held = held_by(alloc.buffer.type)
    assert layout_name(held) == layout_name(held_by(slot.slot.type)) != "plain"
    copied = shared_access(layouts["x"], layouts.of(held), 16, write=True, in_order=True)
    assert copied.elements == 8
    assert copied.degree == 1
    read = matrix_access(layouts["y"], layouts.of(held), 16)
    assert read is not None
    assert read.degree == 1


def test_a_buffer_that_nobody_uses_is_left_alone():
    module = swizzle(parse(TEXT.format(uses="")))
    assert "@plain" in str(module)
    assert "@shared" not in str(module)
