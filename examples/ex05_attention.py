"""5. Flash attention forward, causal and not: two products and a softmax in one loop.

A program takes blocks of queries and walks over the keys. It keeps, for each query, the largest
score so far and the sum of exponentials below it; when a larger score comes the accumulator is
rescaled (the online softmax of Milakov and Gimelshein, arXiv 1805.02867; FlashAttention-2,
arXiv 2307.08691). The score matrix never leaves the registers.

The loop says what is computed, in the natural order. On Hopper the compiler copies keys and values
by TMA, some blocks ahead, and multiplies one block's weights with its values while the next block's
scores are exponentiated (FlashAttention-3, arXiv 2407.08608); if APART, warps of their own copy.
"""

import math

import numpy as np

import tiledsl as tile


@tile.jit
def attend(
    all_queries, all_keys, all_values, result, head, kv_head, first, length, factor,
    CAUSAL: tile.constexpr, APART: tile.constexpr, BLOCK_Q: tile.constexpr,
    BLOCK_K: tile.constexpr, D: tile.constexpr,
):  # fmt: skip
    queries = all_queries.load([head, first, 0]).reshape((BLOCK_Q, D))
    best = tile.full((BLOCK_Q,), -float("inf"), tile.float32)
    total = tile.zeros((BLOCK_Q,), tile.float32)
    acc = tile.zeros((BLOCK_Q, D), tile.float32)
    # Query i sees keys up to limit[i], all of them those up to `plain`, none those from `end` on.
    rows = first + tile.arange(0, BLOCK_Q)
    limit = tile.minimum(rows + 1, length) if CAUSAL else tile.full((BLOCK_Q,), length, tile.int32)
    plain = tile.minimum(first + 1, length) if CAUSAL else length
    end = tile.minimum(first + BLOCK_Q, length) if CAUSAL else length
    for start in tile.range(0, end, BLOCK_K, warp_specialize=APART):
        keys = all_keys.load([kv_head, start, 0]).reshape((BLOCK_K, D))
        scores = tile.dot(queries, tile.trans(keys))
        if start + BLOCK_K > plain:
            seen = tile.arange(0, BLOCK_K)[None, :] < (limit - start)[:, None]
            scores = tile.where(seen, scores, -float("inf"))
        new_best = tile.maximum(best, tile.max(scores, axis=1))
        weights = tile.exp2(scores * factor - (new_best * factor)[:, None])
        rescale = tile.exp2((best - new_best) * factor)
        total = total * rescale + tile.sum(weights, axis=1)
        values = all_values.load([kv_head, start, 0]).reshape((BLOCK_K, D))
        acc = tile.dot(weights.to(values.dtype), values, acc * rescale[:, None])
        best = new_best
    result.store([head, first, 0], (acc / total[:, None]).reshape((1, BLOCK_Q, D)))


@tile.jit
def place(work, blocks, heads, together, BLOCK_Q: tile.constexpr):
    """Give a program's head and first query: of some heads together the longest come first."""
    group, inside = work // (blocks * together), work % (blocks * together)
    size = tile.minimum(heads - group * together, together)
    return group * together + inside % size, (blocks - 1 - inside // size) * BLOCK_Q


@tile.jit
def attention_forward(
    q, k, v, out, heads, kv_heads, length, stride_q, stride_kv, scale, together,
    CAUSAL: tile.constexpr, BLOCK_Q: tile.constexpr, BLOCK_K: tile.constexpr, D: tile.constexpr,
    MANY: tile.constexpr, APART: tile.constexpr,
):  # fmt: skip
    q_shape, q_strides, q_block = [heads, length, D], [stride_q, D, 1], [1, BLOCK_Q, D]
    kv_shape, kv_strides, kv_block = [kv_heads, length, D], [stride_kv, D, 1], [1, BLOCK_K, D]
    all_queries = tile.make_tensor_descriptor(q, q_shape, q_strides, q_block)
    all_keys = tile.make_tensor_descriptor(k, kv_shape, kv_strides, kv_block)
    all_values = tile.make_tensor_descriptor(v, kv_shape, kv_strides, kv_block)
    result = tile.make_tensor_descriptor(out, q_shape, q_strides, q_block)
    blocks = tile.cdiv(length, BLOCK_Q)
    shared = heads // kv_heads
    # Exponents are in powers of two: exp2 is one instruction.
    factor = scale * 1.4426950408889634
    if MANY:
        for work in range(tile.program_id(0), blocks * heads, tile.num_programs(0)):
            head, first = place(work, blocks, heads, together, BLOCK_Q)
            attend(
                all_queries, all_keys, all_values, result, head, head // shared, first, length,
                factor, CAUSAL, APART, BLOCK_Q, BLOCK_K, D,
            )  # fmt: skip
    else:
        head, first = place(tile.program_id(0), blocks, heads, together, BLOCK_Q)
        attend(
            all_queries, all_keys, all_values, result, head, head // shared, first, length,
            factor, CAUSAL, APART, BLOCK_Q, BLOCK_K, D,
        )  # fmt: skip


def attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool = False,
    block_q: int = 64, block_k: int = 64, num_warps: int = 4, num_stages: int = 2,
    programs: int = 0, together: int = 1,
) -> np.ndarray:  # fmt: skip
    """Return softmax(q k^T / sqrt(d)) v; arrays are contiguous (heads, length, d).

    Several heads of q may share one of k and v. On Hopper blocks of 128 and 8 warps are best for 16
    bits (block_k 64 for d = 256). Each of so many `programs`, if any, computes several blocks of
    queries, and warps of its own copy for it.
    """
    heads, length, d = q.shape
    out = np.empty_like(q)
    blocks = tile.cdiv(length, block_q) * heads
    attention_forward[min(programs, blocks) or blocks,](
        q, k, v, out, heads, k.shape[0], length, length * d, length * d, 1 / math.sqrt(d), together,
        CAUSAL=causal, BLOCK_Q=block_q, BLOCK_K=block_k, D=d, MANY=programs > 0, APART=programs > 0,
        num_warps=num_warps, num_stages=num_stages, fast_math=True,
    )  # fmt: skip
    return out


def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> np.ndarray:
    """Compute the same in float64."""
    shared = q.shape[0] // k.shape[0]
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, shared, axis=0) for x in (k, v))
    scores = q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(q.shape[1], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def main() -> None:
    rng = np.random.default_rng(0)
    q = rng.standard_normal((4, 200, 64), dtype=np.float32)
    k, v = rng.standard_normal((2, 2, 200, 64), dtype=np.float32)
    for causal in (False, True):
        result = attention(q, k, v, causal)
        np.testing.assert_allclose(result, reference(q, k, v, causal), atol=1e-4)
    print("attention, causal and not: right to 1e-4")


if __name__ == "__main__":
    main()
    # Next, ex06_fast_matmul.py: a product that keeps the matrix units busy.
