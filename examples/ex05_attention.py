"""5. Flash attention forward, causal and not: two products and a softmax in one loop.

A program takes blocks of queries and walks over the keys. It keeps, for each query, the largest
score so far and the sum of exponentials below it; when a larger score comes the accumulator is
rescaled (the online softmax of Milakov and Gimelshein, arXiv 1805.02867; FlashAttention-2,
arXiv 2307.08691). The score matrix never leaves the registers.

The loop says what is computed, in the natural order. On Hopper the compiler copies keys and values
by TMA, some blocks ahead, and multiplies one block's weights with its values while the next block's
scores are exponentiated (FlashAttention-3, arXiv 2407.08608), unless OVERLAP is false; if APART,
warps of their own copy. `choose_form` says what is best for which shape.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

import tiledsl as tile
from tiledsl.device import current
from tiledsl.launch import chip_of


@tile.jit
def attend(
    all_queries, all_keys, all_values, result, head, kv_head, first, length, factor,
    CAUSAL: tile.constexpr, APART: tile.constexpr, OVERLAP: tile.constexpr,
    BLOCK_Q: tile.constexpr, BLOCK_K: tile.constexpr, D: tile.constexpr,
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
    for start in tile.range(0, end, BLOCK_K, warp_specialize=APART, overlap_products=OVERLAP):
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
    """Give the head and first query of a block: of some heads together the longest come first."""
    group, inside = work // (blocks * together), work % (blocks * together)
    size = tile.minimum(heads - group * together, together)
    return group * together + inside % size, (blocks - 1 - inside // size) * BLOCK_Q


@tile.jit
def place_paired(work, blocks, BLOCK_Q: tile.constexpr):
    """Give the head and first query of a block: a program's next is as short as its last is long.

    They are of two heads, of which the second may be one too many: boxes there are outside.
    """
    programs = tile.num_programs(0)
    turn = work // programs
    pair = turn // 2 * programs + work % programs
    block = blocks - 1 - pair % blocks
    block = tile.where(turn % 2 == 0, block, blocks - 1 - block)
    return pair // blocks * 2 + turn % 2, block * BLOCK_Q


@tile.jit
def attention_forward(
    q, k, v, out, heads, kv_heads, length, stride_q, stride_kv, scale, together,
    CAUSAL: tile.constexpr, BLOCK_Q: tile.constexpr, BLOCK_K: tile.constexpr, D: tile.constexpr,
    MANY: tile.constexpr, APART: tile.constexpr, OVERLAP: tile.constexpr,
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
        here, programs, works = tile.program_id(0), tile.num_programs(0), blocks * heads
        if CAUSAL:
            pairs = tile.cdiv(heads, 2) * blocks
            works = here + tile.cdiv(pairs - here, programs) * 2 * programs
        for work in range(here, works, programs):
            if CAUSAL:
                head, first = place_paired(work, blocks, BLOCK_Q)
            else:
                head, first = place(work, blocks, heads, 1, BLOCK_Q)
            attend(
                all_queries, all_keys, all_values, result, head, head // shared, first, length,
                factor, CAUSAL, APART, OVERLAP, BLOCK_Q, BLOCK_K, D,
            )  # fmt: skip
    else:
        head, first = place(tile.program_id(0), blocks, heads, together, BLOCK_Q)
        attend(
            all_queries, all_keys, all_values, result, head, head // shared, first, length,
            factor, CAUSAL, APART, OVERLAP, BLOCK_Q, BLOCK_K, D,
        )  # fmt: skip


PROCESSORS, CACHE_BYTES = 132, 32 << 20
"""Of an H200: how many, and what of the L2 cache keys and values may fill."""


@dataclass(frozen=True)
class Form:
    """How the work is cut up.

    Attributes:
        block_q: Queries of a block.
        block_k: Keys of a trip.
        num_warps: Warps of a program.
        num_stages: Blocks of keys and values in shared memory.
        many: Whether a program for each processor computes many blocks, else each computes one.
        apart: Whether warps of their own copy.
        overlap: Whether a trip's second product runs beside the next trip's softmax.
        max_registers: A limit of registers a thread, where more programs are to share a processor.
    """

    block_q: int = 64
    block_k: int = 64
    num_warps: int = 4
    num_stages: int = 2
    many: bool = False
    apart: bool = False
    overlap: bool = True
    max_registers: int | None = None


def choose_form(heads: int, length: int, d: int, causal: bool) -> Form:
    """Return the form that is fastest on Hopper for 16 bits.

    - Two warpgroups share a block of 128 queries, unless some processors would have none then.
    - d up to 64: two programs share a processor if 128 registers do for a thread. They do without
      the products' overlap: one program's products run beside the other's softmax instead.
    - d up to 128: one program fills a processor; warps that copy leave it nothing but to compute.
      Where blocks have few trips, a block's first loads and last stores count: programs compute
      many blocks, and load for the next ahead. Else the hardware deals out one block each more
      evenly.
    - Larger: of keys and values blocks of 64 are what fits.
    """
    rows = tile.cdiv(length, 128)
    if rows * heads < PROCESSORS:
        return Form(64, 128 if d <= 128 else 64, 4)
    if d <= 64:
        return Form(128, 128, 8, overlap=False, max_registers=128)
    if d > 128:
        return Form(128, 64, 8)
    few = rows * (0.5 if causal else 1) < 32
    return Form(128, 128, 8, many=few and (heads % 2 == 0 or not causal), apart=True)


def launch(q: Any, k: Any, v: Any, out: Any, causal: bool, form: Form) -> None:
    """Compute attention of contiguous (heads, length, d), of NumPy or on a device, into `out`."""
    heads, length, d = q.shape
    works = tile.cdiv(length, form.block_q) * heads
    together = CACHE_BYTES // (2 * length * d * k.itemsize) if causal else 1
    attention_forward[min(PROCESSORS, works) if form.many else works,](
        q, k, v, out, heads, k.shape[0], length, length * d, length * d, 1 / math.sqrt(d),
        min(max(1, together), heads),
        CAUSAL=causal, BLOCK_Q=form.block_q, BLOCK_K=form.block_k, D=d, MANY=form.many,
        APART=form.apart, OVERLAP=form.overlap, num_warps=form.num_warps,
        num_stages=form.num_stages, max_registers=form.max_registers, fast_math=True,
    )  # fmt: skip


def attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool = False, form: Form | None = None
) -> np.ndarray:
    """Return softmax(q k^T / sqrt(d)) v; arrays are contiguous (heads, length, d).

    Several heads of q may share one of k and v. The form is chosen if none is given.
    """
    heads, length, d = q.shape
    if form is None:
        hopper = chip_of(current()) == "sm_90a" and q.itemsize == 2
        form = choose_form(heads, length, d, causal) if hopper else Form()
    out = np.empty_like(q)
    launch(q, k, v, out, causal, form)
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
