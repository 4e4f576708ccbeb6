"""Values inside Python containers: what a variable of a kernel may hold.

A *leaf* is a run-time `Value` or a number. A *node* is a list, tuple, dict, dataclass or object of
an author's class, whose children are walked. Anything else is *static*: the same object, or an
equal one, before and after. A *container* is a node that can be changed in place (list, dict,
object): it may be known under several names, so it is compared and updated in place, once.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import FunctionType, MethodType, ModuleType
from typing import Any, cast

import numpy as np

from tiledsl.language.operands import is_number
from tiledsl.language.positions import is_library_file
from tiledsl.language.value import Value


class Unset:
    """What stands for a variable without a value; there is one, `UNSET`."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET = Unset()

Children = dict[Any, Any]


def is_leaf(value: object) -> bool:
    """Return whether `value` is a run-time value or a number."""
    return isinstance(value, Value | np.generic) or is_number(value)


@cache
def _is_authors(kind: type) -> bool:
    """Return whether a class is the author's: not Python's, an installed or this package's."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return file is not None and not is_library_file(file)


def children(value: object) -> Children | None:
    """Return the children of a node by key, or None where `value` is no node."""
    if isinstance(value, list | tuple):
        return dict(enumerate(cast("Sequence[object]", value)))
    if isinstance(value, dict):
        return dict(cast("Mapping[object, object]", value))
    kind = type(value)
    if isinstance(value, type | ModuleType | FunctionType | MethodType | enum.Enum | Value):
        return None
    if dataclasses.is_dataclass(value):
        names = [f.name for f in dataclasses.fields(value)]
        held = {name: getattr(value, name) for name in names if hasattr(value, name)}
        return {**getattr(value, "__dict__", {}), **held}
    if hasattr(value, "__dict__") and _is_authors(kind):
        return dict(vars(value))
    return None


def is_container(value: object) -> bool:
    """Return whether a node can be changed in place."""
    return not isinstance(value, tuple) and not _is_frozen(value)


def _is_frozen(value: object) -> bool:
    parameters = getattr(type(value), "__dataclass_params__", None)
    return parameters is not None and bool(parameters.frozen)


def rebuild(value: object, new: Mapping[Any, object]) -> object:
    """Return a node like `value` with other children under the same keys."""
    if isinstance(value, tuple):
        items = list(new.values())
        kind: Any = type(cast("object", value))
        return kind(*items) if hasattr(kind, "_fields") else kind(items)
    if isinstance(value, list | dict):
        made = copy.copy(cast("Any", value))
        replace(made, new)
        return made
    made = copy.copy(value)
    for key, item in new.items():
        object.__setattr__(made, key, item)
    return made


def replace(container: object, new: Mapping[Any, object]) -> None:
    """Give a container other contents, in place."""
    if isinstance(container, list):
        container[:] = list(new.values())
    elif isinstance(container, dict):
        held = cast("dict[Any, object]", container)
        held.clear()
        held.update(new)
    else:
        for key in [k for k in getattr(container, "__dict__", {}) if k not in new]:
            delattr(container, key)
        for key, item in new.items():
            object.__setattr__(container, key, item)


def containers_in(values: Iterable[object]) -> list[object]:
    """Return every container that is reached from `values`, each once, outer ones first."""
    found: list[object] = []
    seen: set[int] = set()
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if is_leaf(value) or id(value) in seen:
            continue
        held = children(value)
        if held is None:
            continue
        seen.add(id(value))
        if is_container(value):
            found.append(value)
        waiting.extend(held.values())
    return found


def same(first: object, second: object) -> bool:
    """Return whether two static objects, or numbers, are the same at compile time."""
    if first is second:
        return True
    if type(first) is not type(second) or isinstance(first, Value):
        return False
    try:
        return bool(first == second)
    except Exception:
        # An author's `==` may do anything; what cannot be compared is not known to be equal.
        return False


Path = tuple[str, ...]
"""The variable's name, then how each child is reached: ("state", ".acc", "[0]")."""


def step(value: object, key: object) -> str:
    """Return how the child `key` of a node is written."""
    return f"[{key!r}]" if isinstance(value, list | tuple | dict) else f".{key}"


class State:
    """What some variables, and the containers that they reach, hold at one moment.

    Attributes:
        bindings: Variable to value; UNSET for an unbound one.
    """

    def __init__(self, bindings: Mapping[str, object], containers: Sequence[object]) -> None:
        self.bindings = dict(bindings)
        self._contents = {id(c): children(c) or {} for c in containers}

    def children(self, value: object) -> Children | None:
        """Return the children that a node had at this moment."""
        held = self._contents.get(id(value))
        return children(value) if held is None else held


class Scope:
    """The variables that a branch or loop may change, and what they held before it.

    Args:
        names: The variables to hand over.
        read: Variables whose containers may be changed in place.
        env: All local variables before.
    """

    def __init__(self, names: Sequence[str], read: Sequence[str], env: Mapping[str, Any]) -> None:
        self.names = tuple(names)
        bindings = {name: env.get(name, UNSET) for name in names}
        self._owners = {name: env[name] for name in read if name in env}
        self.containers = containers_in([*bindings.values(), *self._owners.values()])
        self.before = State(bindings, self.containers)

    def capture(self, env: Mapping[str, Any]) -> State:
        """Return what the variables and containers hold now."""
        return State({name: env.get(name, UNSET) for name in self.names}, self.containers)

    def restore(self) -> None:
        """Give the containers back what they held before."""
        for container in self.containers:
            held = self.before.children(container) or {}
            if not _identical(children(container) or {}, held):
                replace(container, held)

    def owner(self, name: str) -> object:
        """Return what a variable held before, UNSET if nothing."""
        return self._owners.get(name, self.before.bindings.get(name, UNSET))

    def path(self, container: object) -> Path:
        """Return how an author reaches a container."""
        for name, owner in (*self.before.bindings.items(), *self._owners.items()):
            found = _path_to(owner, container, (name,), set())
            if found is not None:
                return found
        return ("a container",)


def _identical(first: Children, second: Children) -> bool:
    return first.keys() == second.keys() and all(first[k] is second[k] for k in first)


def _path_to(value: object, wanted: object, path: Path, seen: set[int]) -> Path | None:
    if value is wanted:
        return path
    if is_leaf(value) or id(value) in seen:
        return None
    seen.add(id(value))
    for key, item in (children(value) or {}).items():
        found = _path_to(item, wanted, (*path, step(value, key)), seen)
        if found is not None:
            return found
    return None
