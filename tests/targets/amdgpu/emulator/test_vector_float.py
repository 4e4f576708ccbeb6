"""Vector float arithmetic against exact rationals and NumPy."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.targets.amdgpu.emulator.values import computed, some_bits

Array = NDArray[Any]

_KINDS: dict[str, Any] = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
_BITS = {"f16": 16, "f32": 32, "f64": 64}


def _same(found: Array, wanted: Array) -> None:
    """Require the same values, zeros told apart, and any NaN for a NaN."""
    nan = np.isnan(wanted)
    np.testing.assert_array_equal(np.isnan(found), nan)
    unsigned = {2: np.uint16, 4: np.uint32, 8: np.uint64}[wanted.itemsize]
    bits = [np.where(nan, 0, np.ascontiguousarray(one).view(unsigned)) for one in (found, wanted)]
    np.testing.assert_array_equal(bits[0], bits[1])


def _sources(seed: int, count: int, kind: str) -> list[Array]:
    return [some_bits(seed + i, 64, _BITS[kind]).view(_KINDS[kind]) for i in range(count)]


def _names(kind: str, count: int) -> str:
    if kind == "f64":
        return ", ".join(f"v[{4 + 2 * i}:{5 + 2 * i}]" for i in range(count))
    return ", ".join(f"v{4 + i}" for i in range(count))


def _result(kind: str) -> str:
    return "v[2:3]" if kind == "f64" else "v1"


def _exact(a: float, b: float, c: float, kind: Any) -> Any:
    """Return a * b + c rounded once."""
    if not np.isfinite([a, b]).all():
        return kind(a) * kind(b) + kind(c)
    if not np.isfinite(c):
        return kind(c)
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return kind(a) * kind(b) + kind(c)
    return _rounded(exact, kind)


def _rounded(exact: Fraction, kind: Any) -> Any:
    """Round a rational to nearest even in a format."""
    info = np.finfo(kind)
    least = int(np.log2(float(info.smallest_subnormal)))
    size = abs(exact)
    power = max(size.numerator.bit_length() - size.denominator.bit_length() - info.nmant - 2, least)
    while True:
        scaled = size / Fraction(2) ** power
        whole = round(scaled)  # to nearest even
        if whole < 1 << (info.nmant + 1):
            break
        power += 1
    if power > least and whole < 1 << info.nmant:
        scaled = size / Fraction(2) ** (power - 1)
        whole, power = round(scaled), power - 1
    try:
        value = float(Fraction(whole) * Fraction(2) ** power)
    except OverflowError:
        value = np.inf
    return kind(-value if exact < 0 else value)


@pytest.mark.parametrize("kind", _KINDS)
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_fused_multiply_add_rounds_once(kind: str, seed: int) -> None:
    a, b, c = _sources(seed, 3, kind)
    with np.errstate(all="ignore"):
        # Addends near the product's negative or its half unit are where it matters.
        near = (-(a * b)).astype(_KINDS[kind])
        c = np.where(np.arange(64) % 3 == 0, near, c)
        wanted = [
            _exact(float(x), float(y), float(z), _KINDS[kind])
            for x, y, z in zip(a, b, c, strict=True)
        ]
    found = computed(f"v_fma_{kind} {_result(kind)}, {_names(kind, 3)}", a, b, c, kind=_KINDS[kind])
    _same(found, np.array(wanted, _KINDS[kind]))


def test_a_sum_near_half_way_between_two_singles_rounds_once() -> None:
    # A square half way between two float32, and an addend that float64's sum of them does not hold.
    x = np.array([(1 + 2.0**-12) * 2.0**12], np.float32)  # its square is 2^24 + 2^13 + 1
    tiny = np.array([-(2.0**-40)], np.float32)
    found = computed("v_fma_f32 v1, v4, v4, v5", x, tiny, kind=np.float32)
    assert found.tolist() == [2.0**24 + 2.0**13]
    found = computed("v_fma_f32 v1, v4, v4, v5", x, -tiny, kind=np.float32)
    assert found.tolist() == [2.0**24 + 2.0**13 + 2]


@pytest.mark.parametrize("kind", _KINDS)
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_sums_and_products_are_numpys(kind: str, seed: int) -> None:
    a, b = _sources(seed, 2, kind)
    with np.errstate(all="ignore"):
        for name, wanted in (("add", a + b), ("mul", a * b)):
            text = f"v_{name}_{kind} {_result(kind)}, {_names(kind, 2)}"
            _same(computed(text, a, b, kind=_KINDS[kind]), wanted)


def _sign(x: float) -> float:
    return float(np.copysign(1, x))


def _number(choose: Any, a: float, b: float) -> float:
    if np.isnan(a) or np.isnan(b):
        return b if np.isnan(a) else a
    if a == b == 0:
        return choose([a, b], key=_sign)
    return choose(a, b)


@pytest.mark.parametrize("kind", ["f16", "f32", "f64"])
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_minimum_and_maximum_prefer_numbers_and_tell_zeros_apart(kind: str, seed: int) -> None:
    a, b = _sources(seed, 2, kind)
    a[:2], b[:2] = [0.0, -0.0], [-0.0, 0.0]
    for name, choose in (("min", min), ("max", max)):
        found = computed(
            f"v_{name}_{kind} {_result(kind)}, {_names(kind, 2)}", a, b, kind=_KINDS[kind]
        )
        wanted = [_number(choose, x, y) for x, y in zip(a, b, strict=True)]
        _same(found, np.array(wanted, _KINDS[kind]))


def test_minimum_of_ieee_2019_is_nan_where_a_source_is() -> None:
    a = np.array([np.nan, 1, 0.0, -0.0], np.float32)
    b = np.array([1, np.nan, -0.0, 0.0], np.float32)
    low = computed("v_minimum_f32 v1, v4, v5", a, b, kind=np.float32, chip="gfx1201")
    high = computed("v_maximum_f32 v1, v4, v5", a, b, kind=np.float32, chip="gfx1201")
    _same(low, np.array([np.nan, np.nan, -0.0, -0.0], np.float32))
    _same(high, np.array([np.nan, np.nan, 0.0, 0.0], np.float32))


def test_the_median_with_a_nan_is_the_least_number() -> None:
    a = np.array([3, np.nan, 5], np.float32)
    b = np.array([1, 7, np.nan], np.float32)
    c = np.array([2, 4, -1], np.float32)
    found = computed("v_med3_f32 v1, v4, v5, v6", a, b, c, kind=np.float32)
    assert found.tolist() == [2, 4, -1]


@pytest.mark.parametrize("kind", ["f32", "f64"])
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_llvms_division_is_correctly_rounded_of_all_numbers(kind: str, seed: int) -> None:
    numerator, denominator = _sources(seed, 2, kind)
    division = _DIVISIONS[kind]
    found = computed(division, numerator, denominator, kind=_KINDS[kind])
    with np.errstate(all="ignore"):
        _same(found, numerator / denominator)


_DIVISIONS = {
    "f32": """
        v_div_scale_f32 v10, s[4:5], v5, v5, v4
        v_div_scale_f32 v11, vcc, v4, v5, v4
        v_rcp_f32 v12, v10
        v_fma_f32 v13, -v10, v12, 1.0
        v_fma_f32 v12, v13, v12, v12
        v_mul_f32 v13, v11, v12
        v_fma_f32 v14, -v10, v13, v11
        v_fma_f32 v13, v14, v12, v13
        v_fma_f32 v10, -v10, v13, v11
        v_div_fmas_f32 v10, v10, v12, v13
        v_div_fixup_f32 v1, v10, v5, v4
    """,
    "f64": """
        v_div_scale_f64 v[10:11], s[4:5], v[6:7], v[6:7], v[4:5]
        v_rcp_f64 v[12:13], v[10:11]
        v_div_scale_f64 v[20:21], vcc, v[4:5], v[6:7], v[4:5]
        v_fma_f64 v[14:15], -v[10:11], v[12:13], 1.0
        v_fma_f64 v[12:13], v[12:13], v[14:15], v[12:13]
        v_fma_f64 v[14:15], -v[10:11], v[12:13], 1.0
        v_fma_f64 v[12:13], v[12:13], v[14:15], v[12:13]
        v_mul_f64 v[14:15], v[20:21], v[12:13]
        v_fma_f64 v[10:11], -v[10:11], v[14:15], v[20:21]
        v_div_fmas_f64 v[10:11], v[10:11], v[12:13], v[14:15]
        v_div_fixup_f64 v[2:3], v[10:11], v[6:7], v[4:5]
    """,
}
"""What LLVM makes of a division."""


@pytest.mark.parametrize("kind", _KINDS)
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_numbers_come_apart_and_together_again(kind: str, seed: int) -> None:
    (a,) = _sources(seed, 1, kind)
    counts = "i16" if kind == "f16" else "i32"
    part, power = ("v[10:11]", "v12") if kind == "f64" else ("v10", "v12")
    text = f"""
        v_frexp_mant_{kind} {part}, {_names(kind, 1)}
        v_frexp_exp_{counts}_{kind} {power}, {_names(kind, 1)}
        v_ldexp_{kind} {_result(kind)}, {part}, {power}
    """
    _same(computed(text, a, kind=_KINDS[kind]), a)


@pytest.mark.parametrize(
    ("name", "function"),
    [("trunc", np.trunc), ("ceil", np.ceil), ("floor", np.floor), ("rndne", np.rint)],
)
@pytest.mark.parametrize("kind", _KINDS)
def test_rounding_to_integers_is_numpys(name: str, function: Any, kind: str) -> None:
    (a,) = _sources(5, 1, kind)
    text = f"v_{name}_{kind} {_result(kind)}, {_names(kind, 1)}"
    _same(computed(text, a, kind=_KINDS[kind]), function(a))


def test_transcendentals_take_subnormals_for_zero_and_make_none() -> None:
    tiny = np.array([1e-40, -1e-40], np.float32)
    assert computed("v_rcp_f32 v1, v4", tiny, kind=np.float32).tolist() == [np.inf, -np.inf]
    assert computed("v_log_f32 v1, v4", tiny, kind=np.float32)[0] == -np.inf
    large = np.array([-127.0, 3e38], np.float32)
    assert computed("v_exp_f32 v1, v4", large, kind=np.float32).tolist() == [0, np.inf]
    assert computed("v_rcp_f32 v1, v4", large, kind=np.float32)[1] == 0


def test_sine_and_cosine_count_in_turns() -> None:
    turns = np.array([0, 0.25, 0.5, 1 / 12, -3.25, 300.25, np.inf], np.float32)
    sine = computed("v_sin_f32 v1, v4", turns, kind=np.float32)
    cosine = computed("v_cos_f32 v1, v4", turns, kind=np.float32)
    np.testing.assert_allclose(sine[:5], [0, 1, 0, 0.5, -1], atol=1e-7)
    np.testing.assert_allclose(cosine[:5], [1, 0, -1, np.sqrt(0.75), 0], atol=1e-7)
    assert (sine[5], cosine[5]) == (0, 1)
    assert np.isnan(sine[6])


@pytest.mark.parametrize("name", ["exp", "log", "rcp", "rsq", "sqrt"])
@pytest.mark.parametrize("kind", ["f16", "f32"])
def test_functions_of_the_unit_are_float64s_rounded(name: str, kind: str) -> None:
    a = np.linspace(0.1, 15, 64).astype(_KINDS[kind])
    wide = a.astype(np.float64)
    wanted = {
        "exp": np.exp2(wide), "log": np.log2(wide), "rcp": 1 / wide, "rsq": 1 / np.sqrt(wide),
        "sqrt": np.sqrt(wide),
    }[name]  # fmt: skip
    found = computed(f"v_{name}_{kind} v1, v4", a, kind=_KINDS[kind])
    _same(found, wanted.astype(_KINDS[kind]))


def test_the_legacy_product_of_zero_is_zero() -> None:
    a = np.array([0.0, np.inf, 2], np.float32)
    b = np.array([np.nan, 0.0, 3], np.float32)
    assert computed("v_mul_legacy_f32 v1, v4, v5", a, b, kind=np.float32).tolist() == [0, 0, 6]


def test_modes_that_flush_make_subnormals_zero() -> None:
    tiny = np.array([1e-40, 1.0], np.float32)
    text = """
        s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 2), {}
        v_mul_f32 v1, v4, 1.0
        s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 2), 3
    """
    for bits, kept in ((0, False), (1, False), (2, False), (3, True)):
        found = computed(text.format(bits), tiny, kind=np.float32)
        assert found.tolist() == [tiny[0] if kept else 0, 1]
