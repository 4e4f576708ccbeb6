"""Flatten control flow and leave the `llvm` dialect alone, by upstream's own conversions.

Before: the `machine` level.
After: the `llvm` level. A block that called `debug.LEAVE`, since an assertion failed there, ends
with a return of true from its program; nobody declares that function any more.
"""

from __future__ import annotations

from mlir import ir

from tiledsl.dialects.contracts import operations
from tiledsl.targets.host.build import attribute, create, symbol_name
from tiledsl.targets.host.debug import LEAVE
from tiledsl.targets.host.machine_types import integer
from tiledsl.transforms.run import upstream

_PASSES = (
    "convert-scf-to-cf,convert-vector-to-llvm,convert-math-to-llvm,convert-arith-to-llvm,"
    "convert-func-to-llvm,convert-cf-to-llvm,reconcile-unrealized-casts"
)
_convert = upstream(_PASSES, "convert_to_llvm")


def convert_to_llvm(module: ir.Module) -> None:
    """Run the pass described above on `module`, in place."""
    _convert(module)
    declared = [op for op in module.body.operations if symbol_name(op) == LEAVE]
    if not declared:
        return
    for op in list(operations(module.operation)):
        callee = attribute(op, "callee") if op.operation.name == "llvm.call" else None
        if callee is not None and callee.value == LEAVE:
            _end_block_at(op)
    for op in declared:
        op.operation.erase()


def _end_block_at(call: ir.OpView) -> None:
    block = call.operation.block
    rest = list(block.operations)
    rest = rest[[op.operation for op in rest].index(call.operation) :]
    for op in reversed(rest):
        op.operation.erase()
    at = ir.InsertionPoint(block)
    one = {"value": ir.BoolAttr.get(True)}
    failed = create("llvm.mlir.constant", results=[integer(1)], attributes=one, at=at)
    create("llvm.return", [failed.results[0]], at=at)
