"""Loads and stores: masks, `other`, strides, every type; what is masked off is never touched."""

import numpy as np
import pytest

import tiledsl as tile
from tests.kernels.oracle import (
    ALL,
    GUARD,
    bits_of,
    check,
    is_poison,
    poisoned,
    sample,
    whole,
)
from tests.kernels.selection import Lengths
from tiledsl.dtypes import DType


@tile.jit
def copy(x, out, n, BLOCK: tile.constexpr):
    i = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
    tile.store(out + i, tile.load(x + i, mask=i < n), mask=i < n)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_copies_of_ragged_arrays(warps: int, lengths: Lengths, dtype: DType) -> None:
    for n in lengths(dtype):
        x, out = sample(dtype, n, n), poisoned(n, dtype)
        copy[tile.cdiv(n, 256),](x, out, n, BLOCK=256, num_warps=warps)
        check(out, x, f"{n} {dtype}")


@pytest.mark.parametrize("dtype", [tile.int8, tile.float16, tile.float32, tile.int64], ids=str)
def test_copies_from_and_to_unaligned_addresses(warps: int, dtype: DType) -> None:
    base = sample(dtype, 600, 1)
    for shift in (1, 3):
        for to in (0, 2):
            out = poisoned(500, dtype)
            copy[2,](base[shift:], out[to:], 400, BLOCK=256, num_warps=warps)
            assert is_poison(out[:to])
            assert is_poison(out[to + 400 :])
            assert (bits_of(out[to : to + 400]) == bits_of(base[shift : shift + 400])).all()


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_other_fills_what_the_mask_leaves(warps: int, dtype: DType) -> None:
    @tile.jit
    def kernel(x, fill, zero_out, fill_out, scalar_out, n, BLOCK: tile.constexpr):
        i = tile.arange(0, BLOCK)
        tile.store(zero_out + i, tile.load(x + i, mask=i < n))
        filled = tile.load(x + i, mask=i < n, other=tile.load(fill + i))
        tile.store(fill_out + i, filled)
        tile.store(scalar_out + i, tile.load(x + i, mask=i % 3 == 0, other=1))

    x, fill = sample(dtype, 256, 2), sample(dtype, 256, 3)
    outs = [poisoned(256, dtype) for _ in range(3)]
    kernel[1,](x, fill, *outs, 100, BLOCK=256, num_warps=warps)
    i = np.arange(256)
    check(outs[0], np.where(i < 100, x, np.zeros_like(x)), "without other")
    check(outs[1], np.where(i < 100, x, fill), "a tile")
    check(outs[2], np.where(i % 3 == 0, x, np.ones_like(x)), "a number")


def test_masked_lanes_touch_nothing(warps: int) -> None:
    @tile.jit
    def kernel(x, out, n, BLOCK: tile.constexpr):
        i = tile.arange(0, BLOCK)
        # Far outside any array where the mask is false.
        far = i.to(tile.int64) * 1_000_000_000_000
        value = tile.load(x + tile.where(i < n, i, far), mask=i < n, other=-1)
        tile.store(out + i, value)
        tile.store(out + tile.where(i < n, i, far), value * 2, mask=i < n)

    x = whole(tile.int32, 100, 4, 1000)
    out = poisoned(128, tile.int32)
    kernel[1,](x, out, 100, BLOCK=128, num_warps=warps)
    check(out, np.append(x * 2, np.full(28, -1, np.int32)), "far")


