"""Run-time branches: `if` statements, conditional expressions, `and` and `or`.

Both sides are traced, each into a region of its own, from the same variables. What a variable holds
after them is what both sides agree on, or a result of an `scf.if` where they differ in run-time
values or numbers (of an `arith.select` where both sides are cheap and have no effects). Where they
cannot agree it holds nothing, and reading it is an error that names both: a variable that nobody
reads may differ freely.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlir import ir

from tiledsl.control_flow.desugar import RETURN
from tiledsl.control_flow.leaves import (
    Missing,
    begin_hint,
    blank,
    common_type,
    leaf_text,
    materialize,
)
from tiledsl.control_flow.trees import (
    UNSET,
    Path,
    Scope,
    State,
    is_leaf,
    rebuild,
    replace,
    same,
    step,
)
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dialects.op import Op
from tiledsl.dialects.types import is_tile
from tiledsl.language import casts
from tiledsl.language.builder import Region, current
from tiledsl.language.types import tile_of
from tiledsl.language.value import TileType, Value, describe, wrap

WORDS = "a run-time branch"

SPECULATED_OPS = 8
"""Ops of a side that are rather computed in vain than branched around: a branch costs as much."""

Plan = Callable[[], object]
"""Gives a merged value, once the results of the `scf.if` exist."""


class _Disagreement(Exception):
    def __init__(self, path: Path, first: object, second: object) -> None:
        super().__init__()
        self.path, self.first, self.second = path, first, second


def condition_of(test: Value) -> Value:
    """Return a run-time condition as a bool scalar.

    Raises:
        KernelError: It is a tile.
    """
    if test.shape:
        raise KernelError(
            f"expected a scalar condition, found {describe(test)}",
            hint="combine tiles with & | ~, or reduce with tile.any or tile.all",
        )
    return casts.truth(test)


class Merge:
    """Finds what two sides have in common, and makes the `scf.if`.

    Args:
        condition: The bool scalar.
        then: The region of the true side, closed.
        otherwise: The region of the false side, closed.
    """

    def __init__(self, condition: Value, then: Region, otherwise: Region) -> None:
        self._condition = condition
        self._regions = then, otherwise
        self._types: list[TileType] = []
        self._handles: tuple[list[ir.Value], list[ir.Value]] = ([], [])
        self._results: list[Value] = []

    def plan(self, first: object, second: object, sides: tuple[State, State], path: Path) -> Plan:
        """Return how to give what holds `first` on the true side and `second` on the other.

        Raises:
            _Disagreement: There is no such value.
        """
        if is_leaf(first) and is_leaf(second):
            if same(first, second):
                return lambda: first
            return self._leaf(first, second, path)
        if first is second:
            return lambda: first
        if (first is UNSET or second is UNSET) and path == (RETURN,):
            first, second = self._filled(first, second)
            return self.plan(first, second, sides, (RETURN, "of one side"))
        a, b = sides[0].children(first), sides[1].children(second)
        if a is not None and b is not None and type(first) is type(second) and a.keys() == b.keys():
            plans = {k: self.plan(a[k], b[k], sides, (*path, step(first, k))) for k in a}
            return lambda: rebuild(first, {key: plan() for key, plan in plans.items()})
        if same(first, second):
            return lambda: first
        raise _Disagreement(path, first, second)

    def _filled(self, first: object, second: object) -> tuple[object, object]:
        """Return what both sides return, where only one does: the other's is never read."""
        then, otherwise = self._regions
        if first is UNSET:
            return blank(second, then), second
        return first, blank(first, otherwise)

    def _leaf(self, first: object, second: object, path: Path) -> Plan:
        type_ = common_type(first, second)
        if type_ is None:
            raise _Disagreement(path, first, second)
        at = len(self._types)
        handles = [
            materialize(leaf, type_, region)
            for leaf, region in zip((first, second), self._regions, strict=True)
        ]
        self._types.append(type_)
        for side, handle in zip(self._handles, handles, strict=True):
            side.append(handle)
        return lambda: self._results[at]

    def build(self) -> None:
        """Make the `scf.if`; plans may be called afterwards."""
        builder = current()
        bodies = [list(region.block.operations) for region in self._regions]
        if not self._types and not any(bodies):
            return
        if self._can_select(bodies):
            self._select()
            return
        for region, handles in zip(self._regions, self._handles, strict=True):
            builder.create("scf.yield", handles, [], region=region)
        types = [tile_of(t.dtype, t.shape) for t in self._types]
        op = builder.structured("scf.if", [self._condition.handle], types, self._regions)
        self._results = [wrap(op.results[i], t.dtype, t.shape) for i, t in enumerate(self._types)]

    def _can_select(self, bodies: Sequence[Sequence[ir.OpView]]) -> bool:
        """Return whether both sides may be computed and chosen from: scalars, cheap, no effects."""
        return all(not t.shape and not t.dtype.is_ptr() for t in self._types) and all(
            len(body) <= SPECULATED_OPS and all(_is_cheap(op) for op in body) for body in bodies
        )

    def _select(self) -> None:
        builder = current()
        for region in self._regions:
            builder.splice(region)
        condition = self._condition.handle
        for type_, first, second in zip(self._types, *self._handles, strict=True):
            types = [tile_of(type_.dtype, ())]
            made = builder.create("arith.select", [condition, first, second], types)
            self._results.append(wrap(made.results[0], type_.dtype, ()))


