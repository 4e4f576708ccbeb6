"""Products in two halves along k give the same sums, and only where registers are short."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from mlir import ir

from tests.transforms.tile_interpreter import Machine, Memory
from tests.transforms.tile_kernels import Kernel
from tiledsl.dialects import tile
from tiledsl.dialects.contracts import TILE, check, operations
from tiledsl.dialects.types import shape_of, tile_type
from tiledsl.transforms.split_depth import split_depth
from tiledsl.transforms.tile_registers import OTHERS

M, N, K = 16, 16, 64
Change = Literal["", "computed", "shared", "carried", "hinted"]


def product(change: Change = "") -> ir.Module:
    """Build c = a @ b, over depths that need not be a multiple of K.

    Args:
        change: What keeps the product whole: the left operand is "computed", or "shared" with
            another op, or its pointers are "carried" by the loop or "hinted" to be aligned.
    """
    k = Kernel("*f32", "*f32", "*f32", "i32", "i32")
    pa, pb, pc, trips, depth = k.args
    i32 = k.type("i32")
    rows = k.pointers(pa, M, K, stride=depth)

    def body(trip: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
        first = k.op("arith.muli", trip, k.constant(K, i32))
        here = k.op("arith.addi", k.splat(first, K), k.range(K))
        inside = k.cmp(here, k.splat(depth, K))
        moved = k.broadcast(k.expand(here, 0), M, K)
        skipped = k.op("arith.muli", k.range(M), k.splat(depth, M))
        lines = k.addptr(k.splat(pa, M, 1), k.expand(skipped, 1))
        left = k.addptr(k.broadcast(lines, M, K), moved)
        if change == "carried":
            left = carried[1]
        if change == "hinted":
            with k.here():
                left = tile.HintOp.build(left, results=[left.type], divisibility=[1, K]).output
        down = k.op("arith.muli", here, k.constant(N, here.type))
        place = k.op(
            "arith.addi",
            k.broadcast(k.expand(down, 1), K, N),
            k.broadcast(k.expand(k.range(N), 0), K, N),
        )
        right = k.addptr(k.splat(pb, K, N), place)
        x = k.load(left, k.broadcast(k.expand(inside, 0), M, K))
        y = k.load(right, k.broadcast(k.expand(inside, 1), K, N))
        twice = k.op("arith.addf", x, x) if change in ("computed", "shared") else x
        total = k.dot(twice if change == "computed" else x, y, carried[0])
        return [total, carried[1]]

    none = k.constant(0, tile_type((M, N), k.type("f32")))
    total = k.loop(trips, [none, rows], body)[0]
    k.store(k.pointers(pc, M, N), total)
    return k.finish()


HELD = (M * K + K * N + M * N) // 32
"""Registers of one warp's threads for sums and operands."""


def split(change: Change = "", registers: int = HELD + OTHERS, stages: int = 2) -> ir.Module:
    module = product(change)
    with module.context:
        split_depth(module, threads=32, max_registers=registers, stages=stages)
    check(module, TILE)
    return module


def shapes(module: ir.Module) -> list[tuple[int, ...]]:
    """Give the shape of each product's left operand."""
    dots = [op for op in operations(module.operation) if isinstance(op, tile.DotOp)]
    return [shape_of(dot.a.type) for dot in dots]


def test_a_product_is_split_where_tiles_fill_the_registers() -> None:
    module = split()
    assert shapes(module) == [(M, K // 2)] * 2
    loads = [op for op in operations(module.operation) if isinstance(op, tile.LoadOp)]
    assert [shape_of(load.result.type) for load in loads] == [(M, K // 2)] * 2 + [(K // 2, N)] * 2


@pytest.mark.parametrize(
    ("change", "registers", "stages"),
    [
        ("", HELD + OTHERS + 1, 2),
        ("", OTHERS, 1),
        ("computed", OTHERS, 2),
        ("shared", OTHERS, 2),
        ("carried", OTHERS, 2),
        ("hinted", OTHERS, 2),
    ],
)
def test_other_products_stay_whole(change: Change, registers: int, stages: int) -> None:
    assert shapes(split(change, registers, stages)) == [(M, K)]


@pytest.mark.parametrize("depth", [K // 4, K, 5 * K // 2])
def test_halves_add_up_to_the_whole(depth: int) -> None:
    rng = np.random.default_rng(depth)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((M, depth), (depth, N)))
    memory = Memory([a, b, np.zeros((M, N), np.float32)])
    numbers = (np.array(number, np.int32) for number in (-(-depth // K), depth))
    Machine(memory).run(split(), *map(memory.pointer, range(3)), *numbers)
    np.testing.assert_array_equal(memory.arrays[2], a @ b)
