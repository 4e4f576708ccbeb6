"""Locations in the form that LLVM keeps, so that assembly text names the author's lines.

The front end gives each op the *range* of source text of the author's expression, within the calls
that led to it; errors show the range. Translation to LLVM knows a position of file, line and column
alone and drops all else without a word. So a kernel is lowered under `line_location` of each op's
location, and the last pass of a target's pipeline, `debug_scopes`, gives the kernel the debug scope
without which translation drops positions too:

    loc("softmax.py":14:11 to :20)            becomes  loc("softmax.py":14:11)
    loc(callsite("f.py":3:5 to :9 at ...))    becomes  loc(callsite("f.py":3:5 at ...))

What comes of it is `.file` and `.loc` directives in assembly text (`source_lines` reads them) and
tables of lines in machine code, but no description of variables and types, and no instruction.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from mlir import ir

from tiledsl.dialects.diagnostics import Span


def debug_scopes(*, tables: bool) -> str:
    """Return MLIR's pass, for the end of a pipeline to the `llvm` level.

    Args:
        tables: LLVM writes DWARF's tables, too. ptxas makes its own from the directives.
    """
    kind = "LineTablesOnly" if tables else "DebugDirectivesOnly"
    return f"ensure-debug-info-scope-on-llvm-func{{emission-kind={kind}}}"


def line_location(location: ir.Location) -> ir.Location:
    """Return the same place as positions, within the same calls."""
    return _positions(location.attr)


@lru_cache(maxsize=4096)
def _positions(attribute: ir.Attribute) -> ir.Location:
    location: Any = ir.Location.from_attr(attribute, attribute.context)
    if location.is_a_callsite():
        callee, caller = line_location(location.callee), line_location(location.caller)
        return ir.Location.callsite(callee, [caller], attribute.context)
    span = Span.of(location)
    if span is None:
        return location
    return ir.Location.file(span.file, span.line, span.column, attribute.context)
