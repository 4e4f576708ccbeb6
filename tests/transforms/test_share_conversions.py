"""Trips through shared memory: what takes one, what does not, and in which order."""

from __future__ import annotations

import pytest
from mlir import ir

from tiledsl.dialects import contracts, tile
from tiledsl.dialects.context import parse
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.layouts import Layouts
from tiledsl.transforms.share_conversions import share_conversions

from .layout_oracle import fault

LAYOUTS = """
  "tgpu.layout"() {sym_name = "x", map = "register=[[0,1]] lane=[[0,2],[0,4],[0,8],[1,0],[2,0]] warp=[[4,0],[8,0]] shape=[16,16]"} : () -> ()
  "tgpu.layout"() {sym_name = "turned", map = "register=[[1,0]] lane=[[2,0],[4,0],[8,0],[0,1],[0,2]] warp=[[0,4],[0,8]] shape=[16,16]"} : () -> ()
  "tgpu.layout"() {sym_name = "lanes", map = "register=[[0,2]] lane=[[0,1],[0,4],[0,8],[1,0],[2,0]] warp=[[4,0],[8,0]] shape=[16,16]"} : () -> ()
  "tgpu.layout"() {sym_name = "rows", map = "register=[] lane=[[0],[0],[0],[1],[2]] warp=[[4],[8]] shape=[16]"} : () -> ()
  "tgpu.layout"() {sym_name = "columns", map = "register=[[1]] lane=[[2],[4],[8],[0],[0]] warp=[[0],[0]] shape=[16]"} : () -> ()
"""
ADD = """func.func private @add(%a: f32, %b: f32) -> f32 { %c = arith.addf %a, %b : f32 return %c : f32 }"""
VALUE = "%v = arith.constant dense<0.0> : tensor<16x16xf32, @x>\n"


def shared(text: str, arguments: str = "") -> list[str]:
    """Give the names of the ops of `tgpu` and the reductions and atomics, in program order."""
    module = parse(
        f"module {{ {LAYOUTS} {ADD} func.func @kernel({arguments}) {{ {VALUE} {text} return }} }}"
    )
    contracts.check(module, contracts.TGPU)
    with module.context, ir.Location.unknown():
        share_conversions(module)
    contracts.check(module, contracts.TGPU)
    assert fault(module, shared=True) is None
    names = [op.operation.name for op in operations(module.operation)]
    return [
        name
        for name in names
        if (name.startswith(("tgpu.", "tile.")) and name != "tgpu.layout") or name == "math.exp"
    ]


def convert(name: str, layout: str, use: bool = True) -> str:
    text = (
        f'%{name} = "tgpu.convert_layout"(%v) : (tensor<16x16xf32, @x>)'
        f" -> tensor<16x16xf32, @{layout}>\n"
    )
    return text + (f"math.exp %{name} : tensor<16x16xf32, @{layout}>\n" if use else "")


_ARRAY = "array<i32: 1, 0, 0, 0, 0, 0, 0, 0>"
ONE = f"operandSegmentSizes = {_ARRAY}, resultSegmentSizes = {_ARRAY}"
TRIP = ["tgpu.alloc", "tgpu.local_store", "tgpu.local_load"]


def test_a_conversion_between_warps_goes_through_shared_memory():
    assert shared(convert("a", "turned")) == [*TRIP, "math.exp"]


def test_a_conversion_within_warps_does_not():
    assert shared(convert("a", "lanes")) == ["tgpu.convert_layout", "math.exp"]


def test_stores_of_neighbouring_conversions_come_before_the_loads():
    text = (
        convert("a", "turned", use=False)
        + convert("b", "turned", use=False)
        + "arith.addf %a, %b : tensor<16x16xf32, @turned>\n"
    )
    assert shared(text) == [*TRIP[:2], *TRIP[:2], *TRIP[2:] * 2]


