"""Faults that users of other kernel languages met: matrix products."""

import itertools

import numpy as np
import pytest

import tiledsl as tile
from tests.kernels.oracle import FP8, cast, check, poisoned, whole
from tests.kernels.test_dot import check_product


@pytest.mark.parametrize(("m", "n"), [(64, 64), (32, 128), (128, 32)])
def test_reductions_read_the_accumulator_right(warps: int, m: int, n: int) -> None:  # K031
    @tile.jit
    def kernel(a, b, out, M: tile.constexpr, N: tile.constexpr, K: tile.constexpr):
        i, j, k = tile.arange(0, M), tile.arange(0, N), tile.arange(0, K)
        x = tile.load(a + i[:, None] * K + k[None, :])
        c = tile.dot(x, tile.load(b + k[:, None] * N + j[None, :]))
        for row, op in enumerate((tile.max, tile.sum, tile.argmax, tile.min)):
            tile.store(out + row * (M + N) + j, op(c, 0).to(tile.float32))
            tile.store(out + row * (M + N) + N + i, op(c, 1).to(tile.float32))

    a, b = (
        whole(tile.float16, m * 32, 1, 5).reshape(m, 32),
        whole(tile.float16, 32 * n, 2, 6).reshape(32, n),
    )
    out = poisoned(4 * (m + n), tile.float32)
    kernel[1,](a, b, out, M=m, N=n, K=32, num_warps=warps)
    c = a.astype(np.float64) @ b.astype(np.float64)
    parts = [f(c, axis) for f in (np.max, np.sum, np.argmax, np.min) for axis in (0, 1)]
    check(out, np.concatenate(parts).astype(np.float32), f"{m}x{n}")


@pytest.mark.parametrize("m", [16, 64, 128])
def test_the_warps_cover_the_whole_product(warps: int, m: int) -> None:  # K034
    @tile.jit
    def kernel(a, b, c, columns, M: tile.constexpr, N: tile.constexpr):
        i, j, k = tile.arange(0, M), tile.arange(0, N), tile.arange(0, 16)
        inside = j[None, :] < columns
        x = tile.load(a + i[:, None] * 16 + k[None, :])
        y = tile.load(b + k[:, None] * columns + j[None, :], mask=inside, other=0)
        tile.store(c + i[:, None] * columns + j[None, :], tile.dot(x, y), mask=inside)

    for n in (8, 16, 24, 32, 64, 104):
        a, b = (
            whole(tile.float16, m * 16, 3).reshape(m, 16),
            whole(tile.float16, 16 * n, 4).reshape(16, n),
        )
        out = np.full(m * n, np.nan, np.float32)
        kernel[1,](a, b, out, n, M=m, N=tile.next_power_of_2(n), num_warps=warps)
        expected = a.astype(np.float32) @ b.astype(np.float32)
        np.testing.assert_array_equal(out.reshape(m, n), expected)


@pytest.mark.parametrize("dtype", [tile.float16, tile.float32, tile.int8], ids=str)
def test_small_products_of_every_shape(
    place: str, emulated: bool, dtype: tile.DType
) -> None:  # K035
    sizes, depths = (1, 4, 16), (1, 4, 16) if emulated else (1, 2, 4, 8, 16)
    for m, n, k in itertools.product(sizes, sizes, depths):
        check_product((m, n, k), dtype, 4)


def test_a_masked_single_column_leaves_the_padding_zero(warps: int) -> None:  # K035
    @tile.jit
    def kernel(a, b, c, N: tile.constexpr):
        i = tile.arange(0, N)
        column = tile.load(b + i[:, None] + i[None, :] * 0, mask=i[None, :] < 1, other=0)
        product = tile.dot(tile.load(a + i[:, None] * N + i[None, :]), column)
        tile.store(c + i[:, None] * N + i[None, :], product)

    a, b = whole(tile.float16, 256, 5).reshape(16, 16), whole(tile.float16, 16, 6)
    out = poisoned(256, tile.float32)
    kernel[1,](a, b, out, N=16, num_warps=warps)
    expected = np.zeros((16, 16), np.float32)
    expected[:, 0] = a.astype(np.float32) @ b.astype(np.float32)
    check(out, expected, "one column")


