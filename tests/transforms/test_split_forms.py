"""What is wanted of operands where a result is wanted in part, op by op."""

from __future__ import annotations

import pytest
from mlir import ir

from tiledsl.dialects.context import parse
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.transforms.split_forms import Form, operand_forms

DOT = '"tile.dot"(%a, %b, %c) : (tensor<64x16xf32>, tensor<16x32xf32>, tensor<64x32xf32>) -> tensor<64x32xf32>'
BATCH = '"tile.dot"(%d, %e, %f) : (tensor<4x8x8xf32>, tensor<4x8x2xf32>, tensor<4x8x2xf32>) -> tensor<4x8x2xf32>'
SEGMENTS = "operandSegmentSizes = array<i32: 1,0,0,0,0,0,0,0>, resultSegmentSizes = array<i32: 1,0,0,0,0,0,0,0>"
REDUCE = f'"tile.reduce"(%f) {{axis = 1, combine = @add, kind = "add", {SEGMENTS}}} : (tensor<4x8x2xf32>) -> tensor<4x2xf32>'
SCAN = f'"tile.scan"(%a) {{axis = 1, combine = @add, kind = "", {SEGMENTS}}} : (tensor<64x16xf32>) -> tensor<64x16xf32>'
RULES: list[tuple[str, Form, list[Form]]] = [
    ('"arith.addf"(%a, %a) : (tensor<64x16xf32>, tensor<64x16xf32>) -> tensor<64x16xf32>', 1, [1, 1]),
    ('"arith.addf"(%a, %a) : (tensor<64x16xf32>, tensor<64x16xf32>) -> tensor<64x16xf32>', None, [None, None]),
    ('"tile.splat"(%s) : (f32) -> tensor<64xf32>', 0, [None]),
    ('"tile.expand_dims"(%a) {axis = 1} : (tensor<64x16xf32>) -> tensor<64x1x16xf32>', 0, [0]),
    ('"tile.expand_dims"(%a) {axis = 1} : (tensor<64x16xf32>) -> tensor<64x1x16xf32>', 2, [1]),
    ('"tile.broadcast"(%r) : (tensor<1x16xf32>) -> tensor<64x16xf32>', 0, [None]),
    ('"tile.broadcast"(%r) : (tensor<1x16xf32>) -> tensor<64x16xf32>', 1, [1]),
    ('"tile.trans"(%f) {order = array<i64: 2, 0, 1>} : (tensor<4x8x2xf32>) -> tensor<2x4x8xf32>', 1, [0]),
    ('"tile.reshape"(%a) : (tensor<64x16xf32>) -> tensor<8x8x16xf32>', 0, [0]),
    ('"tile.reshape"(%a) : (tensor<64x16xf32>) -> tensor<64x4x4xf32>', 1, [1]),
    ('"tile.reshape"(%a) : (tensor<64x16xf32>) -> tensor<1024xf32>', 0, [0]),
    ('"tile.join"(%a, %a) : (tensor<64x16xf32>, tensor<64x16xf32>) -> tensor<64x16x2xf32>', 1, [1, 1]),
    ('"tile.cat"(%a, %a) {axis = 0} : (tensor<64x16xf32>, tensor<64x16xf32>) -> tensor<128x16xf32>', 1, [1, 1]),
    (REDUCE, 0, [0]),
    (REDUCE, 1, [2]),
    (SCAN, 0, [0]),
    (DOT, 0, [0, None, 0]),
    (DOT, 1, [None, 1, 1]),
    (BATCH, 0, [0, 0, 0]),
    (BATCH, 1, [1, None, 1]),
    (BATCH, 2, [None, 2, 2]),
]  # fmt: skip
FAULTS = [
    (SCAN, 1, "expected no scan along dimension 1, which blocks split"),
    ('"tile.reshape"(%a) : (tensor<64x16xf32>) -> tensor<8x8x16xf32>', 1, "keeps the elements of dimension 1 together"),
    ('"tile.join"(%a, %a) : (tensor<64x16xf32>, tensor<64x16xf32>) -> tensor<64x16x2xf32>', 2, "no split along the dimension that is joined"),
    ('"tile.cat"(%a, %a) {axis = 0} : (tensor<64x16xf32>, tensor<64x16xf32>) -> tensor<128x16xf32>', 0, "no split along the dimension that is concatenated"),
]  # fmt: skip


def operation(text: str) -> ir.OpView:
    module = parse(
        "func.func @k(%s: f32, %r: tensor<1x16xf32>, %a: tensor<64x16xf32>, %b: tensor<16x32xf32>, "
        "%c: tensor<64x32xf32>, %d: tensor<4x8x8xf32>, %e: tensor<4x8x2xf32>, "
        f"%f: tensor<4x8x2xf32>) {{ %x = {text}\n return }}\n"
        "func.func private @add(%x: f32, %y: f32) -> f32 { return %x : f32 }"
    )
    operation.kept = module  # type: ignore[attr-defined]
    return next(op for op in operations(module.operation) if op.operation.name != "func.func")


@pytest.mark.parametrize(("text", "form", "wanted"), RULES)
def test_a_part_of_a_result_takes_these_parts_of_operands(
    text: str, form: Form, wanted: list[Form]
) -> None:
    assert operand_forms(operation(text), form) == wanted


@pytest.mark.parametrize(("text", "form", "message"), FAULTS)
def test_some_parts_take_more_than_parts(text: str, form: int, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        operand_forms(operation(text), form)
