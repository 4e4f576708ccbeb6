"""Run a function as a kernel's helper and as plain Python, and compare.

`agrees(f, 3, 5)` traces `f` on run-time int32 scalars, interprets the module, and requires the
results to be what Python computes for the same call: Python is the oracle of control flow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from mlir import ir

from tests.tiledsl.language.traced import Kind, evaluated, traced
from tiledsl.dtypes import int32
from tiledsl.trace import call_helper


def flat(value: object) -> list[Any]:
    """Return the numbers in nested tuples and lists, in order."""
    if isinstance(value, tuple | list):
        return [leaf for item in cast("Sequence[object]", value) for leaf in flat(item)]
    return [value]


def at_run_time(function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return the numbers that `function` gives when its arguments are known only at run time."""

    def called(*values: Any) -> Any:
        from tiledsl.language.operands import as_value

        return tuple(as_value(leaf) for leaf in flat(call_helper(function, values, {})))

    result = evaluated(called, *[np.int32(a) if isinstance(a, int) else a for a in arguments])
    return [np.asarray(r).item() for r in (result if isinstance(result, tuple) else (result,))]


def agrees(function: Callable[..., Any], *arguments: int) -> None:
    """Require `function` to give at run time what it gives in plain Python."""
    assert at_run_time(function, *arguments) == flat(function(*arguments)), arguments


def traced_helper(function: Callable[..., Any], *kinds: Kind) -> ir.Module:
    """Return the module of `function` traced as a kernel's helper, on int32 scalars by default."""
    given = kinds or (int32,) * function.__code__.co_argcount
    return traced(lambda *values: call_helper(function, values, {}), *given)
