"""What matrix instructions compute, against slow models of one element at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tiledsl.targets.amdgpu.emulator import matrix_arithmetic as arithmetic
from tiledsl.targets.amdgpu.emulator.matrix_arithmetic import Product
from tiledsl.targets.gpu.emulator import formats
from tiledsl.targets.gpu.emulator.formats import Format
from tiledsl.targets.gpu.emulator.fused import fused_float32, fused_multiply_add

Array = NDArray[Any]

_LEAST = {"f16": -14, "bf16": -126, "tf32": -126, "f32": -126, "f8E4M3FN": -6, "f8E5M2": -14,
          "f8E4M3FNUZ": -7, "f8E5M2FNUZ": -15}  # fmt: skip


def _split(value: float, name: str) -> tuple[float, int]:
    """Return significand and exponent, subnormal significands below 1, zero's exponent -126."""
    if value == 0:
        return 0.0, -126
    exponent = max(math.frexp(value)[1] - 1, _LEAST[name])
    return math.ldexp(value, -exponent), exponent


def _cut_sum(parts: list[tuple[float, int]]) -> tuple[float, int]:
    """Sum parts cut toward zero at 24 bits below the largest exponent."""
    largest = max(exponent for _, exponent in parts)
    cut = [math.trunc(math.ldexp(s, 24 + e - largest)) for s, e in parts]
    return sum(cut) * 2.0**-24, largest


def _floor(significand: float, bits: int) -> float:
    return math.ldexp(math.floor(math.ldexp(significand, bits)), -bits)


def _cdna3(a: list[float], b: list[float], c: float, left: Format, right: Format) -> float:
    """Return one group's sum on CDNA 3 (arXiv 2511.10909), element by element."""
    parts: list[tuple[float, int]] = []
    for x, y in zip(a, b, strict=True):
        (s0, e0), (s1, e1) = _split(x, left.name), _split(y, right.name)
        parts.append((s0 * s1, e0 + e1))
    sc, ec = _split(c, "f32")
    short = left.bits == 8
    if short:
        (s0, e0), (s1, e1) = _cut_sum(parts[0::2]), _cut_sum(parts[1::2])
        e = max(e0, e1)
        s = _floor(math.ldexp(s0, e0 - e), 24) + _floor(math.ldexp(s1, e1 - e), 24)
    else:
        s, e = _cut_sum(parts)
    top = max(e, ec)
    s = _floor(math.ldexp(s, e - top), 31)
    sc = 0.0 if short and ec < top - 25 else _floor(math.ldexp(sc, ec - top), 24)
    return float(np.float32(math.ldexp(s + sc, top)))


def _multiply(product: Product, a: Array, b: Array, c: Array) -> Array:
    """Return one wave's one block's sums, given bits (m, k), (k, n) and float32 (m, n)."""
    found = product(a[None, None], b[None, None], c.view(np.uint32)[None, None])
    return found[0, 0].view(np.float32)


def _bits(format_: Format, seed: int, shape: tuple[int, int], wild: bool) -> Array:
    """Return random operands: any finite bits, or ordinary numbers with some zeros."""
    random = np.random.default_rng(seed)
    kind = np.dtype(f"u{format_.bits // 8}")
    if wild:
        bits = random.integers(0, 1 << format_.bits, shape, np.uint64).astype(kind)
        with np.errstate(invalid="ignore"):
            bits[~(np.abs(format_.decode(bits)) < 2.0**50)] = 0
        return bits
    values = random.normal(size=shape) * 2.0 ** random.integers(-6, 6, shape)
    values[random.random(shape) < 0.1] = 0
    return format_.encode(values)