@pytest.mark.parametrize("block", [1, 2, 4, 16, 32])
def test_integer_products_accumulate_in_integers(warps: int, block: int) -> None:  # K037
    @tile.jit
    def kernel(a, b, c, depth, BLOCK: tile.constexpr):
        i, k = tile.arange(0, 16), tile.arange(0, BLOCK)
        acc = tile.zeros((16, 16), tile.int32)
        for k0 in range(0, depth, BLOCK):
            x = tile.load(a + i[:, None] * depth + k0 + k[None, :], mask=k0 + k[None, :] < depth)
            y = tile.load(b + (k0 + k[:, None]) * 16 + i[None, :], mask=k0 + k[:, None] < depth)
            acc += tile.dot(x, y)
        tile.store(c + i[:, None] * 16 + i[None, :], acc)

    depth = 1044  # sums above 2**24, beyond which float32 has gaps
    a, b = np.full((16, depth), 127, np.int8), np.full((depth, 16), 127, np.int8)
    out = poisoned(256, tile.int32)
    kernel[1,](a, b, out, depth, BLOCK=block, num_warps=warps)
    check(out, np.full(256, 16838676, np.int32), "all 127")
    rng = np.random.default_rng(7)
    a, b = rng.integers(-128, 128, (2, 16 * depth), dtype=np.int8)
    kernel[1,](a, b, out, depth, BLOCK=block, num_warps=warps)
    exact = a.reshape(16, depth).astype(np.int64) @ b.reshape(depth, 16).astype(np.int64)
    check(out, exact.astype(np.int32), "random")


def test_int8_products_added_either_way(warps: int) -> None:  # K038
    @tile.jit
    def kernel(a, b, c, M: tile.constexpr):
        i, j = tile.arange(0, M), tile.arange(0, 16)
        x = tile.load(a + i[:, None] * 16 + j[None, :])
        y = tile.load(b + j[:, None] * 16 + j[None, :])
        at = i[:, None] * 16 + j[None, :]
        acc = tile.full((M, 16), 5, tile.int32)
        tile.store(c + at, tile.dot(x, y, acc=acc))
        acc += tile.dot(x, y)
        tile.store(c + M * 16 + at, acc)

    for m in (16, 32, 64, 128):
        a, b = np.zeros((m, 16), np.int8), np.zeros((16, 16), np.int8)
        a[:2, :2], b[:2, :2] = [[-44, -20], [-126, 6]], [[24, -75], [127, -101]]
        out = poisoned(2 * m * 16, tile.int32)
        kernel[1,](a, b, out, M=m, num_warps=warps)
        assert out[[0, 1, 16, 17]].tolist() == [-3596 + 5, 5320 + 5, -2262 + 5, 8844 + 5]
        expected = a.astype(np.int32) @ b.astype(np.int32) + 5
        check(out, np.stack([expected, expected]).astype(np.int32), f"{m}")


@pytest.mark.parametrize("dtype", [tile.bfloat16, tile.float16, tile.float8e5m2], ids=str)
def test_chained_products_of_ones_are_exact(warps: int, dtype: tile.DType) -> None:  # K040
    @tile.jit
    def kernel(a, b, c, out, M: tile.constexpr, K: tile.constexpr, N: tile.constexpr):
        m, k, n = tile.arange(0, M), tile.arange(0, K), tile.arange(0, N)
        first = tile.dot(
            tile.load(a + m[:, None] * K + k[None, :]), tile.load(b + k[:, None] * M + m[None, :])
        )
        second = tile.dot(first.to(a.dtype.element_ty), tile.load(c + m[:, None] * N + n[None, :]))
        tile.store(out + m[:, None] * N + n[None, :], second)

    ones = cast(np.ones(64 * 128), dtype)
    out = poisoned(64 * 128, tile.float32)
    kernel[1,](ones, ones, ones, out, M=64, K=128, N=128, num_warps=warps)
    check(out, np.full(64 * 128, 8192, np.float32), f"{dtype}")


