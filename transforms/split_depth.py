"""Multiply in two halves along k where the operands of a whole trip fill the registers.

A pipelined loop without asynchronous copies keeps the next trip's operands in registers while it
multiplies this one's. Beside a large accumulator there is no room for them. Two products, each with
half of k, can take turns: while the first multiplies, its own operands for the next trip are on
their way, then those of the second (`relieve_registers`). Sums are added in the same order.

Before: a `tile` module.
After: the same.

    %x = "tile.load"(%px) : ... -> tensor<128x64xf16>
    %y = "tile.load"(%py) : ... -> tensor<64x128xf16>
    %c = "tile.dot"(%x, %y, %acc)
becomes
    %x0 = "tile.load"(%px0) : ... -> tensor<128x32xf16>
    %x1 = "tile.load"(%px1) : ... -> tensor<128x32xf16>
    %y0 = ... ; %y1 = ...
    %s = "tile.dot"(%x0, %y0, %acc)
    %c = "tile.dot"(%x1, %y1, %s)
"""

from __future__ import annotations

from math import prod
from typing import Any

from mlir import ir

from tiledsl.dialects import tile
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.types import bit_width, element_of, is_tile, shape_of, storage_bits, tile_type
from tiledsl.transforms.effects import is_plain_load
from tiledsl.transforms.kernels import kernels
from tiledsl.transforms.layout_rules import is_elementwise
from tiledsl.transforms.rewrite import attributes_of, build
from tiledsl.transforms.tile_registers import OTHERS

_LEAST_BYTES = 64
"""Of k in a half: two steps of the instructions, and four lanes that read 16 bytes each."""


def split_depth(module: ir.Module, *, threads: int, max_registers: int, stages: int) -> None:
    """Run the pass described above on `module`, in place.

    Args:
        module: The module.
        threads: Of a program.
        max_registers: How many a thread can have.
        stages: Trips at work at a time; with one nothing waits in registers.
    """
    if stages < 2:
        return
    for kernel in kernels(module):
        for op in list(operations(kernel)):
            if isinstance(op, tile.DotOp) and _is_too_large(op, threads, max_registers):
                _split(op)


def _is_too_large(dot: tile.DotOp, threads: int, max_registers: int) -> bool:
    """Whether a product's sums and the next operands leave a thread too few registers."""
    shape = shape_of(dot.a.type)
    if len(shape) != 2 or shape[1] % 2:
        return False
    if shape[1] // 2 * storage_bits(dot.a.type) < _LEAST_BYTES * 8:
        return False
    tiles = (dot.a.type, dot.b.type, dot.acc.type)
    bits = sum(prod(shape_of(type_)) * bit_width(type_) for type_ in tiles)
    return bits // (32 * threads) >= max_registers - OTHERS


def _split(dot: tile.DotOp) -> None:
    """Make two products of one if both operands are loaded for it, where it stands, in a loop."""
    block = dot.operation.block
    parent = dot.operation.parent
    if parent is None or parent.operation.name != "scf.for":
        return
    operands = [(dot.a, _Slicer(1)), (dot.b, _Slicer(0))]
    for value, slicer in operands:
        owner = value.owner
        if isinstance(owner, ir.Block) or owner.operation.block != block:
            return
        if not is_plain_load(owner.operation.opview) or len(list(value.uses)) > 1:
            return
        if not all(slicer.can(one) for one in owner.operation.operands):
            return
    depth = shape_of(dot.a.type)[1] // 2
    total = dot.acc
    for start in (0, depth):
        halves = [slicer.load(value, start, depth) for value, slicer in operands]
        place = ir.InsertionPoint(dot.operation)
        attributes = attributes_of(dot.operation)
        total = build(
            "tile.dot", [*halves, total], total.type, place, dot.operation.location, attributes
        )
    dot.result.replace_all_uses_with(total)
    loads = [value.owner.operation for value, _ in operands]
    for op in (dot.operation, *loads):
        op.erase()


class _Slicer:
    """Builds parts of tiles along one axis, from parts of what the tiles are made of.

    Args:
        axis: Of the tile that is asked for.
    """

    def __init__(self, axis: int) -> None:
        self._axis = axis
        self._made: dict[tuple[ir.Value, int, int], ir.Value] = {}

    def can(self, value: ir.Value, axis: int | None = None) -> bool:
        """Whether a part can be built: all the way up stand ops that say what a part of them is."""
        axis = self._axis if axis is None else axis
        if not is_tile(value.type) or shape_of(value.type)[axis] == 1:
            return True
        if isinstance(value.owner, ir.Block):
            return False
        op = value.owner.operation.opview
        match op:
            case tile.MakeRangeOp() | tile.SplatOp():
                return True
            case tile.ExpandDimsOp():
                return self.can(op.source, axis - (axis > op.axis))
            case tile.BroadcastOp():
                return self.can(op.source, axis)
            case tile.HintOp():
                return False  # what holds of runs need not hold of their halves
            case _ if op.operation.name == "arith.constant":
                held: Any = op.operation.attributes["value"]
                return isinstance(held, ir.DenseElementsAttr) and held.is_splat
            case _:
                return is_elementwise(op) and all(self.can(v, axis) for v in op.operation.operands)

    def load(self, value: ir.Value, start: int, size: int) -> ir.Value:
        """Build a part of what a load reads."""
        op = value.owner.operation
        parts = [self._part(one, self._axis, start, size) for one in op.operands]
        type_ = _shortened(value.type, self._axis, size)
        return build(op.name, parts, type_, ir.InsertionPoint(op), op.location, attributes_of(op))

    def _part(self, value: ir.Value, axis: int, start: int, size: int) -> ir.Value:
        """Build elements `start` to `start + size` along an axis, where the whole is built."""
        if not is_tile(value.type) or shape_of(value.type)[axis] == 1:
            return value
        key = value, axis, start
        if key not in self._made:
            self._made[key] = self._build(value, axis, start, size)
        return self._made[key]

    def _build(self, value: ir.Value, axis: int, start: int, size: int) -> ir.Value:
        op = value.owner.operation
        attributes = attributes_of(op)
        inner = axis
        match op.opview:
            case tile.MakeRangeOp():
                first = op.opview.start + start
                i64 = ir.IntegerType.get_signless(64)
                attributes["start"] = ir.IntegerAttr.get(i64, first)
                attributes["end"] = ir.IntegerAttr.get(i64, first + size)
            case tile.ExpandDimsOp():
                inner = axis - (axis > op.opview.axis)
            case _ if op.name == "arith.constant":
                held: Any = attributes["value"]
                type_ = _shortened(value.type, axis, size)
                attributes["value"] = ir.DenseElementsAttr.get_splat(type_, held.get_splat_value())
            case _:
                pass
        parts = [self._part(one, inner, start, size) for one in op.operands]
        type_ = _shortened(value.type, axis, size)
        return build(op.name, parts, type_, ir.InsertionPoint(op), op.location, attributes)


def _shortened(type_: ir.Type, axis: int, size: int) -> ir.Type:
    """Return a tile's type with another size along an axis."""
    shape = list(shape_of(type_))
    shape[axis] = size
    return tile_type(tuple(shape), element_of(type_))
