"""The types of functions that tables hold, and functions made of functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Unary = Callable[[Array], Any]
Binary = Callable[[Array, Array], Any]
Ternary = Callable[[Array, Array, Array], Any]
Function = Unary | Binary | Ternary
"""Of the values of an instruction's sources."""
Compute = Callable[[Any], Any]
"""Returns values, given the machine."""


def composed(function: Function, reads: list[Compute]) -> Compute:
    """Return what computes a function of what readers read."""
    call: Callable[..., Any] = function
    if len(reads) == 1:
        (a,) = reads
        return lambda m: call(a(m))
    if len(reads) == 2:
        a, b = reads
        return lambda m: call(a(m), b(m))
    if len(reads) == 3:
        a, b, c = reads
        return lambda m: call(a(m), b(m), c(m))
    return lambda m: call(*(read(m) for read in reads))


def swapped(function: Binary) -> Binary:
    """Return the function of the sources in the other order."""
    return lambda a, b: function(b, a)


def negated(function: Binary) -> Binary:
    """Return where a relation does not hold."""
    return lambda a, b: ~function(a, b)


def nested(outer: Binary, inner: Binary) -> Ternary:
    """Return outer(inner(a, b), c)."""
    return lambda a, b, c: outer(inner(a, b), c)


def saturated(function: Function, kind: Any) -> Function:
    """Return integer arithmetic that stays at the ends of a kind's range."""
    limits = np.iinfo(kind)
    call: Callable[..., Any] = function

    def saturate(*values: Array) -> Array:
        exact = call(*(one.astype(np.int64) for one in values))
        return np.clip(exact, limits.min, limits.max).astype(kind)

    return saturate


def multiply_add(a: Array, b: Array, c: Array) -> Array:
    """Return a * b + c, as NumPy computes it."""
    return a * b + c
