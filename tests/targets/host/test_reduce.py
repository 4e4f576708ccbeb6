"""Reductions and scans against NumPy."""

# Kernels are built by small lambdas, whose parameters nothing types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from functools import partial
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .kernels import Kernel, Tile

SHAPES: list[tuple[int, ...]] = [
    *((16,), (1024,), (4,), (1,), (16, 1), (1, 16), (8, 4), (64, 64), (2, 512), (512, 2)),
    *((4, 8, 16), (16, 8, 4), (128, 1, 2), (1, 1, 16, 1)),
]
KINDS: dict[str, Any] = {
    "arith.addi": np.add,
    "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum,
    "arith.xori": np.bitwise_xor,
    "arith.muli": np.multiply,
}


def places(k: Kernel, shape: tuple[int, ...]) -> Tile:
    """Return the row-major position of each element."""
    return k.range(int(np.prod(shape))).reshape(*shape)


def run_on(shape: tuple[int, ...], data: Any, make: Any, results: list[Any]) -> list[Any]:
    """Load arrays as tiles, store what `make` returns into new arrays like `results`."""
    names = {"int32": "i32", "float32": "f32", "float64": "f64", "int64": "i64", "int8": "i8"}
    k = Kernel(*[f"*{names[a.dtype.name]}" for a in [*data, *results]])
    pointers = k.args
    tiles = [k.load(p + places(k, shape)) for p in pointers[: len(data)]]
    made = make(k, *tiles)
    made = cast("list[Tile]", made) if isinstance(made, list) else [made]
    for pointer, tile_ in zip(pointers[len(data) :], made, strict=True):
        k.store(pointer + places(k, tile_.shape) if tile_.shape else pointer, tile_)
    found = [np.full(r.shape, 77, r.dtype) for r in results]
    k.run(1, *data, *found)
    return found


def reduced(axis: int, kind: str, k: Kernel, x: Tile) -> Tile:
    return k.reduce(x, axis, kind)


def scanned(axis: int, kind: str, k: Kernel, x: Tile) -> Tile:
    return k.scan(x, axis, kind)


@pytest.mark.parametrize("shape", SHAPES)
def test_integer_reductions_are_exact_along_every_axis(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    data = rng.integers(-50, 50, shape).astype(np.int32)
    for axis in range(len(shape)):
        for kind, function in KINDS.items():
            wanted = function.reduce(data, axis, dtype=np.int32)
            (found,) = run_on(shape, [data], partial(reduced, axis, kind), [np.asarray(wanted)])
            assert (found == wanted).all(), (axis, kind)


@pytest.mark.parametrize("shape", [(1024,), (8, 64), (64, 8), (4, 4, 4)])
def test_float_sums_are_close_and_extremes_propagate_nan(shape: tuple[int, ...]) -> None:
    data = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    holed = data.copy()
    holed.flat[3] = np.nan
    for axis in range(len(shape)):
        wanted = data.astype(np.float64).sum(axis).astype(np.float32)
        (found,) = run_on(shape, [data], partial(reduced, axis, "arith.addf"), [wanted])
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
        most = holed.max(axis)
        (found,) = run_on(shape, [holed], partial(reduced, axis, "arith.maximumf"), [most])
        np.testing.assert_array_equal(found, most)
        least = np.fmin.reduce(holed, axis)
        (found,) = run_on(shape, [holed], partial(reduced, axis, "arith.minnumf"), [least])
        np.testing.assert_array_equal(found, least)


def test_a_sum_of_nothing_but_negative_zeros_is_negative_zero() -> None:
    data = np.full(64, -0.0, np.float32)
    (found,) = run_on((64,), [data], lambda k, x: k.reduce(x, 0, "arith.addf"), [np.float32(0)])
    assert np.signbit(found)


def first_largest(k: Kernel) -> Any:
    def combine(value: Tile, index: Tile, other: Tile, other_index: Tile) -> tuple[Tile, Tile]:
        keep = value >= other  # a tie keeps the first
        return k.where(keep, value, other), k.where(keep, index, other_index)

    return combine


def extreme(axis: int, k: Kernel, x: Tile, i: Tile) -> list[Tile]:
    return k.reduce([x, i], axis, first_largest(k))


@pytest.mark.parametrize("shape", [(64,), (1024,), (4, 32), (32, 4), (2, 2), (16, 64, 2)])
def test_several_values_reduce_together_with_ties_to_the_left(shape: tuple[int, ...]) -> None:
    data = np.random.default_rng(1).integers(0, 5, shape).astype(np.int32)
    for axis in range(len(shape)):
        index = np.broadcast_to(
            np.arange(shape[axis]).reshape([-1 if d == axis else 1 for d in range(len(shape))]),
            shape,
        ).astype(np.int32)
        wanted = [data.max(axis), data.argmax(axis).astype(np.int32)]
        found = run_on(
            shape,
            [data, np.ascontiguousarray(index)],
            partial(extreme, axis),
            [np.asarray(w) for w in wanted],
        )
        assert (found[0] == wanted[0]).all()
        assert (found[1] == wanted[1]).all()


def affine(k: Kernel) -> Any:
    """Composition of x -> f x + c: associative, but its order matters."""

    def combine(f1: Tile, x1: Tile, f2: Tile, x2: Tile) -> tuple[Tile, Tile]:
        return f1 * f2, f2 * x1 + x2

    return combine


def composed(f: Any, x: Any, axis: int, reverse: bool) -> tuple[Any, Any]:
    """Scan one element after the other."""
    f, x = np.moveaxis(f, axis, 0).copy(), np.moveaxis(x, axis, 0).copy()
    order = range(len(f))[::-1] if reverse else range(len(f))
    before = None
    for i in order:
        if before is not None:
            with np.errstate(over="ignore"):
                x[i] = f[i] * x[before] + x[i]
                f[i] = f[before] * f[i]
        before = i
    return np.moveaxis(f, 0, axis), np.moveaxis(x, 0, axis)


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from([(4,), (64,), (512,), (8, 4), (4, 64), (64, 4), (4, 8, 2)]),
    st.booleans(),
    st.data(),
)
def test_scans_and_reductions_keep_the_order_of_arguments(
    shape: tuple[int, ...], reverse: bool, data: Any
) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    rng = np.random.default_rng(0)
    f, x = (rng.integers(-3, 4, shape).astype(np.int32) for _ in range(2))
    wanted = composed(f, x, axis, reverse)
    found = run_on(
        shape,
        [f, x],
        lambda k, f, x: k.scan([f, x], axis, affine(k), reverse),
        list(wanted),
    )
    assert (found[0] == wanted[0]).all()
    assert (found[1] == wanted[1]).all()
    if not reverse:
        last = [np.take(w, -1, axis) for w in wanted]
        found = run_on(shape, [f, x], lambda k, f, x: k.reduce([f, x], axis, affine(k)), last)
        assert (found[0] == last[0]).all()
        assert (found[1] == last[1]).all()


