"""Faults that users of other kernel languages met: masks, widths, strides, aliasing, atomics."""

import numpy as np
import pytest

import tiledsl as tile
from tests.kernels.oracle import (
    FP8,
    bits_of,
    cast,
    check,
    is_poison,
    poisoned,
    sample,
    whole,
)


@pytest.mark.parametrize("dtype", [tile.int8, tile.float16, tile.int32, tile.int64], ids=str)
def test_vectors_are_no_wider_than_the_mask_is_even(warps: int, dtype: tile.DType) -> None:  # K001
    @tile.jit
    def kernel(out, n, BLOCK: tile.constexpr):
        i = tile.arange(0, BLOCK)
        tile.store(out + i, i, mask=i < n)

    expected = cast(np.arange(256), dtype)
    for n in (256, *range(255, 0, -1)):
        out = np.full(272, 77, dtype.numpy)
        kernel[1,](out, n, BLOCK=256, num_warps=warps)
        np.testing.assert_array_equal(out[:n], expected[:n])
        assert (out[n:] == 77).all(), n


@pytest.mark.parametrize("stride", [1184, 1185, 1186, 1188])
def test_the_row_stride_limits_the_width(warps: int, stride: int) -> None:  # K002
    @tile.jit
    def kernel(x, out, n, columns, stride, BLOCK: tile.constexpr):
        i = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
        row, column = i // columns, i % columns
        value = tile.load(x + i, mask=i < n)
        tile.store(out + row * stride + column, value, mask=i < n)

    x = np.random.default_rng(0).standard_normal((64, 1184), dtype=np.float32)
    out = np.full((64, stride), -7, np.float32)
    kernel[tile.cdiv(x.size, 1024),](x, out, x.size, 1184, stride, BLOCK=1024, num_warps=warps)
    np.testing.assert_array_equal(out[:, :1184], x)
    assert (out[:, 1184:] == -7).all()


@pytest.mark.parametrize("dtype", [tile.float32, tile.float16, tile.int8], ids=str)
def test_descending_runs_are_not_read_forwards(warps: int, dtype: tile.DType) -> None:  # K004
    @tile.jit
    def kernel(x, gathered, scattered, n, N: tile.constexpr):
        i = tile.arange(0, N)
        mask = i < n
        tile.store(gathered + i, tile.load(x + N - 1 - i, mask=mask), mask=mask)
        tile.store(scattered + N - 1 - i, tile.load(x + i, mask=mask), mask=mask)

    x = sample(dtype, 1024, 1)
    for n in (1024, 1000):
        gathered, scattered = poisoned(1024, dtype), poisoned(1024, dtype)
        kernel[1,](x, gathered, scattered, n, N=1024, num_warps=warps)
        assert (bits_of(gathered[:n]) == bits_of(x[::-1][:n])).all()
        assert is_poison(gathered[n:])
        assert (bits_of(scattered[1024 - n : 1024]) == bits_of(x[:n][::-1])).all()
        assert is_poison(scattered[: 1024 - n])


def test_offsets_beyond_32_bits_are_not_wrapped(place: str) -> None:  # K071
    @tile.jit
    def probe(out, rows, columns):
        tile.store(out, rows.to(tile.int64) * columns)
        tile.store(out + 1, tile.load(out + 5 - tile.full((), 5, tile.int64)))

    out = poisoned(2, tile.int64)
    probe[1,](out, 319, 7864320)
    check(out, np.array([2508718080, 2508718080]), "no wrap")


