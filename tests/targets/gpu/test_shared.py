from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.targets.gpu.running import lower, run
from tests.transforms.arith_evaluator import DTYPES
from tiledsl.dialects.context import parse
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_blocked import blocked
from tiledsl.dialects.layout_mma import mma_sync
from tiledsl.transforms.swizzle import choose_shared_layout


def kernel(
    element: str, source: LinearLayout, result: LinearLayout, shared: LinearLayout, body: str
) -> str:
    """Give a kernel around `body`, which brings the tile at %px from layout a to %v in layout b."""
    rows, columns = source.shape
    size = rows * columns * np.dtype(DTYPES[element]).itemsize

    def tensor(of: str, layout: str) -> str:
        return f"tensor<{rows}x{columns}x{of}, @{layout}>"

    def pointers(name: str, base: str, layout: str) -> str:
        """Give the ops that make the row-major pointers of a tile."""
        flat = f"tensor<{rows * columns}x{{}}, @{layout}_flat>"
        many = flat.format(f"!tile.ptr<{element}>")
        tiles = tensor(f"!tile.ptr<{element}>", layout)
        return f"""
  %{name}_i = "tile.make_range"() {{start = 0 : i64, end = {rows * columns} : i64}} : () -> {flat.format("i32")}
  %{name}_s = "tile.splat"({base}) : (!tile.ptr<{element}>) -> {many}
  %{name}_p = "tile.addptr"(%{name}_s, %{name}_i) : ({many}, {flat.format("i32")}) -> {many}
  %{name} = "tile.reshape"(%{name}_p) : ({many}) -> {tiles}"""

    layouts = {
        "a": source,
        "b": result,
        "s": shared,
        "a_flat": source.reshape((rows * columns,)),
        "b_flat": result.reshape((rows * columns,)),
    }
    defined = "\n".join(
        f'"tgpu.layout"() {{sym_name = "{n}", map = "{layout}"}} : () -> ()'
        for n, layout in layouts.items()
    )
    names = {
        "TA": tensor(element, "a"),
        "TB": tensor(element, "b"),
        "PA": tensor(f"!tile.ptr<{element}>", "a"),
        "MA": tensor("i1", "a"),
        "ONE": f"!tgpu.shared<tensor<{rows}x{columns}x{element}, @s>>",
        "TWO": f"!tgpu.shared<tensor<2x{rows}x{columns}x{element}, @s>>",
    }
    for name, text in names.items():
        body = body.replace(name, text)
    tb, pb = names["TB"], tensor(f"!tile.ptr<{element}>", "b")
    divisible = "{tile.divisibility = 16 : i64}"
    return f"""
{defined}
func.func @kernel(%x: !tile.ptr<{element}> {divisible}, %y: !tile.ptr<{element}> {divisible})
    attributes {{tgpu.shared_bytes = {2 * size} : i64}} {{
  {pointers("px", "%x", "a")}
  {pointers("py", "%y", "b")}
  {body}
  "tile.store"(%py, %v) : ({pb}, {tb}) -> ()
  return
}}"""


THROUGH = """
  %t = "tile.load"(%px) {operandSegmentSizes = array<i32: 1, 0, 0>} : (PA) -> TA
  %s = "tgpu.alloc"() {offset = 0 : i64} : () -> ONE
  "tgpu.local_store"(%t, %s) : (TA, ONE) -> ()
  "tgpu.barrier"() {memory = "shared"} : () -> ()
  %v = "tgpu.local_load"(%s) : (ONE) -> TB"""
COPIED = """
  %s = "tgpu.alloc"() {offset = 0 : i64} : () -> TWO
  %i = arith.constant 1 : i32
  %slot = "tgpu.slot"(%s, %i) : (TWO, i32) -> ONE
  "tgpu.async_copy"(%px, %slot) {operandSegmentSizes = array<i32: 1, 1, 0>} : (PA, ONE) -> ()
  "tgpu.async_commit"() : () -> ()
  "tgpu.async_wait"() {pending = 0 : i64} : () -> ()
  "tgpu.barrier"() {memory = "shared"} : () -> ()
  %v = "tgpu.local_load"(%slot) : (ONE) -> TB"""
MASKED = COPIED.replace(
    '"tgpu.async_copy"(%px, %slot) {operandSegmentSizes = array<i32: 1, 1, 0>} : (PA, ONE)',
    '%m = arith.constant dense<false> : MA\n'
    '  "tgpu.async_copy"(%px, %slot, %m) {operandSegmentSizes = array<i32: 1, 1, 1>}'
    " : (PA, ONE, MA)",
)  # fmt: skip


def sample(
    element: str, shape: tuple[int, int]
) -> np.ndarray[tuple[int, int], np.dtype[np.generic]]:
    return (np.arange(shape[0] * shape[1]) % 97).reshape(shape).astype(DTYPES[element])


