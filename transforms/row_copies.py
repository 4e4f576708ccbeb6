"""Loads that are copied to shared memory, and may be read there as often as somebody likes.

What `rematerialize` needs of memory: which loads can be copied asynchronously, whether there is
room, where a copy must be complete, and how it is read.

A load is copied where it stands. It is waited for before its first use, and before anything that is
more than computing and loading: that might change what is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from mlir import ir

from tiledsl.dialects import tgpu, tile
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_reduce import plan_reduction
from tiledsl.dialects.layouts import Layouts
from tiledsl.dialects.types import (
    element_of,
    is_pointer,
    is_tile,
    shape_of,
    shared_type,
    storage_bits,
    tile_type,
)
from tiledsl.transforms.axis_facts import AxisFacts, vector_elements
from tiledsl.transforms.effects import is_plain_load, is_pure
from tiledsl.transforms.fold import is_zero
from tiledsl.transforms.memory_accesses import pointer_bases
from tiledsl.transforms.rewrite import build, is_used

_PIECE_BYTES = 16
"""What a thread copies at once: past its registers and L1."""
_FEW_BYTES = 16 << 10
"""That a kernel may exchange through shared memory besides."""


@dataclass
class RowCopies:
    """The copied loads of a kernel.

    Attributes:
        kernel: The kernel.
        layouts: Of its module.
        room: Bytes of shared memory that are left for copies.
        buffers: Where the result of each copied load lies.
    """

    kernel: ir.OpView
    layouts: Layouts
    room: int
    buffers: dict[ir.Value, ir.Value] = field(default_factory=dict[ir.Value, ir.Value])
    _wide: dict[ir.Value, bool] = field(default_factory=dict[ir.Value, bool])

    @cached_property
    def data(self) -> frozenset[ir.Value]:
        """The tiles that follow from memory, each element by itself; not what rows share."""
        return _data(self.kernel)

    @cached_property
    def _facts(self) -> AxisFacts:
        return AxisFacts(self.kernel)

    @cached_property
    def _written(self) -> frozenset[int] | None:
        return _written(self.kernel)

    def may_be_late(self, load: tile.LoadOp) -> bool:
        """Whether a load gives the same wherever in the kernel it happens."""
        bases = pointer_bases(load.ptr, self.kernel)
        return self._written is not None and bases is not None and not bases & self._written

    def can_copy(self, load: tile.LoadOp) -> bool:
        """Whether threads can copy a load in wide pieces, and its mask need not be kept for it."""
        if load.volatile or any(value in self.data for value in (load.mask, load.other)):
            return False
        if load.result not in self._wide:
            self._wide[load.result] = self._in_wide_pieces(load)
        return self._wide[load.result]

    def _in_wide_pieces(self, load: tile.LoadOp) -> bool:
        layout = self.layouts.of(load.ptr.type)
        elements = max(
            min(
                layout.contiguous_run(axis),
                vector_elements(self._facts, load.ptr, load.mask, axis),
            )
            for axis in range(layout.rank)
        )
        return elements * storage_bits(load.result.type) // 8 >= _PIECE_BYTES

    def take(self, loads: Sequence[tile.LoadOp]) -> bool:
        """Copy loads, if there is room for all of them; say whether."""
        new = {load.result: load for load in loads if load.result not in self.buffers}
        size = sum(map(_bytes, new))
        if size > self.room:
            return False
        self.room -= size
        for load in new.values():
            self._copy(load)
        return True

    def _copy(self, load: tile.LoadOp) -> None:
        type_ = load.result.type
        name = self.layouts.name(LinearLayout.identity(shape_of(type_)), "shared")
        held = shared_type(tile_type(shape_of(type_), element_of(type_), name))
        with ir.InsertionPoint(load.operation), load.operation.location:
            buffer = tgpu.AllocOp.build(results=[held]).buffer
            tgpu.AsyncCopyOp.build(
                load.ptr,
                buffer,
                load.mask,
                cache=load.cache or None,
                eviction=load.eviction or None,
            )
            tgpu.AsyncCommitOp.build()
        self.buffers[load.result] = buffer

    def wait(self, load: tile.LoadOp, following: Sequence[ir.Operation]) -> None:
        """Build waiting for a copy before the first of the ops that follow for which it matters."""
        for op in following:
            quiet = is_pure(op.opview) or is_plain_load(op.opview)
            if not quiet or _uses(op, load.result):
                tgpu.AsyncWaitOp.build(pending=0, loc=op.location, ip=ir.InsertionPoint(op))
                return

    def read(self, load: tile.LoadOp) -> ir.Value:
        """Build reading a copied tile, as the load gives it, at the insertion point."""
        type_ = load.result.type
        found = tgpu.LocalLoadOp.build(self.buffers[load.result], results=[type_]).tile
        if load.mask is None or load.other is None or is_zero(load.other):
            return found
        ip, loc = ir.InsertionPoint.current, load.operation.location
        return build("arith.select", [load.mask, found, load.other], type_, ip, loc)


def meets(op: ir.Operation, layouts: Layouts) -> bool:
    """Whether all warps of a program meet in an op: values that wait for it wait long."""
    for one in (op.opview, *operations(op)):
        match one:
            case tile.ReduceOp():
                if plan_reduction(layouts.of(one.sources[0].type), one.axis).cross_warp is not None:
                    return True
            case tile.AtomicRmwOp() | tile.AtomicCasOp():
                if is_used(one.old):
                    return True
            case tile.BarrierOp():
                return True
            case _:
                pass
    return False


def shares_more(kernel: ir.OpView, layouts: Layouts) -> bool:
    """Whether a kernel uses shared memory for more than exchanging a little."""
    exchanged = 0
    for op in operations(kernel.operation):
        match op:
            case tgpu.AllocOp() | tgpu.MmaOp() | tgpu.WarpgroupMmaOp() | tgpu.FmaDotOp():
                return True
            case tile.DescriptorStoreOp():
                return True
            case tgpu.ConvertLayoutOp():
                exchanged += _bytes(op.tile)
            case tile.ReduceOp():
                step = plan_reduction(layouts.of(op.sources[0].type), op.axis).cross_warp
                bits = 0 if step is None else sum(storage_bits(one.type) for one in op.sources)
                exchanged += 0 if step is None else prod(step.partial.shape) * bits // 8
            case tile.AtomicRmwOp() | tile.AtomicCasOp():
                exchanged += _bytes(op.old) if is_used(op.old) else 0
            case tile.LoadOp() if op.volatile:
                exchanged += _bytes(op.result)
            case _:
                pass
    return exchanged > _FEW_BYTES


def _bytes(value: ir.Value) -> int:
    return prod(shape_of(value.type)) * storage_bits(value.type) // 8


def _uses(op: ir.Operation, value: ir.Value) -> bool:
    every = (op.opview, *operations(op))
    return any(operand == value for one in every for operand in one.operation.operands)


def _written(kernel: ir.OpView) -> frozenset[int] | None:
    """Return the arguments that a kernel writes through; None if others may see when it reads."""
    found: frozenset[int] = frozenset()
    for op in operations(kernel.operation):
        # Arguments may overlap where a barrier stands between their accesses.
        if isinstance(
            op, tile.AtomicRmwOp | tile.AtomicCasOp | tile.BarrierOp | tile.DescriptorStoreOp
        ):
            return None
        if isinstance(op, tile.StoreOp):
            bases = pointer_bases(op.ptr, kernel)
            if bases is None:
                return None
            found |= bases
    return found


def _data(kernel: ir.OpView) -> frozenset[ir.Value]:
    """Return the tiles that follow from what is not known to come from elsewhere than memory."""
    found: set[ir.Value] = set()
    for op in operations(kernel.operation):
        inner = [
            arg for region in op.operation.regions for b in region.blocks for arg in b.arguments
        ]
        made = [*op.operation.results, *inner]
        follows = any(operand in found for operand in op.operation.operands)
        if isinstance(op, tile.ReduceOp | tile.BroadcastOp) or (is_pure(op) and not follows):
            continue
        found.update(value for value in made if _is_data(value.type))
    return frozenset(found)


def _is_data(type_: ir.Type) -> bool:
    return is_tile(type_) and not is_pointer(element_of(type_))
