"""Faults that users of other kernel languages met: reductions, scans, and elements' order."""

import numpy as np
import pytest

import tiledsl as tile
from tests.kernels.oracle import check, poisoned, sample, whole


@tile.jit
def first_extremes(x, out, n, N: tile.constexpr):
    i = tile.arange(0, N)
    high = tile.load(x + i, mask=i < n, other=-float("inf"))
    low = tile.load(x + i, mask=i < n, other=float("inf"))
    tile.store(out, tile.argmax(high, 0))
    tile.store(out + 1, tile.argmin(low, 0))
    _, index = tile.max(high, 0, return_indices=True)
    tile.store(out + 2, index)


@pytest.mark.parametrize(
    "values",
    [[np.nan, 6, 8], [np.inf, np.nan], [np.nan, np.inf], [np.nan] * 4, [np.nan] * 64, [1, 2, 2, 1], [3] * 33],
    ids=lambda v: f"{v[:3]}x{len(v)}",
)  # fmt: skip
def test_the_first_nan_wins_and_ties_go_left(warps: int, values: list[float]) -> None:  # K019
    x = np.array(values, np.float32)
    out = poisoned(3, tile.int32)
    first_extremes[1,](x, out, x.size, N=64, num_warps=warps)
    check(out, np.array([x.argmax(), x.argmin(), x.argmax()], np.int32), f"{values}")


@pytest.mark.parametrize("columns", [2, 64, 256])
def test_a_reductions_result_is_one_value_everywhere(warps: int, columns: int) -> None:  # K020
    @tile.jit
    def kernel(x, out, C: tile.constexpr):
        value = tile.load(x + tile.arange(0, 1)[:, None] * C + tile.arange(0, C)[None, :])
        index = tile.argmax(value, axis=1)
        hits = tile.arange(0, C)[None, :] == index[:, None]
        at = tile.arange(0, 1)
        tile.store(out + at, tile.sum(hits.to(tile.int32), axis=1))
        tile.store(out + 1 + at, index)

    for first in (0, columns - 2):
        x = np.zeros(columns, np.float32)
        x[first:] = 1
        out = poisoned(2, tile.int32)
        kernel[1,](x, out, C=columns, num_warps=warps)
        check(out, np.array([1, first], np.int32), f"{columns}")


@pytest.mark.parametrize("shape", [(16, 1), (1, 16), (1, 1, 16), (16, 1, 1)], ids=str)
def test_axes_of_size_one_reduce_either_way(warps: int, shape: tuple[int, ...]) -> None:  # K025
    @tile.jit
    def kernel(x, out, SHAPE: tile.constexpr, LONG: tile.constexpr, UNIT: tile.constexpr):
        i = tile.arange(0, 16)
        value = tile.reshape(tile.load(x + i), SHAPE)
        for row, op in enumerate((tile.max, tile.sum, tile.argmax)):
            tile.store(out + row, tile.max(op(value, axis=LONG)))
        for row, op in enumerate((tile.max, tile.sum)):
            tile.store(out + 3 + 16 * row + i, tile.reshape(op(value, axis=UNIT), (16,)))

    x = np.random.default_rng(0).permutation(16).astype(np.int32)
    long = shape.index(16)
    unit = next(axis for axis in range(len(shape)) if axis != long)
    out = poisoned(35, tile.int32)
    kernel[1,](x, out, SHAPE=shape, LONG=long, UNIT=unit, num_warps=warps)
    check(out, np.concatenate([np.array([15, 120, x.argmax()]), x, x]).astype(np.int32), f"{shape}")


@pytest.mark.parametrize(("shape", "value", "total"), [((128, 128), 1 / 128, 128), ((32, 128), 1 / 128, 32), ((8, 4), 1.0, 32)])  # fmt: skip
def test_a_sum_of_sums_counts_each_element_once(
    warps: int, shape: tuple[int, int], value: float, total: float
) -> None:  # K026
    @tile.jit
    def kernel(x, out, R: tile.constexpr, C: tile.constexpr):
        tiled = tile.load(x + tile.arange(0, R)[:, None] * C + tile.arange(0, C)[None, :])
        tile.store(out, tile.sum(tile.sum(tiled, 1), 0))
        tile.store(out + 1, tile.sum(tile.sum(tiled, 0), 0))

    out = poisoned(2, tile.float32)
    kernel[1,](np.full(shape, value, np.float32), out, R=shape[0], C=shape[1], num_warps=warps)
    check(out, np.full(2, total, np.float32), f"{shape}")


