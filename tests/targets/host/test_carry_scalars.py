"""Tiles that step by a number are carried as that number."""

# Kernels are built by small lambdas, whose parameters nothing types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false

from __future__ import annotations

import numpy as np

from tiledsl.dialects.context import context
from tiledsl.dialects.contracts import TILE
from tiledsl.targets.host.carry_scalars import carry_scalars
from tiledsl.transforms import run

from .kernels import Kernel, Tile


def stepping() -> Kernel:
    """Add up columns of x, stepping pointers, and an index tile by a runtime amount."""
    k = Kernel("*i32", "*i32", "i32", "i32")
    x, out, n, width = k.args
    i = k.range(16)

    def body(step: Tile, pointers: Tile, index: Tile, total: Tile) -> tuple[Tile, Tile, Tile]:
        return pointers + width, 3 + index, total + k.load(pointers) + index

    start = [x + i, i, k.full((16,), 0, "i32")]
    pointers, index, total = k.loop(0, n, 1, start, body)
    k.store(out + i, total)
    k.store(out + i + 16, index)
    k.store(out + i + 32, k.load(pointers))
    return k


def expected(data: np.ndarray, trips: int) -> np.ndarray:
    index = np.arange(16)
    total = np.zeros(16, np.int32)
    for trip in range(trips):
        total += data[trip] + index + 3 * trip
    return np.concatenate([total, index + 3 * trips, data[trips]])


def test_stepping_tiles_give_what_they_gave() -> None:
    k = stepping()
    data = np.random.default_rng(0).integers(0, 100, (8, 16)).astype(np.int32)
    for trips in (0, 1, 5):
        found = np.zeros(48, np.int32)
        k.run(1, data, found, trips, 16)
        assert (found == expected(data, trips)).all()


def test_only_the_total_is_still_a_tile() -> None:
    k = stepping()
    k.finish()
    run.run(k.module, [run.Step(carry_scalars, TILE)])
    (loop,) = [line for line in str(k.module).splitlines() if "scf.for" in line]
    assert "(i64, i32, tensor<16xi32>)" in loop


def test_a_tile_that_moves_by_different_numbers_stays() -> None:
    k = Kernel("*i32", "i32")
    x, n = k.args
    i = k.range(16)
    (last,) = k.loop(0, n, 1, [i], lambda step, index: index + i)
    k.store(x + last, 1)
    k.finish()
    with context():
        before = str(k.module)
        carry_scalars(k.module)
        assert str(k.module) == before
