"""A kernel that computes tile after tile, in cases that a pipeline over tiles must tell apart."""

from __future__ import annotations

import tiledsl as tile


@tile.jit
def nest(
    a, b, c, table, N, K,
    BM: tile.constexpr, BN: tile.constexpr, CASE: tile.constexpr, LIST: tile.constexpr,
    WS: tile.constexpr,
):  # fmt: skip
    left = tile.make_tensor_descriptor(a, [N, K], [K, 1], [BM, 64])
    right = tile.make_tensor_descriptor(b, [N, K], [K, 1], [BN, 64])
    found = 0
    loop = tile.range(tile.program_id(0), N // BM, tile.num_programs(0), warp_specialize=WS)
    for number in loop:
        m = tile.load(table + number) * BM if LIST else number * BM
        if CASE == "barrier":
            tile.debug_barrier()
        if CASE == "acquire":
            tile.atomic_add(table + N, 1, sem="acquire")
        if CASE == "list is written":
            tile.store(table + number, 0)
        if CASE == "found by products":
            m += found * BM
        acc = tile.zeros((BM, BN), tile.float32)
        for k in range(0, K, 64):
            acc = tile.dot(left.load([m, k]), right.load([0, k]).T, acc)
        if CASE == "two":
            for k in range(0, K, 64):
                acc = tile.dot(left.load([m, k]), right.load([BN, k]).T, acc)
        found = (tile.max(acc) > 0).to(tile.int32)
        rows = m + tile.arange(0, BM)[:, None]
        tile.store(c + rows * BN + tile.arange(0, BN), acc)
