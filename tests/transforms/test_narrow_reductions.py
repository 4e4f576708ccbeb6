"""Maxima and minima are found before values are widened."""

from __future__ import annotations

from functools import partial

import pytest

from tests.transforms.golden import golden
from tiledsl.transforms.narrow_reductions import narrow_reductions

NARROW = partial(narrow_reductions, native=frozenset({"bf16", "f32"}))


def kernel(source: str = "bf16", kind: str = "max", body: str = "arith.maximumf") -> str:
    """Return a kernel that widens a tile and reduces it twice."""
    segments = (
        "operandSegmentSizes = array<i32: 1,0,0,0,0,0,0,0>, "
        "resultSegmentSizes = array<i32: 1,0,0,0,0,0,0,0>"
    )
    reduce = f'"tile.reduce"(%w) {{axis = 0 : i64, combine = @pick, kind = "{kind}", {segments}}}'
    return f"""
        func.func @kernel(%p: !tile.ptr<{source}>) {{
          %q = "tile.splat"(%p) : (!tile.ptr<{source}>) -> tensor<64x!tile.ptr<{source}>>
          %x = "tile.load"(%q) {{operandSegmentSizes = array<i32: 1,0,0>}}
               : (tensor<64x!tile.ptr<{source}>>) -> tensor<64x{source}>
          %w = arith.extf %x : tensor<64x{source}> to tensor<64xf32>
          %a = {reduce} : (tensor<64xf32>) -> f32
          %b = {reduce} : (tensor<64xf32>) -> f32
          %s = arith.addf %a, %b : f32
          %h = "tile.cast"(%s) : (f32) -> {source}
          "tile.store"(%p, %h) {{operandSegmentSizes = array<i32: 1,1,0>}}
               : (!tile.ptr<{source}>, {source}) -> ()
          return
        }}
        func.func private @pick(%a: f32, %b: f32) -> f32 {{
          %c = {body} %a, %b : f32
          return %c : f32
        }}
    """


@pytest.mark.parametrize("body", ["arith.maximumf", "arith.maxnumf"])
def test_a_maximum_of_widened_values_is_found_in_their_own_type(body: str) -> None:
    golden(
        kernel(body=body),
        NARROW,
        checks=f"""
        // CHECK: [[X:%.*]] = "tile.load"
        // CHECK: [[A:%.*]] = "tile.reduce"([[X]])
        // CHECK-SAME: combine = @pick_bf16
        // CHECK: arith.extf [[A]] : bf16 to f32
        // CHECK: [[B:%.*]] = "tile.reduce"([[X]])
        // CHECK-SAME: combine = @pick_bf16
        // CHECK: arith.extf [[B]] : bf16 to f32
        // CHECK: func.func private @pick_bf16
        // CHECK: {body}
        // CHECK-SAME: bf16
        """,
    )


@pytest.mark.parametrize(
    "text",
    [
        kernel("f16"),  # not among the types given
        kernel(kind="add", body="arith.addf"),
        kernel(body="arith.addf"),  # no selection, whatever it is called
    ],
)
def test_other_reductions_stay(text: str) -> None:
    found = golden(text, NARROW, checks='// CHECK: "tile.reduce"\n// CHECK-SAME: -> f32')
    assert "pick_" not in found
