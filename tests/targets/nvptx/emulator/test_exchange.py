"""Shuffles, votes, matches, reductions and elections against plain Python, and their faults."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.targets.nvptx.emulator.running import run
from tiledsl.targets.gpu.emulator.findings import Kind
from tiledsl.targets.nvptx.emulator.exchange import sources

Array = NDArray[Any]
_LOAD = "mul.wide.u32 %d1, %t, 4; add.s64 %d2, %a0, %d1; add.s64 %d3, %a1, %d1; ld.global.u32 %r1, [%d2];"
_STORE = "st.global.u32 [%d3], %r2;"


def _words(seed: int, count: int = 32, high: int = 2**32) -> Array:
    return np.random.default_rng(seed).integers(0, high, count, np.uint32)


def _shuffled(mode: str, value: Array, b: int, c: int) -> tuple[list[int], list[bool]]:
    """Execute the PTX ISA's program for shfl.sync, lane by lane."""
    moved: list[int] = []
    flags: list[bool] = []
    for lane in range(32):
        clamp, segment, by = c & 31, c >> 8 & 31, b & 31
        high = (lane & segment) | (clamp & ~segment & 31)
        low = lane & segment
        j = {
            "up": lane - by,
            "down": lane + by,
            "bfly": lane ^ by,
            "idx": low | (by & ~segment & 31),
        }[mode]
        valid = j >= high if mode == "up" else j <= high
        moved.append(int(value[j if valid else lane]))
        flags.append(valid)
    return moved, flags


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["up", "down", "bfly", "idx"]),
    st.integers(0, 31),
    st.sampled_from([0, 31, 0x1C03, 0x181F, 0x1000, 0x0F07]),
    st.booleans(),
)
def test_shuffles_do_what_the_isa_says(mode: str, b: int, c: int, constant: bool) -> None:
    value = _words(b)
    by, limit = (str(b), str(c)) if constant else ("%r10", "%r11")
    outcome = run(
        f"{_LOAD} mov.u32 %r10, {b}; mov.u32 %r11, {c};"
        f"shfl.sync.{mode}.b32 %r2|%p1, %r1, {by}, {limit}, -1; {_STORE}"
        "selp.b32 %r3, 1, 0, %p1; st.global.u32 [%d3+128], %r3;",
        value, np.zeros(64, np.uint32),
    )  # fmt: skip
    moved, flags = _shuffled(mode, value, b, c)
    assert outcome.findings == []
    assert outcome.arrays[1].tolist() == [*moved, *map(int, flags)]


def test_lanes_may_ask_for_different_lanes() -> None:
    value = _words(1)
    outcome = run(
        f"{_LOAD} xor.b32 %r5, %t, 21; shfl.sync.idx.b32 %r2, %r1, %r5, 31, -1; {_STORE}",
        value, np.zeros(32, np.uint32),
    )  # fmt: skip
    assert outcome.arrays[1].tolist() == [int(value[lane ^ 21]) for lane in range(32)]


def test_the_source_is_a_lane_of_the_same_warp() -> None:
    lane = np.arange(32)
    for mode in ("up", "down", "bfly", "idx"):
        source, _ = sources(mode, lane, np.array(9), np.array(31 if mode != "up" else 0))
        assert ((source >= 0) & (source < 32)).all()


_HALF = """
setp.lt.u32 %p5, %t, 16;
@!%p5 bra OTHER;
shfl.sync.bfly.b32 %r2, %r1, 16, 31, {mask};
OTHER:
"""


def test_a_lane_that_reads_one_which_takes_no_part_is_found() -> None:
    outcome = run(_LOAD + _HALF.format(mask="0xffff"), _words(0), _words(1))
    assert outcome.kinds == {Kind.UNDEFINED}
    assert "does not take part" in outcome.findings[0].message


def test_a_lane_that_waits_for_one_which_never_comes_is_found() -> None:
    body = _HALF.format(mask="-1").replace("OTHER:", "bra END; OTHER: bar.warp.sync -1; END:")
    outcome = run(_LOAD + body, _words(0), _words(1))
    assert outcome.kinds == {Kind.DIVERGENT_BARRIER}


def test_a_lane_that_reads_one_which_has_ended_is_found() -> None:
    outcome = run(_LOAD + _HALF.format(mask="-1"), _words(0), _words(1))
    assert outcome.kinds == {Kind.UNDEFINED}


def test_a_lane_outside_its_own_mask_is_found() -> None:
    outcome = run(_LOAD + "shfl.sync.bfly.b32 %r2, %r1, 1, 31, 0xfffffffe;", _words(0), _words(1))
    assert Kind.UNDEFINED in outcome.kinds


def test_two_halves_of_a_warp_exchange_apart() -> None:
    value = _words(3)
    outcome = run(
        f"""{_LOAD}
        setp.lt.u32 %p5, %t, 16;
        @!%p5 bra UPPER;
        shfl.sync.bfly.b32 %r2, %r1, 1, 31, 0xffff;
        bra END;
        UPPER: shfl.sync.bfly.b32 %r2, %r1, 2, 31, 0xffff0000;
        END: bar.warp.sync -1; {_STORE}""",
        value, np.zeros(32, np.uint32),
    )  # fmt: skip
    assert outcome.findings == []
    assert outcome.arrays[1].tolist() == [int(value[i ^ (1 if i < 16 else 2)]) for i in range(32)]


def _alike(bits: list[bool]) -> bool:
    return len(set(bits)) == 1


