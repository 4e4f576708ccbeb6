"""Tuples, named tuples, dataclasses and descriptors as arguments: one a leaf on the way.

A leaf is whatever an argument may be, another such argument included. It is called by its way from
the parameter `x`: `x.0` in a tuple, `x.rows` in a named tuple or dataclass, `x.0.rows` and so on.
In the kernel the leaves are put together again: a tuple to a tuple, a named tuple or dataclass to
an object of its class with those fields and no others (neither its constructor nor its
`__post_init__` runs, for what they check are numbers). The class is a constant called like the
argument itself. Classes that can be called, and enumerations, are constants as a whole; so are
tuples of other classes than these, which mean more than their items.

A `TensorDescriptor` goes the same way, with its `Boxes` for its class.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, cast

from tiledsl.descriptor import Boxes, TensorDescriptor
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.specialize import ArgType

Kind = type[Any] | Boxes
"""What is constant of such an argument: its class, or how boxes are read."""


class Parts(tuple[object, ...]):
    """The parts of a launch's key that belong to one such argument: its class, then each leaf's."""

    __slots__ = ()

    @property
    def kind(self) -> Kind:
        """The argument's class."""
        return cast("Kind", self[0])

    @property
    def leaves(self) -> tuple[object, ...]:
        """The parts of the leaves."""
        return self[1:]

    def names(self, parameter: str) -> list[str]:
        """Return the leaves' names."""
        found = _fields(self.kind) or [str(i) for i in range(len(self) - 1)]
        return [f"{parameter}.{name}" for name in found]


@cache
def _fields(kind: Kind) -> tuple[str, ...] | None:
    """Return the fields of a named tuple or dataclass, or None where a class is neither."""
    if isinstance(kind, Boxes):
        return Boxes.LEAVES
    if issubclass(kind, enum.Enum) or any("__call__" in vars(base) for base in kind.__mro__):
        return None
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    fields: object = getattr(kind, "_fields", None)
    if issubclass(kind, tuple) and isinstance(fields, tuple):
        return cast("tuple[str, ...]", fields)
    return None


def is_compound(value: object) -> bool:
    """Return whether `value` is passed leaf by leaf."""
    kind = value.__class__
    return kind is tuple or kind is TensorDescriptor or _fields(kind) is not None


def kind_of(value: object) -> Kind:
    """Return what is constant of a value that is passed leaf by leaf."""
    return value.boxes if isinstance(value, TensorDescriptor) else value.__class__


def items_of(value: object) -> Sequence[object]:
    """Return the items of a value that is passed leaf by leaf, in order."""
    if isinstance(value, tuple):
        return cast("tuple[object, ...]", value)
    if isinstance(value, TensorDescriptor):
        return value.base, value.shape, value.strides
    return [getattr(value, name) for name in _fields(type(value)) or ()]


def parameter_of(name: str) -> str:
    """Return the parameter that a leaf belongs to."""
    return name.partition(".")[0]


def run_time_names(names: Sequence[str], parts: Sequence[object]) -> Iterator[str]:
    """Yield the name of every leaf that has a run-time form, in order.

    Args:
        names: One a part.
        parts: An `ArgType`, `Parts`, or anything else for a constant.
    """
    for name, part in zip(names, parts, strict=True):
        if isinstance(part, ArgType):
            yield name
        elif isinstance(part, Parts):
            yield from run_time_names(part.names(name), part.leaves)


def nested(leaves: Mapping[str, Any], within: str = "") -> dict[str, Any]:
    """Return the values by parameter, leaves put together.

    Args:
        leaves: By name.
        within: What the names are said to begin with, in messages.

    Raises:
        KernelError: A leaf is missing, or there is one that the class does not have.
    """
    found: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for name, value in leaves.items():
        parameter, dot, rest = name.partition(".")
        if dot:
            inner.setdefault(parameter, {})[rest] = value
        else:
            found[parameter] = value
    for parameter, items in inner.items():
        name = within + parameter
        found[parameter] = _together(name, found.get(parameter, tuple), nested(items, f"{name}."))
    return found


def _together(parameter: str, kind: Any, items: Mapping[str, Any]) -> object:
    """Make an object of class `kind` of its items by name."""
    fields = _fields(kind) if isinstance(kind, type | Boxes) else None
    names = fields or [str(i) for i in range(len(items))]
    if (fields is None and kind is not tuple) or set(names) != set(items):
        fields_or_numbers = ", ".join(names) if fields else "numbered from 0"
        raise KernelError(
            f"argument `{parameter}`: expected items {fields_or_numbers}, found {', '.join(items)}",
            hint=f"give the class of a named tuple or dataclass as the constexpr `{parameter}`",
        )
    ordered = {name: items[name] for name in names}
    if isinstance(kind, Boxes):
        return kind.make(ordered)
    return _made(cast("Any", kind), ordered)


def _made(kind: type[Any], items: Mapping[str, Any]) -> object:
    """Make an object of a class of its fields' values, past its constructor."""
    mro: Sequence[type] = kind.__mro__
    if tuple in mro:
        plain: Any = tuple
        return plain.__new__(kind, items.values())
    made: object = object.__new__(kind)
    for name, value in items.items():
        object.__setattr__(made, name, value)
    return made
