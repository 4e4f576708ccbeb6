"""Replace one op by what it is known to compute: constants, and operands that it only passes on.

Upstream folds `arith` and `math`; these rules are for `tile` ops and for tiles filled with one
scalar, whose arithmetic is done on the scalar. Every rule is exact, bit for bit: integers wrap,
floats keep their zeros' signs and NaNs, casts round and saturate as `tile.cast` says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import copysign, isnan
from typing import cast

from mlir import ir

from tiledsl.dialects import tgpu, tile
from tiledsl.dialects.types import (
    bit_width,
    element_of,
    is_float,
    is_tile,
    layout_name,
    like,
    shape_of,
)
from tiledsl.transforms.expand_casts import FORMATS
from tiledsl.transforms.interval import Interval
from tiledsl.transforms.rewrite import attributes_of, build

Folded = Sequence[ir.Value] | None
"""What stands for the results of an op, or None where no rule applies."""


def fold(op: ir.OpView) -> Folded:
    """Return values that stand for the results of `op`, building new ops before it, or None."""
    rule = _RULES.get(type(op))
    if rule is not None:
        return rule(op)
    operation = op.operation
    if not operation.name.startswith(("arith.", "math.")) or not is_tile(operation.results[0].type):
        return None
    makers = [value.owner for value in operation.operands]
    if not any(isinstance(maker, tile.SplatOp | tile.BroadcastOp) for maker in makers):
        return None
    return _on_scalars(op) or _before_broadcast(op)


def constant_number(value: ir.Value) -> ir.Attribute | None:
    """Return the number that a constant, or every element of a constant tile, is."""
    maker = value.owner
    if isinstance(maker, ir.Block) or maker.operation.name != "arith.constant":
        return None
    attribute = maker.operation.attributes["value"]
    if isinstance(attribute, ir.DenseElementsAttr):
        return attribute.get_splat_value() if attribute.is_splat else None
    return attribute


def is_zero(value: ir.Value) -> bool:
    """Whether a constant, or every element of one, is zero in all bits."""
    number = constant_number(value)
    if isinstance(number, ir.FloatAttr):
        return number.value == 0 and copysign(1, number.value) > 0
    return isinstance(number, ir.IntegerAttr) and number.value == 0


def constant_int(value: ir.Value) -> int | None:
    """Return the integer that a constant or every element of a constant tile is; a bool is 0, 1."""
    number = constant_number(value)
    if not isinstance(number, ir.IntegerAttr | ir.BoolAttr):
        return None
    return int(number.value) & 1 if bit_width(value.type) == 1 else int(number.value)


def constant(op: ir.OpView, type_: ir.Type, number: ir.Attribute) -> ir.Value:
    """Build a constant, filling a tile with `number`, before `op`."""
    if is_tile(type_):
        number = ir.DenseElementsAttr.get_splat(type_, number)
    return _build(op, "arith.constant", [], type_, {"value": number})


def integer(op: ir.OpView, type_: ir.Type, value: int) -> ir.Value:
    """Build an integer constant of any value, which wraps, before `op`."""
    width = bit_width(type_)
    low = value % (1 << width)
    stored = low if width == 1 else Interval.exactly(low).signed(width).lo
    return constant(op, type_, ir.IntegerAttr.get(element_of(type_), stored))


def _build(
    op: ir.OpView,
    name: str,
    operands: Sequence[ir.Value],
    type_: ir.Type,
    attributes: dict[str, ir.Attribute] | None = None,
) -> ir.Value:
    place = op.operation
    return build(name, operands, type_, ir.InsertionPoint(place), place.location, attributes)


def _splat(op: ir.OpView, scalar: ir.Value, type_: ir.Type) -> ir.Value:
    return _build(op, "tile.splat", [scalar], type_)


def _scalar_of(value: ir.Value) -> ir.Value | ir.Attribute | None:
    """Return the scalar that a tile is filled with, or its number; None for other tiles."""
    maker = value.owner
    if isinstance(maker, tile.SplatOp):
        return cast("ir.Value", maker.scalar)
    return constant_number(value)


def _same_fill(op: ir.OpView, source: ir.Value, type_: ir.Type | None = None) -> Folded:
    """Fill a tile of `type_`, the result's by default, with the scalar that fills `source`."""
    type_ = type_ or op.operation.results[0].type
    scalar = _scalar_of(source)
    if scalar is None:
        return None
    if isinstance(scalar, ir.Attribute):
        return [constant(op, type_, scalar)]
    return [_splat(op, scalar, type_)]