@pytest.mark.parametrize(("mode", "expected"), [("all", all), ("any", any), ("uni", _alike)])
@pytest.mark.parametrize("limit", [0, 5, 32])
def test_votes(mode: str, expected: Any, limit: int) -> None:
    outcome = run(
        f"{_LOAD} setp.lt.u32 %p1, %t, {limit}; vote.sync.{mode}.pred %p2, %p1, -1;"
        f"selp.b32 %r2, 1, 0, %p2; {_STORE}",
        _words(0), np.zeros(32, np.uint32),
    )  # fmt: skip
    assert set(outcome.arrays[1].tolist()) == {int(expected([i < limit for i in range(32)]))}


def test_a_ballot_names_the_lanes_that_agree() -> None:
    outcome = run(
        f"{_LOAD} setp.lt.u32 %p1, %t, 5; vote.sync.ballot.b32 %r2, !%p1, 0xffffffff; {_STORE}",
        _words(0), np.zeros(64, np.uint32), threads=64,
    )  # fmt: skip
    assert outcome.arrays[1].tolist() == [0xFFFFFFE0] * 32 + [0xFFFFFFFF] * 32


def test_the_active_mask_is_that_of_the_branch() -> None:
    outcome = run(
        f"{_LOAD} mov.u32 %r2, 0; setp.lt.u32 %p1, %t, 4; @!%p1 bra E; activemask.b32 %r2; E: {_STORE}",
        _words(0), np.zeros(32, np.uint32),
    )  # fmt: skip
    assert outcome.arrays[1].tolist() == [15] * 4 + [0] * 28


def test_matches() -> None:
    value = _words(0, high=3)
    outcome = run(
        f"{_LOAD} match.any.sync.b32 %r2, %r1, -1; {_STORE}"
        "match.all.sync.b32 %r3|%p1, %r1, -1; st.global.u32 [%d3+128], %r3;"
        "mov.u32 %r4, 7; match.all.sync.b32 %r5|%p2, %r4, -1; selp.b32 %r6, %r5, 0, %p2;"
        "st.global.u32 [%d3+256], %r6;",
        value, np.zeros(96, np.uint32),
    )  # fmt: skip
    found = outcome.arrays[1]
    alike = [sum(1 << j for j in range(32) if value[j] == value[i]) for i in range(32)]
    assert found[:32].tolist() == alike
    assert found[32:64].tolist() == [0] * 32
    assert found[64:].tolist() == [0xFFFFFFFF] * 32


_FUNCTIONS: dict[str, tuple[Any, Any]] = {
    "add.u32": (np.add, np.uint32),
    "min.u32": (np.minimum, np.uint32),
    "max.s32": (np.maximum, np.int32),
    "min.s32": (np.minimum, np.int32),
    "and.b32": (np.bitwise_and, np.uint32),
    "or.b32": (np.bitwise_or, np.uint32),
    "xor.b32": (np.bitwise_xor, np.uint32),
}


@pytest.mark.parametrize("operation", _FUNCTIONS)
@pytest.mark.parametrize("mask", [0xFFFFFFFF, 0x0000FFFF])
def test_reductions(operation: str, mask: int) -> None:
    value = _words(4)
    low = mask != 0xFFFFFFFF
    outcome = run(
        f"{_LOAD} mov.u32 %r2, 0; setp.lt.u32 %p1, %t, {16 if low else 32}; @!%p1 bra E;"
        f"redux.sync.{operation} %r2, %r1, {mask}; E: {_STORE}",
        value, np.zeros(32, np.uint32),
    )  # fmt: skip
    function, kind = _FUNCTIONS[operation]
    expected = (
        int(function.reduce((value[:16] if low else value).view(kind), dtype=kind)) & 0xFFFFFFFF
    )
    assert set(outcome.arrays[1][: 16 if low else 32].tolist()) == {expected}


@pytest.mark.parametrize(
    ("operation", "values", "expected"),
    [("min", [1.0, -2.0, 3.0], -2.0), ("max.abs", [1.0, -5.0, 3.0], 5.0), ("max", [-0.0, 0.0], 0.0),
     ("min", [0.0, -0.0], -0.0), ("max", [1.0, float("nan")], 1.0),
     ("max.NaN", [1.0, float("nan")], float("nan")), ("min", [float("nan")], float("nan"))],
)  # fmt: skip
def test_float_reductions(operation: str, values: list[float], expected: float) -> None:
    value = np.resize(np.array(values, np.float32), 32)
    outcome = run(
        f"{_LOAD} mov.b32 %f1, %r1; redux.sync.{operation}.f32 %f2, %f1, -1; mov.b32 %r2, %f2; {_STORE}",
        value.view(np.uint32), np.zeros(32, np.uint32), chip="sm_100a",
    )  # fmt: skip
    bits = 0x7FFFFFFF if np.isnan(expected) else struct.unpack("<I", struct.pack("<f", expected))[0]
    assert set(outcome.arrays[1].tolist()) == {bits}


def test_the_lowest_lane_named_is_elected() -> None:
    outcome = run(
        f"{_LOAD} mov.u32 %r2, 99; setp.ge.u32 %p1, %t, 3; @!%p1 bra E;"
        f"elect.sync %r3|%p2, 0xfffffff8; selp.b32 %r2, %r3, 0, %p2; E: {_STORE}",
        _words(0), np.zeros(32, np.uint32), chip="sm_90a",
    )  # fmt: skip
    assert outcome.arrays[1].tolist() == [99] * 3 + [3] + [0] * 28
