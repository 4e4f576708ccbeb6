"""6. A fast matrix product: tensor descriptors and a persistent loop.

Three changes to ex04's product, none of which names an instruction:

- Arrays come as `tile.TensorDescriptor`s, and are read and written in boxes, without pointers and
  masks. Where the chip copies boxes by itself (TMA on Hopper), that is what happens.
- As many programs run as the chip has processors, and each computes one tile of the result after
  the other. The copies of the next tile's first boxes then run under this tile's epilogue.
- `swizzle2d` orders the tiles so that programs that run together share rows and columns of the
  operands in the cache.
"""

import numpy as np

import tiledsl as tile


@tile.jit
def gelu(x):
    return 0.5 * x * (1.0 + tile.erf(x * 0.7071067811865476))


@tile.jit
def matmul(a, b, c, bias, GROUP: tile.constexpr, TURNED: tile.constexpr):
    """Compute a @ b, or a @ b.T where b is TURNED; with a bias, gelu of the biased product."""
    BLOCK_M, BLOCK_N = c.block_shape
    BLOCK_K = a.block_shape[1]
    (M, N), K = c.shape, a.shape[1]
    rows, columns = tile.cdiv(M, BLOCK_M), tile.cdiv(N, BLOCK_N)
    for number in range(tile.program_id(0), rows * columns, tile.num_programs(0)):
        i, j = tile.swizzle2d(number // columns, number % columns, rows, columns, GROUP)
        m, n = i * BLOCK_M, j * BLOCK_N
        acc = tile.zeros((BLOCK_M, BLOCK_N), tile.float32)
        for k in range(0, K, BLOCK_K):
            x = a.load([m, k])
            y = tile.trans(b.load([n, k])) if TURNED else b.load([k, n])
            acc = tile.dot(x, y, acc)
        if bias is not None:
            acc = gelu(acc + bias.load([n]).to(tile.float32)[None, :])
        c.store([m, n], acc.to(c.dtype))


PROCESSORS = 132
"""Of an H200. Where there are others, all is right and not quite as fast."""
CANDIDATES = ((128, 256), (128, 128), (64, 128))
"""Tiles, of which larger ones read less for each product, and smaller ones fill the chip sooner."""


def choose_block(m: int, n: int) -> tuple[int, int]:
    """Return the tile that an m by n product is computed in.

    All processors take a tile at once, then all the next: the last time round some may have none.
    A tile's time is that of its products and of what it reads, (BLOCK_M + BLOCK_N) K elements,
    each of which takes as long as about 50 products.
    """

    def cost(block: tuple[int, int]) -> float:
        tiles = tile.cdiv(m, block[0]) * tile.cdiv(n, block[1])
        return tile.cdiv(tiles, PROCESSORS) * (block[0] * block[1] + 50 * sum(block))

    return min(CANDIDATES, key=cost)


def multiply(
    a: np.ndarray, b: np.ndarray, bias: np.ndarray | None = None, turned: bool = False,
    block: tuple[int, int] | None = None, block_k: int = 64, num_stages: int = 2,
) -> np.ndarray:  # fmt: skip
    """Return a @ b (a @ b.T where `turned`), or gelu of it with a bias added."""
    m, n = a.shape[0], b.shape[0 if turned else 1]
    c = np.empty((m, n), a.dtype)
    block_m, block_n = block or choose_block(m, n)
    programs = min(PROCESSORS, tile.cdiv(m, block_m) * tile.cdiv(n, block_n))
    matmul[programs,](
        tile.TensorDescriptor(a, (block_m, block_k)),
        tile.TensorDescriptor(b, (block_n, block_k) if turned else (block_k, block_n)),
        tile.TensorDescriptor(c, (block_m, block_n)),
        None if bias is None else tile.TensorDescriptor(bias, (block_n,)),
        GROUP=2048 // block_m, TURNED=turned, num_warps=8, num_stages=num_stages,
    )  # fmt: skip
    return c


def main() -> None:
    import math

    rng = np.random.default_rng(0)
    a = rng.standard_normal((300, 256), dtype=np.float32).astype(np.float16)
    b = rng.standard_normal((256, 200), dtype=np.float32).astype(np.float16)
    bias = rng.standard_normal(200, dtype=np.float32).astype(np.float16)
    product = a.astype(np.float64) @ b.astype(np.float64)
    small = (64, 64)
    np.testing.assert_allclose(multiply(a, b, block=small), product, rtol=2e-3, atol=2e-2)
    turned = multiply(a, np.ascontiguousarray(b.T), turned=True, block=small)
    np.testing.assert_allclose(turned, product, rtol=2e-3, atol=2e-2)
    shifted = product + bias
    wanted = 0.5 * shifted * (1 + np.vectorize(math.erf)(shifted / math.sqrt(2)))
    np.testing.assert_allclose(multiply(a, b, bias, block=small), wanted, rtol=2e-3, atol=2e-2)
    print("matmul through descriptors, either layout of b, fused: right to 2e-2")


if __name__ == "__main__":
    main()
    # Next, ex07_fp8_matmul.py: the same in eight bits, with scales.
