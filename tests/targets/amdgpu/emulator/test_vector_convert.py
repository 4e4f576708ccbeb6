"""Conversions between formats against ml_dtypes, NumPy and rationals."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.targets.amdgpu.emulator.values import computed, some_bits

Array = NDArray[Any]

_SEEDS = given(seed=st.integers(0, 2**32))
_FEW = settings(max_examples=5, deadline=None)


def _same(found: Array, wanted: Array) -> None:
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    np.testing.assert_array_equal(found[~np.isnan(wanted)], wanted[~np.isnan(wanted)])


@_FEW
@_SEEDS
def test_floats_become_the_nearest_integer_in_range(seed: int) -> None:
    a = some_bits(seed, 64).view(np.float32)
    a[:6] = [np.nan, np.inf, -np.inf, 2.9, -2.9, 4e9]
    clean = np.where(np.isnan(a), 0, a).astype(np.float64)
    for name, low, high, kind in (
        ("i32", -(2**31), 2**31 - 1, np.int32),
        ("u32", 0, 2**32 - 1, np.uint32),
    ):
        wanted = np.trunc(np.clip(clean, low, high)).astype(np.int64).tolist()
        assert computed(f"v_cvt_{name}_f32 v1, v4", a, kind=kind).tolist() == wanted
    assert computed("v_cvt_flr_i32_f32 v1, v4", a, kind=np.int32)[4] == -3
    assert computed("v_cvt_rpi_i32_f32 v1, v4", a, kind=np.int32)[3] == 3


@_FEW
@_SEEDS
def test_integers_and_wide_floats_become_floats_rounded_once(seed: int) -> None:
    a, wide = some_bits(seed, 64), some_bits(seed, 64, 64).view(np.float64)
    signed = a.view(np.int32)
    _same(computed("v_cvt_f32_u32 v1, v4", a, kind=np.float32), a.astype(np.float32))
    _same(computed("v_cvt_f32_i32 v1, v4", a, kind=np.float32), signed.astype(np.float32))
    _same(computed("v_cvt_f64_i32 v[2:3], v4", a, kind=np.float64), signed.astype(np.float64))
    with np.errstate(all="ignore"):
        _same(computed("v_cvt_f32_f64 v1, v[4:5]", wide, kind=np.float32), wide.astype(np.float32))
    assert computed("v_cvt_f32_ubyte2 v1, v4", a, kind=np.float32).tolist() == [
        int(x) >> 16 & 255 for x in a
    ]


@_FEW
@_SEEDS
def test_halves_round_to_nearest_or_toward_zero(seed: int) -> None:
    a = some_bits(seed, 64).view(np.float32)
    a[32:] = np.random.default_rng(seed).standard_normal(32).astype(np.float32) * 100
    with np.errstate(all="ignore"):
        near = a.astype(np.float16)
    _same(computed("v_cvt_f16_f32 v1, v4", a, kind=np.float16), near)
    pairs = computed("v_cvt_pkrtz_f16_f32 v1, v4, v4", a)
    low = pairs.astype(np.uint16).view(np.float16)
    assert (np.abs(low[np.isfinite(a)].astype(np.float64)) <= np.abs(a[np.isfinite(a)])).all()
    with np.errstate(all="ignore"):
        step = np.nextafter(low, np.copysign(np.float16(np.inf), a.astype(np.float16)))
    finite = np.isfinite(a) & (np.abs(a) < 60000)
    assert (np.abs(step[finite].astype(np.float64)) > np.abs(a[finite])).all()


def test_signaling_nans_become_quiet() -> None:
    half, single = np.array([0x7D00], np.uint16), np.array([0x7FA00000], np.uint32)
    assert computed("v_cvt_f32_f16 v1, v4", half).tolist() == [0x7FE00000]
    assert computed("v_cvt_f16_f32 v1, v4", single).tolist() == [0x7F00]
    assert computed("v_max_f32 v1, v4, v4", single).tolist() == [0x7FE00000]
    assert computed("v_max_f16 v1, v4, v4", half).tolist() == [0x7F00]


def test_sixteen_bit_results_pack() -> None:
    a = np.array([1.5, -2.0, 70000.0], np.float32)
    b = np.array([0.5, 1e-30, -3.0], np.float32)
    packed = computed("v_cvt_pk_bf16_f32 v1, v4, v5", a, b, chip="gfx950")
    halves = packed.view(np.uint16).reshape(-1, 2).view(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(halves[:, 0], a.astype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(halves[:, 1], b.astype(ml_dtypes.bfloat16))
    integers = computed(
        "v_cvt_pk_i16_i32 v1, v4, v5",
        np.array([-70000, 3], np.int32),
        np.array([5, 70000], np.int32),
    )
    assert integers.view(np.int16).reshape(-1, 2).tolist() == [[-32768, 5], [3, 32767]]
    joined = computed("v_pack_b32_f16 v1, v4, v5", *(x.astype(np.float16) for x in (b, -b)))
    assert joined.view(np.float16).reshape(-1, 2)[2].tolist() == [-3.0, 3.0]


_EIGHT: dict[tuple[str, str], Any] = {
    ("gfx942", "fp8"): ml_dtypes.float8_e4m3fnuz,
    ("gfx942", "bf8"): ml_dtypes.float8_e5m2fnuz,
    ("gfx950", "fp8"): ml_dtypes.float8_e4m3fn,
    ("gfx1201", "bf8"): ml_dtypes.float8_e5m2,
}


@pytest.mark.parametrize(("chip", "name"), _EIGHT)
def test_bytes_are_the_chips_eight_bit_floats(chip: str, name: str) -> None:
    form = _EIGHT[chip, name]
    lanes = 32
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(lanes).astype(np.float32) * 10 for _ in range(2))
    text = f"v_mov_b32 v1, 0\nv_cvt_pk_{name}_f32 v1, v4, v5 op_sel:[0,0,1]"
    packed = computed(text, a, b, chip=chip).view(np.uint8).reshape(lanes, 4)
    assert not packed[:, :2].any()
    np.testing.assert_array_equal(packed[:, 2].view(form), a.astype(form))
    np.testing.assert_array_equal(packed[:, 3].view(form), b.astype(form))
    every = np.arange(4 * lanes, dtype=np.uint8) + np.uint8(100)
    words = every.view(np.uint32)
    pair = f"v_cvt_pk_f32_{name} v[2:3], v4" + (" op_sel:[1,0]" if chip != "gfx942" else "")
    if chip == "gfx942":
        pair = f"v_cvt_pk_f32_{name}_sdwa v[2:3], v4 src0_sel:WORD_1"
    found = computed(pair, words, chip=chip, kind=np.uint64).view(np.float32)
    _same(found, every.reshape(-1, 4)[:, 2:].ravel().view(form).astype(np.float32))


def test_what_is_too_large_for_eight_bits_is_nan_or_infinite() -> None:
    a = np.array([1e6], np.float32)
    assert computed("v_cvt_pk_fp8_f32 v1, v4, v4", a, chip="gfx950")[0] & 0x7F == 0x7F
    assert computed("v_cvt_pk_bf8_f32 v1, v4, v4", a, chip="gfx950")[0] & 0xFF == 0x7C
