"""Mathematical functions: which of AMD's instructions are exact enough for what.

`expand_math` leaves an op to the target where it is in `NATIVE` or, with the flag `afn`, in
`APPROXIMATE`. LLVM lowers `exp2` and `log2` to the instruction with its argument or result scaled
where subnormal numbers need it: 1 ulp over the whole range. The plain instructions take subnormal
numbers as zero, which is what `afn` allows.

Source: LLVM's AMDGPUISelLowering (lowerFEXP2, LowerFLOG2) and SIISelLowering (LowerTrig); AMD's ISA
manuals (V_EXP_F32 and its neighbours).
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir

from tiledsl.targets.gpu import emit

FLOAT_TYPES = frozenset({"f16", "f32", "f64"})
"""What every chip here adds, multiplies and compares in."""

NATIVE = frozenset({("math.exp2", "f32"), ("math.log2", "f32")})
APPROXIMATE = NATIVE | {("math.rsqrt", "f32"), ("math.sin", "f32"), ("math.cos", "f32")}


def native(op: ir.Operation, operands: Sequence[ir.Value]) -> ir.Value | None:
    """Return an op's result by an intrinsic; None where LLVM knows the op itself."""
    if op.name != "math.rsqrt":
        return None
    roots = [emit.intrinsic("llvm.amdgcn.rsq", [x], x.type) for x in emit.elements(operands[0])]
    return emit.from_elements(roots) if emit.is_vector(operands[0].type) else roots[0]
