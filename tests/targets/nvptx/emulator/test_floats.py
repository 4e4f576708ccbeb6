"""Float instructions against exact results that are rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from tests.targets.nvptx.emulator.evaluating import evaluate
from tests.targets.nvptx.emulator.exact_rounding import FORMATS, operands, same

_ROWS = 384
_MODES = ("rn", "rz", "rm", "rp")


def _sum(a: float, b: float, name: str, mode: str) -> float:
    if not (math.isfinite(a) and math.isfinite(b)):
        return a + b
    exact = Fraction(a) + Fraction(b)
    if exact:
        return FORMATS[name].round(exact, mode)
    return _zero(math.copysign(1, a), math.copysign(1, b), mode)


def _zero(one: float, other: float, mode: str) -> float:
    """Return the zero that two terms of some signs cancel to."""
    if one == other:
        return math.copysign(0, one)
    return -0.0 if mode == "rm" else 0.0


def _difference(a: float, b: float, name: str, mode: str) -> float:
    return _sum(a, -b, name, mode)


def _product(a: float, b: float, name: str, mode: str) -> float:
    if not (math.isfinite(a) and math.isfinite(b)) or a == 0 or b == 0:
        return a * b
    return FORMATS[name].round(Fraction(a) * Fraction(b), mode)


def _quotient(a: float, b: float, name: str, mode: str) -> float:
    with np.errstate(all="ignore"):
        if not (math.isfinite(a) and math.isfinite(b)) or a == 0 or b == 0:
            return float(np.float64(a) / np.float64(b))
    return FORMATS[name].round(Fraction(a) / Fraction(b), mode)


def _fused(a: float, b: float, c: float, name: str, mode: str) -> float:
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b + c
    if not math.isfinite(c):
        return c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact:
        return FORMATS[name].round(exact, mode)
    sign = math.copysign(1, a) * math.copysign(1, b)
    return _zero(sign, math.copysign(1, c), mode)


_BINARY: dict[str, Callable[[float, float, str, str], float]] = {
    "add": _sum,
    "sub": _difference,
    "mul": _product,
    "div": _quotient,
}


def _cases() -> list[tuple[str, str, str]]:
    found = [(stem, name, mode) for stem in _BINARY for name in ("f32", "f64") for mode in _MODES]
    return found + [
        (stem, name, "rn") for stem in ("add", "sub", "mul") for name in ("f16", "bf16")
    ]


@pytest.mark.parametrize(("stem", "name", "mode"), _cases())
def test_two_operands_are_rounded_once(stem: str, name: str, mode: str) -> None:
    a, b = operands(name, _ROWS, 1, columns=2)
    line = f"{stem}.{mode}.{name} {{d}}, {{a}}, {{b}}"
    (found,) = evaluate(line, a, b, results=(FORMATS[name].kind,))
    wanted = [_BINARY[stem](float(x), float(y), name, mode) for x, y in zip(a, b, strict=True)]
    wrong = same(found, wanted)
    assert not wrong, [(a[i], b[i], found[i], wanted[i]) for i in wrong[:4]]


@pytest.mark.parametrize(
    ("name", "mode"),
    [*((name, mode) for name in ("f32", "f64") for mode in _MODES), ("f16", "rn"), ("bf16", "rn")],
)
def test_fma_is_rounded_once(name: str, mode: str) -> None:
    a, b, c = operands(name, 2 * _ROWS, 2, columns=3)
    # Sums that nearly cancel are where two roundings show.
    with np.errstate(all="ignore"):
        c[::3] = -(a * b)[::3]
    (found,) = evaluate(
        f"fma.{mode}.{name} {{d}}, {{a}}, {{b}}, {{c}}", a, b, c, results=(FORMATS[name].kind,)
    )
    wanted = [
        _fused(float(x), float(y), float(z), name, mode) for x, y, z in zip(a, b, c, strict=True)
    ]
    wrong = same(found, wanted)
    assert not wrong, [(a[i], b[i], c[i], found[i], wanted[i]) for i in wrong[:4]]


def test_fma_of_f32_where_a_sum_in_f64_would_round_twice() -> None:
    a = np.array([1 + 2.0**-12], np.float32)
    b = np.array([1 + 2.0**-12], np.float32)
    c = np.array([2.0**-60], np.float32)
    (found,) = evaluate("fma.rn.f32 {d}, {a}, {b}, {c}", a, b, c, results=(np.float32,))
    # (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24 lies halfway; what is added decides.
    assert found[0] == np.float32(1 + 2.0**-11 + 2.0**-23)


@pytest.mark.parametrize("name", ["f32", "f64"])
@pytest.mark.parametrize("mode", _MODES)
def test_roots(name: str, mode: str) -> None:
    (a,) = operands(name, _ROWS, 3)
    (found,) = evaluate(f"sqrt.{mode}.{name} {{d}}, {{a}}", a, results=(FORMATS[name].kind,))
    for value, root in zip(a, found, strict=True):
        if not value > 0 or np.isinf(value):
            continue
        # Scaled so that the integer root has more bits than any format.
        exact = Fraction(float(value))
        scale = 4**1200
        whole = math.isqrt(exact.numerator * scale // exact.denominator)
        inexact = whole * whole * exact.denominator != exact.numerator * scale
        near = Fraction(2 * whole + inexact, 2 * 2**1200)
        assert float(root) == FORMATS[name].round(near, mode), (value, root)


@pytest.mark.parametrize("name", ["f32", "f64"])
@pytest.mark.parametrize("mode", _MODES)
def test_reciprocals(name: str, mode: str) -> None:
    (a,) = operands(name, _ROWS, 4)
    (found,) = evaluate(f"rcp.{mode}.{name} {{d}}, {{a}}", a, results=(FORMATS[name].kind,))
    wanted = [_quotient(1.0, float(x), name, mode) for x in a]
    wrong = same(found, wanted)
    assert not wrong, [(a[i], found[i], wanted[i]) for i in wrong[:4]]


_FUNCTIONS: dict[str, Callable[[float], float]] = {
    "rcp.approx.f32": lambda x: 1 / x,
    "rsqrt.approx.f32": lambda x: 1 / math.sqrt(x),
    "sqrt.approx.f32": math.sqrt,
    "ex2.approx.f32": lambda x: 2.0**x,
    "lg2.approx.f32": math.log2,
    "sin.approx.f32": math.sin,
    "cos.approx.f32": math.cos,
    "tanh.approx.f32": math.tanh,
}


@pytest.mark.parametrize("line", _FUNCTIONS)
def test_approximations_are_within_a_few_units(line: str) -> None:
    a = np.linspace(0.01, 20, 500, dtype=np.float32)
    (found,) = evaluate(f"{line} {{d}}, {{a}}", a, results=(np.float32,))
    wanted = np.array([_FUNCTIONS[line](float(x)) for x in a])
    np.testing.assert_allclose(found, wanted, rtol=2e-7, atol=1e-9)


def test_flushing_takes_subnormal_operands_and_results_for_zeros() -> None:
    tiny = np.float32(2.0**-127)
    a = np.array([tiny, -tiny, 1, 2.0**-100], np.float32)
    b = np.array([tiny, 0, 0, 2.0**-100], np.float32)
    (plain,) = evaluate("add.f32 {d}, {a}, {b}", a, b, results=(np.float32,))
    (flushed,) = evaluate("add.ftz.f32 {d}, {a}, {b}", a, b, results=(np.float32,))
    assert plain.tolist() == [2 * float(tiny), -float(tiny), 1, 2.0**-99]
    assert flushed.tolist() == [0, 0, 1, 2.0**-99]
    (product,) = evaluate("mul.ftz.f32 {d}, {a}, {b}", a, b, results=(np.float32,))
    assert product.tolist() == [0, 0, 0, 0]
    (negated,) = evaluate("neg.ftz.f32 {d}, {a}", a, results=(np.float32,))
    assert np.signbit(negated).tolist() == [True, False, True, True]


def test_saturating_clamps_to_0_and_1() -> None:
    a = np.array([-1, -0.0, 0.25, 3, np.inf, np.nan], np.float32)
    (found,) = evaluate("add.sat.f32 {d}, {a}, 0f00000000", a, results=(np.float32,))
    assert found.tolist() == [0, 0, 0.25, 1, 1, 0]
    assert not np.signbit(found).any()


def test_dividing_by_what_is_too_large_gives_0_where_it_is_approximate() -> None:
    a = np.array([1, -1, np.inf, 3], np.float32)
    b = np.array([2.0**127, 2.0**127, 2.0**127, 2], np.float32)
    (found,) = evaluate("div.approx.f32 {d}, {a}, {b}", a, b, results=(np.float32,))
    assert found[:2].tolist() == [0, 0]
    assert np.signbit(found[1])
    assert np.isnan(found[2])
    assert found[3] == 1.5
    (full,) = evaluate("div.full.f32 {d}, {a}, {b}", a, b, results=(np.float32,))
    assert full[0] == 2.0**-127


@pytest.mark.parametrize("name", ["f32", "f64", "f16", "bf16"])
def test_minima_and_maxima_know_zeros_and_nans(name: str) -> None:
    kind = FORMATS[name].kind
    a = np.array([1, -0.0, 0.0, np.nan, 2, np.nan, -np.inf], kind)
    b = np.array([2, 0.0, -0.0, 1, np.nan, np.nan, np.inf], kind)
    (large,) = evaluate(f"max.{name} {{d}}, {{a}}, {{b}}", a, b, results=(kind,))
    assert not same(large, [2, 0.0, 0.0, 1, 2, math.nan, math.inf])
    (small,) = evaluate(f"min.{name} {{d}}, {{a}}, {{b}}", a, b, results=(kind,))
    assert not same(small, [1, -0.0, -0.0, 1, 2, math.nan, -math.inf])
    if name != "f64":
        line = f"max.NaN.{name} {{d}}, {{a}}, {{b}}"
        (strict,) = evaluate(line, a, b, results=(kind,))
        assert not same(strict, [2, 0.0, 0.0, math.nan, math.nan, math.nan, math.inf])


def test_signs() -> None:
    a = np.array([1.5, -2, 0.0, np.inf], np.float32)
    b = np.array([-1, -1, -1, 1], np.float32)
    (sign,) = evaluate("copysign.f32 {d}, {b}, {a}", a, b, results=(np.float32,))
    assert not same(sign, [-1.5, -2, -0.0, math.inf])
    (size,) = evaluate("abs.f32 {d}, {a}", a, results=(np.float32,))
    assert not same(size, [1.5, 2, 0.0, math.inf])
    line = "min.xorsign.abs.f32 {d}, {a}, {b}"
    (xor,) = evaluate(line, a, b, results=(np.float32,))
    assert not same(xor, [-1, 1, -0.0, 1])


def test_packed_types_compute_each_element() -> None:
    a = np.array([[1, 2], [3, -4]], np.float16)
    b = np.array([[0.5, 0.25], [2, 8]], np.float16)
    words = [np.ascontiguousarray(one).view(np.uint32).ravel() for one in (a, b)]
    (found,) = evaluate("mul.f16x2 {d}, {a}, {b}", *words, results=(np.uint32,))
    assert np.array_equal(found.view(np.float16).reshape(2, 2), a * b)
    (negated,) = evaluate("neg.f16x2 {d}, {a}", words[0], results=(np.uint32,))
    assert np.array_equal(negated.view(np.float16).reshape(2, 2), -a)
    brain = [one.astype(ml_dtypes.bfloat16) for one in (a, b)]
    words = [np.ascontiguousarray(one).view(np.uint32).ravel() for one in brain]
    line = "fma.rn.bf16x2 {d}, {a}, {b}, {a}"
    (found,) = evaluate(line, *words, results=(np.uint32,))
    wanted = a.astype(np.float64) * b + a
    assert np.array_equal(found.view(ml_dtypes.bfloat16).reshape(2, 2).astype(np.float64), wanted)
    pairs = [one.astype(np.float32).view(np.uint64).ravel() for one in (a, b)]
    (found,) = evaluate("add.rn.f32x2 {d}, {a}, {b}", *pairs, results=(np.uint64,))
    assert np.array_equal(found.view(np.float32).reshape(2, 2), (a + b).astype(np.float32))


def test_relations_of_floats_know_nans() -> None:
    a = np.array([1, np.nan, 2, -0.0], np.float32)
    b = np.array([2, 1, 2, 0.0], np.float32)
    wanted = {
        "eq": [False, False, True, True],
        "ne": [True, False, False, False],
        "lt": [True, False, False, False],
        "equ": [False, True, True, True],
        "neu": [True, True, False, False],
        "ltu": [True, True, False, False],
        "geu": [False, True, True, True],
        "num": [True, False, True, True],
        "nan": [False, True, False, False],
    }
    for relation, truth in wanted.items():
        line = f"setp.{relation}.f32 {{d}}, {{a}}, {{b}}"
        (found,) = evaluate(line, a, b, results=(np.bool_,))
        assert found.tolist() == truth, relation
    halves = np.array([[1, 2], [3, np.nan]], np.float16).view(np.uint32).ravel()
    first, second = evaluate("setp.gt.f16x2 {d}|{q}, {a}, 0", halves, results=(np.bool_, np.bool_))
    assert first.tolist() == [True, True]
    assert second.tolist() == [True, False]


def test_properties() -> None:
    a = np.array([1, np.inf, np.nan, 2.0**-130, 0], np.float32)
    wanted = {
        "finite": [True, False, False, True, True],
        "infinite": [False, True, False, False, False],
        "number": [True, True, False, True, True],
        "notanumber": [False, False, True, False, False],
        "normal": [True, False, False, False, True],
        "subnormal": [False, False, False, True, False],
    }
    for name, truth in wanted.items():
        (found,) = evaluate(f"testp.{name}.f32 {{d}}, {{a}}", a, results=(np.bool_,))
        assert found.tolist() == truth, name


def test_a_nan_of_arithmetic_is_the_canonical_one() -> None:
    a = np.array([np.inf, -np.nan, 1], np.float32)
    b = np.array([-np.inf, 1, 2], np.float32)
    (found,) = evaluate("add.f32 {d}, {a}, {b}", a, b, results=(np.uint32,))
    assert found.tolist() == [0x7FFFFFFF, 0x7FFFFFFF, 0x40400000]
    signalling = np.array([0x7D01, 0xFD01, 0x3C00], np.uint16)
    (wide,) = evaluate("cvt.f32.f16 {d}, {a}", signalling, results=(np.uint32,))
    assert wide.tolist() == [0x7FFFFFFF, 0x7FFFFFFF, 0x3F800000]


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_mixed_sums_take_halves_and_give_f32(name: str) -> None:
    kind = FORMATS[name].kind
    a = np.array([1.5, -3, 0.25], kind)
    b = np.array([2, 5, -8], kind)
    c = np.array([2.0**-20, 1e6, 0.1], np.float32)
    wide, other = a.astype(np.float32), b.astype(np.float32)
    (total,) = evaluate(f"add.rn.f32.{name} {{d}}, {{a}}, {{b}}", a, c, results=(np.float32,))
    assert total.tolist() == (wide + c).tolist()
    (less,) = evaluate(f"sub.rn.f32.{name} {{d}}, {{a}}, {{b}}", a, c, results=(np.float32,))
    assert less.tolist() == (wide - c).tolist()
    line = f"fma.rn.f32.{name} {{d}}, {{a}}, {{b}}, {{c}}"
    (fused,) = evaluate(line, a, b, c, results=(np.float32,))
    exact = wide.astype(np.float64) * other + c
    assert fused.tolist() == exact.astype(np.float32).tolist()
