"""Matrix products of every shape and type, exactly where the products and sums are exact."""

import numpy as np
import pytest

import tiledsl as tile
from tests.kernels.oracle import FLOATS, FP8, check, ordinary, poisoned, whole
from tiledsl.dtypes import DType


@tile.jit
def product(a, b, c, M: tile.constexpr, N: tile.constexpr, K: tile.constexpr,
            TRANSPOSE_A: tile.constexpr, TRANSPOSE_B: tile.constexpr, PRECISION: tile.constexpr):  # fmt: skip
    m, n, k = tile.arange(0, M), tile.arange(0, N), tile.arange(0, K)
    if TRANSPOSE_A:
        x = tile.trans(tile.load(a + k[:, None] * M + m[None, :]))
    else:
        x = tile.load(a + m[:, None] * K + k[None, :])
    if TRANSPOSE_B:
        y = tile.trans(tile.load(b + n[:, None] * K + k[None, :]))
    else:
        y = tile.load(b + k[:, None] * N + n[None, :])
    tile.store(c + m[:, None] * N + n[None, :], tile.dot(x, y, input_precision=PRECISION))


def accumulator(dtype: DType) -> DType:
    """Return the type that a product of `dtype` tiles has."""
    if dtype.is_int():
        return tile.int32
    return tile.float64 if dtype is tile.float64 else tile.float32


def check_product(
    shape: tuple[int, int, int], dtype: DType, warps: int, limit: int = 4,
    transpose: tuple[bool, bool] = (False, False), precision: str = "ieee",
) -> None:  # fmt: skip
    m, n, k = shape
    a, b = whole(dtype, m * k, 1, limit).reshape(m, k), whole(dtype, k * n, 2, limit).reshape(k, n)
    out = poisoned(m * n, accumulator(dtype))
    given_a = np.ascontiguousarray(a.T) if transpose[0] else a
    given_b = np.ascontiguousarray(b.T) if transpose[1] else b
    product[1,](
        given_a, given_b, out, M=m, N=n, K=k, TRANSPOSE_A=transpose[0], TRANSPOSE_B=transpose[1],
        PRECISION=precision, num_warps=warps,
    )  # fmt: skip
    exact = a.astype(np.float64) @ b.astype(np.float64)
    check(out, exact.astype(accumulator(dtype).numpy), f"{shape} of {dtype}")


SHAPES = [
    (1, 1, 1), (2, 4, 8), (16, 16, 16), (16, 8, 16), (16, 8, 32), (32, 64, 16), (64, 32, 128),
    (128, 128, 32), (64, 64, 64), (8, 128, 16), (128, 8, 64), (4, 2, 1), (1, 16, 64), (16, 1, 32),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [tile.float16, tile.float32, tile.int8], ids=str)
def test_products_of_every_shape(warps: int, dtype: DType, shape: tuple[int, int, int]) -> None:
    check_product(shape, dtype, warps)


@pytest.mark.parametrize("dtype", [*FLOATS, *FP8, tile.int8, tile.uint8], ids=str)
def test_products_of_every_type(warps: int, dtype: DType) -> None:
    for shape in ((16, 16, 32), (64, 32, 64)):
        check_product(shape, dtype, warps)


@pytest.mark.parametrize("transpose", [(True, False), (False, True), (True, True)], ids=str)
@pytest.mark.parametrize("dtype", [tile.float16, tile.float32, tile.int8, *FP8], ids=str)
def test_transposed_operands(warps: int, dtype: DType, transpose: tuple[bool, bool]) -> None:
    for shape in ((32, 16, 64), (64, 128, 32)):
        check_product(shape, dtype, warps, transpose=transpose)