@st.composite
def layouts(draw: st.DrawFn, shape: tuple[int, int]) -> LinearLayout:
    """Give a layout over four warps; the tile may be held in copies."""
    bits = (shape[0] * shape[1]).bit_length() - 1
    columns: list[int] = draw(st.permutations([1 << i for i in range(bits)]))
    place = [*columns[:7], *[0] * (7 - len(columns[:7]))]
    place = draw(st.permutations(place))
    return LinearLayout.from_flat(
        {"register": columns[7:], "lane": place[:5], "warp": place[5:]}, shape
    )


@given(data=st.data(), element=st.sampled_from(["i8", "f16", "i32", "i64"]))
@settings(max_examples=25, deadline=None)
def test_any_layout_is_stored_once_and_loaded_by_all(data: st.DataObject, element: str) -> None:
    shape = data.draw(st.sampled_from([(4, 8), (16, 32), (32, 32)]))
    source, result = data.draw(layouts(shape)), data.draw(layouts(shape))
    bits = 8 * DTYPES[element].itemsize
    shared = choose_shared_layout(shape, bits, source, [result]).layout
    x, y = sample(element, shape), np.zeros(shape, DTYPES[element])
    run(lower(parse(kernel(element, source, result, shared, THROUGH))), x, y)
    assert np.array_equal(y, x)


@pytest.mark.parametrize("chip", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(("element", "bits"), [("f16", 16), ("i8", 8), ("f32", 32)])
@pytest.mark.parametrize("operand", ["a", "b"])
def test_operands_of_products_come_by_matrices(
    operand: str, element: str, bits: int, chip: str
) -> None:
    fragments = mma_sync(16, 8, 256 // bits, bits)
    shape = (32, 32) if bits > 8 else (32, 64) if operand == "a" else (64, 32)
    result = fragments.tile("a" if operand == "a" else "b", shape, (2, 2))
    source = blocked(shape, (1, 128 // bits), (16, 2), (2, 2))
    shared = choose_shared_layout(shape, bits, source, [result], matrix_loads=True).layout
    x, y = sample(element, shape), np.zeros(shape, DTYPES[element])
    module = lower(parse(kernel(element, source, result, shared, THROUGH)), 4, chip)
    if operand == "a" or bits == 16:
        assert "ldmatrix" in str(module)
    run(module, x, y)
    assert np.array_equal(y, x)


def test_an_accumulator_leaves_by_matrices_where_the_chip_has_them() -> None:
    shape = (32, 32)
    source = mma_sync(16, 8, 16, 16).tile("acc", shape, (2, 2))
    result = blocked(shape, (1, 8), (8, 4), (4, 1))
    shared = choose_shared_layout(shape, 16, source, [result], matrix_stores=True).layout
    text = kernel("f16", source, result, shared, THROUGH)
    x, y = sample("f16", shape), np.zeros(shape, np.float16)
    module = lower(parse(text), 4, "sm_90a")
    assert "stmatrix" in str(module)
    assert "stmatrix" not in str(lower(parse(text), 4, "sm_80"))
    run(module, x, y)
    assert np.array_equal(y, x)


@pytest.mark.parametrize(("element", "per_thread"), [("f16", 8), ("f32", 2), ("i8", 4), ("i8", 2)])
def test_asynchronous_copies_fill_the_slot_they_name(element: str, per_thread: int) -> None:
    shape = (16, 64)
    source = blocked(shape, (1, per_thread), (32 * per_thread // 64, 64 // per_thread), (4, 1))
    result = blocked(shape, (1, 1), (2, 16), (4, 1))
    bits = 8 * DTYPES[element].itemsize
    x, y = sample(element, shape), np.zeros(shape, DTYPES[element])
    shared = LinearLayout.identity(shape)
    module = lower(parse(kernel(element, source, result, shared, COPIED)))
    size = per_thread * bits // 8
    assert (f"cp.async.c{'g' if size == 16 else 'a'}.shared.global.{size}" in str(module)) == (
        size >= 4
    )
    run(module, x, y)
    assert np.array_equal(y, x)


def test_an_asynchronous_copy_that_is_masked_off_gives_zeros_and_reads_nothing() -> None:
    shape = (16, 64)
    source = blocked(shape, (1, 8), (4, 8), (4, 1))
    shared = LinearLayout.identity(shape)
    y = np.ones(shape, np.float16)
    nothing = np.zeros(0, np.float16)
    run(lower(parse(kernel("f16", source, source, shared, MASKED))), nothing, y)
    assert not y.any()


def test_a_missing_barrier_is_a_race() -> None:
    shape = (16, 64)
    source = blocked(shape, (1, 8), (4, 8), (4, 1))
    result = blocked(shape, (1, 1), (2, 16), (1, 4))
    shared = LinearLayout.identity(shape)
    text = kernel("f16", source, result, shared, THROUGH)
    text = text.replace('"tgpu.barrier"() {memory = "shared"} : () -> ()', "")
    x, y = sample("f16", shape), np.zeros(shape, np.float16)
    with pytest.raises(AssertionError, match="race"):
        run(lower(parse(text)), x, y)
