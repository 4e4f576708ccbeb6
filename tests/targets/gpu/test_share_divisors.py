"""Shared divisors give the very quotients of division, whatever is divided by whatever."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlir import ir

from tests.targets.gpu.running import run
from tests.transforms.golden import golden
from tiledsl.dialects.context import parse
from tiledsl.dialects.contracts import MACHINE, check, operations
from tiledsl.targets.gpu.share_divisors import groups_of_equals, share_divisors

Floats = npt.NDArray[np.float32]

HEAD = """
llvm.func @kernel(%p: !llvm.ptr<1>, %q: !llvm.ptr<1>, %r: !llvm.ptr<1>) attributes {{
    tile.kinds = ["ptr", "ptr", "ptr"], tile.threads = {threads} : i64,
    tile.shared_bytes = 0 : i64}} {{
  %tid = llvm.call_intrinsic "llvm.nvvm.read.ptx.sreg.tid.x"() : () -> i32
  %four = arith.constant 4 : i32
  %row = arith.muli %tid, %four : i32
  %px = llvm.getelementptr %p[%row] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, f32
  %ps = llvm.getelementptr %q[%tid] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, f32
  %pq = llvm.getelementptr %r[%row] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, f32
  %x = llvm.load %px {{alignment = 16 : i64}} : !llvm.ptr<1> -> vector<4xf32>
  %s = llvm.load %ps {{alignment = 4 : i64}} : !llvm.ptr<1> -> f32
"""
TAIL = """
  llvm.store %y, %pq {alignment = 16 : i64} : vector<4xf32>, !llvm.ptr<1>
  llvm.return
}
"""
DIVIDE = """
  %d = vector.broadcast %s : f32 to vector<4xf32>
  %y = arith.divf %x, %d : vector<4xf32>
"""


def shared(body: str, threads: int = 1) -> ir.Module:
    module = parse(HEAD.format(threads=threads) + body + TAIL)
    with module.context, ir.Location.unknown():
        share_divisors(module)
    check(module, MACHINE)
    return module


def divisions(module: ir.Module) -> list[ir.OpView]:
    """Return the divisions of vectors."""
    found = (op for op in operations(module.operation) if op.operation.name == "arith.divf")
    return [op for op in found if isinstance(op.operation.results[0].type, ir.VectorType)]


def quotients(x: Floats, s: Floats, spoiled: bool = False) -> Floats:
    """Divide rows of four by a number each; optionally with 1 for what is not done the short way."""
    module = shared(DIVIDE, len(s))
    (slow,) = divisions(module)
    if spoiled:
        slow.operation.operands[1] = slow.operation.operands[0]
    result = np.full_like(x, 7)
    run(module, x, s, result)
    return result


def assert_same(found: Floats, wanted: Floats) -> None:
    """Compare bits, but for NaNs'."""
    number = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.isnan(found), ~number)
    np.testing.assert_array_equal(found[number].view(np.int32), wanted[number].view(np.int32))


def divided(x: Floats, s: Floats) -> Floats:
    with np.errstate(all="ignore"):
        return x / s[:, None]


def test_a_row_is_divided_through_one_reciprocal() -> None:
    golden(
        HEAD.format(threads=32)
        + DIVIDE
        + TAIL
        + """
        // CHECK: [[X:%.*]] = llvm.load {{.*}} -> vector<4xf32>
        // CHECK: [[S:%.*]] = llvm.load {{.*}} -> f32
        // CHECK: [[D:%.*]] = vector.broadcast [[S]]
        // CHECK: [[R:%.*]] = arith.divf {{.*}} : f32
        // CHECK: [[Y:%.*]] = scf.if {{.*}} -> (vector<4xf32>) {
        // CHECK: [[Q:%.*]] = arith.mulf [[X]]
        // CHECK: [[E:%.*]] = math.fma [[Q]]
        // CHECK: [[C:%.*]] = math.fma [[E]], {{.*}}, [[Q]]
        // CHECK: scf.yield [[C]]
        // CHECK: } else {
        // CHECK: [[N:%.*]] = arith.divf [[X]], [[D]] : vector<4xf32>
        // CHECK: scf.yield [[N]]
        // CHECK: llvm.store [[Y]]
        """,
        share_divisors,
        MACHINE,
    )


@pytest.mark.parametrize(
    "body",
    [
        "%y = arith.divf %x, %x : vector<4xf32>",
        # Two of each: a reciprocal would not pay.
        """%t = vector.shuffle %x, %x [0, 1, 0, 1] : vector<4xf32>, vector<4xf32>
           %y = arith.divf %x, %t : vector<4xf32>""",
        # An approximate division is shorter still.
        """%d = vector.broadcast %s : f32 to vector<4xf32>
           %y = arith.divf %x, %d fastmath<arcp> : vector<4xf32>""",
        """%d = vector.broadcast %s : f32 to vector<4xf32>
           %v = arith.extf %x : vector<4xf32> to vector<4xf64>
           %w = arith.extf %d : vector<4xf32> to vector<4xf64>
           %z = arith.divf %v, %w : vector<4xf64>
           %y = arith.truncf %z : vector<4xf64> to vector<4xf32>""",
    ],
)
def test_other_divisions_are_left(body: str) -> None:
    module = shared(body)
    assert len(divisions(module)) == 1
    assert all(op.operation.name != "scf.if" for op in operations(module.operation))


