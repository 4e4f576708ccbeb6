"""Operations that move elements about: every one keeps row-major order."""

import math

import numpy as np
import pytest

import tiledsl as tile
from tests.kernels.oracle import ALL, check, poisoned, sample
from tiledsl.dtypes import DType


@tile.jit
def transform(x, out, OP: tile.constexpr, SHAPE: tile.constexpr, COUNT: tile.constexpr):
    value = tile.reshape(tile.load(x + tile.arange(0, COUNT)), SHAPE)
    result = OP(value)
    size = result.numel
    tile.store(out + tile.arange(0, size), tile.reshape(result, (size,)))


def check_transform(shape, ours, numpy, warps: int, dtype: DType = tile.int32, what="") -> None:
    count = math.prod(shape)
    x = sample(dtype, count, 1).reshape(shape)
    expected = np.ascontiguousarray(numpy(x))
    out = poisoned(expected.size, dtype)
    transform[1,](x, out, OP=ours, SHAPE=shape, COUNT=count, num_warps=warps)
    check(out, expected, f"{what} of {shape}")


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_a_transpose_moves_every_type(warps: int, dtype: DType) -> None:
    check_transform((32, 16), tile.trans, np.transpose, warps, dtype)


PERMUTED = [
    ((4, 64), (1, 0)), ((1, 32), (1, 0)), ((128, 128), (1, 0)), ((2, 8, 16), (2, 1, 0)),
    ((4, 8, 2), (1, 0, 2)), ((16, 1, 8), (0, 2, 1)), ((2, 4, 8, 2), (3, 1, 0, 2)), ((8, 4), (0, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "order"), PERMUTED, ids=str)
def test_permutations(warps: int, shape: tuple[int, ...], order: tuple[int, ...]) -> None:
    check_transform(shape, lambda x: tile.permute(x, order), lambda x: x.transpose(order), warps)
    check_transform(shape, lambda x: tile.trans(x, *order), lambda x: x.transpose(order), warps)


RESHAPED = [
    ((64,), (8, 8)), ((8, 8), (2, 32)), ((2, 32), (64, 1)), ((4, 4, 4), (16, 4)), ((1,), (1, 1)),
    ((128, 32), (32, 128)), ((16, 64), (4, 16, 16)), ((2, 2, 2, 2), (16,)),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "other"), RESHAPED, ids=str)
def test_reshapes(warps: int, shape: tuple[int, ...], other: tuple[int, ...]) -> None:
    check_transform(shape, lambda x: tile.reshape(x, other), lambda x: x.reshape(other), warps)
    # Transposed in between, so that a reshape must move data.
    check_transform(
        shape,
        lambda x: tile.reshape(x.T, other).T,
        lambda x: x.T.reshape(other).T,
        warps,
    )


@pytest.mark.parametrize("shape", [(8,), (4, 16), (1, 1), (2, 8, 4)], ids=str)
def test_joins_splits_and_interleaving(warps: int, shape: tuple[int, ...]) -> None:
    check_transform(shape, lambda x: tile.join(x, x + 1), lambda x: np.stack([x, x + 1], -1), warps)
    check_transform(
        (*shape, 2),
        lambda x: tile.split(x)[0] * 3 - tile.split(x)[1],
        lambda x: x[..., 0] * 3 - x[..., 1],
        warps,
    )

    def halves_swapped(x):
        low, high = tile.split(x)
        return tile.join(high, low)

    check_transform((*shape, 2), halves_swapped, lambda x: x[..., ::-1], warps)


@pytest.mark.parametrize(("shape", "axis"), [((8,), 0), ((4, 16), 0), ((4, 16), 1), ((2, 4, 8), 1)])
def test_concatenation(warps: int, shape: tuple[int, ...], axis: int) -> None:
    check_transform(
        shape,
        lambda x: tile.cat(x, x * 2, dim=axis),
        lambda x: np.concatenate([x, x * 2], axis),
        warps,
    )


def test_new_dimensions_and_broadcasts(warps: int) -> None:
    cases = [
        (lambda x: x[:, None], lambda x: x[:, None]),
        (lambda x: x[None, :] + tile.zeros((4, 1), tile.int32), lambda x: x[None, :].repeat(4, 0)),
        (lambda x: x[..., None], lambda x: x[..., None]),
        (lambda x: x[None, ...], lambda x: x[None, ...]),
        (lambda x: x[:, None][None, ..., None], lambda x: x[None, :, None, None]),
        (lambda x: tile.expand_dims(x, 1), lambda x: x[:, None]),
        (lambda x: tile.expand_dims(x, -1), lambda x: x[:, None]),
        (lambda x: tile.expand_dims(x, (0, 2)), lambda x: x[None, :, None]),
        (lambda x: tile.broadcast_to(x, (4, 8)), lambda x: np.broadcast_to(x, (4, 8))),
        (lambda x: tile.broadcast_to(x[:, None], (8, 4)), lambda x: x[:, None].repeat(4, 1)),
        (lambda x: x[:, None] - x[None, :], lambda x: x[:, None] - x[None, :]),
        (lambda x: x[:, None, None] + x[None, :, None] * x, lambda x: x[:, None, None] + x[:, None] * x),
    ]  # fmt: skip
    for i, (ours, numpy) in enumerate(cases):
        check_transform((8,), ours, numpy, warps, what=f"case {i}")


def test_methods_are_the_functions(warps: int) -> None:
    check_transform((4, 8), lambda x: x.T, lambda x: x.T, warps)
    check_transform((4, 8), lambda x: x.trans(1, 0), lambda x: x.T, warps)
    check_transform((4, 8), lambda x: x.permute(1, 0), lambda x: x.T, warps)
    check_transform((4, 8), lambda x: x.reshape(2, 16), lambda x: x.reshape(2, 16), warps)
    check_transform((4, 8), lambda x: x.reshape((2, 16)), lambda x: x.reshape(2, 16), warps)
    check_transform((4, 8), lambda x: x.expand_dims(0), lambda x: x[None], warps)


def test_ravel_flip_and_interleave(warps: int) -> None:
    check_transform((4, 8), tile.ravel, np.ravel, warps)
    check_transform((16,), lambda x: tile.flip(x, 0), np.flip, warps)
    check_transform((4, 8), lambda x: tile.flip(x, 1), lambda x: x[:, ::-1], warps)
    check_transform(
        (4, 8),
        lambda x: tile.interleave(x, -x),
        lambda x: np.stack([x, -x], -1).reshape(4, 16),
        warps,
    )


def test_aranges_splats_and_fills(place: str) -> None:
    @tile.jit
    def kernel(out, s, N: tile.constexpr):
        i = tile.arange(0, N)
        tile.store(out + i, tile.arange(5, 5 + N))
        tile.store(out + N + i, tile.full((N,), 7, tile.int32))
        tile.store(out + 2 * N + i, tile.zeros((N,), tile.int32))
        tile.store(out + 3 * N + i, tile.full((N,), s, tile.int32))
        tile.store(out + 4 * N + i, tile.zeros_like(i))
        tile.store(out + 5 * N + i, tile.full_like(i, -2))

    out = poisoned(6 * 16, tile.int32)
    kernel[1,](out, 42, N=16)
    rows = [np.arange(5, 21), *(np.full(16, v) for v in (7, 0, 42, 0, -2))]
    check(out, np.concatenate(rows).astype(np.int32), "fills")
