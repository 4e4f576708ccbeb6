"""Loops at the `tgpu` level whose next operands wait in registers, as text.

Each tile takes 32 registers of each of 32 threads.
"""

from __future__ import annotations

_L, _S, _P = "tensor<32x32xf32, @l>", "!tgpu.shared<tensor<32x32xf32, @s>>", "!tile.ptr<f32>"
_PTRS = f"tensor<32x32x{_P}, @l>"

HEAD = f"""
"tgpu.layout"() {{sym_name = "l", map = "register=[[0,1],[0,2],[0,4],[0,8],[0,16]] lane=[[1,0],[2,0],[4,0],[8,0],[16,0]] warp=[] shape=[32,32]"}} : () -> ()
"tgpu.layout"() {{sym_name = "s", map = "offset=[[0,1],[0,2],[0,4],[0,8],[0,16],[1,0],[2,0],[4,0],[8,0],[16,0]] shape=[32,32]"}} : () -> ()
func.func @kernel(%x: {_L}, %pk: {_PTRS}, %pv: {_PTRS}, %pw: {_PTRS}, %n: i32, %c: i1) {{
  %zero = arith.constant 0 : i32
  %one = arith.constant 1 : i32
  %none = arith.constant dense<0.0> : {_L}
  %qs = "tgpu.alloc"() {{alignment = 16 : i64}} : () -> {_S}
  %ks = "tgpu.alloc"() {{alignment = 16 : i64}} : () -> {_S}
  %vs = "tgpu.alloc"() {{alignment = 16 : i64}} : () -> {_S}
"""
FILL = f'"tgpu.local_store"(%x, %qs) : ({_L}, {_S}) -> ()\n'
READ = f'%q = "tgpu.local_load"(%qs) : ({_S}) -> {_L}\n'
LOADS = "".join(
    f'%{name} = "tile.load"(%p{name}) {{operandSegmentSizes = array<i32: 1, 0, 0>}} : ({_PTRS}) -> {_L}\n'
    for name in "kv"
)
STORES = "".join(f'"tgpu.local_store"(%{n}, %{n}s) : ({_L}, {_S}) -> ()\n' for n in "kv")
WRITE = (
    f'"tile.store"(%pw, %x) {{operandSegmentSizes = array<i32: 1, 1, 0>}} : ({_PTRS}, {_L}) -> ()\n'
)


def product(name: str, left: str, buffer: str, acc: str) -> str:
    """Give a product with what a buffer holds."""
    return (
        f'%{name}r = "tgpu.local_load"(%{buffer}) : ({_S}) -> {_L}\n'
        f'%{name} = "tgpu.mma"(%{left}, %{name}r, %{acc}) {{instruction = "m"}}'
        f" : ({_L}, {_L}, {_L}) -> {_L}\n"
    )


def kernel(body: str, before: str = FILL + READ, after: str = "", result: str = "o") -> str:
    """Give a kernel with a loop; its body makes the tile `result`, which the next trip adds to."""
    return (
        HEAD + before
        + f"%r = scf.for %i = %zero to %n step %one iter_args(%acc = %none) -> ({_L}) : i32 {{\n"
        + body + f"scf.yield %{result} : {_L}\n}}\n" + after + "return\n}"
    )  # fmt: skip


ATTENTION = LOADS + product("s", "q", "ks", "none") + product("o", "s", "vs", "acc") + STORES
"""Two products, one behind the other, the first with an operand from outside."""
