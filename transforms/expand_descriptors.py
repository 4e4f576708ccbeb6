"""Turn accesses through tensor descriptors into masked loads, stores and atomics.

A box is addressed dimension by dimension, in 64 bits, and what lies outside of the tensor is masked
off. What can be is computed once for the box: where it begins along the contiguous dimension, and
along each which of its elements lie in the tensor, in 32 bits. Where the chip copies boxes by
itself, `keeps` says which loads and stores stay for it; the results of those loads are matrices,
without the sides of length 1 in front.

Before: the `tile` level, simplified.
After: the same, without `tile.descriptor_load` and `_store` but for those kept.

    %t = "tile.descriptor_load"(%base, %size, %stride, %i) : (!tile.ptr<f32>, ...) -> tensor<64xf32>
becomes
    %low = clamp(-%i, 0, 64); %high = clamp(%size - %i, 0, 64)
    %t = "tile.load"(%base + %i * %stride + range(64) * %stride, %low <= range(64) < %high)
"""

from __future__ import annotations

import math
from collections.abc import Callable

from mlir import ir

from tiledsl.dialects import tile
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.types import element_of, is_float, shape_of, tile_type
from tiledsl.transforms.fold import constant_int
from tiledsl.transforms.lanes import Lanes
from tiledsl.transforms.rewrite import is_used, splat

Access = tile.DescriptorLoadOp | tile.DescriptorStoreOp


def keep_none(access: Access) -> bool:
    """Keep no access: the chip has no unit that copies boxes."""
    del access
    return False


def expand_descriptors(module: ir.Module, *, keeps: Callable[[Access], bool] = keep_none) -> None:
    """Run the pass described above on `module`, in place.

    Args:
        module: The module.
        keeps: Which accesses stay.
    """
    for op in list(operations(module.operation)):
        if not isinstance(op, Access):
            continue
        kept = keeps(op)
        if kept and (isinstance(op, tile.DescriptorStoreOp) or len(shape_of(op.output.type)) <= 2):
            continue
        with ir.InsertionPoint(op), op.operation.location:
            if isinstance(op, tile.DescriptorLoadOp) and kept:
                _flatten(op)
            else:
                _expand(op)
        op.operation.erase()


def _flatten(op: tile.DescriptorLoadOp) -> None:
    """Load a box as the matrix that it is."""
    shape = shape_of(op.output.type)
    type_ = tile_type(shape[-2:], element_of(op.output.type))
    padding = op.padding if op.padding != "zero" else None
    blocks = op.blocks if op.blocks > 1 else None
    made = tile.DescriptorLoadOp.build(op.parts, results=[type_], padding=padding, blocks=blocks)
    for use in list(op.output.uses):
        user = use.owner
        if isinstance(user, tile.ReshapeOp) and shape_of(user.tile.type) == shape[-2:]:
            user.tile.replace_all_uses_with(made.output)
    if is_used(op.output):
        whole = tile.ReshapeOp.build(made.output, results=[op.output.type])
        op.output.replace_all_uses_with(whole.tile)


def _expand(op: Access) -> None:
    if isinstance(op, tile.DescriptorLoadOp):
        result = op.output
        pointers, mask = _elements(op.box, shape_of(result.type))
        other = None
        if op.padding == "nan":
            other = splat(result.type, math.nan, ir.InsertionPoint.current, op.operation.location)
        made = tile.LoadOp.build(pointers, mask, other, results=[result.type])
        result.replace_all_uses_with(made.output)
        return
    pointers, mask = _elements(op.box, shape_of(op.tile.type))
    if op.adds:
        kind = "fadd" if is_float(element_of(op.tile.type)) else "add"
        build = tile.AtomicRmwOp.build
        build(pointers, op.tile, mask, results=[op.tile.type], kind=kind, sem="relaxed")
        return
    tile.StoreOp.build(pointers, op.tile, mask)


def _elements(box: tile.Box, shape: tuple[int, ...]) -> tuple[ir.Value, ir.Value]:
    """Build the address of every element of a box, and whether it lies in the tensor."""
    pointers = tile.SplatOp.build(box.base, results=[tile_type(shape, box.base.type)]).tile
    mask: Lanes | None = None
    for axis, extent in enumerate(shape):
        narrow = tile_type((extent,), ir.IntegerType.get_signless(32))
        steps = Lanes(tile.MakeRangeOp.build(start=0, end=extent, results=[narrow]).tile)
        index, size = _wide(box.indices[axis]), _wide(box.sizes[axis])
        for moved in _offsets(index, steps, box.strides[axis]):
            offset = _in_place(moved.value, axis, shape)
            pointers = tile.AddPtrOp.build(pointers, offset, results=[pointers.type]).output
        low, high = (_bound(one, steps, extent) for one in (-index, size - index))
        inside = steps.ge(low) & steps.lt(high)
        whole = Lanes(_in_place(inside.value, axis, shape))
        mask = whole if mask is None else mask & whole
    assert mask is not None  # boxes have at least one dimension
    return pointers, mask.value


def _wide(value: ir.Value) -> Lanes:
    """Build an integer as i64, so that nothing wraps."""
    wide = ir.IntegerType.get_signless(64)
    return Lanes(value) if value.type == wide else Lanes(value).convert("arith.extsi", "i64")


def _offsets(index: Lanes, steps: Lanes, stride: ir.Value) -> list[Lanes]:
    """Build what is added to a pointer, one after the other, for each of the steps from an index.

    Where elements are neighbours the second is a small number, else there is but one: products of
    steps alone would be worth keeping over loops, for LLVM, and are too many.
    """
    wide = tile_type(shape_of(steps.type), index.type)
    first = Lanes(tile.SplatOp.build(index.value, results=[wide]).tile)
    if constant_int(stride) == 1:
        return [first, steps]
    spread = Lanes(tile.SplatOp.build(_wide(stride).value, results=[wide]).tile)
    return [(first + steps.convert("arith.extsi", "i64")) * spread]


def _bound(number: Lanes, steps: Lanes, extent: int) -> Lanes:
    """Build a number within 0 to `extent`, for each of the steps."""
    inside = number.max_s(0).min_s(extent).convert("arith.trunci", "i32")
    return Lanes(tile.SplatOp.build(inside.value, results=[steps.type]).tile)


def _in_place(value: ir.Value, axis: int, shape: tuple[int, ...]) -> ir.Value:
    """Build a tile that varies along one dimension alone from a one-dimensional one."""
    element = element_of(value.type)
    for other in range(len(shape)):
        if other == axis:
            continue
        old = shape_of(value.type)
        grown = (*old[:other], 1, *old[other:])
        value = tile.ExpandDimsOp.build(value, axis=other, results=[tile_type(grown, element)]).tile
    if shape_of(value.type) == shape:
        return value
    return tile.BroadcastOp.build(value, results=[tile_type(shape, element)]).tile
