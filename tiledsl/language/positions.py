"""Find the author's expression that is being executed, as a span of source text.

While a kernel is traced, the Python stack is: the launcher, this package, then the author's frames
with frames of this package and of libraries in between. An author's frame is any whose code stands
in neither. `current_frames` reads the living stack, for the location of an op; `places_of` reads a
traceback, for an error. Columns come from `co_positions`, so that two operators of one line differ.
"""

from __future__ import annotations

import inspect
import linecache
import os
import sysconfig
from functools import cache
from types import CodeType, FrameType, TracebackType
from typing import NamedTuple

from tiledsl.dialects.diagnostics import Span

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


class Place(NamedTuple):
    """An author's frame: where it is, and the name of its function."""

    span: Span
    function: str


@cache
def _library_folders() -> tuple[str, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple(os.path.realpath(sysconfig.get_path(name)) + os.sep for name in names)


@cache
def is_library_file(filename: str) -> bool:
    """Return whether a file belongs to Python, an installed package or this package."""
    if filename.startswith((_PACKAGE, "<frozen")) or filename == "<string>":
        return True
    return os.path.realpath(filename).startswith(_library_folders())


def current_frames(base: FrameType | None) -> list[FrameType]:
    """Return the author's frames that are being executed, innermost first.

    Args:
        base: The frame that the trace began in; frames outside it do not count.
    """
    found: list[FrameType] = []
    inner: str | None = None
    frame: FrameType | None = inspect.currentframe()
    while frame is not None and frame is not base:
        code = frame.f_code
        if not is_library_file(code.co_filename):
            # A comprehension runs in a frame of its own up to Python 3.11; it is no call.
            if inner not in _COMPREHENSIONS:
                found.append(frame)
            inner = code.co_name
        frame = frame.f_back
    return found


def place_of(frame: FrameType) -> Place:
    """Return where `frame` is."""
    return Place(span_at(frame.f_code, frame.f_lasti), _function_name(frame.f_code))


def places_of(traceback: TracebackType | None) -> list[Place]:
    """Return the author's places that an exception passed through, innermost first."""
    found: list[Place] = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not is_library_file(code.co_filename):
            place = Place(span_at(code, traceback.tb_lasti), _function_name(code))
            if code.co_name in _COMPREHENSIONS and found:
                found.pop()
            found.append(place)
        traceback = traceback.tb_next
    return found[::-1]


def _function_name(code: CodeType) -> str:
    """Return a function's name as its class and itself; a comprehension's is that around it."""
    name = code.co_qualname
    while name.endswith(_COMPREHENSIONS):
        name = name.rpartition(".<locals>.")[0]
    return name.rpartition("<locals>.")[2]


_spans: dict[int, tuple[CodeType, list[Span]]] = {}
"""By `id` of the code object, which is kept alive beside its spans."""


def span_at(code: CodeType, offset: int) -> Span:
    """Return the span of the instruction at byte `offset` of `code`."""
    entry = _spans.get(id(code))
    if entry is None:
        entry = code, _all_spans(code)
        _spans[id(code)] = entry
    return entry[1][max(offset, 0) // 2]


def _all_spans(code: CodeType) -> list[Span]:
    spans: list[Span] = []
    file = code.co_filename
    for line, end_line, column, end_column in code.co_positions():
        first = code.co_firstlineno if line is None else line
        last = first if end_line is None else end_line
        start = 1 if column is None else _characters(file, first, column) + 1
        end = 10_000 if end_column is None else _characters(file, last, end_column) + 1
        spans.append(Span(file, first, start, last, end))
    return spans


def _characters(file: str, line: int, column: int) -> int:
    """Return how many characters the first `column` UTF-8 bytes of a line are."""
    text = linecache.getline(file, line)
    if text.isascii():
        return column
    return len(text.encode()[:column].decode(errors="replace"))


def text_of(span: Span) -> str:
    """Return the source text in `span`."""
    lines = [linecache.getline(span.file, n) for n in range(span.line, span.end_line + 1)]
    if not lines:
        return ""
    lines[-1] = lines[-1][: span.end_column - 1]
    lines[0] = lines[0][span.column - 1 :]
    return "".join(lines)
