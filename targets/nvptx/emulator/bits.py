"""Bits: logic, shifts, fields, counts, permutations.

Widths are counted in the instruction's own type; amounts and positions are 32-bit operands whatever
that is. Shifts clamp (an amount of the width or more gives 0, or the sign), unless they say
`.wrap`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.program import InstructionClass, Step
from tiledsl.targets.nvptx.emulator.machine import Machine
from tiledsl.targets.nvptx.emulator.opcodes import Decoder, Opcode, Options, Table, unknown
from tiledsl.targets.nvptx.emulator.operands import TYPES, Context, Values, select
from tiledsl.targets.nvptx.emulator.text import Immediate, Pair, Parsed

_BITS = ("b16", "b32", "b64")
_FIELDS = ("u32", "u64", "s32", "s64", "b32", "b64")
_SHIFTED = tuple(f"{letter}{bits}" for bits in (16, 32, 64) for letter in "sub")


def _logic(function: Callable[..., Values]) -> Decoder:
    def decode(instruction: Parsed, context: Context) -> Step:
        options = Options(instruction)
        kind = options.last((*_BITS, "pred"))
        options.done()
        to, *sources = instruction.operands
        return context.compute(to, kind, function, [(source, kind) for source in sources])

    return decode


def _is_zero(values: Values) -> Values:
    found: Values = (values == 0).astype(values.dtype)
    return found


# --- shifts --------------------------------------------------------------------------------------


def shift_left(value: Values, amount: Values) -> Values:
    """Return unsigned values moved left; an amount of the width or more gives 0."""
    return _clamped(np.left_shift, value, amount)


def shift_right(value: Values, amount: Values) -> Values:
    """Return values moved right; an amount of the width or more gives 0, or the sign."""
    if np.asarray(value).dtype.kind == "u":
        return _clamped(np.right_shift, value, amount)
    element = value.dtype
    found: Values = value >> np.minimum(amount, element.itemsize * 8 - 1).astype(element)
    return found


def _clamped(function: Callable[[Values, Values], Values], value: Values, amount: Values) -> Values:
    element = value.dtype
    width = np.uint32(element.itemsize * 8)
    if np.ndim(amount) == 0 and amount < width:  # a constant, nearly always
        return function(value, element.type(amount))
    moved = function(value, np.minimum(amount, width - np.uint32(1)).astype(element))
    found: Values = select(amount < width, moved, element.type(0))
    return found


def _shift(instruction: Parsed, context: Context) -> Step:
    options = Options(instruction)
    kind = TYPES[options.last(_SHIFTED)]
    options.done()
    left = instruction.stem == "shl"
    name = kind.name if kind.signed and not left else f"b{kind.bits}"
    to, value, amount = instruction.operands
    function = shift_left if left else shift_right
    return context.compute(to, name, function, [(value, name), (amount, "u32")])


def _funnel_shift(instruction: Parsed, context: Context) -> Step:
    """Decode shf: a shift of two words taken together."""
    options = Options(instruction)
    options.last(("b32",))
    left = options.choice(("l", "r")) == "l"
    wraps = options.choice(("wrap", "clamp")) == "wrap"
    options.done()
    to, low, high, amount = instruction.operands

    def shift(lower: Values, upper: Values, by: Values) -> Values:
        whole = upper.astype(np.uint64) << np.uint64(32) | lower.astype(np.uint64)
        count = (by & np.uint32(31) if wraps else np.minimum(by, np.uint32(32))).astype(np.uint64)
        moved = whole << count >> np.uint64(32) if left else whole >> count
        found: Values = moved.astype(np.uint32)
        return found

    return context.compute(to, "b32", shift, [(low, "b32"), (high, "b32"), (amount, "u32")])


# --- counting ------------------------------------------------------------------------------------

_BYTE_ONES = np.array([bin(i).count("1") for i in range(256)], np.uint32)
_BYTE_REVERSED = np.array([int(f"{i:08b}"[::-1], 2) for i in range(256)], np.uint8)


def _as_bytes(values: Values) -> NDArray[np.uint8]:
    flat = np.ascontiguousarray(values)
    return flat.view(np.uint8).reshape(*flat.shape, flat.itemsize)


def count_ones(values: Values) -> NDArray[np.uint32]:
    """Return how many bits are set (popc)."""
    return _BYTE_ONES[_as_bytes(values)].sum(-1, dtype=np.uint32)


def bit_length(values: Values) -> NDArray[np.int32]:
    """Return the position of the highest set bit, counted from 1; 0 of 0."""
    words = np.asarray(values)
    if words.itemsize == 8:
        high = bit_length((words >> np.uint64(32)).astype(np.uint32))
        low = bit_length(words.astype(np.uint32))
        return select(high > 0, high + 32, low).astype(np.int32)
    return np.frexp(words.astype(np.float64))[1].astype(np.int32)


def _leading_zeros(values: Values) -> Values:
    width = np.asarray(values).itemsize * 8
    found: Values = (width - bit_length(values)).astype(np.uint32)
    return found


def _counted(function: Callable[[Values], Values]) -> Decoder:
    """Return a decoder for popc and clz, whose result has 32 bits."""

    def decode(instruction: Parsed, context: Context) -> Step:
        options = Options(instruction)
        kind = options.last(("b32", "b64"))
        options.done()
        to, source = instruction.operands
        return context.compute(to, "u32", function, [(source, kind)])

    return decode


def _find_highest(instruction: Parsed, context: Context) -> Step:
    """Decode bfind: the highest bit that is no sign."""
    options = Options(instruction)
    kind = TYPES[options.last(("u32", "u64", "s32", "s64"))]
    as_amount = options.flag("shiftamt")
    options.done()
    to, source = instruction.operands
    unsigned = f"u{kind.bits}"

    def find(values: Values) -> Values:
        if kind.signed:
            signed = values.view(kind.element)
            values = select(signed < 0, ~values, values)
        position = bit_length(values) - 1
        if as_amount:
            position = select(position >= 0, kind.bits - 1 - position, -1)
        found: Values = position.astype(np.uint32)
        return found

    return context.compute(to, "u32", find, [(source, unsigned)])


def _reversed_bits(values: Values) -> Values:
    swapped = np.ascontiguousarray(_BYTE_REVERSED[_as_bytes(values)[..., ::-1]])
    found: Values = swapped.view(values.dtype).reshape(np.shape(values))
    return found


# --- fields --------------------------------------------------------------------------------------


def _ones(count: Values, element: Any) -> Values:
    """Return words whose lowest bits are set."""
    one = element.type(1)
    return shift_left(np.broadcast_to(one, np.shape(count)), count) - one


def _field(bits: int) -> Callable[[Values], Values]:
    """Return what a position or length means: of words of 32 bits its low 8 bits, else all of it.

    PTX defines no more than 0 to 255; beyond that this is what an H200 does.
    """
    if bits == 32:
        return lambda amount: amount & np.uint32(255)
    return lambda amount: np.minimum(amount, np.uint32(255))


def _extract_field(instruction: Parsed, context: Context) -> Step:
    """Decode bfe: bits beyond the word are 0, or the sign."""
    options = Options(instruction)
    kind = TYPES[options.last(("u32", "u64", "s32", "s64"))]
    options.done()
    width, element = np.uint32(kind.bits), kind.element
    field = _field(kind.bits)

    def extract(values: Values, position: Values, length: Values) -> Values:
        at, count = field(position), field(length)
        moved = shift_right(values, at)
        if not kind.signed:
            return moved & _ones(count, element)
        rest = (width - np.clip(count, 1, width)).astype(element)
        found: Values = select(count == 0, element.type(0), moved << rest >> rest)
        return found

    to, value, position, length = instruction.operands
    sources = [(value, kind.name), (position, "u32"), (length, "u32")]
    return context.compute(to, kind.name, extract, sources)


def _insert_field(instruction: Parsed, context: Context) -> Step:
    """Decode bfi."""
    options = Options(instruction)
    kind = TYPES[options.last(("b32", "b64"))]
    options.done()
    place = _field(kind.bits)

    def insert(field: Values, word: Values, position: Values, length: Values) -> Values:
        at, count = place(position), place(length)
        mask = shift_left(_ones(count, kind.element), at)
        found: Values = (word & ~mask) | (shift_left(field, at) & mask)
        return found

    to, field, word, position, length = instruction.operands
    sources = [(field, kind.name), (word, kind.name), (position, "u32"), (length, "u32")]
    return context.compute(to, kind.name, insert, sources)


def _field_mask(instruction: Parsed, context: Context) -> Step:
    """Decode bmsk: a word with a field of ones."""
    options = Options(instruction)
    kind = TYPES[options.last(("b32",))]
    wraps = options.choice(("wrap", "clamp")) == "wrap"
    options.done()

    def mask(position: Values, length: Values) -> Values:
        if wraps:
            position, length = position & np.uint32(31), length & np.uint32(31)
        return shift_left(_ones(length, kind.element), position)

    to, position, length = instruction.operands
    return context.compute(to, "b32", mask, [(position, "u32"), (length, "u32")])


def _extend(instruction: Parsed, context: Context) -> Step:
    """Decode szext: a field of the low bits, extended by zeros or its sign."""
    options = Options(instruction)
    kind = TYPES[options.last(("u32", "s32"))]
    wraps = options.choice(("wrap", "clamp")) == "wrap"
    options.done()
    element = kind.element

    def extend(values: Values, length: Values) -> Values:
        count = length & np.uint32(31) if wraps else np.minimum(length, np.uint32(32))
        rest = (np.uint32(32) - np.maximum(count, np.uint32(1))).astype(element)
        found: Values = select(count == 0, element.type(0), values << rest >> rest)
        return found

    to, value, length = instruction.operands
    return context.compute(to, kind.name, extend, [(value, kind.name), (length, "u32")])


# --- permutations and truth tables ---------------------------------------------------------------

_SELECTORS: dict[str, Callable[[int], list[int]]] = {
    "f4e": lambda n: [n, n + 1, n + 2, n + 3],
    "b4e": lambda n: [n, (n + 7) % 8, (n + 6) % 8, (n + 5) % 8],
    "rc8": lambda n: [n] * 4,
    "ecl": lambda n: [max(i, n) for i in range(4)],
    "ecr": lambda n: [min(i, n) for i in range(4)],
    "rc16": lambda n: [2 * (n % 2), 2 * (n % 2) + 1] * 2,
}
"""Which bytes prmt's modes select, by the low two bits of the selector."""


