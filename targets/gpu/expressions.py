"""Find the author's expression at a place: assembly says where it begins, not where it ends."""

from __future__ import annotations

import ast
import linecache
from functools import lru_cache

from tiledsl.dialects.diagnostics import Span


def expression_at(file: str, line: int, column: int) -> Span:
    """Return the span of the expression that begins at a line and column (both from 1).

    Several may: in `f(x) + 1` the name, the call and the sum. It is the call or subscript that is
    meant where there is one, the longest expression else. Where the file cannot be read or nothing
    begins there, the span is one character long.
    """
    found = _expressions("".join(linecache.getlines(file))).get((line, column), [])
    preferred = [node for node in found if isinstance(node, ast.Call | ast.Subscript)]
    if preferred:
        chosen = preferred[-1]  # the innermost: `ast.walk` goes from the outside in
    elif found:
        chosen = found[0]
    else:
        return Span(file, line, max(column, 1), line, max(column, 1) + 1)
    end_line, end_column = chosen.end_lineno or line, chosen.end_col_offset or column
    return Span(file, line, column, end_line, end_column + 1)


@lru_cache(maxsize=16)
def _expressions(source: str) -> dict[tuple[int, int], list[ast.expr]]:
    """Return the expressions that begin at each line and column."""
    found: dict[tuple[int, int], list[ast.expr]] = {}
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return found
    for node in ast.walk(tree):
        if isinstance(node, ast.expr):
            found.setdefault((node.lineno, node.col_offset + 1), []).append(node)
    return found
