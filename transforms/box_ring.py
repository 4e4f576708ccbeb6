"""A ring of slots that boxes are copied to, trip after trip, and the barriers that go with it.

Each slot has two barriers. Copies complete a phase of *full*, and who reads waits for that. Warps
end a phase of *empty* once all of them have read the slot, and who copies to it again waits there.
Both count on for as long as the ring is there: over trips, over the loops around, never made anew.

The protocol, with S slots. The trip number g of all trips there will ever be

    awaits  full[g mod S], parity (g / S) mod 2                    (`await_boxes`)
    reads the slot
    arrives at  empty[(g - 1) mod S]: trip g - 1's reads are over  (`give_up`)
    and lets the boxes of trip g + S - 1 be copied to that slot once all warps have arrived there:
    parity (g / S) mod 2, as for full.

So a product may still read slot g while g + 1 begins, and slot S - 1 is first given up, unread, by
trip 0. The boxes of the first S - 1 trips are copied without waiting.

A slot may also be given up promptly: warps arrive at empty[g mod S] in trip g itself, when they
have read it. The boxes of trip g + S - 1 are asked for in trip g as before, now waiting for a phase
that ended in trip g - 1: parity ((g - 1) / S) mod 2, which a barrier that nobody arrived at yet
lets pass (`earlier`).

Where blocks share out boxes of a ring among them (`boxes.sharers`), each block has all of it, and
whoever copies does so to the same slot of every block. So each warp arrives at *empty* of all
blocks, where the warps of all are waited for; *full* is the block's own, and counts what comes from
all. Blocks meet before the first copies and when all is over (`boxes.meet_blocks`).

Loads that different products read first have rings of their own, which go round together
(`rings_of`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlir import ir

from tiledsl.dialects import tgpu, tile
from tiledsl.dialects.layouts import Layouts
from tiledsl.dialects.types import (
    element_of,
    held_by,
    layout_name,
    shape_of,
    shared_type,
    tile_type,
)
from tiledsl.transforms.boxes import (
    Barriers,
    box_bytes,
    buffer_type,
    by_first_product,
    copy_box,
    first_reader,
    meet_blocks,
    read_box,
    sharers,
)
from tiledsl.transforms.lanes import Lanes, constant, select
from tiledsl.transforms.rewrite import ancestor


class Ring:
    """The slots of some loads of one trip; built at the current insertion point."""

    def __init__(
        self, loads: Sequence[tile.DescriptorLoadOp], slots: int, layouts: Layouts
    ) -> None:
        self.loads = loads
        self.slots = slots
        self.issuer = 0
        """Which of the warps that copy boxes fills this ring, if there are several."""
        self._bytes = sum(map(box_bytes, loads))
        self._buffers: list[ir.Value] = []
        for load in loads:
            type_ = buffer_type(load, layouts, [slots])
            loc = load.operation.location
            self._buffers.append(tgpu.AllocOp.build(results=[type_], loc=loc).buffer)
        self.blocks = sharers(loads)
        """Blocks that share out some of the boxes among them."""
        self.full = Barriers(slots, layouts)
        self.empty = Barriers(slots, layouts, arrivals="warps", blocks=self.blocks)

    def slot(self, number: int, index: ir.Value) -> ir.Value:
        """Build the slot of the load with that number."""
        buffer = self._buffers[number]
        held = held_by(buffer.type)
        one = tile_type(shape_of(held)[1:], element_of(held), layout_name(held))
        return tgpu.SlotOp.build(buffer, index, results=[shared_type(one)]).slot

    def copy(self, index: ir.Value, exists: ir.Value, values: Mapping[ir.Value, ir.Value]) -> None:
        """Copy a trip's boxes to a slot that is given up.

        Args:
            index: The slot.
            exists: Whether there is such a trip.
            values: What the loads' operands are in that trip, where they are not themselves.
        """
        barrier = self.full.slot(index)
        issuer = self.issuer or None
        tgpu.MbarrierExpectOp.build(barrier, exists, bytes=self._bytes, issuer=issuer)
        for number, load in enumerate(self.loads):
            slot = self.slot(number, index)
            copy_box(load, values, slot, barrier, exists, guarded=True, issuer=self.issuer)

    def first_reader(self, block: ir.Block) -> ir.Operation:
        """Return the first op of a block that reads a slot, or holds one that does."""
        return first_reader(self._buffers, block)

    def await_boxes(self, index: ir.Value, parity: ir.Value) -> None:
        """Wait until a slot has been filled."""
        tgpu.MbarrierWaitOp.build(self.full.slot(index), parity)

    def give_up(self, index: ir.Value) -> ir.Operation:
        """Say, for each warp, that it has read a slot; gives the op that says it."""
        slots = [self.slot(number, index) for number in range(len(self.loads))]
        blocks = self.blocks if self.blocks > 1 else None
        parts = [self.empty.slot(index), *slots]
        return tgpu.MbarrierArriveOp.build(parts, blocks=blocks).operation

    def await_readers(self, index: ir.Value, parity: ir.Value) -> None:
        """Let who copies wait until all warps have given up a slot."""
        issuer = self.issuer or None
        tgpu.MbarrierWaitOp.build(self.empty.slot(index), parity, by="issuer", issuer=issuer)

    def read(self, index: ir.Value) -> None:
        """Let the users of the loads, which stand in this trip, read a slot; erase the loads."""
        for number, load in enumerate(self.loads):
            with ir.InsertionPoint(load.operation):
                slot = self.slot(number, index)
            read_box(load, slot)

    def give_up_behind(self, block: ir.Block, index: ir.Value) -> ir.Operation:
        """Give up a slot behind the last op of a block that reads it; gives the op that does."""
        uses = [use.owner.operation for load in self.loads for use in load.output.uses]
        users = [ancestor(user, block) for user in uses]
        ops = [op.operation for op in block.operations]
        last = ops[max(ops.index(user) for user in users if user is not None)]
        with ir.InsertionPoint.after(last):
            return self.give_up(index)

    def read_in(self, block: ir.Block, index: ir.Value, parity: ir.Value) -> None:
        """Let a block read a slot, and wait before the first op that does; erase the loads."""
        self.read(index)
        with ir.InsertionPoint(self.first_reader(block)):
            self.await_boxes(index, parity)

    def end(self, after: ir.Operation) -> None:
        """Give up the barriers behind an op."""
        for barriers in (self.full, self.empty):
            place = ir.InsertionPoint.after(after)
            tgpu.MbarrierEndOp.build(barriers.buffer, loc=after.location, ip=place)

    # Counting round.

    def before(self, index: ir.Value) -> ir.Value:
        """Build the slot of the trip before."""
        here = Lanes(index)
        return select(here.eq(0), self.slots - 1, here - 1).value

    def earlier(self, index: ir.Value, parity: ir.Value) -> ir.Value:
        """Build the parity of the trip before."""
        return (Lanes(parity) ^ Lanes(index).eq(0).convert("arith.extui", "i32")).value

    def following(self, index: ir.Value, parity: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Build the next trip's slot and parity."""
        further = Lanes(index) + 1
        wraps = further.eq(self.slots)
        turned = Lanes(parity) ^ wraps.convert("arith.extui", "i32")
        return select(wraps, 0, further).value, turned.value


def meet_at(rings: Sequence[Ring]) -> None:
    """Let blocks that share out boxes of some rings meet, here: before the first copies."""
    meet_blocks(max(ring.blocks for ring in rings))


def end_rings(rings: Sequence[Ring], after: ir.Operation) -> None:
    """Give up rings behind an op, after blocks that share out boxes have met."""
    for ring in rings:
        ring.end(after)
    with ir.InsertionPoint.after(after), after.location:
        meet_at(rings)


def rings_of(
    loads: Sequence[tile.DescriptorLoadOp], block: ir.Block, slots: int, layouts: Layouts
) -> dict[ir.Operation | None, Ring]:
    """Build a ring for the loads of each product of a block that reads some of them first."""
    found = by_first_product(loads, block)
    return {
        product: Ring([loads[n] for n in numbers], slots, layouts)
        for product, numbers in found.items()
    }


def number(value: int, type_: str = "i32") -> ir.Value:
    """Build an integer constant."""
    return constant(ir.Type.parse(type_), value)
