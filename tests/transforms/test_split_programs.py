"""Kernels of one block of several: what is split and how, and that all blocks do what one did."""

from __future__ import annotations

import copy
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from mlir import ir

import tiledsl as tile
from tests.kernels.cluster_kernels import doubtful
from tests.transforms import tile_kernels
from tests.transforms.golden import golden
from tests.transforms.random_kernels import ELEMENTS, modules
from tests.transforms.tile_interpreter import Machine, Memory
from tests.transforms.tile_kernels import Kernel
from tiledsl.dialects import contracts
from tiledsl.dialects.context import parse
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.targets.nvptx import ptxas
from tiledsl.transforms.split_programs import split_programs


@pytest.fixture(autouse=True)
def _without_ptxas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptxas, "find_ptxas", lambda: None)


def halve(module: ir.Module) -> None:
    split_programs(module, blocks=2)


def halved(module: ir.Module, blocks: int = 2) -> str:
    with module.context, ir.Location.unknown():
        split_programs(module, blocks=blocks)
    contracts.check(module, contracts.TILE)
    return str(module)


def shapes_of(text: str, name: str) -> list[str]:
    """Return the shapes of the results of the ops of a name."""
    return re.findall(rf'"{name}"\(.*-> tensor<([0-9x]*)x', text)


def test_ranges_begin_where_the_block_is_and_constants_shrink() -> None:
    golden(
        """
    // CHECK: func.func @k
    // CHECK-SAME: tile.num_ctas = 2
    // CHECK: %[[B:.*]] = "tile.block_id"() {blocks = 2
    // CHECK: "tile.make_range"() {end = 64 : i64, start = 0 : i64} : () -> tensor<64xi32>
    // CHECK: arith.muli %[[B]]
    // CHECK: arith.constant dense<7> : tensor<64xi32>
    // CHECK: "tile.store"({{.*}}) {{.*}} : (tensor<64x!tile.ptr<i32>>, tensor<64xi32>) -> ()
    func.func @k(%p: !tile.ptr<i32>) {
      %r = "tile.make_range"() {start = 0, end = 128} : () -> tensor<128xi32>
      %s = "tile.splat"(%p) : (!tile.ptr<i32>) -> tensor<128x!tile.ptr<i32>>
      %q = "tile.addptr"(%s, %r) : (tensor<128x!tile.ptr<i32>>, tensor<128xi32>) -> tensor<128x!tile.ptr<i32>>
      %c = arith.constant dense<7> : tensor<128xi32>
      "tile.store"(%q, %c) {operandSegmentSizes = array<i32: 1, 1, 0>} : (tensor<128x!tile.ptr<i32>>, tensor<128xi32>) -> ()
      return
    }""",
        halve,
    )


def test_what_one_block_does_is_masked_off_in_the_others() -> None:
    golden(
        """
    // CHECK: %[[F:.*]] = arith.cmpi eq
    // CHECK: %[[M:.*]] = arith.andi %{{.*}}, %[[F]]
    // CHECK: "tile.store"(%{{.*}}, %{{.*}}, %[[M]])
    // CHECK: "tile.atomic_rmw"(%{{.*}}, %{{.*}}, %[[F]])
    // CHECK: scf.if %[[F]] {
    // CHECK-NEXT: "tile.print"
    func.func @k(%p: !tile.ptr<i32>, %x: i32, %m: i1) {
      "tile.store"(%p, %x, %m) {operandSegmentSizes = array<i32: 1, 1, 1>} : (!tile.ptr<i32>, i32, i1) -> ()
      %o = "tile.atomic_rmw"(%p, %x) {kind = "add", operandSegmentSizes = array<i32: 1, 1, 0>} : (!tile.ptr<i32>, i32) -> i32
      "tile.print"(%x) {prefix = "x", operandSegmentSizes = array<i32: 1>} : (i32) -> ()
      return
    }""",
        halve,
    )


def test_a_product_is_split_along_rows_its_right_operand_is_whole() -> None:
    text = halved(tile_kernels.matmul(128, 64, 32))
    assert shapes_of(text, "tile.dot") == ["64x64"]
    assert shapes_of(text, "tile.load") == ["64x32", "32x64"]


def test_a_product_with_few_rows_is_split_along_columns() -> None:
    text = halved(tile_kernels.matmul(64, 128, 32))
    assert shapes_of(text, "tile.dot") == ["64x64"]
    assert shapes_of(text, "tile.load") == ["64x32", "32x64"]
    assert shapes_of(halved(tile_kernels.matmul(16, 128, 32)), "tile.dot") == ["16x64"]


