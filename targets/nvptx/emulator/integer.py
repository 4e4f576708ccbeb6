"""Integer arithmetic: sums with and without carry, products, quotients, minima, dot products.

What does not depend on the sign is computed in the unsigned type, where NumPy wraps as the hardware
does. The carry flag is a predicate register of its own, `%cc`, which no text can name.

A quotient by zero is all ones and a remainder by zero the dividend, as the instruction sequences
that ptxas expands to give them; PTX leaves both open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tiledsl.targets.gpu.emulator.program import InstructionClass, Step
from tiledsl.targets.nvptx.emulator.machine import Machine
from tiledsl.targets.nvptx.emulator.opcodes import Decoder, Opcode, Options, Table
from tiledsl.targets.nvptx.emulator.operands import TYPES, Context, Type, Values, select
from tiledsl.targets.nvptx.emulator.text import Operand, Parsed, Register

_PLAIN = tuple(f"{letter}{bits}" for bits in (16, 32, 64) for letter in "sub")
_PACKED = ("u16x2", "s16x2")
_CARRY = Register("%cc", "pred")


def _unsigned(kind: Type) -> str:
    """Return the name of a type's unsigned counterpart."""
    return f"u{kind.name[1:]}"


def _wide(kind: Type) -> Type:
    """Return the type of twice the width."""
    return TYPES[f"{'s' if kind.signed else 'u'}{2 * kind.bits}"]


# --- sums ----------------------------------------------------------------------------------------


def _sum(function: Callable[[Values, Values], Values]) -> Decoder:
    """Return a decoder for add and sub."""

    def decode(instruction: Parsed, context: Context) -> Step:
        options = Options(instruction)
        kind = TYPES[options.last((*_PLAIN, *_PACKED))]
        saturate, carry = options.flag("sat"), options.flag("cc")
        options.done()
        to, a, b = instruction.operands
        if carry:
            minus = function is np.subtract
            return _with_carry(context, to, kind, [a, b], minus=minus, takes=False, gives=True)
        if not saturate:
            bits = _unsigned(kind)
            return context.compute(to, bits, function, [(a, bits), (b, bits)])

        def saturated(first: Values, second: Values) -> Values:
            wide = first.astype(np.int64), second.astype(np.int64)
            return clamp(function(*wide), kind)

        return context.compute(to, kind.name, saturated, [(a, kind.name), (b, kind.name)])

    return decode


def clamp(values: Values, kind: Type) -> Values:
    """Return integers (of a wider type) clamped to a type."""
    limits = np.iinfo(kind.element)
    found: Values = np.clip(values, limits.min, limits.max).astype(kind.element)
    return found


def _sum_with_carry(minus: bool) -> Decoder:
    """Return a decoder for addc and subc."""

    def decode(instruction: Parsed, context: Context) -> Step:
        options = Options(instruction)
        kind = TYPES[options.last(_PLAIN)]
        gives = options.flag("cc")
        options.done()
        to, a, b = instruction.operands
        return _with_carry(context, to, kind, [a, b], minus=minus, takes=True, gives=gives)

    return decode


def _with_carry(
    context: Context,
    to: Operand,
    kind: Type,
    sources: list[Operand],
    *,
    minus: bool,
    takes: bool,
    gives: bool,
) -> Step:
    """Return the step of a sum that takes the carry (for a difference: the borrow), or gives it."""
    bits = _unsigned(kind)
    first, second = (context.read(source, bits) for source in sources)
    carry, element = context.slot(_CARRY), TYPES[bits].element
    write, write_carry = context.write(to, bits), context.write(_CARRY, "pred")

    def step(machine: Machine) -> None:
        a = np.broadcast_to(first(machine), machine.threads)
        b = np.broadcast_to(second(machine), machine.threads)
        inward = machine.regs[carry].astype(element) if takes else element.type(0)
        partial: Values = a - b if minus else a + b
        total: Values = partial - inward if minus else partial + inward
        if gives:
            over = (a < b) | (partial < inward) if minus else (partial < a) | (total < partial)
            write_carry(machine, over)
        write(machine, total)

    return step


# --- products ------------------------------------------------------------------------------------


