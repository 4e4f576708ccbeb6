"""Mathematical functions: which of AMD's instructions are exact enough for what.

`expand_math` leaves an op to the target where it is in `NATIVE` or, with the flag `afn`, in
`APPROXIMATE`. LLVM lowers `exp2` and `log2` to the instruction with its argument or result scaled
where subnormal numbers need it: 1 ulp over the whole range. The plain instructions take subnormal
numbers as zero, which is what `afn` allows.

Source: LLVM's AMDGPUISelLowering (lowerFEXP2, LowerFLOG2) and SIISelLowering (LowerTrig); AMD's ISA
manuals (V_EXP_F32 and its neighbours).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from mlir import ir
from mlir.dialects import math

from tiledsl.targets.gpu import emit

FLOAT_TYPES = frozenset({"f16", "f32", "f64"})
"""What every chip here adds, multiplies and compares in."""

NATIVE = frozenset({("math.exp2", "f32"), ("math.log2", "f32")})
APPROXIMATE = NATIVE | {("math.rsqrt", "f32"), ("math.sin", "f32"), ("math.cos", "f32")}


def native(op: ir.Operation, operands: Sequence[ir.Value]) -> ir.Value | None:
    """Return an op's result built otherwise than op by op; None where LLVM knows the op itself."""
    if op.name == "math.rsqrt":
        return _by_element(partial(_instruction, "rsq"), operands)
    if op.name in _PLAIN and _is_f32(operands[0]) and _may_flush(op):
        return _by_element(partial(_instruction, _PLAIN[op.name]), operands)
    if op.name == "math.copysign":
        # LLVM 22 fails an assertion on <1 x double>; single elements are the same instructions.
        return _by_element(math.copysign, operands)
    return None


_PLAIN = {"math.exp2": "exp2", "math.log2": "log"}
"""The instructions that LLVM does not put in an op's place by itself, not even with `afn`."""


def _may_flush(op: ir.Operation) -> bool:
    """Whether it may take subnormal numbers as zero."""
    flags = str(op.attributes["fastmath"]) if "fastmath" in op.attributes else ""
    return "afn" in flags or "<fast>" in flags


def _is_f32(value: ir.Value) -> bool:
    return emit.scalar_of(value.type) == ir.F32Type.get()


def _instruction(name: str, x: ir.Value) -> ir.Value:
    return emit.intrinsic(f"llvm.amdgcn.{name}", [x], x.type)


def _by_element(make: Callable[..., ir.Value], operands: Sequence[ir.Value]) -> ir.Value:
    columns = zip(*(emit.elements(operand) for operand in operands), strict=True)
    made = [make(*column) for column in columns]
    return emit.from_elements(made) if emit.is_vector(operands[0].type) else made[0]
