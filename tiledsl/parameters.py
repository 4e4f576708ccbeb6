"""The parameters of a kernel, and keys of the constants that are passed for them.

Which parameter is a constexpr is the marker's word alone: an annotation that is `tile.constexpr`,
or text that ends in `constexpr`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import constexpr


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel."""

    name: str
    constexpr: bool
    default: object = inspect.Parameter.empty


def _is_marker(annotation: object) -> bool:
    # From Python 3.14 on, what does not resolve is a forward reference.
    annotation = getattr(annotation, "__forward_arg__", annotation)
    if isinstance(annotation, str):
        return annotation.rpartition(".")[2].strip("\"' ") == "constexpr"
    return annotation is constexpr


def _signature(function: Callable[..., object]) -> inspect.Signature:
    """Read a signature, whatever names its annotations use."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(function)


def parameters_of(function: Callable[..., object]) -> list[Parameter]:
    """Return a function's parameters.

    Raises:
        KernelError: One is starred.
    """
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    found: list[Parameter] = []
    for parameter in _signature(function).parameters.values():
        if parameter.kind in kinds:
            stars = 1 + kinds.index(parameter.kind)
            raise KernelError(
                f"kernel `{function.__name__}`: expected named parameters, "
                f"found `{'*' * stars}{parameter.name}`"
            )
        found.append(Parameter(parameter.name, _is_marker(parameter.annotation), parameter.default))
    return found


def positions(kernel: str, names: Sequence[str], chosen: Sequence[str | int]) -> frozenset[int]:
    """Return the positions of parameters that are chosen by name or position.

    Raises:
        KernelError: There is no such parameter.
    """
    found: set[int] = set()
    for one in chosen:
        if one not in names and not (isinstance(one, int) and 0 <= one < len(names)):
            raise KernelError(
                f"kernel `{kernel}`: expected parameters as `do_not_specialize`, found {one!r}",
                hint=f"parameters: {', '.join(names)}",
            )
        found.add(one if isinstance(one, int) else names.index(one))
    return frozenset(found)


def constant_key(value: object) -> object:
    """Return what stands for a constexpr's value in a key.

    1, 1.0 and True differ, and so do 0.0 and -0.0, also within tuples, lists and dictionaries.
    Other values are compared as they compare themselves.

    Raises:
        TypeError: A value has no hash.
    """
    kind = value.__class__
    if kind is float:
        return kind, cast("float", value).hex()
    if kind is tuple or kind is list:
        return kind, tuple(constant_key(item) for item in cast("Sequence[object]", value))
    if kind is dict:
        items = cast("Mapping[object, object]", value).items()
        return kind, tuple((constant_key(key), constant_key(item)) for key, item in items)
    if isinstance(value, constexpr):
        return constant_key(value.value)
    hash(value)
    return kind, value
