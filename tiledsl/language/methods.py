"""Functions that are methods of a value too, as in Triton: `x.sum(0)` is `tile.sum(x, 0)`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

METHODS = {
    "math": (
        *("abs", "ceil", "clamp", "cos", "erf", "exp", "exp2", "floor", "log", "log2", "rsqrt"),
        *("sigmoid", "sin", "softmax", "sqrt", "sqrt_rn", "tanh"),
    ),
    "reduce": ("all", "any", "argmax", "argmin", "max", "min", "reduce", "sum", "xor_sum"),
    "scan": ("associative_scan", "cumprod", "cumsum", "histogram"),
    "shape": (
        *("broadcast_to", "expand_dims", "flip", "permute", "ravel", "reshape", "split", "trans"),
        "view",
    ),
    "memory": ("load", "store"),
    "atomics": (
        *("atomic_add", "atomic_and", "atomic_cas", "atomic_max", "atomic_min", "atomic_or"),
        *("atomic_xchg", "atomic_xor"),
    ),
    "core": ("cdiv",),
}
"""By the module of `tiledsl.language` that they stand in."""

ATTRIBUTES = ("T", "cast", "dtype", "ndim", "numel", "shape", "to", "type")
"""What a value has of its own."""

_MODULE_OF = {name: module for module, names in METHODS.items() for name in names}


def find(value: object, name: str) -> Callable[..., Any] | None:
    """Return the method `name` of `value`, or None where there is none."""
    module = _MODULE_OF.get(name)
    if module is None:
        return None
    return partial(getattr(import_module(f"tiledsl.language.{module}"), name), value)


def names() -> tuple[str, ...]:
    """Return every attribute that a value has."""
    return (*ATTRIBUTES, *_MODULE_OF)
