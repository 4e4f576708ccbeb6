"""Comparisons into predicates and registers, and selections by them: setp, set, slct.

A comparison may be combined with a predicate (`setp.lt.and.s32 %p|%q, a, b, %c`): the first result
gets `compare op c`, the second `!compare op c`. Of packed halves each result gets one element's.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tiledsl.targets.gpu.emulator.program import InstructionClass, Step
from tiledsl.targets.nvptx.emulator.float_values import flush
from tiledsl.targets.nvptx.emulator.machine import Machine
from tiledsl.targets.nvptx.emulator.opcodes import Opcode, Options, Table
from tiledsl.targets.nvptx.emulator.operands import TYPES, Context, Type, Values, select
from tiledsl.targets.nvptx.emulator.text import Pair, Parsed, Sink

_Compare = Callable[[Values, Values], Values]
_COMPARED = tuple(
    name for name, kind in TYPES.items() if kind.bits >= 16 and not name.startswith(("u8", "s8"))
)


def _unordered(ordered: _Compare) -> _Compare:
    """Return a comparison that also holds where either is a NaN."""
    return lambda a, b: ordered(a, b) | np.isnan(a) | np.isnan(b)


def _numbers(a: Values, b: Values) -> Values:
    return ~(np.isnan(a) | np.isnan(b))


def _nans(a: Values, b: Values) -> Values:
    return np.isnan(a) | np.isnan(b)


def _different(a: Values, b: Values) -> Values:
    return (a != b) & _numbers(a, b)


_INTEGER: dict[str, _Compare] = {
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
_FLOAT: dict[str, _Compare] = {
    "eq": np.equal,
    "ne": _different,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "equ": _unordered(np.equal),
    "neu": np.not_equal,
    "ltu": _unordered(np.less),
    "leu": _unordered(np.less_equal),
    "gtu": _unordered(np.greater),
    "geu": _unordered(np.greater_equal),
    "num": _numbers,
    "nan": _nans,
}
_COMBINE: dict[str, _Compare] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}


def _is_float(kind: Type) -> bool:
    return kind.element.kind not in "iub"


def _comparison(options: Options, kind: Type) -> _Compare:
    """Take a relation and .ftz; returns what compares values of a type."""
    table = _FLOAT if _is_float(kind) else _INTEGER
    compare = table[options.choice(tuple(table))]
    if not options.flag("ftz"):
        return compare
    return lambda a, b: compare(flush(a), flush(b))


def _set_predicate(instruction: Parsed, context: Context) -> Step:
    options = Options(instruction)
    kind = TYPES[options.last(_COMPARED)]
    compare = _comparison(options, kind)
    combine = options.choice(tuple(_COMBINE), "")
    options.done()
    to, a, b, *rest = instruction.operands
    first, second = context.read(a, kind.name), context.read(b, kind.name)
    with_third = context.read(rest[0], "pred") if combine else None
    if kind.count == 1 and not combine and not isinstance(to, Pair):
        return context.compute(to, "pred", compare, [(a, kind.name), (b, kind.name)])
    results = (to.first, to.second) if isinstance(to, Pair) else (to, Sink())
    writers = [context.write(one, "pred") for one in results]

    def step(machine: Machine) -> None:
        found = compare(first(machine), second(machine))
        pair = (found[..., 0], found[..., 1]) if kind.count == 2 else (found, ~found)
        if with_third is not None:
            other = with_third(machine)
            pair = tuple(_COMBINE[combine](one, other) for one in pair)
        for write, one in zip(writers, pair, strict=True):
            write(machine, np.array(np.broadcast_to(one, machine.threads)))

    return step


def _set(instruction: Parsed, context: Context) -> Step:
    """Decode set: all ones, or 1.0, where a comparison holds."""
    options = Options(instruction)
    kind = TYPES[options.last(_COMPARED)]
    result = TYPES[options.last(_COMPARED)]
    compare = _comparison(options, kind)
    combine = options.choice(tuple(_COMBINE), "")
    options.done()
    to, a, b, *rest = instruction.operands
    yes = result.element.type(1) if _is_float(result) else ~np.zeros(1, result.element)[0]

    def choose(first: Values, second: Values, *other: Values) -> Values:
        found = compare(first, second)
        if other:
            found = _COMBINE[combine](found, other[0])
        if kind.count == 2 and result.count == 1:
            ones: Values = found.astype(np.uint32) * np.uint32(0xFFFF)
            return (ones[..., 0] | ones[..., 1] << np.uint32(16)).view(result.element)
        return select(found, yes, result.element.type(0))

    sources = [(a, kind.name), (b, kind.name), *((one, "pred") for one in rest)]
    return context.compute(to, result.name, choose, sources)


def _select_by_sign(instruction: Parsed, context: Context) -> Step:
    """Decode slct: the first where the third is not negative (a NaN is)."""
    options = Options(instruction)
    tested = options.last(("s32", "f32"))
    kind = TYPES[options.last(_COMPARED)]
    flushes = options.flag("ftz")
    options.done()
    to, a, b, c = instruction.operands
    bits = f"b{kind.bits}"

    def choose(first: Values, second: Values, test: Values) -> Values:
        value = flush(test) if flushes else test
        found: Values = select(value >= value.dtype.type(0), first, second)
        return found

    return context.compute(to, bits, choose, [(a, bits), (b, bits), (c, tested)])


TABLE: Table = {
    "setp": Opcode(_set_predicate, InstructionClass.INTEGER),
    **{
        f"setp.{name}": Opcode(_set_predicate, InstructionClass.FLOAT)
        for name in _COMPARED
        if _is_float(TYPES[name])
    },
    "set": Opcode(_set, InstructionClass.INTEGER),
    "slct": Opcode(_select_by_sign, InstructionClass.MOVE),
}
