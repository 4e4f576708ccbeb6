"""Multiply what a thread's registers have in common once, and their distances apart.

Rows of a tile lie a stride apart: a thread's rows are one number of its own plus constants, and
each is multiplied by the stride. All of these rows live in registers then, and each takes a
multiplication, of the slow kind, in every trip of a loop that moves along them. Taken apart,

    (a + c) * s  is  a * s + c * s

there is one product a thread and an addition a row. What is added is the same for all threads and
in all trips, and lies in a register that threads share. Integers are taken modulo a power of two,
so sums may wrap.

Before: the `machine` level.
After: the same; no vector of sums of one number and constants is multiplied by one number.

    %i = arith.addi %a, %constants : vector<8xi32>   // %a: %row everywhere
    %o = arith.muli %i, %s : vector<8xi32>           // %s: %stride everywhere
becomes
    %p = arith.muli %row, %stride : i32
    %q = arith.muli %constants, %s : vector<8xi32>
    %o = arith.addi %p_everywhere, %q : vector<8xi32>
"""

from __future__ import annotations

from functools import reduce

from mlir import ir
from mlir.dialects import arith

from tiledsl.dialects.contracts import operations
from tiledsl.targets.gpu import emit


def share_factors(module: ir.Module) -> None:
    """Run the pass described above on `module`, in place."""
    for op in list(operations(module.operation)):
        if op.operation.name == "arith.muli" and emit.is_vector(op.operation.results[0].type):
            left, right = op.operation.operands
            if not _share(op, left, right):
                _share(op, right, left)


def _share(op: ir.OpView, sums: ir.Value, factors: ir.Value) -> bool:
    """Replace a product if it is one of such sums and one number."""
    factor = emit.splatted(factors)
    common: list[ir.Value] = []
    distances: list[ir.Value] = []
    if factor is None or not _sort(sums, common, distances):
        return False
    if len(distances) != 1 or not common:
        return False
    with ir.InsertionPoint(op), op.operation.location:
        once = arith.muli(reduce(arith.addi, common), factor)
        whole = emit.splat(once, emit.registers_of(sums))
        made = arith.addi(whole, arith.muli(distances[0], factors))
    op.operation.results[0].replace_all_uses_with(made)
    op.operation.erase()
    return True


def _sort(sums: ir.Value, common: list[ir.Value], distances: list[ir.Value]) -> bool:
    """Sort a sum's terms into scalars that are in all registers and constants; or say no."""
    op = emit.defining(sums)
    if op is None:
        return False
    if (scalar := emit.splatted(sums)) is not None:
        common.append(scalar)
        return True
    if op.name == "arith.constant":
        distances.append(sums)
        return True
    return op.name == "arith.addi" and all(_sort(v, common, distances) for v in op.operands)