def multiply_high(a: Values, b: Values, kind: Type) -> Values:
    """Return the upper half of products."""
    if kind.bits < 64:
        wide = _wide(kind).element
        product = a.astype(wide) * b.astype(wide)
        return (product >> wide.type(kind.bits)).astype(kind.element)
    first, second = np.asarray(a).view(np.uint64), np.asarray(b).view(np.uint64)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a0, a1, b0, b1 = first & low, first >> half, second & low, second >> half
    middle = a1 * b0 + (a0 * b0 >> half)
    other = a0 * b1 + (middle & low)
    high = a1 * b1 + (middle >> half) + (other >> half)
    if kind.signed:
        high = high - select(np.asarray(a) < 0, second, 0) - select(np.asarray(b) < 0, first, 0)
    return high.view(kind.element)


def _low(a: Values, b: Values, kind: Type) -> Values:
    return a * b


def _widened(a: Values, b: Values, kind: Type) -> Values:
    wide = _wide(kind).element
    product: Values = a.astype(wide) * b.astype(wide)
    return product


def _low_24(a: Values, b: Values, kind: Type) -> Values:
    return _cut_24(a, kind) * _cut_24(b, kind)


def _high_24(a: Values, b: Values, kind: Type) -> Values:
    wide = _wide(kind).element
    product = _cut_24(a, kind).astype(wide) * _cut_24(b, kind).astype(wide)
    return (product >> wide.type(16)).astype(kind.element)


def _cut_24(value: Values, kind: Type) -> Values:
    eight = kind.element.type(8)
    return (value << eight) >> eight


_Product = Callable[[Values, Values, Type], Values]
_PRODUCTS: dict[str, _Product] = {"lo": _low, "hi": multiply_high, "wide": _widened}
_PRODUCTS_24: dict[str, _Product] = {"lo": _low_24, "hi": _high_24}


def _multiply(products: dict[str, _Product]) -> Decoder:
    def decode(instruction: Parsed, context: Context) -> Step:
        options = Options(instruction)
        kind = TYPES[options.last(_PLAIN)]
        part = options.choice(tuple(products))
        options.done()
        to, a, b = instruction.operands
        product, result = products[part], _wide(kind) if part == "wide" else kind

        def multiply(first: Values, second: Values) -> Values:
            return product(first, second, kind)

        return context.compute(to, result.name, multiply, [(a, kind.name), (b, kind.name)])

    return decode


def _multiply_add(products: dict[str, _Product]) -> Decoder:
    def decode(instruction: Parsed, context: Context) -> Step:
        options = Options(instruction)
        kind = TYPES[options.last(_PLAIN)]
        part = options.choice(tuple(products))
        saturate, gives = options.flag("sat"), options.flag("cc")
        options.done()
        if gives:
            return _multiply_add_carry(instruction, context, part, takes=False, gives=True)
        to, a, b, c = instruction.operands
        product, result = products[part], _wide(kind) if part == "wide" else kind

        def multiply_add(first: Values, second: Values, third: Values) -> Values:
            found = product(first, second, kind)
            if saturate:
                return clamp(found.astype(np.int64) + third.astype(np.int64), result)
            return found + third

        sources = [(a, kind.name), (b, kind.name), (c, result.name)]
        return context.compute(to, result.name, multiply_add, sources)

    return decode


def _multiply_add_with_carry(instruction: Parsed, context: Context) -> Step:
    """Decode madc."""
    options = Options(instruction)
    options.last(_PLAIN)
    part, gives = options.choice(("lo", "hi")), options.flag("cc")
    options.done()
    return _multiply_add_carry(instruction, context, part, takes=True, gives=gives)


def _multiply_add_carry(
    instruction: Parsed, context: Context, part: str, *, takes: bool, gives: bool
) -> Step:
    """Return the step of mad.cc and madc: the product goes through a register of its own."""
    kind = TYPES[instruction.modifiers[-1]]
    product = _PRODUCTS[part]
    to, a, b, c = instruction.operands
    between = Register(f"%product{kind.bits}", f"b{kind.bits}")

    def multiply(first: Values, second: Values) -> Values:
        return product(first, second, kind)

    sources = [(a, kind.name), (b, kind.name)]
    first = context.compute(between, kind.name, multiply, sources)
    second = _with_carry(context, to, kind, [between, c], minus=False, takes=takes, gives=gives)

    def step(machine: Machine) -> None:
        first(machine)
        second(machine)

    return step


# --- quotients -----------------------------------------------------------------------------------


