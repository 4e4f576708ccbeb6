"""Tiles too large for their threads are said to be, before LLVM takes minutes over them."""

import pytest
from mlir import ir

from tiledsl.dialects.context import parse
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.transforms.limit_tiles import limit_tiles


def run(elements: int, element: str, warp_bits: int = 0) -> None:
    """Check a module of one tile that is spread over 32 lanes, and warps, lanes first."""
    bases = [f"[{1 << i}]" for i in range(elements.bit_length() - 1)]
    lane, warp, register = bases[:5], bases[5 : 5 + warp_bits], bases[5 + warp_bits :]
    layout = f"register=[{','.join(register)}] lane=[{','.join(lane)}] warp=[{','.join(warp)}]"
    module = parse(f"""module {{
      "tgpu.layout"() {{sym_name = "x", map = "{layout} shape=[{elements}]"}} : () -> ()
      func.func @kernel(%v: {element}) {{
        %t = "tile.splat"(%v) : ({element}) -> tensor<{elements}x{element}, @x> loc("k.py":3:5)
        return
      }}
    }}""")
    with module.context, ir.Location.unknown():
        limit_tiles(module)


def test_a_tile_of_512_elements_a_thread_is_taken():
    run(512 * 32, "f32")
    run(1024 * 32, "f32", warp_bits=1)
    run(512 * 32, "!tile.ptr<i8>")


def test_of_16_bits_and_fewer_a_thread_takes_1024():
    run(1024 * 32, "f16")
    run(1024 * 32, "i1")
    with pytest.raises(KernelError, match="at most 1024 elements of 8 bits in each thread, found"):
        run(2048 * 32, "i8")


def test_a_larger_one_is_an_error_with_its_place_shape_and_what_to_do():
    with pytest.raises(KernelError) as raised:
        run(2048 * 32, "f32", warp_bits=1)
    assert str(raised.value) == (
        "expected at most 512 elements of 32 bits in each thread, found 1024, of a tile of shape "
        "(65536,) over 2 warps\n"
        "  --> k.py:3:5\n"
        "  hint: use more warps (num_warps) or a smaller tile"
    )
    with pytest.raises(KernelError, match="512 elements of pointers in each thread, found 1024"):
        run(1024 * 32, "!tile.ptr<f16>")


def test_what_only_products_read_is_not_counted():
    module = parse(
        """module {
      "tgpu.layout"() {sym_name = "a", map = "register=[[0,1],[0,2],[0,4],[0,8],[0,16],[0,32],[0,64],[0,128],[0,256],[0,512]] lane=[[1,0],[2,0],[4,0],[8,0],[16,0]] shape=[32,1024]"} : () -> ()
      "tgpu.layout"() {sym_name = "b", map = "register=[[1,0],[2,0],[4,0],[8,0],[16,0],[32,0],[64,0],[128,0],[256,0],[512,0]] lane=[[0,0],[0,0],[0,0],[0,0],[0,0]] shape=[1024,1]"} : () -> ()
      "tgpu.layout"() {sym_name = "c", map = "lane=[[1,0],[2,0],[4,0],[8,0],[16,0]] shape=[32,1]"} : () -> ()
      func.func @kernel(%v: f32) {
        %a = "tile.splat"(%v) : (f32) -> tensor<32x1024xf32, @a>
        %b = "tile.splat"(%v) : (f32) -> tensor<1024x1xf32, @b>
        %c = "tile.splat"(%v) : (f32) -> tensor<32x1xf32, @c>
        %d = "tgpu.fma_dot"(%a, %b, %c) : (tensor<32x1024xf32, @a>, tensor<1024x1xf32, @b>, tensor<32x1xf32, @c>) -> tensor<32x1xf32, @c>
        return
      }
    }"""
    )
    with module.context, ir.Location.unknown():
        limit_tiles(module)