@pytest.mark.parametrize(
    ("left", "right", "group"),
    [(formats.F16, formats.F16, 8), (formats.BF16, formats.BF16, 8),
     (formats.TF32, formats.TF32, 4), (formats.E4M3_FNUZ, formats.E5M2_FNUZ, 16)],
    ids=["f16", "bf16", "xf32", "fp8"],
)  # fmt: skip
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 30), wild=st.booleans())
def test_cdna_3_cuts_products_and_sums_as_found_by_experiment(
    left: Format, right: Format, group: int, seed: int, wild: bool
) -> None:
    a, b = _bits(left, seed, (3, 2 * group), wild), _bits(right, seed + 1, (2 * group, 3), wild)
    random = np.random.default_rng(seed)
    c = random.normal(size=(3, 3)) * 2.0 ** random.integers(-30, 20, (3, 3))
    c = c.astype(np.float32)
    found = _multiply(arithmetic.truncated_sum(left, right, group), a, b, c)
    x, y = left.decode(a), right.decode(b)
    for i in range(3):
        for j in range(3):
            total = float(c[i, j])
            for first in (0, group):
                chosen = slice(first, first + group)
                total = _cdna3(x[i, chosen].tolist(), y[chosen, j].tolist(), total, left, right)
            assert found[i, j] == total


def test_cdna_3_rounds_down_where_c_outweighs_the_products() -> None:
    """The asymmetry that the experiments found: -2^-30 below 1 takes a unit off, 2^-30 adds none."""
    product = arithmetic.truncated_sum(formats.F16, formats.F16, 8)
    small = formats.F16.encode(np.full((1, 8), 2.0**-15))
    one = np.ones((1, 1), np.float32)
    zeros = np.zeros((8, 1), np.uint16)
    for value in (2.0**-14, -(2.0**-14)):
        b = zeros.copy()
        b[0] = formats.F16.encode(np.array([value]))
        expected = math.ldexp(1.0 + _floor(value * 2.0**-15, 31), 0)
        assert _multiply(product, small, b, one)[0, 0] == np.float32(expected)


@pytest.mark.parametrize("make", [
    lambda: arithmetic.truncated_sum(formats.F16, formats.F16, 8),
    lambda: arithmetic.pairwise(formats.F16, 4, flush=True),
    lambda: arithmetic.rounded_once(formats.F16, formats.F16, formats.F32),
])  # fmt: skip
def test_infinities_and_nans_spread(make: Callable[[], Product]) -> None:
    inf, nan = np.inf, np.nan
    a = formats.F16.encode(np.array([[inf, 1, 1, 1, 1, 1, 1, 1], [nan, 1, 1, 1, 1, 1, 1, 1]]))
    b = formats.F16.encode(np.array([[1.0, -1, 0], *[[1, 1, 1]] * 7]))
    with np.errstate(all="ignore"):
        found = _multiply(make(), a, b, np.zeros((2, 3), np.float32))
    assert found[0, 0] == inf
    assert found[0, 1] == -inf
    assert np.isnan(found[0, 2])
    assert np.isnan(found[1]).all()


def test_bf16_products_beyond_float32_are_infinite_on_cdna_3() -> None:
    product = arithmetic.truncated_sum(formats.BF16, formats.BF16, 8)
    a = formats.BF16.encode(np.array([[2.0**100, 2.0**100, 0, 0, 0, 0, 0, 0]], np.float32))
    b = formats.BF16.encode(np.array([[2.0**100], [-(2.0**100)], *[[1.0]] * 6], np.float32))
    with np.errstate(all="ignore"):
        assert np.isnan(_multiply(product, a, b, np.zeros((1, 1), np.float32))[0, 0])
        b[1] = 0
        assert _multiply(product, a, b, np.zeros((1, 1), np.float32))[0, 0] == np.inf


