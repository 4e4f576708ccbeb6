"""Give the operands of `tile.dot` the type that the CPU multiplies and adds in.

There are no matrix instructions here: f16, bf16 and fp8 multiply in f32, and i8 in i32, where the
products and sums of the small types are exact or as exact as any target's. So the operands are
converted as tiles, before the passes that expand conversions.

Before: any `tile` module.
After: the operands and result of each `tile.dot` have one element type, f32, f64 or i32.

    %d = "tile.dot"(%a, %b, %acc) : (tensor<64x32xbf16>, tensor<32x64xbf16>, tensor<64x64xf32>) ->
    ...
becomes
    %x = arith.extf %a : tensor<64x32xbf16> to tensor<64x32xf32>
    %y = arith.extf %b : tensor<32x64xbf16> to tensor<32x64xf32>
    %d = "tile.dot"(%x, %y, %acc) : (tensor<64x32xf32>, tensor<32x64xf32>, tensor<64x64xf32>) -> ...
"""

from __future__ import annotations

from mlir import ir

from tiledsl.dialects import tile
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.types import bit_width, element_of, is_float, like
from tiledsl.targets.host.build import create
from tiledsl.transforms.rewrite import replace_uses_except, retype


def widen_dots(module: ir.Module) -> None:
    """Run the pass described above on `module`, in place."""
    for op in list(operations(module.operation)):
        if isinstance(op, tile.DotOp):
            with ir.InsertionPoint(op), op.location:
                _widen(op)


def _widen(op: tile.DotOp) -> None:
    total = element_of(op.acc.type)
    wide: ir.Type = total
    if is_float(total) and bit_width(total) < 32:
        wide = ir.F32Type.get(total.context)
    signs = (not op.a_unsigned, not op.b_unsigned, True)
    operands = [
        _converted(value, wide, signed)
        for value, signed in zip((op.a, op.b, op.acc), signs, strict=True)
    ]
    for i, operand in enumerate(operands):
        op.operation.operands[i] = operand
    if wide == total:
        return
    result = op.result
    narrow_type = result.type
    retype(result, like(narrow_type, wide))
    with ir.InsertionPoint.after(op):
        narrow = tile.CastOp.build(result, results=[narrow_type])
    replace_uses_except(result, narrow.result, narrow.operation)


def _converted(value: ir.Value, wide: ir.Type, signed: bool) -> ir.Value:
    """Return a tile with another element type, of the same kind and no smaller."""
    if element_of(value.type) == wide:
        return value
    to = like(value.type, wide)
    if is_float(wide):
        return tile.CastOp.build(value, results=[to]).result
    name = "arith.extsi" if signed else "arith.extui"
    return create(name, [value], [to]).results[0]
