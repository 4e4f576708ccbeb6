"""What the lowering of `tgpu` may rely on, checked op by op."""

from __future__ import annotations

from mlir import ir

from tiledsl.dialects import tgpu, tile
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_mma import fma_operands
from tiledsl.dialects.layout_reduce import plan_reduction
from tiledsl.dialects.layout_shape import (
    broadcast_registers,
    drop_axis,
    register_map,
    splittable,
)
from tiledsl.dialects.layouts import Layouts
from tiledsl.dialects.types import is_tile
from tiledsl.transforms.conversion_plan import ThroughShared, plan_conversion
from tiledsl.transforms.layout_rules import forward, is_elementwise
from tiledsl.transforms.ordered import is_ordered

_ALIKE = (
    tile.LoadOp,
    tile.StoreOp,
    tile.AtomicRmwOp,
    tile.AtomicCasOp,
    tile.PrintOp,
    tile.AssertOp,
)


def fault(module: ir.Module, shared: bool = False) -> str | None:
    """Give the first op that breaks a rule, None if there is none.

    Args:
        module: At the `tgpu` level.
        shared: Whether `share_conversions` has run.
    """
    layouts = Layouts(module)
    for op in operations(module.operation):
        wrong = _fault(op, layouts) or (_crosses_warps(op, layouts) if shared else None)
        if wrong:
            return f"{wrong}: {op}"
    return None


def _tiles(values: object, layouts: Layouts) -> list[LinearLayout]:
    return [layouts.of(v.type) for v in values if is_tile(v.type)]  # type: ignore[attr-defined]


def _fault(op: ir.OpView, layouts: Layouts) -> str | None:
    operands = _tiles(op.operation.operands, layouts)
    results = _tiles(op.operation.results, layouts)
    match op:
        case tile.ReduceOp() | tgpu.PartialReduceOp():
            if len(set(operands)) != 1:
                return "sources in different layouts"
            if op.kind == "" and not is_ordered(operands[0], op.axis):
                return "not in order"
            if isinstance(op, tile.ReduceOp) and results:
                wanted = drop_axis(operands[0], op.axis).layout
                return None if set(results) == {wanted} else "not the reduced layout"
            return None
        case tile.ScanOp():
            alike = len({*operands, *results}) == 1
            ordered = is_ordered(operands[0], op.axis, across_warps=False)
            return None if alike and ordered else "not in order"
        case tile.BroadcastOp():
            moved = broadcast_registers(operands[0], results[0]) is None
            return "data moves" if moved else None
        case tgpu.FmaDotOp():
            wanted = fma_operands(operands[2], operands[0].shape[-1])
            held = (wanted.a, wanted.b, results[0])
            return None if tuple(operands) == held else "not the operands of FMAs"
        case tile.SplitOp() if splittable(operands[0]) != operands[0]:
            return "halves in different threads"
        case tgpu.ConvertLayoutOp() | tgpu.MmaOp() | tile.DotOp():
            return "a dot" if isinstance(op, tile.DotOp) else None
        case _:
            return _plain_fault(op, operands, results)


def _plain_fault(
    op: ir.OpView, operands: list[LinearLayout], results: list[LinearLayout]
) -> str | None:
    if not operands or op.operation.name.startswith(("scf.", "tgpu.")):
        return None
    if len(set(operands)) != 1:
        return "operands in different layouts"
    if isinstance(op, _ALIKE) or is_elementwise(op):
        return None if {*operands, *results} == set(operands) else "another layout"
    wanted = forward(op, operands[0])
    moved = any(register_map(wanted, result) is None for result in results)
    return "data moves" if moved else None


def _crosses_warps(op: ir.OpView, layouts: Layouts) -> str | None:
    match op:
        case tgpu.ConvertLayoutOp():
            plan = plan_conversion(layouts.of(op.source.type), layouts.of(op.tile.type))
            return "through shared memory" if isinstance(plan, ThroughShared) else None
        case tile.ReduceOp():
            plan = plan_reduction(layouts.of(op.sources[0].type), op.axis)
            return "across warps" if plan.cross_warp else None
        case _:
            return None
