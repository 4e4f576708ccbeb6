"""What a run-time loop carries from one trip to the next.

A loop's body is traced with a block argument in place of each leaf that may change. Afterwards the
variables are compared with what they held at the start of the trip: a leaf that the body left alone
is no argument after all; one that changed must have kept its type. Some things only a tracing shows
(`Learned`), and then the body is traced once more, `Carry.again`:

- A number before the loop takes its own type (int32, float32) first, then that of the same kind
  that a trip gives it.
- A number *inside* a container is a constant of the kernel until a trip changes it; so is what
  a container holds that the body only reads.
- What a `return` inside the loop gives has no value before; it is carried as zeros that nobody
  sees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlir import ir

from tiledsl.control_flow.desugar import RETURN
from tiledsl.control_flow.leaves import (
    Missing,
    begin_hint,
    common_type,
    fits,
    is_weak_integer,
    leaf_text,
    materialize,
    own_type,
)
from tiledsl.control_flow.trees import (
    UNSET,
    Children,
    Path,
    Scope,
    State,
    children,
    containers_in,
    is_container,
    is_leaf,
    rebuild,
    replace,
    same,
    step,
)
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.language.builder import Region, current
from tiledsl.language.types import tile_of
from tiledsl.language.value import TileType, Value, wrap

Plan = Callable[[], object]
"""Gives what holds after the loop, once its results exist."""


@dataclass(eq=False)
class Leaf:
    """A leaf that is carried.

    Attributes:
        path: How it is reached.
        initial: What it is before the loop.
        type: The type that it keeps.
        arguments: Its block argument in each region of the loop.
        values: The same as the author sees them.
        outgoing: What each region hands on, None while that is not known.
        result: Its value after the loop.
    """

    path: Path
    initial: object
    type: TileType
    arguments: list[ir.Value]
    values: list[Value]
    outgoing: list[object]
    result: Value | None = None

    @property
    def unchanged(self) -> bool:
        """Whether every region hands on what it was given."""
        return len(self.outgoing) == len(self.values) and all(
            o is v for o, v in zip(self.outgoing, self.values, strict=True)
        )

    def start(self) -> ir.Value:
        """Return its value before the loop, at the end of the innermost open region."""
        return materialize(self.initial, self.type, current().region)

    def handed_on(self, index: int, region: Region) -> ir.Value:
        """Return what the region of an index hands on, at the end of that region."""
        return materialize(self.outgoing[index], self.type, region)


@dataclass
class Learned:
    """What earlier tracings of a loop's body have shown.

    Attributes:
        types: Types of numbers that are carried, by path.
        containers: Ids of containers whose contents change.
        result: What a `return` inside the loop gives, of which only the types count.
    """

    types: dict[Path, TileType] = field(default_factory=dict[Path, TileType])
    containers: set[int] = field(default_factory=set[int])
    result: object = UNSET


class _Changed(Exception):
    def __init__(self, path: Path, before: object, after: object) -> None:
        super().__init__()
        self.path, self.before, self.after = path, before, after


class Carry:
    """One tracing of a loop's regions.

    Args:
        scope: The variables around the loop.
        needed: Those that a trip may read before it sets them.
        mutated: Variables whose containers the body changes by assignment to elements.
        learned: What is known from earlier tracings; grows.
    """

    def __init__(
        self,
        scope: Scope,
        needed: Sequence[str],
        mutated: Sequence[str],
        learned: Learned,
    ) -> None:
        self._scope = scope
        self._needed = frozenset(needed)
        self._learned = learned
        self.again = False
        self.leaves: list[Leaf] = []
        self.reasons: dict[str, Missing] = {}
        self._by_value: dict[int, Leaf] = {}
        self._begin = State({}, [])
        self._plans: dict[str, Plan] = {}
        self._container_plans: list[tuple[object, dict[Any, Plan]]] = []
        # These are compared by themselves, whichever variables lead to them.
        self._own_containers = {id(c) for c in scope.containers}
        owners = [scope.owner(name) for name in mutated]
        self._changing = {id(c) for c in containers_in(owners)} | learned.containers

    # --- before a region -----------------------------------------------------------------------

    def enter(self, region: Region) -> dict[str, object]:
        """Begin a region: give the variables, and containers that change, its block arguments.

        The first region makes them from what holds before the loop, a second one from the first.
        """
        first = not self._begin.bindings
        source = self._scope.before if first else self._begin
        copies: dict[int, object] = {}
        bindings = {
            name: self._bound(value, source, region, (name,), copies)
            for name, value in source.bindings.items()
        }
        changing = [c for c in self._scope.containers if id(c) in self._changing]
        for container in changing:
            held = source.children(container) or {}
            path = self._scope.path(container)
            new = {
                key: self._bound(item, source, region, (*path, step(container, key)), None)
                for key, item in held.items()
            }
            replace(container, new)
        self._begin = State(bindings, [*containers_in(bindings.values()), *changing])
        if first:
            for name, value in bindings.items():
                if value is UNSET:
                    self.reasons[name] = Missing(
                        f"expected `{name}` to have a value: it has none before the run-time "
                        "loop that sets it",
                        f"give `{name}` a value before the loop, of the type that it gets there",
                    )
        return bindings

    def _bound(
        self,
        value: object,
        source: State,
        region: Region,
        path: Path,
        copies: dict[int, object] | None,
    ) -> object:
        """Return `value` with arguments of `region` for leaves.

        Args:
            value: The value.
            source: When its children are read.
            region: The region.
            path: How it is reached.
            copies: Copies of containers made so far; None where containers stay themselves.
        """
        if is_leaf(value):
            return self._argument(value, region, path)
        held = source.children(value)
        if held is None or (copies is None and is_container(value)):
            return value
        if copies is not None and id(value) in copies:
            return copies[id(value)]
        made = {
            key: self._bound(item, source, region, (*path, step(value, key)), copies)
            for key, item in held.items()
        }
        copy = rebuild(value, made)
        if copies is not None and is_container(value):
            copies[id(value)] = copy
        return copy

    def _argument(self, value: object, region: Region, path: Path) -> object:
        leaf = self._by_value.get(id(value)) if isinstance(value, Value) else None
        if leaf is None:
            learned = self._learned.types.get(path)
            if self._begin.bindings or self._is_constant(value, path):
                return value
            leaf = Leaf(path, value, learned or own_type(value), [], [], [])
            self.leaves.append(leaf)
        type_ = tile_of(leaf.type.dtype, leaf.type.shape)
        handle = region.block.add_argument(type_, current().location())
        weak = is_weak_integer(leaf.initial) and path not in self._learned.types
        made = Value(handle, leaf.type.dtype, leaf.type.shape, region, weak)
        leaf.arguments.append(handle)
        leaf.values.append(made)
        self._by_value[id(made)] = leaf
        return made

    def _is_constant(self, value: object, path: Path) -> bool:
        """Return whether a leaf is a number inside a container that no trip is known to change."""
        return not isinstance(value, Value) and len(path) > 1 and path not in self._learned.types

    # --- after a region ------------------------------------------------------------------------

    def leave(self, env: Mapping[str, Any]) -> None:
        """End a region: note what each leaf is now."""
        self._plans = {}
        for name in self._scope.names:
            before = self._scope.before.bindings[name]
            begin, now = self._begin.bindings[name], env.get(name, UNSET)
            if before is UNSET:
                if name == RETURN and now is not UNSET:
                    self._learned.result = now
                    self.again = True
                self.reasons[name] = Missing(
                    f"expected `{name}` to have a value: it is set only inside a run-time loop, "
                    "which may make no trip",
                    begin_hint(name, now, "the loop"),
                )
                self._plans[name] = lambda: UNSET
                continue
            try:
                self._plans[name] = self._compared(before, begin, now, (name,))
            except _Changed as found:
                self._plans[name] = self._lost(name, found)
        self._container_plans = []
        for container in self._scope.containers:
            self._leave_container(container)

    def _compared(self, before: object, begin: object, now: object, path: Path) -> Plan:
        """Return how to give, after the loop, what is `before` if it makes no trip."""
        leaf = self._by_value.get(id(begin)) if isinstance(begin, Value) else None
        if leaf is not None:
            self._hand_on(leaf, now, path)
            return lambda: leaf.initial if leaf.result is None else leaf.result
        if begin is now and id(begin) in self._own_containers:
            return lambda: before
        if is_leaf(begin) and is_leaf(now):
            if not same(begin, now):
                shared = common_type(begin, now)
                if shared is None:
                    raise _Changed(path, before, now)
                self._learned.types[path] = shared
                self.again = True
            return lambda: before
        a, b, old = (
            self._begin.children(begin),
            children(now),
            self._scope.before.children(before),
        )
        if (
            a is not None
            and b is not None
            and old is not None
            and type(begin) is type(now)
            and a.keys() == b.keys() == old.keys()
        ):
            plans = {k: self._compared(old[k], a[k], b[k], (*path, step(now, k))) for k in a}
            return lambda: _rebuilt(before, old, now, plans)
        if begin is now or same(begin, now):
            return lambda: before
        raise _Changed(path, before, now)

    def _hand_on(self, leaf: Leaf, now: object, path: Path) -> None:
        if not is_leaf(now):
            raise _Changed(path, leaf.initial, now)
        if not fits(now, leaf.type):
            type_ = self._adopted(leaf, now, path)
            if type_ is None:
                raise _Changed(path, leaf.initial, now)
            self._learned.types[path] = type_
            self.again = True
        region = len(leaf.values) - 1
        if len(leaf.outgoing) == region:
            leaf.outgoing.append(now)
        elif now is not leaf.values[region]:
            # Seen before, through another variable: what was assigned last counts.
            leaf.outgoing[region] = now

    def _adopted(self, leaf: Leaf, now: object, path: Path) -> TileType | None:
        """Return the type that a leaf that was a number before takes, as a trip gives another."""
        if isinstance(leaf.initial, Value) or path in self._learned.types:
            return None
        type_ = own_type(now)
        same_kind = type_.dtype.is_floating() == leaf.type.dtype.is_floating()
        return type_ if same_kind and fits(leaf.initial, type_) else None

    def _lost(self, name: str, found: _Changed) -> Plan:
        """Return the plan for a variable that does not keep its type.

        Raises:
            KernelError: A trip may read it.
        """
        before, after = leaf_text(found.before), leaf_text(found.after)
        if name in self._needed:
            raise KernelError(
                f"expected `{''.join(found.path)}` to keep its type in a run-time loop, found "
                f"{before} before it and {after} after a trip",
                hint=_start_hint(found),
            )
        self.reasons[name] = Missing(
            f"expected `{''.join(found.path)}` to have one type after a run-time loop, found "
            f"{before} before it and {after} after a trip",
            begin_hint("".join(found.path), found.after, "the loop"),
        )
        return lambda: UNSET

    def _leave_container(self, container: object) -> None:
        before = self._scope.before.children(container) or {}
        now = children(container) or {}
        changing = id(container) in self._changing
        if not changing and before.keys() == now.keys():
            if any(before[k] is not now[k] and not same(before[k], now[k]) for k in now):
                self._learned.containers.add(id(container))
                self.again = True
            return
        path = self._scope.path(container)
        if before.keys() != now.keys():
            raise KernelError(
                f"expected `{''.join(path)}` to keep its elements in a run-time loop, found "
                f"{len(before)} before it and {len(now)} after a trip"
            )
        begin = self._begin.children(container) or {}
        try:
            plans = {
                k: self._compared(before[k], begin[k], now[k], (*path, step(container, k)))
                for k in now
            }
        except _Changed as found:
            raise KernelError(
                f"expected `{''.join(found.path)}` to keep its type in a run-time loop, found "
                f"{leaf_text(found.before)} before it and {leaf_text(found.after)} after a trip"
            ) from None
        self._container_plans.append((container, plans))

    # --- the op --------------------------------------------------------------------------------

    def settle(self, regions: Sequence[Region], others: int) -> list[Leaf]:
        """Drop the arguments of what turned out not to be carried; returns the leaves that are.

        Args:
            regions: The loop's regions, closed, in the order of `enter`.
            others: How many block arguments stand before the carried ones in the first region.
        """
        kept: list[Leaf] = []
        for i in reversed(range(len(self.leaves))):
            leaf = self.leaves[i]
            if len(leaf.outgoing) == len(regions) and not leaf.unchanged:
                kept.append(leaf)
                continue
            initial = materialize(leaf.initial, leaf.type, current().region)
            for n, (region, argument) in enumerate(zip(regions, leaf.arguments, strict=True)):
                argument.replace_all_uses_with(initial)
                # Another leaf may hand this one on.
                leaf.values[n].stand_for(initial)
                region.block.erase_argument(i + (others if n == 0 else 0))
        return kept[::-1]

    def give_results(self, kept: Sequence[Leaf], results: Sequence[ir.Value]) -> None:
        """Give the carried leaves their values after the loop."""
        for leaf, handle in zip(kept, results, strict=True):
            leaf.result = wrap(handle, leaf.type.dtype, leaf.type.shape)

    def finish(self) -> tuple[object, ...]:
        """Return what the variables hold after the loop; containers get it in place."""
        for container, plans in self._container_plans:
            replace(container, {key: plan() for key, plan in plans.items()})
        return tuple(self._plans[name]() for name in self._scope.names)


def _rebuilt(before: object, old: Children, now: object, plans: Mapping[Any, Plan]) -> object:
    """Return a node after the loop: the one before it where no child changed."""
    made = {key: plan() for key, plan in plans.items()}
    if all(made[key] is old[key] for key in made):
        return before
    return rebuild(now, made)


def _start_hint(found: _Changed) -> str | None:
    before, after = found.before, found.after
    if isinstance(after, Value) and is_leaf(before) and not isinstance(before, Value):
        return f"start it as tile.full({after.shape}, {before}, tile.{after.dtype})"
    if isinstance(after, Value) and isinstance(before, Value) and after.shape == before.shape:
        return f"convert it at the end of a trip, as x.to(tile.{before.dtype})"
    return None
