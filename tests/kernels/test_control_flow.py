"""Control flow that depends on run-time values, nested and carrying everything that can be carried."""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tiledsl as tile
from tests.kernels.oracle import check, poisoned, whole


@pytest.mark.parametrize(
    "bounds", [(0, 5, 1), (0, 5, 2), (2, 17, 4), (5, 5, 1), (3, 1, 1), (5, 0, -1), (9, -2, -3), (0, 0, 2), (-7, 6, 5)],
    ids=str,
)  # fmt: skip
def test_for_loops_count_like_pythons(place: str, bounds: tuple[int, int, int]) -> None:
    @tile.jit
    def kernel(start, stop, out, STEP: tile.constexpr):
        count, total, last = 0, 0, -100
        for i in range(start, stop, STEP):
            count += 1
            total += i * count
            last = i
        tile.store(out, count)
        tile.store(out + 1, total)
        tile.store(out + 2, last)

    start, stop, step = bounds
    out = poisoned(3, tile.int32)
    kernel[1,](start, stop, out, STEP=step)
    numbers = list(range(*bounds))
    total = sum(i * (k + 1) for k, i in enumerate(numbers))
    last = numbers[-1] if numbers else -100
    check(out, np.array([len(numbers), total, last], np.int32), f"{bounds}")


def test_loops_with_a_step_known_at_run_time(place: str) -> None:
    @tile.jit
    def kernel(n, step, out):
        total = 0
        for i in range(0, n, step):
            total += i + 1
        tile.store(out, total)

    for n, step in ((10, 3), (10, 1), (0, 4), (1, 100)):
        out = poisoned(1, tile.int32)
        kernel[1,](n, step, out)
        check(out, np.array([sum(i + 1 for i in range(0, n, step))], np.int32), f"{n}")


def test_loops_carry_tiles_scalars_pointers_and_tuples(warps: int) -> None:
    @tile.jit
    def kernel(x, out, rows, columns, BLOCK: tile.constexpr):
        i = tile.arange(0, BLOCK)
        total, best = tile.zeros((BLOCK,), tile.float32), (-1e30, 0)
        ptr, moving = x, x + i
        for row in range(rows):
            value = tile.load(moving, mask=i < columns, other=0.0)
            total += value
            first = tile.load(ptr)
            if first > best[0]:
                best = (first, row)
            ptr += columns
            moving += columns
        tile.store(out + i, total)
        tile.store(out + BLOCK, best[0])
        tile.store(out + BLOCK + 1, best[1] * 1.0)

    for rows in (0, 1, 9):
        x = whole(tile.float32, rows * 50, rows, 30).reshape(rows, 50)
        out = poisoned(66, tile.float32)
        kernel[1,](x, out, rows, 50, BLOCK=64, num_warps=warps)
        expected = np.zeros(66, np.float32)
        expected[:50] = x.sum(0)
        expected[64] = x[:, 0].max() if rows else -1e30
        expected[65] = x[:, 0].argmax() if rows else 0
        check(out, expected, f"{rows} rows")


def test_nested_loops_and_branches(warps: int) -> None:
    @tile.jit
    def kernel(x, out, n, m, BLOCK: tile.constexpr):
        lane = tile.arange(0, BLOCK)
        acc = tile.zeros((BLOCK,), tile.int32)
        scalar = 1
        for i in range(n):
            inner = acc
            for j in range(i, m):
                if (i + j) % 3 == 0:
                    inner += lane * j
                elif j % 2 == 1:
                    inner = inner - tile.load(x + (i + j) % 8)
                else:
                    scalar = scalar * 3 + j
                if i > j:
                    scalar += 1000
            k = i
            while k > 0:
                k = k // 2
                inner += k
            acc = inner ^ scalar
        tile.store(out + lane, acc)
        tile.store(out + BLOCK, scalar)

    x = whole(tile.int32, 8, 1, 100)
    for n, m in ((0, 3), (1, 1), (5, 7), (9, 4)):
        out = poisoned(33, tile.int32)
        kernel[1,](x, out, n, m, BLOCK=32, num_warps=warps)
        lane, acc, scalar = np.arange(32, dtype=np.int32), np.zeros(32, np.int32), 1
        for i in range(n):
            inner = acc
            for j in range(i, m):
                if (i + j) % 3 == 0:
                    inner = inner + lane * np.int32(j)
                elif j % 2 == 1:
                    inner = inner - x[(i + j) % 8]
                else:
                    scalar = (scalar * 3 + j + 2**31) % 2**32 - 2**31
                if i > j:
                    scalar += 1000
            k = i
            while k > 0:
                k //= 2
                inner = inner + np.int32(k)
            acc = inner ^ np.int32(scalar)
        check(out, np.append(acc, np.int32(scalar)), f"{n}, {m}")


