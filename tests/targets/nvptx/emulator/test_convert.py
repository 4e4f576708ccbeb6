"""Conversions between every pair of types, against exact values rounded once."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.targets.nvptx.emulator.evaluating import evaluate
from tests.targets.nvptx.emulator.exact_rounding import FORMATS, operands, same

_ROWS = 384
_INTEGERS = [f"{sign}{bits}" for bits in (8, 16, 32, 64) for sign in "su"]
_WHOLE = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def _register(kind: str) -> str:
    """Return the NumPy type of the narrowest register that holds a type (8 bits lie in 16)."""
    return f"u{max(int(kind.lstrip('subf')) // 8, 2)}"


def _integers(kind: str, seed: int) -> list[int]:
    source = random.Random(f"{kind} {seed}")
    bits = int(kind[1:])
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)
    edges = [low, low + 1, -1, 0, 1, high - 1, high, high // 2]
    found = [max(low, edge) for edge in edges]
    while len(found) < _ROWS:
        width = source.randrange(1, bits + 1)
        found.append(min(max(source.randrange(-(1 << width), 1 << width), low), high))
    return found


def _column(values: list[int], kind: str) -> NDArray[Any]:
    width = int(_register(kind)[1:]) * 8
    return np.array([value % (1 << width) for value in values], _register(kind))


def _typed(values: NDArray[Any], kind: str) -> list[int]:
    bits = int(kind[1:])
    cut = [int(value) % (1 << bits) for value in values]
    return [one - (1 << bits) if kind[0] == "s" and one >> bits - 1 else one for one in cut]


@pytest.mark.parametrize("source", _INTEGERS)
def test_integers_to_integers(source: str) -> None:
    values = _integers(source, 1)
    for to in _INTEGERS:
        column = _column(values, source)
        line = f"cvt.{to}.{source} {{d}}, {{a}}"
        (found,) = evaluate(line, column, results=(_register(to),))
        bits = int(to[1:])
        cut = [value % (1 << bits) for value in values]
        wanted = [one - (1 << bits) if to[0] == "s" and one >> bits - 1 else one for one in cut]
        assert _typed(found, to) == wanted, to
        (found,) = evaluate(f"cvt.sat.{to}.{source} {{d}}, {{a}}", column, results=(_register(to),))
        low, high = (
            (-(1 << bits - 1), (1 << bits - 1) - 1) if to[0] == "s" else (0, (1 << bits) - 1)
        )
        assert _typed(found, to) == [max(low, min(high, value)) for value in values], to


def test_narrow_results_fill_their_registers_by_sign() -> None:
    column = np.array([0x80, 0x7F, 0x1FF], np.uint32)
    (signed,) = evaluate("cvt.s8.s32 {d}, {a}", column, results=(np.uint32,))
    assert signed.tolist() == [0xFFFFFF80, 0x7F, 0xFFFFFFFF]
    (unsigned,) = evaluate("cvt.u8.u32 {d}, {a}", column, results=(np.uint32,))
    assert unsigned.tolist() == [0x80, 0x7F, 0xFF]


@pytest.mark.parametrize("source", _INTEGERS)
@pytest.mark.parametrize("to", ["f16", "bf16", "f32", "f64"])
def test_integers_to_floats(source: str, to: str) -> None:
    values = _integers(source, 2)
    for mode in ("rn", "rz", "rm", "rp"):
        line = f"cvt.{mode}.{to}.{source} {{d}}, {{a}}"
        (found,) = evaluate(line, _column(values, source), results=(FORMATS[to].kind,))
        wanted = [FORMATS[to].round(Fraction(one), mode) if one else 0.0 for one in values]
        wrong = same(found, wanted)
        assert not wrong, [(mode, values[i], found[i], wanted[i]) for i in wrong[:4]]


@pytest.mark.parametrize("source", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("to", _INTEGERS)
def test_floats_to_integers_clamp_and_know_nans(source: str, to: str) -> None:
    (values,) = operands(source, _ROWS, 5)
    bits = int(to[1:])
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if to[0] == "s" else (0, (1 << bits) - 1)
    missing = 1 << bits - 1 if source == "f64" or bits == 64 else 0
    wide = [float(one) for one in values]
    for mode, rounding in _WHOLE.items():
        line = f"cvt.{mode}.{to}.{source} {{d}}, {{a}}"
        (found,) = evaluate(line, values, results=(_register(to),))
        wanted = [
            missing % (1 << bits)
            if math.isnan(one)
            else (
                (high if one > 0 else low)
                if math.isinf(one)
                else max(low, min(high, int(rounding(one))))
            )
            % (1 << bits)
            for one in wide
        ]
        assert [one % (1 << bits) for one in _typed(found, to)] == wanted, mode


@pytest.mark.parametrize("source", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("to", ["f16", "bf16", "f32", "f64"])
def test_floats_to_floats(source: str, to: str) -> None:
    (values,) = operands(source, _ROWS, 6)
    wide = [float(one) for one in values]
    widens = np.dtype(FORMATS[to].kind).itemsize > np.dtype(FORMATS[source].kind).itemsize
    modes = [""] if widens or source == to else ["rn.", "rz.", "rm.", "rp."]
    for mode in modes:
        line = f"cvt.{mode}{to}.{source} {{d}}, {{a}}"
        (found,) = evaluate(line, values, results=(FORMATS[to].kind,))
        wanted = [
            FORMATS[to].round(Fraction(one), mode[:2] or "rn")
            if math.isfinite(one) and one
            else one
            for one in wide
        ]
        wrong = same(found, wanted)
        assert not wrong, [(mode, values[i], found[i], wanted[i]) for i in wrong[:4]]


@pytest.mark.parametrize("name", ["f16", "f32", "f64"])
def test_floats_to_whole_numbers(name: str) -> None:
    values = np.array([-2.5, -0.4, 0.5, 1.5, 7.9, np.inf, -0.0], FORMATS[name].kind)
    for mode, rounding in _WHOLE.items():
        line = f"cvt.{mode}.{name}.{name} {{d}}, {{a}}"
        (found,) = evaluate(line, values, results=(FORMATS[name].kind,))
        assert not same(found, [float(rounding(float(one))) for one in values]), mode


def test_saturation_and_flushing_of_floats() -> None:
    values = np.array([-1, 0.5, 7, np.nan], np.float32)
    (found,) = evaluate("cvt.sat.f32.f32 {d}, {a}", values, results=(np.float32,))
    assert found.tolist() == [0, 0.5, 1, 0]
    tiny = np.array([2.0**-130, -(2.0**-130)], np.float32)
    (kept,) = evaluate("cvt.f64.f32 {d}, {a}", tiny, results=(np.float64,))
    (flushed,) = evaluate("cvt.ftz.f64.f32 {d}, {a}", tiny, results=(np.float64,))
    assert kept.tolist() == [2.0**-130, -(2.0**-130)]
    assert not same(flushed, [0.0, -0.0])
    (small,) = evaluate(
        "cvt.rn.ftz.f32.f64 {d}, {a}", tiny.astype(np.float64), results=(np.float32,)
    )
    assert not same(small, [0.0, -0.0])
    (positive,) = evaluate("cvt.rn.relu.f16.f32 {d}, {a}", values[:3], results=(np.float16,))
    assert positive.tolist() == [0, 0.5, 7]


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_two_f32_become_one_pair_the_first_above(name: str) -> None:
    a, b = operands("f32", _ROWS, 7, columns=2)
    line = f"cvt.rn.{name}x2.f32 {{d}}, {{a}}, {{b}}"
    (found,) = evaluate(line, a, b, results=(np.uint32,))
    pairs = found.view(FORMATS[name].kind).reshape(-1, 2)
    for column, values in ((1, a), (0, b)):
        wanted = [
            FORMATS[name].round(Fraction(float(one))) if np.isfinite(one) and one else float(one)
            for one in values
        ]
        assert not same(pairs[:, column], wanted)


@pytest.mark.parametrize(
    ("name", "kind", "largest"),
    [("e4m3x2", ml_dtypes.float8_e4m3fn, 448.0), ("e5m2x2", ml_dtypes.float8_e5m2, 57344.0)],
)
def test_fp8_pairs(name: str, kind: Any, largest: float) -> None:
    a, b = operands("f32", _ROWS, 8, columns=2)
    line = f"cvt.rn.satfinite.{name}.f32 {{d}}, {{a}}, {{b}}"
    (found,) = evaluate(line, a, b, results=(np.uint16,))
    pairs = found.view(kind).reshape(-1, 2)
    for column, values in ((1, a), (0, b)):
        with np.errstate(invalid="ignore"):
            clamped = np.clip(values, np.float32(-largest), np.float32(largest)).astype(kind)
        assert not same(pairs[:, column], [float(one) for one in clamped])
    every = np.arange(0, 1 << 16, 37, dtype=np.uint16)
    (halves,) = evaluate(f"cvt.rn.f16x2.{name} {{d}}, {{a}}", every, results=(np.uint32,))
    wanted = every.view(kind).reshape(-1, 2)
    decoded = halves.view(np.float16).reshape(-1, 2)
    for column in (0, 1):
        assert not same(decoded[:, column], [float(one) for one in wanted[:, column]])
    (back,) = evaluate(f"cvt.rn.satfinite.{name}.f16x2 {{d}}, {{a}}", halves, results=(np.uint16,))
    again = back.view(kind).reshape(-1, 2)
    finite = np.isfinite(wanted.astype(np.float32))
    assert np.array_equal(again.view(np.uint8)[finite], wanted.view(np.uint8)[finite])


def test_smaller_formats_pack_two_codes() -> None:
    a = np.array([1.5, -6, 100, 0.2], np.float32)
    b = np.array([0.5, 3, -100, 0], np.float32)
    for name, kind, largest in (
        ("e2m3x2", ml_dtypes.float6_e2m3fn, 7.5),
        ("e3m2x2", ml_dtypes.float6_e3m2fn, 28),
    ):
        line = f"cvt.rn.satfinite.{name}.f32 {{d}}, {{a}}, {{b}}"
        (found,) = evaluate(line, a, b, results=(np.uint16,))
        for shift, values in ((8, a), (0, b)):
            codes = (found >> shift & 0xFF).astype(np.uint8).view(kind).astype(np.float32)
            wanted = np.clip(values, -largest, largest).astype(kind).astype(np.float32)
            assert np.array_equal(codes, wanted)
        (halves,) = evaluate(f"cvt.rn.f16x2.{name} {{d}}, {{a}}", found, results=(np.uint32,))
        assert np.array_equal(
            halves.view(np.float16)[1::2],
            np.clip(a, -largest, largest).astype(kind).astype(np.float16),
        )


@pytest.mark.parametrize("mode", ["rna", "rn", "rz"])
def test_tf32_keeps_10_bits_of_fraction(mode: str) -> None:
    (values,) = operands("f32", _ROWS, 9)
    (found,) = evaluate(f"cvt.{mode}.tf32.f32 {{d}}, {{a}}", values, results=(np.uint32,))
    assert not (found[np.isfinite(values)] & 0x1FFF).any()
    for value, result in zip(values, found.view(np.float32), strict=True):
        if not np.isfinite(value) or value == 0:
            continue
        exact = Fraction(float(value))
        unit = Fraction(2) ** (max(math.frexp(float(value))[1] - 1, -126) - 10)
        count, rest = divmod(abs(exact), unit)
        tie = count % 2 == 1 if mode == "rn" else mode == "rna"
        up = mode != "rz" and (rest * 2 > unit or (rest * 2 == unit and tie))
        wanted = (count + up) * unit
        if wanted >= Fraction(2) ** 128:
            assert np.isinf(result)
        else:
            assert abs(Fraction(float(result))) == wanted


def test_packing_clamps_and_puts_the_first_above() -> None:
    a = np.array([300, -300, 5], np.int32).view(np.uint32)
    b = np.array([7, 8, 70000], np.uint32)
    (found,) = evaluate("cvt.pack.sat.u16.s32 {d}, {a}, {b}", a, b, results=(np.uint32,))
    assert found.tolist() == [300 << 16 | 7, 8, 5 << 16 | 0xFFFF]
    line = "cvt.pack.sat.s8.s32.b32 {d}, {a}, {b}, {c}"
    c = np.array([0x1234ABCD] * 3, np.uint32)
    (found,) = evaluate(line, a, b, c, results=(np.uint32,))
    assert found.tolist() == [0xABCD7F07, 0xABCD8008, 0xABCD057F]
