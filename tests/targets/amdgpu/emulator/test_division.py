"""LLVM's division by v_div_scale, v_div_fmas and v_div_fixup, and what each is for."""

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

# What LLVM makes of `fdiv` on gfx942: v5 / v4 and v[6:7] / v[4:5].
_SINGLE = """
    v_div_scale_f32 v10, s[4:5], v4, v4, v5
    v_rcp_f32_e32 v11, v10
    v_fma_f32 v12, -v10, v11, 1.0
    v_fmac_f32_e32 v11, v12, v11
    v_div_scale_f32 v12, vcc, v5, v4, v5
    v_mul_f32_e32 v13, v12, v11
    v_fma_f32 v14, -v10, v13, v12
    v_fmac_f32_e32 v13, v14, v11
    v_fma_f32 v10, -v10, v13, v12
    v_div_fmas_f32 v10, v10, v11, v13
    v_div_fixup_f32 v1, v10, v4, v5
"""
_DOUBLE = """
    v_div_scale_f64 v[10:11], s[4:5], v[4:5], v[4:5], v[6:7]
    v_rcp_f64_e32 v[12:13], v[10:11]
    v_fma_f64 v[14:15], -v[10:11], v[12:13], 1.0
    v_fmac_f64_e32 v[12:13], v[12:13], v[14:15]
    v_fma_f64 v[14:15], -v[10:11], v[12:13], 1.0
    v_fmac_f64_e32 v[12:13], v[12:13], v[14:15]
    v_div_scale_f64 v[14:15], vcc, v[6:7], v[4:5], v[6:7]
    v_mul_f64 v[16:17], v[14:15], v[12:13]
    v_fma_f64 v[10:11], -v[10:11], v[16:17], v[14:15]
    v_div_fmas_f64 v[10:11], v[10:11], v[12:13], v[16:17]
    v_div_fixup_f64 v[2:3], v[10:11], v[4:5], v[6:7]
"""
_FORMS: dict[str, tuple[str, Any]] = {"f32": (_SINGLE, np.float32), "f64": (_DOUBLE, np.float64)}


def _quotients(kind: str, denominator: Array, numerator: Array) -> Array:
    text, dtype = _FORMS[kind]
    return computed(text, denominator, numerator, kind=dtype)


def _require_quotients(kind: str, denominator: Array, numerator: Array) -> None:
    with np.errstate(all="ignore"):
        wanted = numerator / denominator
    found = _quotients(kind, denominator, numerator)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    number = ~np.isnan(wanted)
    np.testing.assert_array_equal(found[number], wanted[number])
    np.testing.assert_array_equal(np.signbit(found)[number], np.signbit(wanted)[number])


@pytest.mark.parametrize("kind", _FORMS)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_quotients_are_rounded_correctly(kind: str, seed: int) -> None:
    dtype = _FORMS[kind][1]
    a, b = (some_bits(seed + i, 64, 8 * dtype().itemsize).view(dtype) for i in (0, 1))
    _require_quotients(kind, a, b)


@pytest.mark.parametrize("kind", _FORMS)
def test_quotients_at_the_ends_of_the_range_are_too(kind: str) -> None:
    info = np.finfo(_FORMS[kind][1])
    large, small, least = info.max, info.smallest_normal, info.smallest_subnormal
    ends = np.array([large, large / 4, small, small * 3, least, least * 5, 1, 3], info.dtype)
    denominator, numerator = (one.ravel() for one in np.meshgrid(ends, -ends))
    _require_quotients(kind, denominator, numerator)


@pytest.mark.parametrize(
    ("denominator", "numerator", "scaled", "flagged"),
    [
        (3.0, 1.0, 3.0, False),
        (2.0**-60, 2.0**60, 2.0**4, True),  # the quotient is near overflow: denominator up
        (2.0**-140, 2.0**-50, 2.0**-76, False),  # a subnormal denominator: up
        (2.0**127, 2.0**20, 2.0**63, False),  # its reciprocal would be subnormal: down
        (2.0**127, 1.0, 2.0**63, True),  # and the quotient as well
        (0.0, 1.0, np.nan, False),
    ],
)
def test_scaling_keeps_the_steps_between_within_range(
    denominator: float, numerator: float, scaled: float, flagged: bool
) -> None:
    a, b = (np.full(64, one, np.float32) for one in (denominator, numerator))
    text = "v_div_scale_f32 v1, vcc, v4, v4, v5"
    result = Fragment(text).run({4: a.view(np.uint32), 5: b.view(np.uint32)})
    np.testing.assert_array_equal(result.vector(1, np.float32)[0], np.full(64, scaled, np.float32))
    assert result.machine.s_u64[53].tolist() == [(1 << 64) - 1 if flagged else 0]


def test_the_last_step_scales_back_where_vcc_says_so() -> None:
    ones = np.ones(64, np.float32)
    text = "s_mov_b64 vcc, 3\nv_div_fmas_f32 v1, v4, v4, v5"
    large = computed(text, ones, 2 * ones, kind=np.float32)
    assert large[:3].tolist() == [3 * 2.0**64] * 2 + [3]
    small = computed(text, ones, ones / 4, kind=np.float32)
    assert small[:3].tolist() == [1.25 * 2.0**-64] * 2 + [1.25]


@pytest.mark.parametrize(
    ("quotient", "denominator", "numerator", "fixed"),
    [
        (0.5, 2.0, -1.0, -0.5),
        (-0.5, 2.0, 1.0, 0.5),
        (7.0, 0.0, -1.0, -np.inf),
        (7.0, np.inf, 1.0, 0.0),
        (7.0, 0.0, 0.0, np.nan),
        (7.0, -np.inf, np.inf, np.nan),
        (np.nan, 2.0**-126, 2.0**127, np.inf),
        (7.0, 2.0**120, 2.0**-40, 0.0),
    ],
)
def test_the_fixup_puts_in_signs_zeros_infinities_and_nans(
    quotient: float, denominator: float, numerator: float, fixed: float
) -> None:
    values = (np.full(64, one, np.float32) for one in (quotient, denominator, numerator))
    found = computed("v_div_fixup_f32 v1, v4, v5, v6", *values, kind=np.float32)
    np.testing.assert_array_equal(found, np.full(64, fixed, np.float32))
    halves = (np.full(64, one, np.float16) for one in (quotient, denominator, numerator))
    if np.isfinite([denominator, numerator]).all() and abs(numerator) < 2 and denominator < 4:
        found = computed("v_div_fixup_f16 v1, v4, v5, v6", *halves, kind=np.float16)
        np.testing.assert_array_equal(found, np.full(64, fixed, np.float16))
