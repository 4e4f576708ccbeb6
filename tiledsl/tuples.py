"""Tuples as kernel arguments: one argument a leaf on the way, a tuple again in the kernel.

The leaf of argument `x` at position 0 is called `x.0`; of a tuple in a tuple, `x.0.1`. A leaf is
whatever an argument may be. Only plain tuples go this way: a subclass means more than its items.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from tiledsl.specialize import ArgType


class Parts(tuple[object, ...]):
    """The parts of a launch's key that belong to one tuple."""

    __slots__ = ()


def is_tuple(value: object) -> TypeGuard[tuple[object, ...]]:
    """Return whether `value` is passed leaf by leaf."""
    return value.__class__ is tuple


def parameter_of(name: str) -> str:
    """Return the parameter that a leaf belongs to."""
    return name.partition(".")[0]


def run_time_names(names: Sequence[str], parts: Sequence[object]) -> Iterator[str]:
    """Yield the name of every leaf that has a run-time form, in order.

    Args:
        names: One a part.
        parts: An `ArgType`, `Parts` of a tuple, or anything else for a constant.
    """
    for name, part in zip(names, parts, strict=True):
        if isinstance(part, ArgType):
            yield name
        elif isinstance(part, Parts):
            yield from run_time_names([f"{name}.{i}" for i in range(len(part))], part)


def nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values by parameter, leaves put together to tuples."""
    found: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for name, value in leaves.items():
        parameter, dot, rest = name.partition(".")
        if dot:
            inner.setdefault(parameter, {})[rest] = value
        else:
            found[parameter] = value
    for parameter, items in inner.items():
        by_position = nested(items)
        found[parameter] = tuple(by_position[str(i)] for i in range(len(by_position)))
    return found
