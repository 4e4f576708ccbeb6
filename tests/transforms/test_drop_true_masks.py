"""Masks that are proved are dropped, masks that may be false stay, results never change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlir import ir

from tests.transforms.golden import golden
from tests.transforms.tile_interpreter import Machine, Memory
from tiledsl.dialects import contracts
from tiledsl.dialects.context import parse
from tiledsl.dialects.contracts import TILE
from tiledsl.transforms.drop_true_masks import drop_true_masks

LOAD = "{operandSegmentSizes = array<i32: 1, 1, 0>}"
OTHER = "{operandSegmentSizes = array<i32: 1, 1, 1>}"
PTRS = "tensor<32x!tile.ptr<i32>>"


def masked(mask: str, arguments: str = "%n: i32", first: str = "%zero") -> str:
    """Return a kernel that copies 32 elements from `first` under a mask of the indices %i."""
    return f"""func.func @k(%p: !tile.ptr<i32>, %q: !tile.ptr<i32>, {arguments}) {{
    %zero = arith.constant 0 : i32
    %r = "tile.make_range"() {{start = 0, end = 32}} : () -> tensor<32xi32>
    %f = "tile.splat"({first}) : (i32) -> tensor<32xi32>
    %i = arith.addi %f, %r : tensor<32xi32>
    %ns = "tile.splat"(%n) : (i32) -> tensor<32xi32>
    {mask}
    {COPY}
    return
    }}"""


COPY = f"""%pb = "tile.splat"(%p) : (!tile.ptr<i32>) -> {PTRS}
    %qb = "tile.splat"(%q) : (!tile.ptr<i32>) -> {PTRS}
    %pp = "tile.addptr"(%pb, %i) : ({PTRS}, tensor<32xi32>) -> {PTRS}
    %qp = "tile.addptr"(%qb, %i) : ({PTRS}, tensor<32xi32>) -> {PTRS}
    %v = "tile.load"(%pp, %m) {LOAD} : ({PTRS}, tensor<32xi1>) -> tensor<32xi32>
    "tile.store"(%qp, %v, %m) : ({PTRS}, tensor<32xi32>, tensor<32xi1>) -> ()"""


def dropped(text: str) -> str:
    module = parse(text)
    with module.context, ir.Location.unknown():
        drop_true_masks(module)
    contracts.check(module, TILE)
    return str(module)


def is_masked(text: str) -> bool:
    found = dropped(text)
    assert ("array<i32: 1, 1, 0>" in found) == ("array<i32: 1, 0, 0>" not in found)
    return "array<i32: 1, 0, 0>" not in found


def test_a_mask_within_the_tile_vanishes():
    golden(
        masked(
            """
    // CHECK: %[[V:.*]] = "tile.load"(%{{[0-9]+}}) {{.*}}array<i32: 1, 0, 0>
    // CHECK: "tile.store"(%{{[0-9]+}}, %[[V]]) :
    %b = arith.constant dense<32> : tensor<32xi32>
    %m = arith.cmpi slt, %i, %b : tensor<32xi32>"""
        ),
        drop_true_masks,
    )


def test_a_mask_over_a_ragged_edge_is_kept():
    assert is_masked(
        masked(
            """%b = arith.constant dense<31> : tensor<32xi32>
    %m = arith.cmpi slt, %i, %b : tensor<32xi32>"""
        )
    )


def test_a_mask_by_an_unknown_bound_is_kept():
    assert is_masked(masked("%m = arith.cmpi slt, %i, %ns : tensor<32xi32>"))


def test_one_proved_half_of_a_mask_is_left_out():
    found = dropped(
        masked(
            """%b = arith.constant dense<32> : tensor<32xi32>
    %m0 = arith.cmpi slt, %i, %b : tensor<32xi32>
    %m1 = arith.cmpi slt, %i, %ns : tensor<32xi32>
    %m = arith.andi %m0, %m1 : tensor<32xi1>"""
        )
    )
    assert found.count("cmpi") == 1
    mask = found.partition(" = arith.cmpi")[0].rpartition(" ")[2]
    assert f", {mask}) {{operandSegmentSizes = array<i32: 1, 1, 0>}}" in found


def test_a_load_that_is_never_made_gives_other_and_a_store_is_gone():
    text = masked(
        """%b = arith.constant dense<32> : tensor<32xi32>
    %m = arith.cmpi sge, %i, %b : tensor<32xi32>"""
    ).replace(
        f'"tile.load"(%pp, %m) {LOAD} : ({PTRS}, tensor<32xi1>)',
        f'"tile.load"(%pp, %m, %ns) {OTHER} : ({PTRS}, tensor<32xi1>, tensor<32xi32>)',
    )
    text = text.replace("return", '"tile.print"(%v) {prefix = ""} : (tensor<32xi32>) -> ()\nreturn')
    found = dropped(text)
    assert "tile.load" not in found
    assert "tile.store" not in found
    other = found.partition(' = "tile.splat"(%arg2)')[0].rpartition(" ")[2]
    assert f'"tile.print"({other})' in found


def loop(bound: str, mask: str, first: str = "%c0", step: int = 32, n: str = "%n: i32") -> str:
    """Return a kernel that copies a block at %k0 + 0..31 in each trip of a loop."""
    return f"""func.func @k(%p: !tile.ptr<i32>, %q: !tile.ptr<i32>, {n}) {{
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %c2 = arith.constant 2 : i32
    %c31 = arith.constant 31 : i32
    %c32 = arith.constant 32 : i32
    %step = arith.constant {step} : i32
    %r = "tile.make_range"() {{start = 0, end = 32}} : () -> tensor<32xi32>
    {bound}
    scf.for %k0 = {first} to %end step %step : i32 {{
      {mask}
      {COPY}
    }}
    return
    }}"""


TO_N = "%end = arith.addi %n, %c0 : i32"
BELOW_N = """%f = "tile.splat"(%k0) : (i32) -> tensor<32xi32>
      %i = arith.addi %f, %r : tensor<32xi32>
      %ns = "tile.splat"(%end) : (i32) -> tensor<32xi32>
      %m = arith.cmpi slt, %i, %ns : tensor<32xi32>"""
DIVISIBLE = "%n: i32 {tile.divisibility = 32 : i64}"


def test_a_mask_by_a_loops_own_bound_vanishes_where_the_block_divides_it():
    assert not is_masked(loop(TO_N, BELOW_N, n=DIVISIBLE))


@pytest.mark.parametrize(
    ("first", "step", "n"),
    [
        ("%c0", 32, "%n: i32"),
        ("%c0", 32, "%n: i32 {tile.divisibility = 16 : i64}"),
        ("%c2", 32, DIVISIBLE),
        ("%c0", 16, DIVISIBLE),
    ],
)
def test_a_mask_by_a_loops_bound_is_kept_where_a_block_may_reach_over_it(
    first: str, step: int, n: str
):
    assert is_masked(loop(TO_N, BELOW_N, first, step, n))


CEIL = """%up = arith.addi %n, %c31 : i32
    %end = "tile.floordiv"(%up, %c32) {signed = true} : (i32, i32) -> i32"""
REST = """%at = arith.muli %k0, %c32 : i32
      %f = "tile.splat"(%at) : (i32) -> tensor<32xi32>
      %i = arith.addi %f, %r : tensor<32xi32>
      %left = arith.subi %n, %at : i32
      %ls = "tile.splat"(%left) : (i32) -> tensor<32xi32>
      %m = arith.cmpi slt, %r, %ls : tensor<32xi32>"""


def test_a_mask_by_what_is_left_of_blocks_counted_up_vanishes():
    positive = "%n: i32 {tile.divisibility = 32 : i64, tile.min = 0 : i64}"
    assert not is_masked(loop(CEIL, REST, step=1, n=positive))
    assert is_masked(loop(CEIL, REST, step=1, n="%n: i32 {tile.min = 0 : i64}"))


def test_an_assertion_that_holds_is_gone():
    text = """func.func @k(%n: i32) {
    %id = "tile.program_id"() {axis = 0} : () -> i32
    %z = arith.constant 0 : i32
    %c = arith.cmpi sge, %id, %z : i32
    "tile.assert"(%c) {message = "", operandSegmentSizes = array<i32: 1, 0>} : (i1) -> ()
    return
    }"""
    assert "tile.assert" not in dropped(text)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["slt", "sle", "sgt", "sge", "ult", "uge", "eq", "ne"]),
    st.integers(-4, 40),
    st.sampled_from([(0, 32), (2, 4), (0, 48), (-8, 8)]),
    st.sampled_from(["%end", "%n", "%c31", "%c32"]),
    st.sampled_from([1, 4, 16]),
)
def test_a_kernel_copies_what_it_did(
    predicate: str, n: int, trips: tuple[int, int], bound: str, divisor: int
):
    n -= n % divisor
    mask = f"""%f = "tile.splat"(%k0) : (i32) -> tensor<32xi32>
      %i = arith.addi %f, %r : tensor<32xi32>
      %ns = "tile.splat"({bound}) : (i32) -> tensor<32xi32>
      %m0 = arith.cmpi {predicate}, %i, %ns : tensor<32xi32>
      %zs = arith.constant dense<0> : tensor<32xi32>
      %m1 = arith.cmpi sge, %i, %zs : tensor<32xi32>
      %m2 = arith.cmpi slt, %i, %big : tensor<32xi32>
      %m3 = arith.andi %m0, %m1 : tensor<32xi1>
      %m = arith.andi %m3, %m2 : tensor<32xi1>"""
    start = f"""%start = arith.constant {trips[0]} : i32
    %big = arith.constant dense<128> : tensor<32xi32>
    %end = arith.addi %n, %c32 : i32"""
    text = loop(start, mask, "%start", trips[1], f"%n: i32 {{tile.divisibility = {divisor} : i64}}")
    results: list[np.ndarray[tuple[int, ...], np.dtype[np.int32]]] = []
    for optimized in (False, True):
        module = parse(text)
        if optimized:
            with module.context, ir.Location.unknown():
                drop_true_masks(module)
        memory = Memory([np.arange(128, dtype=np.int32), np.full(128, -1, np.int32)])
        Machine(memory).run(module, memory.pointer(0), memory.pointer(1), np.array(n, np.int32))
        results.append(memory.arrays[1])
    np.testing.assert_array_equal(results[0], results[1])


def test_comparisons_of_comparisons_of_floats_are_left_alone():
    module = parse(
        """
        func.func @kernel(%x: tensor<8xf32>) {
          %zero = arith.constant dense<0.0> : tensor<8xf32>
          %less = arith.cmpf olt, %x, %zero : tensor<8xf32>
          %more = arith.cmpf ogt, %x, %zero : tensor<8xf32>
          %both = arith.cmpi ult, %less, %more : tensor<8xi1>
          return
        }
        """
    )
    before = str(module)
    drop_true_masks(module)
    assert str(module) == before
