"""Find the syntax tree of a function that exists: its node in the tree of its whole file.

The tree of the file keeps lines and columns as they are there, so that code compiled from a part of
it points at the author's text. Files are read through `linecache`, which also knows the cells of
notebooks and the sources that test tools register.
"""

from __future__ import annotations

import ast
import linecache
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType

from tiledsl.dialects.diagnostics import KernelError

FunctionNode = ast.FunctionDef | ast.Lambda


@dataclass(frozen=True)
class Found:
    """A function's node, not to be changed, and the class that it stands in, if any."""

    node: FunctionNode
    class_name: str | None


def find(code: CodeType) -> Found | None:
    """Return the node that `code` was compiled from, or None where there is no source."""
    lines = linecache.getlines(code.co_filename)
    if not lines:
        return None
    try:
        by_line = _functions("".join(lines))
    except SyntaxError:
        return None
    candidates = [f for f in by_line.get(code.co_firstlineno, []) if _named(f.node, code)]
    if len(candidates) > 1:
        candidates = [f for f in candidates if _covers(f.node, code)]
    return candidates[0] if candidates else None


def _named(node: FunctionNode, code: CodeType) -> bool:
    if isinstance(node, ast.Lambda):
        return code.co_name == "<lambda>" and _parameters(node) == _code_parameters(code)
    return node.name == code.co_name


def _parameters(node: FunctionNode) -> list[str]:
    a = node.args
    listed = [*a.posonlyargs, *a.args, *a.kwonlyargs]
    return [p.arg for p in [*listed, *filter(None, (a.vararg, a.kwarg))]]


def _code_parameters(code: CodeType) -> list[str]:
    extra = bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)  # CO_VARARGS, CO_VARKEYWORDS
    return list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + extra])


def _covers(node: FunctionNode, code: CodeType) -> bool:
    """Return whether a lambda's body is where its code says it stands."""
    body = node.body if isinstance(node, ast.Lambda) else node
    positions = [p for p in code.co_positions() if p[2] is not None and p[0] is not None]
    spots = [(p[0], p[2]) for p in positions if (p[2], p[3]) != (0, 0)]
    inside = [
        (body.lineno, body.col_offset) <= spot <= (body.end_lineno, body.end_col_offset)
        for spot in spots
    ]
    return bool(inside) and all(inside)


@lru_cache(maxsize=64)
def _functions(text: str) -> dict[int, list[Found]]:
    """Return every function of a file by the line that its code object begins at."""
    found: dict[int, list[Found]] = {}

    def visit(node: ast.AST, class_name: str | None) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.Lambda):
                line = child.lineno
                if isinstance(child, ast.FunctionDef) and child.decorator_list:
                    line = child.decorator_list[0].lineno
                found.setdefault(line, []).append(Found(child, class_name))
                visit(child, class_name)
            else:
                visit(child, child.name if isinstance(child, ast.ClassDef) else class_name)

    visit(ast.parse(text), None)
    return found


def require(code: CodeType, name: str) -> Found:
    """Return what `find` does.

    Raises:
        KernelError: There is no source.
    """
    found = find(code)
    if found is None:
        raise KernelError(
            f"expected the source of `{name}`, found none in {code.co_filename}",
            hint="kernels are read from their file: define them in a module or a notebook cell",
        )
    return found