@pytest.mark.parametrize("size", [16, 32, 128])
@pytest.mark.parametrize(
    "dtype", [tile.float32, tile.float16, tile.bfloat16, tile.int8, *FP8], ids=str
)
def test_transposing_in_the_kernel_is_swapping_strides(
    warps: int, emulated: bool, dtype: tile.DType, size: int
) -> None:  # K041
    if emulated and dtype == tile.float32:
        size = min(size, 64)  # without matrix instructions it takes long
    for transpose in ((True, False), (False, True), (True, True)):
        check_product((size, size, 32), dtype, warps, transpose=transpose)


@pytest.mark.parametrize("d", [32, 128])
@pytest.mark.parametrize("dtype", [tile.float16, tile.float32], ids=str)
def test_two_consumers_of_one_load_both_see_it(
    warps: int, emulated: bool, dtype: tile.DType, d: int
) -> None:  # K058
    @tile.jit
    def kernel(
        a, b, sums, product, n, D: tile.constexpr, BLOCK: tile.constexpr, FIRST: tile.constexpr
    ):
        i, j, k = tile.arange(0, BLOCK), tile.arange(0, D), tile.arange(0, 16)
        total = tile.zeros((D,), tile.float32)
        acc = tile.zeros((D, 16), tile.float32)
        for start in range(0, n, BLOCK):
            rows = start + i[:, None]
            x = tile.load(a + rows * D + j[None, :], mask=rows < n, other=0)
            y = tile.load(b + rows * 16 + k[None, :], mask=rows < n, other=0)
            if FIRST:
                total += tile.sum(x.to(tile.float32), 0)
            acc = tile.dot(tile.trans(x), y, acc)
            if not FIRST:
                total += tile.sum(x.to(tile.float32), 0)
        tile.store(sums + j, total)
        tile.store(product + j[:, None] * 16 + k[None, :], acc)

    n = 300 if emulated else 1000
    a, b = whole(dtype, n * d, 8, 2).reshape(n, d), whole(dtype, n * 16, 9, 2).reshape(n, 16)
    exact = a.astype(np.float64).T @ b.astype(np.float64)
    for first, stages in ((True, 1), (False, 2), (True, 3), (False, 4)):
        sums, product = poisoned(d, tile.float32), poisoned(d * 16, tile.float32)
        # Four stages of 64 rows of 128 words are more than the 99 KB of some chips.
        options = {"BLOCK": 64 if d == 32 else 32, "num_warps": warps, "num_stages": stages}
        kernel[1,](a, b, sums, product, n, D=d, FIRST=first, **options)
        check(sums, a.astype(np.float64).sum(0).astype(np.float32), "column sums")
        check(product, exact.astype(np.float32), "product")


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 5])
def test_products_of_no_to_more_tiles_than_stages(warps: int, stages: int) -> None:  # K059
    @tile.jit
    def kernel(a, b, c, depth, BLOCK: tile.constexpr):
        i, k = tile.arange(0, 16), tile.arange(0, BLOCK)
        acc = tile.zeros((16, 16), tile.float32)
        for k0 in range(0, depth, BLOCK):
            x = tile.load(a + i[:, None] * depth + k0 + k[None, :])
            y = tile.load(b + (k0 + k[:, None]) * 16 + i[None, :])
            acc = tile.dot(x, y, acc)
        tile.store(c + i[:, None] * 16 + i[None, :], acc)

    for tiles in range(6):
        depth = 32 * tiles
        a, b = (
            whole(tile.float16, 16 * depth, 10).reshape(16, depth),
            whole(tile.float16, depth * 16, 11),
        )
        out = poisoned(256, tile.float32)
        kernel[1,](a, b, out, depth, BLOCK=32, num_warps=warps, num_stages=stages)
        expected = a.astype(np.float32) @ b.reshape(depth, 16).astype(np.float32)
        check(out, expected.astype(np.float32), f"{tiles} tiles")


def test_an_accumulator_that_spills_is_still_right(place: str) -> None:  # K112
    m, n, k = 128, 256, 16
    for warps in (4, 8) if place != "host" else (4,):
        check_product((m, n, k), tile.float32, warps)
