"""Integer arithmetic, comparisons and bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tiledsl.targets.gpu.emulator.program import InstructionClass, Step
from tiledsl.targets.nvptx.emulator.opcodes import Opcode, Options, Table
from tiledsl.targets.nvptx.emulator.operands import TYPES, Context, Values
from tiledsl.targets.nvptx.emulator.text import Parsed

_INTEGERS = tuple(f"{letter}{bits}" for bits in (16, 32, 64) for letter in "sub")


def _plain(function: Callable[..., Values]) -> Callable[[Parsed, Context], Step]:
    """Return a decoder for what is the same for signed and unsigned, and cannot saturate."""

    def decode(instruction: Parsed, context: Context) -> Step:
        options = Options(instruction)
        kind = TYPES[options.last((*_INTEGERS, "pred"))]
        options.done()
        bits = "pred" if kind.bits == 1 else f"b{kind.bits}"
        to, *sources = instruction.operands
        return context.compute(to, bits, function, [(source, bits) for source in sources])

    return decode


def _shift(instruction: Parsed, context: Context) -> Step:
    """Decode shl and shr; the amount is clamped to the width."""
    options = Options(instruction)
    kind = TYPES[options.last(_INTEGERS)]
    options.done()
    left = instruction.stem == "shl"
    name = kind.name if kind.signed and not left else f"b{kind.bits}"
    element: Any = TYPES[name].element
    most = element.type(kind.bits - 1)

    def shift(value: Values, amount: Values) -> Values:
        inside = np.minimum(amount, np.uint32(kind.bits - 1)).astype(element)
        if name.startswith("s"):
            return value >> inside
        moved = value << inside if left else value >> inside
        return np.where(amount > np.uint32(most), element.type(0), moved)

    to, value, amount = instruction.operands
    return context.compute(to, name, shift, [(value, name), (amount, "u32")])


def _multiply(instruction: Parsed, context: Context) -> Step:
    options = Options(instruction)
    kind = TYPES[options.last(_INTEGERS)]
    part = options.choice(("lo", "wide"))
    options.done()
    to, a, b = instruction.operands
    if part == "lo":
        bits = f"b{kind.bits}"
        return context.compute(to, bits, np.multiply, [(a, bits), (b, bits)])
    wide = TYPES[f"{'s' if kind.signed else 'u'}{2 * kind.bits}"]

    def multiply(first: Values, second: Values) -> Values:
        product: Values = first.astype(wide.element) * second.astype(wide.element)
        return product

    return context.compute(to, wide.name, multiply, [(a, kind.name), (b, kind.name)])


_COMPARE: dict[str, Callable[[Values, Values], Values]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}


def _compare(instruction: Parsed, context: Context) -> Step:
    options = Options(instruction)
    kind = options.last(_INTEGERS)
    relation = options.choice(tuple(_COMPARE))
    options.done()
    to, a, b = instruction.operands
    return context.compute(to, "pred", _COMPARE[relation], [(a, kind), (b, kind)])


def _table() -> dict[str, Opcode]:
    decoders = {
        "add": _plain(np.add),
        "sub": _plain(np.subtract),
        "and": _plain(np.bitwise_and),
        "or": _plain(np.bitwise_or),
        "xor": _plain(np.bitwise_xor),
        "not": _plain(np.invert),
        "shl": _shift,
        "shr": _shift,
        "mul": _multiply,
        "setp": _compare,
    }
    return {
        f"{stem}.{kind}": Opcode(decode, InstructionClass.INTEGER)
        for stem, decode in decoders.items()
        for kind in (*_INTEGERS, "pred")
    }


TABLE: Table = _table()
