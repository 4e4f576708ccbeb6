"""What `cp.reduce` does to memory: an old value and a new one to the value that stays.

Values are unsigned words of their type's width. f16 and bf16 add in float64 and round once, which
is what `.noftz` asks for.

Source: PTX ISA 9.7.9.25.5, "cp.reduce.async.bulk".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.formats import BF16, F16, Format, round_to_odd

Words = NDArray[Any]
Combine = Callable[[Words, Words], Words]
"""(old, new) to what stays."""

OPERATIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")

_NUMPY: dict[str, Any] = {
    "u8": np.uint8, "u16": np.uint16, "s16": np.int16, "u32": np.uint32, "s32": np.int32,
    "u64": np.uint64, "s64": np.int64, "b32": np.uint32, "b64": np.uint64, "f32": np.float32,
    "f64": np.float64,
}  # fmt: skip
_HALVES: dict[str, Format] = {"f16": F16, "bf16": BF16}
_FUNCTIONS: dict[str, Any] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def reduction(operation: str, type_: str) -> Combine:
    """Return how an operation combines words of a type.

    Raises:
        KeyError: There is no such type.
    """
    if type_ in _HALVES:
        return _of_halves(operation, _HALVES[type_])
    kind = _NUMPY[type_]
    if operation in ("inc", "dec"):
        return _increment if operation == "inc" else _decrement
    function = _FUNCTIONS[operation]
    return lambda old, new: function(old.view(kind), new.view(kind)).view(old.dtype)


def _of_halves(operation: str, form: Format) -> Combine:
    function = _FUNCTIONS[operation]

    def combine(old: Words, new: Words) -> Words:
        values: NDArray[np.float64] = function(form.decode(old), form.decode(new))
        return form.encode(values if form is F16 else round_to_odd(values))

    return combine


def _increment(old: Words, new: Words) -> Words:
    """Count up to `new`, then begin at 0."""
    next_: Words = old + old.dtype.type(1)
    return np.where(np.greater_equal(old, new), np.zeros_like(old), next_)


def _decrement(old: Words, new: Words) -> Words:
    """Count down to 0, then begin at `new`."""
    next_: Words = old - old.dtype.type(1)
    return np.where(np.logical_or(old == 0, np.greater(old, new)), new, next_)