def test_a_conversion_that_nobody_uses_leaves_no_load():
    assert "tgpu.local_load" not in shared(convert("a", "turned", use=False))


def reduce(axis: int, layout: str) -> str:
    return (
        f'%r = "tile.reduce"(%v) {{axis = {axis} : i64, combine = @add, kind = "add", {ONE}}} : '
        f"(tensor<16x16xf32, @x>) -> tensor<16xf32, @{layout}>\n"
        f"math.exp %r : tensor<16xf32, @{layout}>\n"
    )


def test_a_reduction_within_warps_stays_as_it_is():
    assert shared(reduce(1, "rows")) == ["tile.reduce", "math.exp"]


def test_a_reduction_across_warps_is_reduced_twice():
    assert shared(reduce(0, "columns")) == [
        "tgpu.partial_reduce", *TRIP, "tile.reduce", "math.exp",
    ]  # fmt: skip


WARPS = """
  "tgpu.layout"() {sym_name = "w16", map = "register=[[512]] lane=[[1],[2],[4],[8],[16]] warp=[[32],[64],[128],[256]] shape=[1024]"} : () -> ()
  "tgpu.layout"() {sym_name = "w32", map = "register=[] lane=[[1],[2],[4],[8],[16]] warp=[[32],[64],[128],[256],[512]] shape=[1024]"} : () -> ()
"""


@pytest.mark.parametrize(
    ("warps", "kind", "lanes"), [(32, "add", True), (32, "", False), (16, "add", False)]
)
def test_many_warps_partial_results_are_combined_in_lanes(
    warps: int, kind: str, lanes: bool
) -> None:
    text = f"""%t = arith.constant dense<0.0> : tensor<1024xf32, @w{warps}>
      %r = "tile.reduce"(%t) {{axis = 0 : i64, combine = @add, kind = "{kind}", {ONE}}} :
        (tensor<1024xf32, @w{warps}>) -> f32
      math.exp %r : f32
    """
    module = parse(f"module {{ {LAYOUTS} {WARPS} {ADD} func.func @kernel() {{ {text} return }} }}")
    with module.context, ir.Location.unknown():
        share_conversions(module)
    contracts.check(module, contracts.TGPU)
    assert fault(module, shared=True) is None
    layouts = Layouts(module)
    *_, last = (op for op in operations(module.operation) if isinstance(op, tile.ReduceOp))
    gathered = layouts.of(last.sources[0].type)
    assert gathered.registers == (1 if lanes else warps)


ATOMIC = """%o = "tile.atomic_rmw"(%p, %r) {kind = "fadd"} : (PTR, TILE) -> TILE
"""


def atomic(layout: str, used: bool) -> list[str]:
    tile = f"tensor<16xf32, @{layout}>"
    pointers = f"tensor<16x!tile.ptr<f32>, @{layout}>"
    text = f"""%p = "tile.splat"(%q) : (!tile.ptr<f32>) -> {pointers}
      %r = arith.constant dense<1.0> : {tile}
      {ATOMIC.replace("PTR", pointers).replace("TILE", tile)}"""
    text += f"math.exp %o : {tile}\n" if used else ""
    return shared(text, "%q: !tile.ptr<f32>")[1:]


def test_a_result_that_several_threads_hold_is_shared():
    assert atomic("rows", used=True) == [
        "tile.atomic_rmw", "tgpu.alloc", "tgpu.share_result", "math.exp",
    ]  # fmt: skip
    assert atomic("rows", used=False) == ["tile.atomic_rmw"]


def test_a_scalar_result_is_shared():
    text = """%one = arith.constant 1.0 : f32
      %o = "tile.atomic_rmw"(%q, %one) {kind = "fadd"} : (!tile.ptr<f32>, f32) -> f32
      math.exp %o : f32\n"""
    assert shared(text, "%q: !tile.ptr<f32>") == [
        "tile.atomic_rmw", "tgpu.alloc", "tgpu.share_result", "math.exp",
    ]  # fmt: skip
