"""Pieces of an array that a loop walks over: apart, or touched again in a later trip."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlir import ir

from tiledsl.dialects import contracts
from tiledsl.dialects.context import parse
from tiledsl.dialects.contracts import operations
from tiledsl.transforms.insert_barriers import insert_barriers
from tiledsl.transforms.trip_stripes import Stripe

HEAD = """
"tgpu.layout"() {sym_name = "l", map = "register=[] lane=[[1],[2],[4],[8],[16]] warp=[[32],[64]] shape=[128]"} : () -> ()
func.func @kernel(%q: !tile.ptr<f32>, %n: i32, %row: i32) {
  %lanes = "tile.make_range"() {start = 0, end = 128} : () -> tensor<128xi32, @l>
  %x = arith.constant dense<1.0> : tensor<128xf32, @l>
  %zero = arith.constant 0 : i32
  %one = arith.constant 1 : i32
  %some = arith.constant STEP : i32
  %before = arith.constant dense<-128> : tensor<128xi32, @l>
  %moved = "tile.addptr"(%q, %row) : (!tile.ptr<f32>, i32) -> !tile.ptr<f32>
"""
POINTERS = "tensor<128x!tile.ptr<f32>, @l>"
OFFSETS = "tensor<128xi32, @l>"


def pointers(name: str, start: str, base: str = "%moved", lanes: str = "%lanes") -> str:
    return f"""
  %{name}s = "tile.splat"({start}) : (i32) -> {OFFSETS}
  %{name}o = arith.addi %{name}s, {lanes} : {OFFSETS}
  %{name}b = "tile.splat"({base}) : (!tile.ptr<f32>) -> {POINTERS}
  %{name} = "tile.addptr"(%{name}b, %{name}o) : ({POINTERS}, {OFFSETS}) -> {POINTERS}
"""


STORE = f'"tile.store"(%p, %x) : ({POINTERS}, tensor<128xf32, @l>) -> ()\n'
LOAD = f"""%y = "tile.load"(%r) {{operandSegmentSizes = array<i32: 1, 0, 0>}}
  : ({POINTERS}) -> tensor<128xf32, @l>
"""


def loop(body: str, variable: str = "%k", step: str = "%some") -> str:
    return f"scf.for {variable} = %zero to %n step {step} : i32 {{\n{body}\n}}\n"


def barriers(text: str, step: int = 128) -> int:
    module = parse(HEAD.replace("STEP", str(step)) + text + "return\n}")
    contracts.check(module, contracts.TGPU)
    with module.context, ir.Location.unknown():
        insert_barriers(module)
    names = [op.operation.name for op in operations(module.operation)]
    return names.count("tgpu.barrier")


@pytest.mark.parametrize(("step", "needed"), [(128, 0), (4096, 0), (127, 1), (1, 1)])
def test_pieces_that_do_not_overlap_are_stored_without_a_barrier(step: int, needed: int) -> None:
    assert barriers(loop(pointers("p", "%k") + STORE), step) == needed


@pytest.mark.parametrize(("factor", "needed"), [(128, 0), (64, 1), (-128, 1)])
def test_a_variable_may_count_pieces(factor: int, needed: int) -> None:
    body = "%first = arith.muli %k, %some : i32\n" + pointers("p", "%first") + STORE
    assert barriers(loop(body, step="%one"), factor) == needed


def test_what_a_trip_loads_of_its_own_piece_alone_needs_no_barrier() -> None:
    # The same thread stores what it loaded.
    body = pointers("p", "%k") + LOAD.replace("%r", "%p") + STORE
    assert barriers(loop(body)) == 0


def test_the_piece_before_is_what_the_trip_before_stored() -> None:
    before = "%back = arith.addi %lanes, %before : tensor<128xi32, @l>\n"
    body = before + pointers("r", "%k", lanes="%back") + LOAD + pointers("p", "%k") + STORE
    # Another one keeps the store behind the loads of the same trip.
    assert barriers(loop(body)) == 2


def test_a_base_that_moves_in_the_loop_may_move_back() -> None:
    moving = '%w = "tile.addptr"(%q, %k) : (!tile.ptr<f32>, i32) -> !tile.ptr<f32>\n'
    assert barriers(loop(moving + pointers("p", "%k", base="%w") + STORE)) == 1


def test_another_base_through_the_same_argument_may_be_anywhere() -> None:
    body = pointers("r", "%k", base="%q") + LOAD + pointers("p", "%k") + STORE
    assert barriers(loop(body)) >= 1


def test_the_same_loop_again_touches_the_same_pieces() -> None:
    again = loop(loop(pointers("p", "%k") + STORE), variable="%j", step="%one")
    assert barriers(again) == 1


def test_the_outer_loop_may_be_the_one_that_walks() -> None:
    inner = loop(pointers("p", "%j") + STORE, variable="%k", step="%one")
    assert barriers(loop(inner, variable="%j")) >= 1


@settings(max_examples=200, deadline=None)
@given(*(st.integers(-6, 6) for _ in range(4)), st.integers(1, 8))
def test_what_passes_is_never_touched_again(a: int, b: int, c: int, d: int, moved: int) -> None:
    module = parse("module {}")
    one, other = (
        Stripe(module.operation, frozenset(), moved, min(ends), max(ends))
        for ends in ((a, b), (c, d))
    )

    def touched(stripe: Stripe, trip: int) -> set[int]:
        return {moved * trip + i for i in range(stripe.low, stripe.high + 1)}

    meets = any(
        touched(one, first) & touched(other, first + more)
        for first, more in itertools.product(range(2), range(1, 16))
    )
    assert one.passes(other) <= (not meets)
    if other.high - one.low >= -moved:  # then it is not the later one that lies behind
        assert one.passes(other) == (not meets)
