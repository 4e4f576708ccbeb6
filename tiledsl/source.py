"""Fingerprint a kernel: its source and everything that its result can depend on.

A cached kernel may be used again only while the author's function, each helper it reaches and each
value it captures are what they were. `reach` follows the names that a function's code mentions, in
closures first and then in globals (Python's order), through helpers in other modules, classes,
containers and `functools.partial`, and hashes what it finds; and the attributes that the code
mentions, of every module, class and object that it finds.

Contract:
- `Reach.digest` is equal for equal sources at equal places, which the code names line for line, and
  equal captured values, across processes and machines.
- `Reach.stable` is False where a captured object has no such description; the digest is then good
  for this process only, and nothing is written to disk.
- `Reach.changed()` tells cheaply, before a launch, that a captured global or closure variable, or
  an attribute of what one holds, is no longer what it was.
Python's standard library, installed packages and this package count by name: `cache` has the
version of this one in its key, and an installed helper's source is hashed when it is a function.
"""

from __future__ import annotations

import dis
import enum
import functools
import hashlib
import inspect
import os
import sys
import sysconfig
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from tiledsl.watch import ATOMS, Watched, attribute, state

_COLLECTIONS = (list, dict, set, bytearray, tuple, frozenset, Mapping)


@dataclass
class Reach:
    """What a function depends on.

    Attributes:
        digest: SHA-256 of it all, in hexadecimal.
        stable: Whether the digest means the same in another process.
        watched: The captured variables and attributes.
        mentioned: The attributes that the code may read of anything, by name.
    """

    digest: str
    stable: bool
    watched: list[Watched] = field(repr=False)
    mentioned: frozenset[str] = field(repr=False, default=frozenset())

    def changed(self) -> bool:
        """Return whether a captured variable or attribute holds another value."""
        for variable in self.watched:  # noqa: SIM110 (at every launch; `any` takes longer)
            if variable.changed():
                return True
        return False


def reach(function: Callable[..., object], mentioned: Iterable[str] = ()) -> Reach:
    """Follow everything that `function` depends on.

    Args:
        function: A Python function, a jitted one, or any callable.
        mentioned: Attributes that are read of what it holds, beside those in its own code.
    """
    walker = _Walker(mentioned)
    walker.visit(function)
    walker.finish()
    names = frozenset(walker.mentioned)
    return Reach(walker.hash.hexdigest(), walker.stable, walker.watched, names)


def source_of(function: Callable[..., object]) -> str:
    """Return the dedented source text of a function, or "" where Python has none."""
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return ""