@pytest.mark.parametrize("length", [2, 8, 32, 64, 512])
def test_scans_of_fewer_elements_than_threads(warps: int, length: int) -> None:  # K028
    @tile.jit
    def kernel(x, out, n, trips, R: tile.constexpr):
        i = tile.arange(0, R)[None, :]
        value = tile.load(x + i, mask=i < n, other=0)
        tile.store(out + i, tile.cumsum(value, 1))
        total = value * 0
        for _ in range(trips):
            total += tile.cumsum(value, 1)
        tile.store(out + R + i, total)

    for dtype in (tile.int32, tile.int64):
        for n in (length, length // 2 + 1):
            x = np.ones(length, dtype.numpy)
            out = poisoned(2 * length, dtype)
            kernel[1,](x, out, n, 3, R=length, num_warps=warps)
            running = np.minimum(np.arange(1, length + 1), n)
            check(out, np.append(running, 3 * running).astype(dtype.numpy), f"{n} of {dtype}")


@pytest.mark.parametrize("axis", [0, 1])
def test_scans_keep_left_and_right_apart(warps: int, axis: int) -> None:  # K029
    @tile.jit
    def combine(f1, x1, f2, x2):
        return f1 * f2, f2 * x1 + x2

    @tile.jit
    def kernel(f, x, out, R: tile.constexpr, C: tile.constexpr, AXIS: tile.constexpr):
        i = tile.arange(0, R)[:, None] * C + tile.arange(0, C)[None, :]
        a, b = tile.associative_scan((tile.load(f + i), tile.load(x + i)), AXIS, combine)
        tile.store(out + i, a)
        tile.store(out + R * C + i, b)

    def reference(f: np.ndarray, x: np.ndarray) -> np.ndarray:
        a, b = f.astype(np.float64), x.astype(np.float64)
        a, b = np.moveaxis(a, axis, 0).copy(), np.moveaxis(b, axis, 0).copy()
        for i in range(1, len(a)):
            b[i] += a[i] * b[i - 1]
            a[i] *= a[i - 1]
        return np.stack([np.moveaxis(a, 0, axis), np.moveaxis(b, 0, axis)])

    def run(f: np.ndarray, x: np.ndarray) -> np.ndarray:
        out = poisoned(2 * f.size, tile.float32)
        kernel[1,](f, x, out, R=f.shape[0], C=f.shape[1], AXIS=axis, num_warps=warps)
        return out[: 2 * f.size].reshape(2, *f.shape)

    f = np.array([[2, 3, 5, 7]], np.float32)
    f = f.T.copy() if axis == 0 else f
    got = run(f, np.ones_like(f))
    assert got.reshape(2, 4).tolist() == [[2, 6, 30, 210], [1, 4, 21, 148]]
    rng = np.random.default_rng(1)
    f = rng.uniform(0.5, 1, (1024, 2) if axis == 0 else (2, 1024)).astype(np.float32)
    x = rng.standard_normal(f.shape).astype(np.float32)
    np.testing.assert_allclose(run(f, x), reference(f, x), rtol=1e-4, atol=1e-4)


def test_counts_are_int32_whatever_the_layout_and_width(warps: int) -> None:  # K032
    @tile.jit
    def nearest(a, b, out, M: tile.constexpr, N: tile.constexpr, K: tile.constexpr):
        m, n, k = tile.arange(0, M), tile.arange(0, N), tile.arange(0, K)
        x = tile.load(a + m[:, None] * K + k[None, :])
        y = tile.load(b + k[:, None] * N + n[None, :])
        counts = tile.histogram(tile.argmin(tile.dot(x, y), axis=1), N)
        tile.static_assert(counts.dtype == tile.int32)
        tile.store(out + n, counts)

    a, b = whole(tile.float16, 128 * 16, 2, 9), whole(tile.float16, 16 * 16, 3, 9)
    out = poisoned(16, tile.int32)
    nearest[1,](a, b, out, M=128, N=16, K=16, num_warps=warps)
    scores = a.reshape(128, 16).astype(np.float64) @ b.reshape(16, 16).astype(np.float64)
    check(out, np.bincount(scores.argmin(1), minlength=16).astype(np.int32), "argmin")

    @tile.jit
    def count(x, out, n, BINS: tile.constexpr, N: tile.constexpr):
        i = tile.arange(0, N)
        value = tile.load(x + i, mask=i < n, other=0)
        counts = tile.histogram(value, BINS, mask=i < n)
        tile.store(out + tile.arange(0, BINS), counts)

    out = poisoned(4, tile.int32)
    count[1,](np.zeros(300, np.int8), out, 300, BINS=4, N=512, num_warps=warps)
    check(out, np.array([300, 0, 0, 0], np.int32), "zeros")
    for dtype in (np.int8, np.uint8, np.int64, np.uint32):
        x = np.random.default_rng(4).integers(0, 6, 300).astype(dtype)
        x[:5] = np.iinfo(dtype).max  # outside every bin: not counted
        out = poisoned(4, tile.int32)
        count[1,](x, out, 300, BINS=4, N=512, num_warps=warps)
        inside = x[x < 4].astype(np.int64)
        check(out, np.bincount(inside, minlength=4).astype(np.int32), f"{dtype}")


def test_row_major_order_is_always_kept(warps: int) -> None:  # K092
    @tile.jit
    def kernel(x, out, N: tile.constexpr):
        i = tile.arange(0, N)
        value = tile.load(x + i)
        for shape in ((8, 8), (2, 32), (64, 1), (64,)):
            value = tile.reshape(value, shape)
        tile.store(out + i, value)
        square = tile.reshape(value, (8, 8))
        there = tile.trans(tile.reshape(tile.trans(square), (8, 8)))
        tile.store(out + N + i, tile.reshape(there, (N,)))
        stacked = tile.cat(square, square + 100, dim=1)
        tile.store(out + 2 * N + tile.arange(0, 2 * N), tile.reshape(stacked, (2 * N,)))
        below = tile.cat(square, square + 100, dim=0)
        tile.store(out + 4 * N + tile.arange(0, 2 * N), tile.reshape(below, (2 * N,)))
        sums = tile.sum(tile.reshape(value, (4, 16)), 1)
        tile.store(out + 6 * N + tile.arange(0, 4), tile.reshape(tile.reshape(sums, (2, 2)), (4,)))

    x = np.arange(64, dtype=np.int32)
    out = poisoned(6 * 64 + 4, tile.int32)
    kernel[1,](x, out, N=64, num_warps=warps)
    square = x.reshape(8, 8)
    parts = [
        x, x, np.concatenate([square, square + 100], 1), np.concatenate([square, square + 100], 0),
        x.reshape(4, 16).sum(1),
    ]  # fmt: skip
    check(out, np.concatenate([p.ravel() for p in parts]).astype(np.int32), "order")


def test_row_major_order_is_kept_after_a_product(warps: int) -> None:  # K092
    @tile.jit
    def kernel(a, out, N: tile.constexpr):
        i = tile.arange(0, N)
        x = tile.load(a + i[:, None] * N + i[None, :])
        unit = (i[:, None] == i[None, :]).to(tile.float16)
        product = tile.dot(x, unit)
        flat = tile.reshape(product, (N * N,))
        tile.store(out + tile.arange(0, N * N), flat)
        again = tile.reshape(tile.trans(tile.reshape(flat, (N // 2, N * 2))), (N * N,))
        tile.store(out + N * N + tile.arange(0, N * N), again)

    a = whole(tile.float16, 32 * 32, 5, 500)
    out = poisoned(2 * 1024, tile.float32)
    kernel[1,](a, out, N=32, num_warps=warps)
    wide = a.astype(np.float32)
    check(out, np.append(wide, wide.reshape(16, 64).T.ravel()), "after dot")


def test_extremes_in_the_last_elements_are_found(warps: int) -> None:  # K019
    for n in (1, 2, 31, 64):
        x = sample(tile.float32, n, n)
        x = np.where(np.isfinite(x), np.clip(x, -10, 10), 0).astype(np.float32)
        x[-1] = 11
        out = poisoned(3, tile.int32)
        first_extremes[1,](x, out, n, N=64, num_warps=warps)
        check(out, np.array([n - 1, x.argmin(), n - 1], np.int32), f"{n}")
