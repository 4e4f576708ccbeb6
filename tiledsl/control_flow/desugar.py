"""Leave only structured control flow: no `return`, `break` or `continue` under an `if`.

A run-time branch or loop becomes an `scf` region, which has one way in and one way out. So where an
`if` can leave its function or loop, what follows it moves into the sides that go on, which changes
nothing that can be observed; leaving is then what happens at the end anyway:

    if a:                    if a:
        return x       ->        result = x
    rest                     else:
    return y                     rest
                                 result = y
                             return result

`continue` goes the same way. `break` sets a flag that the loop tests; `else` of a loop runs unless
it is set; `return` in a loop is a `break` and then a `return`. A jump in a `with` or `try` stays as
it is: at compile time it is plain Python, and a hook rejects it at run time. The rest is copied
where both sides of an `if` may go on and it holds a jump in one of them.

Contract: works in place on a copy of the author's function; every node keeps or gets a location.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Sequence

RETURN = "__tile_return"
"""The variable that holds what the function returns."""

KNOWN_TRUE = "__tile_known_true"
"""Called in a test: whether a flag is true at compile time; a flag of run time gives False."""

_Jump = type[ast.Return] | type[ast.Break] | type[ast.Continue]
_LOOPS = (ast.For, ast.While)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def desugar(function: ast.FunctionDef) -> None:
    """Restructure the body of `function`, and of the functions in it, in place."""
    _Desugarer().function(function)


def located(node: ast.AST, at: ast.AST) -> ast.AST:
    """Return `node`, with every part of it that has no location placed at `at`.

    Parts that have one are taken to have it throughout, so that a tree built inside out is walked
    once and not at every level.
    """
    waiting = [node]
    while waiting:
        part = waiting.pop()
        if "lineno" in part._attributes:
            if not hasattr(part, "lineno"):
                ast.copy_location(part, at)
            elif part is not node:
                continue
        waiting.extend(ast.iter_child_nodes(part))
    return node


def assign(name: str, value: ast.expr, at: ast.AST) -> ast.stmt:
    """Return `name = value`, at the place of `at`."""
    made = ast.Assign(targets=[ast.Name(name, ast.Store())], value=value)
    located(made, at)
    return made


class _Desugarer:
    def __init__(self) -> None:
        self._count = 0

    def function(self, node: ast.FunctionDef) -> None:
        body = self._block(node.body)
        if _leaves_under_if(body, (ast.Return,)):
            body = _absorb(body, (ast.Return,))
            _end_with(body, ast.Return, _set_result, _no_result)
            result = ast.Return(ast.Name(RETURN, ast.Load()))
            located(result, body[-1])
            body.append(result)
        node.body = body

    def _block(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for statement in body:
            made += self._statement(statement)
        return made

    def _statement(self, statement: ast.stmt) -> list[ast.stmt]:
        for inner in _nested_functions(statement):
            self.function(inner)
        if isinstance(statement, _LOOPS):
            return self._loop(statement)
        if not isinstance(statement, _SCOPES):
            for name in ("body", "orelse", "finalbody"):
                if hasattr(statement, name):
                    setattr(statement, name, self._block(getattr(statement, name)))
            for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
                part.body = self._block(part.body)
        return [statement]

    def _loop(self, loop: ast.For | ast.While) -> list[ast.stmt]:
        loop.body = self._block(loop.body)
        after = self._block(loop.orelse)
        loop.orelse = []
        before: list[ast.stmt] = []
        returned = ""
        own_break = any(True for _ in _jumps(loop.body, ast.Break))
        if _leaves(loop.body, (ast.Return,)):
            returned = self._flag("returned", before, loop)
            loop.body = _break_to_return(loop.body, returned)
        jumps = (ast.Break, ast.Continue)
        leaves = _leaves(loop.body, jumps)
        has_break = any(True for _ in _jumps(loop.body, ast.Break))
        flag = ""
        if has_break and (after or leaves):
            only_returns = returned and not own_break
            flag = returned if only_returns else self._flag("break", before, loop)
        if leaves:
            loop.body = _absorb(loop.body, jumps)
            _end_with(loop.body, ast.Continue, lambda jump: [], None)
            _end_with(loop.body, ast.Break, lambda jump: [_raise_flag(flag, jump)], None)
        if flag:
            loop.body = _flag_before_breaks(loop.body, flag)
            self._guard(loop, flag)
            if after:
                after = [_unless(flag, after, loop)]
        if returned:
            result = ast.Return(ast.Name(RETURN, ast.Load()))
            leave = ast.If(ast.Name(returned, ast.Load()), [result], [])
            located(leave, loop)
            after = [leave, *after]
        return [*before, loop, *after]

    def _flag(self, word: str, before: list[ast.stmt], at: ast.stmt) -> str:
        """Return a new variable, with its initial False added to `before`."""
        self._count += 1
        name = f"__tile_{word}_{self._count}"
        before.append(assign(name, ast.Constant(False), at))
        return name

    def _guard(self, loop: ast.For | ast.While, flag: str) -> None:
        """Make the loop do nothing once the flag is set, and end if that is known when traced."""
        if isinstance(loop, ast.While):
            test = ast.BoolOp(ast.And(), [_not(flag), loop.test])
            located(test, loop.test)
            loop.test = test
            return
        loop.body = [_unless(flag, loop.body, loop)]
        known = ast.Call(
            ast.Name(KNOWN_TRUE, ast.Load()), [ast.Name(flag, ast.Load())], keywords=[]
        )
        stop = ast.If(known, [ast.Break()], [])
        located(stop, loop)
        loop.body.append(stop)


def _not(flag: str) -> ast.expr:
    return ast.UnaryOp(ast.Not(), ast.Name(flag, ast.Load()))


def _unless(flag: str, body: list[ast.stmt], at: ast.stmt) -> ast.stmt:
    made = ast.If(_not(flag), body, [])
    located(made, at)
    return made


def _raise_flag(flag: str, at: ast.stmt) -> ast.stmt:
    return assign(flag, ast.Constant(True), at)


def _flag_before_breaks(body: list[ast.stmt], flag: str) -> list[ast.stmt]:
    """Set the flag before each `break` that is left in `body`."""
    made: list[ast.stmt] = []
    for statement in body:
        if isinstance(statement, ast.Break):
            made.append(_raise_flag(flag, statement))
        elif not isinstance(statement, (*_LOOPS, *_SCOPES)):
            for block in _blocks(statement):
                block[:] = _flag_before_breaks(block, flag)
        made.append(statement)
    return made


def _break_to_return(body: list[ast.stmt], flag: str) -> list[ast.stmt]:
    """Turn each `return` of a loop's body, or under its `if`s, into a noted result and a break."""
    made: list[ast.stmt] = []
    for statement in body:
        if isinstance(statement, ast.Return):
            made += _left_with(statement, flag)
            continue
        if isinstance(statement, ast.If):
            statement.body = _break_to_return(statement.body, flag)
            statement.orelse = _break_to_return(statement.orelse, flag)
        made.append(statement)
    return made


