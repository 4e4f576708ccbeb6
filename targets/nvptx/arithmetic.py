"""NVIDIA's instructions for mathematical functions, and which of them are exact enough.

`expand_math` leaves an op to the target where it is in `NATIVE` (at most 2 ulp of error over the
whole range, subnormal numbers included; PTX ISA, and CUDA C++ Programming Guide, "Mathematical
Functions") or, with the flag `afn`, in `APPROXIMATE`. With the flag `exp2` is one instruction that
takes subnormal numbers for zero; without it ptxas puts three around it.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir
from mlir.dialects import arith, llvm

from tiledsl.dialects.types import element_of
from tiledsl.targets.gpu import emit
from tiledsl.targets.gpu.emit import scalar_of
from tiledsl.targets.nvptx.chips import Chip

Functions = frozenset[tuple[str, str]]

NATIVE: Functions = frozenset({("math.exp2", "f32"), ("math.rsqrt", "f32")})
APPROXIMATE: Functions = NATIVE | {
    ("math.log2", "f32"),
    ("math.sin", "f32"),
    ("math.cos", "f32"),
    ("math.tanh", "f32"),
}

_INTRINSICS = {
    "math.exp2": "llvm.nvvm.ex2.approx",
    "math.exp2 afn": "llvm.nvvm.ex2.approx.ftz",
    "math.log2": "llvm.nvvm.lg2.approx.f",
    "math.rsqrt": "llvm.nvvm.rsqrt.approx.f",
    "math.sin": "llvm.nvvm.sin.approx.f",
    "math.cos": "llvm.nvvm.cos.approx.f",
}


def float_types(chip: Chip) -> frozenset[str]:
    """Return the float types that the chip adds, multiplies and compares in."""
    return frozenset({"f16", "f32", "f64", *(("bf16",) if chip.native_bf16 else ())})


def native(chip: Chip, op: ir.Operation, operands: Sequence[ir.Value]) -> ir.Value | None:
    """Return an op's result by the chip's own instruction; None where LLVM knows what to do."""
    del chip
    if op.name == "arith.extf" and scalar_of(operands[0].type) == ir.BF16Type.get():
        return _widened(operands[0], element_of(op.results[0].type))
    name = _INTRINSICS.get(f"{op.name} afn" if _may_approximate(op) else op.name)
    name = name or _INTRINSICS.get(op.name)
    if scalar_of(operands[0].type) != ir.F32Type.get():
        return None
    if op.name == "math.tanh":
        # It reaches the chip only where the approximation is asked for, and LLVM's own op with
        # this flag is the one way to its instruction.
        return llvm.intr_tanh(operands[0], fastmath_flags=ir.Attribute.parse("#llvm.fastmath<afn>"))
    return None if name is None else each(name, operands)


def _widened(value: ir.Value, wide: ir.Type) -> ir.Value | None:
    """Return bf16 as f32 by one instruction each; LLVM takes the upper one of two apart first."""
    if not emit.is_vector(value.type) or emit.registers_of(value) % 2 or wide != ir.F32Type.get():
        return None
    pairs = emit.bitcast(value, emit.integer(32))
    count = emit.registers_of(pairs)
    low = arith.shli(pairs, emit.constant(pairs.type, 16))
    high = arith.andi(pairs, emit.constant(pairs.type, 0xFFFF0000))
    order = [i // 2 + count * (i % 2) for i in range(2 * count)]
    return emit.bitcast(emit.shuffle(low, order, high), wide)


def _may_approximate(op: ir.Operation) -> bool:
    """Whether subnormal operands and results may be zeros."""
    flags = str(op.attributes["fastmath"]) if "fastmath" in op.attributes else ""
    return "afn" in flags or "<fast>" in flags


def each(name: str, operands: Sequence[ir.Value]) -> ir.Value:
    """Call an intrinsic on scalars for each register; the result is of the operands' type."""
    type_ = operands[0].type
    columns = zip(*(emit.elements(value) for value in operands), strict=True)
    made = [emit.intrinsic(name, column, scalar_of(type_)) for column in columns]
    return emit.from_elements(made) if emit.is_vector(type_) else made[0]
