"""What to write instead, where a tile meets a function or a name that is not for tiles.

Authors come from NumPy, torch and Triton, and Python lets them write `np.sqrt(x)`, `math.exp(x)`,
`x.astype(...)` or `x.sqr()` for a tile `x`. Each is a `KernelError` whose hint is the one way to
write it here, if there is one: the function of the same name, a known synonym, or the nearest name.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from tiledsl.dialects.diagnostics import KernelError

LIBRARIES = frozenset({"numpy", "math", "cmath", "torch", "triton", "cupy", "jax"})
"""Packages whose functions take arrays or numbers of their own."""

SYNONYMS = {
    "absolute": "tile.abs(x)",
    "fabs": "tile.abs(x)",
    "add": "a + b",
    "subtract": "a - b",
    "multiply": "a * b",
    "divide": "a / b",
    "true_divide": "a / b",
    "floor_divide": "a // b",
    "remainder": "a % b",
    "mod": "a % b",
    "power": "a ** b",
    "pow": "a ** b",
    "float_power": "a ** b",
    "square": "x * x",
    "reciprocal": "1 / x",
    "negative": "-x",
    "logical_and": "a & b",
    "logical_or": "a | b",
    "logical_not": "~x",
    "bitwise_not": "~x",
    "invert": "~x",
    "isnan": "x != x",
    "isinf": 'tile.abs(x) == float("inf")',
    "amax": "tile.max(x, axis)",
    "amin": "tile.min(x, axis)",
    "mean": "tile.sum(x, axis) / count",
    "matmul": "tile.dot(a, b)",
    "clip": "tile.clamp(x, low, high)",
    "round": "tile.rint(x)",
    "transpose": "tile.trans(x)",
    "concatenate": "tile.cat(a, b)",
    "concat": "tile.cat(a, b)",
    "stack": "tile.join(a, b)",
    "astype": "x.to(dtype)",
    "type": "x.to(dtype)",
    "float": "x.to(tile.float32)",
    "half": "x.to(tile.float16)",
    "int": "x.to(tile.int32)",
    "size": "x.numel",
    "unsqueeze": "x.expand_dims(axis)",
    "contiguous": "x",
    "item": "x, a scalar already after tile.sum(x) and the like",
}
"""Other libraries' names of what is written otherwise here."""


def _functions() -> frozenset[str]:
    """Return the names that the package offers."""
    package: Any = import_module("tiledsl")  # it needs this module
    return frozenset(package.__all__)


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the one of `names` that a misspelled name most likely meant, or None."""
    return next(iter(difflib.get_close_matches(name, list(names), n=1, cutoff=0.8)), None)


def _library_of(function: Any) -> str | None:
    """Return which of `LIBRARIES` a callable belongs to."""
    module = getattr(function, "__module__", None) or type(function).__module__
    root = module.partition(".")[0] if isinstance(module, str) else ""
    return root if root in LIBRARIES else None


def _instead_of(function: Any) -> str | None:
    """Return what to write for a callable of another library, or None where nothing is known."""
    name = str(getattr(function, "__name__", type(function).__name__))
    if name not in _functions():
        return SYNONYMS.get(name)
    return f"x.to(tile.{name})" if isinstance(function, type) else f"tile.{name}"


def is_foreign(function: Any) -> bool:
    """Return whether a callable of another library has its like here, and is not to be called."""
    return _library_of(function) is not None and _instead_of(function) is not None


def wrong_function(function: Any, found: str) -> KernelError:
    """Return the error for a function of another library that was given a tile.

    Args:
        function: It.
        found: The tile, in words.
    """
    name = str(getattr(function, "__name__", type(function).__name__))
    library = _library_of(function) or "numpy"
    written = _instead_of(function)
    return KernelError(
        f"expected a function of tiles, found `{library}.{name}` called with {found}",
        hint=None if written is None else f"use {written}",
    )


def missing_attribute(name: str, found: str, known: Iterable[str]) -> KernelError:
    """Return the error for an attribute that values do not have.

    Args:
        name: The attribute.
        found: The value, in words.
        known: The attributes that values have.
    """
    hint = None
    if name in SYNONYMS:
        hint = f"use {SYNONYMS[name]}"
    elif (close := nearest(name, known)) is not None:
        hint = f"did you mean `{close}`?"
    elif name in _functions():
        hint = f"use tile.{name}(...)"
    return NoAttribute(f"expected an attribute of {found}, found `{name}`", hint=hint)


class NoAttribute(KernelError, AttributeError):
    """What `hasattr` and `getattr` with a default take for an answer."""


OPERATORS: Mapping[str, str] = {
    "add": "add",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "truediv",
    "floor_divide": "floordiv",
    "remainder": "mod",
    "power": "power",
    "left_shift": "shift_left",
    "right_shift": "shift_right",
    "bitwise_and": "bit_and",
    "bitwise_or": "bit_or",
    "bitwise_xor": "bit_xor",
    "equal": "equal",
    "not_equal": "not_equal",
    "less": "less",
    "less_equal": "less_equal",
    "greater": "greater",
    "greater_equal": "greater_equal",
}
"""The ufunc that an operator of NumPy's scalars calls, and what it is in `elementwise`."""


def scalar_of(operand: object) -> object:
    """Return an operand of a ufunc as it was written: comparisons put scalars into arrays."""
    array: Any = operand
    return array[()] if type(array) is np.ndarray and array.ndim == 0 else operand


def operator_of(ufunc: Any, elementwise: ModuleType) -> Any:
    """Return the operator of tiles that a ufunc stands for, or None."""
    name = OPERATORS.get(ufunc.__name__)
    return None if name is None else getattr(elementwise, name)
