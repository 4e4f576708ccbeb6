"""Compare a thread's registers with one bound through what is left of it for the thread.

A ragged mask compares `column < columns`, and a thread's columns are its first one plus constants.
Each comparison adds a constant, then, to a number that differs between threads, and keeps the sum.
Taken from the bound instead, that number is subtracted once, and comparisons are with constants,
which is cheap enough to compare again where a mask is needed again.

With a and c at least 0 and a + c without overflow,

    a + c < n   is   a + c < max(n, 0)   is   c < max(n, 0) - a

Registers may have bounds of their own, as a tile's rows have: as many differ, so many are computed.

Before: the `machine` level.
After: the same; no `slt` or `sge` compares a thread's own number plus constants, all of them known
to be at least 0.

    %i = arith.addi %a, %constants overflow<nsw> : vector<8xi32>  // %a: %thread & 31 everywhere
    %m = arith.cmpi slt, %i, %n : vector<8xi32>                   // %n: %columns everywhere
becomes
    %d = arith.subi %positive_columns, %thread_and_31 : i32
    %m = arith.cmpi slt, %constants, %d_everywhere : vector<8xi32>
"""

from __future__ import annotations

from mlir import ir
from mlir.dialects import arith

from tiledsl.dialects.contracts import operations
from tiledsl.targets.gpu import emit

_PREDICATES = (2, 5)
"""arith's numbers of `slt` and `sge`."""


def share_bounds(module: ir.Module) -> None:
    """Run the pass described above on `module`, in place."""
    for op in list(operations(module.operation)):
        if op.operation.name != "arith.cmpi" or not emit.is_vector(op.operation.operands[0].type):
            continue
        if ir.IntegerAttr(op.operation.attributes["predicate"]).value not in _PREDICATES:
            continue
        sums, bounds = op.operation.operands
        source, order = _shuffled(sums)
        parts, bound = summands(source), emit.splatted(bounds)
        if parts is None:
            continue
        variable, constants = parts
        known = ir.DenseIntElementsAttr(emit.defining(constants).attributes["value"])
        distances = [int(known[i]) for i in range(len(known))]
        if is_nonnegative(variable) and all(distance >= 0 for distance in distances):
            with ir.InsertionPoint(op), op.operation.location:
                if order is not None:
                    constants = emit.constants([distances[i] for i in order], 32)
                number = _number_everywhere(bounds)
                if number is not None:
                    bound = emit.constant(emit.integer(32), max(number, 0))
                    _compare_apart(op, constants, arith.subi(bound, variable))
                    continue
                left = _left(bounds if bound is None else bound, variable)
                if bound is not None:
                    left = emit.splat(left, emit.registers_of(sums))
            op.operation.operands[0] = constants
            op.operation.operands[1] = left


def _number_everywhere(value: ir.Value) -> int | None:
    """Return the number that is in all registers of an i32 constant or some of them, or None."""
    op = emit.defining(value)
    if op is not None and op.name == "vector.shuffle":
        one, other = map(_number_everywhere, op.operands)
        return one if one == other else None
    if op is None or op.name != "arith.constant" or emit.scalar_of(value.type) != emit.integer(32):
        return None
    known = ir.DenseIntElementsAttr(op.attributes["value"])
    return int(known[0]) if known.is_splat else None


def _compare_apart(op: ir.OpView, constants: ir.Value, left: ir.Value) -> None:
    """Replace a comparison by one a register.

    LLVM knows how many threads there are and so the range of what is left of a constant, but uses
    it for scalars only.
    """
    predicate = op.operation.attributes["predicate"]
    made = [arith.cmpi(predicate, one, left) for one in emit.elements(constants)]
    op.operation.results[0].replace_all_uses_with(emit.from_elements(made))
    op.operation.erase()


def _shuffled(sums: ir.Value) -> tuple[ir.Value, list[int] | None]:
    """Return the vector that i32 registers are taken from, and which; None for all of it."""
    op = emit.defining(sums)
    if op is None or op.name != "vector.shuffle" or emit.scalar_of(sums.type) != emit.integer(32):
        return sums, None
    order = [int(i) for i in op.opview.mask]
    if max(order) >= emit.registers_of(op.operands[0]) or min(order) < 0:
        return sums, None
    return op.operands[0], order


def _left(bound: ir.Value, variable: ir.Value) -> ir.Value:
    """Build what is left of a bound, or of one a register, behind a thread's own number."""
    if emit.is_vector(bound.type):
        variable = emit.splat(variable, emit.registers_of(bound))
    return arith.subi(arith.maxsi(bound, emit.zero(bound.type)), variable)


def summands(sums: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """Return a vector as a scalar, everywhere the same, plus constants; None if it is no such sum.

    Only sums that do not wrap count.
    """
    op = emit.defining(sums)
    if op is None or op.name != "arith.addi" or "nsw" not in str(op.attributes["overflowFlags"]):
        return None
    variable, constants = emit.splatted(op.operands[0]), op.operands[1]
    made = emit.defining(constants)
    if variable is None or made is None or made.name != "arith.constant":
        return None
    return variable, constants


def is_nonnegative(value: ir.Value) -> bool:
    """Return whether a scalar integer is at least 0 because of how it is made."""
    op = emit.defining(value)
    if op is None:
        return False
    match op.name:
        case "arith.constant":
            return bool(ir.IntegerAttr(op.attributes["value"]).value >= 0)
        case "arith.andi":
            return any(map(is_nonnegative, op.operands))
        case "arith.ori" | "arith.xori":
            return all(map(is_nonnegative, op.operands))
        case "arith.shrui" | "arith.remui":
            return is_nonnegative(op.operands[0])
        case "arith.addi" | "arith.muli" | "arith.shli":
            unwrapped = "nsw" in str(op.attributes["overflowFlags"])
            return unwrapped and all(map(is_nonnegative, op.operands))
        case _:
            return False
