"""Hold fewer tiles in registers in loops whose tiles leave too few for the rest.

A compiler that runs out of registers moves what it likes least to memory, and what it takes are
whole tiles: operands that wait, or data just loaded, for which a thread then waits at once. Two
things in such loops need not be in registers for as long as they are.

An operand that is the same in every trip, as attention's queries are, was exchanged through shared
memory before the loop, and it still lies there: products read it again in every trip, a step at a
time, as they read their other operand.

Data for the next trip need not all be on its way at once. What the trip's first product will read
is loaded first, and stored as soon as this trip's product has read what it replaces; then what the
second product will read is loaded. Each is on its way during a product, as many barriers as before
keep them apart, and registers hold the largest, not all. (Where one product reads everything,
`split_depth` makes two of it.)

Before: the `tgpu` level, loops pipelined through registers, shared buffers not placed, no barriers.
After: the same; loads that take turns are to be done where they stand (`tgpu.IN_PLACE`).

    scf.for ... {
      %k = "tile.load"(%kp) ; %v = "tile.load"(%vp)
      %s = "tgpu.mma"(%q, %k_read, ...)
      %o = "tgpu.mma"(%p, %v_read, ...)
      "tgpu.local_store"(%k, %ks) ; "tgpu.local_store"(%v, %vs)
becomes
    scf.for ... {
      %k = "tile.load"(%kp)
      %q = "tgpu.local_load"(%qs)
      %s = "tgpu.mma"(%q, %k_read, ...)
      "tgpu.local_store"(%k, %ks)
      %v = "tile.load"(%vp)
      %o = "tgpu.mma"(%p, %v_read, ...)
      "tgpu.local_store"(%v, %vs)
"""

from __future__ import annotations

from dataclasses import dataclass

from mlir import ir

from tiledsl.dialects import tgpu
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.layouts import Layouts
from tiledsl.transforms.effects import is_plain_load, is_pure
from tiledsl.transforms.kernels import kernels
from tiledsl.transforms.place_shared import fits
from tiledsl.transforms.rewrite import ancestor, in_order
from tiledsl.transforms.shared_uses import buffer_uses, whole_buffer
from tiledsl.transforms.tile_registers import OTHERS, most_alive


def relieve_registers(module: ir.Module, *, max_registers: int, shared_bytes: int) -> None:
    """Run the pass described above on `module`, in place.

    Args:
        module: The module.
        max_registers: How many a thread can have.
        shared_bytes: How much shared memory a program can have.
    """
    layouts = Layouts(module)
    for kernel in kernels(module):
        ops = list(operations(kernel))
        reads = [op for op in ops if isinstance(op, tgpu.LocalLoadOp)]
        for loop in [op.operation for op in ops if op.operation.name == "scf.for"]:
            body = loop.regions[0].blocks[0]
            if not any(isinstance(op, tgpu.MmaOp) for op in body.operations):
                continue
            if most_alive(loop, layouts) < max_registers - OTHERS:
                continue
            for load in reads:
                # What is read again keeps its bytes for itself.
                if _read_again(load, loop) and not fits(kernel, shared_bytes):
                    load.operation.move_before(loop)
            _take_turns(body)


# What is the same in every trip.


def _read_again(load: tgpu.LocalLoadOp, loop: ir.Operation) -> bool:
    """Move a read from before a loop to the first of the loop's products, if it serves no other.

    Return whether it moved.
    """
    body, block = loop.regions[0].blocks[0], load.operation.block
    users = [use.owner for use in load.tile.uses]
    if loop.block != block or not users or not load.operation.is_before_in_block(loop):
        return False
    if not all(isinstance(user, tgpu.MmaOp) and user.operation.block == body for user in users):
        return False
    for user in buffer_uses(whole_buffer(load.buffer)).users:
        place = ancestor(user.operation, block)
        if isinstance(user, tgpu.LocalLoadOp) or place is None:
            continue
        if place == loop or (
            load.operation.is_before_in_block(place) and place.is_before_in_block(loop)
        ):
            return False
    load.operation.move_before(in_order([user.operation for user in users])[0])
    return True


# What is for the next trip.


@dataclass(frozen=True)
class _Staged:
    """A tile on its way from global memory to a buffer, for the next trip.

    Attributes:
        load: What reads it.
        store: What writes it to the buffer.
        reader: The last op of the body that needs what the buffer held.
    """

    load: ir.Operation
    store: tgpu.LocalStoreOp
    reader: ir.Operation


def _take_turns(body: ir.Block) -> None:
    """Store what is for the next trip as early as can be, and load the next only then."""
    staged = [found for op in body.operations if (found := _staged(op, body)) is not None]
    readers = in_order(list(dict.fromkeys(one.reader for one in staged)))
    if len(readers) < 2:
        return
    turns = [[one for one in staged if one.reader == reader] for reader in readers]
    if not _may_wait(in_order([one.load for one in staged])[0], readers[-2], body):
        return
    place: ir.Operation | None = None
    for reader, turn in zip(readers, turns, strict=True):
        for one in turn:
            if place is not None:
                one.load.move_after(place)
                place = one.load
            # Else what orders both, within what barriers allow, is a later compiler's taste.
            one.load.attributes[tgpu.IN_PLACE] = ir.UnitAttr.get()
        place = reader
        for one in turn:
            for op in (*_slots(one.store, body), one.store.operation):
                op.move_after(place)
                place = op


def _staged(op: ir.OpView, body: ir.Block) -> _Staged | None:
    """Return what a store to shared memory keeps for the next trip, if it does."""
    if not isinstance(op, tgpu.LocalStoreOp) or isinstance(op.tile.owner, ir.Block):
        return None
    load = op.tile.owner.operation
    if load.block != body or not is_plain_load(load.opview) or len(list(op.tile.uses)) > 1:
        return None
    others = [
        place
        for user in buffer_uses(whole_buffer(op.buffer)).users
        if user.operation != op.operation and (place := ancestor(user.operation, body)) is not None
    ]
    if not others or not all(other.is_before_in_block(op.operation) for other in others):
        return None
    last = in_order(others)[-1]
    if isinstance(last.opview, tgpu.LocalLoadOp):
        # Products read a step at a time, and nothing moves a read over a write.
        users = [ancestor(use.owner.operation, body) for use in last.opview.tile.uses]
        inside = [user for user in users if user is not None]
        last = in_order(inside)[0] if inside else last
    return _Staged(load, op, last) if last.is_before_in_block(op.operation) else None


def _may_wait(first: ir.Operation, until: ir.Operation, body: ir.Block) -> bool:
    """Whether loads from `first` on read the same when they are done just behind `until`."""
    ops = [op for op in body.operations if first.is_before_in_block(op.operation)]
    between = [op for op in ops if op.operation == until or op.operation.is_before_in_block(until)]
    return all(
        is_pure(op)
        or is_plain_load(op)
        or isinstance(op, tgpu.LocalLoadOp | tgpu.LocalStoreOp | tgpu.SlotOp)
        for op in between
    )


def _slots(store: tgpu.LocalStoreOp, body: ir.Block) -> list[ir.Operation]:
    """Return what of the body only says where a store writes."""
    owner = store.buffer.owner
    if isinstance(owner, ir.Block) or not isinstance(owner.operation.opview, tgpu.SlotOp):
        return []
    return [owner.operation] if owner.operation.block == body else []
