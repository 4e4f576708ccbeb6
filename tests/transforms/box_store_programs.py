"""Programs at the `tgpu` level that copy boxes to tensors, as text."""

from __future__ import annotations

from collections.abc import Callable

from mlir import ir

from tiledsl.dialects import contracts, tgpu
from tiledsl.dialects.context import parse
from tiledsl.dialects.contracts import operations

LAYOUTS = """
  "tgpu.layout"() {sym_name = "x", map = "register=[[0,1],[8,0],[0,8],[0,16],[0,32]] lane=[[0,2],[0,4],[1,0],[2,0],[4,0]] warp=[[16,0],[32,0],[64,0]] shape=[128,64]"} : () -> ()
  "tgpu.layout"() {sym_name = "y", map = "register=[[0,1],[0,2],[0,4],[32,0],[64,0]] lane=[[0,8],[0,16],[0,32],[1,0],[2,0]] warp=[[4,0],[8,0],[16,0]] shape=[128,64]"} : () -> ()
  "tgpu.layout"() {sym_name = "wide", map = "register=[[0,1],[8,0],[0,8],[0,16],[0,32],[0,64],[0,128]] lane=[[0,2],[0,4],[1,0],[2,0],[4,0]] warp=[[16,0],[32,0],[64,0]] shape=[128,256]"} : () -> ()
  "tgpu.layout"() {sym_name = "s", map = "offset=[[0,1],[0,2],[0,4],[0,8],[0,16],[0,32],[1,0],[2,0],[4,0],[8,0],[16,0],[32,0],[64,0]] shape=[128,64]"} : () -> ()
"""
HELD = "!tgpu.shared<tensor<128x64xf16, @s>>"
TILE = "tensor<128x64xf16, @x>"
VALUES = f"""
  %one = arith.constant 1 : i32
  %zero = arith.constant 0 : i32
  %x = arith.constant dense<0.0> : {TILE}
  %y = arith.constant dense<0.0> : tensor<128x64xf16, @y>
  %p = "tile.splat"(%c) : (!tile.ptr<f16>) -> tensor<128x64x!tile.ptr<f16>, @y>
  %q = "tile.splat"(%d) : (!tile.ptr<f16>) -> tensor<128x64x!tile.ptr<f16>, @y>
"""
LOAD = '"tile.load"(%p) {operandSegmentSizes = array<i32: 1, 0, 0>} : (tensor<128x64x!tile.ptr<f16>, @y>) -> tensor<128x64xf16, @y>\n'
LOAD_ELSEWHERE = LOAD.replace("%p", "%q")
RELEASE = (
    '%old = "tile.atomic_rmw"(%d, %v) {kind = "fadd", operandSegmentSizes = array<i32: 1, 1, 0>, '
    'sem = "release"} : (!tile.ptr<f16>, f16) -> f16\n'
)


def alloc(name: str, offset: int | None = None) -> str:
    at = "" if offset is None else f"{{offset = {offset} : i64}}"
    return f'%{name} = "tgpu.alloc"() {at} : () -> {HELD}\n'


def fill(buffer: str) -> str:
    return f'"tgpu.local_store"(%x, %{buffer}) : ({TILE}, {HELD}) -> ()\n'


def send(
    buffer: str,
    row: str = "%i",
    base: str = "%c",
    column: int = 0,
    width: int = 64,
    groups: str = "64, 0",
) -> str:
    """Copy a buffer to the columns from `column` on of a box of `width` columns."""
    return (
        f'"tgpu.box_store"(%{buffer}, {base}, %m, %n, %m, %one, {row}, %zero) '
        f"{{copied = array<i64: 64, 64>, extents = array<i64: 128, {width}>, "
        f"groups = array<i64{groups and ': ' + groups}>, starts = array<i64: 0, {column}>, operandSegmentSizes = "
        "array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : "
        f"({HELD}, !tile.ptr<f16>, i32, i32, i32, i32, i32, i32) -> ()\n"
    )


def wait(pending: int, *, read: bool) -> str:
    flag = ", read = true" if read else ""
    return f'"tgpu.store_wait"() {{pending = {pending} : i64{flag}}} : () -> ()\n'


def loop(body: str, lower: str = "%zero", step: str = "%m") -> str:
    return f"scf.for %k = {lower} to %n step {step} : i32 {{ {body} }}\n"


def module_of(text: str, layouts: str = "") -> ir.Module:
    """Make a module of a kernel of that text; `%i` may be any index, `%t` is of a tile of 128."""
    arguments = "%c: !tile.ptr<f16>, %d: !tile.ptr<f16>, %m: i32, %n: i32, %i: i32, %v: f16"
    tiles = "%size = arith.constant 128 : i32\n %t = arith.muli %i, %size : i32\n"
    return parse(
        f"module {{ {LAYOUTS} {layouts} func.func @kernel({arguments}) {{ {VALUES} {tiles} {text} return }} }}"
    )


_SHORT = {
    "local_store": "fill", "box_store": "send", "load": "load", "store": "store",
    "atomic_rmw": "atomic",
}  # fmt: skip


def run(text: str, *passes: Callable[[ir.Module], object]) -> list[str]:
    """Run passes on a kernel and name what orders or touches memory, in program order."""
    module = module_of(text)
    contracts.check(module, contracts.TGPU)
    with module.context, ir.Location.unknown():
        for one in passes:
            one(module)
    contracts.check(module, contracts.TGPU)
    found: list[str] = []
    for op in operations(module.operation):
        name = op.operation.name.partition(".")[2]
        match op:
            case tgpu.StoreWaitOp():
                found.append(f"wait {op.pending}" + (" read" if op.read else ""))
            case tgpu.BarrierOp():
                found.append(f"barrier {op.memory}" + (" fenced" if op.proxy else ""))
            case tgpu.WarpgroupBarrierOp():
                found.append("barrier warpgroup" + (" fenced" if op.proxy else ""))
            case tgpu.ProxyFenceOp():
                found.append(f"fence {op.memory}")
            case _ if name in _SHORT:
                found.append(_SHORT[name])
            case _ if op.operation.name == "scf.for":
                found.append("loop")
            case _:
                pass
    return found
