"""Reductions along every axis of tiles of every rank, for every type; NaN and ties too."""

from collections.abc import Callable

import numpy as np
import pytest

import tiledsl as tile
from tests.kernels.both_modes import launch_in_both_modes
from tests.kernels.oracle import (
    BOOL,
    FLOATS,
    INTEGERS,
    cast,
    check,
    check_equal,
    one_zero,
    ordinary,
    poisoned,
    sample,
    whole,
    without_nan,
)
from tests.kernels.selection import Lengths
from tiledsl.dtypes import DType


@tile.jit
def reduce_rows(x, out, n, stride, fill, OP: tile.constexpr, BLOCK: tile.constexpr):
    row, i = tile.program_id(0), tile.arange(0, BLOCK)
    fill = tile.full((BLOCK,), fill, x.dtype.element_ty)
    value = tile.load(x + row * stride + i, mask=i < n, other=fill)
    tile.store(out + row, OP(value, axis=0))


@tile.jit
def reduce_axis(
    x, out, OP: tile.constexpr, SHAPE: tile.constexpr, AXIS: tile.constexpr, KEEP: tile.constexpr
):
    count = np.prod(SHAPE).item()
    value = tile.reshape(tile.load(x + tile.arange(0, count)), SHAPE)
    result = OP(value, axis=AXIS, keep_dims=KEEP)
    size = count // SHAPE[AXIS]
    if KEEP:
        tile.static_assert(len(result.shape) == len(SHAPE))
    if size == 1 and not KEEP:
        tile.store(out, result)
    else:
        tile.store(out + tile.arange(0, size), tile.reshape(result, (size,)))


def exact_sum(x: np.ndarray, axis: int, dtype: DType) -> np.ndarray:
    if dtype.is_floating():
        return cast(x.astype(np.float64).sum(axis), dtype)
    return x.sum(axis, dtype=dtype.numpy)


def first_extreme(function: Callable) -> Callable:
    return lambda x, axis: function(x, axis).astype(np.int32)


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=str)
def test_sums_of_ragged_rows(warps: int, lengths: Lengths, dtype: DType) -> None:
    for n in lengths(dtype):
        # Small whole numbers: every order of additions gives the same, exactly.
        limit = 1 if dtype is tile.bfloat16 else 2
        x = whole(dtype, 3 * n, n, limit).reshape(3, n)
        total = result_of_sum(dtype)
        out = poisoned(3, total)
        reduce_rows[3,](x, out, n, n, 0, OP=tile.sum, BLOCK=1024, num_warps=warps)
        check(out, exact_sum(x, 1, total), f"sum of {n} {dtype}")


def result_of_sum(dtype: DType) -> DType:
    """Return the type of a sum: int32 where a narrower integer would soon wrap, as in Triton."""
    if dtype.is_bool() or (dtype.is_int() and dtype.primitive_bitwidth < 32):
        return tile.uint32 if dtype.is_int_unsigned() else tile.int32
    return dtype


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=str)
@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_of_ragged_rows(warps: int, lengths: Lengths, name: str, dtype: DType) -> None:
    worst = dtype.lowest if name == "max" else dtype.highest
    if dtype.is_floating():
        worst = -np.inf if name == "max" else np.inf
    fill = np.asarray(worst).astype(dtype.numpy)[()]
    for n in lengths(dtype):
        x = sample(dtype, 5 * n, n).reshape(5, n)
        if dtype.is_floating():
            x = one_zero(x)
            x[:3] = without_nan(x[:3])
        out = poisoned(5, dtype)
        op = getattr(tile, name)
        reduce_rows[5,](x, out, n, n, fill, OP=op, BLOCK=1024, num_warps=warps)
        with np.errstate(all="ignore"):
            check(out, getattr(np, name)(x, axis=1), f"{name} of {n} {dtype}")


