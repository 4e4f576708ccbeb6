"""Products of a thread's registers with one number are that number's product and an addition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlir import ir

from tests.targets.gpu.running import run
from tests.transforms.golden import golden
from tiledsl.dialects.context import parse
from tiledsl.dialects.contracts import MACHINE, check, operations
from tiledsl.targets.gpu.share_factors import share_factors

KERNEL = """
llvm.func @kernel(%p: !llvm.ptr<1>, %q: !llvm.ptr<1>) attributes {
    tile.kinds = ["ptr", "ptr"], tile.threads = 1 : i64, tile.shared_bytes = 0 : i64} {
  %a = llvm.load %p {alignment = 4 : i64} : !llvm.ptr<1> -> i32
  %second = llvm.getelementptr %p[1] : (!llvm.ptr<1>) -> !llvm.ptr<1>, i32
  %s = llvm.load %second {alignment = 4 : i64} : !llvm.ptr<1> -> i32
  %c = arith.constant dense<[0, 1, 2, -5]> : vector<4xi32>
  %av = vector.broadcast %a : i32 to vector<4xi32>
  %sv = vector.broadcast %s : i32 to vector<4xi32>
  %inner = arith.addi %av, %c : vector<4xi32>
  %sum = arith.addi %sv, %inner : vector<4xi32>
  %y = arith.muli LEFT, RIGHT : vector<4xi32>
  llvm.store %y, %q {alignment = 16 : i64} : vector<4xi32>, !llvm.ptr<1>
  llvm.return
}
"""


def shared(left: str, right: str) -> ir.Module:
    module = parse(KERNEL.replace("LEFT", left).replace("RIGHT", right))
    with module.context, ir.Location.unknown():
        share_factors(module)
    check(module, MACHINE)
    return module


def products(module: ir.Module) -> int:
    """Count the products of scalars."""
    found = [op for op in operations(module.operation) if op.operation.name == "arith.muli"]
    return sum(not isinstance(op.operation.results[0].type, ir.VectorType) for op in found)


def test_a_sum_of_one_number_and_constants_is_multiplied_apart() -> None:
    golden(
        KERNEL.replace("LEFT", "%inner").replace("RIGHT", "%sv")
        + """
        // CHECK: [[A:%.*]] = llvm.load
        // CHECK: [[S:%.*]] = llvm.load
        // CHECK: [[C:%.*]] = arith.constant dense<[0, 1, 2, -5]>
        // CHECK: [[SV:%.*]] = vector.broadcast [[S]]
        // CHECK: [[P:%.*]] = arith.muli [[A]], [[S]] : i32
        // CHECK: [[PV:%.*]] = vector.broadcast [[P]]
        // CHECK: [[Q:%.*]] = arith.muli [[C]], [[SV]]
        // CHECK: [[Y:%.*]] = arith.addi [[PV]], [[Q]]
        // CHECK: llvm.store [[Y]]
        """,
        share_factors,
        MACHINE,
    )


@pytest.mark.parametrize(
    ("left", "right"),
    [("%inner", "%inner"), ("%av", "%sv"), ("%c", "%sv"), ("%inner", "%c")],
)
def test_other_products_stay(left: str, right: str) -> None:
    assert products(shared(left, right)) == 0


@given(st.tuples(*[st.integers(-(2**31), 2**31 - 1)] * 2), st.booleans())
@settings(max_examples=15, deadline=None)
def test_sums_may_wrap(numbers: tuple[int, int], turned: bool) -> None:
    module = shared("%sv", "%sum") if turned else shared("%sum", "%sv")
    assert products(module) == 1
    found = np.zeros(4, np.int32)
    run(module, np.array(numbers, np.int32), found)
    a, s = numbers
    wanted = [(a + c + s) * s for c in (0, 1, 2, -5)]
    np.testing.assert_array_equal(found, [(n + 2**31) % 2**32 - 2**31 for n in wanted])
