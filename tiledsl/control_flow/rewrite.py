"""Rewrite a function's tree so that control flow over run-time values calls hooks.

The function stays one function and its variables stay local variables: a branch or loop calls hooks
before, between and after its parts, and only its *variables* are handed over, as `locals()` and a
tuple that comes back. What is known when traced behaves as plain Python. So

    if c:                    __tile_1 = __tile__.branch(c, ("x",), ("f",), locals())
        x = f(x)             if __tile_1.then():
                     ->          x = __tile__.call(f, x)
                                 if __tile_1.run_time:
                                     (x,) = __tile_1.end(locals())
                                     if x is __tile__.UNSET: del x
                             if __tile_1.otherwise():
                                 if __tile_1.run_time: ...

Expressions that Python evaluates lazily (`and`, `or`, conditional expressions, chained comparisons)
become hook calls that keep the laziness without a function of their own, and calls go through
`__tile__.call`, which rewrites the called function too. The hooks are in `hooks`.

Contract: the tree was `desugar`ed and analyzed by `liveness`; every node of the author's keeps its
location, and each hook has that of the expression it stands for.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from typing import TypeGuard

from tiledsl.control_flow import liveness
from tiledsl.control_flow.desugar import KNOWN_TRUE, located
from tiledsl.control_flow.liveness import Liveness, Names

HOOKS = "__tile__"
"""The free variable through which rewritten code reaches its hooks."""

_DEPTH = "__tile_depth"
_FRAME_READERS = frozenset(
    {"super", "locals", "globals", "vars", "dir", "eval", "exec", "breakpoint"}
)
"""Builtins that look at the frame of their caller: called directly."""


def rewrite(function: ast.FunctionDef) -> None:
    """Rewrite the body of `function`, and of the functions in it, in place."""
    _Rewriter(liveness.analyze(function)).function(function)


def rewrite_lambda(node: ast.Lambda) -> None:
    """Rewrite the body of a lambda in place."""
    rewriter = _Rewriter(Liveness())
    node.body = rewriter.visit(node.body)


def _hook(name: str, *args: ast.expr, at: ast.AST) -> ast.Call:
    made = ast.Call(_attribute(HOOKS, name, at), list(args), keywords=[])
    located(made, at)
    return made


def _method(site: str, name: str, *args: ast.expr, at: ast.AST) -> ast.Call:
    made = ast.Call(_attribute(site, name, at), list(args), keywords=[])
    located(made, at)
    return made


def _attribute(variable: str, name: str, at: ast.AST) -> ast.Attribute:
    """Return `variable.name` at the very beginning of `at`.

    Python takes a call of an attribute for one that begins on the attribute's last line.
    """
    made = ast.Attribute(ast.Name(variable, ast.Load()), name, ast.Load())
    ast.copy_location(made, at)
    made.end_lineno, made.end_col_offset = made.lineno, made.col_offset
    located(made, made)
    return made


def _names(names: Iterable[str]) -> ast.expr:
    return ast.Tuple([ast.Constant(name) for name in sorted(names)], ast.Load())


def _locals(at: ast.AST) -> ast.expr:
    made = ast.Call(ast.Name("locals", ast.Load()), [], [])
    located(made, at)
    return made


def _bind(site: str, method: str, names: Names, at: ast.AST) -> list[ast.stmt]:
    """Return `if site.run_time: (names) = site.method(locals())`, unbinding what is UNSET."""
    call = _method(site, method, _locals(at), at=at)
    ordered = sorted(names)
    bound: list[ast.stmt] = []
    if ordered:
        target = ast.Tuple([ast.Name(name, ast.Store()) for name in ordered], ast.Store())
        bound.append(ast.Assign([target], call))
    else:
        bound.append(ast.Expr(call))
    for name in ordered:
        unset = ast.Attribute(ast.Name(HOOKS, ast.Load()), "UNSET", ast.Load())
        test = ast.Compare(ast.Name(name, ast.Load()), [ast.Is()], [unset])
        bound.append(ast.If(test, [ast.Delete([ast.Name(name, ast.Del())])], []))
    guard = ast.If(ast.Attribute(ast.Name(site, ast.Load()), "run_time", ast.Load()), bound, [])
    located(guard, at)
    return [guard]


def _set(name: str, value: ast.expr, at: ast.AST) -> ast.stmt:
    made = ast.Assign([ast.Name(name, ast.Store())], value)
    located(made, at)
    return made


class _Rewriter(ast.NodeTransformer):
    """Rewrites one function; a nested one gets a rewriter of its own."""

    def __init__(self, live: Liveness) -> None:
        self._live = live
        self._sites = 0
        self._loops: list[str] = []
        self._checks_depth = False

    def function(self, node: ast.FunctionDef) -> None:
        last = node.body[-1]
        body = [part for statement in node.body[:-1] for part in self._each(statement)]
        # A `return` that ends the function stands outside every region.
        if isinstance(last, ast.Return):
            last.value = None if last.value is None else self.visit(last.value)
            body.append(last)
        else:
            body += self._each(last)
        if self._checks_depth:
            body.insert(0, _set(_DEPTH, _hook("depth", at=node), node))
        node.body = body

    def _each(self, statement: ast.stmt) -> Sequence[ast.stmt]:
        made: ast.stmt | list[ast.stmt] = self.visit(statement)
        return made if isinstance(made, list) else [made]

    def _body(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        return [part for statement in body for part in self._each(statement)]

    def _site(self) -> str:
        self._sites += 1
        return f"__tile_{self._sites}"

    def _carried(self, nodes: Iterable[ast.AST], live: Names) -> Names:
        nodes = list(nodes)
        return ((liveness.writes(nodes) & live) | self._live.shared) - self._live.outside

    # --- statements ----------------------------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.decorator_list = [self.visit(d) for d in node.decorator_list]
        self._defaults(node.args)
        rewrite(node)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        for inner in node.body:
            if isinstance(inner, ast.FunctionDef):
                rewrite(inner)
        return node

    def _defaults(self, args: ast.arguments) -> None:
        args.defaults = [self.visit(d) for d in args.defaults]
        args.kw_defaults = [d and self.visit(d) for d in args.kw_defaults]

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        test = node.test
        if _asks_known_true(test):
            loop = ast.Name(self._loops[-1], ast.Load())
            node.test = _hook("known_true", loop, *test.args, at=test)
            return node
        site = self._site()
        live = self._live.at[node]
        names = self._carried([*node.body, *node.orelse], live.after | live.start)
        read = frozenset(n for part in (*node.body, *node.orelse) for n in liveness.reads(part))
        after = (names & live.after) | self._live.shared
        arguments = self._truth(test), _names(names), _names(after), _names(read), _locals(test)
        opening = _set(site, _hook("branch", *arguments, at=test), test)
        then = ast.If(_method(site, "then", at=test), self._body(node.body), [])
        then.body += _bind(site, "end", names, test)
        otherwise = ast.If(_method(site, "otherwise", at=test), self._body(node.orelse), [])
        otherwise.body += _bind(site, "end", names, test)
        for made in (then, otherwise):
            located(made, test)
        return [opening, then, otherwise]

    def _loop_names(
        self, node: ast.For | ast.While, head: Iterable[ast.AST], targets: Names
    ) -> tuple[Names, list[ast.expr]]:
        """Return the variables to hand over, and the arguments that describe the loop."""
        live = self._live.at[node]
        parts = [*head, *node.body]
        start = live.start - targets
        names = self._carried(parts, live.after | start)
        read = frozenset(n for part in parts for n in liveness.reads(part))
        needed = (names & start) | self._live.shared
        described = [_names(names), _names(needed), _names(read), _names(liveness.mutated(parts))]
        return names, described

    def visit_For(self, node: ast.For) -> list[ast.stmt]:
        site, at = self._site(), node.iter
        targets = liveness.writes([node.target])
        names, described = self._loop_names(node, [node.target], targets)
        iterable = self.visit(node.iter)
        stop = ast.Constant(_stop_of(node))
        opening = _hook("for_loop", iterable, _names(targets), stop, *described, _locals(at), at=at)
        self._loops.append(site)
        body = [*_bind(site, "begin", names, at), *self._body(node.body)]
        self._loops.pop()
        body += _bind(site, "end", frozenset(), at)
        loop = ast.For(self.visit(node.target), ast.Name(site, ast.Load()), body, [])
        located(loop, at)
        return [_set(site, opening, at), loop, *_bind(site, "finish", names, at)]

    def visit_While(self, node: ast.While) -> list[ast.stmt]:
        site, at = self._site(), node.test
        names, described = self._loop_names(node, [node.test], frozenset())
        opening = _hook("while_loop", *described, _locals(at), at=at)
        test = _method(site, "test", self._truth(node.test), at=at)
        self._loops.append(site)
        inner = [*_bind(site, "enter", names, at), *self._body(node.body)]
        self._loops.pop()
        inner += _bind(site, "end", frozenset(), at)
        note = ast.Expr(_method(site, "note", _locals(at), at=at))
        body = [note, *_bind(site, "begin", names, at), ast.If(test, inner, [])]
        loop = ast.For(ast.Name(f"{site}_", ast.Store()), ast.Name(site, ast.Load()), body, [])
        located(loop, at)
        return [_set(site, opening, at), loop, *_bind(site, "finish", names, at)]

    def visit_Break(self, node: ast.Break) -> list[ast.stmt]:
        leave = _hook(
            "leave", ast.Name(self._loops[-1], ast.Load()), ast.Constant("break"), at=node
        )
        check = ast.Expr(leave)
        located(check, node)
        return [check, node]

    def visit_Continue(self, node: ast.Continue) -> list[ast.stmt]:
        site = self._loops[-1]
        leave = _hook("leave", ast.Name(site, ast.Load()), ast.Constant("continue"), at=node)
        check = ast.Expr(leave)
        located(check, node)
        return [check, *_bind(site, "end", frozenset(), node), node]

    def visit_Return(self, node: ast.Return) -> ast.AST:
        self._checks_depth = True
        value = ast.Constant(None) if node.value is None else self.visit(node.value)
        at = node if node.value is None else node.value
        depth = ast.Name(_DEPTH, ast.Load())
        node.value = _hook("leave_function", depth, value, ast.Constant("return"), at=at)
        located(node.value, at)
        return node

    def visit_Try(self, node: ast.Try) -> list[ast.stmt]:
        mark = f"{self._site()}_mark"
        before = _set(mark, _hook("depth", at=node), node)
        self.generic_visit(node)
        for handler in node.handlers:
            rewind = ast.Expr(_hook("rewind", ast.Name(mark, ast.Load()), at=handler))
            located(rewind, handler)
            handler.body.insert(0, rewind)
        return [before, node]

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        """Rewrite to `if <hook says that it fails, or may>: hook(message)`."""
        message = ast.Constant(None) if node.msg is None else self.visit(node.msg)
        at = node.test
        failing = _hook("assert_fails", self._truth(node.test), at=at)
        report = ast.Expr(_hook("assertion", message, at=at))
        made = ast.If(failing, [report], [])
        located(made, at)
        return made

    # --- expressions ---------------------------------------------------------------------------

    def _truth(self, test: ast.expr) -> ast.expr:
        """Rewrite an expression of which only the truth matters."""
        if isinstance(test, ast.BoolOp):
            return self._bool_op(test, truth=True)
        return self.visit(test)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        return self._bool_op(node, truth=False)

    def _bool_op(self, node: ast.BoolOp, truth: bool) -> ast.expr:
        word = "and" if isinstance(node.op, ast.And) else "or"
        rebinds = any(_rebinds(value) for value in node.values[1:])
        values = [self._truth(v) if truth else self.visit(v) for v in node.values]
        return self._lazy(word, values, truth, node, rebinds)

    def _lazy(
        self, word: str, values: list[ast.expr], truth: bool, at: ast.expr, rebinds: bool = False
    ) -> ast.expr:
        """Return `and` or `or` of rewritten operands, evaluated as far as Python would."""
        first, *rest = values
        right = rest[0] if len(rest) == 1 else self._lazy(word, rest, truth, at, rebinds)
        flags = ast.Constant(truth), ast.Constant(rebinds)
        start = _hook(f"{word}_left", first, *flags, at=first)
        lazy = ast.IfExp(start, _hook("lazy_right", right, at=right), ast.Constant(None))
        located(lazy, at)
        return _hook("lazy_end", lazy, at=at)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        if isinstance(node.op, ast.Not):
            return _hook("not_", self._truth(node.operand), at=node)
        node.operand = self.visit(node.operand)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        rebinds = ast.Constant(_rebinds(node.body) or _rebinds(node.orelse))
        opening = _hook("choice", self._truth(node.test), rebinds, at=node.test)
        body, orelse = self.visit(node.body), self.visit(node.orelse)
        then = ast.IfExp(opening, _hook("choice_then", body, at=body), ast.Constant(None))
        otherwise = ast.IfExp(
            _hook("choice_otherwise", at=node.test),
            _hook("choice_else", orelse, at=orelse),
            ast.Constant(None),
        )
        for made in (then, otherwise):
            located(made, node)
        return _hook("choice_end", then, otherwise, at=node)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """Rewrite a < b < c to a < hold(b) and held() < c."""
        if len(node.ops) == 1:
            self.generic_visit(node)
            return node
        parts: list[ast.expr] = []
        left = self.visit(node.left)
        for i, (op, comparator) in enumerate(zip(node.ops, node.comparators, strict=True)):
            right = self.visit(comparator)
            last = i + 1 == len(node.ops)
            made = ast.Compare(left, [op], [right if last else _hook("hold", right, at=right)])
            located(made, node)
            parts.append(made)
            left = _hook("held", at=comparator)
        return self._lazy("and", parts, truth=False, at=node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if isinstance(node.func, ast.Name) and node.func.id in _FRAME_READERS:
            self.generic_visit(node)
            return node
        called = self.visit(node.func)
        if isinstance(node.func, ast.Attribute) and node.func.end_lineno != node.lineno:
            # A method called on a later line than its object: the call is where its name is.
            node.lineno = node.func.end_lineno or node.lineno
            node.col_offset = max(0, (node.func.end_col_offset or 0) - len(node.func.attr.encode()))
        node.args = [called, *(self.visit(a) for a in node.args)]
        for keyword in node.keywords:
            keyword.value = self.visit(keyword.value)
        node.func = _attribute(HOOKS, "call", node)
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        self._defaults(node.args)
        node.body = _Rewriter(Liveness()).visit(node.body)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        node.targets = [self.visit(target) for target in node.targets]
        node.value = self._for_outside(self.visit(node.value), node.targets)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        node.target = self.visit(node.target)
        node.value = self._for_outside(self.visit(node.value), [node.target])
        return node

    def _for_outside(self, value: ast.expr, targets: Sequence[ast.expr]) -> ast.expr:
        """Return a value to assign, checked if a `global` takes it: no region can carry that."""
        taken = sorted(liveness.writes(targets) & self._live.outside)
        if not taken:
            return value
        self._checks_depth = True
        depth, word = ast.Name(_DEPTH, ast.Load()), ast.Constant(f"global {taken[0]}")
        return _hook("leave_function", depth, value, word, at=value)

    def visit_Yield(self, node: ast.Yield) -> ast.expr:
        self._checks_depth = True
        value = ast.Constant(None) if node.value is None else self.visit(node.value)
        depth = ast.Name(_DEPTH, ast.Load())
        node.value = _hook("leave_function", depth, value, ast.Constant("yield"), at=node)
        return node


def _asks_known_true(test: ast.expr) -> TypeGuard[ast.Call]:
    if not isinstance(test, ast.Call) or not isinstance(test.func, ast.Name):
        return False
    return test.func.id == KNOWN_TRUE


def _stop_of(node: ast.For) -> str | None:
    """Return the variable that ends a loop, if `desugar` gave it one."""
    last = node.body[-1]
    if not isinstance(last, ast.If) or not _asks_known_true(last.test):
        return None
    flag = last.test.args[0]
    return flag.id if isinstance(flag, ast.Name) else None


def _rebinds(node: ast.expr) -> bool:
    """Return whether evaluating an expression binds a variable of the function."""
    return bool(liveness.writes([node]))
