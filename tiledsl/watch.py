"""Variables and attributes that a kernel captured, and whether they still hold what they held.

A kernel may read a global, a closure's variable, or an attribute of what one of these holds: of a
module, a class, or any object that keeps attributes. `attribute` reads one without running code of
the author's: no property, no `__getattr__`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

ATOMS = (int, float, complex, str, bytes, bool, type(None), type(Ellipsis))
"""Types of values that never change and say all in their repr."""
_CONTAINERS = (list, dict, set, bytearray)
_MOST_BYTES = 4096
"""Of an array whose elements are looked at before every launch: a table of constants has fewer."""


@dataclass(frozen=True)
class Watched:
    """What the kernel captured: how to look at it, and what it held."""

    look: Callable[[], object]
    held: object
    snapshot: str | bytes | None

    @staticmethod
    def now(look: Callable[[], object]) -> Watched:
        """Watch what is there now.

        Raises:
            KeyError: There is nothing.
        """
        held = look()
        return Watched(look, held, _contents(held))

    def changed(self) -> bool:
        """Return whether it holds another value, or a mutable one with other contents."""
        try:
            now = self.look()
        except (KeyError, ValueError):
            return True
        if now is not self.held:
            same = type(now) is type(self.held) and isinstance(now, ATOMS)
            return not (same and repr(now) == repr(self.held))
        return self.snapshot is not None and _contents(now) != self.snapshot


def _contents(value: object) -> str | bytes | None:
    """Return what a mutable value holds, None where it is none that is looked into."""
    if isinstance(value, np.ndarray):
        return value.tobytes() if value.nbytes <= _MOST_BYTES else None
    return repr(value) if _may_change(value) else None


def _may_change(value: object) -> bool:
    """Return whether a value is a container with contents that can become others."""
    if isinstance(value, tuple):
        return any(map(_may_change, cast("tuple[object, ...]", value)))
    return isinstance(value, _CONTAINERS)


def attribute(owner: object, name: str) -> object:
    """Return what an attribute of a module, a class or another object holds.

    Raises:
        KeyError: It holds nothing itself: the attribute is missing, a method or a property.
    """
    own = getattr(owner, "__dict__", None)
    if own is not None and name in own and not isinstance(owner, type):
        return own[name]
    if isinstance(owner, types.ModuleType):
        raise KeyError(name)
    kind = owner if isinstance(owner, type) else type(owner)
    for base in kind.__mro__:
        if name in (members := vars(base)):
            return _member(owner, members[name])
    raise KeyError(name)


def _member(owner: object, member: Any) -> object:
    if isinstance(member, types.MemberDescriptorType) and not isinstance(owner, type):
        try:
            return member.__get__(owner)
        except AttributeError:  # a slot that holds nothing
            raise KeyError(member.__name__) from None
    if hasattr(cast("object", type(member)), "__get__"):
        raise KeyError(getattr(member, "__name__", "?"))
    return member


def state(value: object) -> Mapping[str, object] | None:
    """Return the attributes that an object holds itself, or None where it keeps none."""
    own = getattr(value, "__dict__", None)
    slots = dict(_slots(value))
    return None if own is None and not slots else {**slots, **(own or {})}


def _slots(value: object) -> Iterator[tuple[str, object]]:
    for base in type(value).__mro__:
        for name, member in vars(base).items():
            if isinstance(member, types.MemberDescriptorType) and name != "__dict__":
                try:
                    yield name, member.__get__(value)
                except AttributeError:
                    continue