def divide(a: Values, b: Values) -> Values:
    """Return quotients, cut toward zero."""
    first, second = np.asarray(a), np.asarray(b)
    if first.dtype.kind == "u":
        return select(second == 0, ~first.dtype.type(0), first // second)
    unsigned = np.dtype(f"u{first.itemsize}")
    magnitude = np.abs(first).view(unsigned) // np.abs(second).view(unsigned)
    quotient = magnitude.view(first.dtype)
    signed = select((first < 0) ^ (second < 0), -quotient, quotient)
    return select(second == 0, first.dtype.type(-1), signed)


def remainder(a: Values, b: Values) -> Values:
    """Return remainders, of the dividend's sign."""
    first, second = np.asarray(a), np.asarray(b)
    least = second == first.dtype.type(-1) if first.dtype.kind == "i" else np.bool_(False)
    found = np.fmod(first, select(least, 1, second).astype(first.dtype))
    return select(second == 0, first, found)


# --- the rest ------------------------------------------------------------------------------------


def _signwise(function: Callable[..., Values]) -> Decoder:
    """Return a decoder for what computes in the type that the instruction names."""

    def decode(instruction: Parsed, context: Context) -> Step:
        options = Options(instruction)
        kind = options.last((*_PLAIN, *_PACKED))
        options.done()
        to, *sources = instruction.operands
        return context.compute(to, kind, function, [(source, kind) for source in sources])

    return decode


def _extreme(function: Callable[[Values, Values], Values]) -> Decoder:
    """Return a decoder for min and max."""

    def decode(instruction: Parsed, context: Context) -> Step:
        options = Options(instruction)
        kind = options.last((*_PLAIN, *_PACKED))
        relu = options.flag("relu")
        options.done()
        to, a, b = instruction.operands

        def choose(first: Values, second: Values) -> Values:
            found = function(first, second)
            return np.maximum(found, found.dtype.type(0)) if relu else found

        return context.compute(to, kind, choose, [(a, kind), (b, kind)])

    return decode


def _absolute_difference(a: Values, b: Values, c: Values) -> Values:
    found: Values = c + select(a > b, a - b, b - a)
    return found


def _dot(stem: str) -> Decoder:
    """Return a decoder for dp4a and dp2a: a sum of products of small integers."""

    def decode(instruction: Parsed, context: Context) -> Step:
        options = Options(instruction)
        second, first = options.last(("u32", "s32")), options.last(("u32", "s32"))
        half = 0 if stem == "dp4a" or options.choice(("lo", "hi")) == "lo" else 2
        options.done()
        to, a, b, c = instruction.operands
        size = "8x4" if stem == "dp4a" else "16x2"
        count = 4 if stem == "dp4a" else 2

        def dot(left: Values, right: Values, start: Values) -> Values:
            wide = left.astype(np.int64), right[:, half : half + count].astype(np.int64)
            total = (wide[0] * wide[1]).sum(1) + start.astype(np.int64)
            found: Any = total.astype(np.uint32)
            return found

        sources = [(a, first[0] + size), (b, second[0] + "8x4"), (c, "u32")]
        return context.compute(to, "u32", dot, sources)

    return decode


def _by_type(decoders: dict[str, Decoder], types: tuple[str, ...]) -> dict[str, Opcode]:
    return {
        f"{stem}.{kind}": Opcode(decode, InstructionClass.INTEGER)
        for stem, decode in decoders.items()
        for kind in types
    }


TABLE: Table = {
    **_by_type(
        {
            "add": _sum(np.add),
            "sub": _sum(np.subtract),
            "min": _extreme(np.minimum),
            "max": _extreme(np.maximum),
        },
        (*_PLAIN, *_PACKED),
    ),
    **_by_type(
        {
            "addc": _sum_with_carry(minus=False),
            "subc": _sum_with_carry(minus=True),
            "mul": _multiply(_PRODUCTS),
            "mul24": _multiply(_PRODUCTS_24),
            "mad": _multiply_add(_PRODUCTS),
            "mad24": _multiply_add(_PRODUCTS_24),
            "madc": _multiply_add_with_carry,
            "div": _signwise(divide),
            "rem": _signwise(remainder),
            "abs": _signwise(np.abs),
            "neg": _signwise(np.negative),
            "sad": _signwise(_absolute_difference),
        },
        _PLAIN,
    ),
    "dp4a": Opcode(_dot("dp4a"), InstructionClass.INTEGER),
    "dp2a": Opcode(_dot("dp2a"), InstructionClass.INTEGER),
}