def test_two_dimensional_tiles_with_any_strides(warps: int) -> None:
    @tile.jit
    def kernel(x, out, rows, columns, xr, xc, outr, outc, R: tile.constexpr, C: tile.constexpr):
        r = tile.program_id(0) * R + tile.arange(0, R)[:, None]
        c = tile.program_id(1) * C + tile.arange(0, C)[None, :]
        mask = (r < rows) & (c < columns)
        tile.store(out + r * outr + c * outc, tile.load(x + r * xr + c * xc, mask=mask), mask=mask)

    base = np.arange(64 * 80, dtype=np.float32).reshape(64, 80)
    views = [
        base[:50, :33], base[:33, :50].T, base[::2, 3:40], base[5:40:3, 1::4], base[::-1, ::-2],
        base[:1, :], base[:, 7:8], np.broadcast_to(base[0], (20, 80)),
    ]  # fmt: skip
    for view in views:
        for out in (
            np.full(view.shape, -1, np.float32),
            np.full(view.shape[::-1], -1, np.float32).T,
        ):
            grid = tile.cdiv(view.shape[0], 16), tile.cdiv(view.shape[1], 32)
            steps = [s // 4 for s in (*view.strides, *out.strides)]
            kernel[grid](view, out, *view.shape, *steps, R=16, C=32, num_warps=warps)
            np.testing.assert_array_equal(out, view)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_scalar_loads_and_stores(warps: int, dtype: DType) -> None:
    @tile.jit
    def kernel(x, out, n):
        pid = tile.program_id(0)
        value = tile.load(x + pid)
        tile.store(out + pid, value)
        tile.store(out + n + pid, tile.load(x + pid, mask=pid < 2, other=1))
        tile.store(out + 2 * n + pid, value, mask=pid != 3)

    x, out = sample(dtype, 5, 5), poisoned(15, dtype)
    kernel[5,](x, out, 5, num_warps=warps)
    assert is_poison(out[13:14])
    out[13] = x[3]
    ones = np.ones_like(x)
    check(out, np.concatenate([x, x[:2], ones[2:], x]), f"{dtype}")


def test_gathers_and_scatters(warps: int) -> None:
    @tile.jit
    def kernel(x, index, out, back, N: tile.constexpr):
        i = tile.arange(0, N)
        at = tile.load(index + i)
        tile.store(out + i, tile.load(x + at))
        tile.store(back + at, tile.load(x + i))

    index = np.random.default_rng(6).permutation(512)
    for dtype in (np.int32, np.int64, np.uint16):
        x = whole(tile.float32, 512, 6, 1000)
        out, back = poisoned(512, tile.float32), poisoned(512, tile.float32)
        kernel[1,](x, index.astype(dtype), out, back, N=512, num_warps=warps)
        check(out, x[index], "gather")
        expected = np.empty_like(x)
        expected[index] = x
        check(back, expected, "scatter")


def test_offsets_wider_than_32_bits_do_not_wrap(place: str) -> None:
    @tile.jit
    def kernel(x, out, far, N: tile.constexpr):
        i = tile.arange(0, N).to(tile.int64) + far
        tile.store(out + tile.arange(0, N), tile.load(x + (i - far)))
        tile.store(out + N + tile.arange(0, N), tile.load((x + i) - far))

    x = np.arange(16, dtype=np.int32)
    out = poisoned(32, tile.int32)
    kernel[1,](x, out, 3_000_000_000, N=16)
    check(out, np.append(x, x), "far")


def test_pointers_of_any_integer_offset_type(place: str) -> None:
    @tile.jit
    def kernel(x, offset, out):
        tile.store(out, tile.load(x + 128 + tile.load(offset)))
        tile.store(out + 1, tile.load(x + 128 - tile.load(offset)))

    x = np.arange(400, dtype=np.int32)
    for dtype, value in (
        (np.int8, -128), (np.uint8, 128), (np.int16, -100), (np.uint16, 128), (np.uint32, 5), (np.int64, -7),
        (np.uint64, 9), (np.int32, 3),
    ):  # fmt: skip
        out = poisoned(2, tile.int32)
        kernel[1,](x, np.array([value], dtype), out)
        check(out, np.array([128 + value, 128 - value], np.int32), f"{dtype}")


def test_pointer_casts_differences_and_comparisons(place: str) -> None:
    @tile.jit
    def kernel(x, out):
        words = x.to(tile.pointer_type(tile.uint16))
        tile.store(out, tile.load(words + 3).to(tile.int32))
        tile.store(out + 1, ((x + 7) - x).to(tile.int32))
        tile.store(out + 2, 1 if x + 1 > x else 0)
        tile.store(out + 3, 1 if x == 0 else 0)

    x = np.array([0, 0x12345678], np.int32)
    out = poisoned(4, tile.int32)
    kernel[1,](x, out)
    check(out, np.array([0x1234, 7, 1, 0], np.int32), "pointers")


def test_tables_of_pointers(place: str) -> None:
    @tile.jit
    def kernel(table, sizes, out, BLOCK: tile.constexpr):
        pid, i = tile.program_id(0), tile.arange(0, BLOCK)
        x = tile.load(table + pid).to(tile.pointer_type(tile.float32))
        value = tile.load(x + i, mask=i < tile.load(sizes + pid), other=0.0)
        tile.store(out + pid, tile.sum(value, 0))

    if place != "host":
        pytest.skip("addresses of host arrays mean nothing on the device")
    arrays = [np.arange(n, dtype=np.float32) for n in (3, 10, 1)]
    table = np.array([a.ctypes.data for a in arrays], np.int64)
    out = poisoned(3, tile.float32)
    kernel[3,](table, np.array([3, 10, 1], np.int32), out, BLOCK=16)
    check(out, np.array([a.sum() for a in arrays], np.float32), "table")


def test_hints_and_cache_modifiers_change_no_value(warps: int) -> None:
    @tile.jit
    def kernel(x, out, n, BLOCK: tile.constexpr):
        i = tile.arange(0, BLOCK)
        n = tile.multiple_of(n, 8)
        tile.assume(n > 0)
        at = tile.max_contiguous(tile.multiple_of(i, BLOCK), BLOCK)
        a = tile.load(x + at, mask=i < n, cache_modifier=".cg", eviction_policy="evict_first")
        b = tile.load(x + at, mask=i < n, cache_modifier=".ca", eviction_policy="evict_last")
        c = tile.load(x + at, mask=i < n, volatile=True)
        tile.store(out + i, a + b + c, mask=i < n, cache_modifier=".wb")

    x, out = whole(tile.int32, 200, 7, 1000), poisoned(200, tile.int32)
    kernel[1,](x, out, 200, BLOCK=256, num_warps=warps)
    check(out, 3 * x, "hints")


def test_bytes_that_are_not_zero_are_true(place: str) -> None:
    @tile.jit
    def kernel(x, out, N: tile.constexpr):
        i = tile.arange(0, N)
        value = tile.load(x + i)
        tile.store(out + i, value)
        tile.store(out + N + i, ~value)

    raw = np.array([0, 1, 2, 255, 128, 0, 7, 1], np.uint8)
    out = poisoned(16, tile.bool_)
    kernel[1,](raw.view(np.bool_), out, N=8)
    truth = raw != 0
    assert bits_of(out[:8]).tolist() == truth.astype(int).tolist()
    assert bits_of(out[8:16]).tolist() == (~truth).astype(int).tolist()


def test_grids_of_three_dimensions(place: str) -> None:
    @tile.jit
    def kernel(out):
        x, y, z = tile.program_id(0), tile.program_id(1), tile.program_id(2)
        nx, ny, nz = (tile.num_programs(axis) for axis in range(3))
        at = (z * ny + y) * nx + x
        tile.store(out + at, x + 10 * y + 100 * z + 1000 * nx + 10000 * ny + 100000 * nz)

    for grid in ((5,), (3, 4), (2, 3, 4), (1, 1, 7)):
        sizes = (*grid, 1, 1)[:3]
        out = poisoned(int(np.prod(sizes)), tile.int32)
        kernel[grid](out)
        z, y, x = np.indices(sizes[::-1])
        total = x + 10 * y + 100 * z + 1000 * sizes[0] + 10000 * sizes[1] + 100000 * sizes[2]
        check(out, total.astype(np.int32), f"{grid}")


def test_swizzled_programs_take_every_block_once(place: str) -> None:
    @tile.jit
    def kernel(out, rows, columns, GROUP: tile.constexpr):
        i, j = tile.swizzle2d(tile.program_id(0), tile.program_id(1), rows, columns, GROUP)
        number = tile.program_id(0) * columns + tile.program_id(1)
        tile.store(out + i * columns + j, number)

    out = poisoned(16, tile.int32)
    kernel[4, 4](out, 4, 4, GROUP=2)
    expected = [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]
    check(out, np.array(expected, np.int32), "groups of two rows")
    out = poisoned(35, tile.int32)
    kernel[5, 7](out, 5, 7, GROUP=3)
    assert sorted(out[:35].tolist()) == list(range(35))


def test_an_empty_grid_launches_nothing(place: str) -> None:
    out = poisoned(8, tile.int32)
    assert copy[(0,)](np.zeros(8, np.int32), out, 8, BLOCK=8) is None
    assert is_poison(out)
    assert out.size == 8 + GUARD


def test_a_grid_may_be_a_function_of_the_constants(place: str) -> None:
    x, out = whole(tile.int32, 1000, 8, 100), poisoned(1000, tile.int32)
    copy[lambda meta: (tile.cdiv(meta["n"], meta["BLOCK"]),)](x, out, 1000, BLOCK=128)
    check(out, x, "callable grid")
