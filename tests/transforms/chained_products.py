"""Loops of two products, where one may need the other's result."""

# Kernels are traced, not typed.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

from typing import Any

import tiledsl as tile

TYPES_OF_CHAINED = {**dict.fromkeys("abc", "*fp16:16"), "out": "*fp32:16", "N": "i32"}
TYPES_IN_TF32 = {**dict.fromkeys("abdc", "*fp32:16"), **dict.fromkeys("MNPK", "i32:16")}


@tile.jit
def chained(
    a: Any, b: Any, c: Any, out: Any, N: Any, MODE: tile.constexpr, BLOCK: tile.constexpr
) -> None:
    left = tile.make_tensor_descriptor(a, [BLOCK, BLOCK], [BLOCK, 1], [BLOCK, BLOCK])
    right = tile.make_tensor_descriptor(b, [N, BLOCK], [BLOCK, 1], [BLOCK, BLOCK])
    third = tile.make_tensor_descriptor(c, [N, BLOCK], [BLOCK, 1], [BLOCK, BLOCK])
    x = left.load([0, 0])
    acc = tile.zeros((BLOCK, BLOCK), tile.float32)
    offsets = tile.arange(0, BLOCK)
    tiles = out + offsets[:, None] * BLOCK + offsets[None, :]
    for start in range(0, N, BLOCK):
        scores = tile.dot(x, tile.trans(right.load([start, 0])))
        values = third.load([start, 0])
        if MODE == "independent":
            acc = tile.dot(x, values, acc)
            acc += scores
        elif MODE == "used":
            acc = tile.dot(scores.to(tile.float16), values, acc)
            acc = tile.exp2(acc)
        else:
            acc = tile.dot(scores.to(tile.float16), values, acc)
        if MODE == "stores":
            tile.store(tiles, scores)
    tile.store(tiles, acc)


@tile.jit
def chained_in_tf32(a, b, d, c, M, N, P, K):
    """Sum (a[:, k] @ b[:, k].T) @ d.T over blocks k of K."""
    left = tile.make_tensor_descriptor(a, [M, K], [K, 1], [64, 32])
    right = tile.make_tensor_descriptor(b, [P, K], [K, 1], [32, 32])
    last = tile.make_tensor_descriptor(d, [N, P], [P, 1], [64, 32])
    acc = tile.zeros((64, 64), tile.float32)
    for k in tile.range(0, K, 32):
        s = tile.dot(left.load([0, k]), tile.trans(right.load([0, k])), input_precision="tf32")
        y = tile.trans(last.load([0, 0]))
        acc = tile.dot(s, y, acc, input_precision="tf32")
    out = tile.make_tensor_descriptor(c, [M, N], [N, 1], [64, 64])
    out.store([0, 0], acc)