@pytest.mark.parametrize("shape", [(2,), (32,), (1, 8), (256, 2), (8, 16)])
def test_running_sums_are_numpys(shape: tuple[int, ...]) -> None:
    data = np.random.default_rng(0).integers(-50, 50, shape).astype(np.int64)
    for axis in range(len(shape)):
        wanted = data.cumsum(axis)
        (found,) = run_on(shape, [data], partial(scanned, axis, "arith.addi"), [wanted])
        assert (found == wanted).all()


def gcd(k: Kernel) -> Any:
    def combine(a: Tile, b: Tile) -> Tile:
        zero = k.constant(0, "i32")
        return k.while_(
            [a, b], lambda a, b: b.ne(zero), lambda a, b: (b, k.op("arith.remsi", a, b))
        )[0]

    return combine


def folded(axis: int, k: Kernel, x: Tile) -> Tile:
    return k.reduce(x, axis, gcd(k))


def running(axis: int, k: Kernel, x: Tile) -> Tile:
    return k.scan(x, axis, gcd(k))


def test_a_combine_function_may_branch() -> None:
    data = (np.random.default_rng(0).integers(1, 50, (8, 16)) * 6).astype(np.int32)
    for axis in (0, 1):
        wanted = np.gcd.reduce(data, axis)
        (found,) = run_on((8, 16), [data], partial(folded, axis), [wanted])
        assert (found == wanted).all()
        partial_ = np.gcd.accumulate(data, axis)
        (found,) = run_on((8, 16), [data], partial(running, axis), [partial_])
        assert (found == partial_).all()


def test_reductions_of_reductions_and_bools() -> None:
    data = np.random.default_rng(0).integers(0, 3, (32, 64)).astype(np.int32)

    def make(k: Kernel, x: Tile) -> list[Tile]:
        total = k.reduce(k.reduce(x, 1, "arith.addi"), 0, "arith.addi")
        any_ = k.reduce(x.eq(2), 1, "arith.ori").convert("extui", "i32")
        every = k.reduce(x.ne(3), 0, "arith.andi").convert("extui", "i32")
        return [total, any_, every]

    wanted = [data.sum(dtype=np.int32), (data == 2).any(1), (data != 3).all(0)]
    found = run_on((32, 64), [data], make, [np.asarray(w, np.int32) for w in wanted])
    assert all((f == w).all() for f, w in zip(found, wanted, strict=True))