def test_a_product_too_small_for_two_is_made_by_both_and_stored_by_one() -> None:
    text = halved(tile_kernels.matmul(16, 16, 32))
    assert shapes_of(text, "tile.dot") == ["16x16"]
    assert "tensor<16x16xi1>" in text


def test_four_blocks_take_a_quarter_each() -> None:
    assert shapes_of(halved(tile_kernels.matmul(256, 64, 32), 4), "tile.dot") == ["64x64"]


def test_attention_splits_queries_and_has_all_keys() -> None:
    text = halved(tile_kernels.attention(128, 64, 32))
    assert shapes_of(text, "tile.dot") == ["64x64", "64x32"]
    assert sorted(shapes_of(text, "tile.load")) == ["64x32", "64x32", "64x32"]


def test_rows_are_reduced_by_the_block_that_has_them() -> None:
    text = halved(tile_kernels.softmax(4, 256))
    assert shapes_of(text, "tile.load") == ["2x256"]


def test_what_is_reduced_along_the_only_dimension_is_read_by_both() -> None:
    k = Kernel("*f32", "*f32")
    x = k.load(k.pointers(k.args[0], 128))
    total = k.splat(k.reduce(x, 0), 128)
    k.store(k.pointers(k.args[1], 128), k.op("arith.addf", x, total))
    assert sorted(shapes_of(halved(k.finish()), "tile.load")) == ["128", "64"]


# --- what cannot be ------------------------------------------------------------------------------


TYPES = {"a": "*fp16:16", "b": "*fp16:16", "c": "*fp32:16", "total": "*i32:16"}
FAULTS = {
    "column sums": ("tile.sum(acc, 0)", "expected a product that is used split in one way, found it used along dimension 0 and along dimension 1"),
    "sum": ("tile.sum(acc)", "expected a product that is used split in one way, found it used along dimension 0 and whole"),
    "ticket": ("tile.atomic_add(total, 1)", "expected no result of an atomic operation that every block needs"),
    "lock": ("tile.atomic_cas(total, 0, 1)", "expected no compare-and-swap of a scalar, which one block would do"),
    "flag": ("tile.load(total, volatile=True)", "expected no volatile load of a scalar, which blocks may see differently"),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS)
def test_what_blocks_would_have_to_tell_each_other_is_refused_at_its_line(case: str) -> None:
    types = TYPES | ({"total": "*fp32:16"} if "sum" in case else {})
    with pytest.raises(KernelError) as caught:
        tile.compile(doubtful, types, {"CASE": case}, "sm_90a", num_ctas=2)
    where, message = FAULTS[case]
    assert caught.value.message == f"num_ctas: {message}"
    assert caught.value.hint == "num_ctas=1 runs the program in one block"
    _, _, source, carets = str(caught.value).split("\n")[1:5]
    marked = source[carets.index("^") : carets.rindex("^") + 1]
    assert marked == where
    tile.compile(doubtful, types, {"CASE": case}, "sm_80", num_ctas=2)


def test_the_pass_is_there_only_where_there_are_clusters() -> None:
    def passes(chip: str, **options: Any) -> list[str]:
        made = tile.compile(doubtful, TYPES, {"CASE": ""}, chip, **options)
        return [name for name, _ in made.stages]

    assert passes("sm_90a", num_ctas=2)[:3] == ["trace", "simplify", "split_programs"]
    assert "split_programs" not in passes("sm_90a")
    assert "split_programs" not in passes("gfx942", num_ctas=2)


# --- against one block ---------------------------------------------------------------------------


def ran(module: ir.Module, blocks: int) -> tuple[np.ndarray[Any, Any], int]:
    """Return what a kernel's blocks, one after another, store, and how many elements."""
    source = np.random.default_rng(0).integers(-99, 99, ELEMENTS).astype(np.int32)
    memory = Memory([source, np.full(4 * ELEMENTS, -7, np.int32)])
    arguments = (memory.pointer(0), memory.pointer(1), np.array(2, np.int32))
    for block in range(blocks):
        Machine(memory, block=block).run(module, *map(copy.copy, arguments))
    return memory.arrays[1], len(memory.log)


@settings(max_examples=25, deadline=None)
@given(modules())
def test_all_blocks_store_what_one_did_each_element_once(module: ir.Module) -> None:
    want, stores = ran(module, 1)
    made = parse(str(module))
    try:
        halved(made)
    except KernelError:
        assume(False)
    found, count = ran(made, 2)
    np.testing.assert_array_equal(found, want)
    assert count == stores
