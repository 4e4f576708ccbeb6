"""Compute in f32 what a target cannot compute in a small float type.

bf16 and fp8 are storage types on most machines, f16 on some. An operation on them becomes the same
operation on f32 with its result cast back: one rounding an operation, as NumPy and `ml_dtypes` do.
For +, -, *, / and sqrt the result is the correctly rounded one, f32 having more than twice the
significand (Figueroa, "When is double rounding innocuous?"); a fused multiply-add and the
transcendental functions may round twice. Sign changes and absolute values work on the bits.

What only moves elements (select, loads, shape ops) stays, and so does `tile.dot`. Combine functions
of reductions and scans are functions of the module like any other and are promoted with it.

Before: any valid module at the tile level.
After: `arith` and `math` float operations and comparisons are on types in `native` only.
Conversions are left to `expand_casts`.

    %z = arith.addf %x, %y : tensor<64xbf16>
becomes, where bf16 is not native,
    %a = arith.extf %x : tensor<64xbf16> to tensor<64xf32>
    %b = arith.extf %y : tensor<64xbf16> to tensor<64xf32>
    %c = arith.addf %a, %b : tensor<64xf32>
    %z = "tile.cast"(%c) : (tensor<64xf32>) -> tensor<64xbf16>
"""

from __future__ import annotations

from typing import Any, cast

from mlir import ir

from tiledsl.dialects.contracts import operations
from tiledsl.transforms.expand_math import EVERYWHERE
from tiledsl.transforms.lanes import Lanes, element, scalar_type, with_element

_COMPUTING = frozenset(
    f"arith.{name}"
    for name in (
        *("addf", "subf", "mulf", "divf", "remf", "negf", "cmpf"),
        *("maximumf", "minimumf", "maxnumf", "minnumf", "sitofp", "uitofp"),
    )
)

_FUNCTIONS = frozenset({"f32", "f64"})


def promote_floats(module: ir.Module, native: frozenset[str] = frozenset({"f32", "f64"})) -> None:
    """Run the pass described above on `module`, in place.

    Args:
        module: What to change.
        native: Names of the float types that the target computes in, "f32" among them. Functions
            such as exp, and remainders, are computed in f32 and f64 on any target.
    """
    for op in list(operations(module.operation)):
        name = op.operation.name
        is_function = name == "arith.remf" or (name.startswith("math.") and name not in EVERYWHERE)
        if name not in _COMPUTING and not name.startswith("math."):
            continue
        small = _small_type(op, _FUNCTIONS if is_function else native)
        if small is None:
            continue
        with ir.InsertionPoint(op), op.location:
            result = _on_bits(op, small) or _promoted(op, small)
        op.operation.results[0].replace_all_uses_with(result.value)
        op.operation.erase()


def _small_type(op: ir.OpView, native: frozenset[str]) -> ir.FloatType | None:
    """Return the float type of the op that is not native, or None."""
    for value in (*op.operation.operands, *op.operation.results):
        type_ = element(value.type)
        if isinstance(type_, ir.FloatType) and str(type_) not in native:
            return type_
    return None


def _on_bits(op: ir.OpView, small: ir.FloatType) -> Lanes | None:
    """Do an operation that touches the sign alone."""
    sign = 1 << (small.width - 1)
    bits = [Lanes(operand).bits() for operand in op.operation.operands] if _signs(op) else []
    match op.operation.name:
        case "arith.negf":
            made = bits[0] ^ sign
        case "math.absf":
            made = bits[0] & ~sign
        case "math.copysign":
            made = (bits[0] & ~sign) | (bits[1] & sign)
        case _:
            return None
    return made.bitcast(str(small))


def _signs(op: ir.OpView) -> bool:
    return op.operation.name in ("arith.negf", "math.absf", "math.copysign")


def _promoted(op: ir.OpView, small: ir.FloatType) -> Lanes:
    """Build the op on f32, between casts; attributes (predicates, fast-math flags) are kept."""
    f32 = scalar_type("f32", small.context)

    def is_small(value: ir.Value) -> bool:
        return element(value.type) == small

    operands = [
        Lanes(v).convert("arith.extf", "f32").value if is_small(v) else v
        for v in op.operation.operands
    ]
    [result] = op.operation.results
    type_ = with_element(result.type, f32) if is_small(result) else result.type
    # The bindings' stubs leave the attributes' types open.
    held, create = cast("Any", op.operation.attributes), cast("Any", ir.Operation).create
    attributes = {name: held[name] for name in held}
    made = Lanes(
        create(
            op.operation.name, results=[type_], operands=operands, attributes=attributes
        ).results[0]
    )
    return made.convert("tile.cast", str(small)) if is_small(result) else made
