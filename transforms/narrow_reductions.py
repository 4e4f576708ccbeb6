"""Find maxima and minima in the type that values are loaded in, not in the one they are widened to.

Kernels widen half precision to f32 as soon as it is loaded, and then reduce. The greatest of the
widened numbers is the widened greatest one, so that the reduction may come first: it combines two
halves an instruction, and fewer bytes cross between threads.

Before: any valid `tile` module.
After: no reduction for a maximum or minimum has an `arith.extf` from a type in `native` as its
source. Nothing else changes.

    %w = arith.extf %x : tensor<64xbf16> to tensor<64xf32>
    %m = "tile.reduce"(%w) {combine = @max_f32, kind = "max", ...} : ... -> f32
becomes
    %w = arith.extf %x : tensor<64xbf16> to tensor<64xf32>
    %n = "tile.reduce"(%x) {combine = @max_f32_bf16, kind = "max", ...} : ... -> bf16
    %m = arith.extf %n : bf16 to f32
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from mlir import ir

from tiledsl.dialects import tile
from tiledsl.dialects.context import parse
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.op import Symbol
from tiledsl.dialects.types import element_of, like
from tiledsl.transforms.rewrite import build

_SELECTING = frozenset(f"arith.{name}" for name in ("maximumf", "minimumf", "maxnumf", "minnumf"))
"""Ops whose result is one of the operands, the same one after both are widened."""


def narrow_reductions(module: ir.Module, native: Set[str]) -> None:
    """Run the pass described above on `module`, in place.

    Args:
        module: What to change.
        native: Names of the float types that the target finds maxima of.
    """
    for op in list(operations(module.operation)):
        if isinstance(op, tile.ReduceOp) and op.kind in ("max", "min"):
            narrow = _before_widening(op)
            if narrow is not None and str(element_of(narrow.type)) in native:
                _reduce_narrow(module, op, narrow)


def _before_widening(op: tile.ReduceOp) -> ir.Value | None:
    """Return what a reduction's source was widened from, or None."""
    source, *more = op.sources
    owner: Any = source.owner
    if more or isinstance(owner, ir.Block) or owner.name != "arith.extf":
        return None
    return owner.operands[0]


def _reduce_narrow(module: ir.Module, op: tile.ReduceOp, narrow: ir.Value) -> None:
    element = element_of(narrow.type)
    combine = _narrow_combine(module, op.combine, element)
    if combine is None:
        return
    (result,) = op.results_
    ip, loc = ir.InsertionPoint(op.operation), op.operation.location
    made = tile.ReduceOp.build(
        [narrow],
        results=[like(result.type, element)],
        axis=op.axis,
        combine=combine,
        kind=op.kind,
        loc=loc,
        ip=ip,
    )
    wide = build("arith.extf", [made.results_[0]], result.type, ip, loc)
    result.replace_all_uses_with(wide)
    op.operation.erase()


def _narrow_combine(module: ir.Module, name: str, element: ir.Type) -> Symbol | None:
    """Return the combine function of that name for another type, or None if it is no selection."""
    functions = {f.operation.attributes["sym_name"].value: f for f in _functions(module)}
    made = Symbol(f"{name}_{element}")
    if made in functions:
        return made
    first, *rest = functions[name].operation.regions[0].blocks[0].operations
    if len(rest) != 1 or first.operation.name not in _SELECTING:
        return None
    text = f"""
        func.func private @{made}(%a: {element}, %b: {element}) -> {element} {{
          %c = {first.operation.name} %a, %b : {element}
          return %c : {element}
        }}"""
    holder = parse(text)
    module.body.append(holder.body.operations[0].detach_from_parent())
    return made


def _functions(module: ir.Module) -> list[Any]:
    return [op for op in module.body.operations if op.operation.name == "func.func"]
