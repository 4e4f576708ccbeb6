"""What atomic operations do to memory, for many lanes at once and as if one after another.

Lanes of one instruction may name one address. They act in the order of their numbers: where
addresses are all different that is one NumPy operation, otherwise as many as the fullest address
has lanes, or one for each address that several lanes share, whichever are fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator import formats

Array = NDArray[Any]
Update = Callable[[Array, Array], Array]
"""Returns new values, given old ones and operands, of the operation's type."""


@dataclass(frozen=True)
class Operation:
    """One atomic operation on one type.

    Attributes:
        kind: The NumPy type that it sees memory as.
        update: Computes new values.
        fold: `update` as a ufunc, whose `accumulate` acts one after another; None if it is none.
        compares: It has a second operand, which memory must equal to be replaced by the first.
        pairs: Memory is seen as two elements a word.
    """

    kind: Any
    update: Update
    fold: Any = None
    compares: bool = False
    pairs: bool = False

    @property
    def size(self) -> int:
        """Bytes of memory a lane."""
        return np.dtype(self.kind).itemsize * (2 if self.pairs else 1)


def apply(
    operation: Operation, words: Array, index: NDArray[np.int64], value: Array, compare: Array
) -> Array:
    """Act on `words[index]`, lane by lane in order; returns the old bits of each lane.

    Args:
        operation: What to do.
        words: Memory, as unsigned words of the operation's size.
        index: Each lane's word.
        value: Each lane's operand, as bits of that size.
        compare: Each lane's second operand where there is one; not looked at otherwise.
    """
    old = words[index]
    order = np.argsort(index, kind="stable")
    places = index[order]
    first = np.flatnonzero(np.concatenate(([True], places[1:] != places[:-1])))
    counts = np.diff(np.append(first, len(places)))
    if counts.max() == 1:
        words[index] = _updated(operation, old, value, compare)
        return old
    shared = counts > 1
    if operation.fold is not None and np.count_nonzero(shared) < counts.max():
        single = order[first[~shared]]
        words[index[single]] = _updated(operation, old[single], value[single], compare[single])
        for start, count in zip(first[shared], counts[shared], strict=True):
            lanes = order[start : start + count]
            _fold(operation, words, int(index[lanes[0]]), lanes, value, old)
        return old
    turn = np.arange(len(places)) - np.repeat(first, counts)
    for number in range(int(counts.max())):
        lanes = order[turn == number]
        old[lanes] = words[index[lanes]]
        words[index[lanes]] = _updated(operation, old[lanes], value[lanes], compare[lanes])
    return old


def _updated(operation: Operation, old: Array, value: Array, compare: Array) -> Array:
    """Return the bits of new values."""
    if operation.compares:
        return np.where(old == compare, value, old)
    seen, given = (np.ascontiguousarray(bits).view(operation.kind) for bits in (old, value))
    return np.ascontiguousarray(operation.update(seen, given), operation.kind).view(old.dtype)


def _fold(
    operation: Operation,
    words: Array,
    place: int,
    lanes: NDArray[np.intp],
    value: Array,
    old: Array,
) -> None:
    """Let lanes that share a place act one after another; fills in their `old`."""
    values = np.concatenate((words[place : place + 1], value[lanes])).view(operation.kind)
    results = operation.fold.accumulate(values, dtype=operation.kind).view(words.dtype)
    old[lanes] = results[:-1]
    words[place] = results[-1]


# --- operations ----------------------------------------------------------------------------------


def _swap(old: Array, value: Array) -> Array:
    return value


def _increment(old: Array, value: Array) -> Array:
    return np.where(old >= value, 0, old + old.dtype.type(1))


def _decrement(old: Array, value: Array) -> Array:
    return np.where((old == 0) | (old > value), value, old - old.dtype.type(1))


def _subtract_clamped(old: Array, value: Array) -> Array:
    return np.where(old < value, 0, old - value)


def _subtract_if(old: Array, value: Array) -> Array:
    return np.where(old < value, old, old - value)


def _reversed(old: Array, value: Array) -> Array:
    return value - old


def _add_bf16(old: Array, value: Array) -> Array:
    """Add the bits of bf16 pairs: float32 sums of bf16 round to bf16 as the exact ones do."""
    total = formats.BF16.decode(old) + formats.BF16.decode(value)
    return formats.BF16.encode(formats.round_to_odd(total))