def _left_with(jump: ast.Return, flag: str) -> list[ast.stmt]:
    leave = ast.copy_location(ast.Break(), jump)
    return [*_set_result(jump), _raise_flag(flag, jump), leave]


def _set_result(jump: ast.stmt) -> list[ast.stmt]:
    value = jump.value if isinstance(jump, ast.Return) and jump.value else ast.Constant(None)
    return [assign(RETURN, value, jump)]


def _no_result(at: ast.stmt) -> list[ast.stmt]:
    return [assign(RETURN, ast.Constant(None), at)]


# --- moving what follows -------------------------------------------------------------------------


def _absorb(body: list[ast.stmt], kinds: tuple[_Jump, ...]) -> list[ast.stmt]:
    """Move what follows an `if` that may jump into those of its sides that go on."""
    for i, statement in enumerate(body):
        if isinstance(statement, (ast.Return, ast.Break, ast.Continue, ast.Raise)):
            return body[: i + 1]
        if isinstance(statement, ast.If) and any(_may_jump(statement, kinds)):
            rest = body[i + 1 :]
            first, second = _goes_on(statement.body), _goes_on(statement.orelse)
            copied = copy.deepcopy(rest) if first and second else rest
            statement.body = _absorb([*statement.body, *(rest if first else [])], kinds)
            statement.orelse = _absorb([*statement.orelse, *(copied if second else [])], kinds)
            return body[: i + 1]
    return body


