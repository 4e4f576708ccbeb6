"""Loops and branches that carry tiles."""

# Kernels are built by small lambdas, whose parameters nothing types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from .kernels import Kernel, Tile

SIZE = 64


def run_carried(body: Any, initial: list[np.ndarray[Any, Any]], trips: int) -> list[Any]:
    """Run a loop over tiles loaded from `initial`; return the results."""
    k = Kernel("i32", *["*i32"] * len(initial))
    n, *pointers = k.args
    i = k.range(SIZE)
    carried = [k.load(p + i) for p in pointers]
    results = k.loop(0, n, 1, carried, lambda step, *tiles: body(k, step, *tiles))
    for pointer, result in zip(pointers, results, strict=True):
        k.store(pointer + i, result)
    data = [array.copy() for array in initial]
    k.run(1, trips, *data)
    return data


def numbers(count: int) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(count)
    return [rng.integers(-100, 100, SIZE).astype(np.int32) for _ in range(count)]


@pytest.mark.parametrize("trips", [0, 1, 2, 3, 10])
def test_carried_tiles_swap_and_rotate(trips: int) -> None:
    a, b, c = numbers(3)
    swapped = run_carried(lambda k, step, x, y, z: (y, x, z), [a, b, c], trips)
    wanted = [b, a, c] if trips % 2 else [a, b, c]
    assert all((x == y).all() for x, y in zip(swapped, wanted, strict=True))
    rotated = run_carried(lambda k, step, x, y, z: (z, x, y), [a, b, c], trips)
    order = [(i - trips) % 3 for i in range(3)]
    assert all((x == [a, b, c][o]).all() for x, o in zip(rotated, order, strict=True))


@pytest.mark.parametrize("trips", [0, 1, 2, 7])
def test_each_trip_sees_the_tiles_of_the_one_before(trips: int) -> None:
    def body(k: Kernel, step: Tile, x: Tile, y: Tile) -> tuple[Tile, ...]:
        return x + y, x.reshape(8, 8).trans(1, 0).reshape(SIZE) - step

    a, b = numbers(2)
    found = run_carried(body, [a, b], trips)
    for step in range(trips):
        a, b = a + b, a.reshape(8, 8).T.ravel() - step
    assert (found[0] == a).all()
    assert (found[1] == b).all()


def test_a_tile_read_after_its_successor_was_made_is_the_old_one() -> None:
    def body(k: Kernel, step: Tile, x: Tile, y: Tile) -> tuple[Tile, ...]:
        # Kept, since it is used twice; `x` is read after it.
        new = k.op("arith.divsi", x, k.full((SIZE,), 3, "i32"))
        return new, new + x + k.reduce(new, 0, "arith.addi")

    a, b = numbers(2)
    found = run_carried(body, [a, b], 4)
    for _ in range(4):
        new = np.trunc(a / 3).astype(np.int32)
        a, b = new, new + a + new.sum(dtype=np.int32)
    assert (found[0] == a).all()
    assert (found[1] == b).all()