@pytest.mark.parametrize(
    "dtype", [tile.float32, tile.float16, tile.bfloat16, tile.float64], ids=str
)
@pytest.mark.parametrize("chip", ["gfx942", "gfx950", "gfx1100", "gfx1201"])
def test_every_register_and_lane_can_make_an_extreme_nan(
    monkeypatch: pytest.MonkeyPatch, chip: str, dtype: DType
) -> None:
    """On AMD, whose chips differ in what they have for it; rows lie in several registers and lanes."""

    @tile.jit
    def kernel(x, tops, bottoms, ROWS: tile.constexpr, COLUMNS: tile.constexpr):
        r, c = tile.arange(0, ROWS), tile.arange(0, COLUMNS)
        value = tile.load(x + r[:, None] * COLUMNS + c[None, :])
        tile.store(tops + r, tile.max(value, axis=1))
        tile.store(bottoms + r, tile.min(value, axis=1))

    rows, columns = 128, 64
    x = without_nan(sample(dtype, rows * columns, 3)).reshape(rows, columns)
    x[range(64), range(64)] = np.nan  # each place once
    x[64:68] = -np.inf
    x[68:72] = np.inf
    x[72, ::2], x[72, 1::2] = 0.0, -0.0
    x[73], x[73, 40] = -0.0, 0.0
    x[74], x[74, 7] = 0.0, -0.0
    launch_in_both_modes(monkeypatch)
    tops, bottoms = poisoned(rows, dtype), poisoned(rows, dtype)
    with tile.device(f"emulate:{chip}"):
        kernel[1,](x, tops, bottoms, ROWS=rows, COLUMNS=columns)
    with np.errstate(all="ignore"):
        expected = [getattr(np, name)(one_zero(x), axis=1) for name in ("max", "min")]
    expected[1][72:75] = -0.0
    check(tops, expected[0], "max")
    check(bottoms, expected[1], "min")


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=str)
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_the_first_extreme_of_ragged_rows(
    warps: int, lengths: Lengths, name: str, dtype: DType
) -> None:
    worst = dtype.lowest if name == "argmax" else dtype.highest
    if dtype.is_floating():
        worst = -np.inf if name == "argmax" else np.inf
    fill = np.asarray(worst).astype(dtype.numpy)[()]
    for n in lengths(dtype):
        x = sample(dtype, 5 * n, n).reshape(5, n)
        x[4] = x[4, 0]  # all tied
        if dtype.is_floating():
            x[:3] = without_nan(x[:3])
        out = poisoned(5, tile.int32)
        op = getattr(tile, name)
        reduce_rows[5,](x, out, n, n, fill, OP=op, BLOCK=1024, num_warps=warps)
        with np.errstate(all="ignore"):
            expected = getattr(np, name)(x.astype(np.longdouble), axis=1)
        check(out, expected.astype(np.int32), f"{name} of {n} {dtype}")


