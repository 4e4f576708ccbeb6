"""Spans of expressions that are being executed: columns, lines, comprehensions, libraries."""

from __future__ import annotations

import inspect
import json
import linecache
import os
from types import CodeType
from typing import Any

import numpy as np

from tiledsl.dialects.diagnostics import Span
from tiledsl.language import positions
from tiledsl.language.positions import Place


def compiled(source: str, name: str) -> CodeType:
    lines: list[str] = source.splitlines(True)
    linecache.cache[name] = (len(source), None, lines, name)
    return compile(source, name, "exec")


def places(source: str) -> list[Place]:
    """Run `source`, which calls `here()`, and return the author's places."""
    found: list[Place] = []

    def here(*_: Any) -> int:
        base = inspect.currentframe()
        assert base is not None
        frames = positions.current_frames(outer)
        found.extend(positions.place_of(frame) for frame in frames[1:])
        return 0

    outer = inspect.currentframe()
    exec(compiled(source, "here.py"), {"here": here})
    return found


def test_the_innermost_expression_comes_first() -> None:
    source = "def f(x):\n    return 1 + here(x)\n\ny = [f(i) for i in (1,)]\n"
    inner, outer = places(source)
    assert inner == Place(Span("here.py", 2, 16, 2, 23), "f")
    assert outer.span == Span("here.py", 4, 6, 4, 10)
    assert positions.text_of(inner.span) == "here(x)"


def test_expressions_of_several_lines() -> None:
    (place,) = places("here(\n  1,\n  2\n)\n")
    assert place.span == Span("here.py", 1, 1, 4, 2)
    assert positions.text_of(place.span) == "here(\n  1,\n  2\n)"


def test_columns_are_characters() -> None:
    (place,) = places('"äöü", here()\n')
    assert place.span == Span("here.py", 1, 8, 1, 14)


def test_exceptions_pass_through_the_authors_places() -> None:
    source = "def f(x):\n    return [1 // i for i in x]\n\nf([0])\n"
    try:
        exec(compiled(source, "there.py"), {})
    except ZeroDivisionError as error:
        found = positions.places_of(error.__traceback__)
    else:
        raise AssertionError("no exception")
    assert [p.function for p in found][:2] == ["f", "<module>"]
    assert found[0].span == Span("there.py", 2, 13, 2, 19)


def test_libraries_are_told_from_authors() -> None:
    assert positions.is_library_file(json.__file__)
    assert positions.is_library_file(np.__file__)
    assert positions.is_library_file(positions.__file__)
    assert positions.is_library_file("<string>")
    assert not positions.is_library_file(__file__)
    assert not positions.is_library_file(os.path.abspath("kernel.py"))
