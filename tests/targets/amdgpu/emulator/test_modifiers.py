"""Modifiers around instructions: DPP, SDWA, op_sel, neg and abs, clamp and omod."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.targets.amdgpu.emulator.fragments import Fragment
from tests.targets.amdgpu.emulator.values import computed

_LANES = np.arange(64, dtype=np.uint32)

_SOURCES: dict[str, Callable[[int], int]] = {
    "quad_perm:[1,0,3,2]": lambda lane: lane ^ 1,
    "row_ror:4": lambda lane: (lane & ~15) + (lane - 4 & 15),
    "row_mirror": lambda lane: (lane & ~15) + 15 - (lane & 15),
    "row_half_mirror": lambda lane: (lane & ~7) + 7 - (lane & 7),
    "row_newbcast:3": lambda lane: (lane & ~15) + 3,
}


@pytest.mark.parametrize("control", _SOURCES)
def test_dpp_reads_other_lanes_of_the_row(control: str) -> None:
    found = computed(f"v_mov_b32_dpp v1, v4 {control} row_mask:0xf bank_mask:0xf", _LANES)
    assert found.tolist() == [_SOURCES[control](lane) for lane in range(64)]


def test_a_lane_without_a_source_keeps_what_it_had_or_reads_zero() -> None:
    old = np.full(64, 99, np.uint32)
    keeps = computed(
        "v_mov_b32_dpp v1, v4 row_shr:1 row_mask:0xf bank_mask:0xf", _LANES, before=old
    )
    assert keeps.tolist() == [99 if lane % 16 == 0 else lane - 1 for lane in range(64)]
    zeroes = "v_mov_b32_dpp v1, v4 row_shl:2 row_mask:0xf bank_mask:0xf bound_ctrl:1"
    found = computed(zeroes, _LANES, before=old)
    assert found.tolist() == [0 if lane % 16 > 13 else lane + 2 for lane in range(64)]


def test_broadcasts_to_the_next_row_and_masks_of_rows_and_banks() -> None:
    old = np.full(64, 99, np.uint32)
    text = "v_mov_b32_dpp v1, v4 row_bcast:15 row_mask:0xa bank_mask:0xf"
    found = computed(text, _LANES, before=old)
    assert found.tolist() == [
        15 if 16 <= lane < 32 else 47 if lane >= 48 else 99 for lane in range(64)
    ]
    text = "v_mov_b32_dpp v1, v4 quad_perm:[0,1,2,3] row_mask:0x1 bank_mask:0x2"
    found = computed(text, _LANES, before=old)
    assert found.tolist() == [lane if 4 <= lane < 8 else 99 for lane in range(64)]


def test_a_source_lane_that_is_off_counts_as_none() -> None:
    text = """
        s_mov_b64 exec, 0xfe
        v_mov_b32_dpp v1, v4 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf
        v_mov_b32_dpp v2, v4 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf bound_ctrl:1
    """
    result = Fragment(text).run(
        {1: np.full(64, 99, np.uint32), 2: np.full(64, 99, np.uint32), 4: _LANES}
    )
    assert result.vector(1)[0, :9].tolist() == [99, 99, 3, 2, 5, 4, 7, 6, 99]
    assert result.vector(2)[0, :9].tolist() == [99, 0, 3, 2, 5, 4, 7, 6, 99]


def test_eight_lanes_permute_on_rdna() -> None:
    found = computed("v_mov_b32_dpp v1, v4 dpp8:[7,6,5,4,3,2,1,0]", _LANES[:32], chip="gfx1100")
    assert found.tolist() == [(lane & ~7) + 7 - (lane & 7) for lane in range(32)]
    text = "v_add_nc_u32_e64_dpp v1, v4, v4 row_xmask:5 row_mask:0xf bank_mask:0xf"
    found = computed(text, _LANES[:32], chip="gfx1100")
    assert found.tolist() == [(lane ^ 5) + lane for lane in range(32)]


_WORD = np.array([0x8899AABB, 0x01020304], np.uint32)


@pytest.mark.parametrize(
    ("modifiers", "wanted"),
    [
        ("dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_3", [0x88, 0x01]),
        ("dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1", [0x8899, 0x0102]),
        ("dst_sel:BYTE_1 dst_unused:UNUSED_PAD src0_sel:BYTE_0", [0xBB00, 0x0400]),
        ("dst_sel:BYTE_1 dst_unused:UNUSED_PRESERVE src0_sel:BYTE_0", [0x7777BB77, 0x77770477]),
        ("dst_sel:WORD_0 dst_unused:UNUSED_SEXT src0_sel:WORD_1", [0xFFFF8899, 0x0102]),
    ],
)
def test_sdwa_selects_parts_of_words(modifiers: str, wanted: list[int]) -> None:
    found = computed(
        f"v_mov_b32_sdwa v1, v4 {modifiers}", _WORD, before=np.full(2, 0x77777777, np.uint32)
    )
    assert found.tolist() == wanted


def test_sdwa_extends_signs() -> None:
    text = "v_mov_b32_sdwa v1, sext(v4) dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_2"
    assert computed(text, _WORD, kind=np.int32).tolist() == [-0x67, 2]
    text = "v_add_f16_sdwa v1, -v4, v4 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1 src1_sel:WORD_0"
    halves = np.array([0x3C004000], np.uint32)
    assert computed(text, halves, kind=np.float16).tolist() == [1.0]


def test_op_sel_picks_halves_of_sources_and_of_the_result() -> None:
    halves = np.array([0x40003C00], np.uint32)  # 2.0 above 1.0
    both = computed("v_add_f16_e64 v1, v4, v4 op_sel:[1,0,0]", halves, kind=np.float16)
    assert both.tolist() == [3.0]
    upper = computed(
        "v_mad_u16 v1, v4, v4, 0 op_sel:[0,0,0,1]",
        np.array([3], np.uint32),
        before=np.array([7], np.uint32),
    )
    assert upper.tolist() == [9 << 16 | 7]


def test_signs_are_changed_before_and_results_scaled_and_clamped_after() -> None:
    a = np.array([-3.0, 0.25], np.float32)
    assert computed("v_add_f32 v1, -|v4|, 1.0", a, kind=np.float32).tolist() == [-2, 0.75]
    assert computed("v_add_f32_e64 v1, v4, 1.0 mul:2", a, kind=np.float32).tolist() == [-4, 2.5]
    assert computed("v_add_f32_e64 v1, v4, 1.0 div:2", a, kind=np.float32).tolist() == [-1, 0.625]
    assert computed("v_add_f32_e64 v1, v4, 1.0 clamp mul:2", a, kind=np.float32).tolist() == [0, 1]
    nan = np.array([np.nan], np.float32)
    assert computed("v_max_f32_e64 v1, v4, v4 clamp", nan, kind=np.float32).tolist() == [0]
    bits = computed("v_cndmask_b32_e64 v1, -v4, v4, 0", a, kind=np.float32)
    assert bits.tolist() == [3.0, -0.25]


def test_constants_mean_what_the_operand_is() -> None:
    zero = np.zeros(1, np.uint32)
    assert computed("v_mov_b32 v1, 1.0", zero).tolist() == [0x3F800000]
    assert computed("v_add_f16 v1, v4, 1.0", zero, kind=np.float16).tolist() == [1.0]
    assert computed("v_add_f32 v1, v4, 1", zero).tolist() == [1]
    wide = np.zeros(1, np.float64)
    assert computed("v_add_f64 v[2:3], v[4:5], 0.5", wide, kind=np.float64).tolist() == [0.5]
    assert computed("v_add_f64 v[2:3], v[4:5], 0x40240000", wide, kind=np.float64).tolist() == [10]
    assert computed("v_lshl_add_u64 v[2:3], v[4:5], 0, -1", wide, kind=np.int64).tolist() == [-1]
    turn = computed("v_mul_f32 v1, 0.15915494, v4", np.ones(1, np.float32))
    assert turn.tolist() == [0x3E22F983]
