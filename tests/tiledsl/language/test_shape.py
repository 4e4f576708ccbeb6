"""Shape functions against NumPy, and their messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiledsl.language.traced import evaluated, traced
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import float32, int32
from tiledsl.language import shape

X = np.arange(64, dtype=np.int32).reshape(2, 8, 4)


def same(got: Any, want: Any) -> None:
    assert got.shape == want.shape
    np.testing.assert_array_equal(got, want)


def test_reshapes_keep_row_major_order() -> None:
    def chain(v: Any) -> Any:
        for sizes in ((8, 8), (2, 32), (64, 1), (64,)):
            v = shape.reshape(v, sizes)
        return v

    same(evaluated(chain, X), X.ravel())
    same(evaluated(lambda v: shape.reshape(v, 4, -1), X), X.reshape(4, 16))
    same(evaluated(lambda v: shape.view(v, (16, 4)), X), X.reshape(16, 4))
    same(evaluated(shape.ravel, X), X.ravel())


def test_reshape_takes_scalars_to_one_element_and_back() -> None:
    one = np.array(7, np.int32)
    same(evaluated(lambda v: shape.reshape(v, 1, 1), one), one.reshape(1, 1))
    same(evaluated(lambda v: shape.reshape(v, ()), one.reshape(1, 1)), one)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 0, 2), (-1, 1, 0)])
def test_permute_is_numpy_s_transpose(order: tuple[int, ...]) -> None:
    want = X.transpose([d % 3 for d in order])
    same(evaluated(lambda v: shape.permute(v, order), X), want)
    same(evaluated(lambda v: shape.trans(v, *order), X), want)


def test_trans_swaps_the_last_two_dimensions() -> None:
    same(evaluated(shape.trans, X), X.swapaxes(-1, -2))


@pytest.mark.parametrize("axis", [0, 1, 3, -1, (0, 1), (-1, 0)])
def test_expand_dims_is_numpy_s(axis: int | tuple[int, ...]) -> None:
    same(evaluated(lambda v: shape.expand_dims(v, axis), X), np.expand_dims(X, axis))


def test_broadcasts_are_numpy_s() -> None:
    row, column = np.arange(4, dtype=np.int32), np.arange(8, dtype=np.int32).reshape(8, 1)
    a, b = evaluated(shape.broadcast, row, column)
    same(a, np.broadcast_to(row, (8, 4)))
    same(b, np.broadcast_to(column, (8, 4)))
    same(evaluated(lambda v: shape.broadcast_to(v, 2, 8, 4), row), np.broadcast_to(row, (2, 8, 4)))
    same(
        evaluated(lambda v: shape.broadcast_to(v, (8, 4)), column), np.broadcast_to(column, (8, 4))
    )


def test_join_and_split_are_inverse() -> None:
    y = X + 100
    joined = evaluated(shape.join, X, y)
    same(joined, np.stack([X, y], -1))
    first, second = evaluated(shape.split, joined)
    same(first, X)
    same(second, y)


def test_join_promotes_broadcasts_and_takes_scalars() -> None:
    got = evaluated(shape.join, np.arange(4, dtype=np.int8), np.float32(0.5))
    same(got, np.stack([np.arange(4, dtype=np.float32), np.full(4, 0.5, np.float32)], -1))
    pair = evaluated(shape.join, np.int32(3), np.int32(4))
    same(pair, np.array([3, 4], np.int32))
    assert evaluated(shape.split, pair) == (3, 4)


def test_interleave_takes_turns() -> None:
    got = evaluated(shape.interleave, X[0], X[1])
    same(got, np.stack([X[0], X[1]], -1).reshape(8, 8))


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_cat_is_numpy_s_concatenate_on_every_axis(dim: int) -> None:
    got = evaluated(lambda a, b: shape.cat(a, b, dim=dim), X, X + 1)
    same(got, np.concatenate([X, X + 1], dim))


@pytest.mark.parametrize("dim", [0, 1, 2, None])
def test_flip_reverses_one_dimension(dim: int | None) -> None:
    got = evaluated(lambda v: shape.flip(v, dim), X)
    same(got, np.flip(X, -1 if dim is None else dim))


def test_flip_of_size_one_is_the_tile() -> None:
    same(evaluated(shape.flip, X[:, :, :1].copy()), X[:, :, :1])


@settings(max_examples=25, deadline=None)
@given(st.permutations([0, 1, 2]), st.permutations([0, 1, 2]))
def test_permutations_compose(first: list[int], second: list[int]) -> None:
    got = evaluated(lambda v: shape.permute(shape.permute(v, first), second), X)
    same(got, X.transpose(first).transpose(second))


@pytest.mark.parametrize(
    ("function", "kinds", "message"),
    [
        (
            lambda v: shape.reshape(v, 3, 4),
            [(float32, (4, 4))],
            "expected a shape of 16 elements, as (4, 4) has, found (3, 4)",
        ),
        (
            lambda v: shape.reshape(v, -1, -1),
            [(float32, (4, 4))],
            "expected a shape of 16 elements, as (4, 4) has, found (-1, -1)",
        ),
        (
            lambda v, n: shape.reshape(v, n, 4),
            [(float32, (4, 4)), int32],
            "expected each size in shape to be an integer known at compile time, "
            "found int32 scalar\n  hint: make it a parameter annotated `tile.constexpr`",
        ),
        (
            lambda v: shape.permute(v, 0, 0),
            [(float32, (4, 4))],
            "expected a permutation of 2 dimensions, found (0, 0)",
        ),
        (
            shape.trans,
            [(float32, (4,))],
            "expected a tile of 2 or more dimensions, found float32 tile of shape (4,)",
        ),
        (
            lambda v: shape.expand_dims(v, 3),
            [(float32, (4,))],
            "expected an axis from -2 to 1, found 3",
        ),
        (
            lambda v: shape.expand_dims(v, (0, 0)),
            [(float32, (4,))],
            "expected axes that differ, found (0, 0)",
        ),
        (
            lambda v: shape.broadcast_to(v, 8, 2),
            [(float32, (4,))],
            "expected a shape that broadcasts to (8, 2), found (4,)",
        ),
        (
            shape.split,
            [(float32, (4,))],
            "expected a last dimension of size 2, found float32 tile of shape (4,)",
        ),
        (
            shape.cat,
            [(float32, (4,)), (float32, (8,))],
            "expected two tiles of one shape, found float32 tile of shape (4,) and "
            "float32 tile of shape (8,)",
        ),
        (
            lambda a, b: shape.cat(a, b, dim=1),
            [(float32, (4,)), (float32, (4,))],
            "expected a dimension from -1 to 0, found 1",
        ),
        (
            lambda v: shape.flip(v, 1),
            [(float32, (4,))],
            "expected a dimension of float32 tile of shape (4,), found 1",
        ),
    ],
)
def test_wrong_arguments_get_a_message(
    function: Callable[..., Any], kinds: list[Any], message: str
) -> None:
    with pytest.raises(KernelError) as caught:
        traced(function, *kinds)
    assert str(caught.value) == message
