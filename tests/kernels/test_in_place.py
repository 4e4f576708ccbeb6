"""One array as several arguments: what a kernel reads and writes through them is in program order.

Kernels that read one array and write another are called with one for both: activations, norms and
embeddings in place. Where a tile has fewer elements than a program has threads, or is written in
another order than it was read, threads write what others read.
"""

# Kernels are traced, not typed.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false

from typing import Any, NamedTuple

import numpy as np
import pytest

import tiledsl as tile
from tests.kernels.oracle import check, sample, whole


@tile.jit
def relu(x, out, n, BLOCK: tile.constexpr):
    i = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
    tile.store(out + i, tile.maximum(tile.load(x + i, mask=i < n), 0), mask=i < n)


@tile.jit
def softmax(x, out, columns, BLOCK: tile.constexpr):
    i = tile.arange(0, BLOCK)
    at = tile.program_id(0) * columns + i
    value = tile.load(x + at, mask=i < columns, other=-float("inf"))
    e = tile.exp(value - tile.max(value, axis=0))
    tile.store(out + at, e / tile.sum(e, axis=0), mask=i < columns)


@tile.jit
def turn(x, out, BLOCK: tile.constexpr):
    i = tile.arange(0, BLOCK)
    tile.store(out + (BLOCK - 1 - i), tile.load(x + i))


@tile.jit
def double_on(x, out, rows, BLOCK: tile.constexpr):
    """Write each row's double to the row behind it: of one array, powers of two times the first."""
    i = tile.arange(0, BLOCK)
    for row in range(rows):
        tile.store(out + (row + 1) * BLOCK + i, tile.load(x + row * BLOCK + i) * 2)


@pytest.mark.parametrize("size", [16, 128, 1024])
def test_elementwise_in_place(warps: int, size: int) -> None:
    x = sample(tile.float32, 300, 1)
    x[np.isnan(x)] = -1
    wanted = np.maximum(x, 0)
    relu[tile.cdiv(300, size),](x, x, 300, BLOCK=size, num_warps=warps)
    check(x, wanted, str(size))


@pytest.mark.parametrize("columns", [20, 100, 300])
def test_softmax_in_place(warps: int, columns: int) -> None:
    x = np.random.default_rng(0).standard_normal((3, columns), dtype=np.float32)
    e = np.exp(x - x.max(axis=1, keepdims=True))
    block = tile.next_power_of_2(columns)
    softmax[3,](x, x, columns, BLOCK=block, num_warps=warps)
    np.testing.assert_allclose(x, e / e.sum(axis=1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("size", [32, 256, 1024])
def test_written_in_another_order_than_read(warps: int, size: int) -> None:
    x = whole(tile.int32, size, 2, 1000)
    wanted = x[::-1].copy()
    turn[1,](x, x, BLOCK=size, num_warps=warps)
    check(x, wanted, str(size))


@pytest.mark.parametrize("stages", [1, 3])
def test_each_trip_of_a_loop_reads_what_the_one_before_wrote(warps: int, stages: int) -> None:
    x = whole(tile.int32, 6 * 64, 3, 100)
    wanted = x.copy()
    for row in range(5):
        wanted[64 * (row + 1) : 64 * (row + 2)] = 2 * wanted[64 * row : 64 * (row + 1)]
    double_on[1,](x, x, 5, BLOCK=64, num_warps=warps, num_stages=stages)
    check(x, wanted, "rows")


@pytest.mark.parametrize("stages", [1, 3])
def test_products_of_what_the_trip_before_wrote(warps: int, stages: int) -> None:
    @tile.jit
    def kernel(x, factor, out, rounds):
        factor_tile = factor.load([0, 0])
        for n in range(rounds):
            product = tile.dot(x.load([16 * n, 0]), factor_tile)
            out.store([16 * (n + 1), 0], product.to(out.dtype))

    x = np.zeros((64, 16), np.float16)
    x[:16] = np.random.default_rng(1).integers(-2, 3, (16, 16))
    factor = np.eye(16, dtype=np.float16)[::-1].copy() * 2
    wanted = x.copy()
    for n in range(3):
        wanted[16 * (n + 1) : 16 * (n + 2)] = wanted[16 * n : 16 * (n + 1)] @ factor
    one, other, third = (tile.TensorDescriptor(a, (16, 16)) for a in (x, factor, x))
    kernel[1,](one, other, third, 3, num_warps=warps, num_stages=stages)
    np.testing.assert_array_equal(x, wanted)


def test_a_choice_by_what_is_overwritten(warps: int) -> None:
    @tile.jit
    def kernel(x, out):
        value = tile.load(x)
        if value > 0:
            tile.store(out, value - 1)
            tile.store(out + 1, tile.sum(tile.load(x + tile.arange(0, 64))))

    x = np.arange(64, dtype=np.int32)
    x[0] = 5
    kernel[1,](x, x, num_warps=warps)
    assert (x[0], x[1]) == (4, 4 + sum(range(1, 64)))


def test_one_array_as_two_types(warps: int) -> None:
    @tile.jit
    def kernel(bits, values, BLOCK: tile.constexpr):
        i = tile.arange(0, BLOCK)
        tile.store(bits + i, tile.load(bits + i) ^ -0x80000000)
        tile.store(values + (BLOCK - 1 - i), tile.load(values + i) * 2)

    x = np.random.default_rng(2).standard_normal(64, dtype=np.float32)
    wanted = x[::-1] * -2
    kernel[1,](x.view(np.int32), x, BLOCK=64, num_warps=warps)
    check(x, wanted, "bits")


def test_arrays_in_tuples(warps: int) -> None:
    class Pair(NamedTuple):
        x: Any
        n: int

    @tile.jit
    def kernel(read, written, BLOCK: tile.constexpr):
        i = tile.arange(0, BLOCK)
        tile.store(written[0] + (read.n - 1 - i), tile.load(read.x + i))

    x = np.arange(32, dtype=np.int32)
    kernel[1,](Pair(x, 32), (x,), BLOCK=32, num_warps=warps)
    check(x, np.arange(32, dtype=np.int32)[::-1], "turned")


def test_a_kernel_compiled_for_arrays_apart_is_not_taken_for_one() -> None:
    x, out = np.arange(32, dtype=np.int32), np.zeros(32, np.int32)
    for _ in range(2):
        turn[1,](x, out, BLOCK=32)
        check(out, x[::-1], "apart")
        turn[1,](out, out, BLOCK=32)
        check(out, x, "together")