SHAPES = [
    (8,),
    (1,),
    (256,),
    (16, 32),
    (1, 64),
    (64, 1),
    (2, 128),
    (4, 8, 16),
    (8, 1, 4),
    (1, 1, 1),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_along_every_axis(warps: int, shape: tuple[int, ...]) -> None:
    x = whole(tile.float32, int(np.prod(shape)), 1, 50).reshape(shape)
    for axis in (*range(len(shape)), -1):
        for keep in (False, True):
            expected = x.sum(axis)
            out = poisoned(expected.size, tile.float32)
            reduce_axis[1,](x, out, OP=tile.sum, SHAPE=shape, AXIS=axis, KEEP=keep, num_warps=warps)
            check(out, expected, f"sum of {shape} along {axis}")


@pytest.mark.parametrize("dtype", [tile.int8, tile.float16, tile.int64, BOOL], ids=str)
def test_all_reductions_along_both_axes_in_one_kernel(warps: int, dtype: DType) -> None:
    @tile.jit
    def kernel(x, sums, tops, bottoms, firsts, lasts, ANY: tile.constexpr, AXIS: tile.constexpr,
               ROWS: tile.constexpr, COLUMNS: tile.constexpr, LEFT: tile.constexpr):  # fmt: skip
        r, c = tile.arange(0, ROWS), tile.arange(0, COLUMNS)
        value = tile.load(x + r[:, None] * COLUMNS + c[None, :])
        i = tile.arange(0, LEFT)
        if ANY:
            tile.store(sums + i, tile.any(value, axis=AXIS))
            tile.store(tops + i, tile.all(value, axis=AXIS))
        else:
            tile.store(sums + i, tile.sum(value, axis=AXIS))
            tile.store(tops + i, tile.max(value, axis=AXIS))
            tile.store(bottoms + i, tile.min(value, axis=AXIS))
            tile.store(firsts + i, tile.argmax(value, axis=AXIS))
            tile.store(lasts + i, tile.argmin(value, axis=AXIS))

    for rows, columns in ((16, 64), (64, 4)):
        x = whole(dtype, rows * columns, rows, 3).reshape(rows, columns)
        if dtype is BOOL:
            x[:, 0], x[1] = True, True
        for axis, left in ((0, columns), (1, rows)):
            total = result_of_sum(dtype)
            outs = [poisoned(left, t) for t in (total, dtype, dtype, tile.int32, tile.int32)]
            if dtype is BOOL:
                outs[0] = poisoned(left, BOOL)
            kernel[1,](
                x, *outs, ANY=dtype is BOOL, AXIS=axis, ROWS=rows, COLUMNS=columns, LEFT=left,
                num_warps=warps,
            )  # fmt: skip
            if dtype is BOOL:
                check(outs[0], np.asarray(x.any(axis)), "any")
                check(outs[1], np.asarray(x.all(axis)), "all")
                continue
            check(outs[0], exact_sum(x, axis, total), "sum")
            check(outs[1], x.max(axis), "max")
            check(outs[2], x.min(axis), "min")
            check(outs[3], x.argmax(axis).astype(np.int32), "argmax")
            check(outs[4], x.argmin(axis).astype(np.int32), "argmin")


def test_a_reduction_without_an_axis_takes_all(warps: int) -> None:
    @tile.jit
    def kernel(x, out, R: tile.constexpr, C: tile.constexpr):
        value = tile.load(x + tile.arange(0, R)[:, None] * C + tile.arange(0, C)[None, :])
        tile.store(out, tile.sum(value))
        tile.store(out + 1, tile.max(value))
        tile.store(out + 2, tile.min(value))

    x = whole(tile.float32, 32 * 16, 3, 40)
    out = poisoned(3, tile.float32)
    kernel[1,](x, out, R=32, C=16, num_warps=warps)
    check(out, np.array([x.sum(), x.max(), x.min()]), "all elements")


def test_methods_are_the_functions(place: str) -> None:
    @tile.jit
    def kernel(x, out, N: tile.constexpr):
        value = tile.load(x + tile.arange(0, N))
        tile.store(out, value.sum(axis=0))
        tile.store(out + 1, value.max(0))
        tile.store(out + 2, value.min())
        tile.store(out + 3, value.argmax(axis=0).to(tile.float32))

    x = whole(tile.float32, 64, 4, 40)
    out = poisoned(4, tile.float32)
    kernel[1,](x, out, N=64)
    expected = [x.sum(), x.max(), x.min(), np.argmax(x)]
    check(out, np.array(expected, np.float32), "methods")


def test_bitwise_reductions_and_softmax(warps: int) -> None:
    @tile.jit
    def kernel(x, y, out, soft, N: tile.constexpr):
        i = tile.arange(0, N)
        value = tile.load(x + i)
        tile.store(out, tile.xor_sum(value, 0))
        tile.store(out + 1, tile.reduce_or(value, 0))
        tile.store(soft + i, tile.softmax(tile.load(y + i)))

    x, y = sample(tile.uint32, 256, 5), ordinary(tile.float32, 256, 6, 4)
    out, soft = poisoned(2, tile.uint32), poisoned(256, tile.float32)
    kernel[1,](x, y, out, soft, N=256, num_warps=warps)
    check(out, np.array([np.bitwise_xor.reduce(x), np.bitwise_or.reduce(x)]), "bits")
    powers = np.exp(y.astype(np.float64) - y.max())
    np.testing.assert_allclose(soft[:256], powers / powers.sum(), rtol=1e-5)


def test_half_precision_sums_accumulate_in_float32(warps: int) -> None:
    for dtype in (tile.float16, tile.bfloat16):
        x = np.full((1, 1024), 0.001).astype(dtype.numpy)
        x[0, 0] = 60
        out = poisoned(1, dtype)
        reduce_rows[1,](x, out, 1024, 1024, 0.0, OP=tile.sum, BLOCK=1024, num_warps=warps)
        check(out, cast(x.astype(np.float64).sum(1), dtype), f"sum of {dtype}")


@pytest.mark.parametrize("axis", [0, 1])
def test_a_combine_function_of_ones_own(warps: int, axis: int) -> None:
    @tile.jit
    def xor_fold(a, b):
        return a ^ b

    @tile.jit
    def kernel(x, out, AXIS: tile.constexpr, R: tile.constexpr, C: tile.constexpr):
        value = tile.load(x + tile.arange(0, R)[:, None] * C + tile.arange(0, C)[None, :])
        left = C if AXIS == 0 else R
        tile.store(out + tile.arange(0, left), tile.reduce(value, AXIS, xor_fold))

    x = sample(tile.int32, 32 * 64, 5).reshape(32, 64)
    out = poisoned(x.shape[1 - axis], tile.int32)
    kernel[1,](x, out, AXIS=axis, R=32, C=64, num_warps=warps)
    check(out, np.bitwise_xor.reduce(x, axis), "xor")


@pytest.mark.parametrize("length", [1, 2, 16, 64, 512])
def test_several_tiles_reduce_together_in_order(warps: int, length: int) -> None:
    @tile.jit
    def compose(f1, x1, f2, x2):
        return f1 * f2, f2 * x1 + x2

    @tile.jit
    def kernel(f, x, out, N: tile.constexpr):
        i = tile.arange(0, N)
        a, b = tile.reduce((tile.load(f + i), tile.load(x + i)), 0, compose)
        tile.store(out, a)
        tile.store(out + 1, b)

    f, x = sample(tile.uint32, length, 6), sample(tile.uint32, length, 7)
    out = poisoned(2, tile.uint32)
    kernel[1,](f, x, out, N=length, num_warps=warps)
    a, b = 1, 0
    for factor, term in zip(f.tolist(), x.tolist(), strict=True):
        a, b = a * factor % 2**32, (factor * b + term) % 2**32
    check(out, np.array([a, b], np.uint32), "affine maps")


def test_a_welford_reduction(warps: int) -> None:
    @tile.jit
    def welford(mean1, m1, count1, mean2, m2, count2):
        delta = mean2 - mean1
        count = count1 + count2
        share = tile.where(count == 0, 0.0, count2 / count)
        return mean1 + delta * share, m1 + m2 + delta * delta * count1 * share, count

    @tile.jit
    def kernel(x, out, n, N: tile.constexpr):
        i = tile.arange(0, N)
        value = tile.load(x + i, mask=i < n, other=0.0)
        count = (i < n).to(tile.float32)
        mean, m2, total = tile.reduce((value, tile.zeros_like(value), count), 0, welford)
        tile.store(out, mean)
        tile.store(out + 1, m2 / total)

    for n in (7, 255, 1000):
        x = ordinary(tile.float32, n, 8) + 10
        out = poisoned(2, tile.float32)
        kernel[1,](x, out, n, N=1024, num_warps=warps)
        np.testing.assert_allclose(out[:2], [x.mean(), x.var()], rtol=1e-4)


def test_reductions_of_reductions_and_broadcast_back(warps: int) -> None:
    @tile.jit
    def kernel(x, out, R: tile.constexpr, C: tile.constexpr):
        i = tile.arange(0, R)[:, None] * C + tile.arange(0, C)[None, :]
        value = tile.load(x + i)
        centered = value - tile.max(value, axis=1)[:, None]
        centered -= tile.min(centered, axis=0, keep_dims=True)
        total = tile.sum(tile.sum(value, 1), 0)
        tile.store(out + i, centered + total)

    for rows, columns in ((32, 32), (4, 256), (128, 8)):
        x = whole(tile.float32, rows * columns, 9, 30).reshape(rows, columns)
        out = poisoned(x.size, tile.float32)
        kernel[1,](x, out, R=rows, C=columns, num_warps=warps)
        centered = x - x.max(1, keepdims=True)
        check(out, centered - centered.min(0, keepdims=True) + x.sum(), f"{rows} by {columns}")


def test_softmax_of_a_scalar_loop_of_reductions(warps: int) -> None:
    @tile.jit
    def kernel(x, out, n, BLOCK: tile.constexpr):
        i = tile.arange(0, BLOCK)
        best = -float("inf")
        for start in range(0, n, BLOCK):
            value = tile.load(x + start + i, mask=start + i < n, other=-float("inf"))
            best = tile.maximum(best, tile.max(value, 0))
        tile.store(out, best)

    for n in (1, 257, 1000):
        x = ordinary(tile.float32, n, 10)
        out = poisoned(1, tile.float32)
        kernel[1,](x, out, n, BLOCK=128, num_warps=warps)
        check_equal(out[:1], x.max(keepdims=True), f"{n}")
