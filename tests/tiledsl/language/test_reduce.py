"""Reductions against NumPy, their types, and their messages."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlir import ir

from tests.tiledsl.language.traced import evaluated, traced
from tiledsl.dialects import contracts, tile
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import bool_, float16, float32, int8, int32, pointer_type
from tiledsl.language import math, reduce

NAN, INF = float("nan"), float("inf")
RNG = np.random.default_rng(4)


def reductions(module: ir.Module) -> list[tile.ReduceOp]:
    return [op for op in contracts.operations(module.operation) if isinstance(op, tile.ReduceOp)]


@pytest.mark.parametrize("keep_dims", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2, -1, None])
@pytest.mark.parametrize("name", ["sum", "max", "min", "argmax", "argmin", "any", "all"])
def test_reductions_agree_with_numpy_on_every_axis(
    name: str, axis: int | None, keep_dims: bool
) -> None:
    x = RNG.integers(-3, 4, (2, 4, 8)).astype(np.int32)
    got = evaluated(lambda v: getattr(reduce, name)(v, axis, keep_dims=keep_dims), x)
    want = getattr(np, name)(x, axis=axis, keepdims=keep_dims)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("dtype", "summed"),
    [
        *(("bool", "int32"), ("int8", "int32"), ("int16", "int32"), ("uint8", "uint32")),
        *(("uint16", "uint32"), ("int32", "int32"), ("uint32", "uint32"), ("int64", "int64")),
    ],
)
def test_sums_of_narrow_integers_are_of_32_bits(dtype: str, summed: str) -> None:
    x = np.array([1, 0, 255, 255] * 4, np.uint8).astype(dtype)
    got = evaluated(reduce.sum, x)
    assert got.dtype == summed
    assert got == x.sum(dtype=summed)


def test_sums_of_half_floats_accumulate_in_float32() -> None:
    x = np.full(4096, 1.0, np.float16)
    x[0] = 0.25
    got = evaluated(reduce.sum, x)
    assert got.dtype == np.float16
    assert got == np.float16(4095.25)
    bf16 = evaluated(reduce.sum, np.full(1024, 1, ml_dtypes.bfloat16))
    assert (bf16.dtype, float(bf16)) == (np.dtype(ml_dtypes.bfloat16), 1024.0)


def test_sum_converts_to_dtype_first() -> None:
    x = np.full(8, 100, np.int8)
    got = evaluated(lambda v: reduce.sum(v, dtype=float16), x)
    assert (got.dtype, float(got)) == (np.float16, 800.0)
    narrow = evaluated(lambda v: reduce.sum(v, dtype=int8), np.full(8, 100, np.int32))
    assert (narrow.dtype, int(narrow)) == (np.int32, 800)


NANS = [
    np.array([NAN, 6, 8, 1], np.float32),
    np.array([INF, NAN], np.float32),
    np.array([NAN, INF], np.float32),
    np.full(4, NAN, np.float32),
    np.full(64, NAN, np.float32),
    np.array([-0.0, 0.0, -0.0, 0.0], np.float32),
    np.array([1, 3, NAN, 3, NAN, 3, 1, 1], np.float32),
]


@pytest.mark.parametrize("x", NANS)
def test_nan_propagates_and_the_first_one_wins(x: Any) -> None:
    for name in ("max", "min", "argmax", "argmin"):
        got = evaluated(getattr(reduce, name), x)
        np.testing.assert_array_equal(got, getattr(np, name)(x))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from([1.0, 2.0, NAN, -INF, INF, 0.0, -0.0]), min_size=8, max_size=8))
def test_argmax_is_numpy_s_on_any_mixture(values: list[float]) -> None:
    x = np.array(values, np.float32).reshape(2, 4)
    for axis in (0, 1, None):
        got = evaluated(lambda v, a=axis: (reduce.argmax(v, a), reduce.argmin(v, a)), x)
        np.testing.assert_array_equal(got[0], x.argmax(axis))
        np.testing.assert_array_equal(got[1], x.argmin(axis))


def test_the_function_of_argmax_commutes() -> None:
    # Its kind says so, and targets rely on it.
    for a in (1.0, NAN, 2.0):
        for b in (1.0, NAN):
            x = np.array([a, b], np.float32)
            forward = evaluated(lambda v: reduce.argmax(v), x)
            assert forward == x.argmax()


def test_values_come_with_indices() -> None:
    x = np.array([[3, 9, 9, 1], [NAN, 2, NAN, 5]], np.float32)
    values, indices = evaluated(lambda v: reduce.max(v, 1, return_indices=True), x)
    np.testing.assert_array_equal(values, [9, NAN])
    assert indices.tolist() == [1, 0]
    assert indices.dtype == np.int32
    _, kept = evaluated(lambda v: reduce.min(v, 1, return_indices=True, keep_dims=True), x)
    assert kept.tolist() == [[3], [0]]


def test_unsigned_and_bool_extrema_follow_their_order() -> None:
    x = np.array([1, 200, 3, 128], np.uint8)
    assert evaluated(reduce.max, x) == 200
    assert evaluated(reduce.min, x) == 1
    assert evaluated(reduce.argmax, x) == 1
    b = np.array([False, True])
    assert evaluated(lambda v: (reduce.max(v), reduce.min(v)), b) == (True, False)


def test_xor_sum_and_reduce_or() -> None:
    x = RNG.integers(0, 256, (4, 8)).astype(np.uint8)
    got = evaluated(lambda v: reduce.xor_sum(v, 1), x)
    np.testing.assert_array_equal(got, np.bitwise_xor.reduce(x, 1))
    assert got.dtype == np.uint8
    got = evaluated(lambda v: reduce.reduce_or(v, 0), x)
    np.testing.assert_array_equal(got, np.bitwise_or.reduce(x, 0))


def test_any_counts_nan_as_true() -> None:
    assert evaluated(reduce.any, np.array([0.0, NAN], np.float32))
    assert not evaluated(reduce.all, np.array([0.0, NAN], np.float32))


# --- author's functions --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "dtype", "kind"),
    [
        (operator.add, float32, "add"),
        (operator.xor, int32, "xor"),
        (math.maximum, float32, "max"),
        (math.maximum, bool_, "umax"),
        (math.minimum, int32, "min"),
    ],
)
def test_known_functions_keep_their_kind(function: Any, dtype: Any, kind: str) -> None:
    [op] = reductions(traced(lambda v: reduce.reduce(v, 0, function), (dtype, (8,))))
    assert op.kind == kind


def test_equal_reductions_share_a_function() -> None:
    def twice(v: Any) -> Any:
        return reduce.sum(v, 0), reduce.sum(v, 1), reduce.max(v, 1)

    module = traced(twice, (float32, (4, 4)))
    names = [str(op.operation.attributes["sym_name"]) for op in module.body.operations]
    assert names == ['"f"', '"add_fp32"', '"maximum_fp32"']


# --- messages ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "kinds", "message"),
    [
        (
            reduce.sum,
            [float32],
            "expected a tile as the argument of `sum`, found float32 scalar",
        ),
        (
            lambda: reduce.sum([1, 2]),
            [],
            "expected a tile as the argument of `sum`, found Python list [1, 2]",
        ),
        (
            reduce.max,
            [(pointer_type(float32), (4,))],
            "expected numbers to `max`, found pointer<float32> tile of shape (4,)\n"
            "  hint: an array is a pointer in a kernel: tile.load(x) reads what x points to",
        ),
        (
            lambda v: reduce.sum(v, 2),
            [(float32, (4, 4))],
            "expected an axis from -2 to 1, found 2 for a tile of shape (4, 4)",
        ),
        (
            lambda v, i: reduce.sum(v, i),
            [(float32, (4, 4)), int32],
            "expected `axis` to be an integer known at compile time, found int32 scalar\n"
            "  hint: make it a parameter annotated `tile.constexpr`",
        ),
        (
            lambda v: reduce.reduce((v,) * 9, 0, lambda *v: v[:9]),
            [(float32, (4,))],
            "expected 1 to 8 tiles to reduce together, found 9",
        ),
        (
            lambda: reduce.reduce((), 0, lambda *v: v[:9]),
            [],
            "expected 1 to 8 tiles to reduce together, found 0",
        ),
        (
            reduce.xor_sum,
            [(float32, (4,))],
            "expected integers or bools to `xor_sum`, found float32 tile of shape (4,)",
        ),
        (
            lambda a, b: reduce.reduce((a, b), 0, lambda *v: v[:2]),
            [(float32, (4,)), (float32, (8,))],
            "expected tiles of one shape to reduce together, found (4,) and (8,)",
        ),
    ],
)
def test_wrong_arguments_get_a_message(
    function: Callable[..., Any], kinds: list[Any], message: str
) -> None:
    with pytest.raises(KernelError) as caught:
        traced(function, *kinds)
    assert str(caught.value) == message
