"""Flatten control flow and leave the `llvm` dialect alone, by upstream's own conversions.

Before: the `machine` level.
After: the `llvm` level. A block that called `debug.LEAVE`, since an assertion failed there, ends with a
return of true from its program; nobody declares that function any more.
"""

from __future__ import annotations

from mlir import ir

from tiledsl.dialects.contracts import operations
from tiledsl.targets.host.code import integer
from tiledsl.targets.host.debug import LEAVE
from tiledsl.transforms.run import upstream

_PASSES = (
    "convert-scf-to-cf,convert-vector-to-llvm,convert-math-to-llvm,convert-arith-to-llvm,"
    "convert-func-to-llvm,convert-cf-to-llvm,reconcile-unrealized-casts"
)
_convert = upstream(_PASSES, "convert_to_llvm")


def convert_to_llvm(module: ir.Module) -> None:
    """Run the pass described above on `module`, in place."""
    _convert(module)
    declared = [op for op in module.body.operations if _is_leave(op)]
    if not declared:
        return
    for op in list(operations(module.operation)):
        attributes = op.operation.attributes
        if op.operation.name == "llvm.call" and "callee" in attributes:
            if attributes["callee"].value == LEAVE:
                _end_block_at(op)
    for op in declared:
        op.operation.erase()


def _is_leave(op: ir.OpView) -> bool:
    attributes = op.operation.attributes
    return "sym_name" in attributes and attributes["sym_name"].value == LEAVE


def _end_block_at(call: ir.OpView) -> None:
    block = call.operation.block
    rest = list(block.operations)
    rest = rest[[op.operation for op in rest].index(call.operation) :]
    for op in reversed(rest):
        op.operation.erase()
    at = ir.InsertionPoint(block)
    one = {"value": ir.BoolAttr.get(True)}
    failed = ir.Operation.create("llvm.mlir.constant", results=[integer(1)], attributes=one, ip=at)
    ir.Operation.create("llvm.return", operands=[failed.results[0]], ip=at)
