"""fp8 to f32 in integer arithmetic on vectors of bytes, exactly, on any machine.

Casts at the tile level are expanded there where a chip lacks them; this serves products that are
done by fused multiply-adds, whose operands stay fp8 until the registers are taken apart.
"""

from __future__ import annotations

from mlir import ir
from mlir.dialects import arith

from tiledsl.targets.gpu import emit
from tiledsl.targets.gpu.emit import constant, integer

_SIGN, _MAGNITUDE = 0x80, 0x7F
_E4M3_NAN = 0x7F
_F32_NAN = 0x7FC00000


def to_f32(value: ir.Value, source: ir.Type) -> ir.Value:
    """Return a vector of fp8, held as i8, as f32."""
    if str(source) == "f8E5M2":
        # The upper half of an f16.
        wide = arith.extui(emit.resized(value.type, integer(16)), value)
        shifted = arith.shli(wide, constant(wide.type, 8))
        half = emit.bitcast(shifted, ir.F16Type.get())
        return arith.extf(emit.resized(value.type, ir.F32Type.get()), half)
    return _from_e4m3(value)


def _from_e4m3(value: ir.Value) -> ir.Value:
    """Shift exponent and significand into f32's places; a product mends the exponent's bias."""
    bits = arith.extui(emit.resized(value.type, integer(32)), value)

    def number(n: int) -> ir.Value:
        return constant(bits.type, n)

    magnitude = arith.andi(bits, number(_MAGNITUDE))
    shifted = emit.bitcast(arith.shli(magnitude, number(20)), ir.F32Type.get())
    # The bias is 127 in f32 and 7 in e4m3.
    scaled = arith.mulf(shifted, constant(shifted.type, 2.0**120))
    is_nan = emit.compare("eq", magnitude, number(_E4M3_NAN))
    finite = emit.bitcast(scaled, integer(32))
    chosen = emit.select(is_nan, number(_F32_NAN), finite)
    sign = arith.shli(arith.andi(bits, number(_SIGN)), number(24))
    return emit.bitcast(arith.ori(chosen, sign), ir.F32Type.get())