def permute_bytes(a: Values, b: Values, selector: Values, mode: str = "") -> Values:
    """Return prmt's words: each byte is one of the eight of a and b, or its sign."""
    whole = np.asarray(b).astype(np.uint64) << np.uint64(32) | np.asarray(a).astype(np.uint64)
    found: Values = np.uint32(0)
    rows = np.array([_SELECTORS[mode](n) for n in range(4)], np.uint32) if mode else None
    for i in range(4):
        if rows is None:
            nibble = np.asarray(selector) >> np.uint32(4 * i) & np.uint32(15)
        else:
            nibble = rows[np.asarray(selector) & np.uint32(3), i]
        at = (nibble & np.uint32(7)).astype(np.uint64) * np.uint64(8)
        byte = (whole >> at & np.uint64(255)).astype(np.uint32)
        sign = select(byte & np.uint32(128), np.uint32(255), np.uint32(0))
        byte = select(nibble & np.uint32(8), sign, byte)
        found = found | byte << np.uint32(8 * i)
    return found


def _permute(instruction: Parsed, context: Context) -> Step:
    options = Options(instruction)
    mode = options.choice(tuple(_SELECTORS), "")
    options.last(("b32",))
    options.done()
    to, a, b, selector = instruction.operands

    def permute(first: Values, second: Values, which: Values) -> Values:
        return permute_bytes(first, second, which, mode)

    return context.compute(to, "b32", permute, [(a, "b32"), (b, "b32"), (selector, "u32")])


