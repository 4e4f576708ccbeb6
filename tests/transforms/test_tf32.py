"""Rounding of operands that instructions cut to tf32: which way, where, and by whom."""

from __future__ import annotations

from typing import Any

import numpy as np
from mlir import ir
from numpy.typing import NDArray

from tiledsl.dialects import contracts, tile
from tiledsl.dialects.context import parse
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.layout_mma import mma_sync, wgmma
from tiledsl.transforms.mma_table import Instruction, Table
from tiledsl.transforms.select_mma import select_mma
from tiledsl.transforms.tf32 import rounded

from .arith_evaluator import call

CUTTING: Table[Instruction] = Table(
    (Instruction("wgmma", "f32", "f32", "f32", wgmma(64, 8, 32), "tf32"),)
)
SYNC: Table[Instruction] = Table(
    (Instruction("mma", "f32", "f32", "f32", mma_sync(16, 8, 8, 32), "tf32"),)
)
CUT = np.uint32(0xFFFFE000)
BOX = f"operandSegmentSizes = array<i32: {', '.join(['1'] * 7 + ['0'] * 10)}>"


def nearest_away(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round to 10 bits of mantissa as `cvt.rna.tf32.f32` does: to nearest, ties away from zero."""
    finite = np.where(np.isfinite(x), x, 0)
    mantissa, exponent = np.frexp(finite.astype(np.float64))
    scaled = mantissa * 2**11
    whole = np.copysign(np.floor(np.abs(scaled) + 0.5), scaled)
    return np.where(np.isfinite(x), np.ldexp(whole, exponent - 11).astype(np.float32), x)


def test_what_is_left_of_a_rounded_tile_is_nearest() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(256).astype(np.float32) * 10.0 ** rng.integers(-30, 30, 256)
    x = x.astype(np.float32)
    x[:8] = np.inf, -np.inf, 0.0, -0.0, 1 + 2.0**-11, -1 - 2.0**-11, 1 + 3 * 2.0**-11, 2 - 2.0**-20
    # NaNs, of which cutting makes an infinity or -0.
    x[8:10].view(np.uint32)[:] = 0x7F800001, 0xFFFFFFFF
    module = parse("func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> { return %x : tensor<8xf32> }")
    block = module.body.operations[0].regions[0].blocks[0]
    returned = block.operations[0].operation
    with module.context, ir.Location.unknown():
        returned.operands[0] = rounded(block.arguments[0])
    cut = (call(module, "f", x).view(np.uint32) & CUT).view(np.float32)
    np.testing.assert_array_equal(cut, nearest_away(x))


def selected(uses: str = "", table: Table[Any] = CUTTING) -> ir.Module:
    """Return a product of a box and of the transpose of another, with instructions chosen."""
    module = parse(f"""
    func.func @kernel(%x: !tile.ptr<f32>, %y: !tile.ptr<f32>, %n: i32, %out: tensor<64x64x!tile.ptr<f32>>,
                      %also: tensor<64x32x!tile.ptr<f32>>) {{
      %one = arith.constant 1 : i32
      %zero = arith.constant dense<0.0> : tensor<64x64xf32>
      %a = "tile.descriptor_load"(%x, %n, %n, %n, %one, %one, %one) {{{BOX}}}
        : (!tile.ptr<f32>, i32, i32, i32, i32, i32, i32) -> tensor<64x32xf32>
      %b = "tile.descriptor_load"(%y, %n, %n, %n, %one, %one, %one) {{{BOX}}}
        : (!tile.ptr<f32>, i32, i32, i32, i32, i32, i32) -> tensor<64x32xf32>
      %t = "tile.trans"(%b) {{order = array<i64: 1, 0>}} : (tensor<64x32xf32>) -> tensor<32x64xf32>
      %r = "tile.dot"(%a, %t, %zero) {{precision = "tf32"}}
        : (tensor<64x32xf32>, tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
      "tile.store"(%out, %r) {{operandSegmentSizes = array<i32: 1, 1, 0>}} : (tensor<64x64x!tile.ptr<f32>>, tensor<64x64xf32>) -> ()
      {uses}
      return
    }}""")
    with module.context, ir.Location.unknown():
        select_mma(module, table=table, num_warps=4)
    contracts.check(module, contracts.TILE)
    return module


def loads(module: ir.Module) -> list[str]:
    """Return what each load of a box rounds to."""
    found = [op for op in operations(module.operation) if isinstance(op, tile.DescriptorLoadOp)]
    return [op.rounds for op in found]


def test_copies_of_boxes_round_what_products_alone_read() -> None:
    module = selected()
    assert loads(module) == ["tf32", "tf32"]
    assert "arith.select" not in str(module)


def test_what_others_read_too_is_rounded_by_arithmetic() -> None:
    module = selected(
        '"tile.store"(%also, %b) {operandSegmentSizes = array<i32: 1, 1, 0>} '
        ": (tensor<64x32x!tile.ptr<f32>>, tensor<64x32xf32>) -> ()"
    )
    assert loads(module) == ["tf32", ""]
    assert str(module).count("arith.select") == 1


def test_instructions_that_take_registers_round_by_themselves() -> None:
    module = selected(table=SYNC)
    assert loads(module) == ["", ""]
    assert "arith.select" not in str(module)
