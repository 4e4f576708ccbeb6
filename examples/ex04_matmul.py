"""4. Matrix product with bias and GELU fused: `tile.dot`.

`tile.dot` multiplies two tiles; the compiler picks the matrix instruction, the layouts that it
needs, the swizzle of shared memory and, with `num_stages`, copies that run ahead of the arithmetic.
The bias and the activation work on the accumulator before it is ever written: no second kernel.
"""

import numpy as np

import tiledsl as tile


@tile.jit
def gelu(x):
    return 0.5 * x * (1.0 + tile.erf(x * 0.7071067811865476))


@tile.jit
def matmul(
    a, b, c, bias, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    FUSED: tile.constexpr,
    BLOCK_M: tile.constexpr, BLOCK_N: tile.constexpr, BLOCK_K: tile.constexpr,
):  # fmt: skip
    m = tile.program_id(0) * BLOCK_M + tile.arange(0, BLOCK_M)
    n = tile.program_id(1) * BLOCK_N + tile.arange(0, BLOCK_N)
    k = tile.arange(0, BLOCK_K)
    acc = tile.zeros((BLOCK_M, BLOCK_N), tile.float32)
    for k0 in range(0, K, BLOCK_K):
        x = tile.load(
            a + m[:, None] * stride_am + (k0 + k)[None, :] * stride_ak,
            mask=(m[:, None] < M) & ((k0 + k)[None, :] < K),
        )
        y = tile.load(
            b + (k0 + k)[:, None] * stride_bk + n[None, :] * stride_bn,
            mask=((k0 + k)[:, None] < K) & (n[None, :] < N),
        )
        acc = tile.dot(x, y, acc)
    if FUSED:
        acc = gelu(acc + tile.load(bias + n, mask=n < N).to(tile.float32)[None, :])
    tile.store(
        c + m[:, None] * stride_cm + n[None, :] * stride_cn,
        acc.to(c.dtype.element_ty),
        mask=(m[:, None] < M) & (n[None, :] < N),
    )


def strides(array: np.ndarray) -> tuple[int, ...]:
    """Return an array's strides in elements."""
    return tuple(stride // array.itemsize for stride in array.strides)


def multiply(
    a: np.ndarray, b: np.ndarray, bias: np.ndarray | None = None,
    block: tuple[int, int, int] = (128, 128, 32), num_warps: int = 8,
) -> np.ndarray:  # fmt: skip
    """Return a @ b, or gelu(a @ b + bias) where there is a bias."""
    (rows, depth), columns = a.shape, b.shape[1]
    c = np.empty((rows, columns), a.dtype)
    matmul[tile.cdiv(rows, block[0]), tile.cdiv(columns, block[1])](
        a, b, c, bias, rows, columns, depth, *strides(a), *strides(b), *strides(c),
        FUSED=bias is not None, BLOCK_M=block[0], BLOCK_N=block[1], BLOCK_K=block[2],
        num_warps=num_warps, num_stages=3,
    )  # fmt: skip
    return c


def main() -> None:
    import math

    rng = np.random.default_rng(0)
    a = rng.standard_normal((300, 250), dtype=np.float32)
    b = rng.standard_normal((250, 200), dtype=np.float32)
    bias = rng.standard_normal(200, dtype=np.float32)
    product = a.astype(np.float64) @ b
    np.testing.assert_allclose(multiply(a, b), product, atol=1e-3)
    shifted = product + bias
    erf = np.vectorize(math.erf)(shifted / math.sqrt(2))
    np.testing.assert_allclose(multiply(a, b, bias), 0.5 * shifted * (1 + erf), atol=1e-3)
    print("matmul, alone and with bias and GELU: right to 1e-3")


if __name__ == "__main__":
    main()
    # Next, ex05_attention.py: two products and a running softmax in one loop.