@pytest.mark.parametrize("precision", ["ieee", "tf32", "tf32x3"])
def test_input_precisions_of_float32(warps: int, precision: str) -> None:
    check_product((32, 32, 32), tile.float32, warps, precision=precision)
    a, b = ordinary(tile.float32, 64 * 64, 3), ordinary(tile.float32, 64 * 64, 4)
    out = poisoned(64 * 64, tile.float32)
    product[1,](
        a, b, out, M=64, N=64, K=64, TRANSPOSE_A=False, TRANSPOSE_B=False, PRECISION=precision,
        num_warps=warps,
    )  # fmt: skip
    exact = a.astype(np.float64).reshape(64, 64) @ b.astype(np.float64).reshape(64, 64)
    tolerance = 5e-2 if precision == "tf32" else 1e-4
    np.testing.assert_allclose(out[: 64 * 64].reshape(64, 64), exact, atol=tolerance)


@pytest.mark.parametrize("dtype", [tile.float16, tile.bfloat16, tile.float64], ids=str)
def test_products_of_ordinary_numbers(warps: int, dtype: DType) -> None:
    m, n, k = 64, 64, 64 if dtype is tile.float64 else 128  # both operands fit into 64 KiB
    a, b = ordinary(dtype, m * k, 5).reshape(m, k), ordinary(dtype, k * n, 6).reshape(k, n)
    wide = accumulator(dtype)
    out = poisoned(m * n, wide)
    product[1,](
        a, b, out, M=m, N=n, K=k, TRANSPOSE_A=False, TRANSPOSE_B=False, PRECISION="ieee",
        num_warps=warps,
    )  # fmt: skip
    exact = a.astype(np.float64) @ b.astype(np.float64)
    # Rounding of up to 128 sums of magnitude about 10.
    tolerance = 1e-12 if wide is tile.float64 else 1e-4
    np.testing.assert_allclose(out[: m * n].reshape(m, n), exact, atol=tolerance)


def test_nan_and_infinity_go_through(warps: int) -> None:
    a, b = whole(tile.float32, 256, 7).reshape(16, 16), whole(tile.float32, 256, 8).reshape(16, 16)
    a[3, 5], b[7, 2], b[:, 9] = np.nan, np.inf, 1
    a[:, 7] = 1
    out = poisoned(256, tile.float32)
    product[1,](
        a, b, out, M=16, N=16, K=16, TRANSPOSE_A=False, TRANSPOSE_B=False, PRECISION="ieee",
        num_warps=warps,
    )  # fmt: skip
    with np.errstate(invalid="ignore"):
        check(out, a @ b, "specials")


@pytest.mark.parametrize("dtype", [tile.float16, tile.float32, tile.int8, tile.float64], ids=str)
def test_the_accumulator_is_added_to(warps: int, dtype: DType) -> None:
    @tile.jit
    def kernel(a, b, c, out, M: tile.constexpr, N: tile.constexpr, K: tile.constexpr):
        m, n, k = tile.arange(0, M), tile.arange(0, N), tile.arange(0, K)
        x = tile.load(a + m[:, None] * K + k[None, :])
        y = tile.load(b + k[:, None] * N + n[None, :])
        where = m[:, None] * N + n[None, :]
        acc = tile.load(c + where)
        tile.store(out + where, tile.dot(x, y, acc))
        acc += tile.dot(x, y)
        tile.store(out + M * N + where, acc)
        tile.store(out + 2 * M * N + where, tile.dot(x, y, acc=acc))

    m, n, k = 32, 16, 64
    wide = accumulator(dtype)
    a, b = whole(dtype, m * k, 9).reshape(m, k), whole(dtype, k * n, 10).reshape(k, n)
    c = whole(wide, m * n, 11, 1000).reshape(m, n)
    out = poisoned(3 * m * n, wide)
    kernel[1,](a, b, c, out, M=m, N=n, K=k, num_warps=warps)
    once = a.astype(np.float64) @ b.astype(np.float64)
    expected = np.stack([c + once, c + once, c + 2 * once]).astype(wide.numpy)
    check(out, expected, f"acc of {dtype}")


