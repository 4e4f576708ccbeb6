"""5. Flash attention forward, causal and not: two products and a softmax in one loop.

A program takes a block of queries and walks over the keys. It keeps, for each query, the largest
score so far and the sum of exponentials below it; when a larger score comes the accumulator is
rescaled (the online softmax of Milakov and Gimelshein, arXiv 1805.02867; FlashAttention-2,
arXiv 2307.08691). The score matrix never leaves the registers.
"""

import math

import numpy as np

import tiledsl as tile


@tile.jit
def attention_forward(
    q, k, v, out, stride_head, length, scale,
    CAUSAL: tile.constexpr, BLOCK_Q: tile.constexpr, BLOCK_K: tile.constexpr, D: tile.constexpr,
):  # fmt: skip
    rows = tile.program_id(0) * BLOCK_Q + tile.arange(0, BLOCK_Q)
    head = tile.program_id(1) * stride_head
    lane, depth = tile.arange(0, BLOCK_K), tile.arange(0, D)
    queries = tile.load(
        q + head + rows[:, None] * D + depth[None, :], mask=rows[:, None] < length, other=0.0
    )
    best = tile.full((BLOCK_Q,), -float("inf"), tile.float32)
    total = tile.zeros((BLOCK_Q,), tile.float32)
    acc = tile.zeros((BLOCK_Q, D), tile.float32)
    # Scores are in powers of two: exp2 is one instruction.
    factor = scale * 1.4426950408889634
    end = tile.minimum(length, (tile.program_id(0) + 1) * BLOCK_Q) if CAUSAL else length
    for start in range(0, end, BLOCK_K):
        columns = start + lane
        keys = tile.load(
            k + head + columns[None, :] * D + depth[:, None],
            mask=columns[None, :] < length,
            other=0.0,
        )
        scores = tile.dot(queries, keys) * factor
        seen = columns[None, :] < length
        if CAUSAL:
            seen = seen & (columns[None, :] <= rows[:, None])
        scores = tile.where(seen, scores, -float("inf"))
        new_best = tile.maximum(best, tile.max(scores, axis=1))
        weights = tile.exp2(scores - new_best[:, None])
        rescale = tile.exp2(best - new_best)
        total = total * rescale + tile.sum(weights, axis=1)
        values = tile.load(
            v + head + columns[:, None] * D + depth[None, :],
            mask=columns[:, None] < length,
            other=0.0,
        )
        acc = tile.dot(weights.to(v.dtype.element_ty), values, acc * rescale[:, None])
        best = new_best
    result = (acc / total[:, None]).to(out.dtype.element_ty)
    tile.store(out + head + rows[:, None] * D + depth[None, :], result, mask=rows[:, None] < length)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool = False) -> np.ndarray:
    """Return softmax(q k^T / sqrt(d)) v; arrays are contiguous (heads, length, d)."""
    heads, length, d = q.shape
    out = np.empty_like(q)
    block_q, block_k = 64, 64
    attention_forward[tile.cdiv(length, block_q), heads](
        q, k, v, out, length * d, length, 1 / math.sqrt(d),
        CAUSAL=causal, BLOCK_Q=block_q, BLOCK_K=block_k, D=d, num_warps=4, num_stages=2,
    )  # fmt: skip
    return out


def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> np.ndarray:
    """Compute the same in float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(q.shape[1], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def main() -> None:
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 2, 200, 64), dtype=np.float32)
    for causal in (False, True):
        result = attention(q, k, v, causal)
        np.testing.assert_allclose(result, reference(q, k, v, causal), atol=1e-4)
    print("attention, causal and not: right to 1e-4")


if __name__ == "__main__":
    main()