def test_registers_are_equal_by_construction() -> None:
    module = parse(
        HEAD.format(threads=1)
        + """
        %one = arith.constant dense<1.0> : vector<4xf32>
        %a = vector.shuffle %x, %x [0, 1, 1, 0] : vector<4xf32>, vector<4xf32>
        %b = arith.addf %a, %one : vector<4xf32>
        %c = vector.extract_strided_slice %b {offsets = [1], sizes = [2], strides = [1]}
             : vector<4xf32> to vector<2xf32>
        %e = vector.from_elements %s, %s, %s, %s : vector<4xf32>
        %f = arith.mulf %e, %x : vector<4xf32>
        %y = arith.constant dense<[1.0, 1.0, 2.0, 2.0]> : vector<4xf32>
        """
        + TAIL
    )
    block = next(iter(module.body.operations)).regions[0].blocks[0]
    results = [op.operation.results[0] for op in block.operations if op.operation.results]
    groups = [groups_of_equals(value) for value in results[-7:]]
    each = [[0], [1], [2], [3]]
    assert groups == [[[0, 1, 2, 3]], [[0, 3], [1, 2]], [[0, 3], [1, 2]], [[0, 1]],
                      [[0, 1, 2, 3]], each, each]  # fmt: skip


def test_each_register_meets_its_own_divisor() -> None:
    module = shared(
        """
        %t = vector.shuffle %x, %x [0, 1, 1, 0, 1, 0, 0, 1] : vector<4xf32>, vector<4xf32>
        %n = arith.constant dense<[1., 2., 3., 4., 5., 6., 7., 8.]> : vector<8xf32>
        %z = arith.divf %n, %t : vector<8xf32>
        %y = vector.shuffle %z, %z [0, 1, 2, 3] : vector<8xf32>, vector<8xf32>
        %w = vector.shuffle %z, %z [4, 5, 6, 7] : vector<8xf32>, vector<8xf32>
        %pw = llvm.getelementptr %r[4] : (!llvm.ptr<1>) -> !llvm.ptr<1>, f32
        llvm.store %w, %pw : vector<4xf32>, !llvm.ptr<1>
        """
    )
    assert any(op.operation.name == "scf.if" for op in operations(module.operation))
    x = np.array([3, 7, 0, 0], np.float32)
    result = np.zeros(8, np.float32)
    run(module, x, np.ones(1, np.float32), result)
    picked = x[[0, 1, 1, 0, 1, 0, 0, 1]]
    np.testing.assert_array_equal(result, np.arange(1, 9, dtype=np.float32) / picked)


def test_any_bits_divide_exactly() -> None:
    random = np.random.default_rng(0)
    bits = random.integers(0, 1 << 32, 5 * 20000, dtype=np.uint32).view(np.float32)
    x, s = bits[20000:].reshape(-1, 4), bits[:20000]
    with np.errstate(invalid="ignore"):
        assert_same(quotients(x, s), divided(x, s))


@pytest.mark.parametrize("scale", [-149, -130, -126, -125, -102, -100, -99, 0, 100, 126, 127])
def test_both_sides_of_every_limit_divide_exactly(scale: int) -> None:
    random = np.random.default_rng(scale & 255)
    count = 5000
    with np.errstate(all="ignore"):
        s = np.ldexp(random.uniform(0.99, 2.01, count), random.integers(-130, 128, count))
        s = s.astype(np.float32)
        absolute = np.ldexp(random.uniform(0.99, 2.01, (count, 4)), scale)
        relative = absolute * s[:, None].astype(np.float64)
        for x in (absolute, relative):
            x = (x * random.choice([-1, 0, 1], x.shape)).astype(np.float32)
            assert_same(quotients(x, s), divided(x, s))


SPECIAL = [0.0, -0.0, 1.0, -1.0, 3.0, np.inf, -np.inf, np.nan, 2.0**-149, 2.0**-126, 3.4028235e38]


def test_special_numbers_divide_as_ever() -> None:
    s, x = (g.ravel() for g in np.meshgrid(SPECIAL, SPECIAL))
    s, rows = s.astype(np.float32), np.ones((len(x), 4), np.float32)
    rows[:, 2] = x
    assert_same(quotients(rows, s), divided(rows, s))


def test_quotients_next_to_the_middle_of_two_floats_round_rightly() -> None:
    """For odd s < 2^24 solve 2^25 x = c mod 2 s for tiny odd c: x / s is 2^-25 c / s off a middle."""
    random = np.random.default_rng(0)
    s = random.integers(1 << 22, 1 << 23, 4000) * 2 + 1
    s[:2000] = (1 << 24) - 1 - 2 * np.arange(2000)
    rows: list[Any] = []
    for c in (1, -1, 3, -3):
        x = (s + c) // 2 % s
        for _ in range(24):
            x = np.where(x % 2, (x + s) // 2, x // 2)
        rows.append(x)
    x = np.stack(rows, 1).astype(np.float32)
    found = quotients(x, s.astype(np.float32), spoiled=True)
    assert_same(found, divided(x, s.astype(np.float32)))


@given(
    x=st.lists(st.floats(0, 1, width=32), min_size=4, max_size=4),
    s=st.floats(2.0**-10, 2.0**20, width=32),
)
@settings(max_examples=100, deadline=None)
def test_ordinary_numbers_go_the_short_way(x: list[float], s: float) -> None:
    row = np.array([[v if v > 2.0**-100 else 0.0 for v in x]], np.float32)
    divisor = np.array([s], np.float32)
    assert_same(quotients(row, divisor, spoiled=True), divided(row, divisor))