def test_while_loops_test_anew_before_each_trip(place: str) -> None:
    @tile.jit
    def collatz(n, out):
        value, steps = tile.load(n + tile.program_id(0)), 0
        while value != 1:
            value = value // 2 if value % 2 == 0 else 3 * value + 1
            steps += 1
        tile.store(out + tile.program_id(0), steps)

    n = np.array([1, 2, 3, 27, 97], np.int32)
    out = poisoned(5, tile.int32)
    collatz[5,](n, out)
    check(out, np.array([0, 1, 7, 111, 118], np.int32), "collatz")


def test_while_with_and_or_and_chained_comparison(place: str) -> None:
    @tile.jit
    def kernel(x, n, out):
        i = 0
        while i < n and tile.load(x + i) != 0:
            i += 1
        tile.store(out, i)
        tile.store(out + 1, 1 if 2 <= i < 5 else 0)
        tile.store(out + 2, 1 if not (i == 3 or n == 4) else 0)
        tile.store(out + 3, 1 if i < 0 or (i > 2 and not n > 100) else 0)

    for values in ([1, 2, 0, 4], [0], [5, 5, 5], [1, 2, 3, 4, 5, 0], [7] * 8):
        x = np.array(values, np.int32)
        out = poisoned(4, tile.int32)
        kernel[1,](x, x.size, out)
        i = values.index(0) if 0 in values else len(values)
        rest = [2 <= i < 5, not (i == 3 or len(values) == 4), i > 2]
        check(out, np.array([i, *rest], np.int32), f"{values}")


def test_an_early_return_ends_the_program(place: str) -> None:
    @tile.jit
    def kernel(out, n):
        pid = tile.program_id(0)
        if pid >= n:
            return
        if pid % 2 == 0:
            tile.store(out + pid, 100 + pid)
            return
        tile.store(out + pid, pid)

    for n in (0, 3, 8):
        out = poisoned(8, tile.int32)
        kernel[8,](out, n)
        check(out, np.array([100, 1, 102, 3, 104, 5, 106, 7][:n], np.int32), f"{n}")


def test_helpers_return_early_with_values(place: str) -> None:
    @tile.jit
    def sign(x):
        if x > 0:
            return 1
        if x < 0:
            return -1
        return 0

    def pick(x, y):
        if x > y:
            return x, y
        return y, x

    @tile.jit
    def kernel(x, out, n):
        for i in range(n):
            value = tile.load(x + i)
            tile.store(out + i, sign(value) * 10)
            high, low = pick(value, 2)
            tile.store(out + n + i, high * 100 + low)

    x = np.array([-5, 0, 3, 2, 7], np.int32)
    out = poisoned(10, tile.int32)
    kernel[1,](x, out, 5)
    expected = [*(np.sign(x) * 10), *(max(v, 2) * 100 + min(v, 2) for v in x.tolist())]
    check(out, np.array(expected, np.int32), "helpers")


def test_branches_leave_tiles_and_tuples(warps: int) -> None:
    @tile.jit
    def kernel(x, out, flag, BLOCK: tile.constexpr):
        i = tile.arange(0, BLOCK)
        value = tile.load(x + i)
        pair = (value, 1)
        if flag > 0:
            pair = (value * 2, 2)
            if flag > 1:
                pair = (pair[0] + 1, pair[1] + 10)
        elif flag == 0:
            value = -value
        else:
            pair = (value - 3, pair[1] * 5)
        tile.store(out + i, pair[0] + pair[1] + value)

    x = whole(tile.int32, 64, 2, 50)
    for flag in (-1, 0, 2, 5):
        out = poisoned(64, tile.int32)
        kernel[1,](x, out, flag, BLOCK=64, num_warps=warps)
        expected = {-1: x - 3 + 5 + x, 0: x + 1 - x}.get(flag, x * 2 + 1 + 12 + x)
        check(out, expected.astype(np.int32), f"{flag}")


@dataclass
class State:
    """What a kernel's loop carries."""

    total: Any
    count: Any


