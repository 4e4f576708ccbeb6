"""The matrix units' arithmetic against exact rational numbers, element by element."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tiledsl.targets.nvptx.emulator.tensor_core import (
    OPERANDS,
    Accumulation,
    accumulation,
    encode,
    multiply_add,
    multiply_add_f64,
    multiply_integers,
    truncate,
)

Reals = NDArray[np.float64]


def _exponent(value: float, least: int) -> int:
    return max(math.frexp(value)[1] - 1, least) if value else -5000


def _to_f32(exact: Fraction, kept: int) -> float:
    """Cut toward zero to so many bits behind the point."""
    if exact == 0:
        return 0.0
    exponent = max(math.frexp(float(exact))[1] - 1, -126)
    if abs(exact) < Fraction(2) ** exponent and exponent > -126:
        exponent -= 1
    unit = Fraction(2) ** (exponent - kept)
    return float(math.trunc(exact / unit) * unit)


def _one(
    a: Reals, b: Reals, c: float, least: tuple[int, int], how: Accumulation, half: bool
) -> float:
    """Multiply a row by a column, one term at a time."""
    total = c
    for start in range(0, len(a), how.depth):
        pairs = [
            (float(x), float(y))
            for x, y in zip(a[start : start + how.depth], b[start : start + how.depth], strict=True)
        ]
        terms = [Fraction(x) * Fraction(y) for x, y in pairs] + [Fraction(total)]
        exponents = [_exponent(x, least[0]) + _exponent(y, least[1]) for x, y in pairs]
        largest = max(*exponents, _exponent(total, -14 if half else -126))
        if largest < -2000:
            continue
        unit = Fraction(2) ** (largest - how.fraction)
        exact = sum((math.trunc(term / unit) for term in terms), start=0) * unit
        total = float(np.float16(float(exact))) if half else _to_f32(exact, how.kept)
    return total


def _values(kind: str, shape: tuple[int, ...], seed: int) -> Reals:
    """Draw values of a type, of exponents that differ a little, some of them zero."""
    rng = np.random.default_rng(seed)
    operand = OPERANDS[kind]
    if operand.bits == 8:
        bits: Any = rng.integers(0, 256, shape, np.uint8)
        values = operand.decode(bits)
        return np.where(np.isfinite(values), values, 0.0)
    spread = rng.normal(size=shape) * 2.0 ** rng.integers(-12, 6, shape)
    spread[rng.random(shape) < 0.1] = 0
    if kind == "tf32":
        return operand.decode(spread.astype(np.float32).view(np.uint32))
    bits = spread.astype(np.float32).view(np.uint32)
    if kind == "bf16":
        return operand.decode((bits >> 16).astype(np.uint16))
    return operand.decode(spread.astype(np.float16).view(np.uint16))


@pytest.mark.parametrize("chip", [80, 89, 90, 120])
@pytest.mark.parametrize("kind", ["f16", "bf16", "tf32", "e4m3", "e5m2"])
@pytest.mark.parametrize("warpgroup", [False, True])
def test_sums_are_cut_as_the_hardware_cuts_them(chip: int, kind: str, warpgroup: bool) -> None:
    how = accumulation(chip, kind, warpgroup=warpgroup)
    k = 2 * how.depth
    a, b = _values(kind, (2, k, 3), chip), _values(kind, (k, 3, 3), chip + 1)
    c = np.random.default_rng(2).normal(size=(2, 3, 3)).astype(np.float32).astype(np.float64)
    least = OPERANDS[kind].least, OPERANDS[kind].least
    found = multiply_add(a, b, c, least, how, False)
    for i, j, w in np.ndindex(found.shape):
        assert found[i, j, w] == _one(a[i, :, w], b[:, j, w], float(c[i, j, w]), least, how, False)


def test_f16_sums_are_rounded_to_nearest() -> None:
    how = accumulation(80, "f16")
    a, b = _values("f16", (2, 16, 5), 1), _values("f16", (16, 3, 5), 2)
    c = np.random.default_rng(3).normal(size=(2, 3, 5)).astype(np.float16).astype(np.float64)
    found = multiply_add(a, b, c, (-14, -14), how, True)
    for i, j, w in np.ndindex(found.shape):
        assert found[i, j, w] == _one(
            a[i, :, w], b[:, j, w], float(c[i, j, w]), (-14, -14), how, True
        )


def test_ampere_drops_what_is_25_bits_below_the_largest_term() -> None:
    """Fasi et al.: one in the accumulator and products too small to reach its last bits."""
    a, b, c = np.zeros((1, 8, 1)), np.zeros((8, 1, 1)), np.ones((1, 1, 1))
    a[0, :4], b[:4] = 2.0**-12, 2.0**-13
    how = accumulation(80, "f16")
    assert multiply_add(a, b, c, (-14, -14), how, False).item() == 1.0
    a[0, :4] = 2.0**-11  # four times the last bit that is kept add to twice f32's last one
    assert multiply_add(a, b, c, (-14, -14), how, False).item() == 1.0 + 2.0**-22


def test_fp8_keeps_13_bits_on_ada_and_in_wgmma() -> None:
    a, b, c = np.ones((1, 32, 1)), np.ones((32, 1, 1)), np.full((1, 1, 1), 2.0**14 + 1)
    least = (-6, -6)
    ada = multiply_add(a, b, c, least, accumulation(89, "e4m3"), False).item()
    hopper = multiply_add(a, b, c, least, accumulation(90, "e4m3", warpgroup=True), False).item()
    exact = multiply_add(a, b, c, least, accumulation(90, "e4m3"), False).item()
    assert (ada, hopper, exact) == (2.0**14, 2.0**14, 2.0**14 + 33)


@pytest.mark.parametrize(
    ("a", "b", "c", "expected"),
    [(np.inf, 1.0, 0.0, np.inf), (np.inf, 0.0, 0.0, np.nan), (1.0, 1.0, -np.inf, -np.inf),
     (np.inf, 1.0, -np.inf, np.nan), (np.nan, 1.0, 0.0, np.nan)],
)  # fmt: skip
def test_infinities_and_nans_spread(a: float, b: float, c: float, expected: float) -> None:
    left, right = np.ones((2, 4, 1)), np.ones((4, 1, 1))
    left[0, 0], right[0, 0] = a, 1.0 if np.isnan(b) else b
    addend = np.array([[[c]], [[0.0]]])
    with np.errstate(all="ignore"):
        found = multiply_add(left, right, addend, (-14, -14), accumulation(80, "f16"), False)
    np.testing.assert_array_equal(found[0, 0, 0], expected)
    assert found[1, 0, 0] == 3.0 + b


def test_nans_have_one_spelling() -> None:
    values = np.array([np.nan, 1.0])
    assert encode(values, False).tolist() == [0x7FFFFFFF, 0x3F800000]
    assert encode(values, True).tolist() == [0x7FFF, 0x3C00]


@settings(max_examples=300, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False, width=64), st.sampled_from([23, 13]))
def test_truncation_gives_the_next_float_toward_zero(value: float, kept: int) -> None:
    found = float(truncate(np.array([value]), kept)[0])
    if abs(value) >= 2.0**128:
        assert math.isinf(found)
    else:
        assert found == _to_f32(Fraction(value), kept)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_integers_wrap_or_saturate(seed: int, saturate: bool) -> None:
    rng = np.random.default_rng(seed)
    a: Any = rng.integers(-128, 128, (3, 32, 2), np.int8)
    b: Any = rng.integers(0, 256, (32, 2, 2), np.uint8)
    c: Any = rng.integers(-(2**31), 2**31, (3, 2, 2)).astype(np.int32)
    exact = np.einsum("mkw,knw->mnw", a.astype(np.int64), b.astype(np.int64)) + c
    expected = np.clip(exact, -(2**31), 2**31 - 1) if saturate else exact.astype(np.int32)
    np.testing.assert_array_equal(multiply_integers(a, b, c, saturate), expected)


def test_f64_is_a_chain_of_fused_multiply_adds() -> None:
    rng = np.random.default_rng(0)
    a, b, c = rng.normal(size=(2, 4, 3)), rng.normal(size=(4, 2, 3)), rng.normal(size=(2, 2, 3))
    found = multiply_add_f64(a, b, c)
    for i, j, w in np.ndindex(found.shape):
        total = c[i, j, w]
        for k in range(4):
            total = float(
                Fraction(float(a[i, k, w])) * Fraction(float(b[k, j, w])) + Fraction(float(total))
            )
        assert found[i, j, w] == total


def test_narrow_types_decode() -> None:
    e2m1 = OPERANDS["e2m1"].decode(np.arange(16, dtype=np.uint8) << 2)
    assert e2m1.tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]
    e3m2 = OPERANDS["e3m2"].decode(np.array([0, 1, 4, 31, 63], np.uint8))
    assert e3m2.tolist() == [0, 0.0625, 0.25, 28, -28]
    e2m3 = OPERANDS["e2m3"].decode(np.array([1, 8, 31, 63], np.uint8))
    assert e2m3.tolist() == [0.125, 1, 7.5, -7.5]
