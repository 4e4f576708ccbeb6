"""Declarations of variables and parameters in PTX, read one at a time; and the space between."""

from __future__ import annotations

import re

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.nvptx.emulator.text import WIDTHS, Variable

_DECLARATION = re.compile(
    r"(?:\.(?:visible|weak|extern|common)\s+)*\.(?P<space>global|const|shared|local|param)\s+"
    r"(?P<words>(?:\.[\w:]+\s+(?:\d+\s+)?)*)(?P<name>[\w$.%]+)\s*(?P<array>(?:\[\d*\])*)"
    r"\s*(?:=\s*(?P<initial>.*))?$",
    re.DOTALL,
)


def read_variable(statement: str, name: str | None = None) -> Variable:
    """Return what a declaration declares, under another name if one is given."""
    found = _DECLARATION.match(statement)
    if found is None:
        raise CompilerBug(f"PTX that the emulator does not know: `{statement}`")
    words = found["words"].split()
    alignment = int(words[words.index(".align") + 1]) if ".align" in words else 0
    bits = next((WIDTHS[word[1:]] for word in words if word[1:] in WIDTHS), 0)
    if not bits:
        raise CompilerBug(f"a variable without a known type: `{statement}`")
    element = max(bits // 8, 1)
    if ".ptr" in words:  # what it says then is how its pointee is aligned
        alignment = 0
    count = 1
    for extent in re.findall(r"\[(\d*)\]", found["array"]):
        count *= int(extent or 0)
    initial = _initial(found["initial"] or "")
    if found["array"] == "[]" and initial:
        count = len(initial)
    size, alignment = element * count, alignment or element
    return Variable(name or found["name"], found["space"], size, alignment, element, initial)


_INITIAL = re.compile(
    r"(?P<float>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16})|(?P<number>-?(?:0[xX][0-9a-fA-F]+|\d+))"
    r"|(?:generic\(\s*)?(?P<symbol>[A-Za-z_$%][\w$.]*)\s*\)?(?:\s*(?P<offset>[+-]\s*\d+))?"
)


def _initial(text: str) -> tuple[int | tuple[str, int], ...]:
    values: list[int | tuple[str, int]] = []
    for found in _INITIAL.finditer(text):
        if found["float"]:
            values.append(int(found["float"][2:], 16))
        elif found["number"]:
            values.append(int(found["number"], 0))
        else:
            offset = (found["offset"] or "0").replace(" ", "")
            values.append((found["symbol"], int(offset)))
    return tuple(values)


_SPACE = re.compile(r"\s*")


def skip_space(code: str, position: int) -> int:
    """Return where the next thing that is no space begins."""
    found = _SPACE.match(code, position)
    return position if found is None else found.end()
