"""Structured control flow from any: the text after the rewriting, and the same results."""

from __future__ import annotations

import ast
import itertools
import textwrap
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledsl.control_flow.desugar import KNOWN_TRUE, desugar


def rewritten(source: str) -> str:
    module = ast.parse(textwrap.dedent(source))
    function = module.body[0]
    assert isinstance(function, ast.FunctionDef)
    desugar(function)
    for node in ast.walk(function):
        if "lineno" in node._attributes:
            assert hasattr(node, "lineno"), ast.dump(node)
    return ast.unparse(function)


def shown(source: str) -> str:
    return ast.unparse(ast.parse(textwrap.dedent(source)))


def test_what_follows_an_early_return_moves_into_the_other_side() -> None:
    assert rewritten(
        """
        def f(a):
            if a > 0:
                return 1
            b = a + 1
            return b
        """
    ) == shown(
        """
        def f(a):
            if a > 0:
                __tile_return = 1
            else:
                b = a + 1
                __tile_return = b
            return __tile_return
        """
    )


def test_it_is_copied_where_both_sides_go_on() -> None:
    assert rewritten(
        """
        def f(a):
            if a:
                if a > 1:
                    return
            g(a)
        """
    ) == shown(
        """
        def f(a):
            if a:
                if a > 1:
                    __tile_return = None
                else:
                    g(a)
                    __tile_return = None
            else:
                g(a)
                __tile_return = None
            return __tile_return
        """
    )


def test_plain_functions_stay_as_they_are() -> None:
    source = """
        def f(a):
            for i in a:
                if i:
                    g(i)
            while a:
                a = g(a)
            return a
        """
    assert rewritten(source) == shown(source)


def test_continue_and_break() -> None:
    assert rewritten(
        """
        def f(a):
            while g(a):
                if a == 1:
                    continue
                if a == 2:
                    break
                h(a)
            else:
                k(a)
        """
    ) == shown(
        """
        def f(a):
            __tile_break_1 = False
            while not __tile_break_1 and g(a):
                if a == 1:
                    pass
                elif a == 2:
                    __tile_break_1 = True
                else:
                    h(a)
            if not __tile_break_1:
                k(a)
        """
    )


def test_a_for_with_a_break_does_nothing_afterwards_and_ends_where_that_is_known() -> None:
    assert rewritten(
        """
        def f(a):
            for i in a:
                if i == 2:
                    break
                h(i)
        """
    ) == shown(
        f"""
        def f(a):
            __tile_break_1 = False
            for i in a:
                if not __tile_break_1:
                    if i == 2:
                        __tile_break_1 = True
                    else:
                        h(i)
                if {KNOWN_TRUE}(__tile_break_1):
                    break
        """
    )


def test_return_in_a_loop_is_a_break_and_a_return() -> None:
    assert rewritten(
        """
        def f(a):
            for i in a:
                if i == 2:
                    return i
            return 0
        """
    ) == shown(
        f"""
        def f(a):
            __tile_returned_1 = False
            for i in a:
                if not __tile_returned_1:
                    if i == 2:
                        __tile_return = i
                        __tile_returned_1 = True
                        __tile_returned_1 = True
                if {KNOWN_TRUE}(__tile_returned_1):
                    break
            if __tile_returned_1:
                __tile_return = __tile_return
            else:
                __tile_return = 0
            return __tile_return
        """
    )


def statements(depth: int) -> st.SearchStrategy[Any]:
    """Return lists of statements nested up to a depth: texts, or (head, body, else)."""
    simple = st.sampled_from(
        ["note(1)", "note(2)", "return x", "return", "break", "continue", "x += 1", "pass"]
    )
    if depth == 0:
        return st.lists(simple, min_size=1, max_size=2)
    inner = statements(depth - 1)
    heads = st.sampled_from(
        ["if x > {}:", "if x % 3 == {}:", "while x < {}:", "for i in range({}):"]
    )
    compound = st.tuples(heads, inner, st.one_of(st.just([]), inner))
    return st.lists(st.one_of(simple, compound), min_size=1, max_size=3)


def text_of(body: Any, depth: int, in_loop: bool, numbers: Any) -> list[str]:
    pad, lines = "    " * depth, list[str]()
    for part in body:
        if isinstance(part, str):
            jump = part in ("break", "continue") and not in_loop
            lines.append(pad + ("pass" if jump else part))
            continue
        head, first, second = part
        lines.append(pad + head.format(next(numbers)))
        loop = not head.startswith("if")
        if head.startswith("while"):
            lines.append(pad + "    x += 1")
        lines += text_of(first, depth + 1, in_loop or loop, numbers)
        if second:
            lines.append(pad + "else:")
            lines += text_of(second, depth + 1, in_loop, numbers)
    return lines


def outcome(source: str, x: int) -> tuple[object, list[int]]:
    notes: list[int] = []

    def note(number: int) -> None:
        notes.append(number)
        if len(notes) > 500:
            raise TimeoutError

    space: dict[str, Any] = {"note": note, KNOWN_TRUE: lambda flag: flag is True}
    exec(source, space)
    try:
        return space["f"](x), notes
    except TimeoutError:
        return "many", notes


@settings(max_examples=80, deadline=None)
@given(statements(3), st.integers(-2, 6))
def test_nothing_that_can_be_observed_changes(body: Any, x: int) -> None:
    lines = text_of(body, 1, False, itertools.cycle([1, 4, 2, 5, 3]))
    source = "def f(x):\n" + "\n".join(lines)
    assert outcome(rewritten(source), x) == outcome(source, x), source


@pytest.mark.parametrize("inner", ["def g(y):", "class G:\n        def h(y):"])
def test_nested_functions_are_restructured_too(inner: str) -> None:
    pad = "            " if "class" in inner else "        "
    source = f"def f(x):\n    {inner}\n{pad}if y:\n{pad}    return 1\n{pad}return 2\n    return x"
    text = rewritten(source)
    assert text.count("__tile_return") == 3
    assert text.endswith("return x")