def test_gfx90a_takes_subnormal_operands_for_zero() -> None:
    """As MIOpen's notes on MI200 say of f16 and bf16."""
    flushing = arithmetic.pairwise(formats.F16, 4, flush=True)
    keeping = arithmetic.pairwise(formats.F16, 4, flush=False)
    a = formats.F16.encode(np.full((1, 4), 2.0**-20))
    b = formats.F16.encode(np.full((4, 1), 1024.0))
    zero = np.zeros((1, 1), np.float32)
    assert _multiply(flushing, a, b, zero)[0, 0] == 0
    assert _multiply(keeping, a, b, zero)[0, 0] == 4 * 2.0**-10
    tiny = np.full((1, 1), 2.0**-140, np.float32)
    assert _multiply(flushing, 0 * a, b, tiny)[0, 0] == 0


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_cdna_2_adds_in_pairs(seed: int) -> None:
    a, b = _bits(formats.F16, seed, (2, 8), False), _bits(formats.F16, seed + 1, (8, 2), False)
    random = np.random.default_rng(seed)
    c = random.normal(size=(2, 2)).astype(np.float32)
    found = _multiply(arithmetic.pairwise(formats.F16, 4, flush=False), a, b, c)
    x, y = a.view(np.float16).astype(np.float32), b.view(np.float16).astype(np.float32)
    for i in range(2):
        for j in range(2):
            p = x[i] * y[:, j]
            total = c[i, j] + ((p[0] + p[1]) + (p[2] + p[3]))
            assert found[i, j] == total + ((p[4] + p[5]) + (p[6] + p[7]))


def test_f32_and_f64_are_chains_of_fused_multiply_adds() -> None:
    random = np.random.default_rng(3)
    steps: list[tuple[Any, Format, Any]] = [
        (np.float32, formats.F32, fused_float32),
        (np.float64, formats.F64, fused_multiply_add),
    ]
    for kind, format_, fused in steps:
        a, b, c = (random.normal(size=(4, 4)).astype(kind) for _ in range(3))
        bits = [one.view(f"u{one.itemsize}")[None, None] for one in (a, b, c)]
        found = arithmetic.fma_chain(format_)(*bits)[0, 0].view(kind)
        total: Any = c
        for k in range(4):
            total = fused(a[:, k, None], b[None, k], total)
        assert np.array_equal(found, total)


def test_integers_wrap_or_saturate() -> None:
    a = np.full((1, 1, 1, 4), 0x7F, np.uint8)
    b = np.full((1, 1, 4, 1), 0x80, np.uint8)
    c = np.full((1, 1, 1, 1), -(2**31) + 5, np.int32).view(np.uint32)
    exact = -(2**31) + 5 - 4 * 127 * 128
    wrapped = arithmetic.integers(8)(a, b, c).view(np.int32)
    assert wrapped.item() == exact + 2**32
    clamped = arithmetic.integers(8, clamp=True)(a, b, c).view(np.int32)
    assert clamped.item() == -(2**31)
    unsigned = arithmetic.integers(8, (True, False))(a, b, np.zeros_like(c)).view(np.int32)
    assert unsigned.item() == 4 * 127 * 128
    nibbles = arithmetic.integers(4, (True, False))(a & 15, b >> 4, np.zeros_like(c))
    assert nibbles.view(np.int32).item() == 4 * -1 * 8


def test_what_is_not_known_is_rounded_once() -> None:
    a = formats.BF16.encode(np.array([[1.0, 2.0**-20]], np.float32))
    b = formats.BF16.encode(np.array([[1.0], [2.0**-20]], np.float32))
    product = arithmetic.rounded_once(formats.BF16, formats.BF16, formats.BF16)
    c = formats.BF16.encode(np.array([[2.0**-9]], np.float32))
    # 1 + 2^-9 is less than half way to the next bf16, 1 + 2^-7 + ...: it rounds to 1.
    assert formats.BF16.decode(product(a[None, None], b[None, None], c[None, None])).item() == 1.0
    c = formats.BF16.encode(np.array([[2.0**-8]], np.float32))
    # Half way but for the 2^-40 that a rounding by way of float32 would lose.
    found = product(a[None, None], b[None, None], c[None, None])
    assert formats.BF16.decode(found).item() == 1.0 + 2.0**-7