def _is_cheap(op: ir.OpView) -> bool:
    """Return whether an op has no effects and computes a scalar of scalars."""
    pure = op.pure if isinstance(op, Op) else op.operation.name.startswith(("arith.", "math."))
    values = (*op.operation.operands, *op.operation.results)
    return pure and not any(is_tile(value.type) for value in values)


class Branch:
    """The hooks of one `if` statement.

    Args:
        test: Its condition.
        names: The variables that a side sets.
        after: Those of them that are read afterwards.
        read: Variables that a side reads.
        env: All local variables before.

    Attributes:
        run_time: Whether the condition is known only at run time.
        reasons: Why a variable has no value afterwards.
    """

    def __init__(
        self,
        test: object,
        names: Sequence[str],
        after: Sequence[str],
        read: Sequence[str],
        env: Mapping[str, Any],
    ) -> None:
        self.reasons: dict[str, Missing] = {}
        self.run_time = isinstance(test, Value)
        if isinstance(test, Value):
            self._condition = condition_of(test)
            self._scope = Scope(names, read, env)
            self._after = frozenset(after)
            self._ends: list[tuple[Region, State]] = []
        else:
            self._taken = bool(test)

    def then(self) -> bool:
        """Return whether to execute the first side."""
        if not self.run_time:
            return self._taken
        current().open(WORDS)
        return True

    def otherwise(self) -> bool:
        """Return whether to execute the second side."""
        if not self.run_time:
            return not self._taken
        current().open(WORDS)
        return True

    def end(self, env: Mapping[str, Any]) -> tuple[object, ...]:
        """End a side; returns what the variables hold from here on."""
        state = self._scope.capture(env)
        self._ends.append((current().close(), state))
        self._scope.restore()
        if len(self._ends) == 1:
            return tuple(self._scope.before.bindings.values())
        return self._merge()

    def _merge(self) -> tuple[object, ...]:
        (then, first), (otherwise, second) = self._ends
        merge = Merge(self._condition, then, otherwise)
        bindings: dict[str, Plan] = {}
        for name in self._scope.names:
            if name not in self._after:
                bindings[name] = lambda: UNSET
                continue
            a, b = first.bindings[name], second.bindings[name]
            try:
                bindings[name] = merge.plan(a, b, (first, second), (name,))
            except _Disagreement as found:
                bindings[name] = lambda: UNSET
                self.reasons[name] = Missing(_reason(found), _hint(found))
        containers = self._merge_containers(merge, first, second)
        merge.build()
        for container, plans in containers:
            replace(container, {key: plan() for key, plan in plans.items()})
        return tuple(plan() for plan in bindings.values())

    def _merge_containers(
        self, merge: Merge, first: State, second: State
    ) -> list[tuple[object, dict[Any, Plan]]]:
        """Plan what the containers that existed before hold after both sides."""
        made: list[tuple[object, dict[Any, Plan]]] = []
        for container in self._scope.containers:
            before = self._scope.before.children(container) or {}
            a, b = first.children(container) or {}, second.children(container) or {}
            if all(s.keys() == before.keys() and all(s[k] is before[k] for k in s) for s in (a, b)):
                continue
            path = self._scope.path(container)
            if a.keys() != b.keys():
                raise KernelError(
                    f"expected `{''.join(path)}` to have the same elements after both sides of a "
                    f"run-time branch, found {len(a)} and {len(b)}"
                )
            try:
                plans = {
                    k: merge.plan(a[k], b[k], (first, second), (*path, step(container, k)))
                    for k in a
                }
            except _Disagreement as found:
                raise KernelError(_reason(found)) from None
            made.append((container, plans))
        return made