def test_a_product_and_its_old_value_may_both_be_carried() -> None:
    def body(k: Kernel, step: Tile, x: Tile, y: Tile) -> tuple[Tile, ...]:
        square = x.reshape(8, 8)
        return k.dot(square, square, y.reshape(8, 8)).reshape(SIZE), x

    a, b = (n // 50 for n in numbers(2))
    found = run_carried(body, [a, b], 3)
    for _ in range(3):
        a, b = (a.reshape(8, 8) @ a.reshape(8, 8) + b.reshape(8, 8)).ravel(), a
    assert (found[0] == a).all()
    assert (found[1] == b).all()


@pytest.mark.parametrize("trips", [0, 1, 5])
def test_a_product_accumulates_through_loops_and_branches(trips: int) -> None:
    def body(k: Kernel, step: Tile, x: Tile, y: Tile) -> tuple[Tile, ...]:
        square = x.reshape(8, 8)

        def inner(i: Tile, acc: Tile) -> Tile:
            even = (i & 1).eq(0)
            return k.if_(even, lambda: k.dot(square, square, acc), lambda: acc)[0]

        (acc,) = k.loop(0, 3, 1, [y.reshape(8, 8)], inner)
        return x, acc.reshape(SIZE)

    a, b = (n // 50 for n in numbers(2))
    found = run_carried(body, [a, b], trips)
    square = a.reshape(8, 8)
    for _ in range(trips):
        b = (b.reshape(8, 8) + 2 * (square @ square)).ravel()
    assert (found[1] == b).all()


@pytest.mark.parametrize("shape", [(64,), (16, 8)])
def test_carried_square_tiles_accumulate_in_place(shape: Any) -> None:
    k = Kernel("*f32", "*f32", "i32")
    x, out, n = k.args
    i, j = k.range(32)[:, None], k.range(32)[None, :]
    a = k.load(x + (i * 32 + j))
    (acc,) = k.loop(0, n, 1, [k.full((32, 32), 0, "f32")], lambda step, acc: k.dot(a, a, acc))
    k.store(out + (i * 32 + j), acc)
    data = np.random.default_rng(0).integers(-3, 4, (32, 32)).astype(np.float32)
    found = np.zeros_like(data)
    k.run(1, data, found, 3)
    assert (found == 3 * (data @ data)).all()


@pytest.mark.parametrize("count", [0, 1, 3, 1000])
def test_a_while_loop_tests_its_scalar_each_trip(count: int) -> None:
    k = Kernel("*i32", "i32")
    out, n = k.args
    start = k.constant(0, "i32")
    (last,) = k.while_([start], lambda i: i < n + k.pid(), lambda i: i + 1)
    k.store(out + k.pid(), last)
    found = np.zeros(3, np.int32)
    k.run(3, found, count)
    assert list(found) == [count, count + 1, count + 2]


def test_a_while_loop_carries_tiles_and_passes_on_others() -> None:
    k = Kernel("*i32", "*i32", "i32")
    x, out, n = k.args
    i = k.range(SIZE)

    def test(total: Tile, steps: Tile) -> tuple[Tile, ...]:
        # What goes on is not what came in.
        return k.reduce(total, 0, "arith.maxsi") < n, total + 1, steps

    def body(total: Tile, steps: Tile) -> tuple[Tile, ...]:
        return total * 2, steps + 1

    total, steps = k.while_([k.load(x + i), k.constant(0, "i32")], test, body)
    k.store(out + i, total + steps)
    data = numbers(1)[0] % 7
    found = np.zeros(SIZE, np.int32)
    k.run(1, data, found, 300)
    total_, steps_ = data, 0
    while total_.max() < 300:
        total_, steps_ = (total_ + 1) * 2, steps_ + 1
    assert (found == total_ + 1 + steps_).all()


def test_a_while_loop_swaps_tiles() -> None:
    k = Kernel("*i32", "*i32", "i32")
    x, y, n = k.args
    i = k.range(SIZE)
    a, b, _ = k.while_(
        [k.load(x + i), k.load(y + i), k.constant(0, "i32")],
        lambda a, b, step: step < n,
        lambda a, b, step: (b, a - b, step + 1),
    )
    k.store(x + i, a)
    k.store(y + i, b)
    first, second = numbers(2)
    found = [first.copy(), second.copy()]
    k.run(1, *found, 5)
    for _ in range(5):
        first, second = second, first - second
    assert (found[0] == first).all()
    assert (found[1] == second).all()


@pytest.mark.parametrize("flag", [0, 1])
def test_only_the_chosen_branch_runs(flag: int) -> None:
    k = Kernel("*i32", "*i32", "i32")
    x, counts, which = k.args
    i = k.range(SIZE)
    loaded = k.load(x + i)

    def side(number: int, sign: int) -> Any:
        k.atomic("add", counts + number, 1)
        inner = k.load(x + i * sign) if sign > 0 else k.load(x + (SIZE - 1 - i))
        return inner + loaded, k.constant(number, "i32")

    tile_, number = k.if_(which.ne(0), lambda: side(1, 1), lambda: side(0, -1))
    k.store(x + i, tile_ + number)
    data = numbers(1)[0]
    found, counted = data.copy(), np.zeros(2, np.int32)
    k.run(1, found, counted, flag)
    assert list(counted) == [1 - flag, flag]
    assert (found == data + (data if flag else data[::-1]) + flag).all()


def test_program_order_holds_through_branches() -> None:
    k = Kernel("*i32", "*i32")
    state, out = k.args
    old = k.load(state)

    def then() -> Tile:
        k.store(out, old)
        k.store(state, 1)
        return k.load(state)

    (new,) = k.if_(k.pid().eq(0), then, lambda: old)
    k.store(out + 1, new)
    k.store(out + 2, old)
    memory, found = np.array([5], np.int32), np.zeros(3, np.int32)
    k.run(1, memory, found)
    assert list(found) == [5, 1, 5]


def test_loops_step_by_runtime_bounds_of_either_width() -> None:
    for type_ in ("i32", "i64"):
        k = Kernel("*i32", type_, type_, type_)
        out, low, high, step = k.args
        i = k.range(16)

        def body(at: Tile, k: Kernel = k, out: Tile = out, i: Tile = i) -> None:
            index = at if str(at.type) == "i32" else at.convert("trunci", "i32")
            k.store(out + (index + i), 1, index + i < 10)

        k.loop(low, high, step, [], body)
        found = np.zeros(32, np.int32)
        k.run(1, found, 2, 10, 4)
        assert list(np.flatnonzero(found)) == list(range(2, 10))
        k.run(1, found, 5, 5, 1)
        k.run(1, found, 3, 1, 1)
        assert found.sum() == 8


def test_tiles_made_outside_a_loop_are_read_in_it() -> None:
    k = Kernel("*f32", "*f32", "i32")
    x, out, n = k.args
    i = k.range(SIZE)
    loaded = k.load(x + i)
    costly = k.op("math.sqrt", loaded) / 3.0
    (total,) = k.loop(0, n, 1, [k.full((SIZE,), 0, "f32")], lambda step, t: t + costly * loaded)
    k.store(x + i, 0.0)
    k.store(out + i, total + loaded)
    data = np.random.default_rng(0).random(SIZE, dtype=np.float32)
    given, found = data.copy(), np.zeros(SIZE, np.float32)
    k.run(1, given, found, 5)
    np.testing.assert_allclose(found, 5 * (np.sqrt(data) / 3 * data) + data, rtol=1e-6)
    assert not given.any()
