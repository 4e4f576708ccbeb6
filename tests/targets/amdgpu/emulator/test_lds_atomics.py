"""Atomics on LDS: what they do, where their operands are, what they return and when."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from tests.targets.amdgpu.emulator.fragments import Fragment, Result
from tiledsl.targets.gpu.emulator.cohort import Mode
from tiledsl.targets.gpu.emulator.findings import Kind

_LANE = np.arange(64, dtype=np.uint32)
_WAIT = "s_waitcnt lgkmcnt(0)"


def _run(text: str, old: int, chip: str = "gfx942", bits: int = 32, **more: Any) -> Result:
    """Run on one element of LDS at 64, which v[10:11] have at the end; v2, v3 count lanes."""
    load, store = ("load", "store") if chip.startswith("gfx1") else ("read", "write")
    last = f"v[10:{9 + bits // 32}]" if bits == 64 else "v10"
    first = "v[12:13]" if bits == 64 else "v12"
    code = f"""
        v_mov_b32_e32 v9, 0
        v_mov_b32_e32 v12, {old & 0xFFFFFFFF:#x}
        v_mov_b32_e32 v13, {old >> 32:#x}
        ds_{store}_b{bits} v9, {first} offset:64
        {_WAIT}
        {text}
        {_WAIT}
        ds_{load}_b{bits} {last}, v9 offset:64
        {_WAIT}
    """
    size = 32 if chip.startswith("gfx1") else 64
    vectors = {2: _LANE[:size], 3: 10 + _LANE[:size]}
    return Fragment(code, chip, lds=256, **more).run(vectors)


def _left(result: Result, register: int = 10) -> int:
    return int(result.vector(register)[0, 0])


@pytest.mark.parametrize(
    ("name", "old", "left"),
    [
        ("add_u32", 1000, 1000 + 2016),
        ("sub_u32", 1000, (1000 - 2016) % (1 << 32)),
        ("max_u32", 7, 63),
        ("min_u32", 7, 0),
        ("max_i32", 0xFFFFFFFF, 63),
        ("min_i32", 0xFFFFFFFF, 0xFFFFFFFF),
        ("and_b32", 0xFF, 0),
        ("or_b32", 0xFF00, 0xFF3F),
        ("xor_b32", 5, 5),
        ("inc_u32", 0, 0),
    ],
)
def test_every_lane_acts_once_on_one_element(name: str, old: int, left: int) -> None:
    result = _run(f"ds_{name} v9, v2 offset:64", old)
    assert not len(result.findings)
    if name == "inc_u32":  # wraps to 0 at the operand
        for lane in range(64):
            left = 0 if left >= lane else left + 1
    assert _left(result) == left


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("chip", ["gfx942", "gfx1100"])
def test_lanes_get_what_those_before_them_left(chip: str, mode: Mode) -> None:
    result = _run("ds_add_rtn_u32 v4, v9, v2 offset:64", 5, chip, mode=mode)
    size = result.machine.wave_size
    sums = np.concatenate(([0], np.cumsum(_LANE[:size])))
    assert result.vector(4)[0].tolist() == (5 + sums[:-1]).tolist()
    assert _left(result) == 5 + sums[-1]


def test_a_float_s_sum_and_a_pair_of_words() -> None:
    one = struct.unpack("<I", struct.pack("<f", 1.5))[0]
    text = "v_cvt_f32_u32_e32 v2, v2\nds_add_f32 v9, v2 offset:64"
    assert _run(text, one).vector(10, np.float32)[0, 0] == 1.5 + 2016
    text = "v_mov_b32_e32 v3, 1\nds_add_u64 v9, v[2:3] offset:64"
    result = _run(text, 0xFFFFFFFF, bits=64)
    assert _left(result) | _left(result, 11) << 32 == 0xFFFFFFFF + 2016 + (64 << 32)


@pytest.mark.parametrize(
    ("chip", "text"),
    [
        ("gfx942", "ds_cmpst_rtn_b32 v4, v9, v2, v3 offset:64"),
        ("gfx1100", "ds_cmpstore_rtn_b32 v4, v9, v3, v2 offset:64"),
    ],
)
def test_the_order_of_comparison_and_new_value_is_the_generation_s(chip: str, text: str) -> None:
    result = _run(text, 7, chip)  # lane 7 finds 7 and stores 17; lane 17 finds that, and so on
    size = result.machine.wave_size
    expected, there = list[int](), 7
    for lane in range(size):
        expected.append(there)
        there = 10 + lane if there == lane else there
    assert result.vector(4)[0].tolist() == expected
    assert _left(result) == there


@pytest.mark.parametrize(("chip", "name"), [("gfx942", "wrxchg"), ("gfx1100", "storexchg")])
def test_exchanges_hand_the_element_from_lane_to_lane(chip: str, name: str) -> None:
    result = _run(f"ds_{name}_rtn_b32 v4, v9, v3 offset:64", 1, chip)
    size = result.machine.wave_size
    assert result.vector(4)[0].tolist() == [1, *range(10, 9 + size)]
    assert _left(result) == 9 + size


def test_only_active_lanes_act() -> None:
    result = _run("s_mov_b64 exec, 6\nds_add_rtn_u32 v4, v9, v2 offset:64\ns_mov_b64 exec, -1", 5)
    assert result.vector(4)[0, :4].tolist() == [0, 5, 6, 0]
    assert _left(result) == 8


def test_a_result_is_there_after_the_wait_only() -> None:
    early = "ds_add_rtn_u32 v4, v9, v2 offset:64\nv_mov_b32_e32 v5, v4"
    assert _run(early, 5).kinds == [Kind.MISSING_WAIT]
    without = "ds_add_u32 v9, v2 offset:64\nv_mov_b32_e32 v5, v2"
    assert _run(without, 5).kinds == []


def test_an_atomic_beyond_lds_is_out_of_bounds_and_an_unwritten_element_uninitialized() -> None:
    assert _run("ds_add_u32 v9, v2 offset:256", 5).kinds == [Kind.OUT_OF_BOUNDS]
    assert _run("ds_add_u32 v9, v2 offset:128", 5).kinds == [Kind.UNINITIALIZED]