def test_dataclasses_lists_and_dicts_of_values(place: str) -> None:
    def step(state, value):
        return State(state.total + value, state.count + 1)

    @tile.jit
    def kernel(x, out, n, BLOCK: tile.constexpr):
        i = tile.arange(0, BLOCK)
        state = State(tile.zeros((BLOCK,), tile.int32), 0)
        parts = [i, i * 2]
        named = {"low": 1, "high": 2}
        for k in range(n):
            state = step(state, tile.load(x + k))
            parts[1] = parts[1] + parts[0]
            named["low"] = named["low"] + named["high"]
        total = state.total + state.count + sum(parts) + named["low"]
        tile.store(out + i, total)

    x = whole(tile.int32, 6, 3, 100)
    for n in (0, 1, 6):
        out = poisoned(8, tile.int32)
        kernel[1,](x, out, n, BLOCK=8)
        i = np.arange(8)
        expected = x[:n].sum() + n + i + 2 * i + n * i + 1 + 2 * n
        check(out, expected.astype(np.int32), f"{n}")


def test_static_loops_unroll_and_plain_python_stays_plain(place: str) -> None:
    @tile.jit
    def kernel(out, N: tile.constexpr, NAMES: tile.constexpr):
        for i in tile.static_range(N):
            tile.store(out + i, i * i)
        for i, name in enumerate(NAMES):
            if name == "skip":
                continue
            tile.store(out + N + i, len(name))
        values = [tile.load(out + i) for i in range(N)]
        total = 0
        for a, b in itertools.pairwise(values):
            total += a * b
        tile.store(out + N + 1, total)

    out = poisoned(7, tile.int32)
    kernel[1,](out, N=4, NAMES=("one", "skip", "three"))
    check(out, np.array([0, 1, 4, 9, 3, 40, 5], np.int32), "static")


def test_break_and_continue_at_run_time(place: str) -> None:
    @tile.jit
    def kernel(x, n, out):
        total = 0
        for i in range(n):
            value = tile.load(x + i)
            if value < 0:
                continue
            if value == 0:
                break
            total += value
        k = 0
        while True:
            if k * k > n:
                break
            k += 1
        tile.store(out, total)
        tile.store(out + 1, k)

    x = np.array([3, -1, 4, 0, 5], np.int32)
    out = poisoned(2, tile.int32)
    kernel[1,](x, 5, out)
    check(out, np.array([7, 3], np.int32), "break")


def test_loads_and_stores_in_a_loop_keep_their_order(warps: int) -> None:
    @tile.jit
    def kernel(x, n, BLOCK: tile.constexpr):
        i = tile.arange(0, BLOCK)
        for _ in range(n):
            value = tile.load(x + i)
            tile.store(x + (BLOCK - 1 - i), value + 1)

    x = np.arange(128, dtype=np.int32)
    expected = x.copy()
    for _ in range(5):
        expected = (expected + 1)[::-1]
    kernel[1,](x, 5, BLOCK=128, num_warps=warps)
    assert x.tolist() == expected.tolist()


def test_conditions_of_every_type(place: str) -> None:
    @tile.jit
    def kernel(x, out, n):
        for i in range(n):
            value = tile.load(x + i)
            tile.store(out + i, 1 if value else 0)

    for dtype, values in (
        (np.int64, [0, 1, -1, 2**40]),
        (np.float32, [0.0, -0.0, np.nan, 1e-40]),
        (np.bool_, [True, False, False, True]),
    ):
        x = np.array(values, dtype)
        out = poisoned(4, tile.int32)
        kernel[1,](x, out, 4)
        check(out, x.astype(bool).astype(np.int32), f"{dtype}")


def test_loop_bounds_of_every_integer_type(place: str) -> None:
    @tile.jit
    def kernel(n, out):
        total = tile.full((), 0, tile.int64)
        for i in range(n):
            total += i.to(tile.int64)  # pyright: ignore[reportAttributeAccessIssue]
        tile.store(out, total)

    for dtype in (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64):
        out = poisoned(1, tile.int64)
        kernel[1,](dtype(100), out)
        check(out, np.array([4950]), f"{dtype}")


@tile.jit
def power(x, n):
    return x if n == 0 else power(x * x, n - 1)


def total(values):
    return 0 if not values else values[0] + total(values[1:])


def test_helpers_call_themselves_at_compile_time(place: str) -> None:
    def local(x, n):
        return x if n == 0 else local(x + n, n - 1)

    @tile.jit
    def kernel(out):
        pid = tile.program_id(0)
        tile.store(out, power(pid + 3, 2))
        tile.store(out + 1, total([pid, 1, pid + 2]))
        tile.store(out + 2, local(pid, 4))

    out = poisoned(3, tile.int32)
    kernel[1,](out)
    check(out, np.array([81, 3, 10], np.int32), "recursion")
