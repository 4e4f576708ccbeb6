"""Faults that users of other kernel languages met: loops, branches, returns and names."""

import dataclasses

import numpy as np
import pytest

import tiledsl as tile
from tests.kernels.oracle import check, is_poison, poisoned


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_a_pipelined_load_used_in_a_branch_is_its_own(warps: int, stages: int) -> None:  # K055
    @tile.jit
    def kernel(table, out, flag, n):
        for i in range(n):
            at = tile.load(table + i)
            if flag == 1:
                tile.store(out + at, i + 1)

    table = np.arange(17, dtype=np.int32)
    for flag in (1, 0, np.int64(1)):
        out = poisoned(17, tile.int32)
        kernel[1,](table, out, flag, 17, num_warps=warps, num_stages=stages)
        if flag:
            check(out, np.arange(1, 18, dtype=np.int32), f"{stages}")
        else:
            assert is_poison(out)


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_loads_are_not_moved_over_stores_that_may_alias(warps: int, stages: int) -> None:  # K056
    @tile.jit
    def kernel(x, out, rows, N: tile.constexpr):
        i = tile.arange(0, N)
        for row in range(rows):
            written = i * 3 + row
            tile.store(x + row * N + i, written)
            read = tile.load(x + row * N + i)
            tile.store(out + row * N + i, read - written)

    rows, columns = 16, 4096
    x, out = np.full(rows * columns, -1, np.int32), poisoned(rows * columns, tile.int32)
    kernel[1,](x, out, rows, N=columns, num_warps=warps, num_stages=stages)
    check(out, np.zeros(rows * columns, np.int32), "difference")


def test_loops_without_trips_run_nothing(place: str) -> None:  # K059
    @tile.jit
    def kernel(out, zero, five, three, one):
        for start, stop, step in ((0, 0, 2), (5, 5, 1), (3, 1, 1)):
            for i in range(start, stop, step):
                tile.store(out + i, i)
        for i in range(zero, zero, 2):
            tile.store(out + i, i)
        for i in range(five, five):
            tile.store(out + i, i)
        for i in range(three, one):
            tile.store(out + i, i)
        for i in tile.range(0, 0, 2):
            tile.store(out + i, i)

    out = poisoned(8, tile.int32)
    kernel[1,](out, 0, 5, 3, 1)
    assert is_poison(out)


