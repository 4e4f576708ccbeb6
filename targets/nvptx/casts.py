"""Conversions of floats that NVIDIA's chips have instructions for, with `tile.cast`'s meaning.

`expand_casts` leaves to the target what `native` lists. fp8 is converted two elements at a time.
Float to integer saturates in hardware; NaN gives 0 from f32 to 32 bits and the most negative value
elsewhere (LLVM's constant folder agrees), which a select mends.
"""

from __future__ import annotations

from functools import cache

from mlir import ir
from mlir.dialects import arith

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.gpu import emit
from tiledsl.targets.gpu.emit import integer, vector_of
from tiledsl.targets.gpu.types import is_fp8
from tiledsl.targets.nvptx.chips import Chip
from tiledsl.transforms.expand_casts import Conversions

_FLOATS = ("f16", "f32", "f64")
_FP8 = {"f8E4M3FN": "e4m3x2", "f8E5M2": "e5m2x2"}
_TO_INTEGER = {
    ("f32", "i32"): "f2i",
    ("f32", "u32"): "f2ui",
    ("f32", "i64"): "f2ll",
    ("f32", "u64"): "f2ull",
    ("f64", "i32"): "d2i",
    ("f64", "u32"): "d2ui",
    ("f64", "i64"): "d2ll",
    ("f64", "u64"): "d2ull",
}


@cache
def native(chip: Chip) -> Conversions:
    """Return the conversions that `cast` takes."""
    floats = {(a, b) for a in _FLOATS for b in _FLOATS if a != b}
    floats |= {("bf16", "f32"), ("f32", "bf16")}
    if chip.fp8_convert:
        for fp8 in _FP8:
            floats |= {("f32", fp8), ("f16", fp8), (fp8, "f16"), (fp8, "f32")}
    return frozenset(floats | set(_TO_INTEGER))


def cast(chip: Chip, value: ir.Value, source: ir.Type, result: ir.Type, signed: bool) -> ir.Value:
    """Return `value` as `result`; see `Machine.cast`."""
    name = str(result)
    if not signed and name.startswith("i"):
        name = "u" + name[1:]
    if (str(source), name) not in native(chip):
        raise CompilerBug(f"expected a conversion that {chip.name} has, found {source} to {name}")
    if is_fp8(result):
        return _to_fp8(value, str(source), str(result))
    if is_fp8(source):
        return _from_fp8(value, str(source), result)
    if isinstance(result, ir.IntegerType):
        return _to_integer(value, str(source), name, result)
    wanted = emit.resized(value.type, result)
    narrower = emit.width_of(result) < emit.width_of(source)
    return arith.truncf(wanted, value) if narrower else arith.extf(wanted, value)


def _to_integer(value: ir.Value, source: str, name: str, result: ir.Type) -> ir.Value:
    intrinsic = f"llvm.nvvm.{_TO_INTEGER[source, name]}.rz"
    made = [emit.intrinsic(intrinsic, [x], result) for x in emit.elements(value)]
    whole = emit.from_elements(made) if emit.is_vector(value.type) else made[0]
    if (source, emit.width_of(result)) == ("f32", 32):
        return whole
    is_nan = arith.cmpf(arith.CmpFPredicate.UNO, value, value)
    return emit.select(is_nan, emit.zero(whole.type), whole)


def _pairs(value: ir.Value) -> tuple[list[ir.Value], int]:
    """Return the elements, one more where their number is odd, and their number."""
    parts = emit.elements(value)
    return (parts + parts[-1:] if len(parts) % 2 else parts), len(parts)


def _to_fp8(value: ir.Value, source: str, result: str) -> ir.Value:
    parts, count = _pairs(value)
    pairs: list[ir.Value] = []
    for low, high in zip(parts[::2], parts[1::2], strict=True):
        if source == "f16":
            both = [emit.from_elements([low, high])]
            name = f"llvm.nvvm.f16x2.to.{_FP8[result]}.rn"
        else:
            # The first operand becomes the upper half.
            both = [high, low]
            name = f"llvm.nvvm.ff.to.{_FP8[result]}.rn"
        pairs.append(emit.intrinsic(name, both, integer(16)))
    made = emit.bitcast(emit.from_elements(pairs), integer(8))
    return _shaped(made, count, value)


def _from_fp8(value: ir.Value, source: str, result: ir.Type) -> ir.Value:
    parts, count = _pairs(value)
    words = emit.elements(emit.bitcast(emit.from_elements(parts), integer(16)))
    f16 = ir.F16Type.get()
    name = f"llvm.nvvm.{_FP8[source]}.to.f16x2.rn"
    pairs = [emit.intrinsic(name, [word], vector_of(2, f16)) for word in words]
    made = _shaped(emit.concatenate(pairs), count, value)
    return made if result == f16 else arith.extf(emit.resized(made.type, result), made)


def _shaped(whole: ir.Value, count: int, like: ir.Value) -> ir.Value:
    """Return the first `count` registers, or the first alone where `like` is a scalar."""
    return emit.part(whole, 0, count) if emit.is_vector(like.type) else emit.extract(whole, 0)
