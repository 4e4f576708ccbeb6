"""Vector comparisons: v_cmp (writes a lane mask), v_cmpx (writes EXEC) and v_cmp_class."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.amdgpu.emulator.bits import RELATIONS
from tiledsl.targets.amdgpu.emulator.decode import Entry
from tiledsl.targets.amdgpu.emulator.functions import Binary, negated
from tiledsl.targets.amdgpu.emulator.vector import Comparison
from tiledsl.targets.gpu.emulator.program import InstructionClass

Array = NDArray[Any]


def _unordered(a: Array, b: Array) -> Array:
    return np.isnan(a) | np.isnan(b)


def _different(a: Array, b: Array) -> Array:
    return (a < b) | (a > b)


def _always(value: bool) -> Binary:
    return lambda a, b: np.full(np.broadcast_shapes(a.shape, b.shape), value)


FLOAT_RELATIONS: dict[str, Binary] = {
    "f": _always(False),
    "lt": np.less,
    "eq": np.equal,
    "le": np.less_equal,
    "gt": np.greater,
    "lg": _different,
    "ge": np.greater_equal,
    "o": negated(_unordered),
    "u": _unordered,
    "nge": negated(np.greater_equal),
    "nlg": negated(_different),
    "ngt": negated(np.greater),
    "nle": negated(np.less_equal),
    "neq": np.not_equal,
    "nlt": negated(np.less),
    "tru": _always(True),
    "t": _always(True),
}
_INTEGER_RELATIONS = {
    **{name: RELATIONS[name] for name in ("lt", "eq", "le", "gt", "ne", "ge")},
    "f": _always(False),
    "t": _always(True),
}
_EXPONENT = {2: 0x7C00, 4: 0x7F800000, 8: 0x7FF0000000000000}
_QUIET = {2: 0x0200, 4: 0x00400000, 8: 0x0008000000000000}


def classify(value: Array, classes: Array) -> Array:
    """Return whether a float is of one of the classes that bits name.

    0 signaling NaN, 1 quiet NaN, then from -infinity to +infinity: 2 infinite, 3 normal,
    4 subnormal, 5 zero, 6 zero, 7 subnormal, 8 normal, 9 infinite.
    """
    unsigned: Any = {2: np.uint16, 4: np.uint32, 8: np.uint64}[value.itemsize]
    bits = np.ascontiguousarray(value).view(unsigned)
    exponent = unsigned(_EXPONENT[value.itemsize])
    top = unsigned(1 << (8 * value.itemsize - 1))
    size = bits & ~top
    below = size & ~exponent
    kind = np.select(
        [size > exponent, size == exponent, size == 0, (size & exponent) == 0],
        [np.where(below & unsigned(_QUIET[value.itemsize]) != 0, 1, 0), 9, 6, 7],
        8,
    )
    kind = np.where((bits & top != 0) & (kind > 1), 11 - kind, kind)
    return (classes.astype(np.uint32) >> kind.astype(np.uint32)) & np.uint32(1) != 0


def _table() -> dict[str, Entry]:
    table: dict[str, Entry] = {}

    def add(name: str, sources: tuple[str, ...], function: Binary, kind: InstructionClass) -> None:
        table[f"v_cmp_{name}"] = Entry(Comparison(sources, function), kind)
        table[f"v_cmpx_{name}"] = Entry(Comparison(sources, function, to_exec=True), kind)

    for kind in ("i16", "u16", "i32", "u32", "i64", "u64"):
        for name, function in _INTEGER_RELATIONS.items():
            add(f"{name}_{kind}", (kind, kind), function, InstructionClass.INTEGER)
    for kind in ("f16", "f32", "f64"):
        for name, function in FLOAT_RELATIONS.items():
            add(f"{name}_{kind}", (kind, kind), function, InstructionClass.FLOAT)
        mask = "u16" if kind == "f16" else "u32"
        add(f"class_{kind}", (kind, mask), classify, InstructionClass.FLOAT)
    return table


TABLE: dict[str, Entry] = _table()
