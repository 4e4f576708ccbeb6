"""Take through shared memory what has to change warps, explicitly.

Four things do. Afterwards each is a buffer, a store and a load, which the passes that follow can
swizzle, place and separate by barriers like any others:

- A `tgpu.convert_layout` that neither registers nor shuffles can do.
- A reduction along an axis that several warps share: each warp reduces what it has
  (`tgpu.partial_reduce`), and all read the partial results and combine them.
- What products of warpgroups read in shared memory.
- The result of an atomic, which only the first holder of each element has, for the other holders;
  and of a volatile load, which holders that read at different times might see differently.

Loads stand as late as they can, so that several conversions in a row need one barrier.

Before: the `tgpu` level.
After: every `tgpu.convert_layout` stays within warps; every `tile.reduce` does too.

    %b = "tgpu.convert_layout"(%a) : (tensor<64x64xf16, @x>) -> tensor<64x64xf16, @y>
becomes
    %s = "tgpu.alloc"() : () -> !tgpu.shared<tensor<64x64xf16, @shared0>>
    "tgpu.local_store"(%a, %s) : ...
    %b = "tgpu.local_load"(%s) : ... -> tensor<64x64xf16, @y>
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir

from tiledsl.dialects import tgpu, tile
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_reduce import CrossWarpStep, over_lanes, plan_reduction
from tiledsl.dialects.layouts import Layouts
from tiledsl.dialects.op import Symbol
from tiledsl.dialects.types import (
    element_of,
    is_tile,
    shape_of,
    shared_type,
    storage_bits,
    tile_type,
)
from tiledsl.transforms.conversion_plan import ThroughShared, plan_conversion
from tiledsl.transforms.rewrite import is_used, replace_uses_except, sink
from tiledsl.transforms.shared_access import NVIDIA, SharedMemory
from tiledsl.transforms.shared_uses import reads_shared

_MANY_WARPS = 32
"""Partial results from which on lanes combine them sooner than each thread by itself."""


def share_conversions(
    module: ir.Module,
    *,
    memory: SharedMemory = NVIDIA,
    matrix_loads: bool = False,
    matrix_stores: bool = False,
) -> None:
    """Run the pass described above on `module`, in place.

    Args:
        module: The module.
        memory: The chip's banks.
        matrix_loads: Whether the chip has `ldmatrix`.
        matrix_stores: Whether the chip has `stmatrix`.
    """
    layouts = Layouts(module)
    shared_operands: dict[ir.Value, ir.Value] = {}
    for op in list(operations(module.operation)):
        match op:
            case tgpu.ConvertLayoutOp():
                source, result = layouts.of(op.source.type), layouts.of(op.tile.type)
                plan = plan_conversion(
                    source,
                    result,
                    storage_bits(op.source.type),
                    memory=memory,
                    matrix_loads=matrix_loads,
                    matrix_stores=matrix_stores,
                )
                if isinstance(plan, ThroughShared):
                    _share_conversion(op, plan.choice.layout, layouts)
            case tile.ReduceOp():
                plan = plan_reduction(layouts.of(op.sources[0].type), op.axis)
                if plan.cross_warp is not None:
                    _share_reduction(op, plan.cross_warp, layouts)
            case tgpu.WarpgroupMmaOp():
                for place in (0, 1):
                    if reads_shared(op, place) and is_tile(op.operation.operands[place].type):
                        _share_operand(op, place, shared_operands, layouts)
            case tile.AtomicRmwOp() | tile.AtomicCasOp():
                _share_result(op, op.old, layouts)
            case tile.LoadOp() if op.volatile:
                _share_result(op, op.result, layouts)
            case _:
                pass


def _alloc(held: ir.Type, at: ir.Operation, loc: ir.Location) -> ir.Value:
    return tgpu.AllocOp.build(results=[shared_type(held)], loc=loc, ip=ir.InsertionPoint(at)).buffer


def _through_shared(
    value: ir.Value, shared: LinearLayout, result: ir.Type, at: ir.Operation, layouts: Layouts
) -> tgpu.LocalLoadOp:
    """Store a tile before `at` and load it as `result`."""
    loc = at.location
    held = tile_type(shape_of(result), element_of(result), layouts.name(shared, "shared"))
    buffer = _alloc(held, at, loc)
    tgpu.LocalStoreOp.build(value, buffer, loc=loc, ip=ir.InsertionPoint(at))
    return tgpu.LocalLoadOp.build(buffer, results=[result], loc=loc, ip=ir.InsertionPoint(at))


def _share_conversion(op: tgpu.ConvertLayoutOp, shared: LinearLayout, layouts: Layouts) -> None:
    loaded = _through_shared(op.source, shared, op.tile.type, op.operation, layouts)
    op.tile.replace_all_uses_with(loaded.tile)
    op.operation.erase()
    sink(loaded.operation)


def _share_operand(
    op: tgpu.WarpgroupMmaOp, place: int, made: dict[ir.Value, ir.Value], layouts: Layouts
) -> None:
    """Store an operand where it is made, out of loops that only use it; once for all products."""
    tile_ = op.operation.operands[place]
    if tile_ not in made:
        owner = tile_.owner
        if isinstance(owner, ir.Block):
            at = ir.InsertionPoint.at_block_begin(owner)
        else:
            at = ir.InsertionPoint.after(owner.operation)
        shared = LinearLayout.identity(shape_of(tile_.type))
        held = layouts.apply(tile_.type, shared, "shared")
        loc = op.operation.location
        buffer = tgpu.AllocOp.build(results=[shared_type(held)], loc=loc, ip=at).buffer
        tgpu.LocalStoreOp.build(tile_, buffer, loc=loc, ip=at)
        made[tile_] = buffer
    op.operation.operands[place] = made[tile_]


def _share_reduction(op: tile.ReduceOp, step: CrossWarpStep, layouts: Layouts) -> None:
    operation = op.operation
    loc, before = operation.location, ir.InsertionPoint(operation)
    sources: list[ir.Value] = op.sources
    elements = [element_of(value.type) for value in sources]
    shape = step.partial.shape

    def types(layout: LinearLayout) -> list[ir.Type]:
        name = layouts.name(layout)
        return [tile_type(shape, element, name) for element in elements]

    flags = {"combine": Symbol(op.combine), "kind": op.kind}
    partial = tgpu.PartialReduceOp.build(
        sources, results=types(step.partial), axis=op.axis, loc=loc, ip=before, **flags
    )
    shared = LinearLayout.identity(shape)
    # Named combinations may be made in any order, others only in that of the axis.
    spread = over_lanes(step.gathered) if op.kind and shape[0] >= _MANY_WARPS else None
    loaded = [
        _through_shared(value, shared, type_, operation, layouts)
        for value, type_ in zip(partial.results_, types(spread or step.gathered), strict=True)
    ]
    results = [value.type for value in operation.results]
    whole = tile.ReduceOp.build(
        [one.tile for one in loaded], results=results, axis=0, loc=loc, ip=before, **flags
    )
    for one in loaded:
        sink(one.operation)
    _replace(operation, whole.operation.results)


def _share_result(op: ir.OpView, old: ir.Value, layouts: Layouts) -> None:
    if not is_used(old):
        return
    if is_tile(old.type):
        free = layouts.of(old.type).free_masks()
        if not (free["lane"] or free["warp"] or free["block"]):
            return
    shape = shape_of(old.type) or (1,)
    shared = layouts.name(LinearLayout.identity(shape), "shared")
    after = ir.InsertionPoint.after(op.operation)
    loc = op.operation.location
    held = tile_type(shape, element_of(old.type), shared)
    buffer = tgpu.AllocOp.build(results=[shared_type(held)], loc=loc, ip=after).buffer
    result = tgpu.ShareResultOp.build(old, buffer, results=[old.type], loc=loc, ip=after)
    replace_uses_except(old, result.result, result.operation)


def _replace(op: ir.Operation, values: Sequence[ir.Value]) -> None:
    for old, new in zip(op.results, values, strict=True):
        old.replace_all_uses_with(new)
    op.erase()
