"""Shared divisors give the very quotients of division, whatever is divided by whatever."""

from __future__ import annotations

from typing import Any

import ml_dtypes
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


GUESSED = """
  %bits = vector.bitcast %x : vector<4xf32> to vector<4xi32>
  %none = arith.constant dense<0> : vector<4xi32>
  %moved = arith.shli %bits, %none : vector<4xi32>
  %v = vector.bitcast %moved : vector<4xi32> to vector<4xf32>
  %d = vector.broadcast %s : f32 to vector<4xf32>
  %y = arith.divf %v, %d : vector<4xf32>
"""
"""The same, of numbers that are taken for powers of two, so that none should be negative."""
HALVED = """
  %d = vector.broadcast %s : f32 to vector<4xf32>
  %z = arith.divf %x, %d : vector<4xf32>
  %h = arith.truncf %z : vector<4xf32> to vector<4xbf16>
  %y = arith.extf %h : vector<4xbf16> to vector<4xf32>
"""
"""The same, with the quotient rounded to bf16."""
BODIES = pytest.mark.parametrize("body", [DIVIDE, GUESSED, HALVED], ids=["f32", "guess", "bf16"])


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


def quotients(x: Floats, s: Floats, spoiled: bool = False, body: str = DIVIDE) -> Floats:
    """Divide rows of four by a number each; optionally with 1 for what is not done the short way."""
    module = shared(body, len(s))
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


def divided(x: Floats, s: Floats, body: str = DIVIDE) -> Floats:
    with np.errstate(all="ignore"):
        whole = x / s[:, None]
        return whole.astype(ml_dtypes.bfloat16).astype(np.float32) if body == HALVED else whole


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


def test_a_scalar_that_selects_vectors_counts_for_every_register() -> None:
    module = shared(
        """
        %one = arith.constant 1.0 : f32
        %some = arith.cmpf ogt, %s, %one : f32
        %d = vector.broadcast %s : f32 to vector<4xf32>
        %n = arith.constant dense<2.0> : vector<4xf32>
        %e = arith.select %some, %d, %n : vector<4xf32>
        %m = arith.select %some, %x, %n : vector<4xf32>
        %y = arith.addf %e, %m : vector<4xf32>
        """
    )
    selects = [
        op.operation.results[0]
        for op in operations(module.operation)
        if op.operation.name == "arith.select"
    ]
    assert [groups_of_equals(value) for value in selects] == [
        [[0, 1, 2, 3]],
        [[0], [1], [2], [3]],
    ]


def test_values_that_many_ways_lead_to_are_looked_at_once() -> None:
    steps = "\n".join(f"%v{i + 1} = arith.addf %v{i}, %v{i} : vector<4xf32>" for i in range(200))
    module = shared(
        f"""
        %v0 = vector.broadcast %s : f32 to vector<4xf32>
        {steps}
        %y = arith.divf %x, %v200 : vector<4xf32>
        """
    )
    assert any(op.operation.name == "scf.if" for op in operations(module.operation))


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


@BODIES
def test_any_bits_divide_exactly(body: str) -> None:
    random = np.random.default_rng(0)
    bits = random.integers(0, 1 << 32, 5 * 20000, dtype=np.uint32).view(np.float32)
    x, s = bits[20000:].reshape(-1, 4), bits[:20000]
    with np.errstate(invalid="ignore"):
        assert_same(quotients(x, s, body=body), divided(x, s, body))


@BODIES
@pytest.mark.parametrize("scale", [-149, -130, -126, -125, -102, -100, -99, 0, 100, 126, 127])
def test_both_sides_of_every_limit_divide_exactly(scale: int, body: str) -> None:
    random = np.random.default_rng(scale & 255)
    count = 5000
    with np.errstate(all="ignore"):
        s = np.ldexp(random.uniform(0.99, 2.01, count), random.integers(-130, 128, count))
        s = s.astype(np.float32)
        absolute = np.ldexp(random.uniform(0.99, 2.01, (count, 4)), scale)
        relative = absolute * s[:, None].astype(np.float64)
        for x in (absolute, relative):
            x = (x * random.choice([-1, 0, 1], x.shape)).astype(np.float32)
            assert_same(quotients(x, s, body=body), divided(x, s, body))


SPECIAL = [0.0, -0.0, 1.0, -1.0, 3.0, np.inf, -np.inf, np.nan, 2.0**-149, 2.0**-126, 3.4028235e38]


@BODIES
def test_special_numbers_divide_as_ever(body: str) -> None:
    s, x = (g.ravel() for g in np.meshgrid(SPECIAL, SPECIAL))
    s, rows = s.astype(np.float32), np.ones((len(x), 4), np.float32)
    rows[:, 2] = x
    assert_same(quotients(rows, s, body=body), divided(rows, s, body))


def test_quotients_next_to_the_middle_of_two_bf16s_round_rightly() -> None:
    random = np.random.default_rng(0)
    s = np.ldexp(random.uniform(1, 2, 20000), random.integers(-20, 20, 20000)).astype(np.float32)
    middle = (random.integers(1 << 7, 1 << 8, (20000, 1)) * 2 + 1) * 2.0**-8
    x = (middle * s[:, None]).astype(np.float32)
    units = random.integers(-2, 3, (20000, 4)).astype(np.int32)
    x = (np.repeat(x, 4, 1).view(np.int32) + units).view(np.float32)
    assert_same(quotients(x, s, body=HALVED), divided(x, s, HALVED))


def test_few_quotients_in_bf16_need_a_division() -> None:
    random = np.random.default_rng(0)
    x = random.uniform(0, 1, (20000, 4)).astype(np.float32)
    s = random.uniform(1, 1000, 20000).astype(np.float32)
    found = quotients(x, s, spoiled=True, body=HALVED)
    divisions = np.any(found != divided(x, s, HALVED), axis=1)
    assert np.mean(divisions) < 4 * 5 / 65536


def test_a_quotient_in_bf16_is_tested_a_few_registers_at_a_time() -> None:
    module = shared(
        """
        %w = vector.shuffle %x, %x [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3,
                                    0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]
             : vector<4xf32>, vector<4xf32>
        %d = vector.broadcast %s : f32 to vector<32xf32>
        %z = arith.divf %w, %d : vector<32xf32>
        %h = arith.truncf %z : vector<32xf32> to vector<32xbf16>
        %v = arith.extf %h : vector<32xbf16> to vector<32xf32>
        %y = vector.extract_strided_slice %v {offsets = [28], sizes = [4], strides = [1]}
             : vector<32xf32> to vector<4xf32>
        """
    )
    assert len(divisions(module)) == 4
    x, s, result = (
        np.arange(4, dtype=np.float32),
        np.full(1, 3, np.float32),
        np.zeros(4, np.float32),
    )
    run(module, x, s, result)
    assert_same(result, divided(x[None], s, HALVED)[0])


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
