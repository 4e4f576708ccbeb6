"""Elementwise functions against NumPy, and their messages."""

from __future__ import annotations

import math as python_math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiledsl.language.traced import evaluated, traced
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import (
    bool_,
    float16,
    float32,
    float64,
    int8,
    int32,
    int64,
    pointer_type,
    uint8,
    uint64,
)
from tiledsl.language import math
from tiledsl.targets.target import Options

NAN, INF = float("nan"), float("inf")
SPECIAL = np.array([NAN, INF, -INF, 0.0, -0.0, 1.5, -2.5, 3.0], np.float32)
PAIRS = np.array([(a, b) for a in SPECIAL for b in SPECIAL], np.float32).T.copy()


def same(got: Any, want: Any) -> None:
    """Require equal types, values (NaN for NaN) and signs of zeros."""
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)
    if want.dtype.kind == "f":
        number = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(want)[number])


# --- extrema and selection -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "numpy"),
    [
        (math.maximum, np.maximum),
        (math.minimum, np.minimum),
        (math.fmax, np.fmax),
        (math.fmin, np.fmin),
    ],
)
def test_extrema_treat_nan_as_numpy_does(ours: Callable[..., Any], numpy: Any) -> None:
    x, y = PAIRS
    got, want = evaluated(ours, x, y), numpy(x, y)
    np.testing.assert_array_equal(got, want)


def test_propagate_nan_none_ignores_nan() -> None:
    x, y = PAIRS
    for choice in (math.PropagateNan.NONE, False):
        got = evaluated(lambda a, b, c=choice: math.maximum(a, b, propagate_nan=c), x, y)
        np.testing.assert_array_equal(got, np.fmax(x, y))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64", "bool"])
def test_extrema_of_integers_follow_the_sign(dtype: str) -> None:
    rng = np.random.default_rng(1)
    x, y = rng.integers(0, 256, (2, 64)).astype(np.uint8).astype(dtype)
    x[:2], y[:2] = -1 if dtype.startswith("int") else 1, 0
    same(evaluated(math.maximum, x, y), np.maximum(x, y))
    same(evaluated(math.minimum, x, y), np.minimum(x, y))


def test_clamp_holds_to_bounds_and_keeps_nan() -> None:
    x = np.array([NAN, -5, 0.5, 7], np.float32)
    same(evaluated(lambda v: math.clamp(v, 0.0, 1.0), x), np.clip(x, 0, 1).astype(np.float32))
    ignoring = evaluated(lambda v: math.clamp(v, 0.0, 1.0, propagate_nan=math.PropagateNan.NONE), x)
    same(ignoring, np.array([0, 0, 0.5, 1], np.float32))


def test_where_takes_truth_from_numbers_and_promotes() -> None:
    c = np.array([0, 2, -1, 0], np.int32)
    x = np.arange(4, dtype=np.int8)
    same(evaluated(lambda c, x: math.where(c, x, 9), c, x), np.where(c, x, 9).astype(np.int8))
    got = evaluated(lambda c, x: math.where(c > 0, x, 0.5), c, x)
    same(got, np.where(c > 0, x, 0.5).astype(np.float32))


def test_where_broadcasts_all_three() -> None:
    c = np.array([[True], [False]])
    x = np.arange(4, dtype=np.float32)
    got = evaluated(lambda c, x, y: math.where(c, x, y), c, x, np.float32(-1))
    same(got, np.where(c, x, np.float32(-1)))


def test_cast_is_the_function_of_to() -> None:
    x = np.array([1.5, -2.5], np.float32)
    same(evaluated(lambda v: math.cast(v, int32), x), np.array([1, -2], np.int32))
    same(evaluated(lambda v: math.cast(v, int32, bitcast=True), x), x.view(np.int32))


def test_abs_of_every_kind() -> None:
    for x in (
        np.array([-128, -1, 5], np.int8)[[0, 1, 2, 2]],
        np.array([200, 0], np.uint8),
        np.array([-0.0, NAN, -INF, 2], np.float32),
        np.array([True, False]),
    ):
        same(evaluated(math.abs, x), np.abs(x))


# --- functions of real numbers -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["exp2", "log2", "sqrt", "exp"])
def test_functions_compute_in_their_float_type(name: str) -> None:
    x = np.linspace(0.5, 4, 8, dtype=np.float32)
    np.testing.assert_allclose(evaluated(getattr(math, name), x), getattr(np, name)(x), rtol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "computes"),
    [
        *((bool_, "f32"), (int8, "f32"), (int32, "f32"), (int64, "f64"), (uint64, "f64")),
        *((float16, "f16"), (float64, "f64")),
    ],
)
def test_integers_become_floats_of_jax_s_choice(dtype: Any, computes: str) -> None:
    module = traced(math.tanh, (dtype, (8,)))
    assert f"math.tanh %{'arg0' if dtype.is_floating() else '0'} : tensor<8x{computes}>" in str(
        module
    )


@pytest.mark.parametrize(
    "name",
    [
        *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt"),
        *("sin", "cos", "tanh", "erf"),
    ],
)
def test_each_function_is_one_op_that_fast_math_marks(name: str) -> None:
    module = str(traced(getattr(math, name), (float32, (8,))))
    assert f"math.{name} %arg0 : tensor<8xf32>" in module
    fast = str(traced(getattr(math, name), (float32, (8,)), options=Options(fast_math=True)))
    assert f"math.{name} %arg0 fastmath<arcp,afn> : tensor<8xf32>" in fast