@pytest.mark.parametrize("dtype", [tile.float16, tile.float32], ids=str)
def test_batches_of_products(warps: int, dtype: DType) -> None:
    @tile.jit
    def kernel(a, b, c, B: tile.constexpr, M: tile.constexpr, N: tile.constexpr, K: tile.constexpr):
        z, m = tile.arange(0, B)[:, None, None], tile.arange(0, M)[None, :, None]
        n, k = tile.arange(0, N)[None, None, :], tile.arange(0, K)
        x = tile.load(a + z * (M * K) + m * K + k[None, None, :])
        y = tile.load(b + z * (K * N) + k[None, :, None] * N + n)
        tile.store(c + z * (M * N) + m * N + n, tile.dot(x, y))

    for z, m, n, k in ((2, 16, 16, 16), (4, 32, 8, 32), (1, 16, 32, 16)):
        a = whole(dtype, z * m * k, 12).reshape(z, m, k)
        b = whole(dtype, z * k * n, 13).reshape(z, k, n)
        out = poisoned(z * m * n, tile.float32)
        kernel[1,](a, b, out, B=z, M=m, N=n, K=k, num_warps=warps)
        check(out, a.astype(np.float32) @ b.astype(np.float32), f"{z} of {dtype}")


@pytest.mark.parametrize("dtype", [tile.float16, tile.bfloat16, tile.float32], ids=str)
def test_chained_products(warps: int, dtype: DType) -> None:
    @tile.jit
    def kernel(a, b, c, out, M: tile.constexpr, N: tile.constexpr, K: tile.constexpr,
               L: tile.constexpr):  # fmt: skip
        m, n, k, j = (tile.arange(0, size) for size in (M, N, K, L))
        x = tile.load(a + m[:, None] * K + k[None, :])
        y = tile.load(b + k[:, None] * N + n[None, :])
        z = tile.load(c + n[:, None] * L + j[None, :])
        first = tile.dot(x, y)
        second = tile.dot(first.to(z.dtype), z)
        tile.store(out + m[:, None] * L + j[None, :], second - tile.sum(first, 1)[:, None])

    for m, n, k, j in ((16, 16, 16, 16), (64, 32, 16, 64), (128, 64, 32, 16)):
        a, b = whole(dtype, m * k, 14, 1).reshape(m, k), whole(dtype, k * n, 15, 1).reshape(k, n)
        c = whole(dtype, n * j, 16, 1).reshape(n, j)
        out = poisoned(m * j, tile.float32)
        kernel[1,](a, b, c, out, M=m, N=n, K=k, L=j, num_warps=warps)
        first = a.astype(np.float32) @ b.astype(np.float32)
        expected = first @ c.astype(np.float32) - first.sum(1, keepdims=True)
        check(out, expected, f"chain of {dtype}")


@tile.jit
def tiled(a, b, c, M, N, K, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr):
    m = tile.program_id(0) * BM + tile.arange(0, BM)
    n = tile.program_id(1) * BN + tile.arange(0, BN)
    k = tile.arange(0, BK)
    acc = tile.zeros((BM, BN), c.dtype.element_ty)
    for k0 in range(0, K, BK):
        inside_a = (m[:, None] < M) & (k0 + k[None, :] < K)
        inside_b = (k0 + k[:, None] < K) & (n[None, :] < N)
        x = tile.load(a + m[:, None] * K + k0 + k[None, :], mask=inside_a, other=0)
        y = tile.load(b + (k0 + k[:, None]) * N + n[None, :], mask=inside_b, other=0)
        acc = tile.dot(x, y, acc)
    tile.store(c + m[:, None] * N + n[None, :], acc, mask=(m[:, None] < M) & (n[None, :] < N))


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [tile.float16, tile.float32, tile.int8], ids=str)
def test_tiled_products_of_ragged_matrices(warps: int, dtype: DType, stages: int) -> None:
    for m, n, k in ((1, 1, 1), (65, 33, 17), (100, 70, 200), (64, 64, 0)):
        a, b = whole(dtype, m * k, 17).reshape(m, k), whole(dtype, k * n, 18).reshape(k, n)
        out = poisoned(m * n, accumulator(dtype))
        grid = tile.cdiv(m, 64), tile.cdiv(n, 32)
        tiled[grid](a, b, out, m, n, k, BM=64, BN=32, BK=32, num_warps=warps, num_stages=stages)
        exact = a.astype(np.float64) @ b.astype(np.float64)
        check(out, exact.astype(out.dtype), f"{m}x{n}x{k} of {dtype}")