@functools.cache
def _library_folders() -> tuple[str, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple(os.path.realpath(sysconfig.get_path(name)) + os.sep for name in names)


def _is_library(module_name: str) -> bool:
    """Return whether a module is Python's, installed, or part of this package."""
    if module_name.partition(".")[0] == "tiledsl" or module_name in sys.builtin_module_names:
        return True
    file = getattr(sys.modules.get(module_name), "__file__", None)
    return file is not None and os.path.realpath(file).startswith(_library_folders())


class _Walker:
    """Feeds one hash; each object once, later mentions by the number of the first."""

    def __init__(self, mentioned: Iterable[str]) -> None:
        self.hash = hashlib.sha256()
        self.stable = True
        self.watched: list[Watched] = []
        self._numbers: dict[int, int] = {}
        self._alive: list[object] = []
        self.mentioned = set(mentioned)
        self._owners: list[object] = []
        self._modules: list[types.ModuleType] = []

    def _put(self, *parts: str) -> None:
        for part in parts:
            self.hash.update(part.encode("utf-8", "surrogatepass") + b"\0")

    def _again(self, value: object) -> bool:
        """Return whether `value` was met before; note it and keep it alive otherwise."""
        if id(value) in self._numbers:
            self._put("again", str(self._numbers[id(value)]))
            return True
        self._numbers[id(value)] = len(self._numbers)
        self._alive.append(value)
        return False

    def visit(self, value: object) -> None:
        """Hash `value` and what it depends on."""
        if isinstance(value, enum.Enum):
            self._put("enum", f"{type(value).__qualname__}.{value.name}")
            self.visit(value.value)
        elif isinstance(value, ATOMS):
            self._put(type(value).__name__, repr(value))
        elif not self._again(value):
            self._visit_object(value)

    def finish(self) -> None:
        """Follow the attributes that are mentioned, then what else modules hold."""
        done: set[tuple[int, str]] = set()
        while new := [
            (owner, name)
            for owner in self._owners
            for name in sorted(self.mentioned)
            if (id(owner), name) not in done
        ]:
            for owner, name in new:
                done.add((id(owner), name))
                self._follow(name, functools.partial(attribute, owner, name))
        mentioned = set(self.mentioned)
        for module in self._modules:  # grows meanwhile
            # Its members may be picked by a name made at run time: all of its source counts.
            for member in list(vars(module).values()):
                inner = getattr(member, "fn", member)
                if isinstance(inner, types.FunctionType | types.ModuleType):
                    self.visit(inner)
        # What such functions mention are attributes of what they are called with, if they are.
        self.mentioned = mentioned

    def _follow(self, name: str, look: Callable[[], object]) -> bool:
        """Hash what a variable or attribute holds, and watch it; return whether it holds any."""
        try:
            watched = Watched.now(look)
        except (KeyError, ValueError):
            return False
        self._put("name", name)
        self.visit(watched.held)
        self.watched.append(watched)
        return True

    def _visit_object(self, value: object) -> None:
        if isinstance(value, types.FunctionType):
            self._visit_function(value)
        elif isinstance(value, types.MethodType):
            self.visit(value.__func__)
            self.visit(value.__self__)
        elif isinstance(value, functools.partial):
            partial = cast("functools.partial[object]", value)
            for part in (partial.func, partial.args, partial.keywords):
                self.visit(part)
        elif isinstance(value, types.ModuleType):
            self._visit_module(value)
        elif isinstance(value, type):
            self._visit_class(value)
        elif isinstance(value, _COLLECTIONS):
            self._visit_container(cast("Any", value))
        elif isinstance(inner := getattr(value, "fn", None), types.FunctionType):
            self._put("jit")
            self.visit(inner)
        else:
            self._visit_instance(value)

    def _visit_container(self, value: Any) -> None:
        self._put(type(value).__name__, str(len(value)))
        if isinstance(value, Mapping):
            for key, item in cast("Mapping[object, object]", value).items():
                self.visit(key)
                self.visit(item)
        elif isinstance(value, set | frozenset):
            for item in sorted(cast("set[object]", value), key=repr):
                self.visit(item)
        else:
            for item in value:
                self.visit(item)

    def _visit_class(self, value: type) -> None:
        self._put("class", value.__module__, value.__qualname__)
        if not _is_library(value.__module__):
            self._put(source_of(value))
            self._owners.append(value)
            for base in value.__bases__:
                self.visit(base)
            for member in vars(value).values():
                inner = getattr(member, "__func__", getattr(member, "fget", member))
                if isinstance(inner, types.FunctionType):
                    self.visit(inner)

    def _visit_instance(self, value: object) -> None:
        kind = type(value)
        self._put("instance", kind.__module__, kind.__qualname__)
        if isinstance(value, types.BuiltinFunctionType) or _is_library(kind.__module__):
            self._put_elements(value)
            text = repr(value)
            self.stable &= " at 0x" not in text
            self._put(text)
            if kind.__module__.partition(".")[0] != "tiledsl":
                self._owners.append(value)  # a namespace, say
            return
        self.visit(kind)
        self._owners.append(value)
        held = state(value)
        if held is None:
            self.stable = False
            self._put(str(id(value)))
        else:
            self.visit(dict(held))

    def _put_elements(self, value: object) -> None:
        """Hash an array's elements: its repr leaves some out, and digits of all."""
        if isinstance(value, np.ndarray):
            array = cast("np.ndarray[Any, Any]", value)
            self._put(str(array.dtype), str(array.shape))
            self.hash.update(array.tobytes())

    def _visit_module(self, module: types.ModuleType) -> None:
        self._put("module", module.__name__)
        if _is_library(module.__name__):
            return
        self._owners.append(module)
        self._modules.append(module)
        try:
            self._put(inspect.getsource(module))
        except (OSError, TypeError):
            self.stable = False

    def _visit_function(self, function: types.FunctionType) -> None:
        module: str | None = function.__module__  # None where `exec` got a namespace without a name
        self._put("function", module or "", function.__qualname__)
        if module and module.startswith("tiledsl.") and _is_library(module):
            return
        code = function.__code__
        self._put(code.co_filename, str(code.co_firstlineno), code.co_linetable.hex())
        text = source_of(function)
        if text and "<lambda>" not in function.__qualname__:
            self._put(text)
        else:
            self._put_code(code)
        self.visit(function.__defaults__)
        self.visit(function.__kwdefaults__)
        self.mentioned |= _attribute_names(code)
        for name, look in _captured(function):
            if not self._follow(name, look):
                self._put("unbound", name)

    def _put_code(self, code: types.CodeType) -> None:
        """Hash a lambda's code: several may share a line of source."""
        self._put(code.co_code.hex(), repr(code.co_names), repr(code.co_varnames))
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._put_code(constant)
            else:
                self.visit(constant)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code object and those of the functions nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


@functools.lru_cache(maxsize=4096)
def _global_names(code: types.CodeType) -> tuple[str, ...]:
    """Return the global names that a function's code reads, in order of first mention."""
    names: dict[str, None] = {}
    for part in _codes(code):
        for instruction in dis.get_instructions(part):
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                names[str(instruction.argval)] = None
    return tuple(names)


@functools.lru_cache(maxsize=4096)
def _attribute_names(code: types.CodeType) -> frozenset[str]:
    """Return the attributes that a function's code may read: by name, or by a text with a name."""
    names: set[str] = set()
    for part in _codes(code):
        names.update(text for text in part.co_consts if isinstance(text, str))
        for instruction in dis.get_instructions(part):
            if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
                names.add(str(instruction.argval))
    return frozenset(name for name in names if name.isidentifier())


def _captured(function: types.FunctionType) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield each variable that a function captures, with a function that reads it now."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield name, functools.partial(getattr, cell, "cell_contents")
    space = function.__globals__
    builtins: Any = space.get("__builtins__", {})
    known = cast("Mapping[str, object]", builtins if isinstance(builtins, dict) else vars(builtins))
    for name in _global_names(function.__code__):
        if name in space or name not in known:
            yield name, functools.partial(space.__getitem__, name)
