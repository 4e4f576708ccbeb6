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

LLVM's NVPTX back end merges a load with the ops that take its vector apart, and the instruction
gets *their* position, that of the first use. So `locate_unpacking` gives such ops the load's:

    %v = llvm.load %p ... loc("k.py":6:13)
    %x = llvm.extractelement %v[%0] ... loc("k.py":7:5)         becomes  loc("k.py":6:13)
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from mlir import ir

from tiledsl.dialects.contracts import operations
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


_UNPACKING = ("llvm.shufflevector", "llvm.bitcast", "llvm.extractelement")
"""Ops that name registers anew, and are no instruction of their own."""


def locate_unpacking(module: ir.Module) -> None:
    """Let ops that take apart what loads of one position gave say that position.

    Before and after: the `llvm` level, with locations that `line_location` made.
    """
    origins: dict[ir.Value, ir.Location] = {}
    for op in operations(module.operation):
        operation = op.operation
        if operation.name == "llvm.load":
            origins[operation.results[0]] = operation.location
        elif operation.name in _UNPACKING:
            vectors = [one for one in operation.operands if isinstance(one.type, ir.VectorType)]
            found = [origins[one] for one in vectors if one in origins]
            if 0 < len(vectors) == len(found) and all(one == found[0] for one in found):
                operation.location = found[0]
                origins[operation.results[0]] = found[0]
