from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.targets.gpu.running import lower, run, to_machine
from tests.transforms.tile_kernels import Kernel
from tiledsl.dialects import tile
from tiledsl.dialects.context import parse
from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_blocked import blocked
from tiledsl.dialects.types import tile_type
from tiledsl.transforms.conversion_plan import ThroughShared, plan_conversion

_MOST = 8192
"""Elements a warp: half of what a thread may hold of a tile, 512, times its lanes."""


@given(
    rows=st.sampled_from([1, 4, 32]),
    columns=st.sampled_from([2, 16, 64]),
    warps=st.sampled_from([1, 4]),
    steps=st.lists(st.sampled_from(["trans", "reshape", "join", "cat", "split"]), max_size=4),
)
@settings(max_examples=25, deadline=None)
def test_chains_of_shape_ops_do_as_numpy_does(
    rows: int, columns: int, warps: int, steps: list[str]
) -> None:
    k = Kernel("*i32", "*i32")
    value = k.load(k.pointers(k.args[0], rows, columns))
    x = np.arange(rows * columns, dtype=np.int32).reshape(rows, columns)
    expected = x
    for step in steps:
        a, b = expected.shape
        if a * b < 2 and step in ("reshape", "split"):
            continue
        if 2 * a * b > _MOST * warps and step in ("join", "cat"):
            continue
        with k.here():
            element = k.type("i32")
            match step:
                case "trans":
                    type_ = tile_type((b, a), element)
                    value = tile.TransOp.build(value, results=[type_], order=[1, 0]).tile
                    expected = expected.T
                case "reshape":
                    type_ = tile_type((a * b // 2, 2), element)
                    value = tile.ReshapeOp.build(value, results=[type_]).tile
                    expected = expected.reshape(a * b // 2, 2)
                case "join":
                    type_ = tile_type((a, b, 2), element)
                    joined = tile.JoinOp.build(value, value, results=[type_]).tile
                    flat = tile_type((a, 2 * b), element)
                    value = tile.ReshapeOp.build(joined, results=[flat]).tile
                    expected = np.stack([expected, expected], axis=-1).reshape(a, 2 * b)
                case "cat":
                    type_ = tile_type((2 * a, b), element)
                    value = tile.CatOp.build(value, value, results=[type_], axis=0).tile
                    expected = np.concatenate([expected, expected])
                case _:
                    apart = tile_type((a * b // 2, 2), element)
                    half = tile_type((a * b // 2,), element)
                    pairs = tile.ReshapeOp.build(value, results=[apart]).tile
                    split = tile.SplitOp.build(pairs, results=[half, half])
                    last = tile_type((a * b // 2, 1), element)
                    value = tile.ExpandDimsOp.build(split.second, results=[last], axis=1).tile
                    expected = expected.reshape(-1, 2)[:, 1:]
    k.store(k.pointers(k.args[1], *expected.shape), value)
    y = np.full(expected.shape, -1, np.int32)
    run(to_machine(k.finish(), warps), x, y)
    assert np.array_equal(y, expected)


def conversion(source: LinearLayout, result: LinearLayout, element: str) -> str:
    """Give a kernel that stores, in layout `result`, a range made in layout `source`."""
    size = source.elements
    tensor = f"tensor<{size}x{{}}, @{{}}>"
    a, b = (tensor.format(element, name) for name in "ab")
    back = "" if element == "i32" else f"%w = arith.extui %y : {b} to {tensor.format('i32', 'b')}"
    wide = "%y" if element == "i32" else "%w"
    cast = "" if element == "i32" else f"%x = arith.trunci %r : {tensor.format('i32', 'a')} to {a}"
    begun = "%r" if element == "i32" else "%x"
    i32, pointers = tensor.format("i32", "b"), tensor.format("!tile.ptr<i32>", "b")
    return f"""
"tgpu.layout"() {{sym_name = "a", map = "{source}"}} : () -> ()
"tgpu.layout"() {{sym_name = "b", map = "{result}"}} : () -> ()
func.func @kernel(%p: !tile.ptr<i32>) {{
  %r = "tile.make_range"() {{start = 0 : i64, end = {size} : i64}} : () -> {tensor.format("i32", "a")}
  {cast}
  %y = "tgpu.convert_layout"({begun}) : ({a}) -> {b}
  {back}
  %i = "tile.make_range"() {{start = 0 : i64, end = {size} : i64}} : () -> {i32}
  %s = "tile.splat"(%p) : (!tile.ptr<i32>) -> {pointers}
  %q = "tile.addptr"(%s, %i) : ({pointers}, {i32}) -> {pointers}
  "tile.store"(%q, {wide}) : ({pointers}, {i32}) -> ()
  return
}}"""


@st.composite
def layouts(draw: st.DrawFn) -> LinearLayout:
    """Give a layout of 256 elements over the lanes of two warps, some bits replicated."""
    columns = draw(st.permutations([1 << i for i in range(8)]))
    warp = draw(st.sampled_from([0, 128]))
    columns = [c for c in columns if c != warp]
    copies = draw(st.integers(0, 2))
    lane = [*columns[: 5 - copies], *[0] * copies]
    lane = draw(st.permutations(lane))
    return LinearLayout.from_flat(
        {"register": columns[5 - copies :], "lane": lane, "warp": [warp]}, (256,)
    )


@given(source=layouts(), result=layouts(), element=st.sampled_from(["i32", "i16", "i8", "i1"]))
@settings(max_examples=60, deadline=None)
def test_conversions_within_a_warp_bring_every_element(
    source: LinearLayout, result: LinearLayout, element: str
) -> None:
    bits = {"i32": 32, "i16": 16}.get(element, 8)
    if isinstance(plan_conversion(source, result, bits), ThroughShared):
        return
    x = np.full(256, -1, np.int32)
    run(lower(parse(conversion(source, result, element)), warps=2), x)
    expected = np.arange(256)
    if element in ("i8", "i1"):
        expected &= 255 if element == "i8" else 1
    assert np.array_equal(x, expected)


def test_a_conversion_between_warps_is_refused() -> None:
    source = blocked((64,), (1,), (32,), (2,))
    result = LinearLayout.from_flat({"register": [], "lane": [2, 4, 8, 16, 32], "warp": [1]}, (64,))
    with pytest.raises(CompilerBug, match="within a warp"):
        lower(parse(conversion(source, result, "i32")), warps=2)
