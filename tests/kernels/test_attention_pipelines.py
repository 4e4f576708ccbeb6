"""Attention on Hopper over many tiles a program: pipelines that stay full, warps of their own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tiledsl as tile
from examples.ex05_attention import reference
from tests.kernels.oracle import ordinary


@tile.jit
def attention_over_tiles(
    q, k, v, out, heads, kv_heads, length, stride_q, stride_kv, scale,
    CAUSAL: tile.constexpr, APART: tile.constexpr, BLOCK_Q: tile.constexpr,
    BLOCK_K: tile.constexpr, D: tile.constexpr,
):  # fmt: skip
    q_shape, q_strides, q_block = [heads, length, D], [stride_q, D, 1], [1, BLOCK_Q, D]
    kv_shape, kv_strides, kv_block = [kv_heads, length, D], [stride_kv, D, 1], [1, BLOCK_K, D]
    all_queries = tile.make_tensor_descriptor(q, q_shape, q_strides, q_block)
    all_keys = tile.make_tensor_descriptor(k, kv_shape, kv_strides, kv_block)
    all_values = tile.make_tensor_descriptor(v, kv_shape, kv_strides, kv_block)
    result = tile.make_tensor_descriptor(out, q_shape, q_strides, q_block)
    blocks = tile.cdiv(length, BLOCK_Q)
    for work in range(tile.program_id(0), blocks * heads, tile.num_programs(0)):
        head = work // blocks
        first = (blocks - 1 - work % blocks) * BLOCK_Q
        kv_head = head // (heads // kv_heads)
        queries = all_queries.load([head, first, 0]).reshape((BLOCK_Q, D))
        best = tile.full((BLOCK_Q,), -float("inf"), tile.float32)
        total = tile.zeros((BLOCK_Q,), tile.float32)
        acc = tile.zeros((BLOCK_Q, D), tile.float32)
        rows = first + tile.arange(0, BLOCK_Q)
        end = tile.minimum(first + BLOCK_Q, length) if CAUSAL else length
        for start in tile.range(0, end, BLOCK_K, warp_specialize=APART):
            columns = start + tile.arange(0, BLOCK_K)
            seen = columns[None, :] < length
            if CAUSAL:
                seen = seen & (columns[None, :] <= rows[:, None])
            keys = all_keys.load([kv_head, start, 0]).reshape((BLOCK_K, D))
            scores = tile.where(seen, tile.dot(queries, tile.trans(keys)), -float("inf"))
            new_best = tile.maximum(best, tile.max(scores, axis=1))
            weights = tile.exp2((scores - new_best[:, None]) * scale)
            rescale = tile.exp2((best - new_best) * scale)
            total = total * rescale + tile.sum(weights, axis=1)
            values = all_values.load([kv_head, start, 0]).reshape((BLOCK_K, D))
            acc = tile.dot(weights.to(v.dtype.element_ty), values, acc * rescale[:, None])
            best = new_best
        result.store([head, first, 0], (acc / total[:, None]).reshape((1, BLOCK_Q, D)))


@pytest.mark.parametrize("mode", ["eager", "lazy"])
@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_attention_over_tiles(causal: bool, apart: bool, mode: Any) -> None:
    heads, length, d = 4, 200, 64
    q = ordinary(tile.bfloat16, heads * length * d, 1).reshape(heads, length, d)
    k, v = (
        ordinary(tile.bfloat16, heads // 2 * length * d, seed).reshape(-1, length, d)
        for seed in (2, 3)
    )
    out = np.full_like(q, np.nan)
    strides = (length * d, length * d)
    with tile.device("emulate:sm_90a", mode=mode):
        attention_over_tiles[3,](
            q, k, v, out, heads, heads // 2, length, *strides, math.log2(math.e) / math.sqrt(d),
            CAUSAL=causal, APART=apart, BLOCK_Q=128, BLOCK_K=64, D=d, num_warps=8, num_stages=2,
        )  # fmt: skip
    want = reference(q, k, v, causal)
    assert np.linalg.norm(out.astype(np.float64) - want) < 1e-2 * np.linalg.norm(want)


@pytest.fixture(scope="module")
def apart() -> str:
    types = {
        **dict.fromkeys(("q", "k", "v", "out"), "*bf16:16"),
        **dict.fromkeys(("heads", "kv_heads", "length"), "i32"),
        **dict.fromkeys(("stride_q", "stride_kv"), "i32:16"),
        "scale": "fp32",
    }
    constants = {"CAUSAL": True, "APART": True, "BLOCK_Q": 128, "BLOCK_K": 128, "D": 128}
    made = tile.compile(attention_over_tiles, types, constants, target="sm_90a", num_warps=8)
    assert made.resources.spills == 0
    return str(made.asm["ptx"])


def test_the_producer_leaves_its_registers_to_those_that_compute(apart: str) -> None:
    assert ".reqntid 384" in apart
    assert apart.index("setmaxnreg.dec.sync.aligned.u32 40;") < apart.index("setmaxnreg.inc")
    assert "setmaxnreg.inc.sync.aligned.u32 232;" in apart


def test_keys_values_and_queries_have_a_warp_each(apart: str) -> None:
    producer = apart[: apart.index("setmaxnreg.inc")]
    for warp in (8, 9, 10):
        assert f", {warp};" in producer
    # Each box is 128 wide, twice the swizzle, and no other thread copies.
    assert producer.count("cp.async.bulk.tensor.3d") == apart.count(
        "cp.async.bulk.tensor.3d.shared"
    )


def test_queries_come_a_tile_early_where_two_slots_fit(apart: str) -> None:
    # Barriers, full and empty, of two slots each for keys, values and queries.
    assert apart.count("mbarrier.init.shared") == 12