def test_while_tests_its_scalar_before_each_trip(place: str) -> None:  # K061
    @tile.jit
    def kernel(n, out):
        pid = tile.program_id(0)
        limit = tile.load(n + pid)
        i = 0
        while i < limit:
            i += 1
        outer, inner = 0, 0
        while outer < 3:
            j = 0
            while j < limit:
                j += 2
                inner += 1
            outer += 1
        tile.store(out + 2 * pid, i)
        tile.store(out + 2 * pid + 1, inner)

    n = np.array([0, 1, 3, 1000], np.int32)
    out = poisoned(8, tile.int32)
    kernel[4,](n, out)
    check(out, np.stack([n, 3 * ((n + 1) // 2)], 1), "trips")


def test_a_loops_result_is_its_last_trips(place: str) -> None:  # K062
    @tile.jit
    def kernel(out, trips, FIXED):
        a, d = tile.full((), 1.0, tile.float32), tile.full((), 12.0, tile.float32)
        o = d
        for _ in tile.range(trips if FIXED is None else FIXED):
            o = a / d
        tile.store(out, o)

    for trips in (0, 1, 2, 3, 40):
        for fixed in (None, trips):
            out = poisoned(1, tile.float32)
            kernel[1,](out, trips, FIXED=fixed)
            expected = np.float32(1) / np.float32(12) if trips else np.float32(12)
            check(out, np.array([expected]), f"{trips}")


def test_returns_before_the_end(place: str) -> None:  # K064
    @tile.jit
    def spare(out, n, BLOCK: tile.constexpr):
        pid = tile.program_id(0)
        if pid * BLOCK >= n:
            return
        i = pid * BLOCK + tile.arange(0, BLOCK)
        tile.store(out + i, i, mask=i < n)

    for n in (0, 5, 20):
        out = poisoned(n, tile.int32)
        spare[4,](out, n, BLOCK=8)
        check(out, np.arange(n, dtype=np.int32), f"{n}")

    @tile.jit
    def chosen(x, FAST: tile.constexpr):
        if FAST:
            return x * 2
        tile.static_assert(False, "never traced")
        return x

    @tile.jit
    def unused(x, out, n):
        for i in range(n):
            if i % 2 == 0:
                chosen(tile.load(x + i), FAST=True)
                tile.store(out + i, chosen(i, True))
            else:
                tile.store(out + i, -i)

    out = poisoned(6, tile.int32)
    unused[1,](np.zeros(6, np.int32), out, 6)
    check(out, np.array([0, -1, 4, -3, 8, -5], np.int32), "helper")


def test_a_return_inside_a_loop_works_or_is_a_clear_error(place: str) -> None:  # K064
    @tile.jit
    def kernel(x, out, n):
        for i in range(n):
            if tile.load(x + i) == 0:
                tile.store(out, i)
                return
        tile.store(out, -1)

    out = poisoned(1, tile.int32)
    kernel[1,](np.array([4, 2, 0, 7], np.int32), out, 4)
    check(out, np.array([2], np.int32), "found")
    kernel[1,](np.array([4, 2, 1, 7], np.int32), out, 4)
    check(out, np.array([-1], np.int32), "not found")


def test_only_the_chosen_side_is_evaluated(place: str) -> None:  # K065
    @tile.jit
    def bump(counter, value):
        tile.atomic_add(counter, 1)
        return value

    @tile.jit
    def kernel(out, counters, x):
        pid = tile.program_id(0)
        tile.store(out + pid, 10 if pid % 2 == 0 else 20)
        value = bump(counters, 1) if pid < 3 else bump(counters + 1, 2)
        far = tile.load(x + 10**12) if pid > 100 else tile.load(x)
        tile.store(out + 4 + pid, value + far)
        if pid < 0 and tile.load(x + 10**12) == 0:
            tile.store(out, -1)

    out, counters = poisoned(8, tile.int32), np.zeros(2, np.int32)
    kernel[4,](out, counters, np.array([100], np.int32))
    check(out, np.array([10, 20, 10, 20, 101, 101, 101, 102], np.int32), "sides")
    assert counters.tolist() == [3, 1]


def test_constant_conditions_are_pruned_at_any_depth(place: str) -> None:  # K067
    @tile.jit
    def kernel(out, flag, NO: tile.constexpr, MODE: tile.constexpr):
        if flag > 0:
            tile.store(out, 1)
        elif NO:
            tile.static_assert(False, "pruned")
        elif flag == 0:
            if NO:
                tile.static_assert(False, "pruned")
            elif MODE == "a":
                pass
            else:
                tile.store(out, 2)
        else:
            pass
        if NO:
            if flag > 0:
                tile.static_assert(False, "pruned")
        else:
            if flag > 0:
                pass
            else:
                tile.store(out + 1, 3)
        value = undefined_name if NO else 4  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
        tile.store(out + 2, value)

    for flag, mode, first, second in (
        (1, "b", 1, 0),
        (0, "b", 2, 3),
        (0, "a", 0, 3),
        (-1, "a", 0, 3),
    ):
        out = np.zeros(3, np.int32)
        kernel[1,](out, flag, NO=False, MODE=mode)
        assert out.tolist() == [first, second, 4]


@dataclasses.dataclass
class Pair:
    """Two values."""

    old: object
    new: object


def test_assignments_keep_their_order_through_branches(place: str) -> None:  # K068
    @tile.jit
    def swap(pair):
        return Pair(pair.new, pair.old)

    @tile.jit
    def kernel(x, out):
        pid = tile.program_id(0)
        old = tile.load(x + pid)
        s = old
        new = 1
        fields = Pair(s, 5)
        if pid == 0:
            tile.store(out, s)
            s = new
            tile.store(out + 1, s)
            new = s + 10
            fields = swap(fields)
        else:
            s = s + 100
        tile.store(out + 2 + 4 * pid, s)
        tile.store(out + 3 + 4 * pid, new)
        tile.store(out + 4 + 4 * pid, fields.old)
        tile.store(out + 5 + 4 * pid, fields.new)

    out = poisoned(10, tile.int32)
    kernel[2,](np.array([7, 8], np.int32), out)
    check(out, np.array([7, 1, 1, 11, 5, 7, 108, 1, 8, 5], np.int32), "order")


@pytest.mark.parametrize("rows", [2, 37])
def test_grid_stride_loops_keep_their_masks_and_end(warps: int, rows: int) -> None:  # K070
    @tile.jit
    def kernel(x, out, rows, n, N: tile.constexpr):
        j = tile.arange(0, N)
        row = tile.program_id(0)
        while row < rows:
            value = tile.load(x + row * N + j, mask=j < n)
            tile.store(out + row * N + j, value, mask=j < n)
            row += tile.num_programs(0)

    x = np.arange(rows * 16).astype(np.float16)
    for n in (16, 9, 8, 0):
        out = np.full(rows * 16 + 16, -1, np.float16)
        kernel[8,](x, out, rows, n, N=16, num_warps=warps)
        expected = np.full((rows + 1, 16), -1, np.float16)
        expected[:rows, :n] = x.reshape(rows, 16)[:, :n]
        np.testing.assert_array_equal(out, expected.ravel())


def test_names_follow_python_scoping(place: str) -> None:  # K098
    def make(k):
        @tile.jit
        def kernel(out):
            tile.store(out, k)

        return kernel

    def nested(k):
        def inner():
            return make(k * 10)

        return inner()

    kernels = [make(2), make(3), nested(4), *[make(i) for i in range(5, 8)]]
    for kernel, expected in zip(kernels, (2, 3, 40, 5, 6, 7), strict=True):
        out = poisoned(1, tile.int32)
        kernel[1,](out)
        check(out, np.array([expected], np.int32), f"{expected}")

    lambdas = [lambda x, i=i: x * i for i in range(3)]
    late = [lambda x: x * i for i in range(3)]  # noqa: B023 (all see the last i, as in Python)

    @tile.jit
    def apply(out, FUNCTIONS: tile.constexpr):
        for at, function in enumerate(FUNCTIONS):
            tile.store(out + at, function(tile.program_id(0) + 10))

    out = poisoned(6, tile.int32)
    apply[1,](out, FUNCTIONS=(*lambdas, *late))
    check(out, np.array([0, 10, 20, 20, 20, 20], np.int32), "lambdas")
