"""Finding a function's tree in its file, and the rewritten function made of it."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from typing import Any

import pytest

from tiledsl.control_flow.function import is_rewritten, rewritten
from tiledsl.control_flow.source import find, require
from tiledsl.dialects.diagnostics import KernelError


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


@decorated
@decorated
def under_decorators(x: Any) -> Any:
    return x + 1


PAIR = [lambda x: x + 1, lambda x: x + 2]
SAME = (lambda x, y=1: x, lambda x, *y: x, lambda *, x: x)


class Outer:
    class Inner:
        def method(self) -> str:
            return "inner"

    def method(self) -> str:
        return "outer"


def node_of(function: Callable[..., Any]) -> Any:
    found = find(function.__code__)
    assert found is not None
    return found.node


def test_functions_are_found_by_line_and_name() -> None:
    assert node_of(under_decorators.__wrapped__.__wrapped__).name == "under_decorators"
    assert node_of(test_functions_are_found_by_line_and_name).lineno > 40


def test_lambdas_of_one_line_are_found_by_where_their_code_is() -> None:
    assert [ast.unparse(node_of(f).body) for f in PAIR] == ["x + 1", "x + 2"]
    assert [ast.unparse(node_of(f).args) for f in SAME] == ["x, y=1", "x, *y", "*, x"]


def test_methods_know_the_class_around_them() -> None:
    for method, name in ((Outer.method, "Outer"), (Outer.Inner.method, "Inner")):
        found = require(method.__code__, "method")
        assert found.class_name == name
        assert isinstance(found.node, ast.FunctionDef)


def test_no_source_is_no_tree() -> None:
    space: dict[str, Any] = {}
    exec("def gone(x): return x", space)
    assert find(space["gone"].__code__) is None
    with pytest.raises(
        KernelError, match=r"^expected the source of `gone`, found none in <string>"
    ):
        require(space["gone"].__code__, "gone")


COUNT = 1


def make(k: int) -> Any:
    def counted(x: int, step: int = 2, *, more: int = 3) -> int:
        """Count."""
        return x + k + step + more + COUNT

    return counted


def test_a_rewritten_function_shares_globals_closure_and_defaults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    function = make(10)
    made = rewritten(function)
    assert (made(1), made(1, 0, more=0)) == (17, 12)
    assert made.__globals__ is function.__globals__
    assert made.__closure__ is not None
    assert made.__closure__[0] is function.__closure__[0]
    assert (made.__name__, made.__qualname__) == (function.__name__, function.__qualname__)
    monkeypatch.setitem(globals(), "COUNT", 100)
    assert made(1) == 116


def test_rewriting_happens_once_a_code_object() -> None:
    first, second = rewritten(make(1)), rewritten(make(2))
    assert first.__code__ is second.__code__
    assert is_rewritten(first.__code__)
    assert not is_rewritten(make(1).__code__)
    assert rewritten(first) is first


def test_positions_stay_the_authors() -> None:
    function = make(1)
    made = rewritten(function)
    assert made.__code__.co_filename == function.__code__.co_filename
    wanted = {p for p in function.__code__.co_positions() if p[2] is not None and p[0] is not None}
    assert wanted & set(made.__code__.co_positions())
    assert made.__code__.co_firstlineno == function.__code__.co_firstlineno
