"""Atomics against the same operations done one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.targets.nvptx.emulator.running import run
from tiledsl.targets.gpu.emulator.findings import Kind
from tiledsl.targets.nvptx.emulator.atomics import rounds


def _wrapped_increment(old: int, limit: int) -> int:
    return 0 if old >= limit else old + 1


def _wrapped_decrement(old: int, limit: int) -> int:
    return limit if old == 0 or old > limit else old - 1


_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "add.u32": lambda old, value: old + value,
    "and.b32": lambda old, value: old & value,
    "or.b32": lambda old, value: old | value,
    "xor.b32": lambda old, value: old ^ value,
    "exch.b32": lambda old, value: value,
    "min.u32": min,
    "max.u32": max,
    "max.s32": max,
    "inc.u32": _wrapped_increment,
    "dec.u32": _wrapped_decrement,
}


@pytest.mark.parametrize("space", ["global", "shared", ""])
@pytest.mark.parametrize("name", _OPERATIONS)
def test_lanes_that_meet_act_one_after_the_other(name: str, space: str) -> None:
    rng = np.random.default_rng(1)
    place = rng.integers(0, 5, 64).astype(np.uint32)
    value = rng.integers(0, 12, 64).astype(np.uint32)
    start = rng.integers(0, 9, 5).astype(np.uint32)
    dotted = f".{space}" if space else ""
    base = "%d9" if space == "shared" else "%a0"
    body = f"""
        mov.b64 %d9, s; setp.lt.u32 %p1, %t, 5; mul.wide.u32 %d8, %t, 4;
        add.u64 %d7, %d8, %a0; add.u64 %d6, %d8, %d9;
        @%p1 ld.global.b32 %r9, [%d7]; @%p1 st.shared.b32 [%d6], %r9;
        bar.sync 0;
        add.u64 %d1, %d8, %a1; ld.global.b32 %r1, [%d1];
        add.u64 %d1, %d8, %a2; ld.global.b32 %r2, [%d1];
        mad.wide.u32 %d2, %r1, 4, {base};
        atom{dotted}.{name} %r3, [%d2], %r2;
        add.u64 %d1, %d8, %a3; st.global.b32 [%d1], %r3;
        bar.sync 0;
        @%p1 ld.shared.b32 %r9, [%d6];
        {"@%p1 st.global.b32 [%d7], %r9;" if space == "shared" else ""}
    """
    outcome = run(
        body, start, place, value, np.zeros(64, np.uint32), threads=64, shared=64, chip="sm_90a"
    )
    wanted = [int(one) for one in start]
    held: list[int] = []
    for at, operand in zip(map(int, place), map(int, value), strict=True):
        held.append(wanted[at])
        wanted[at] = _OPERATIONS[name](wanted[at], operand) % (1 << 32)
    assert outcome.arrays[0].tolist() == wanted
    assert outcome.arrays[3].tolist() == held
    assert not outcome.findings


def test_compare_and_swap_lets_one_lane_win() -> None:
    body = """
        add.u32 %r1, %t, 1; atom.global.cas.b32 %r2, [%a0], 0, %r1;
        mad.wide.u32 %d1, %t, 4, %a1; st.global.b32 [%d1], %r2;
    """
    outcome = run(body, np.zeros(1, np.uint32), np.zeros(32, np.uint32))
    assert outcome.arrays[0].tolist() == [1]
    assert outcome.arrays[1].tolist() == [0] + [1] * 31


def test_16_bit_compare_and_swap() -> None:
    body = "cvt.u16.u32 %h1, %t; atom.global.cas.b16 %h2, [%a0+2], 0, 77;"
    outcome = run(body, np.zeros(2, np.uint16))
    assert outcome.arrays[0].tolist() == [0, 77]


@pytest.mark.parametrize(
    ("name", "kind", "register", "load"),
    [
        ("add.f32", np.float32, "%f1", "ld.global.f32"),
        ("add.f64", np.float64, "%g1", "ld.global.f64"),
        ("add.noftz.f16", np.float16, "%h1", "ld.global.b16"),
        ("add.noftz.bf16", ml_dtypes.bfloat16, "%h1", "ld.global.b16"),
    ],
)
def test_sums_of_floats_are_rounded_in_the_order_of_lanes(
    name: str, kind: Any, register: str, load: str
) -> None:
    values = np.random.default_rng(2).normal(size=32).astype(kind)
    size = values.dtype.itemsize
    body = f"""
        mad.wide.u32 %d1, %t, {size}, %a1; {load} {register}, [%d1];
        red.relaxed.gpu.global.{name} [%a0], {register};
    """
    outcome = run(body, np.zeros(1, kind), values, chip="sm_90a")
    total = values.dtype.type(0)
    for value in values:
        total = total + value
    assert outcome.arrays[0][0] == total


def test_packed_and_vector_sums() -> None:
    pair = np.array([1, 2], np.float16).view(np.uint32)
    outcome = run(f"red.global.add.noftz.f16x2 [%a0], {pair[0]};", np.zeros(2, np.float16))
    assert outcome.arrays[0].tolist() == [32, 64]
    body = "mov.b32 %f1, 0f3F800000; red.global.add.v2.f32 [%a0], {%f1, %f1};"
    outcome = run(body, np.zeros(2, np.float32), chip="sm_90a")
    assert outcome.arrays[0].tolist() == [32, 32]


def test_sums_in_global_memory_flush_and_those_in_shared_do_not() -> None:
    tiny = int(np.float32(2.0**-130).view(np.uint32))
    body = f"""
        setp.ne.u32 %p1, %t, 0; @%p1 exit;
        red.global.add.f32 [%a0], {tiny};
        st.shared.f32 [s], 0f00000000; red.shared.add.f32 [s], {tiny};
        ld.shared.b32 %r1, [s]; st.global.b32 [%a1], %r1;
    """
    body = body.replace(str(tiny), f"0f{tiny:08X}")
    outcome = run(body, np.zeros(1, np.float32), np.zeros(1, np.float32), shared=16)
    assert outcome.arrays[0][0] == 0
    assert outcome.arrays[1][0] == np.float32(2.0**-130)


def test_an_atomic_out_of_bounds_is_found_and_does_nothing() -> None:
    body = "mad.wide.u32 %d1, %t, 4, %a0; atom.global.add.u32 %r1, [%d1], 1;"
    outcome = run(body, np.zeros(20, np.uint32))
    assert outcome.arrays[0].tolist() == [1] * 20
    (finding,) = outcome.findings
    assert finding.kind is Kind.OUT_OF_BOUNDS
    assert finding.times == 12


def test_the_word_of_the_last_half_may_reach_past_its_array() -> None:
    body = """
        ld.volatile.global.b32 %r1, [%a0+4]; add.u32 %r2, %r1, 1;
        atom.global.cas.b32 %r3, [%a0+4], %r1, %r2;
    """
    outcome = run(body, np.array([5, 6, 7], np.uint16))
    assert outcome.arrays[0].tolist() == [5, 6, 8]
    assert not outcome.findings
    plain = run("ld.global.b32 %r1, [%a0+4];", np.array([5, 6, 7], np.uint16))
    assert plain.kinds == {Kind.OUT_OF_BOUNDS}


def test_rounds_hold_every_index_once_in_order() -> None:
    index = np.array([3, 1, 3, 3, 2, 1])
    found = [sorted(one.tolist()) for one in rounds(index)]
    assert found == [[0, 1, 4], [2, 5], [3]]
    assert rounds(np.zeros(0, np.int64)) == []
