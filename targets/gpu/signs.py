"""Guess from how a vector of floats is made whether any of them is negative.

A guess, for choosing between two ways that are both right: whoever asks tests at run time. So it
takes exponentials for what they are, though their instructions are opaque calls, and looks no
further than a few ops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlir import ir

_DEPTH = 8
"""Ops to look through; a chain that is longer has met an exponential before, or none."""
_EXPONENTIALS = ("llvm.nvvm.ex2.", "llvm.exp2", "llvm.exp.", "llvm.amdgcn.exp2")
"""How the names of their intrinsics begin."""


def is_hardly_negative(value: ir.Value, depth: int = _DEPTH) -> bool:
    """Return whether a float, or every float of a vector, is probably 0 or more, or NaN."""
    owner: Any = value.owner
    if isinstance(owner, ir.Block) or not depth:
        return False
    rule = _RULES.get(owner.name)
    return rule is not None and rule(owner, depth - 1)


def _always(op: Any, depth: int) -> bool:
    del op, depth
    return True


def _all(op: Any, depth: int) -> bool:
    values = list(dict.fromkeys(v for v in op.operands if _is_float(v)))
    return all(is_hardly_negative(value, depth) for value in values)


def _any(op: Any, depth: int) -> bool:
    return any(is_hardly_negative(value, depth) for value in op.operands)


def _product(op: Any, depth: int) -> bool:
    first, second = op.operands
    return first == second or _all(op, depth)


def _called(op: Any, depth: int) -> bool:
    del depth
    return ir.StringAttr(op.attributes["intrin"]).value.startswith(_EXPONENTIALS)


def _constant(op: Any, depth: int) -> bool:
    del depth
    value = op.attributes["value"]
    if isinstance(value, ir.FloatAttr):
        return value.value >= 0
    return isinstance(value, ir.DenseFPElementsAttr) and all(number >= 0 for number in value)


def _from_bits(op: Any, depth: int) -> bool:
    """A power of two is made by shifting its exponent to its place."""
    del depth
    source: Any = op.operands[0].owner
    return not isinstance(source, ir.Block) and source.name == "arith.shli"


def _is_float(value: ir.Value) -> bool:
    type_ = value.type
    element = type_.element_type if isinstance(type_, ir.VectorType) else type_
    return isinstance(element, ir.FloatType)


_RULES: dict[str, Callable[[Any, int], bool]] = {
    "arith.addf": _all,
    "arith.bitcast": _from_bits,
    "arith.constant": _constant,
    "arith.divf": _all,
    "arith.extf": _all,
    "arith.maximumf": _any,
    "arith.maxnumf": _any,
    "arith.mulf": _product,
    "arith.select": _all,
    "arith.truncf": _all,
    "arith.uitofp": _always,
    "llvm.call_intrinsic": _called,
    "math.absf": _always,
    "math.exp": _always,
    "math.exp2": _always,
    "math.sqrt": _always,
    "vector.bitcast": _from_bits,
    "vector.broadcast": _all,
    "vector.extract": _all,
    "vector.extract_strided_slice": _all,
    "vector.from_elements": _all,
    "vector.shuffle": _all,
}
