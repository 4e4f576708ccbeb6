"""Packed, mixed-precision and dot instructions, and pairs of instructions in one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.targets.amdgpu.emulator.fragments import Fragment
from tests.targets.amdgpu.emulator.values import computed, some_bits

Array = NDArray[Any]

_FEW = settings(max_examples=5, deadline=None)
_SEEDS = given(seed=st.integers(0, 2**32))


def _halves(words: Array, kind: Any) -> Array:
    return np.ascontiguousarray(words).view(kind).reshape(-1, 2)


@_FEW
@_SEEDS
def test_packed_halves_are_two_operations(seed: int) -> None:
    a, b = some_bits(seed, 64), some_bits(seed + 1, 64)
    found = computed("v_pk_add_u16 v1, v4, v5", a, b)
    np.testing.assert_array_equal(
        _halves(found, np.uint16), _halves(a, np.uint16) + _halves(b, np.uint16)
    )
    found = computed("v_pk_max_i16 v1, v4, v5", a, b)
    np.testing.assert_array_equal(
        _halves(found, np.int16), np.maximum(_halves(a, np.int16), _halves(b, np.int16))
    )
    crossed = computed("v_pk_sub_i16 v1, v4, v5 op_sel:[0,1] op_sel_hi:[1,0] clamp", a, b)
    exact = _halves(a, np.int16).astype(int) - _halves(b, np.int16)[:, ::-1]
    np.testing.assert_array_equal(_halves(crossed, np.int16), np.clip(exact, -32768, 32767))
    shifted = computed("v_pk_lshlrev_b16 v1, 3, v5 op_sel_hi:[0,1]", a, b)
    np.testing.assert_array_equal(_halves(shifted, np.uint16), _halves(b, np.uint16) << 3)


def test_packed_floats_select_and_negate_each_half() -> None:
    a = np.array([1.0, 2.0], np.float16).view(np.uint32)
    b = np.array([10.0, 20.0], np.float16).view(np.uint32)
    plain = computed("v_pk_add_f16 v1, v4, v5", a, b)
    assert _halves(plain, np.float16).tolist() == [[11, 22]]
    text = "v_pk_fma_f16 v1, v4, v5, 1.0 op_sel_hi:[1,1,0] neg_lo:[1,0,0] neg_hi:[0,0,1]"
    assert _halves(computed(text, a, b), np.float16).tolist() == [[-9, 39]]
    constant = computed("v_pk_add_f16 v1, v4, 1.0", a)
    assert _halves(constant, np.float16).tolist() == [[2, 2]]  # a constant's upper half is 0
    integer = computed("v_pk_add_u16 v1, v4, -1", np.array([0x00050007], np.uint32))
    assert integer.tolist() == [0x00040006]


def test_packed_singles_select_registers_of_pairs() -> None:
    a = np.array([1.0, 2.0], np.float32).view(np.uint64)
    b = np.array([10.0, 20.0], np.float32).view(np.uint64)
    for text, wanted in (
        ("v_pk_add_f32 v[2:3], v[4:5], v[6:7]", [11, 22]),
        ("v_pk_mul_f32 v[2:3], v[4:5], v[6:7] op_sel:[1,0] op_sel_hi:[0,1]", [20, 20]),
        ("v_pk_fma_f32 v[2:3], v[4:5], v[6:7], 1.0 op_sel_hi:[1,1,0] neg_lo:[1,0,0]", [-9, 41]),
        ("v_pk_mul_f32 v[2:3], v[4:5], s[4:5] op_sel_hi:[1,0]", [3, 6]),
    ):
        found = computed(text, a, b, kind=np.uint64, scalars={4: 0x40400000, 5: 0})
        assert found.view(np.float32).tolist() == wanted, text


def test_mixed_sources_are_single_or_either_half() -> None:
    a = np.array([1.5, 3.0], np.float16).view(np.uint32)
    b = np.array([2.0], np.float32)
    text = "v_fma_mix_f32 v1, v4, v5, -v4 op_sel:[1,0,0] op_sel_hi:[1,0,1]"
    assert computed(text, a, b, kind=np.float32).tolist() == [4.5]
    low = "v_fma_mixlo_f16 v1, v4, v5, 1.0 op_sel_hi:[1,0,0]"
    found = computed(low, a, b, before=np.array([0xAAAA0000], np.uint32))
    assert found.tolist() == [0xAAAA4400]
    high = low.replace("mixlo", "mixhi")
    assert computed(high, a, b, before=np.array([0xAAAA], np.uint32)).tolist() == [0x4400AAAA]


@_FEW
@_SEEDS
def test_dot_products_of_integers_are_exact(seed: int) -> None:
    a, b, c = (some_bits(seed + i, 64) for i in range(3))
    bytes_ = [one.view(np.int8).reshape(-1, 4).astype(np.int64) for one in (a, b)]
    addend = c.view(np.int32).astype(np.int64)
    exact = (bytes_[0] * bytes_[1]).sum(1) + addend
    found = computed("v_dot4_i32_i8 v1, v4, v5, v6", a, b, c, kind=np.int32)
    np.testing.assert_array_equal(found, exact.astype(np.int32))
    found = computed("v_dot4_i32_i8 v1, v4, v5, v6 clamp", a, b, c, kind=np.int32)
    np.testing.assert_array_equal(found, np.clip(exact, -(2**31), 2**31 - 1))
    unsigned = b.view(np.uint8).reshape(-1, 4).astype(np.int64)
    mixed = ((bytes_[0] * unsigned).sum(1) + addend).astype(np.int32)[:32]
    text = "v_dot4_i32_iu8 v1, v4, v5, v6 neg_lo:[1,0,0]"
    found = computed(text, a[:32], b[:32], c[:32], chip="gfx1100", kind=np.int32)
    np.testing.assert_array_equal(found, mixed)


def test_dot_products_of_halves_round_once() -> None:
    a = np.array([1.0, 2.0**-12], np.float16).view(np.uint32)
    b = np.array([1.0, 2.0**-12], np.float16).view(np.uint32)
    found = computed("v_dot2_f32_f16 v1, v4, v5, 1.0", a, b, kind=np.float32)
    assert found.tolist() == [2.0]
    # 1 + 2^-23 - 2^-24 needs one rounding; rounding each sum would give 1 or 1 + 2^-23.
    c = np.array([2.0**-23], np.float32)
    text = "v_dot2_f32_f16 v1, v4, v5, v6 neg_hi:[1,0,0]"
    assert computed(text, a, b, c, kind=np.float32).tolist() == [1.0]


def test_dot_products_know_infinities_and_go_in_pairs() -> None:
    a = np.full(32, np.array([np.inf, 1.0], np.float16).view(np.uint32)[0])
    b = np.full(32, np.array([2.0, 1.0], np.float16).view(np.uint32)[0])
    text = "v_dual_dot2acc_f32_f16 v1, v4, v5 :: v_dual_mov_b32 v2, v4"
    found = computed(
        text, a, b, chip="gfx1100", kind=np.float32, before=np.ones(32, np.float32).view(np.uint32)
    )
    assert found[0] == np.inf


def test_both_of_a_pair_read_before_either_writes() -> None:
    for text in (
        "v_dual_mov_b32 v4, v5 :: v_dual_mov_b32 v5, v4",
        "v_dual_add_nc_u32 v4, 0, v5 :: v_dual_mov_b32 v5, v4",
        "v_dual_mov_b32 v4, v5 :: v_dual_add_nc_u32 v5, 0, v4",
    ):
        result = Fragment(text, "gfx1100").run(
            {4: np.full(32, 1, np.uint32), 5: np.full(32, 2, np.uint32)}
        )
        assert (result.vector(4)[0, 0], result.vector(5)[0, 0]) == (2, 1), text


def test_halves_of_pairs_accumulate_and_select() -> None:
    text = """
        v_dual_fmac_f32 v1, v4, v5 :: v_dual_fmaak_f32 v2, v4, v5, 0x3f800000
        v_cmp_lt_f32 vcc_lo, v4, v5
        v_dual_cndmask_b32 v3, v4, v5 :: v_dual_mul_f32 v6, v4, v5
    """
    a, b = np.full(32, 2, np.float32), np.full(32, 3, np.float32)
    result = Fragment(text, "gfx1201").run({1: a, 4: a, 5: b})
    assert [result.vector(i, np.float32)[0, 0] for i in (1, 2, 3, 6)] == [8, 7, 3, 6]


@pytest.mark.parametrize("chip", ["gfx1100", "gfx1201"])
def test_lanes_permute_within_rows_and_across_them(chip: str) -> None:
    lanes = np.arange(32, dtype=np.uint32)
    order = [3, 2, 1, 0, 15, 14, 13, 12, 8, 9, 10, 11, 4, 5, 6, 7]
    words = [
        sum(place << 4 * i for i, place in enumerate(order[8 * k : 8 * k + 8])) for k in (0, 1)
    ]
    scalars = {4: words[0], 5: words[1]}
    own = computed("v_permlane16_b32 v1, v4, s4, s5", lanes, chip=chip, scalars=scalars)
    other = computed("v_permlanex16_b32 v1, v4, s4, s5", lanes, chip=chip, scalars=scalars)
    assert own.tolist() == [(lane & 16) + order[lane & 15] for lane in range(32)]
    assert other.tolist() == [(lane & 16 ^ 16) + order[lane & 15] for lane in range(32)]


def test_rows_are_swapped_between_registers() -> None:
    lanes = np.arange(64, dtype=np.uint32)
    result = Fragment("v_permlane32_swap_b32 v4, v5", "gfx950").run({4: lanes, 5: lanes + 100})
    assert result.vector(4)[0].tolist() == [*range(32), *range(100, 132)]
    assert result.vector(5)[0].tolist() == [*range(32, 64), *range(132, 164)]