def truth_table(table: int, a: Values, b: Values, c: Values) -> Values:
    """Return lop3's bits: bit (a b c) of the table, a being the highest of the three."""
    found: Values = np.uint32(0) & a & b & c
    for row in range(8):
        if table >> row & 1:
            term = (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
            found = found | term
    return found


def _three_input_logic(instruction: Parsed, context: Context) -> Step:
    """Decode lop3, and the form that also combines whether any bit is set with a predicate."""
    options = Options(instruction)
    options.last(("b32",))
    combine = options.choice(("or", "and"), "")
    options.done()
    to, a, b, c, table = instruction.operands[:5]
    if not isinstance(table, Immediate):
        raise unknown(instruction)
    rows = table.value
    sources = [(a, "b32"), (b, "b32"), (c, "b32")]

    def logic(first: Values, second: Values, third: Values) -> Values:
        return truth_table(rows, first, second, third)

    if not combine:
        return context.compute(to, "b32", logic, sources)
    if not isinstance(to, Pair):
        raise unknown(instruction)

    def test(first: Values, second: Values, third: Values, predicate: Values) -> Values:
        some = truth_table(rows, first, second, third) != 0
        return some | predicate if combine == "or" else some & predicate

    with_predicate = [*sources, (instruction.operands[5], "pred")]
    predicate = context.compute(to.second, "pred", test, with_predicate)
    word = context.compute(to.first, "b32", logic, sources)

    def step(machine: Machine) -> None:
        predicate(machine)  # reads no register that this or the other writes
        word(machine)

    return step


TABLE: Table = {
    **{
        f"{stem}.{kind}": Opcode(_logic(function), InstructionClass.INTEGER)
        for stem, function in {
            "and": np.bitwise_and,
            "or": np.bitwise_or,
            "xor": np.bitwise_xor,
            "not": np.invert,
            "cnot": _is_zero,
        }.items()
        for kind in (*_BITS, "pred")
    },
    "shl": Opcode(_shift, InstructionClass.INTEGER),
    "shr": Opcode(_shift, InstructionClass.INTEGER),
    "shf": Opcode(_funnel_shift, InstructionClass.INTEGER),
    "popc": Opcode(_counted(count_ones), InstructionClass.INTEGER),
    "clz": Opcode(_counted(_leading_zeros), InstructionClass.INTEGER),
    "bfind": Opcode(_find_highest, InstructionClass.INTEGER),
    "brev": Opcode(_logic(_reversed_bits), InstructionClass.INTEGER),
    "bfe": Opcode(_extract_field, InstructionClass.INTEGER),
    "bfi": Opcode(_insert_field, InstructionClass.INTEGER),
    "bmsk": Opcode(_field_mask, InstructionClass.INTEGER),
    "szext": Opcode(_extend, InstructionClass.INTEGER),
    "prmt": Opcode(_permute, InstructionClass.INTEGER),
    "lop3": Opcode(_three_input_logic, InstructionClass.INTEGER),
}
