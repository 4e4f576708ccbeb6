"""Conversions between element types: numbers, bits, pointers, and numbers known at compile time."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.tiledsl.language.traced import evaluated, traced
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import (
    SCALARS,
    DType,
    bool_,
    float8e4m3fn,
    float8e5m2,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    pointer_type,
    uint8,
    uint32,
)
from tiledsl.language import casts

NUMBERS = [0, 1, 2, 5, 96, 0, 3, 112]


@pytest.mark.parametrize("source", SCALARS, ids=str)
def test_small_numbers_survive_every_conversion(source: DType) -> None:
    x = np.array(NUMBERS).astype(source.numpy)
    targets = [t for t in SCALARS if t is not source]
    got = evaluated(lambda v: tuple(v.to(t) for t in targets), x)
    for target, result in zip(targets, got, strict=True):
        want = x.astype(np.float64).astype(target.numpy)
        assert result.dtype == target.numpy
        np.testing.assert_array_equal(result, want, err_msg=str(target))


def test_integers_wrap_and_signedness_is_the_sources() -> None:
    def several(v: Any) -> Any:
        return v.to(int8), v.to(uint32), v.to(int64), v.to(float64)

    for value in (np.int32(-200), np.uint32(3_000_000_000), np.uint8(200), np.int8(-56)):
        got = evaluated(several, np.array([value]))
        for result in got:
            np.testing.assert_array_equal(result, np.array([value]).astype(result.dtype))


def test_floats_to_integers_truncate_saturate_and_nan_is_zero() -> None:
    x = np.array([1.9, -1.9, 3e9, -3e9, np.nan, np.inf, -np.inf, 300], np.float32)
    signed, unsigned, small = evaluated(lambda v: (v.to(int32), v.to(uint32), v.to(uint8)), x)
    assert signed.tolist() == [1, -1, 2**31 - 1, -(2**31), 0, 2**31 - 1, -(2**31), 300]
    assert unsigned.tolist() == [1, 0, 3_000_000_000, 0, 0, 2**32 - 1, 0, 300]
    assert small.tolist() == [1, 0, 255, 0, 0, 255, 0, 255]


def test_floats_round_to_nearest_even_and_8_bits_saturate() -> None:
    x = np.array([257, 259, -259, 1e6, -1e6, np.nan, 2049, 0.0], np.float32)
    brain, half, four, five = evaluated(
        lambda v: (v.to(casts.as_dtype(ml_dtypes.bfloat16)), v.to(float16),
                   v.to(float8e4m3fn), v.to(float8e5m2)), x
    )  # fmt: skip
    assert brain.astype(float).tolist()[:3] == [256, 260, -260]
    assert half.astype(float)[6] == 2048
    assert four.astype(float).tolist()[3:5] == [448, -448]
    assert five.astype(float).tolist()[3:5] == [57344, -57344]
    assert all(math.isnan(r.astype(float)[5]) for r in (brain, half, four, five))


def test_anything_but_zero_is_true() -> None:
    x = np.array([0.0, -0.0, np.nan, 1e-40], np.float32)
    assert evaluated(lambda v: v.to(bool_), x).tolist() == [False, False, True, True]
    y = np.array([0, 256, -1], np.int16)
    assert evaluated(lambda v: v.to(bool_), np.resize(y, 4)).tolist() == [False, True, True, False]
    z = np.array([0, 1.5], ml_dtypes.float8_e5m2)
    assert evaluated(lambda v: v.to(bool_), z).tolist() == [False, True]


def test_bitcasts_keep_bits() -> None:
    x = np.array([1.5, -0.0], np.float32)
    got = evaluated(lambda v: v.to(uint32, bitcast=True), x)
    np.testing.assert_array_equal(got, x.view(np.uint32))
    signed = evaluated(lambda v: v.to(int8, bitcast=True), np.array([200], np.uint8))
    assert signed.tolist() == [-56]
    assert "bitcast" not in str(traced(lambda v: v.to(int8, bitcast=True), uint8))


def test_the_same_type_is_no_op() -> None:
    assert "tile." not in str(traced(lambda v: v.to(float32).cast(float32), float32))


def test_the_ops_of_each_kind_of_conversion() -> None:
    for source, target, op in (
        (float16, float32, "arith.extf"),
        (float32, float64, "arith.extf"),
        (float64, float32, "tile.cast"),
        (float8e5m2, float32, "tile.cast"),
        (float32, int16, "tile.cast"),
        (int32, float16, "arith.sitofp"),
        (uint32, float16, "arith.uitofp"),
        (bool_, float32, "arith.uitofp"),
        (int64, int8, "arith.trunci"),
        (uint8, int32, "arith.extui"),
        (int8, uint32, "arith.extsi"),
    ):
        assert op in str(traced(lambda v, t=target: v.to(t), source)), (source, target)
    both = str(traced(lambda v: v.to(float8e4m3fn), int32))
    assert "arith.sitofp" in both
    assert "tile.cast" in both


def test_pointers_become_other_pointers_and_integers() -> None:
    pointer = pointer_type(float32)
    text = str(traced(lambda p: (p.to(pointer_type(int32)), p.to(int64), p + 1), pointer))
    assert text.count("tile.bitcast") == 2
    back = str(traced(lambda n: n.to(pointer) + 1, int64))
    assert "(i64) -> !tile.ptr<f32>" in back


def test_numbers_known_at_compile_time_convert_by_the_same_rules() -> None:
    assert casts.cast_number(3.9, int8) == 3
    assert casts.cast_number(-1e9, int8) == -128
    assert casts.cast_number(math.nan, int8) == 0
    assert casts.cast_number(0.5, bool_) is True
    assert casts.cast_number(3, float16) == 3.0
    with pytest.raises(KernelError) as found:
        casts.cast_number(300, uint8)
    assert str(found.value) == (
        "expected a number that fits uint8 (0 to 255), found Python int 300"
    )


@pytest.mark.parametrize(
    ("function", "kind", "message"),
    [
        (
            lambda v: v.to(int8, bitcast=True),
            float32,
            "expected a bitcast between types of one width, found float32 (32 bits) to int8 (8)",
        ),
        (
            lambda v: v.to(pointer_type(int8)),
            int32,
            "expected a pointer to become another pointer or a 64-bit integer, found int32 to "
            "pointer<int8>",
        ),
        (
            lambda v: v.to(float32),
            pointer_type(int8),
            "expected a pointer to become another pointer or a 64-bit integer, found pointer<int8> "
            "to float32\n"
            "  hint: an array is a pointer in a kernel: tile.load(x) reads what x points to",
        ),
        (
            lambda v: v.to(float16, fp_downcast_rounding="rtz"),
            float32,
            "expected fp_downcast_rounding to be None or \"rtne\", found 'rtz'",
        ),
    ],
)
def test_messages(function: Any, kind: DType, message: str) -> None:
    with pytest.raises(KernelError) as found:
        traced(function, kind)
    assert str(found.value) == message
