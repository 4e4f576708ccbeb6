"""Which tensors the launcher can describe, and which strides a kernel is specialized on."""

from __future__ import annotations

import pytest
from mlir import ir

from tiledsl.dialects import tile
from tiledsl.dialects.context import parse
from tiledsl.dialects.contracts import operations
from tiledsl.transforms.place_tensor_maps import can_map, number_of, strides_of

BOX = f"operandSegmentSizes = array<i32: {', '.join(['1'] * 7 + ['0'] * 10)}>"


def loads(stride: str = "%s", inner: str = "%one", element: str = "f16") -> ir.Module:
    """Return a kernel that reads a box of a matrix, and one of another type with stride %t."""
    return parse(f"""
    func.func @kernel(%x: !tile.ptr<{element}> {{tile.name = "x"}}, %y: !tile.ptr<f32> {{tile.name = "y"}},
                      %n: i32 {{tile.name = "n"}}, %s: i32 {{tile.name = "s"}},
                      %t: i64 {{tile.name = "t.0"}}) {{
      %one = arith.constant 1 : i32
      %forty = arith.constant 40 : i32
      %none = arith.constant 0 : i32
      %sum = arith.addi %s, %s : i32
      %wide = arith.extsi %s : i32 to i64
      %a = "tile.descriptor_load"(%x, %n, %n, {stride}, {inner}, %one, %one) {{{BOX}}}
        : (!tile.ptr<{element}>, i32, i32, {"i64" if stride == "%wide" else "i32"}, i32, i32, i32) -> tensor<8x64x{element}>
      %b = "tile.descriptor_load"(%y, %n, %n, %t, %one, %one, %one) {{{BOX}}}
        : (!tile.ptr<f32>, i32, i32, i64, i32, i32, i32) -> tensor<8x64xf32>
      return
    }}""")


def boxes(module: ir.Module) -> list[tile.Box]:
    found = operations(module.operation)
    return [op.box for op in found if isinstance(op, tile.DescriptorLoadOp)]


@pytest.mark.parametrize(
    ("element", "divisors", "fits"),
    [
        ("f16", {"x": 16, "s": 8}, True),
        ("f16", {"x": 16, "s": 16}, True),
        ("f16", {"x": 16, "s": 4}, False),
        ("f16", {"x": 8, "s": 16}, False),
        ("f32", {"x": 16, "s": 4}, True),
        ("i8", {"x": 16, "s": 8}, False),
        ("i8", {"x": 32, "s": 16}, True),
        ("f64", {"x": 16, "s": 2}, True),
    ],
)
def test_address_and_strides_are_multiples_of_16_bytes(
    element: str, divisors: dict[str, int], fits: bool
) -> None:
    module = loads(element=element)
    box = boxes(module)[0]
    size = {"f16": 2, "f32": 4, "i8": 1, "f64": 8}[element]
    assert can_map(box, [divisors["x"], 1, 1, divisors["s"], 1], size) == fits


@pytest.mark.parametrize(
    ("stride", "inner", "fits"),
    [
        ("%s", "%one", True),
        ("%wide", "%one", True),
        ("%forty", "%one", True),
        ("%none", "%one", False),
        ("%sum", "%one", False),
        ("%s", "%s", False),
        ("%s", "%forty", False),
    ],
)
def test_strides_are_numbers_that_the_launcher_knows(stride: str, inner: str, fits: bool) -> None:
    module = loads(stride, inner)
    box = boxes(module)[0]
    assert can_map(box, [16, 16, 1, 8, 4], 2) == fits


def test_the_launcher_knows_arguments_and_constants() -> None:
    module, computed = loads("%forty"), loads("%sum")
    box, other = boxes(module)
    assert [number_of(one) for one in box.strides] == [("constant", 40), ("constant", 1)]
    assert [number_of(one) for one in other.strides] == [("argument", 4), ("constant", 1)]
    assert number_of(boxes(computed)[0].strides[0]) is None


def test_strides_that_are_arguments_are_told_with_what_they_need() -> None:
    assert strides_of(loads()) == {"s": 8, "t.0": 4}
    assert strides_of(loads(element="i8")) == {"s": 16, "t.0": 4}
    assert strides_of(loads("%wide")) == {"s": 8, "t.0": 4}
    assert strides_of(loads("%forty")) == {"t.0": 4}
    assert (
        strides_of(parse("func.func @kernel(%n: i32) attributes {arg_attrs = [{}]} { return }"))
        == {}
    )