def _hint(found: _Disagreement) -> str:
    """Return what the author can do about it."""
    name = "".join(found.path)
    if found.path[0] == RETURN:
        return "let every path return a value of one type, or none return a value"
    if found.first is UNSET or found.second is UNSET:
        value = found.second if found.first is UNSET else found.first
        return begin_hint(name, value, "the branch")
    return f"give `{name}` one type and shape on both sides"


def _reason(found: _Disagreement) -> str:
    name = "".join(found.path)
    if found.path[0] == RETURN:
        return (
            "expected both sides of a run-time branch to return one type, found "
            f"{leaf_text(found.first)} and {leaf_text(found.second)}"
        )
    if found.first is UNSET or found.second is UNSET:
        return f"expected `{name}` to have a value: it is set on one side only of a run-time branch"
    return (
        f"expected `{name}` to have one type after a run-time branch, found "
        f"{leaf_text(found.first)} and {leaf_text(found.second)}"
    )


# --- expressions ---------------------------------------------------------------------------------


class Lazy:
    """A conditional expression, `and` or `or` that is being evaluated.

    Attributes:
        condition: The run-time condition, or None where the choice is made at compile time.
        chosen: The value, where no choice is left to run time.
    """

    def __init__(self, condition: Value | None = None, chosen: object = None) -> None:
        self.condition = condition
        self.chosen = chosen
        self.sides: list[tuple[Region, object]] = []

    def begin(self) -> None:
        """Begin a side at run time."""
        current().open(WORDS)

    def end(self, value: object) -> None:
        """End a side that gave `value`."""
        self.sides.append((current().close(), value))

    def merged(self, word: str) -> object:
        """Return the value of the whole, from its two sides: the true one first."""
        assert self.condition is not None
        (then, first), (otherwise, second) = self.sides
        merge = Merge(self.condition, then, otherwise)
        empty = State({}, [])
        try:
            plan = merge.plan(first, second, (empty, empty), (word,))
        except _Disagreement as found:
            raise KernelError(
                f"expected both values of {word} to have one type, "
                f"found {leaf_text(found.first)} and {leaf_text(found.second)}",
                hint=_expression_hint(found),
            ) from None
        merge.build()
        return plan()


def _expression_hint(found: _Disagreement) -> str | None:
    if any(isinstance(v, Value) and v.shape for v in (found.first, found.second)):
        return "tile.where(condition, x, y) chooses element by element and broadcasts"
    return None


def no_rebinding(rebinds: bool) -> None:
    """Require a lazily evaluated expression to bind no variable.

    Raises:
        KernelError: It does, by `:=`.
    """
    if rebinds:
        raise KernelError(
            "expected no `:=` in an expression that is evaluated under a run-time condition",
            hint="use an `if` statement",
        )
