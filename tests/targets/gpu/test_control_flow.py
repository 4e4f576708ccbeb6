from __future__ import annotations

import numpy as np
import pytest

from tests.targets.gpu.running import run, to_machine
from tiledsl.dialects.context import parse

TILE = "tensor<64xi32>"
POINTERS = "tensor<64x!tile.ptr<i32>>"
PROLOGUE = f"""
func.func @kernel(%x: !tile.ptr<i32>, %y: !tile.ptr<i32>, %n: i32) {{
  %zero = arith.constant 0 : i32
  %one = arith.constant 1 : i32
  %r = "tile.make_range"() {{start = 0 : i64, end = 64 : i64}} : () -> {TILE}
  %sx = "tile.splat"(%x) : (!tile.ptr<i32>) -> {POINTERS}
  %sy = "tile.splat"(%y) : (!tile.ptr<i32>) -> {POINTERS}
  %px = "tile.addptr"(%sx, %r) : ({POINTERS}, {TILE}) -> {POINTERS}
  %py = "tile.addptr"(%sy, %r) : ({POINTERS}, {TILE}) -> {POINTERS}
"""


def load(pointers: str) -> str:
    sizes = "{operandSegmentSizes = array<i32: 1, 0, 0>}"
    return f'"tile.load"({pointers}) {sizes} : ({POINTERS}) -> {TILE}'


def store(pointers: str, value: str) -> str:
    return f'"tile.store"({pointers}, {value}) : ({POINTERS}, {TILE}) -> ()'


FOR = f"""{PROLOGUE}
  %none = arith.constant dense<0> : {TILE}
  %step = arith.constant dense<64> : {TILE}
  %s, %p = scf.for %i = %zero to %n step %one iter_args(%a = %none, %q = %px)
      -> ({TILE}, {POINTERS}) : i32 {{
    %v = {load("%q")}
    %t = arith.addi %a, %v : {TILE}
    %next = "tile.addptr"(%q, %step) : ({POINTERS}, {TILE}) -> {POINTERS}
    scf.yield %t, %next : {TILE}, {POINTERS}
  }}
  {store("%py", "%s")}
  return
}}"""

# Pointers that step by something else in every element.
SPREADING = FOR.replace("(%q, %step)", "(%q, %wide)").replace(
    "%step = arith.constant dense<64>", "%wide = arith.muli %r, %r"
)

IF = f"""{PROLOGUE}
  %c = arith.cmpi slt, %zero, %n : i32
  %p, %v = scf.if %c -> ({POINTERS}, {TILE}) {{
    scf.yield %px, %r : {POINTERS}, {TILE}
  }} else {{
    %w = {load("%px")}
    scf.yield %py, %w : {POINTERS}, {TILE}
  }}
  {store("%p", "%v")}
  return
}}"""

WHILE = f"""{PROLOGUE}
  %start = {load("%px")}
  %i, %v = scf.while (%k = %zero, %a = %start) : (i32, {TILE}) -> (i32, {TILE}) {{
    %go = arith.cmpi slt, %k, %n : i32
    scf.condition(%go) %k, %a : i32, {TILE}
  }} do {{
  ^bb0(%k: i32, %a: {TILE}):
    %m = arith.addi %k, %one : i32
    %b = arith.addi %a, %r : {TILE}
    scf.yield %m, %b : i32, {TILE}
  }}
  {store("%py", "%v")}
  return
}}"""


@pytest.mark.parametrize("trips", [0, 1, 3])
def test_a_loop_carries_a_tile_and_pointers_that_move_together(trips: int) -> None:
    x, y = np.arange(64 * 4, dtype=np.int32), np.full(64, -1, np.int32)
    module = to_machine(parse(FOR))
    run(module, x, y, trips)
    assert np.array_equal(y, x[: 64 * trips].reshape(trips, 64).sum(0))


def test_pointers_that_move_together_carry_a_base_and_no_offsets() -> None:
    text = str(to_machine(parse(FOR)))
    assert "-> (vector<1xi32>, !llvm.ptr<1>, vector<1xi32>)" in text
    text = str(to_machine(parse(SPREADING)))
    assert "-> (vector<1xi32>, !llvm.ptr<1>, vector<1xi64>)" in text


@pytest.mark.parametrize("trips", [0, 1, 3])
def test_a_loop_carries_pointers_that_move_apart(trips: int) -> None:
    r = np.arange(64)
    x = np.random.default_rng(0).integers(0, 99, 64 * 64 * 4).astype(np.int32)
    y = np.full(64, -1, np.int32)
    run(to_machine(parse(SPREADING)), x, y, trips)
    assert np.array_equal(y, sum((x[r + i * r * r] for i in range(trips)), np.zeros(64, np.int32)))


@pytest.mark.parametrize("n", [0, 1])
def test_a_branch_gives_one_of_two_tiles_and_pointers(n: int) -> None:
    x, y = np.arange(100, 164, dtype=np.int32), np.full(64, -1, np.int32)
    run(to_machine(parse(IF)), x, y, n)
    assert np.array_equal(x if n else y, np.arange(64) if n else np.arange(100, 164))


@pytest.mark.parametrize("n", [0, 1, 5])
def test_a_while_loop_tests_again_on_each_trip(n: int) -> None:
    x, y = np.arange(64, dtype=np.int32), np.full(64, -1, np.int32)
    run(to_machine(parse(WHILE)), x, y, n)
    assert np.array_equal(y, x + n * np.arange(64))
