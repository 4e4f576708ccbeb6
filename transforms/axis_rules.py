"""Which facts each op gives its results: the table that `axis_facts` walks a function with.

A rule takes the op and its operands' facts and returns those of its first result. An op without a
rule whose results have the shape of its tile operands and that has no effects is a function of each
element, which keeps constancy; of any other op nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from mlir import ir

from tiledsl.dialects.op import from_attribute
from tiledsl.dialects.types import is_pointer, pointee, shape_of, storage_bits
from tiledsl.transforms import facts as shapes
from tiledsl.transforms import facts_arithmetic as numbers
from tiledsl.transforms.facts import Facts
from tiledsl.transforms.interval import Interval

Rule = Callable[[ir.Operation, Sequence[Facts]], Facts]

PREDICATES = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
"""The predicates of `arith.cmpi`, by the number in the attribute."""

_PROGRAMS = (1 << 31) - 1
"""Most programs along an axis of any grid: CUDA's and HIP's limit of the x dimension."""


@cache
def unknown(type_: ir.Type) -> Facts:
    """Return the facts that hold of any value of a type."""
    shape = shape_of(type_)
    if is_pointer(type_):
        return Facts.unknown(shape, step=storage_bits(pointee(type_)) // 8)
    width = integer_width(type_)
    return Facts.unknown(shape, Interval.of_width(width) if width else None)


@cache
def integer_width(type_: ir.Type) -> int:
    """Return the bits of an integer or tile of integers, an index having 64; 0 for other types."""
    element = type_.element_type if isinstance(type_, ir.ShapedType) else type_
    if isinstance(element, ir.IndexType):
        return 64
    return element.width if isinstance(element, ir.IntegerType) else 0


def apply(op: ir.Operation, operands: Sequence[Facts]) -> list[Facts]:
    """Return the facts of each result of `op`."""
    results = op.results
    rule = RULES.get(op.name)
    if rule is not None and (len(results) == 1 or op.name == "tile.split"):
        return [rule(op, operands)] * len(results)
    return [_of_any(op, operands, value.type) for value in results]


def _of_any(op: ir.Operation, operands: Sequence[Facts], type_: ir.Type) -> Facts:
    weakest = unknown(type_)
    elementwise = op.name.startswith(("arith.", "math.")) and operands
    if elementwise and all(a.shape == weakest.shape for a in operands):
        return numbers.elementwise(*operands, range=weakest.range)
    return weakest


def _attribute(op: ir.Operation, name: str, default: Any = None) -> Any:
    attributes = op.attributes
    return from_attribute(attributes[name]) if name in attributes else default


def _width(op: ir.Operation) -> int:
    return integer_width(op.operands[0].type)


def _result_shape(op: ir.Operation) -> tuple[int, ...]:
    return shape_of(op.results[0].type)


def predicate_of(op: ir.Operation) -> str:
    """Return the predicate of an `arith.cmpi`."""
    return PREDICATES[ir.IntegerAttr(op.attributes["predicate"]).value]


def _constant(op: ir.Operation, _: Sequence[Facts]) -> Facts:
    attribute, type_ = op.attributes["value"], op.results[0].type
    shape, width = shape_of(type_), integer_width(type_)
    if isinstance(attribute, ir.DenseElementsAttr):
        if not attribute.is_splat:
            return unknown(type_)
        if not width:
            return Facts.make(shape, constancy=shape)
        attribute = attribute.get_splat_value()
    if not width:
        return unknown(type_)
    value = int(ir.IntegerAttr(attribute).value)
    return Facts.constant(value % 2 if width == 1 else value, shape)


def _wrapping(function: Callable[[Facts, Facts, int], Facts]) -> Rule:
    return lambda op, a: function(a[0], a[1], _width(op))


def _dividing(function: Callable[[Facts, Facts, int, bool], Facts], signed: bool) -> Rule:
    return lambda op, a: function(a[0], a[1], _width(op), signed)


def _floor(function: Callable[[Facts, Facts, int, bool], Facts]) -> Rule:
    return lambda op, a: function(a[0], a[1], _width(op), _attribute(op, "signed"))


def _compare(op: ir.Operation, a: Sequence[Facts]) -> Facts:
    return numbers.compare(predicate_of(op), a[0], a[1], _width(op))


def _extend(op: ir.Operation, a: Sequence[Facts], signed: bool) -> Facts:
    return numbers.extend(a[0], _width(op), signed)


def _truncate(op: ir.Operation, a: Sequence[Facts]) -> Facts:
    return numbers.truncate(a[0], _width(op), integer_width(op.results[0].type))


def _index_cast(op: ir.Operation, a: Sequence[Facts], signed: bool) -> Facts:
    narrows = _width(op) > integer_width(op.results[0].type)
    return _truncate(op, a) if narrows else _extend(op, a, signed)


def _make_range(op: ir.Operation, _: Sequence[Facts]) -> Facts:
    return shapes.make_range(_attribute(op, "start"), _attribute(op, "end"))


def _splat(op: ir.Operation, a: Sequence[Facts]) -> Facts:
    return shapes.splat(a[0], _result_shape(op))


def _hint(op: ir.Operation, a: Sequence[Facts]) -> Facts:
    names = ("contiguity", "divisibility", "constancy")
    return shapes.hinted(a[0], *(_attribute(op, name) for name in names))


def _bitcast(op: ir.Operation, a: Sequence[Facts]) -> Facts:
    """Give the same bits another reading: runs survive where their steps mean the same."""
    source, old, new = a[0], op.operands[0].type, op.results[0].type
    weakest = unknown(new)
    if integer_width(old) and integer_width(new):
        return source
    if not all(integer_width(t) or is_pointer(t) for t in (old, new)):
        return numbers.elementwise(source, range=weakest.range)
    runs = source.contiguity if source.step == weakest.step else (1,) * source.rank
    return Facts.make(
        source.shape,
        contiguity=runs,
        divisibility=[source.starts(i, c) for i, c in enumerate(runs)],
        constancy=source.constancy,
        divisor=source.divisor,
        range=weakest.range,
        step=weakest.step,
    )


def _load(op: ir.Operation, a: Sequence[Facts]) -> Facts:
    """Give lanes with one address, mask and `other` one value, unless memory may change between."""
    weakest = unknown(op.results[0].type)
    if _attribute(op, "volatile", False) or not weakest.shape:
        return weakest
    return numbers.elementwise(*a, range=weakest.range)


def _reduce(op: ir.Operation, a: Sequence[Facts]) -> Facts:
    weakest = unknown(op.results[0].type)
    source, kind = a[0], _attribute(op, "kind", "")
    axis: int = _attribute(op, "axis")
    if source.range is None or len(a) != 1:
        return weakest
    bounds = weakest.range
    width = integer_width(op.results[0].type)
    if kind in ("max", "min"):
        bounds = source.range
    elif kind == "add" and width > 1:
        bounds = (source.range * Interval.exactly(source.shape[axis])).wrapped(width)
    return shapes.reduced(source, axis, bounds)


def _program_id(op: ir.Operation, _: Sequence[Facts]) -> Facts:
    return Facts.unknown((), Interval(0, _PROGRAMS - 1))


def _num_programs(op: ir.Operation, _: Sequence[Facts]) -> Facts:
    return Facts.unknown((), Interval(1, _PROGRAMS))


def _block_id(op: ir.Operation, _: Sequence[Facts]) -> Facts:
    return Facts.unknown((), Interval(0, _attribute(op, "blocks") - 1))


RULES: dict[str, Rule] = {
    "arith.constant": _constant,
    "arith.addi": _wrapping(numbers.add),
    "arith.subi": _wrapping(numbers.subtract),
    "arith.muli": _wrapping(numbers.multiply),
    "arith.divsi": _dividing(numbers.truncating_divide, True),
    "arith.divui": _dividing(numbers.truncating_divide, False),
    "arith.remsi": _dividing(numbers.truncating_remainder, True),
    "arith.remui": _dividing(numbers.truncating_remainder, False),
    "arith.shli": _wrapping(numbers.shift_left),
    "arith.shrsi": _dividing(numbers.shift_right, True),
    "arith.shrui": _dividing(numbers.shift_right, False),
    "arith.andi": _wrapping(numbers.bit_and),
    "arith.ori": _wrapping(numbers.bit_or),
    "arith.xori": _wrapping(numbers.bit_xor),
    "arith.minsi": _dividing(numbers.smaller, True),
    "arith.minui": _dividing(numbers.smaller, False),
    "arith.maxsi": _dividing(numbers.larger, True),
    "arith.maxui": _dividing(numbers.larger, False),
    "arith.cmpi": _compare,
    "arith.select": lambda op, a: numbers.select(*a),
    "arith.extsi": partial(_extend, signed=True),
    "arith.extui": partial(_extend, signed=False),
    "arith.trunci": _truncate,
    "arith.index_cast": partial(_index_cast, signed=True),
    "arith.index_castui": partial(_index_cast, signed=False),
    "tile.program_id": _program_id,
    "tile.num_programs": _num_programs,
    "tile.block_id": _block_id,
    "tile.make_range": _make_range,
    "tile.splat": _splat,
    "tile.expand_dims": lambda op, a: shapes.expand_dims(a[0], _attribute(op, "axis")),
    "tile.broadcast": lambda op, a: shapes.broadcast(a[0], _result_shape(op)),
    "tile.reshape": lambda op, a: shapes.reshape(a[0], _result_shape(op)),
    "tile.trans": lambda op, a: shapes.trans(a[0], _attribute(op, "order")),
    "tile.join": lambda op, a: shapes.stack(a[0], a[1]),
    "tile.split": lambda op, a: shapes.unstack(a[0]),
    "tile.cat": lambda op, a: shapes.concatenate(a[0], a[1], _attribute(op, "axis")),
    "tile.addptr": lambda op, a: numbers.add_pointer(a[0], a[1]),
    "tile.hint": _hint,
    "tile.floordiv": _floor(numbers.floor_divide),
    "tile.floormod": _floor(numbers.floor_modulo),
    "tile.cast": lambda op, a: numbers.elementwise(a[0], range=unknown(op.results[0].type).range),
    "tile.bitcast": _bitcast,
    "tile.load": _load,
    "tile.reduce": _reduce,
    "tgpu.convert_layout": lambda op, a: a[0],
}
