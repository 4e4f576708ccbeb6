"""Conversions in integer arithmetic, against ml_dtypes and exact rounding, on every code."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from mlir import ir

from tests.transforms.arith_evaluator import DTYPES, Array, call
from tiledsl.dialects import contracts
from tiledsl.dialects.context import parse
from tiledsl.transforms.expand_casts import Conversions, expand_casts

NONE: Conversions = frozenset()
SMALL = ("f16", "bf16", "f8E4M3FN", "f8E5M2")
FP8 = ("f8E4M3FN", "f8E5M2")


def expanded(
    source: str, target: str, native: Conversions = NONE, op: str = "", signed: bool = True
) -> ir.Module:
    """Return a function @f of one conversion, expanded and checked."""
    s, t = f"tensor<8x{source}>", f"tensor<8x{target}>"
    attribute = "" if signed else "{signed = false}"
    body = f"{op} %x : {s} to {t}" if op else f'"tile.cast"(%x) {attribute} : ({s}) -> {t}'
    module = parse(f"func.func @f(%x: {s}) -> {t} {{ %y = {body}\nreturn %y : {t} }}")
    with module.context, ir.Location.unknown():
        expand_casts(module, native)
    contracts.check(module, contracts.TILE)
    return module


def op_names(module: ir.Module) -> list[str]:
    names = [op.operation.name for op in contracts.operations(module.operation)]
    return [n for n in names if not n.startswith("func.")]


def codes(kind: str) -> Array:
    """Return every value of an 8- or 16-bit type."""
    dtype = DTYPES[kind]
    unsigned = np.dtype(f"u{dtype.itemsize}")
    return np.arange(1 << (8 * dtype.itemsize)).astype(unsigned).view(dtype)


def finite_values(kind: str) -> Array:
    """Return the finite values of a small type as f64, ascending."""
    with np.errstate(invalid="ignore"):
        values = codes(kind).astype(np.float64)
    return np.unique(values[np.isfinite(values)])


def nearest(x: Array, kind: str) -> Array:
    """Round f64 values to `kind`, nearest even, by looking at all its finite values."""
    finite = finite_values(kind)
    largest, step = finite[-1], finite[-1] - finite[-2]
    at = np.clip(np.searchsorted(finite, x), 1, len(finite) - 1)
    below, above = finite[at - 1], finite[at]
    middle = (below + above) / 2
    # The significand of the even neighbour ends in 0: it is the one stored with an even code.
    even = (np.abs(below).astype(DTYPES[kind]).view(f"u{DTYPES[kind].itemsize}") & 1) == 0
    value = np.where((x < middle) | ((x == middle) & even), below, above)
    over = np.abs(x) >= largest + step / 2 if kind not in FP8 else np.abs(x) > largest
    top = largest if kind in FP8 else np.inf
    return np.where(np.isnan(x), np.nan, np.copysign(np.where(over, top, value), x))


def same(got: Array, want: Array) -> None:
    """Require equal values, NaN for NaN, signs of zeros included."""
    with np.errstate(invalid="ignore"):  # signalling NaNs
        a, b = got.astype(np.float64), want.astype(np.float64)
    wrong = ~((a == b) & (np.signbit(a) == np.signbit(b)) | (np.isnan(a) & np.isnan(b)))
    assert not wrong.any(), (np.flatnonzero(wrong)[:5], a[wrong][:5], b[wrong][:5])


def interesting(kind: str) -> Array:
    """Return values of a wide type around every rounding decision of the small types."""
    rng = np.random.default_rng(3)
    parts: list[Any] = [np.array([0.0, np.inf, np.nan, 1e30, 3.4e38, 1e-45, 65519.99, 65520.0])]
    for small in SMALL:
        values = finite_values(small)
        values = values if len(values) < 1000 else rng.choice(values, 4000)
        values = np.sort(values)
        middles = (values[1:] + values[:-1]) / 2
        near = [np.nextafter(m.astype(DTYPES[kind]), d) for m in (middles,) for d in (-9e9, 9e9)]
        parts += [values, middles, *near]
    with np.errstate(over="ignore"):
        joined = np.concatenate([np.asarray(p, np.float64) for p in parts])
        return np.concatenate([joined, -joined]).astype(DTYPES[kind])


@pytest.mark.parametrize(("source", "target"), list(product(("f32", "f64"), SMALL)))
def test_a_cast_to_a_small_float_rounds_once_to_nearest_even(source: str, target: str) -> None:
    x = interesting(source)
    same(call(expanded(source, target), "f", x), nearest(x.astype(np.float64), target))


@pytest.mark.parametrize("target", SMALL)
def test_casts_of_f32_agree_with_ml_dtypes(target: str) -> None:
    rng = np.random.default_rng(5)
    x = rng.integers(-(2**31), 2**31, 100_000).astype(np.int32).view(np.float32)
    largest = float(finite_values(target)[-1])
    with np.errstate(all="ignore"):
        want = np.clip(x, -largest, largest) if target in FP8 else x
        same(call(expanded("f32", target), "f", x), want.astype(DTYPES[target]))


@pytest.mark.parametrize(
    ("source", "target"), [(s, t) for s, t in product(SMALL, ("f32", "f64", *SMALL)) if s != t]
)
def test_every_code_of_a_small_float_converts(source: str, target: str) -> None:
    x = codes(source)
    got = call(expanded(source, target), "f", x)
    with np.errstate(invalid="ignore"):
        exact = x.astype(np.float32).astype(np.float64)
    same(got, exact if target in ("f32", "f64") else nearest(exact, target))


@pytest.mark.parametrize("source", SMALL)
def test_the_upcast_op_expands_as_the_cast_does(source: str) -> None:
    x = codes(source)
    same(call(expanded(source, "f32", op="arith.extf"), "f", x), x)


def test_a_nan_with_a_low_payload_stays_nan() -> None:
    x = np.array([0x7F800001, 0xFF800001], np.uint32).view(np.float32)
    for target in SMALL:
        assert np.isnan(call(expanded("f32", target), "f", x).astype(np.float32)).all()


def test_native_pairs_become_the_ops_of_arith() -> None:
    pairs: Conversions = frozenset({("f32", "bf16"), ("bf16", "f32")})
    assert op_names(expanded("f32", "bf16", pairs)) == ["arith.truncf"]
    assert op_names(expanded("bf16", "f32", pairs)) == ["arith.extf"]
    assert op_names(expanded("f64", "f32")) == ["arith.truncf"]
    fp8: Conversions = frozenset({("f32", "f8E4M3FN")})
    assert op_names(expanded("f32", "f8E4M3FN", fp8)) == ["tile.cast"]
    assert "tile.cast" not in op_names(expanded("f32", "f8E4M3FN"))


def test_native_pairs_serve_as_steps_of_the_others() -> None:
    pairs: Conversions = frozenset({("bf16", "f32"), ("f32", "f16")})
    assert op_names(expanded("bf16", "f16", pairs)) == ["arith.extf", "arith.truncf"]


INTEGERS = [(n, signed) for n in (8, 16, 32, 64) for signed in (True, False)]


@pytest.mark.parametrize(("width", "signed"), INTEGERS)
@pytest.mark.parametrize("source", ["f16", "bf16", "f32", "f64", "f8E4M3FN", "f8E5M2"])
def test_a_cast_to_an_integer_truncates_saturates_and_drops_nan(
    source: str, width: int, signed: bool
) -> None:
    ends = [
        s * 2.0**k + d for k in (7, 8, 15, 16, 31, 32, 63, 64) for s in (1, -1) for d in (-1, 0, 1)
    ]
    numbers = [0.0, -0.0, 0.5, -0.5, 0.999, -0.999, 1.5, -1.5, 300.7, np.inf, -np.inf, np.nan, 1e30]
    with np.errstate(all="ignore"):
        x = np.array(numbers + ends).astype(DTYPES[source])
    low, high = (-(2 ** (width - 1)), 2 ** (width - 1) - 1) if signed else (0, 2**width - 1)
    values: list[float] = x.astype(np.float64).tolist()
    exact = [0 if v != v else low if v < low else high if v > high else int(v) for v in values]
    got = call(expanded(source, f"i{width}", signed=signed), "f", x)
    got = got if signed else got.view(f"u{width // 8}")
    assert got.tolist() == exact


def test_a_native_cast_to_an_integer_stays() -> None:
    pairs: Conversions = frozenset({("f32", "i32"), ("f32", "u8")})
    assert op_names(expanded("f32", "i32", pairs)) == ["tile.cast"]
    assert op_names(expanded("f32", "i8", pairs, signed=False)) == ["tile.cast"]
    assert "tile.cast" not in op_names(expanded("f32", "i8", pairs))
