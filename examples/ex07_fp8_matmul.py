"""7. A product in fp8: eight bits an element, and scales that give back what they cannot hold.

fp8 (e4m3) has 3 bits of mantissa and no number above 448, and is multiplied twice as fast as bf16.
Each row of `a` and each row of `b` is divided by a scale of its own so that its largest element is
448; products are summed in float32, and the scales multiply the sum once, in the epilogue, where
they cost nothing. Both operands lie with k contiguous: matrix instructions take bytes only so.
"""

import ml_dtypes
import numpy as np

import tiledsl as tile

LARGEST = 448.0
FP8 = ml_dtypes.float8_e4m3fn


@tile.jit
def scaled_matmul(a, b, c, scale_a, scale_b, GROUP: tile.constexpr):
    """Compute (a * scale_a[:, None]) @ (b * scale_b[:, None]).T."""
    BLOCK_M, BLOCK_N = c.block_shape
    BLOCK_K = a.block_shape[1]
    (M, N), K = c.shape, a.shape[1]
    rows, columns = tile.cdiv(M, BLOCK_M), tile.cdiv(N, BLOCK_N)
    for number in range(tile.program_id(0), rows * columns, tile.num_programs(0)):
        i, j = tile.swizzle2d(number // columns, number % columns, rows, columns, GROUP)
        m, n = i * BLOCK_M, j * BLOCK_N
        acc = tile.zeros((BLOCK_M, BLOCK_N), tile.float32)
        for k in range(0, K, BLOCK_K):
            acc = tile.dot(a.load([m, k]), tile.trans(b.load([n, k])), acc)
        acc = acc * scale_a.load([m])[:, None] * scale_b.load([n])[None, :]
        c.store([m, n], acc.to(c.dtype))


def quantize(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return x as fp8, and the scale of each row."""
    scale = (np.abs(x).max(axis=1) / LARGEST).astype(np.float32)
    return (x / scale[:, None]).astype(FP8), scale


def multiply(
    a: np.ndarray, b: np.ndarray, scale_a: np.ndarray, scale_b: np.ndarray,
    block: tuple[int, int] = (128, 128), block_k: int = 128, num_stages: int = 3,
) -> np.ndarray:  # fmt: skip
    """Return (a * scale_a[:, None]) @ (b * scale_b[:, None]).T in bfloat16."""
    m, n = a.shape[0], b.shape[0]
    c = np.empty((m, n), ml_dtypes.bfloat16)
    block_m, block_n = block
    programs = min(132, tile.cdiv(m, block_m) * tile.cdiv(n, block_n))
    scaled_matmul[programs,](
        tile.TensorDescriptor(a, (block_m, block_k)),
        tile.TensorDescriptor(b, (block_n, block_k)),
        tile.TensorDescriptor(c, block),
        tile.TensorDescriptor(scale_a, (block_m,)),
        tile.TensorDescriptor(scale_b, (block_n,)),
        GROUP=2048 // block_m, num_warps=8, num_stages=num_stages,
    )  # fmt: skip
    return c


def main() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 256), dtype=np.float32) * rng.uniform(0.1, 100, (200, 1))
    y = rng.standard_normal((160, 256), dtype=np.float32)
    (a, scale_a), (b, scale_b) = quantize(x.astype(np.float32)), quantize(y)
    found = multiply(a, b, scale_a, scale_b, block=(64, 64), num_stages=2).astype(np.float64)
    exact = (a.astype(np.float64) * scale_a[:, None]) @ (b.astype(np.float64) * scale_b[:, None]).T
    size = np.linalg.norm(exact)
    assert np.linalg.norm(found - exact) / size < 4e-3  # bfloat16
    lost = np.linalg.norm(x @ y.T - exact) / size
    assert lost < 5e-2
    print(f"fp8 matmul with scales: right to bfloat16; fp8 itself loses {lost:.1%}")


if __name__ == "__main__":
    main()
