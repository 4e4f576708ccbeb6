"""Which variables matter at a branch or loop: those whose value may still be read.

The classical backward analysis over the tree of one function, after `desugar`. It says for each
`if` which variables are live after it and at the start of its `else`, and for each loop which are
live at the start of a trip and after it. A variable that a run-time loop assigns is carried from
trip to trip only if it is live there; another may change type from one use to the next, as in plain
Python.

Safe side: a variable captured by a nested function is always live; so are those read anywhere in a
`try`, `with` or `match` around.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

Names = frozenset[str]
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_NAMING = (ast.ExceptHandler, ast.MatchAs, ast.MatchStar, ast.MatchMapping)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True)
class Live:
    """What is live around a branch or loop.

    Attributes:
        after: After it.
        start: Of a loop, where a trip's body begins, its targets being assigned; of a branch,
            where its `else` begins.
    """

    after: Names
    start: Names


@dataclass
class Liveness:
    """The result for one function.

    Attributes:
        at: For each `If`, `For` and `While` node, by identity.
        shared: Variables that a nested function rebinds by `nonlocal`.
        outside: Variables declared `global`, which are none of the function's.
    """

    at: dict[ast.stmt, Live] = field(default_factory=dict[ast.stmt, Live])
    shared: Names = frozenset()
    outside: Names = frozenset()


def analyze(function: ast.FunctionDef) -> Liveness:
    """Analyze the body of `function`, without the functions nested in it."""
    inner = [node for node in _own_nodes(function) if isinstance(node, _FUNCTIONS)]
    captured = frozenset(name for node in inner for name in reads(node))
    shared = frozenset(
        name
        for node in inner
        for part in ast.walk(node)
        if isinstance(part, ast.Nonlocal)
        for name in part.names
    )
    outside = frozenset(
        name for node in _own_nodes(function) if isinstance(node, ast.Global) for name in node.names
    )
    result = Liveness(shared=shared, outside=outside)
    # What is captured may be read whenever a function is called; what is `nonlocal`, by others.
    elsewhere = frozenset(
        name
        for node in _own_nodes(function)
        if isinstance(node, ast.Nonlocal)
        for name in node.names
    )
    _Analysis(result, captured | shared | elsewhere).block(function.body, frozenset())
    return result


def reads(node: ast.AST) -> Names:
    """Return the names that are read anywhere in `node`, nested functions included."""
    return frozenset(
        part.id
        for part in ast.walk(node)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)
    ) | frozenset(
        part.target.id
        for part in ast.walk(node)
        if isinstance(part, ast.AugAssign) and isinstance(part.target, ast.Name)
    )


def writes(nodes: Iterable[ast.AST]) -> Names:
    """Return the function's variables that are bound or deleted anywhere in `nodes`."""
    return frozenset(name for node in nodes for name in _bound(node))


def mutated(nodes: Iterable[ast.AST]) -> Names:
    """Return the variables that hold an object whose element or attribute is assigned."""
    return frozenset(
        base
        for node in nodes
        for part in ast.walk(node)
        if isinstance(part, ast.Subscript | ast.Attribute) and isinstance(part.ctx, ast.Store)
        if (base := _base(part)) is not None
    )


def _base(node: ast.expr) -> str | None:
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _bound(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        if not isinstance(node.ctx, ast.Load):
            yield node.id
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, ast.Lambda):
        return
    elif isinstance(node, _COMPREHENSIONS):
        # Its targets are its own, but `:=` in it binds outside.
        for part in ast.walk(node):
            if isinstance(part, ast.NamedExpr):
                yield part.target.id
    elif isinstance(node, ast.alias):
        yield node.asname or node.name.partition(".")[0]
    else:
        named = getattr(node, "name", None) or getattr(node, "rest", None)
        if isinstance(node, _NAMING) and isinstance(named, str):
            yield named
        for child in ast.iter_child_nodes(node):
            yield from _bound(child)


def _own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body, those of nested functions left out but themselves."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _FUNCTIONS):
            waiting.extend(ast.iter_child_nodes(node))


@dataclass(frozen=True)
class _Jumps:
    """What is live where `break` and `continue` of the innermost loop go."""

    after_break: Names = frozenset()
    after_continue: Names = frozenset()


class _Analysis:
    def __init__(self, result: Liveness, always: Names) -> None:
        self._result = result
        self._always = always
        self._jumps = _Jumps()

    def block(self, body: Iterable[ast.stmt], after: Names) -> Names:
        live = after | self._always
        for statement in reversed(list(body)):
            live = self._statement(statement, live) | self._always
        return live

    def _statement(self, statement: ast.stmt, after: Names) -> Names:
        match statement:
            case ast.If():
                return self._if(statement, after)
            case ast.While():
                return self._loop(statement, after, reads(statement.test), frozenset())
            case ast.For():
                targets = writes([statement.target])
                return reads(statement.iter) | self._loop(
                    statement, after, reads(statement.target), targets
                )
            case ast.With():
                used = frozenset(n for item in statement.items for n in reads(item))
                bound = writes(statement.items)
                return used | (self.block(statement.body, after) - bound)
            case ast.Try() | ast.Match():
                return self._irregular(statement, after)
            case ast.Break():
                return self._jumps.after_break
            case ast.Continue():
                return self._jumps.after_continue
            case ast.Return() | ast.Raise():
                return reads(statement)
            case ast.AugAssign():
                return reads(statement) | after
            case _:
                return reads(statement) | (after - writes([statement]))

    def _if(self, statement: ast.If, after: Names) -> Names:
        then = self.block(statement.body, after)
        otherwise = self.block(statement.orelse, after)
        self._result.at[statement] = Live(after, otherwise)
        return reads(statement.test) | then | otherwise

    def _loop(
        self, loop: ast.For | ast.While, after: Names, head_reads: Names, targets: Names
    ) -> Names:
        outer = self._jumps
        head = after | head_reads
        while True:
            self._jumps = _Jumps(after, head)
            start = self.block(loop.body, head)
            grown = head | head_reads | (start - targets)
            if grown == head:
                break
            head = grown
        self._jumps = outer
        self._result.at[loop] = Live(after, start | head_reads)
        return head

    def _irregular(self, statement: ast.Try | ast.Match, after: Names) -> Names:
        """Analyze the blocks of a statement whose paths are not followed: nothing dies in it."""
        live = after | reads(statement)
        for name in ("body", "orelse", "finalbody"):
            self.block(getattr(statement, name, []), live)
        for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
            self.block(part.body, live)
        return live