def test_a_buffer_of_more_than_2_gib(place: str) -> None:  # K071
    @tile.jit
    def touch(x, out, BLOCK: tile.constexpr):
        at = tile.program_id(0).to(tile.int64) * (2**31 - 2048) + tile.arange(0, BLOCK)
        tile.store(x + at, (at % 251).to(tile.uint8))
        tile.store(out + tile.program_id(0) * BLOCK + tile.arange(0, BLOCK), tile.load(x + at))

    if place != "host":
        pytest.skip("copying 2 GiB to the device and back takes too long; the probe covers it")
    x = np.empty(2**31 + 4096, np.uint8)  # only the touched pages become real
    x[[0, 4095, 2**31 - 2048, -1]] = 255
    out = poisoned(8192, tile.uint8)
    touch[2,](x, out, BLOCK=4096)
    at = np.concatenate([np.arange(4096), 2**31 - 2048 + np.arange(4096)])
    check(out, (at % 251).astype(np.uint8), "both sides of 2^31")
    assert x[2**31 - 1] == (2**31 - 1) % 251
    assert x[2**31 + 1000] == (2**31 + 1000) % 251


def test_a_kernel_sees_the_strides_of_the_array_it_got(place: str) -> None:  # K076
    @tile.jit
    def add(
        x, y, out, rows, columns, xr, xc, yr, yc, outr, outc, R: tile.constexpr, C: tile.constexpr
    ):
        r = tile.program_id(0) * R + tile.arange(0, R)[:, None]
        c = tile.program_id(1) * C + tile.arange(0, C)[None, :]
        mask = (r < rows) & (c < columns)
        total = tile.load(x + r * xr + c * xc, mask=mask) + tile.load(
            y + r * yr + c * yc, mask=mask
        )
        tile.store(out + r * outr + c * outc, total, mask=mask)

    base = np.random.default_rng(1).standard_normal((40, 40), dtype=np.float32)
    padded = np.zeros((33, 40), np.float32)
    padded[:, :33] = base[:33, :33]
    views = [
        base[:33, :33].copy(), base[:33, :33].copy().T, padded[:, :33], np.broadcast_to(base[0, :33], (33, 33)),
        base[32::-1, :33], base[:33, :1] * np.ones((1, 33), np.float32), base[:33, 33:0:-1],
    ]  # fmt: skip
    for i, x in enumerate(views):
        for y in views[i:] + views[:i]:
            out = np.full((33, 33), np.nan, np.float32)
            steps = [s // 4 for a in (x, y, out) for s in a.strides]
            add[3, 2](x, y, out, 33, 33, *steps, R=16, C=32)
            np.testing.assert_array_equal(out, x + y)


def test_views_are_changed_in_place_and_nothing_else(place: str) -> None:  # K077
    @tile.jit
    def increment(x, rows, columns, sr, sc, R: tile.constexpr, C: tile.constexpr):
        r, c = tile.arange(0, R)[:, None], tile.arange(0, C)[None, :]
        at = x + r * sr + c * sc
        mask = (r < rows) & (c < columns)
        tile.store(at, tile.load(at, mask=mask) + 1, mask=mask)

    for view in (lambda t: t[:, 4:8], lambda t: t[::2], lambda t: t.T, lambda t: t[1:3, ::-3]):
        base = np.arange(48, dtype=np.float32).reshape(4, 12)
        expected = base.copy()
        view(expected)[...] += 1
        part = view(base)
        increment[1,](part, *part.shape, *(s // 4 for s in part.strides), R=16, C=16)
        np.testing.assert_array_equal(base, expected)


@pytest.mark.parametrize("dtype", [*FP8, tile.bfloat16, tile.float32, tile.int32], ids=str)
def test_fill_values_are_honoured(warps: int, dtype: tile.DType) -> None:  # K079
    @tile.jit
    def kernel(x, line, grid, n, rows, columns, FILL: tile.constexpr, N: tile.constexpr):
        i = tile.arange(0, N)
        tile.store(line + i, tile.load(x + i, mask=i < n, other=FILL))
        r, c = tile.arange(0, 32)[:, None], tile.arange(0, 32)[None, :]
        value = tile.load(x + r * columns + c, mask=(r < rows) & (c < columns), other=FILL)
        tile.store(grid + r * 32 + c, value)

    x = whole(dtype, 1024, 2, 2)
    fills = [0, -3, 2] + ([float("nan"), -float("inf"), 0.1] if dtype.is_floating() else [])
    for fill in fills:
        line, grid = poisoned(64, dtype), poisoned(1024, dtype)
        kernel[1,](x, line, grid, 32, 30, 31, FILL=fill, N=64, num_warps=warps)
        one = cast(np.array([fill]), dtype)[0]
        expected = np.full(64, one)
        expected[:32] = x[:32]
        check(line, expected, f"{fill}")
        expected = np.full((32, 32), one)
        expected[:30, :31] = x[: 30 * 31].reshape(30, 31)
        check(grid, expected, f"{fill}")


def test_column_sums_with_a_zero_pad(warps: int) -> None:  # K079
    @tile.jit
    def kernel(x, out, rows, columns, C: tile.constexpr):
        r, c = tile.arange(0, 32)[:, None], tile.arange(0, C)[None, :]
        value = tile.load(x + r * columns + c, mask=(r < rows) & (c < columns), other=0.0)
        tile.store(out + tile.arange(0, C), tile.sum(value, 0))

    x = whole(tile.float32, 30 * 32, 3, 100).reshape(30, 32)
    out = poisoned(32, tile.float32)
    kernel[1,](x, out, 30, 32, C=32, num_warps=warps)
    check(out, x.sum(0), "sums")


@pytest.mark.parametrize("shape", [(64, 48), (64, 80), (1, 1), (2, 8)], ids=str)
def test_tiles_through_shared_memory_all_arrive(warps: int, shape: tuple[int, int]) -> None:  # K080
    @tile.jit
    def transpose(x, out, rows, columns, R: tile.constexpr, C: tile.constexpr):
        r, c = tile.arange(0, R), tile.arange(0, C)
        inside = (r[:, None] < rows) & (c[None, :] < columns)
        value = tile.load(x + r[:, None] * columns + c[None, :], mask=inside)
        inside = (c[:, None] < columns) & (r[None, :] < rows)
        tile.store(out + c[:, None] * rows + r[None, :], tile.trans(value), mask=inside)

    x = np.random.default_rng(2).standard_normal(shape, dtype=np.float32)
    out = poisoned(x.size, tile.float32)
    r, c = (tile.next_power_of_2(n) for n in shape)
    transpose[1,](x, out, *shape, R=r, C=c, num_warps=warps)
    check(out, x.T, f"{shape}")


def test_the_smallest_blocks_copy(place: str) -> None:  # K080
    @tile.jit
    def copy(x, out, n, BLOCK: tile.constexpr):
        i = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
        tile.store(out + i, tile.load(x + i, mask=i < n), mask=i < n)

    for block in (1, 2, 4, 8, 16):
        for n in (1, 255, 257, 1000):
            x, out = whole(tile.int32, n, 4, 1000), poisoned(n, tile.int32)
            copy[tile.cdiv(n, block),](x, out, n, BLOCK=block, num_warps=1)
            check(out, x, f"{block}")


def test_masks_are_exact_on_odd_starts_and_steps(place: str) -> None:  # K082
    @tile.jit
    def rows(x, out):
        r, c = tile.program_id(0) + tile.arange(0, 1), tile.arange(0, 8)
        at = r[:, None] * 8 + c[None, :]
        tile.store(out + at, tile.load(x + at))

    x, out = np.arange(16, dtype=np.int32), poisoned(16, tile.int32)
    rows[1,](x, out)
    assert is_poison(out[8:])
    assert out[:8].tolist() == list(range(8))

    @tile.jit
    def steps(out, n):
        for i in range(2, n, 4):
            at = i + tile.arange(0, 4)
            tile.store(out + at, at, mask=at < 10)

    out = np.full(20, -1, np.int32)
    steps[1,](out, 11)
    assert out.tolist() == [-1, -1, *range(2, 10), *[-1] * 10]


def test_masked_lanes_keep_their_place(place: str) -> None:  # K083
    @tile.jit
    def kernel(x, out, start, N: tile.constexpr):
        i = tile.arange(0, N)
        tile.store(out + i, tile.load(x + start + i, mask=start + i < N, other=-1))
        tile.store(out + N, 5, mask=start > 100)

    out = np.full(9, -1, np.int32)
    kernel[1,](np.arange(8, dtype=np.int32), out, 3, N=8)
    assert out.tolist() == [3, 4, 5, 6, 7, -1, -1, -1, -1]


def test_an_atomics_result_broadcasts(warps: int) -> None:  # K086
    @tile.jit
    def kernel(counter, out):
        old = tile.atomic_add(counter + tile.arange(0, 1), 1)
        tile.store(out + old[:, None] * 8 + tile.arange(0, 8)[None, :], 2)

    @tile.jit
    def scalar(counter, out):
        old = tile.atomic_add(counter, 1)
        tile.store(out + old * 8 + tile.arange(0, 8), 2)

    for form in (kernel, scalar):
        counter, out = np.ones(1, np.int32), np.zeros(16, np.int32)
        form[1,](counter, out, num_warps=warps)
        assert out.tolist() == [0] * 8 + [2] * 8
        assert counter[0] == 2


@pytest.mark.parametrize("dtype", [tile.float32, tile.float64], ids=str)
def test_atomic_extremes_of_every_sign(warps: int, dtype: tile.DType) -> None:  # K088
    @tile.jit
    def kernel(high, low, value, N: tile.constexpr):
        i = tile.arange(0, N)
        new = tile.load(value + i)
        tile.atomic_max(high + i, new)
        tile.atomic_min(low + i, new)

    olds = [-dtype.highest, -1, -0.0, 0.0, 1, 0.5, np.inf, -np.inf]
    news = [-0.0, 0.0, -1, -4, np.inf, -np.inf, np.nan, 1]
    old = np.repeat(olds, 8).astype(dtype.numpy)
    new = np.tile(news, 8).astype(dtype.numpy)
    high, low = old.copy(), old.copy()
    kernel[1,](high, low, new, N=64, num_warps=warps)
    np.testing.assert_array_equal(high, np.maximum(old, new))
    np.testing.assert_array_equal(low, np.minimum(old, new))


@pytest.mark.parametrize(
    "dtype", [tile.float16, tile.bfloat16, tile.float32, tile.int32, tile.int64], ids=str
)
def test_atomic_values_convert_to_what_they_add_to(warps: int, dtype: tile.DType) -> None:  # K089
    @tile.jit
    def kernel(out, x, n, BLOCK: tile.constexpr):
        i = tile.arange(0, BLOCK)
        tile.atomic_add(out + i, tile.load(x + i, mask=i < n), mask=i < n)

    x = np.full(64, 1.5, np.float32) if dtype.is_floating() else np.full(64, 3, np.int8)
    for shift, n in ((0, 64), (1, 63), (0, 37), (3, 20)):
        out = np.zeros(64, dtype.numpy)
        kernel[10,](out[shift:], x, n, BLOCK=64, num_warps=warps)
        expected = np.zeros(64)
        expected[shift : shift + n] = 15 if dtype.is_floating() else 30
        assert out.astype(float).tolist() == expected.tolist()


def test_locks_made_of_atomics_exclude_each_other(warps: int, emulated: bool) -> None:  # K091
    @tile.jit
    def kernel(locks, x, N: tile.constexpr):
        slot = tile.program_id(0) // 2
        at = x + slot * N + tile.arange(0, N)
        while tile.atomic_cas(locks + slot, 0, 1) == 1:
            pass
        tile.store(at, tile.load(at, volatile=True) + 1)
        tile.debug_barrier()
        tile.atomic_xchg(locks + slot, 0)

    count = 32 if emulated else 800
    locks, x = np.zeros(count, np.int32), np.zeros((count, 64), np.int32)
    kernel[2 * count,](locks, x, N=64, num_warps=warps)
    assert (x == 2).all()
    assert (locks == 0).all()
