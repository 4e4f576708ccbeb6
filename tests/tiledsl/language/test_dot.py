"""Matrix products: types, shapes, accumulators, and their messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.tiledsl.language.traced import evaluated, traced
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import (
    bfloat16,
    float8e4m3fn,
    float8e5m2,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    uint8,
)
from tiledsl.language.dot import dot

RNG = np.random.default_rng(9)


def small(shape: tuple[int, ...], dtype: Any) -> Any:
    return RNG.integers(-4, 5, shape).astype(dtype)


@pytest.mark.parametrize(
    ("dtype", "result"),
    [
        (np.float16, np.float32),
        (ml_dtypes.bfloat16, np.float32),
        (ml_dtypes.float8_e4m3fn, np.float32),
        (np.float32, np.float32),
        (np.float64, np.float64),
        (np.int8, np.int32),
    ],
)
def test_products_have_the_type_of_their_accumulator(dtype: Any, result: Any) -> None:
    a, b = small((4, 8), dtype), small((8, 2), dtype)
    got = evaluated(dot, a, b)
    assert got.dtype == result
    np.testing.assert_array_equal(got, a.astype(np.float64) @ b.astype(np.float64))


def test_an_accumulator_is_added_and_decides_the_type() -> None:
    a, b = small((4, 8), np.float16), small((8, 4), np.float16)
    c = small((4, 4), np.float16)
    got = evaluated(lambda a, b, c: dot(a, b, acc=c), a, b, c)
    assert got.dtype == np.float16
    np.testing.assert_array_equal(got, a @ b + c)
    whole = evaluated(lambda a, b: dot(a, b, 1.0), a, b)
    np.testing.assert_array_equal(whole, a.astype(np.float32) @ b + 1)


def test_out_dtype_rounds_the_result() -> None:
    a, b = small((4, 8), np.float32), small((8, 4), np.float32)
    got = evaluated(lambda a, b: dot(a, b, out_dtype=bfloat16), a, b)
    assert got.dtype == ml_dtypes.bfloat16


def test_batches_multiply_one_by_one() -> None:
    a, b = small((2, 4, 8), np.float32), small((2, 8, 4), np.float32)
    np.testing.assert_array_equal(evaluated(dot, a, b), a @ b)


def test_mixed_operands_meet_exactly() -> None:
    def types(left: Any, right: Any) -> str:
        module = str(traced(dot, (left, (4, 8)), (right, (8, 4))))
        return module[module.index("tensor<4x8x", module.index('"tile.dot"')) + 11 :].split(">")[0]

    assert types(float8e4m3fn, float8e5m2) == "f16"
    assert types(float8e4m3fn, float16) == "f16"
    assert types(float8e5m2, bfloat16) == "bf16"
    assert types(float16, float32) == "f32"
    assert types(float16, bfloat16) == "f32"
    assert types(float32, float64) == "f64"
    assert types(float8e4m3fn, float8e4m3fn) == "f8E4M3FN"


def test_unsigned_operands_are_marked() -> None:
    module = str(traced(dot, (uint8, (4, 8)), (int8, (8, 4))))
    assert "a_unsigned = true" in module
    assert "b_unsigned" not in module


@pytest.mark.parametrize(
    ("options", "precision"),
    [
        ({}, "ieee"),
        ({"input_precision": "tf32"}, "tf32"),
        ({"input_precision": "tf32x3"}, "tf32x3"),
        ({"allow_tf32": True}, "tf32"),
        ({"allow_tf32": False}, "ieee"),
    ],
)
def test_precision_is_full_unless_told(options: dict[str, Any], precision: str) -> None:
    module = str(traced(lambda a, b: dot(a, b, **options), (float32, (4, 8)), (float32, (8, 4))))
    assert f'precision = "{precision}"' in module


F = float32
MESSAGES: list[tuple[Callable[..., Any], list[Any], str]] = [
    (
        dot,
        [(F, (4,)), (F, (4,))],
        "expected a tile of 2 or 3 dimensions as the first operand of dot, "
        "found float32 tile of shape (4,)",
    ),
    (
        dot,
        [(F, (4, 8)), (F, (4, 8))],
        "expected operands of dot of shapes (M, K) and (K, N), found (4, 8) and (4, 8)\n"
        "  hint: the transposed second operand has shape (8, 4): tile.dot(a, tile.trans(b))",
    ),
    (
        dot,
        [(F, (4, 8)), (F, (16, 4))],
        "expected operands of dot of shapes (M, K) and (K, N), found (4, 8) and (16, 4)",
    ),
    (
        dot,
        [(int16, (4, 8)), (int16, (8, 4))],
        "expected operands of dot that are floats or 8-bit integers, "
        "found int16 tile of shape (4, 8)\n  hint: convert them, as x.to(tile.float32)",
    ),
    (
        dot,
        [(int8, (4, 8)), (float16, (8, 4))],
        "expected operands of dot that are both floats or both 8-bit integers, "
        "found int8 and float16",
    ),
    (
        dot,
        [(F, (4, 8)), (F, (8, 4)), (F, (4, 8))],
        "expected `acc` of shape (4, 4), found float32 tile of shape (4, 8)",
    ),
    (
        dot,
        [(int8, (4, 8)), (int8, (8, 4)), (F, (4, 4))],
        "expected a result of dot of int8 to be an integer type, found float32",
    ),
    (
        lambda a, b, c: dot(a, b, c, out_dtype=float16),
        [(F, (4, 8)), (F, (8, 4)), (int32, (4, 4))],
        "expected `acc` of float32, found int32 tile of shape (4, 4)",
    ),
    (
        lambda a, b: dot(a, b, input_precision="half"),
        [(F, (4, 8)), (F, (8, 4))],
        'expected input_precision to be one of "ieee", "tf32", "tf32x3", found \'half\'',
    ),
    (
        lambda a, b: dot(a, b, input_precision="ieee", allow_tf32=True),
        [(F, (4, 8)), (F, (8, 4))],
        "expected `input_precision` or `allow_tf32`, found both",
    ),
]


@pytest.mark.parametrize(("function", "kinds", "message"), MESSAGES)
def test_wrong_arguments_get_a_message(
    function: Callable[..., Any], kinds: list[Any], message: str
) -> None:
    with pytest.raises(KernelError) as caught:
        traced(function, *kinds)
    assert str(caught.value) == message
