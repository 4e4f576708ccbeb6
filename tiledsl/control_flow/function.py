"""Make the rewritten form of a function: its own globals and closure, other code.

The code is compiled once for each code object of the author's and kept as long as the process. The
rewritten function shares the author's global namespace and the very cells of its closure, so that
what is rebound there later is seen.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from types import CellType, CodeType, FunctionType, ModuleType

from tiledsl.control_flow import rewrite as rewriting
from tiledsl.control_flow.deep import with_room
from tiledsl.control_flow.desugar import desugar
from tiledsl.control_flow.source import Found, FunctionNode, require
from tiledsl.dialects.diagnostics import KernelError

_codes: dict[int, tuple[CodeType, CodeType]] = {}
"""By `id` of the author's code, which is kept beside what it was rewritten to."""
_rewritten: dict[int, CodeType] = {}
"""Rewritten code objects by `id`, those of nested functions too."""


def is_rewritten(code: CodeType) -> bool:
    """Return whether `code` was made by this module."""
    return id(code) in _rewritten


def rewritten(function: FunctionType) -> FunctionType:
    """Return the rewritten form of an author's function.

    Raises:
        KernelError: Its source cannot be found, or holds what no kernel may.
    """
    code = function.__code__
    if is_rewritten(code):
        return function
    entry = _codes.get(id(code))
    if entry is None:
        entry = _codes[id(code)] = code, with_room(lambda: _rewritten_code(function))
    return _with_code(function, entry[1])


def _rewritten_code(function: FunctionType) -> CodeType:
    return _compile(require(function.__code__, function.__name__), function.__code__)


def _with_code(function: FunctionType, code: CodeType) -> FunctionType:
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    cells[rewriting.HOOKS] = CellType(_hooks())
    closure = tuple(cells[name] for name in code.co_freevars)
    made = FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, closure
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__qualname__ = function.__qualname__
    return made


def _hooks() -> ModuleType:
    from tiledsl.control_flow import hooks  # it needs `calls`, which needs this module

    return hooks


def _compile(found: Found, code: CodeType) -> CodeType:
    """Compile the rewritten tree as a function nested in one that has the free variables."""
    node = copy.deepcopy(found.node)
    if found.class_name is not None:
        _Mangler(found.class_name).visit(node)
    node.args.defaults = [ast.Constant(None) for _ in node.args.defaults]
    node.args.kw_defaults = [d and ast.Constant(None) for d in node.args.kw_defaults]
    for argument in ast.walk(node.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    inner = _rewritten_statement(node)
    names = [*code.co_freevars, rewriting.HOOKS]
    parameters = ast.arguments([], [ast.arg(name) for name in names], None, [], [], None, [])
    body: list[ast.stmt] = [inner]
    if isinstance(inner, ast.FunctionDef) and inner.name not in names:
        body.insert(0, ast.Global([inner.name]))  # a function may call itself
    outer = ast.FunctionDef("__tile_outer", parameters, body, [])
    if "type_params" in ast.FunctionDef._fields:  # Python 3.12 and later
        setattr(outer, "type_params", [])  # noqa: B010 (not in the stubs of 3.11)
    module = ast.Module([outer], [])
    for part in ast.walk(module):
        if "lineno" in part._attributes and not hasattr(part, "lineno"):
            ast.copy_location(part, node)
    try:
        compiled = compile(module, code.co_filename, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise KernelError(f"expected a function that can be rewritten: {error}") from error
    made = next(_nested(next(_nested(compiled))))
    for part in _all_nested(made):
        _rewritten[id(part)] = part
    return made


def _rewritten_statement(node: FunctionNode) -> ast.stmt:
    if isinstance(node, ast.Lambda):
        rewriting.rewrite_lambda(node)
        return ast.Expr(node)
    node.decorator_list = []
    node.returns = None
    desugar(node)
    rewriting.rewrite(node)
    return node


def _nested(code: CodeType) -> Iterator[CodeType]:
    return (constant for constant in code.co_consts if isinstance(constant, CodeType))


def _all_nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in _nested(code):
        yield from _all_nested(inner)


class _Mangler(ast.NodeTransformer):
    """Spells a method's private names as Python does for the class around it."""

    def __init__(self, class_name: str) -> None:
        self._prefix = f"_{class_name.lstrip('_')}"

    def _mangled(self, name: str) -> str:
        private = name.startswith("__") and not name.endswith("__") and "." not in name
        return self._prefix + name if private else name

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self._mangled(node.id)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        node.attr = self._mangled(node.attr)
        return node
