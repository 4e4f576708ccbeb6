"""`range`, `tile.range` and `tile.static_range`: what a `for` of a kernel may count over.

Python's `range` over numbers known at compile time stays plain Python and unrolls; over a run-time
number it becomes a `range` of this module. `tile.range` is always a loop at run time and takes
hints for the passes; `tile.static_range` always unrolls. Bounds and step may have either sign; a
run-time step of 0 makes no trip, as there is no exception at run time.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence
from typing import Any

from mlir import ir

from tiledsl.dialects.context import context
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import DType, default_dtype, int32, int64, promote, unwrap
from tiledsl.language.builder import is_tracing
from tiledsl.language.operands import Operand, static_int
from tiledsl.language.value import Value, describe, loading

_HINTS = {
    "num_stages": int,
    "loop_unroll_factor": int,
    "disallow_acc_multi_buffer": bool,
    "flatten": bool,
    "warp_specialize": bool,
    "overlap_products": bool,
    "disable_licm": bool,
}


class range:
    """Count from `start` by `step` until `stop`, in a loop at run time.

    Args:
        *bounds: stop; start and stop; or start, stop and step: integers, at run time or not.
        **hints: For the passes, known at compile time: `num_stages` (buffers of the loop's loads),
            `loop_unroll_factor`, `flatten`, `warp_specialize`, `overlap_products` (do a later
            product beside the next trip's first one, if that may be; yes unless said),
            `disallow_acc_multi_buffer`, `disable_licm`.
    """

    def __init__(self, *bounds: Operand, **hints: object) -> None:
        _check_count(bounds)
        values = [_bound(b) for b in bounds]
        start, stop, step = {1: (0, *values, 1), 2: (*values, 1)}.get(len(values), tuple(values))
        if isinstance(step, int) and step == 0:
            raise KernelError("expected a step other than 0")
        self.start, self.stop, self.step = start, stop, step
        self.hints = _checked_hints(hints)

    def __iter__(self) -> Iterator[int]:
        start, stop, step = self.start, self.stop, self.step
        if isinstance(start, int) and isinstance(stop, int) and isinstance(step, int):
            return iter(builtins.range(start, stop, step))
        raise KernelError(
            "expected a range known at compile time: only a `for` statement of the kernel runs "
            "over a run-time range"
        )

    def __reversed__(self) -> Iterator[int]:
        raise KernelError(
            "expected a range that counts down itself, found a run-time one in `reversed`",
            hint="range(n - 1, -1, -1) counts down from n - 1 to 0",
        )

    @property
    def dtype(self) -> DType:
        """The type of the loop variable: that of the bounds together."""
        bounds = (self.start, self.stop, self.step)
        found: DType | None = None
        for bound in bounds:
            if isinstance(bound, Value):
                found = bound.dtype if found is None else promote(found, bound.dtype)
                if found is None or not found.is_int():
                    raise KernelError("expected bounds of a range with a common integer type")
        if found is None:
            widest = max((b for b in bounds if isinstance(b, int)), key=abs)
            found = default_dtype(widest)
        if found.primitive_bitwidth < 32:
            return int32
        return found

    @property
    def counter(self) -> DType:
        """The signed type that the loop counts in: int64 unless `dtype` is int32."""
        return int32 if self.dtype is int32 else int64

    def attributes(self) -> dict[str, ir.Attribute]:
        """Return the hints as attributes of the `scf.for`: `tile.num_stages` and so on."""
        made: dict[str, ir.Attribute] = {}
        for name, value in self.hints.items():
            if isinstance(value, bool):
                made[f"tile.{name}"] = ir.BoolAttr.get(value, context())
            else:
                i64 = ir.IntegerType.get_signless(64, context())
                made[f"tile.{name}"] = ir.IntegerAttr.get(i64, value)
        return made


def _bound(value: Operand) -> Value | int:
    value = unwrap(value)
    if isinstance(value, Value):
        if value.shape or not value.dtype.is_int():
            raise KernelError(
                f"expected integers as bounds of a range, found {describe(value)}",
                hint=loading(value),
            )
        return value
    return static_int(value, "the bounds of a range")


def _checked_hints(hints: dict[str, object]) -> dict[str, int | bool]:
    checked: dict[str, int | bool] = {}
    for name, value in hints.items():
        value = unwrap(value)
        if name not in _HINTS:
            raise KernelError(
                f"range: no hint is called `{name}`", hint=f"hints: {', '.join(_HINTS)}"
            )
        if value is None:
            continue
        if _HINTS[name] is bool:
            checked[name] = bool(value)
            continue
        number = static_int(value, f"`{name}`")
        if number < 1:
            raise KernelError(f"expected `{name}` to be at least 1, found {number}")
        checked[name] = number
    return checked


def static_range(*bounds: Operand) -> builtins.range:
    """Count at compile time: the loop's body is repeated for each number.

    Args:
        *bounds: As of Python's `range`, known at compile time.
    """
    return _static(bounds, "the bounds of static_range")


def _static(bounds: Sequence[object], what: str) -> builtins.range:
    _check_count(bounds)
    whole = [static_int(b, what) for b in bounds]
    if whole[2:] == [0]:
        raise KernelError("expected a step other than 0")
    return builtins.range(*whole)


def _check_count(bounds: Sequence[object]) -> None:
    if not 1 <= len(bounds) <= 3:
        raise KernelError(f"expected one to three bounds of a range, found {len(bounds)}")


def python_range(*bounds: Any) -> range | builtins.range:
    """Return what `range(...)` means in a kernel: Python's unless a bound is a run-time value."""
    plain = [unwrap(b) for b in bounds]
    if not is_tracing():
        return builtins.range(*plain)
    if any(isinstance(b, Value) for b in plain):
        return range(*plain)
    return _static(plain, "the bounds of a range")
