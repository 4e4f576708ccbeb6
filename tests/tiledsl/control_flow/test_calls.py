"""Calls from kernels: helpers, closures, methods, builtins; what runs rewritten and what does not."""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import pytest

import tiledsl
from tests.tiledsl.control_flow.oracle import agrees, at_run_time, traced_helper
from tiledsl.control_flow import calls
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import constexpr, float32, int32, uint32
from tiledsl.language import core

K = 1
NAME = constexpr("a")


def clamped(x: Any, low: Any = 0, *, high: Any = 5) -> Any:
    if x < low:
        return low
    return high if x > high else x


def make(k: int) -> Any:
    def scaled(x: Any) -> Any:
        if x > k:
            return x * k
        return x

    return scaled


def factorial(n: int) -> int:
    if n == 0:
        return 1
    return n * factorial(n - 1)


def test_helpers_take_defaults_keywords_and_tuples() -> None:
    def pair(a: Any, *rest: Any, **named: Any) -> Any:
        return clamped(a, **named), [clamped(r, -1) for r in rest]

    def kernel(n: Any, m: Any) -> Any:
        (a, rest), b = pair(n, m, n + m, high=4), clamped(high=2, x=m)
        return a, rest, b

    for n, m in ((-3, 9), (3, -7), (8, 1)):
        agrees(kernel, n, m)


def test_closures_see_their_own_variables() -> None:
    def kernel(n: Any) -> Any:
        return make(2)(n), make(3)(n), [f(n) for f in [lambda x, k=k: x + k for k in range(3)]]

    for n in (1, 5):
        agrees(kernel, n)
    assert "muli" in str(traced_helper(make(7)))


def test_a_closure_hides_a_global_of_the_same_name() -> None:
    def make_kernel(K: int) -> Any:
        return lambda x: x * K

    assert at_run_time(make_kernel(2), 10) == [20]
    assert at_run_time(make_kernel(3), 10) == [30]
    assert at_run_time(lambda x: x * K, 10) == [10]


def test_lambdas_of_one_line_are_told_apart() -> None:
    pair = [lambda x: 1 if x > 2 else x, lambda x: x if x > 2 else 2]
    for function in pair:
        for x in (0, 9):
            agrees(function, x)


def test_recursion_ends_where_it_is_known_at_compile_time() -> None:
    def kernel(x: Any) -> Any:
        return x + factorial(4)

    agrees(kernel, 1)


def test_nested_functions_rebind_variables_around_them() -> None:
    def kernel(n: Any) -> Any:
        count = 0

        def step() -> None:
            nonlocal count
            count += n

        step()
        step()
        return count

    agrees(kernel, 4)


class Base:
    def __init__(self, k: int) -> None:
        self.__k = k

    def apply(self, x: Any) -> Any:
        return x + self.__k if x > 0 else self._negative(x)

    def _negative(self, x: Any) -> Any:
        return -x

    def __call__(self, x: Any) -> Any:
        if x == 0:
            return 100
        return self.apply(x)


class Derived(Base):
    def apply(self, x: Any) -> Any:
        return super().apply(x) * 2

    @staticmethod
    def twice(x: Any) -> Any:
        return x * 2 if x > 1 else x

    @classmethod
    def made(cls, x: Any) -> Any:
        return cls(3).apply(x)


def test_methods_private_names_super_and_callable_objects() -> None:
    def kernel(n: Any) -> Any:
        return Base(2)(n), Derived(5)(n), Derived.twice(n), Derived.made(n)

    for n in (-2, 0, 3):
        agrees(kernel, n)


def test_functions_of_python_take_helpers() -> None:
    def larger(a: Any, b: Any) -> Any:
        return a if a > b else b

    def kernel(n: Any, m: Any) -> Any:
        best = functools.reduce(larger, [n, m, n - m])
        bound = functools.partial(clamped, high=3)
        return best, list(map(bound, [n, m])), operator.add(n, m), math.prod([n, m])

    for n, m in ((1, 5), (9, 2)):
        agrees(kernel, n, m)


