"""Rows of which a thread has so many elements that they wait in shared memory for reductions.

`transforms.rematerialize` says when; on targets where it does nothing the results are the same.
"""

# Kernels are traced, not typed.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tiledsl as tile

ROWS, BLOCK, WARPS = 3, 4096, 2
"""A thread has 64 elements of a row."""


@tile.jit
def softmax(x, out, COLUMNS: tile.constexpr, BLOCK: tile.constexpr):
    i = tile.arange(0, BLOCK)[None, :]
    at = tile.program_id(0) * COLUMNS + i
    value = tile.load(x + at, mask=i < COLUMNS, other=-float("inf")).to(tile.float32)
    e = tile.exp(value - tile.max(value, axis=1, keep_dims=True))
    result = e / tile.sum(e, axis=1, keep_dims=True)
    tile.store(out + at, result.to(out.dtype.element_ty), mask=i < COLUMNS)


def softmax_of(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@tile.jit
def norm(
    x, more, weight, out, COLUMNS: tile.constexpr, BLOCK: tile.constexpr, EARLY: tile.constexpr
):
    """Normalize the sum of two arrays; the weights may be loaded before or after."""
    i = tile.arange(0, BLOCK)
    at, inside = tile.program_id(0) * COLUMNS + i, i < COLUMNS
    scale = tile.load(weight + i, inside) if EARLY else 1
    value = tile.load(x + at, inside).to(tile.float32) + tile.load(more + at, inside)
    mean = tile.sum(value) / COLUMNS
    centered = tile.where(inside, value - mean, 0)
    rstd = tile.rsqrt(tile.sum(centered * centered) / COLUMNS)
    if not EARLY:
        scale = tile.load(weight + i, inside)
    tile.store(out + at, centered * rstd * scale, inside)


def norm_of(value: np.ndarray, weight: np.ndarray) -> np.ndarray:
    centered = value - value.mean(axis=1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(axis=1, keepdims=True)) * weight


@tile.jit
def in_a_loop(x, out, rows, COLUMNS: tile.constexpr, BLOCK: tile.constexpr):
    i = tile.arange(0, BLOCK)
    for row in range(rows):
        value = tile.load(x + row * COLUMNS + i, i < COLUMNS)
        most = tile.max(tile.where(i < COLUMNS, value, -1e30))
        if row % 2 == 0:
            tile.store(out + row * COLUMNS + i, value - most, i < COLUMNS)
        else:
            tile.store(out + row * COLUMNS + i, most - value, i < COLUMNS)


@tile.jit
def emptied(x, out, BLOCK: tile.constexpr):
    """Empty what was loaded before any of it is used."""
    i = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
    value = tile.load(x + i)
    tile.store(x + i, tile.zeros((BLOCK,), x.dtype.element_ty))
    tile.store(out + i, value - tile.max(value))


@tile.jit
def emptied_behind(x, more, out, BLOCK: tile.constexpr):
    """Empty what was loaded, by other threads, after all have met for something else."""
    i = tile.arange(0, BLOCK)
    tile.store(more + i, tile.load(more + i) * 2)
    value = tile.load(x + i)
    most = tile.max(tile.load(more + (BLOCK - 1 - i)))
    tile.store(x + (BLOCK - 1 - i), most - tile.zeros((BLOCK,), tile.float32))
    tile.store(out + i, value - tile.max(value))


@tile.jit
def with_others(x, out, COLUMNS: tile.constexpr, BLOCK: tile.constexpr, OTHER: tile.constexpr):
    row, i = tile.program_id(0), tile.arange(0, BLOCK)
    value = tile.load(x + row * COLUMNS + i, i < COLUMNS, OTHER).to(tile.float32)
    tile.store(out + row * BLOCK + i, value - tile.sum(value))


@tile.jit
def some_rows(x, out, ROWS: tile.constexpr, BLOCK: tile.constexpr):
    row, i = tile.arange(0, ROWS)[:, None], tile.arange(0, BLOCK)[None, :]
    value = tile.load(x + row * BLOCK + i)
    tile.store(out + row * BLOCK + i, value - tile.max(value, axis=1, keep_dims=True))


@tile.jit
def bytes_over_mean(x, out, BLOCK: tile.constexpr):
    i = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
    value = tile.load(x + i).to(tile.int32)
    square = value * value
    mean = tile.sum(square) // BLOCK
    tile.store(out + i, (square > mean) & (value < 0))


def rows_of(columns: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((ROWS, columns), dtype=np.float32).astype(dtype)


@pytest.mark.parametrize("columns", [4096, 3992, 3993])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_softmax(place: str, columns: int, dtype: Any) -> None:
    x = rows_of(columns, dtype)
    out = np.full_like(x, np.nan)
    softmax[ROWS,](x, out, COLUMNS=columns, BLOCK=BLOCK, num_warps=WARPS)
    wanted = softmax_of(x.astype(np.float64))
    np.testing.assert_allclose(
        out.astype(np.float64), wanted, rtol=1e-5 if dtype is np.float32 else 1e-2
    )


def test_softmax_in_place(place: str) -> None:
    x = rows_of(BLOCK)
    wanted = softmax_of(x.astype(np.float64))
    softmax[ROWS,](x, x, COLUMNS=BLOCK, BLOCK=BLOCK, num_warps=WARPS)
    np.testing.assert_allclose(x, wanted, rtol=1e-5)


@pytest.mark.parametrize("early", [False, True])
def test_norm_of_a_sum(place: str, early: bool) -> None:
    x, more = rows_of(4000, ml_dtypes.bfloat16), rows_of(4000)[::-1].copy()
    weight = rows_of(4000)[1]
    out = np.full_like(more, np.nan)
    norm[ROWS,](x, more, weight, out, COLUMNS=4000, BLOCK=BLOCK, EARLY=early, num_warps=WARPS)
    wanted = norm_of(x.astype(np.float64) + more, weight.astype(np.float64))
    np.testing.assert_allclose(out, wanted, atol=1e-5)


def test_rows_in_a_loop_with_uses_in_branches(place: str) -> None:
    x = rows_of(4000)
    out = np.full_like(x, np.nan)
    in_a_loop[1,](x, out, ROWS, COLUMNS=4000, BLOCK=BLOCK, num_warps=WARPS)
    difference = x - x.max(axis=1, keepdims=True)
    np.testing.assert_array_equal(
        out, np.where(np.arange(ROWS)[:, None] % 2, -difference, difference)
    )


def test_what_was_loaded_is_what_was_there_then(place: str) -> None:
    x = rows_of(BLOCK)
    wanted = x - x.max(axis=1, keepdims=True)
    out = np.full_like(x, np.nan)
    emptied[ROWS,](x, out, BLOCK=BLOCK, num_warps=WARPS)
    np.testing.assert_array_equal(out, wanted)
    assert not x.any()


def test_integers_and_comparisons(place: str) -> None:
    x = np.random.default_rng(0).integers(-128, 128, (ROWS, BLOCK)).astype(np.int8)
    out = np.full(x.shape, 7, np.int8)
    bytes_over_mean[ROWS,](x, out, BLOCK=BLOCK, num_warps=WARPS)
    square = x.astype(np.int64) ** 2
    np.testing.assert_array_equal(
        out, (square > square.sum(axis=1, keepdims=True) // BLOCK) & (x < 0)
    )


def test_what_was_loaded_is_what_was_there_then_if_others_write_it(place: str) -> None:
    x, more = rows_of(BLOCK)[:2].copy()
    wanted, most = x - x.max(), 2 * more.max()
    out = np.full_like(x, np.nan)
    emptied_behind[1,](x, more, out, BLOCK=BLOCK, num_warps=WARPS)
    np.testing.assert_array_equal(out, wanted)
    np.testing.assert_array_equal(x, np.full_like(x, most))


@pytest.mark.parametrize(
    ("dtype", "other"),
    [
        (ml_dtypes.float8_e5m2, 1.5),
        (ml_dtypes.float8_e4m3fn, -2),
        (np.float16, 0.5),
        (np.float64, 3),
        (np.int16, -7),
        (np.uint8, 9),
    ],
)
def test_lanes_beyond_a_row(place: str, dtype: Any, other: float) -> None:
    x = np.abs(rows_of(4032) * 4).astype(dtype)
    out = np.full((ROWS, BLOCK), np.nan, np.float32)
    with_others[ROWS,](x, out, COLUMNS=4032, BLOCK=BLOCK, OTHER=other, num_warps=WARPS)
    value = np.pad(x.astype(np.float64), ((0, 0), (0, 64)), constant_values=other)
    np.testing.assert_allclose(out, value - value.sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("num_ctas", [1, 2])
def test_some_rows_at_once(place: str, num_ctas: int) -> None:
    x = np.random.default_rng(0).standard_normal((4, 1024), dtype=np.float32)
    out = np.full_like(x, np.nan)
    some_rows[1,](x, out, ROWS=4, BLOCK=1024, num_warps=WARPS, num_ctas=num_ctas)
    np.testing.assert_array_equal(out, x - x.max(axis=1, keepdims=True))
