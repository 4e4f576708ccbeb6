"""Comparisons with a bound are the same through what is left of it, whatever the bound."""

from __future__ import annotations

import numpy as np
import pytest
from mlir import ir

from tests.targets.gpu.running import run
from tests.transforms.golden import golden
from tiledsl.dialects.context import parse
from tiledsl.dialects.contracts import MACHINE, check, operations
from tiledsl.targets.gpu.share_bounds import share_bounds

HEAD = """
llvm.func @kernel(%p: !llvm.ptr<1>, %q: !llvm.ptr<1>) attributes {{
    tile.kinds = ["ptr", "ptr"], tile.threads = 64 : i64, tile.shared_bytes = 0 : i64}} {{
  %tid = llvm.call_intrinsic "llvm.nvvm.read.ptx.sreg.tid.x"() : () -> i32
  %n = llvm.load %p {{alignment = 4 : i64}} : !llvm.ptr<1> -> i32
  %mask = arith.constant 63 : i32
  %two = arith.constant 2 : i32
  %low = arith.andi %tid, %mask : i32
  %own = arith.shli %low, %two overflow<nsw, nuw> : i32
  %constants = arith.constant dense<[0, 1, 256, 1000]> : vector<4xi32>
  %bound = vector.broadcast %n : i32 to vector<4xi32>
"""
TAIL = """
  %wide = arith.extui %m : vector<4xi1> to vector<4xi32>
  %at = llvm.getelementptr %q[%own] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, i32
  llvm.store %wide, %at {alignment = 16 : i64} : vector<4xi32>, !llvm.ptr<1>
  llvm.return
}
"""


def compare(predicate: str = "slt", own: str = "%own", flags: str = " overflow<nsw>") -> str:
    return f"""
  %first = vector.broadcast {own} : i32 to vector<4xi32>
  %i = arith.addi %first, %constants{flags} : vector<4xi32>
  %m = arith.cmpi {predicate}, %i, %bound : vector<4xi32>
"""


def changed(body: str) -> ir.Module:
    module = parse(HEAD.format() + body + TAIL)
    with module.context, ir.Location.unknown():
        share_bounds(module)
    check(module, MACHINE)
    return module


def test_a_bound_is_reduced_by_the_threads_own_number_once() -> None:
    golden(
        HEAD.format()
        + compare()
        + TAIL
        + """
        // CHECK: [[N:%.*]] = llvm.load
        // CHECK: [[A:%.*]] = arith.shli
        // CHECK: [[C:%.*]] = arith.constant dense<[0, 1, 256, 1000]>
        // CHECK: [[P:%.*]] = arith.maxsi [[N]]
        // CHECK: [[D:%.*]] = arith.subi [[P]], [[A]] : i32
        // CHECK: [[E:%.*]] = vector.broadcast [[D]]
        // CHECK: arith.cmpi slt, [[C]], [[E]] : vector<4xi32>
        """,
        share_bounds,
        MACHINE,
    )


@pytest.mark.parametrize(
    "body",
    [
        compare("ult"),
        compare("sle"),
        compare(flags=""),  # it may wrap
        compare(own="%tid"),  # nothing is known of it
        "%m = arith.cmpi slt, %constants, %bound : vector<4xi32>",
    ],
)
def test_other_comparisons_are_left(body: str) -> None:
    assert all(op.operation.name != "arith.maxsi" for op in operations(changed(body).operation))


@pytest.mark.parametrize("predicate", ["slt", "sge"])
@pytest.mark.parametrize(
    "bound", [-(2**31), 1 - 2**31, -1000, -1, 0, 1, 4, 255, 256, 257, 1000, 1252, 1253, 2**31 - 1]
)
def test_comparisons_say_the_same(predicate: str, bound: int) -> None:
    module = changed(compare(predicate))
    assert any(op.operation.name == "arith.maxsi" for op in operations(module.operation))
    result = np.full((64, 4), 7, np.int32)
    run(module, np.array([bound], np.int32), result)
    index = 4 * np.arange(64)[:, None] + np.array([0, 1, 256, 1000])
    wanted = index < bound if predicate == "slt" else index >= bound
    np.testing.assert_array_equal(result, wanted.astype(np.int32))


@pytest.mark.parametrize("predicate", ["slt", "sge"])
@pytest.mark.parametrize("bound", [-(2**31), -1, 0, 1, 256, 1000, 1252, 1253, 2**31 - 1])
def test_a_bound_that_is_a_number_is_compared_with_a_register_at_a_time(
    predicate: str, bound: int
) -> None:
    body = f"""
  %bounds = arith.constant dense<{bound}> : vector<4xi32>
  %first = vector.broadcast %own : i32 to vector<4xi32>
  %i = arith.addi %first, %constants overflow<nsw> : vector<4xi32>
  %some = vector.shuffle %bounds, %bounds [0, 1, 6, 7] : vector<4xi32>, vector<4xi32>
  %m = arith.cmpi {predicate}, %i, %some : vector<4xi32>
"""
    module = changed(body)
    compared = [op for op in operations(module.operation) if op.operation.name == "arith.cmpi"]
    assert [str(op.operation.operands[0].type) for op in compared] == ["i32"] * 4
    result = np.full((64, 4), 7, np.int32)
    run(module, np.array([0], np.int32), result)
    index = 4 * np.arange(64)[:, None] + np.array([0, 1, 256, 1000])
    wanted = index < bound if predicate == "slt" else index >= bound
    np.testing.assert_array_equal(result, wanted.astype(np.int32))


@pytest.mark.parametrize("bound", [-(2**31), -1, 0, 5, 256, 1000, 2**31 - 2])
def test_registers_may_have_bounds_of_their_own_and_come_in_another_order(bound: int) -> None:
    body = """
  %one = arith.constant 1 : i32
  %n1 = arith.addi %n, %one : i32
  %bounds = vector.from_elements %n, %n1, %n, %n1 : vector<4xi32>
  %first = vector.broadcast %own : i32 to vector<4xi32>
  %i = arith.addi %first, %constants overflow<nsw> : vector<4xi32>
  %turned = vector.shuffle %i, %i [0, 0, 3, 2] : vector<4xi32>, vector<4xi32>
  %m = arith.cmpi slt, %turned, %bounds : vector<4xi32>
"""
    module = changed(body)
    assert any(op.operation.name == "arith.maxsi" for op in operations(module.operation))
    result = np.full((64, 4), 7, np.int32)
    run(module, np.array([bound], np.int32), result)
    index = 4 * np.arange(64)[:, None] + np.array([0, 0, 1000, 256])
    wanted = index < bound + np.array([0, 1, 0, 1])
    np.testing.assert_array_equal(result, wanted.astype(np.int32))
