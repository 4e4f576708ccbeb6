"""Calls from a kernel: the called function is rewritten too, and Python's builtins take tiles.

`call` is in the place of every call in rewritten code. A function of the author's is rewritten,
once for each code object; one of Python's, of an installed package or of this package runs as it
is, and so do classes, whose methods are rewritten when they are called from a kernel. Where such a
one takes a function of the author's (`functools.reduce`, `map`), that one is rewritten.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import CodeType, FunctionType, MethodType
from typing import Any, cast

from tiledsl.control_flow.function import is_rewritten, rewritten
from tiledsl.control_flow.source import find
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import constexpr, unwrap
from tiledsl.language import casts, misuse
from tiledsl.language.positions import is_library_file
from tiledsl.language.ranges import python_range
from tiledsl.language.value import Value, describe


def call(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call `function` as a kernel does."""
    kind = _kind(function)
    if kind is Value:
        raise KernelError(
            f"expected a function, found {describe(function)}", hint="`*` multiplies tiles"
        )
    if misuse.is_foreign(function) and (given := _first_value((*args, *kwargs.values()))):
        raise misuse.wrong_function(function, describe(given[0]))
    if kind is FunctionType:
        return prepared(function, args, kwargs)
    if kind is MethodType and type(function.__func__) is FunctionType:
        return prepared(function.__func__, (function.__self__, *args), kwargs)
    if issubclass(kind, functools.partial):
        merged = {**function.keywords, **kwargs}
        return call(function.func, *function.args, *args, **merged)
    if issubclass(kind, type | BuiltinType):
        replacement = _replacement(function)
        if replacement is not None:
            return replacement(*args, **kwargs)
        return function(*map(_callback, args), **{k: _callback(v) for k, v in kwargs.items()})
    method = inspect.getattr_static(kind, "__call__", None)
    if isinstance(method, FunctionType) and not _is_library(method.__code__):
        return prepared(method, (function, *args), kwargs)
    return function(*args, **kwargs)


BuiltinType = type(len)


def _kind(value: object) -> type[Any]:
    return type(value)


def _first_value(arguments: Sequence[object]) -> list[Value]:
    """Return the first tile or scalar of run time, if any, also within a list or tuple."""
    for argument in arguments:
        listed = isinstance(argument, list | tuple)
        for item in cast("Sequence[object]", argument if listed else (argument,)):
            if isinstance(item, Value):
                return [item]
    return []


def prepared(function: FunctionType, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call a Python function, rewritten if it is the author's."""
    if _is_library(function.__code__):
        return function(*map(_callback, args), **{k: _callback(v) for k, v in kwargs.items()})
    args, kwargs = _check_constexprs(function, args, kwargs)
    return _ready(function)(*args, **kwargs)


def _ready(function: FunctionType) -> Callable[..., Any]:
    if is_rewritten(function.__code__) or find(function.__code__) is None:
        # Without its source it runs as it is: only run-time control flow would fail in it.
        return function
    return rewritten(function)


def _callback(value: object) -> object:
    """Return a function of the author's rewritten, for a caller that is not; else the value."""
    if isinstance(value, FunctionType) and not _is_library(value.__code__):
        return _ready(value)
    return value


def _is_library(code: CodeType) -> bool:
    return is_library_file(code.co_filename)


# --- constexpr parameters of helpers -------------------------------------------------------------


def is_constexpr(annotation: object) -> bool:
    """Return whether an annotation is the marker: itself, or text that ends in its name."""
    if isinstance(annotation, str):
        return annotation.rpartition(".")[2].strip("\"' ") == "constexpr"
    return annotation is constexpr


def _check_constexprs(
    function: FunctionType, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Require constexpr parameters to be known at compile time; unwrap their values."""
    marked = {name for name, a in _annotations(function).items() if is_constexpr(a)}
    if not marked:
        return args, kwargs
    try:
        bound = _signature(function).bind(*args, **kwargs)
    except TypeError:
        return args, kwargs  # the call itself words it
    for name in marked & bound.arguments.keys():
        value = bound.arguments[name] = unwrap(bound.arguments[name])
        if isinstance(value, Value):
            raise KernelError(
                f"expected constexpr argument `{name}` of `{function.__name__}` to be known at "
                f"compile time, found {describe(value)}"
            )
    return bound.args, bound.kwargs


def _annotations(function: FunctionType) -> Mapping[str, object]:
    try:
        return function.__annotations__
    except NameError:
        # From Python 3.14 on they are evaluated when asked for; names need not be defined.
        library: Any = importlib.import_module("annotationlib")
        return library.get_annotations(function, format=library.Format.FORWARDREF)


@lru_cache(maxsize=1024)
def _signature(function: FunctionType) -> inspect.Signature:
    return inspect.signature(function)


# --- builtins ------------------------------------------------------------------------------------


def _replacement(function: object) -> Callable[..., Any] | None:
    try:
        return _BUILTINS.get(function)
    except TypeError:
        return None


def _extreme(name: str) -> Callable[..., Any]:
    plain: Callable[..., Any] = getattr(builtins, name)

    def choose(*args: Any, **kwargs: Any) -> Any:
        listed = len(args) == 1 and isinstance(args[0], list | tuple)
        items = cast("Sequence[object]", args[0] if listed else args)
        if kwargs or not any(isinstance(item, Value) for item in items):
            return plain(*map(unwrap, args), **kwargs)
        from tiledsl.language import math

        combine: Callable[..., Any] = getattr(math, {"min": "minimum", "max": "maximum"}[name])
        return functools.reduce(combine, items)

    return choose


def _bool(value: object = False) -> object:
    value = unwrap(value)
    return casts.truth(value) if isinstance(value, Value) else bool(value)


def _print(*values: object, **kwargs: Any) -> None:
    if not any(isinstance(v, Value) for v in values):
        builtins.print(*values, **kwargs)
        return
    from tiledsl.language import debug

    words = [str(v) for v in values if not isinstance(v, Value)]
    debug.device_print(" ".join(words), *[v for v in values if isinstance(v, Value)])


_BUILTINS: dict[object, Callable[..., Any]] = {
    range: python_range,
    min: _extreme("min"),
    max: _extreme("max"),
    bool: _bool,
    print: _print,
}
