"""What an op does besides computing its results: the one place where passes learn it.

Upstream's traits do not reach ops that are declared in IRDL, so purity is our own `Op.pure` flag,
and upstream dialects are known by name.
"""

from __future__ import annotations

from functools import cache

from mlir import ir

from tiledsl.dialects import tgpu, tile
from tiledsl.dialects.op import Op

_PURE_PREFIXES = ("arith.", "math.")
_TRAPPING = frozenset({"divsi", "divui", "remsi", "remui", "ceildivsi", "ceildivui", "floordivsi"})
_CONTROL = frozenset({"scf.for", "scf.if", "scf.while"})
TERMINATORS = frozenset({"scf.yield", "scf.condition", "func.return"})


def is_pure(op: ir.OpView) -> bool:
    """Whether the results depend on operands and attributes alone and nothing else happens."""
    return _is_pure(type(op), op.operation.name)


@cache
def _is_pure(kind: type[ir.OpView], name: str) -> bool:
    return kind.pure if issubclass(kind, Op) else name.startswith(_PURE_PREFIXES)


def is_speculatable(op: ir.OpView) -> bool:
    """Whether a pure op may run where the program would not have run it.

    Integer division by zero, or of the least value by -1, is undefined upstream; it may be
    speculated only with a constant divisor that is neither.
    """
    dialect, _, name = op.operation.name.partition(".")
    if dialect != "arith" or name not in _TRAPPING:
        return True
    divisor = op.operation.operands[1].owner
    if isinstance(divisor, ir.Block) or divisor.operation.name != "arith.constant":
        return False
    value = divisor.operation.attributes["value"]
    if isinstance(value, ir.DenseElementsAttr):
        value = value.get_splat_value() if value.is_splat else value
    return isinstance(value, ir.IntegerAttr) and value.value not in (0, -1)


def is_plain_load(op: ir.OpView) -> bool:
    """Whether `op` only reads global memory, and need not do so as often as it is written."""
    return isinstance(op, tile.LoadOp) and not op.volatile


def is_control(op: ir.OpView) -> bool:
    """Whether `op` is a loop or a branch."""
    return op.operation.name in _CONTROL


def is_removable(op: ir.OpView) -> bool:
    """Whether an op, its regions aside, does nothing if its results are not used."""
    return is_pure(op) or is_plain_load(op) or isinstance(op, tgpu.LocalLoadOp | tgpu.AllocOp)
