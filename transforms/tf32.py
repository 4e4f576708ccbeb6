"""f32 operands of products in tf32: split into parts, or rounded before shared memory has them.

tf32 is f32 with 10 bits of mantissa in place of 23. Matrix instructions that take their operands
from registers are given rounded ones as they are multiplied. Those that read shared memory cut off
the bits that tf32 lacks, so that what is written there must have been rounded before: to nearest,
ties away from zero, as `cvt.rna.tf32.f32` does. A copy of boxes rounds on its way where nobody else
reads what it brings: TMA's type TFLOAT32, as CUTLASS uses it ("TMA converts f32 input to tf32").
How that rounds is documented nowhere; an H200 rounds to nearest, ties to even.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from mlir import ir

from tiledsl.dialects import tile
from tiledsl.dialects.types import like
from tiledsl.transforms.lanes import Lanes, select
from tiledsl.transforms.mma_table import Table
from tiledsl.transforms.rewrite import build, splat

_KEPT = -(1 << 13)
"""Mask of the bits of an f32 that tf32 has: sign, exponent and 10 of the mantissa's 23."""
_HALF = 1 << 12
"""Half a unit in the last place of tf32, among the bits of an f32."""
_OLT = 4
"""`arith.cmpf`'s predicate "ordered and less"."""


# --- rounding ------------------------------------------------------------------------------------


def round_operands(dots: Sequence[tile.DotOp]) -> None:
    """Round the operands of products that cut off bits."""
    known = set(dots)
    made: dict[ir.Value, ir.Value] = {}
    for dot in dots:
        for place in (0, 1):
            value = dot.operation.operands[place]
            load = _box_of(value)
            if load is not None and all(user in known for user in _products_of(load.output)):
                load.operation.attributes["rounds"] = ir.StringAttr.get("tf32")
                continue
            if value not in made:
                made[value] = rounded(value)
            dot.operation.operands[place] = made[value]


def _box_of(value: ir.Value) -> tile.DescriptorLoadOp | None:
    """Return the load of a box that a value is, perhaps transposed."""
    owner = value.owner
    while isinstance(owner, tile.TransOp):
        owner = owner.operation.operands[0].owner
    return owner if isinstance(owner, tile.DescriptorLoadOp) else None


def _products_of(value: ir.Value) -> Iterator[tile.DotOp | None]:
    """Yield the dots that a value, perhaps transposed, is an operand of; None for other users."""
    for use in value.uses:
        user = use.owner
        if isinstance(user, tile.TransOp):
            yield from _products_of(user.operation.results[0])
        else:
            yield user if isinstance(user, tile.DotOp) and use.operand_number < 2 else None


def rounded(value: ir.Value) -> ir.Value:
    """Build a tile such that what tf32 has of it is another one rounded."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        place = ir.InsertionPoint.at_block_begin(owner)
    else:
        place = ir.InsertionPoint.after(owner.operation)
    with place, value.location:
        x = Lanes(value)
        up = (x.bits() + _HALF).bitcast("f32")
        # Twice a NaN is a quiet one, which cutting bits off does not turn into an infinity.
        return select(x.eq(x), up, x + x).value


# --- three products ------------------------------------------------------------------------------


def split_product(op: tile.DotOp, table: Table[Any]) -> None:
    """Turn one dot into three of tf32 operands: high parts, and both mixed products.

    The product of the low parts is below the rounding of the rest. Where the chip has no tf32 the
    full product is no more work than one of the three.
    """
    attributes = op.operation.attributes
    if not any(entry.precision == "tf32" for entry in table.instructions):
        attributes["precision"] = ir.StringAttr.get("ieee")
        return
    before = ir.InsertionPoint(op.operation)
    attributes["precision"] = ir.StringAttr.get("tf32")
    (a, a_high, a_low), (b, b_high, b_low) = _parts(op.a, before), _parts(op.b, before)
    acc = op.acc
    for left, right in ((a_low, b_high), (a_high, b_low)):
        acc = tile.DotOp.build(
            left, right, acc, results=[acc.type], precision="tf32",
            loc=op.operation.location, ip=before,
        ).result  # fmt: skip
    for i, value in enumerate((a, b, acc)):
        op.operation.operands[i] = value


def _parts(value: ir.Value, ip: ir.InsertionPoint) -> list[ir.Value]:
    """Split an f32 tile into parts that tf32 represents exactly: all there is, high and low.

    `high + low` is the value to tf32's precision squared, both 0 where it is not finite: there the
    mixed products must not make a NaN of what is an infinity. All there is is `high`, or what is
    not finite itself.
    """
    loc, type_ = value.location, value.type
    ints = like(type_, ir.IntegerType.get_signless(32))
    flags = like(type_, ir.IntegerType.get_signless(1))
    i64 = ir.IntegerType.get_signless(64)

    def op(name: str, *operands: ir.Value) -> ir.Value:
        return build(name, operands, operands[-1].type, ip, loc)

    zero, infinity = splat(type_, 0.0, ip, loc), splat(type_, math.inf, ip, loc)
    ordered_less = {"predicate": ir.IntegerAttr.get(i64, _OLT)}
    size = op("math.absf", value)
    finite = build("arith.cmpf", [size, infinity], flags, ip, loc, ordered_less)
    bits = build("tile.bitcast", [value], ints, ip, loc)
    cut = op("arith.andi", bits, splat(ints, _KEPT, ip, loc))
    high = build("tile.bitcast", [cut], type_, ip, loc)
    low = op("arith.subf", value, high)
    # Twice a NaN is a quiet one, which cutting bits off does not turn into an infinity.
    whole = op("arith.select", finite, high, op("arith.addf", value, value))
    return [whole, op("arith.select", finite, high, zero), op("arith.select", finite, low, zero)]