def _end_with(
    body: list[ast.stmt],
    kind: _Jump,
    jump: Callable[[ast.stmt], list[ast.stmt]],
    fall: Callable[[ast.stmt], list[ast.stmt]] | None,
) -> None:
    """Replace the jumps of one kind at the ends of an absorbed block, in place.

    Args:
        body: The block.
        kind: The jump.
        jump: Gives what stands for it.
        fall: Gives what to add where the end is reached without a jump, or None for nothing.
    """
    last = body[-1]
    if isinstance(last, kind):
        body[-1:] = jump(last)
        if not body:
            body.append(ast.copy_location(ast.Pass(), last))
    elif isinstance(last, ast.If) and any(_may_jump(last, (kind,))):
        for side in ("body", "orelse"):
            block: list[ast.stmt] = getattr(last, side)
            if block:
                _end_with(block, kind, jump, fall)
            elif fall is not None:
                setattr(last, side, fall(last))
    elif fall is not None and not isinstance(last, ast.Raise):
        body += fall(last)


def _goes_on(body: Sequence[ast.stmt]) -> bool:
    """Return whether the end of a block can be reached."""
    for statement in body:
        if isinstance(statement, (ast.Return, ast.Break, ast.Continue, ast.Raise)):
            return False
        if isinstance(statement, ast.If) and not (
            _goes_on(statement.body) or _goes_on(statement.orelse)
        ):
            return False
    return True


def _leaves_under_if(body: Sequence[ast.stmt], kinds: tuple[_Jump, ...]) -> bool:
    return any(isinstance(s, ast.If) and any(_may_jump(s, kinds)) for s in body)


def _leaves(body: Sequence[ast.stmt], kinds: tuple[_Jump, ...]) -> bool:
    return any(isinstance(s, kinds) for s in body) or _leaves_under_if(body, kinds)


def _may_jump(statement: ast.If, kinds: tuple[_Jump, ...]) -> Iterator[bool]:
    """Yield True for each jump in an `if` that is reached through `if`s alone."""
    for inner in (*statement.body, *statement.orelse):
        if isinstance(inner, kinds):
            yield True
        elif isinstance(inner, ast.If):
            yield from _may_jump(inner, kinds)


def _jumps(body: Sequence[ast.stmt], kind: _Jump) -> Iterator[ast.stmt]:
    """Yield the jumps of a kind that belong to the loop or function with this body."""
    for statement in body:
        if isinstance(statement, kind):
            yield statement
        elif not isinstance(statement, (*_LOOPS, *_SCOPES)):
            for block in _blocks(statement):
                yield from _jumps(block, kind)


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """Yield the blocks of a compound statement."""
    for name in ("body", "orelse", "finalbody"):
        if isinstance(block := getattr(statement, name, None), list):
            yield block
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield part.body


def _nested_functions(statement: ast.stmt) -> Iterator[ast.FunctionDef]:
    """Yield the functions that a statement itself defines: a `def`, or methods of a class."""
    if isinstance(statement, ast.FunctionDef):
        yield statement
    elif isinstance(statement, ast.ClassDef):
        for inner in statement.body:
            yield from _nested_functions(inner)
