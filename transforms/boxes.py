"""Copies of boxes into shared memory: their barriers, and waiting for them.

A trip of a pipelined loop, or one load, copies one or more boxes and has one transaction barrier:
one thread arrives and says how many bytes will come, all wait for the phase to end. Barriers are
made before their first use and given up after the last, so that a loop in a loop may do it again.
Those of no loop are made when the kernel begins: one meeting of all threads does for all.

Where several blocks run a program and all read the same box (`split_programs`), each can copy a
part of its rows to all of them (`sharers`): once instead of so many times from memory. That takes
a ring that knows when the warps of all blocks have read a slot (`box_ring`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mlir import ir

from tiledsl.dialects import tgpu, tile
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layouts import Layouts
from tiledsl.dialects.types import (
    element_of,
    layout_name,
    shape_of,
    shared_type,
    storage_bits,
    tile_type,
)
from tiledsl.transforms.effects import is_pure
from tiledsl.transforms.lanes import constant
from tiledsl.transforms.rewrite import ancestor, is_used
from tiledsl.transforms.shared_uses import buffer_uses, k_axis, reads_shared


class Barriers:
    """Barriers, one a slot, that count bytes or warps; built at the current insertion point."""

    def __init__(
        self, slots: int, layouts: Layouts, *, arrivals: str = "thread", blocks: int = 1
    ) -> None:
        word = ir.IntegerType.get_signless(64)
        name = layouts.name(LinearLayout.identity((1,)), "shared")
        self._slot_type = shared_type(tile_type((1,), word, name))
        held = tile_type((slots, 1), word, name)
        many = blocks if blocks > 1 else None
        with _where_all_are_made():
            self.buffer: ir.Value = tgpu.AllocOp.build(results=[shared_type(held)]).buffer
            tgpu.MbarrierInitOp.build(self.buffer, arrivals=arrivals, blocks=many)

    def slot(self, index: ir.Value) -> ir.Value:
        """Build the barrier of a slot."""
        return tgpu.SlotOp.build(self.buffer, index, results=[self._slot_type]).slot


def _where_all_are_made() -> ir.InsertionPoint:
    """Return where barriers are made: outside loops and branches all in one place, the first."""
    here = ir.InsertionPoint.current
    kernel = here.block.owner.operation.name == "func.func"
    return ir.InsertionPoint.at_block_begin(here.block) if kernel else here


_SHARE_ROWS = 8
"""Rows of a part of a box begin at multiples of it: there the permutation of rows begins anew."""


def sharers(loads: Iterable[tile.DescriptorLoadOp]) -> int:
    """Return how many blocks share out some of these boxes among them, 1 if none is."""
    return max(map(_sharers, loads), default=1)


def _sharers(load: tile.DescriptorLoadOp) -> int:
    return 1 if shape_of(load.output.type)[0] % (load.blocks * _SHARE_ROWS) else load.blocks


def meet_blocks(blocks: int) -> None:
    """Let blocks that share out boxes meet, if there are several, here.

    Nobody copies to a block before that: its barriers are there, and what was in its slots is not
    read any more. Nobody leaves a block before that: others may still arrive at its barriers.
    """
    if blocks > 1:
        tgpu.BarrierOp.build(memory="shared", proxy=True, cluster=True)


def box_bytes(load: tile.DescriptorLoadOp) -> int:
    """Give the bytes of a box; what lies outside of the tensor counts too."""
    return tile_bytes(load.output.type)


def tile_bytes(type_: ir.Type) -> int:
    """Give the bytes of a tile in memory."""
    size = storage_bits(type_) // 8
    for extent in shape_of(type_):
        size *= extent
    return size


def copy_box(
    load: tile.DescriptorLoadOp,
    values: Mapping[ir.Value, ir.Value],
    buffer: ir.Value,
    barrier: ir.Value,
    predicate: ir.Value,
    *,
    guarded: bool = False,
    issuer: int = 0,
) -> tgpu.BoxCopyOp:
    """Build the copy of a load's box to a buffer.

    Args:
        load: The load.
        values: What the load's operands are here, where they are not themselves.
        buffer: A buffer or slot of the box's shape.
        barrier: What counts the bytes.
        predicate: Whether to copy.
        guarded: Whether mbarriers say that nobody reads the buffer any more, in any block.
        issuer: Which of the warps that copy boxes does it.
    """
    parts = [values.get(part, part) for part in load.parts]
    operands = [buffer, barrier, predicate, *parts]
    blocks = _sharers(load) if guarded else 1
    return tgpu.BoxCopyOp.build(
        operands,
        guarded=guarded or None,
        issuer=issuer or None,
        rounds=load.rounds or None,
        blocks=blocks if blocks > 1 else None,
        loc=load.operation.location,
    )


def can_read(use: ir.OpOperand, load: tile.DescriptorLoadOp) -> bool:
    """Whether a product of warpgroups reads a box as it is copied: rows along the last axis."""
    user = use.owner
    if not isinstance(user, tgpu.WarpgroupMmaOp) or not reads_shared(user, use.operand_number):
        return False
    return storage_bits(load.output.type) == 16 or k_axis(user, use.operand_number) == 1


def read_box(load: tile.DescriptorLoadOp, buffer: ir.Value) -> None:
    """Let the users of a load read the buffer that its box was copied to, and erase the load."""
    loc = load.operation.location
    for use in list(load.output.uses):
        user = use.owner
        if can_read(use, load):
            user.operation.operands[use.operand_number] = buffer
        elif isinstance(user, tgpu.ConvertLayoutOp):
            place = ir.InsertionPoint(user.operation)
            made = tgpu.LocalLoadOp.build(buffer, results=[user.tile.type], loc=loc, ip=place)
            user.tile.replace_all_uses_with(made.tile)
            user.operation.erase()
    if is_used(load.output):
        here = ir.InsertionPoint(load.operation)
        made = tgpu.LocalLoadOp.build(buffer, results=[load.output.type], loc=loc, ip=here)
        load.output.replace_all_uses_with(made.tile)
    load.operation.erase()


def buffer_type(
    load: tile.DescriptorLoadOp, layouts: Layouts, slots: Sequence[int] = ()
) -> ir.Type:
    """Give the type of a buffer for a load's boxes, in the simplest order until one is chosen."""
    type_: ir.Type = load.output.type
    slot = layouts.apply(type_, LinearLayout.identity(shape_of(type_)), "shared")
    return shared_type(tile_type((*slots, *shape_of(slot)), element_of(slot), layout_name(slot)))


