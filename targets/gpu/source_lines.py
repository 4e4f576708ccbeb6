r"""Which line of the author's source each line of assembly text stands for.

The PTX and the AMDGPU assembly that we emit, and other compilers' too, carry `.file` and `.loc`
directives. An emulator or a report that speaks of a machine instruction reads here whose it is.
A `.loc` holds for all that follows until the next one or the end of its function:

    .file 1 "/home/me" "softmax.py"
    .loc  1 14 11 prologue_end
    global_load_dwordx4 v[0:3], v4, s[0:1]      <- softmax.py, line 14, column 11

PTX has its files last and whole ("/home/me/softmax.py"), with `function_name` and `inlined_at`
after a position; AMDGPU has directory and name apart, and DWARF's flags. What follows a position is
not read: of inlined code this tells the innermost place. Line 0 is LLVM's word for "nobody's".
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass

_FILE = re.compile(
    r'\s*\.file\s+(\d+)\s+"(?P<first>(?:[^"\\]|\\.)*)"(?:\s*"(?P<second>(?:[^"\\]|\\.)*)")?'
)
_POSITION = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)(?:\s+(\d+))?")
_FUNCTION = re.compile(r"\s*(?:[.$]L_*func_(?:begin|end)\d+:|\.(?:visible|weak|entry|func)\b)")
"""The first line of a function, or what LLVM ends one with: no position holds across either."""
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|.)", re.DOTALL)
_ESCAPED = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"b": b"\b", b"f": b"\f"}


@dataclass(frozen=True)
class Source:
    """A place in the author's source; line and column count from 1, column 0 is an unknown one."""

    file: str
    line: int
    column: int


def source_lines(text: str) -> list[Source | None]:
    """Return what each line of PTX or of AMDGPU assembly stands for.

    Args:
        text: The assembly text.

    Returns:
        One entry for each of `text.splitlines()`: the place that the last `.loc` before it (or on
        it) gives; None outside of functions, and where LLVM knows no place.
    """
    lines = text.splitlines()
    files = _files(lines)
    places: dict[str, Source | None] = {}
    found: list[Source | None] = []
    here: Source | None = None
    for line in lines:
        if ".loc" in line:
            position = _POSITION.match(line)
            if position is not None:
                spelled = position[0]
                if spelled not in places:
                    places[spelled] = _place(position, files)
                here = places[spelled]
        elif _FUNCTION.match(line):
            here = None
        found.append(here)
    return found


def _files(lines: list[str]) -> dict[int, str]:
    """Return the file of each number."""
    named = (_FILE.match(line) for line in lines if ".file" in line)
    return {int(match[1]): _path(match) for match in named if match is not None}


def _path(match: re.Match[str]) -> str:
    first, second = _unescaped(match["first"]), match["second"]
    return first if second is None else posixpath.join(first, _unescaped(second))


def _unescaped(text: str) -> str:
    r"""Return a string of assembly text as it was: LLVM writes bytes it does not print as \ooo."""

    def meant(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return bytes([int(code, 8) & 255]) if code.isdigit() else _ESCAPED.get(code, code)

    return _ESCAPE.sub(meant, text.encode()).decode(errors="replace")


def _place(position: re.Match[str], files: dict[int, str]) -> Source | None:
    """Return where a `.loc` points; None for line 0 and for a file that the text does not name."""
    number, line, column = (int(field or 0) for field in position.groups())
    file = files.get(number)
    return Source(file, line, column) if file is not None and line else None