def _on_scalars(op: ir.OpView) -> Folded:
    """Compute an elementwise op on tiles filled with scalars on the scalars."""
    operation = op.operation
    results = operation.results
    if len(results) != 1 or not is_tile(results[0].type) or not len(operation.operands):
        return None
    scalars: list[ir.Value | ir.Attribute] = []
    for operand in operation.operands:
        scalar = _scalar_of(operand) if is_tile(operand.type) else operand
        if scalar is None:
            return None
        scalars.append(scalar)
    if all(isinstance(scalar, ir.Attribute) for scalar in scalars):
        return None  # constants are upstream's to fold
    made = [
        constant(op, element_of(operand.type), scalar)
        if isinstance(scalar, ir.Attribute)
        else scalar
        for scalar, operand in zip(scalars, operation.operands, strict=True)
    ]
    type_ = results[0].type
    return [
        _splat(
            op, _build(op, operation.name, made, element_of(type_), attributes_of(operation)), type_
        )
    ]


def _before_broadcast(op: ir.OpView) -> Folded:
    """Compute an elementwise op on broadcast tiles before they are broadcast."""
    operation = op.operation
    results = operation.results
    makers = [value.owner for value in operation.operands if is_tile(value.type)]
    sources = [maker.source for maker in makers if isinstance(maker, tile.BroadcastOp)]
    if len(results) != 1 or not sources or not is_tile(results[0].type):
        return None
    narrow = sources[0].type
    if any(_place(source.type) != _place(narrow) for source in sources):
        return None
    made: list[ir.Value] = []
    for value in operation.operands:
        maker = value.owner
        if not is_tile(value.type):
            made.append(value)
        elif isinstance(maker, tile.BroadcastOp):
            made.append(maker.source)
        else:
            filled = _same_fill(op, value, like(narrow, element_of(value.type)))
            if filled is None:
                return None
            made += filled
    type_ = results[0].type
    attributes = attributes_of(operation)
    small = _build(op, operation.name, made, like(narrow, element_of(type_)), attributes)
    return [_build(op, "tile.broadcast", [small], type_)]


def _place(type_: ir.Type) -> tuple[tuple[int, ...], str | None]:
    return shape_of(type_), layout_name(type_)


def _fold_splat(op: tile.SplatOp) -> Folded:
    number = constant_number(op.scalar)
    return None if number is None else [constant(op, op.tile.type, number)]


def _fold_shape(op: ir.OpView) -> Folded:
    source, type_ = op.operation.operands[0], op.operation.results[0].type
    return [source] if source.type == type_ else _same_fill(op, source)


def _fold_chain(op: tile.ReshapeOp | tile.BroadcastOp) -> Folded:
    """Fold a reshape of a reshape, or a broadcast of a broadcast, into one."""
    found = _fold_shape(op)
    maker = op.source.owner
    if found is None and type(maker) is type(op):
        return [_build(op, op.operation.name, [maker.source], op.tile.type)]
    return found


def _fold_trans(op: tile.TransOp) -> Folded:
    order: list[int] = op.order
    if order == sorted(order):
        return [op.source] if op.source.type == op.tile.type else None
    found = _same_fill(op, op.source)
    maker = op.source.owner
    if found is None and isinstance(maker, tile.TransOp):
        composed = ir.DenseI64ArrayAttr.get([maker.order[d] for d in order])
        return [_build(op, "tile.trans", [maker.source], op.tile.type, {"order": composed})]
    return found


def _fold_join(op: tile.JoinOp) -> Folded:
    first, second = op.first, op.second
    maker = first.owner
    halves = isinstance(maker, tile.SplitOp) and second.owner == maker
    if halves and list(maker.operation.results) == [first, second]:
        return [maker.source] if maker.source.type == op.tile.type else None
    return _same_fill(op, first) if first == second else None


def _fold_cat(op: tile.CatOp) -> Folded:
    return _same_fill(op, op.first) if op.first == op.second else None


def _fold_split(op: tile.SplitOp) -> Folded:
    maker = op.source.owner
    if isinstance(maker, tile.JoinOp):
        same = maker.first.type == op.first.type and maker.second.type == op.second.type
        return [maker.first, maker.second] if same else None
    found = _same_fill(op, op.source)
    return None if found is None else [found[0], found[0]]


def _fold_make_range(op: tile.MakeRangeOp) -> Folded:
    return [integer(op, op.tile.type, op.start)] if op.end - op.start == 1 else None


def _fold_addptr(op: tile.AddPtrOp) -> Folded:
    if constant_int(op.offset) == 0:
        return [op.ptr]
    return _on_scalars(op) if is_tile(op.result.type) else None


def _fold_bitcast(op: tile.BitcastOp) -> Folded:
    source, type_ = op.source, op.result.type
    if source.type == type_:
        return [source]
    maker = source.owner
    if isinstance(maker, tile.BitcastOp):
        return [_build(op, "tile.bitcast", [maker.source], type_)]
    return None


def _fold_cast(op: tile.CastOp) -> Folded:
    source, type_ = op.source, op.result.type
    if source.type == type_ and is_float(type_):
        return [source]
    number = constant_number(source)
    if not isinstance(number, ir.FloatAttr):
        return None
    return [constant(op, type_, _cast_number(number.value, element_of(type_), op.signed))]


