"""Fused multiply-add against exact rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledsl.targets.gpu.emulator.fused import fused_float32, fused_multiply_add

_DOUBLES = st.floats(allow_nan=False, allow_infinity=False, width=64)
_NEAR = st.floats(min_value=0.5, max_value=2.0, width=64)
_FLOATS = st.floats(min_value=-(2.0**60), max_value=2.0**60, allow_nan=False, width=32)


def _rounded(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:
        return float("inf") if exact > 0 else float("-inf")


@settings(max_examples=300, deadline=None)
@given(_DOUBLES, _DOUBLES, _DOUBLES)
def test_any_doubles_are_rounded_once(a: float, b: float, c: float) -> None:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact != 0:
        assert float(fused_multiply_add(a, b, c)) == _rounded(exact)


@settings(max_examples=300, deadline=None)
@given(_NEAR, _NEAR, st.integers(-2, 2))
def test_sums_that_cancel_keep_what_is_left(a: float, b: float, units: int) -> None:
    c = -a * b * (1 + units * 2.0**-52)
    assert float(fused_multiply_add(a, b, c)) == float(Fraction(a) * Fraction(b) + Fraction(c))


@settings(max_examples=300, deadline=None)
@given(_FLOATS, _FLOATS, _FLOATS)
def test_floats_are_rounded_once(a: float, b: float, c: float) -> None:
    found = float(fused_float32(np.float32(a), np.float32(b), np.float32(c)))
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    candidates = [
        found,
        *(float(np.nextafter(np.float32(found), np.float32(s))) for s in (-np.inf, np.inf)),
    ]
    best = min(abs(Fraction(one) - exact) for one in candidates)
    assert abs(Fraction(found) - exact) == best


def test_infinities_and_nans_are_those_of_separate_operations() -> None:
    a = np.array([np.inf, 0.0, np.nan, 2.0])
    b = np.array([1.0, np.inf, 1.0, 3.0])
    c = np.array([-np.inf, 1.0, 1.0, 4.0])
    np.testing.assert_array_equal(fused_multiply_add(a, b, c), [np.nan, np.nan, np.nan, 10.0])