def test_builtins_take_values() -> None:
    def kernel(n: Any, m: Any) -> Any:
        return (
            min(n, m),
            max(n, m, 3),
            min([n, m]),
            abs(n - m),
            sum([n, m], 5),
            divmod(n, 4),
            bool(n),
            min(2, 1),
            len([n]),
        )

    for n, m in ((1, 5), (-9, 2), (0, 0)):
        agrees(kernel, n, m)


def test_print_prints_what_is_known_now(capsys: pytest.CaptureFixture[str]) -> None:
    def kernel(n: Any) -> Any:
        print("block", 4, sep="=")
        core.static_print("type", n)
        return n

    traced_helper(kernel)
    assert capsys.readouterr().out == "block=4\ntype <tile value int32>\n"


def test_constexpr_parameters_of_helpers_are_known_at_compile_time() -> None:
    def block(x: Any, SIZE: constexpr, name: tiledsl.constexpr = NAME) -> Any:
        assert SIZE == 4
        assert name == "a"
        return x + core.arange(0, SIZE).shape[0]  # pyright: ignore

    assert at_run_time(lambda n: block(n, constexpr(4)), 1) == [5]
    with pytest.raises(KernelError) as found:
        traced_helper(lambda n: block(n, n))
    assert str(found.value) == (
        "expected constexpr argument `SIZE` of `block` to be known at compile time, found int32 "
        "scalar"
    )


def test_only_the_marker_makes_a_constexpr() -> None:
    marked = (constexpr, "constexpr", "tile.constexpr", "'tl.constexpr'")
    assert all(calls.is_constexpr(a) for a in marked)
    assert not any(calls.is_constexpr(a) for a in (int, "int", None, "constexpr | None", 4))


def test_helpers_know_the_signedness_of_their_argument() -> None:
    def helper(x: Any) -> Any:
        return x >> 1, x // 2, x < 1

    signed, unsigned = (str(traced_helper(helper, t)) for t in (int32, uint32))
    assert "shrsi" in signed
    assert "signed = true" in signed
    assert "slt" in signed
    assert "shrui" in unsigned
    assert "signed = false" in unsigned
    assert "ult" in unsigned


def test_jitted_helpers_and_libraries() -> None:
    @tiledsl.jit
    def helper(x: Any) -> Any:
        return x * 2 if x > 0 else x

    def kernel(n: Any) -> Any:
        @tiledsl.jit
        def inner(x: Any) -> Any:
            if x > 2:
                return x
            return -x

        return helper(n), inner(n)

    for n, want in ((1, [2, -1]), (3, [6, 3])):
        assert at_run_time(kernel, n) == want


def test_a_function_without_source_runs_as_it_is() -> None:
    space: dict[str, Any] = {}
    exec("def plain(x):\n    return x + 1\n", space)

    assert at_run_time(lambda n: space["plain"](n), 3) == [4]


def test_comprehensions_generators_and_fstrings() -> None:
    def numbers(x: Any) -> Any:
        for i in range(3):
            yield x * i

    def kernel(n: Any) -> Any:
        table = {f"k{i}": n + i for i in range(3)}
        return (
            [v + 1 for v in numbers(n)],
            table["k2"],
            sum(x for x in numbers(n)),
            {*[1, 1]} == {1},
        )

    agrees(kernel, 4)


def test_a_generator_cannot_yield_under_a_branch() -> None:
    def numbers(x: Any) -> Any:
        if x > 0:
            yield x

    with pytest.raises(KernelError) as found:
        traced_helper(lambda n: next(numbers(n)))
    assert str(found.value) == "expected no `yield` inside a run-time branch"


def test_a_jitted_function_called_outside_a_kernel_says_how_to_launch_it() -> None:
    @tiledsl.jit
    def kernel(x: Any) -> Any:
        return x

    with pytest.raises(KernelError) as found:
        kernel(3)
    assert str(found.value) == (
        "expected `kernel` to be launched with a grid, or called from a kernel\n"
        "  hint: kernel[grid](...)"
    )
    assert float32.name == "float32"