def _cast_number(value: float, type_: ir.Type, signed: bool) -> ir.Attribute:
    """Cast a number as `tile.cast` does."""
    if isinstance(type_, ir.FloatType):
        format_ = FORMATS[str(type_)]
        if not format_.infinite and not isnan(value):
            value = max(-format_.largest, min(format_.largest, value))
        return ir.FloatAttr.get(type_, value)
    width = bit_width(type_)
    whole = Interval.of_width(width) if signed else Interval.of_unsigned(width)
    number = 0 if isnan(value) else int(max(float(whole.lo), min(float(whole.hi), value)))
    number = max(whole.lo, min(whole.hi, number))
    return ir.IntegerAttr.get(
        type_, number if signed else Interval.exactly(number).signed(width).lo
    )


def _read_unsigned(value: int, width: int, signed: bool) -> int:
    return value if signed else value % (1 << width)


def _fold_division(op: tile.FloorDivOp | tile.FloorModOp) -> Folded:
    """Fold // and % of constants, by 1 and by 0, and of what was divided before."""
    type_, width = op.result.type, bit_width(op.result.type)
    divides = isinstance(op, tile.FloorDivOp)
    left, right = constant_int(op.lhs), constant_int(op.rhs)
    if right is None:
        return None
    right = _read_unsigned(right, width, op.signed)
    if right == 0 or (right == 1 and not divides):
        return [integer(op, type_, 0)]
    if right == 1:
        return [op.lhs]
    if left is not None:
        left = _read_unsigned(left, width, op.signed)
        return [integer(op, type_, left // right if divides else left % right)]
    maker = op.lhs.owner
    if type(maker) is not type(op) or maker.signed != op.signed:
        return None
    inner = constant_int(maker.rhs)
    if inner is None:
        return None
    inner = _read_unsigned(inner, width, op.signed)
    if not divides:
        return _fold_modulo_chain(op, maker, inner, right)
    whole = Interval.of_width(width) if op.signed else Interval.of_unsigned(width)
    if inner > 0 and right > 0 and inner * right in whole:
        divisor = integer(op, type_, inner * right)
        return [_like(op, [maker.lhs, divisor])]
    return None


def _fold_modulo_chain(op: ir.OpView, maker: ir.OpView, inner: int, outer: int) -> Folded:
    """Fold x % inner % outer to x % outer, which holds only for an inner multiple of the outer."""
    if inner == 0 or inner % outer:
        return None
    if inner == outer:
        return [maker.operation.results[0]]
    return [_like(op, [maker.operation.operands[0], op.operation.operands[1]])]


def _like(op: ir.OpView, operands: Sequence[ir.Value]) -> ir.Value:
    """Build an op like `op`, of one result, on other operands."""
    operation = op.operation
    type_ = operation.results[0].type
    return _build(op, operation.name, operands, type_, attributes_of(operation))


def _fold_reduce(op: tile.ReduceOp) -> Folded:
    """Fold a reduction of one element an axis to a change of shape."""
    results = op.operation.results
    if shape_of(op.sources[0].type)[op.axis] != 1 or not is_tile(results[0].type):
        return None
    if layout_name(results[0].type) is not None:
        return None  # a reshape keeps each element's thread, which layouts chosen by now may not
    pairs = zip(op.sources, results, strict=True)
    return [_build(op, "tile.reshape", [source], result.type) for source, result in pairs]


def _fold_scan(op: tile.ScanOp) -> Folded:
    same = all(a.type == b.type for a, b in zip(op.sources, op.operation.results, strict=True))
    return op.sources if shape_of(op.sources[0].type)[op.axis] == 1 and same else None


def _fold_convert(op: tgpu.ConvertLayoutOp) -> Folded:
    source, type_ = op.source, op.tile.type
    if source.type == type_:
        return [source]
    maker = source.owner
    if isinstance(maker, tgpu.ConvertLayoutOp):
        return [_build(op, "tgpu.convert_layout", [maker.source], type_)]
    return _same_fill(op, source)


_RULES: dict[type, Callable[..., Folded]] = {
    tile.SplatOp: _fold_splat,
    tile.MakeRangeOp: _fold_make_range,
    tile.ExpandDimsOp: _fold_shape,
    tile.BroadcastOp: _fold_chain,
    tile.ReshapeOp: _fold_chain,
    tile.TransOp: _fold_trans,
    tile.JoinOp: _fold_join,
    tile.SplitOp: _fold_split,
    tile.CatOp: _fold_cat,
    tile.AddPtrOp: _fold_addptr,
    tile.BitcastOp: _fold_bitcast,
    tile.CastOp: _fold_cast,
    tile.FloorDivOp: _fold_division,
    tile.FloorModOp: _fold_division,
    tile.ReduceOp: _fold_reduce,
    tile.ScanOp: _fold_scan,
    tgpu.ConvertLayoutOp: _fold_convert,
}