def test_the_rn_forms_stay_exact_with_fast_math() -> None:
    fast = Options(fast_math=True)
    assert "fastmath" not in str(traced(math.sqrt_rn, float32, options=fast))
    assert "fastmath" not in str(traced(math.div_rn, float32, float32, options=fast))
    assert "fastmath" in str(traced(math.fdiv, float32, float32, options=fast))


def test_sigmoid_of_half_floats_rounds_once() -> None:
    x = np.linspace(-6, 6, 8).astype(np.float16)
    exact = 1 / (1 + np.exp(-x.astype(np.float64)))
    same(evaluated(math.sigmoid, x), exact.astype(np.float16))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax_is_stable_along_any_dimension(dim: int) -> None:
    x = np.array([[1000.0, 1001, -5, 2], [3, 4, 1e-3, -1000]], np.float32)
    e = np.exp(x.astype(np.float64) - x.max(dim, keepdims=True))
    got = evaluated(lambda v: math.softmax(v, dim), x)
    np.testing.assert_allclose(got, e / e.sum(dim, keepdims=True), rtol=1e-6, atol=1e-30)


# --- rounding ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "rint"])
def test_rounding_keeps_the_type_and_the_sign_of_zero(name: str) -> None:
    x = np.array([-0.5, 0.5, 1.5, 2.5, -2.5, 8388608.5, NAN, -INF], np.float32)
    same(evaluated(getattr(math, name), x), getattr(np, name)(x))
    n = np.array([3, -4], np.int32)
    same(evaluated(getattr(math, name), n), n)


# --- products ------------------------------------------------------------------------------------


def test_fma_rounds_once() -> None:
    x = np.float32(1 + 2**-12)
    got = evaluated(lambda a: math.fma(a, a, -1.0), np.array([x, x]))
    same(got, np.array([2**-11 + 2**-24] * 2, np.float32))


def test_fma_promotes_all_three_and_wraps_integers() -> None:
    got = evaluated(math.fma, np.array([2, 3], np.int8), np.int8(4), np.array([1.5, 2], np.float32))
    same(got, np.array([9.5, 14], np.float32))
    wrapped = evaluated(lambda a: math.fma(a, 2, 100), np.array([100, 1], np.int8))
    same(wrapped, np.array([44, 102], np.int8))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_umulhi_is_the_high_half(x: int, y: int) -> None:
    a, b = np.array([x, y], np.uint64), np.array([y, y], np.uint64)
    assert evaluated(math.umulhi, a, b).tolist() == [(x * y) >> 64, (y * y) >> 64]
    c, d = a.astype(np.uint32), b.astype(np.uint32)
    want = [(int(p) * int(q)) >> 32 for p, q in zip(c, d, strict=True)]
    assert evaluated(math.umulhi, c, d).tolist() == want


# --- messages ------------------------------------------------------------------------------------

POINTER = pointer_type(float32)


@pytest.mark.parametrize(
    ("function", "kinds", "message"),
    [
        (
            math.exp,
            [POINTER],
            "expected a number as the argument of `exp`, found pointer<float32> scalar\n"
            "  hint: an array is a pointer in a kernel: tile.load(x) reads what x points to",
        ),
        (
            lambda: math.exp("x"),
            [],
            "expected a tile or a number, found Python str 'x'",
        ),
        (
            math.maximum,
            [(float32, (4,)), (float32, (8,))],
            "expected operands of `maximum` to broadcast, found (4,) and (8,)",
        ),
        (
            lambda x: math.maximum(x, 1, propagate_nan="all"),
            [float32],
            "expected propagate_nan to be a PropagateNan, found Python str 'all'",
        ),
        (
            math.umulhi,
            [uint8, uint8],
            "expected 32- or 64-bit integers for `umulhi`, found uint8 scalar",
        ),
        (
            math.fma,
            [POINTER, POINTER, POINTER],
            "expected numbers as arguments of `fma`, found pointer<float32>",
        ),
        (
            math.floor,
            [POINTER],
            "expected a number as the argument of `floor`, found pointer<float32> scalar\n"
            "  hint: an array is a pointer in a kernel: tile.load(x) reads what x points to",
        ),
    ],
)
def test_wrong_arguments_get_a_message(
    function: Callable[..., Any], kinds: list[Any], message: str
) -> None:
    with pytest.raises(KernelError) as caught:
        traced(function, *kinds)
    assert str(caught.value) == message


def test_outside_a_kernel_functions_say_so() -> None:
    with pytest.raises(KernelError) as caught:
        math.exp(1.0)
    assert str(caught.value) == (
        "expected to be inside a kernel: this function works on tiles\n"
        "  hint: launch a kernel as kernel[grid](...)"
    )


def test_bfloat16_goes_through_the_same_functions() -> None:
    x = np.array([1, 2.5, -3, 4], ml_dtypes.bfloat16)
    got = evaluated(lambda v: math.maximum(v, 2), x)
    assert got.dtype == x.dtype
    assert got.astype(np.float32).tolist() == [2, 2.5, 2, 4]
    assert python_math.isnan(float(evaluated(lambda v: math.minimum(v * NAN, v), x)[0]))
