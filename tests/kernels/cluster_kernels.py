"""A product, and what else makes it hard for several blocks to run a program."""

from __future__ import annotations

import tiledsl as tile


@tile.jit
def doubtful(a, b, c, total, CASE: tile.constexpr):
    i, k = tile.arange(0, 128), tile.arange(0, 64)
    x = tile.load(a + i[:, None] * 64 + k)
    y = tile.load(b + k[:, None] * 128 + i)
    acc = tile.dot(x, y)
    if CASE == "column sums":
        tile.store(total + i, tile.sum(acc, 0))
    if CASE == "sum":
        tile.store(total, tile.sum(acc))
    if CASE == "ticket":
        number = tile.atomic_add(total, 1)
        acc += number.to(tile.float32)
    if CASE == "lock":
        tile.atomic_cas(total, 0, 1)
    if CASE == "flag":
        acc += tile.load(total, volatile=True)
    tile.store(c + i[:, None] * 128 + i, acc)
