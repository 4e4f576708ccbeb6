"""PTX text, as LLVM's NVPTX back end writes it, taken apart into what `text` describes.

This is the module: its variables, and where its functions begin and end; `body` reads the kernels
and `declarations` the variables. Only the text's form is checked; what an opcode means is
`decode`'s.
"""

from __future__ import annotations

import re

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.nvptx.emulator.body import Body
from tiledsl.targets.nvptx.emulator.declarations import read_variable, skip_space
from tiledsl.targets.nvptx.emulator.text import Function, Module

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_NOT_CODE = re.compile(
    r"^[ \t]*\.(?:loc|file|version|target|address_size|noreturn)\b[^\n]*", re.MULTILINE
)
_DEBUG_SECTIONS = re.compile(r"^[ \t]*\.section\b", re.MULTILINE)
_FUNCTION = re.compile(
    r"(?P<linkage>(?:\.(?:visible|weak|extern)\s+)*)\.(?P<kind>entry|func)\s*"
    r"(?P<result>\([^()]*\))?\s*(?P<name>[\w$.]+)\s*(?:\((?P<parameters>[^()]*)\))?"
)
_DIRECTIVE = re.compile(r"\.(\w+)\s*([\d,\s]*)")


def parse(text: str) -> Module:
    """Take a PTX module apart.

    Raises:
        CompilerBug: It is not of the form that LLVM writes.
    """
    end = _DEBUG_SECTIONS.search(text)
    code = text if end is None else text[: end.start()]
    code = _NOT_CODE.sub("", _COMMENT.sub(_blank, code))
    module = Module()
    position = 0
    while True:
        position = skip_space(code, position)
        if position == len(code):
            return module
        function = _FUNCTION.match(code, position)
        if function is not None:
            position = _function(module, code, function)
            continue
        end_of = code.find(";", position)
        if end_of < 0:
            raise CompilerBug(f"PTX ends inside a statement: {code[position : position + 60]!r}")
        statement = code[position:end_of].strip()
        if not statement.startswith((".pragma", ".alias")):
            module.variables.append(read_variable(statement))
        position = end_of + 1


def _blank(match: re.Match[str]) -> str:
    """Return as many lines as a comment takes."""
    return "\n" * match[0].count("\n")


def _function(module: Module, code: str, head: re.Match[str]) -> int:
    """Read one function; returns where it ends. Only kernels are kept."""
    opening, semicolon = code.find("{", head.end()), code.find(";", head.end())
    if opening < 0 or 0 <= semicolon < opening:
        return semicolon + 1  # a declaration
    closing = _closing_brace(code, opening)
    if head["kind"] == "entry":
        text = head["parameters"] or ""
        declared = [part for part in text.split(",") if part.strip()]
        kernel = Function(head["name"], [read_variable(part.strip()) for part in declared])
        for directive in _DIRECTIVE.finditer(code, head.end(), opening):
            numbers = tuple(int(one) for one in re.findall(r"\d+", directive[2]))
            kernel.directives[directive[1]] = numbers
        Body(code, kernel).read(opening + 1, closing)
        module.kernels[kernel.name] = kernel
    return closing + 1


def _closing_brace(code: str, opening: int) -> int:
    depth = 0
    for brace in re.compile(r"[{}]").finditer(code, opening):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.start()
    raise CompilerBug("PTX ends inside a function")