_UPDATES: dict[str, tuple[Update, Any]] = {
    "add": (np.add, np.add), "sub": (np.subtract, np.subtract), "rsub": (_reversed, None),
    "min": (np.minimum, np.minimum), "max": (np.maximum, np.maximum),
    "and": (np.bitwise_and, np.bitwise_and), "or": (np.bitwise_or, np.bitwise_or),
    "xor": (np.bitwise_xor, np.bitwise_xor), "swap": (_swap, None), "cmpswap": (_swap, None),
    "inc": (_increment, None), "dec": (_decrement, None), "csub": (_subtract_clamped, None),
    "sub_clamp": (_subtract_clamped, None), "cond_sub": (_subtract_if, None),
}  # fmt: skip
_REALS: dict[str, tuple[Update, Any]] = {
    "add": (np.add, np.add), "min": (np.fmin, np.fmin), "max": (np.fmax, np.fmax),
}  # fmt: skip
"""Minima and maxima of a NaN and a number are the number."""
_KINDS = {
    "u32": np.uint32, "i32": np.int32, "b32": np.uint32, "f32": np.float32,
    "u64": np.uint64, "i64": np.int64, "b64": np.uint64, "f64": np.float64,
}  # fmt: skip


def operation(name: str, kind: str) -> Operation | None:
    """Return an operation by name ("add", "cmpswap") and type ("u32", "pk_f16"); None if none."""
    if kind == "pk_f16":
        return Operation(np.float16, np.add, np.add, pairs=True) if name == "add" else None
    if kind == "pk_bf16":
        return Operation(np.uint16, _add_bf16, pairs=True) if name == "add" else None
    found = (_REALS if kind[0] == "f" else _UPDATES).get(name)
    if found is None or kind not in _KINDS:
        return None
    return Operation(_KINDS[kind], *found, compares=name == "cmpswap")


# --- names ---------------------------------------------------------------------------------------

_GFX9 = {
    "add": ("add", "u"), "sub": ("sub", "u"), "smin": ("min", "i"), "umin": ("min", "u"),
    "smax": ("max", "i"), "umax": ("max", "u"), "and": ("and", "b"), "or": ("or", "b"),
    "xor": ("xor", "b"), "swap": ("swap", "b"), "cmpswap": ("cmpswap", "b"), "inc": ("inc", "u"),
    "dec": ("dec", "u"), "csub": ("csub", "u"),
}  # fmt: skip
"""gfx9's names, which get `_x2` for 64 bits: operation and type."""
_TYPED = {
    "add": "ui", "sub": "u", "rsub": "u", "min": "iu", "max": "iu", "and": "b", "or": "b",
    "xor": "b", "swap": "b", "cmpswap": "b", "inc": "u", "dec": "u", "csub": "u",
    "sub_clamp": "u", "cond_sub": "u",
}  # fmt: skip
"""Operations on integers and the letters of their types in names that have a type."""
_REAL = {
    "add_f32": ("add", "f32"), "add_f64": ("add", "f64"), "pk_add_f16": ("add", "pk_f16"),
    "pk_add_bf16": ("add", "pk_bf16"),
    **{
        f"{name}{infix}_{kind}": (name, kind)
        for name in ("min", "max") for infix in ("", "_num") for kind in ("f32", "f64")
    },
}  # fmt: skip


def operations() -> Iterator[tuple[str, Operation]]:
    """Give the operations under every name that follows `atomic_`."""
    for name, (action, letter) in _GFX9.items():
        for suffix, bits in (("", 32), ("_x2", 64)):
            yield f"{name}{suffix}", known(action, f"{letter}{bits}")
    yield from typed_operations()


def typed_operations() -> Iterator[tuple[str, Operation]]:
    """Give the operations whose names have a type."""
    for name, letters in _TYPED.items():
        for letter in letters:
            for bits in (32, 64):
                yield f"{name}_{letter}{bits}", known(name, f"{letter}{bits}")
    for name, (action, kind) in _REAL.items():
        yield name, known(action, kind)


def known(name: str, kind: str) -> Operation:
    """Return an operation that is known to exist."""
    found = operation(name, kind)
    assert found is not None
    return found
