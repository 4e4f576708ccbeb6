"""Sorting along a dimension, and the greatest elements: every type, NaN above all numbers."""

# Kernels are traced, not typed.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tiledsl as tile
from tests.kernels.oracle import ALL, sample
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import DType


@tile.jit
def sort_rows(x, out, M: tile.constexpr, N: tile.constexpr, DIM: tile.constexpr, DOWN: tile.constexpr):  # fmt: skip
    at = tile.arange(0, M)[:, None] * N + tile.arange(0, N)[None, :]
    tile.store(out + at, tile.sort(tile.load(x + at), DIM, descending=DOWN))


@tile.jit
def best(x, out, M: tile.constexpr, N: tile.constexpr, K: tile.constexpr):
    row = tile.arange(0, M)[:, None]
    value = tile.load(x + row * N + tile.arange(0, N)[None, :])
    tile.store(out + row * K + tile.arange(0, K)[None, :], tile.topk(value, K))


def in_order(x: np.ndarray[Any, Any], axis: int) -> np.ndarray[Any, Any]:
    if x.dtype.kind in "biu":
        return np.sort(x, axis)
    return np.sort(x.astype(np.float64), axis)


def compared(got: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> None:
    if got.dtype.kind not in "biu":
        got = got.astype(np.float64)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_sorted_rows(warps: int, dtype: DType) -> None:
    x = sample(dtype, 4 * 16, 1).reshape(4, 16)
    out = np.zeros_like(x)
    sort_rows[1,](x, out, M=4, N=16, DIM=None, DOWN=False, num_warps=warps)
    compared(out, in_order(x, 1))


@pytest.mark.parametrize(
    ("shape", "axis"), [((16, 4), 0), ((1, 32), -1), ((4, 1), 1), ((2, 64), 1)]
)
def test_sorted_downwards_along_any_dimension(
    warps: int, shape: tuple[int, int], axis: int
) -> None:
    x = sample(tile.float32, shape[0] * shape[1], 2).reshape(shape)
    out = np.zeros_like(x)
    sort_rows[1,](x, out, M=shape[0], N=shape[1], DIM=axis, DOWN=True, num_warps=warps)
    compared(out, np.flip(in_order(x, axis), axis))


@pytest.mark.parametrize("k", [1, 4, 32])
def test_the_greatest_come_first(warps: int, k: int) -> None:
    x = sample(tile.float16, 4 * 32, 3).reshape(4, 32)
    out = np.zeros((4, k), np.float16)
    best[1,](x, out, M=4, N=32, K=k, num_warps=warps)
    compared(out, np.flip(in_order(x, 1), 1)[:, :k])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda x: tile.topk(x, 3), "expected `k` of topk to be a power of two up to 8, found 3"),
        (lambda x: tile.topk(x, 16), "expected `k` of topk to be a power of two up to 8, found 16"),
        (lambda x: tile.sort(x, 1), "expected a dimension of float32 tile of shape (8,), found 1"),
        (lambda x: tile.sort(tile.sum(x)), "expected a dimension of float32 scalar, found -1"),
    ],
)
def test_wrong_arguments_get_a_message(wrong: Callable[[Any], Any], message: str) -> None:
    @tile.jit
    def kernel(x):
        wrong(tile.load(x + tile.arange(0, 8)))

    with pytest.raises(KernelError) as raised:
        tile.compile(kernel, {"x": "*fp32"})
    assert raised.value.message == message


def test_pointers_are_not_sorted() -> None:
    @tile.jit
    def kernel(x):
        tile.sort(x + tile.arange(0, 8))

    with pytest.raises(KernelError, match="expected numbers to `sort`, found pointer"):
        tile.compile(kernel, {"x": "*fp32"})
