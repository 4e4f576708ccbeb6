"""Loops at run time do what Python's do: bounds, carried variables, jumps, conditions tested anew."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiledsl.control_flow.oracle import agrees, at_run_time, traced_helper
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import float32, int32, int64, uint32, uint64
from tiledsl.language import core
from tiledsl.language.ranges import range as tile_range
from tiledsl.language.ranges import static_range

KNOWN = True
SMALL = st.integers(-12, 12)


@settings(max_examples=25, deadline=None)
@given(SMALL, SMALL, SMALL.filter(bool))
def test_for_counts_as_python_with_bounds_and_step_of_run_time(a: int, b: int, c: int) -> None:
    def counted(start: Any, stop: Any, step: Any) -> Any:
        total, trips = 0, 0
        for i in range(start, stop, step):
            total, trips = total * 2 + i, trips + 1
        return total, trips

    agrees(counted, a, b, c)


@pytest.mark.parametrize("bounds", [(5, 0, -1), (9, -2, -3), (0, 10, 3), (3, 3, 1), (0, 5, -1)])
def test_for_counts_as_python_with_a_step_known_at_compile_time(bounds: tuple[int, ...]) -> None:
    start, stop, step = bounds

    def counted(n: Any) -> Any:
        total = 0
        for i in range(start, n, step):
            total = total * 3 + i
        return total

    agrees(counted, stop)


def test_a_step_of_zero_at_run_time_makes_no_trip() -> None:
    def counted(step: Any) -> Any:
        trips = 0
        for _ in range(0, 5, step):
            trips += 1
        return trips

    assert at_run_time(counted, 0) == [0]
    assert at_run_time(counted, 2) == [3]


def test_extreme_bounds_do_not_overflow_the_trip_count() -> None:
    def counted(start: Any, stop: Any, step: Any) -> Any:
        trips = 0
        for _ in range(start, stop, step):
            trips += 1
        return trips

    low, high = -(2**31), 2**31 - 1
    agrees(counted, low, high, 2**30)
    agrees(counted, high, low, -(2**30))


def test_a_positive_step_is_used_as_it_is() -> None:
    def looped(n: Any) -> Any:
        total = 0
        for i in range(0, n, 4):
            total += i
        return total

    text = str(traced_helper(looped))
    assert "scf.for %arg1 = %c0_i32 to %arg0 step %c4_i32 iter_args(%arg2 = %c0_i32_0)" in text


def test_a_grid_stride_is_known_to_be_positive() -> None:
    def looped(n: Any) -> Any:
        total = 0
        for i in range(core.program_id(0), n, core.num_programs(0)):
            total += i
        return total

    text = str(traced_helper(looped))
    assert "arith.divui" not in text
    assert "scf.for %arg1 = %0 to %arg0 step %1" in text


def test_tile_range_is_a_loop_and_carries_its_hints() -> None:
    def looped(x: Any) -> Any:
        for _ in tile_range(4, num_stages=2, flatten=True):
            x = x + x
        return x

    text = str(traced_helper(looped))
    assert "scf.for" in text
    assert "{tile.flatten = true, tile.num_stages = 2 : i64}" in text


def test_static_range_and_pythons_range_unroll() -> None:
    def looped(x: Any) -> Any:
        parts = [x + i for i in range(2)]
        for i in range(2):
            parts[i] = parts[i] * (i + 1)
        for i in static_range(0, 4, 3):
            x = x + i
        return x, parts[0], parts[1]

    assert "scf" not in str(traced_helper(looped))
    agrees(looped, 5)


def test_loop_variables_have_the_type_of_the_bounds() -> None:
    def looped(n: Any) -> Any:
        last = n
        for i in range(n):
            last = i
        return last

    for dtype, text in ((int32, "i32"), (uint32, "i32"), (int64, "i64"), (uint64, "i64")):
        assert f"-> {text} {{" in str(traced_helper(looped, dtype)), dtype


def test_jumps_out_of_and_within_loops() -> None:
    def jumps(n: Any, m: Any) -> Any:
        total = 0
        for i in range(n):
            if i == m:
                continue
            if i > 7:
                break
            for j in range(i):
                if j == 3:
                    break
                if (i + j) % 2:
                    continue
                total += 10 * i + j
            total += 1
        return total

    for n in (0, 1, 5, 12):
        for m in (0, 3, 9):
            agrees(jumps, n, m)


def test_a_loop_that_breaks_ends_at_once() -> None:
    def first(n: Any, m: Any) -> Any:
        for i in range(n):
            if i * i > m:
                break
        else:
            i = -1
        return i

    def plain(n: Any) -> Any:
        total = 0
        for i in range(n):
            if KNOWN:
                total += i
            else:
                break
        return total

    def searched(n: Any, m: Any) -> Any:
        found = -1
        for i in range(n):
            if i * i > m:
                found = i
                break
        return found

    text = str(traced_helper(searched))
    assert "scf.for" not in text
    assert "scf.condition" in text
    assert "scf.if" not in text
    for n, m in ((5, 9), (5, 3), (0, 0), (9, 100)):
        agrees(searched, n, m)
    assert "scf.for" in str(traced_helper(plain))
    with pytest.raises(UnboundLocalError):
        traced_helper(first)


def test_else_of_a_loop_runs_unless_it_broke() -> None:
    def searched(n: Any, wanted: Any) -> Any:
        found = 7
        for i in range(n):
            if i * i == wanted:
                found = 1
                break
        else:
            found = 0
        count = 0
        while count < n:
            count += 2
            if count == wanted:
                break
        else:
            count = -1
        return found, count

    for n, wanted in ((5, 9), (5, 10), (0, 0), (4, 4)):
        agrees(searched, n, wanted)


def test_return_leaves_loops_of_any_depth() -> None:
    def found(n: Any, wanted: Any) -> Any:
        for i in range(n):
            for j in range(n):
                if i * j == wanted:
                    return i, j + 100
            if i == 7:
                return -2, 0
        return -1, -1

    for n, wanted in ((5, 6), (5, 7), (0, 0), (12, 100)):
        agrees(found, n, wanted)


def test_return_leaves_a_loop_known_at_compile_time() -> None:
    def found(x: Any) -> Any:
        for i in range(4):
            if x == i:
                return i * 10
        for i in range(3):
            if i == 2:
                return i + x
        return 99

    for x in (0, 2, 3, 7):
        agrees(found, x)


def test_while_tests_its_condition_before_each_trip() -> None:
    def collatz(n: Any) -> Any:
        steps = 0
        while n != 1 and steps < 100:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            steps += 1
        return n, steps

    for n in (1, 6, 27):
        agrees(collatz, n)


def test_nested_while_loops() -> None:
    def nested(n: Any, m: Any) -> Any:
        total, i = 0, 0
        while i < n:
            j = i
            while j < m:
                total += i * j
                j += 1
            i += 1
        return total, i

    agrees(nested, 4, 6)
    agrees(nested, 0, 6)


def test_while_known_at_compile_time_unrolls_and_may_become_one_of_run_time() -> None:
    def plain(x: Any) -> Any:
        i = 1
        while i < 8:
            x += i
            i *= 2
        return x

    assert "scf" not in str(traced_helper(plain))
    agrees(plain, 3)

    def forever(n: Any) -> Any:
        i = 0
        while True:
            i += 1
            if i * i > n:
                break
        return i

    agrees(forever, 30)
    agrees(forever, -1)


def test_while_with_an_assignment_in_its_condition() -> None:
    def halved(n: Any) -> Any:
        last = n
        while (n := n // 2) > 2:
            last = n
        return n, last

    agrees(halved, 100)
    agrees(halved, 3)


@dataclass
class State:
    total: Any
    steps: list[Any]
    step: int = 3

    def add(self, value: Any) -> None:
        self.total = self.total + value * self.step


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass(frozen=True)
class Frozen:
    value: Any
    scale: int


def test_tuples_lists_dicts_and_dataclasses_are_carried() -> None:
    def carried(n: Any) -> Any:
        pair, table, frozen = Pair(n, 1), {"a": n, "b": 7}, Frozen(n, 2)
        for i in range(n):
            pair = Pair(pair.second, pair.first + i)
            table["a"] = table["a"] * 2
            frozen = replace(frozen, value=frozen.value + frozen.scale)
        return tuple(pair), table["a"], table["b"], frozen.value

    agrees(carried, 5)
    agrees(carried, 0)

    def at_compile_time_index(n: Any) -> Any:
        state = State(n, [n, n + 1])
        for i in range(n):
            state.steps[0] += i
            state.add(state.steps[0])
        return state.total, state.steps

    agrees(at_compile_time_index, 4)
    agrees(at_compile_time_index, 0)


def test_objects_changed_by_their_methods_are_carried() -> None:
    def summed(n: Any) -> Any:
        state = State(0, [])
        for i in range(n):
            if i % 2 == 0:
                state.add(i)
        return state.total

    agrees(summed, 7)
    agrees(summed, 0)


def test_configuration_inside_a_carried_object_stays_known_at_compile_time() -> None:
    def sized(n: Any) -> Any:
        frozen = Frozen(n, 4)
        for _ in range(n):
            frozen = replace(frozen, value=frozen.value + core.arange(0, frozen.scale).shape[0])
        return frozen.value

    assert at_run_time(sized, 3) == [15]


def test_aliases_of_a_list_see_what_the_loop_writes() -> None:
    def written(n: Any) -> Any:
        first = [n, n]
        second = first
        for i in range(n):
            second[1] = second[1] + i
        return first

    agrees(written, 5)


def test_a_variable_may_change_type_where_no_trip_reads_the_old_one() -> None:
    def reused(n: Any) -> Any:
        x: Any = None
        total = 0
        for i in range(n):
            x = core.full((4,), 1, int32)
            x = x.shape[0] + i
            total += x
        return total

    assert at_run_time(reused, 3) == [15]


def test_numbers_take_the_wider_integer_type_that_a_trip_gives() -> None:
    def summed(n: Any) -> Any:
        total = 0
        for i in range(n):
            total += i
        return total

    assert "-> i64" in str(traced_helper(summed, int64))
    assert "-> i64" in str(traced_helper(summed, uint64))
    assert "-> i32" in str(traced_helper(summed, int32))


def test_invariants_are_no_arguments_of_the_loop() -> None:
    def swapped(n: Any) -> Any:
        a, b, same = 1, 2, n
        for _ in range(n):
            a, b = b, a
            same = same if KNOWN else same + 0
        return a, b, same

    assert "iter_args(%arg2 = %c1_i32_0, %arg3 = %c2_i32)" in str(traced_helper(swapped))
    agrees(swapped, 3)


def test_the_loop_variable_is_a_variable_like_another() -> None:
    def last(n: Any) -> Any:
        i = -1
        for i in range(n):  # noqa: B007
            pass
        return i

    agrees(last, 4)
    agrees(last, 0)


def message(function: Any, *kinds: Any) -> str:
    with pytest.raises((KernelError, UnboundLocalError)) as found:
        traced_helper(function, *kinds)
    return str(found.value)


def test_a_type_that_changes_is_an_error_with_both_types() -> None:
    def grows(n: Any) -> Any:
        total = 0.0
        for i in range(n):
            total = total + core.arange(0, 4) * i
        return total

    assert message(grows) == (
        "expected `total` to keep its type in a run-time loop, found float32 scalar before it and "
        "float32 tile of shape (4,) after a trip\n"
        "  hint: start it as tile.full((4,), 0.0, tile.float32)"
    )

    def floats(n: Any) -> Any:
        total = 0
        for _ in range(n):
            total += 1.5
        return total

    assert message(floats) == (
        "expected `total` to keep its type in a run-time loop, found int32 scalar before it and "
        "float32 scalar after a trip\n"
        "  hint: start it as tile.full((), 0, tile.float32)"
    )

    def narrowed(x: Any, n: Any) -> Any:
        for _ in range(n):
            x = x.to(int32)
        return x

    assert message(narrowed, float32, int32) == (
        "expected `x` to keep its type in a run-time loop, found float32 scalar before it and "
        "int32 scalar after a trip\n"
        "  hint: convert it at the end of a trip, as x.to(tile.float32)"
    )


def test_containers_keep_their_elements() -> None:
    def grows(n: Any) -> Any:
        parts = [n]
        for i in range(n):
            parts.append(i)
        return parts[0]

    assert message(grows) == (
        "expected `parts` to keep its elements in a run-time loop, found 1 before it and 2 after a "
        "trip"
    )


def test_jumps_in_every_trip() -> None:
    def once(n: Any) -> Any:
        total = 0
        for i in range(n):
            total += i + 5
            break
        while n < 4:
            return total, -1
        for i in range(n):
            total += i
            continue
        return total, n

    for n in (0, 3, 6):
        agrees(once, n)


def test_a_break_in_a_resource_is_an_error() -> None:
    class Resource:
        def __enter__(self) -> None: ...

        def __exit__(self, *error: object) -> None: ...

    def wrong(n: Any) -> Any:
        for _ in range(n):
            with Resource():
                break
        return n

    assert message(wrong) == "expected no `break` of a run-time loop in a `with` or `try`"

    def fine(n: Any) -> Any:
        for i in range(3):
            with Resource():
                if i == 1:
                    break
            n = n + 1
        return n

    agrees(fine, 1)


def test_loops_that_would_unroll_without_end_are_errors() -> None:
    def unrolled(x: Any) -> Any:
        for _ in range(4096):
            x = x + 1
        return x

    assert message(unrolled) == (
        "expected a loop known at compile time to make at most 1024 trips, as it is unrolled\n"
        "  hint: tile.range(...) makes it a loop at run time"
    )

    def endless(x: Any) -> Any:
        while True:
            x = x + 1
        return x

    assert message(endless) == (
        "expected a loop known at compile time to make at most 1024 trips, as it is unrolled"
    )


def test_a_long_loop_of_plain_python_is_no_error() -> None:
    def table(x: Any) -> Any:
        total = 0
        for i in range(5000):
            total += i
        return x + total

    agrees(table, 1)
