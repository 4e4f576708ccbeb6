"""Branches at run time: what both sides leave behind, laziness, and what they cannot agree on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.tiledsl.control_flow.oracle import agrees, at_run_time, traced_helper
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import bool_, float32, int32, int64, pointer_type
from tiledsl.language import core, memory
from tiledsl.language.core import static_assert


def test_if_elif_else_nested() -> None:
    def graded(n: Any, m: Any) -> Any:
        sign = 0
        if n < 0:
            sign = -1
        elif n == 0:
            if m > 3:
                sign = m
        else:
            sign, m = 1, m + n
        return sign, m, n

    for n in (-2, 0, 3):
        for m in (1, 5):
            agrees(graded, n, m)


def test_early_returns() -> None:
    def graded(n: Any, m: Any) -> Any:
        if n < 0:
            return -1
        if n < 10:
            if m == 2:
                return n * m
            n += 1
        else:
            m += 1
            if m == 4:
                return 44
        return n - m

    for n in (-1, 5, 20):
        for m in (2, 3, 9):
            agrees(graded, n, m)


def test_conditions_known_at_compile_time_prune() -> None:
    def pruned(x: Any) -> Any:
        constant = False
        if x > 3:
            x += 1
        elif constant:
            static_assert(False, "this side is not there")
        else:
            if constant:
                static_assert(False)
            x = -x
        if not constant:
            if x < 0:
                pass
            else:
                x = x * 2
        return x

    for x in (0, 7):
        agrees(pruned, x)
    assert "scf" not in str(
        traced_helper(lambda x: x + 1 if len("a") == 1 else static_assert(False))
    )


def test_conditional_expressions_nest() -> None:
    def chosen(n: Any, m: Any) -> Any:
        return (10 if n > m else 20 if n == m else n), 1 if n else 2.5 if m < 0 else 0.5

    for n, m in ((1, 2), (2, 1), (0, 0)):
        agrees(chosen, n, m)


def test_and_or_not_give_what_python_gives() -> None:
    def logic(n: Any, m: Any) -> Any:
        a = n > 2 and m < 5
        b = n > 2 or m < 5
        c = n and m
        d = n or m
        e = not n
        f = 1 if (n and m > 1) or not m else 0
        return a, b, c, d, e, f

    for n in (0, 1, 3):
        for m in (0, 2, 7):
            agrees(logic, n, m)


def test_and_or_with_operands_known_at_compile_time() -> None:
    def logic(n: Any) -> Any:
        nothing: Any = None
        a = nothing is not None and nothing > n
        b = nothing is None or nothing > n
        c = n > 1 and True
        d = False or n > 1
        return a, b, c, d

    assert at_run_time(logic, 3) == [False, True, True, True]
    assert at_run_time(logic, 0) == [False, True, False, False]


def test_chained_comparisons_evaluate_their_middle_once() -> None:
    calls: list[Any] = []

    def noted(x: Any) -> Any:
        calls.append(x)
        return x + 1

    def chained(n: Any, m: Any) -> Any:
        return 0 < noted(n) <= m < 10, 1 < 2 < n

    for n, m in ((0, 5), (4, 5), (5, 5), (-3, 1), (3, 12)):
        agrees(chained, n, m)
    calls.clear()
    traced_helper(chained)
    assert len(calls) == 1


def test_both_and_and_or_of_bools_are_one_op() -> None:
    def logic(a: Any, b: Any) -> Any:
        return a and b, a or b

    text = str(traced_helper(logic, bool_, bool_))
    assert "scf.if" not in text
    assert text.count("arith.select") == 2


def test_only_the_chosen_side_loads() -> None:
    def guarded(p: Any, n: Any) -> Any:
        first = memory.load(p) if n > 0 else 0
        second = n > 1 and memory.load(p + 1) == 5
        if n > 2:
            first = first + memory.load(p + 2)
        return first, second

    text = str(traced_helper(guarded, pointer_type(int32), int32))
    body, *sides = text.split("scf.if")
    assert "tile.load" not in body
    assert len(sides) == 3
    assert all(side.count("tile.load") == 1 for side in sides)


def test_tiles_and_pointers_leave_branches() -> None:
    def left(p: Any, n: Any) -> Any:
        x = core.zeros((4,))
        q = p
        if n > 0:
            x = x + 1
            q = p + n
        return x, q

    text = str(traced_helper(left, pointer_type(float32), int32))
    assert "scf.if %0 -> (!tile.ptr<f32>, tensor<4xf32>)" in text


KEPT: list[Any] = []


@dataclass
class Pair:
    first: Any
    second: Any


def test_containers_changed_in_branches() -> None:
    def changed(n: Any) -> Any:
        pair, parts, table = Pair(n, 1), [n, n], {"a": 1}
        alias = parts
        if n > 2:
            pair.first = n * 2
            parts[0] = 7
            table["a"] = n
        else:
            parts[1] = parts[0] - 1
            pair = Pair(3, pair.second + 1)
        return pair.first, pair.second, alias[0], alias[1], table["a"]

    agrees(changed, 1)
    agrees(changed, 5)


def test_program_order_holds_through_branches() -> None:
    def ordered(n: Any) -> Any:
        s, new, out = 5, 1, -1
        if n == 0:
            out = s
            s = new
        out2 = s
        return out, s, out2

    agrees(ordered, 0)
    agrees(ordered, 1)


def test_variables_of_nested_functions() -> None:
    def counted(n: Any) -> Any:
        total = 0

        def bump(by: Any) -> None:
            nonlocal total
            if by > 3:
                total += by

        if n > 1:
            bump(n)
        for i in range(n):
            bump(i)
        return total

    for n in (0, 2, 6):
        agrees(counted, n)


def test_variables_that_nobody_reads_may_differ() -> None:
    def differing(n: Any) -> Any:
        if n > 0:
            x: Any = core.zeros((4,))
            y = x.shape[0] + n
        else:
            x = "text"
            y = len(x) - n
        return y

    agrees_with = {1: 5, -1: 5}
    for n, want in agrees_with.items():
        assert at_run_time(differing, n) == [want]


def test_statements_with_resources_and_exceptions() -> None:
    class Resource:
        def __enter__(self) -> int:
            return 3

        def __exit__(self, *error: object) -> None:
            return None

    def guarded(n: Any) -> Any:
        with Resource() as three:
            if n > three:
                n = n - three
        try:
            if n > 1:
                n = [n][5]
        except IndexError:
            n = n * 10
        return n

    assert at_run_time(guarded, 9) == [60]
    assert at_run_time(guarded, 1) == [10]


def message(function: Any, *kinds: Any) -> str:
    with pytest.raises(KernelError) as found:
        traced_helper(function, *kinds)
    return str(found.value)


def test_tiles_are_no_conditions() -> None:
    def wrong(n: Any) -> Any:
        if core.arange(0, 4) < n:
            n = 1
        return n

    assert message(wrong) == (
        "expected a scalar condition, found bool tile of shape (4,)\n"
        "  hint: combine tiles with & | ~, or reduce with tile.any or tile.all"
    )


def test_and_or_not_of_tiles_combine_element_by_element() -> None:
    def logic(n: Any) -> Any:
        x = core.arange(0, 4)
        return 0 < x < n, x and x < 3, not x  # pyright: ignore

    text = str(traced_helper(logic))
    assert text.count("arith.andi") == 2
    assert "scf" not in text


def test_values_of_one_expression_agree() -> None:
    def wrong(n: Any) -> Any:
        return core.zeros((4,)) if n > 0 else 0.0

    assert message(wrong) == (
        "expected both values of a conditional expression to have one type, found float32 tile of "
        "shape (4,) and float32 scalar\n"
        "  hint: tile.where(condition, x, y) chooses element by element and broadcasts"
    )

    def mixed(n: Any) -> Any:
        return n > 0 and n

    assert message(mixed, int64) == (
        "expected both values of `and` to have one type, found int64 scalar and bool scalar"
    )


def test_returned_values_agree() -> None:
    def wrong(n: Any) -> Any:
        if n > 0:
            return core.zeros((4,))
        return 0.0

    with pytest.raises(UnboundLocalError, match="__tile_return"):
        traced_helper(wrong)


def test_assignments_in_lazy_expressions_are_errors() -> None:
    def wrong(n: Any) -> Any:
        return n > 0 and (m := n + 1) > 2, m  # pyright: ignore

    assert message(wrong) == (
        "expected no `:=` in an expression that is evaluated under a run-time condition\n"
        "  hint: use an `if` statement"
    )


def test_containers_have_the_same_elements_after_both_sides() -> None:
    def wrong(n: Any) -> Any:
        parts = [n]
        if n > 0:
            parts.append(n)
        return parts[0]

    assert message(wrong) == (
        "expected `parts` to have the same elements after both sides of a run-time branch, found 2 "
        "and 1"
    )

    def kinds(n: Any) -> Any:
        pair = Pair(n, 1)
        if n > 0:
            pair.second = core.zeros((2,))
        return pair.first

    assert message(kinds) == (
        "expected `pair.second` to have one type after a run-time branch, found float32 tile of "
        "shape (2,) and int32 scalar"
    )


def test_values_do_not_leave_their_branch_by_other_ways() -> None:
    def wrong(p: Any, n: Any) -> Any:
        if n > 0:
            KEPT.append(memory.load(p))
        return KEPT.pop() + 1

    assert message(wrong, pointer_type(int32), int32) == (
        "expected a value that exists here, found int32 scalar made in a run-time branch that has "
        "ended\n"
        "  hint: assign it to a variable that has a value of this type before"
    )


def test_return_in_a_resource_under_a_branch_is_an_error() -> None:
    class Resource:
        def __enter__(self) -> None: ...

        def __exit__(self, *error: object) -> None: ...

    def wrong(n: Any) -> Any:
        if n > 0:
            with Resource():
                return n
        return n

    assert message(wrong) == (
        "expected no `return` inside a run-time branch\n"
        "  hint: set a variable there and return it afterwards"
    )
