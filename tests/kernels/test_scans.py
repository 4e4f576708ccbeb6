"""Prefix sums and other scans, forward and reverse, along every axis."""

import numpy as np
import pytest

import tiledsl as tile
from tests.kernels.oracle import FLOATS, INTEGERS, check, poisoned, sample, whole
from tests.kernels.selection import Lengths
from tiledsl.dtypes import DType


@tile.jit
def cumsum_rows(x, out, n, REVERSE: tile.constexpr, BLOCK: tile.constexpr):
    row, i = tile.program_id(0), tile.arange(0, BLOCK)
    value = tile.load(x + row * n + i, mask=i < n, other=0)
    tile.store(out + row * n + i, tile.cumsum(value, axis=0, reverse=REVERSE), mask=i < n)


def numpy_cumsum(x: np.ndarray, axis: int, reverse: bool, dtype: np.dtype) -> np.ndarray:
    if reverse:
        x = np.flip(x, axis)
    wide = x.astype(np.float64) if x.dtype.kind not in "iub" else x
    result = np.cumsum(wide, axis, dtype=None if wide.dtype.kind == "f" else dtype).astype(dtype)
    return np.flip(result, axis) if reverse else result


def result_of_cumsum(dtype: DType) -> DType:
    """Return the type of a prefix sum, which is that of a sum."""
    if dtype.is_int() and dtype.primitive_bitwidth < 32:
        return tile.uint32 if dtype.is_int_unsigned() else tile.int32
    return dtype


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=str)
def test_prefix_sums_of_ragged_rows(
    warps: int, lengths: Lengths, dtype: DType, reverse: bool
) -> None:
    for n in lengths(dtype):
        # Sums that every type holds exactly.
        x = whole(dtype, 2 * n, n, 1).reshape(2, n)
        x[:, 100:] = 0
        result = result_of_cumsum(dtype)
        out = poisoned(2 * n, result)
        cumsum_rows[2,](x, out, n, REVERSE=reverse, BLOCK=1024, num_warps=warps)
        expected = numpy_cumsum(x, 1, reverse, result.numpy)
        check(out, expected, f"cumsum of {n} {dtype}")


@pytest.mark.parametrize("shape", [(32, 16), (1, 128), (128, 1), (4, 8, 16), (2, 1, 64)], ids=str)
def test_prefix_sums_along_every_axis(warps: int, shape: tuple[int, ...]) -> None:
    @tile.jit
    def kernel(x, out, SHAPE: tile.constexpr, AXIS: tile.constexpr, COUNT: tile.constexpr):
        value = tile.reshape(tile.load(x + tile.arange(0, COUNT)), SHAPE)
        forward = tile.cumsum(value, AXIS)
        back = tile.cumsum(value, axis=AXIS, reverse=True)
        tile.store(out + tile.arange(0, COUNT), tile.reshape(forward, (COUNT,)))
        tile.store(out + COUNT + tile.arange(0, COUNT), tile.reshape(back, (COUNT,)))

    x = sample(tile.int32, int(np.prod(shape)), 1).reshape(shape)
    for axis in (*range(len(shape)), -1):
        out = poisoned(2 * x.size, tile.int32)
        kernel[1,](x, out, SHAPE=shape, AXIS=axis, COUNT=x.size, num_warps=warps)
        ways = [numpy_cumsum(x, axis, reverse, x.dtype).ravel() for reverse in (False, True)]
        check(out, np.concatenate(ways), f"{shape} along {axis}")


@tile.jit
def larger(a, b):
    return tile.maximum(a, b)


@tile.jit
def multiply(a, b):
    return a * b


@tile.jit
def compose(f1, x1, f2, x2):
    return f1 * f2, f2 * x1 + x2


@pytest.mark.parametrize("dtype", [tile.int32, tile.float32, tile.int64, tile.uint8], ids=str)
def test_scans_with_a_combine_function(warps: int, dtype: DType) -> None:
    @tile.jit
    def kernel(x, out, n, BLOCK: tile.constexpr):
        i = tile.arange(0, BLOCK)
        value = tile.load(x + i, mask=i < n, other=0)
        tile.store(out + i, tile.associative_scan(value, 0, larger), mask=i < n)
        products = tile.associative_scan(value, 0, multiply)
        tile.store(out + n + i, products, mask=i < n)

    for n in (7, 255, 1000):
        x = whole(dtype, n, n, 3)
        if dtype.is_floating():
            x[x == 0] = 1  # a product that stays a power of three times a sign fits for 14 terms
            x = np.where(np.abs(x) == 3, 2, x).astype(x.dtype)
            x[20:] = np.sign(x[20:])
        out = poisoned(2 * n, dtype)
        kernel[1,](x, out, n, BLOCK=1024, num_warps=warps)
        expected = [np.maximum.accumulate(x), np.multiply.accumulate(x, dtype=x.dtype)]
        check(out, np.concatenate(expected), f"{n} {dtype}")


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_affine_maps_compose_in_order(warps: int, reverse: bool) -> None:
    @tile.jit
    def kernel(f, x, out, N: tile.constexpr, REVERSE: tile.constexpr):
        i = tile.arange(0, N)
        a, b = tile.associative_scan(
            (tile.load(f + i), tile.load(x + i)), 0, compose, reverse=REVERSE
        )
        tile.store(out + i, a)
        tile.store(out + N + i, b)

    for length in (1, 4, 64, 1024):
        f, x = sample(tile.uint32, length, 2), sample(tile.uint32, length, 3)
        out = poisoned(2 * length, tile.uint32)
        kernel[1,](f, x, out, N=length, REVERSE=reverse, num_warps=warps)
        a, b, maps = 1, 0, []
        pairs = list(zip(f.tolist(), x.tolist(), strict=True))
        for factor, term in pairs[::-1] if reverse else pairs:
            a, b = a * factor % 2**32, (factor * b + term) % 2**32
            maps.append((a, b))
        expected = np.array(maps[::-1] if reverse else maps, np.uint32).T
        check(out, expected, f"{length} maps")


def test_cumprod_is_there_too(place: str) -> None:
    @tile.jit
    def kernel(x, out, N: tile.constexpr):
        i = tile.arange(0, N)
        tile.store(out + i, tile.cumprod(tile.load(x + i), 0))

    x = np.array([1, 2, -1, 3, 0.5, 2, 1, -4], np.float32)
    out = poisoned(8, tile.float32)
    kernel[1,](x, out, N=8)
    check(out, np.cumprod(x), "cumprod")