def copy_boxes(module: ir.Module) -> None:
    """Copy what loads through descriptors bring that no pipeline took, and wait before it is used.

    Before: the `tgpu` level, after `pipeline_loops`.
    After: the same without `tile.descriptor_load`.
    """
    layouts = Layouts(module)
    i1, i32 = (ir.IntegerType.get_signless(bits) for bits in (1, 32))
    for op in list(operations(module.operation)):
        if not isinstance(op, tile.DescriptorLoadOp):
            continue
        if not is_used(op.output):
            op.operation.erase()
            continue
        with ir.InsertionPoint(op), op.operation.location:
            zero, yes = constant(i32, 0), constant(i1, 1)
            barriers = Barriers(1, layouts)
            barrier = barriers.slot(zero)
            buffer = tgpu.AllocOp.build(results=[buffer_type(op, layouts)]).buffer
            tgpu.MbarrierExpectOp.build(barrier, yes, bytes=box_bytes(op))
            copy_box(op, {}, buffer, barrier, yes)
        loc, block = op.operation.location, op.operation.block
        read_box(op, buffer)
        first, last = _readers(buffer, block)
        tgpu.MbarrierWaitOp.build(barrier, zero, loc=loc, ip=ir.InsertionPoint(first))
        tgpu.MbarrierEndOp.build(barriers.buffer, loc=loc, ip=ir.InsertionPoint.after(last))


def _readers(buffer: ir.Value, block: ir.Block) -> tuple[ir.Operation, ir.Operation]:
    """Return the first and the last op of a block that read a buffer, or hold ops that do."""
    found = [
        ancestor(user.operation, block)
        for user in buffer_uses(buffer).users
        if isinstance(user, tgpu.LocalLoadOp | tgpu.WarpgroupMmaOp)
    ]
    inside = [op for op in found if op is not None]
    first = last = inside[0]
    for op in inside:
        first = op if op.is_before_in_block(first) else first
        last = op if last.is_before_in_block(op) else last
    return first, last


def first_reader(buffers: Sequence[ir.Value], block: ir.Block) -> ir.Operation:
    """Return the first op of a block that reads one of some buffers, or holds an op that does."""
    first, *others = (_readers(buffer, block)[0] for buffer in buffers)
    for op in others:
        first = op if op.is_before_in_block(first) else first
    return first


def by_first_product(
    loads: Sequence[tile.DescriptorLoadOp], block: ir.Block
) -> dict[ir.Operation | None, list[int]]:
    """Return the numbers of loads by the product of a block that reads them first."""
    found: dict[ir.Operation | None, list[int]] = {}
    for number, load in enumerate(loads):
        found.setdefault(first_product(load.output, block), []).append(number)
    return found


def first_product(value: ir.Value, block: ir.Block) -> ir.Operation | None:
    """Return the first product of a block that a tile reaches through pure ops, if it does."""
    first: ir.Operation | None = None
    stack, seen = [value], {value}
    while stack:
        for use in stack.pop().uses:
            user = use.owner
            if isinstance(user, tgpu.MmaOp | tgpu.WarpgroupMmaOp | tgpu.FmaDotOp):
                found = ancestor(user.operation, block)
                if found is not None and (first is None or found.is_before_in_block(first)):
                    first = found
            elif is_pure(user):
                fresh = [result for result in user.operation.results if result not in seen]
                seen.update(fresh)
                stack += fresh
    return first
