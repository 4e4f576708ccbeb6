"""Build the pipelined form of one loop, once it is decided what runs ahead.

The loop is made anew around the same ops: they move into the new body, except that what runs ahead
is cloned, before the loop for the first trips and at the top of the body for a later one. The new
loop also carries

- the slice's carried values, as they are `ahead` trips later;
- the tiles that are held in registers, a queue for each load, the next trip's first;
- the slots that this trip reads and writes, for each number of slots.

Loads that run ahead are masked by whether their trip exists. What the slice leaves unused behind in
the old trip is for `simplify.tidy` to remove.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from mlir import ir

from tiledsl.dialects import tgpu, tile
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layouts import Layouts
from tiledsl.dialects.types import (
    element_of,
    is_tile,
    layout_name,
    like,
    shape_of,
    shared_type,
    tile_type,
)
from tiledsl.transforms.boxes import (
    Barriers,
    box_bytes,
    by_first_product,
    copy_box,
    first_reader,
    meet_blocks,
    read_box,
    sharers,
)
from tiledsl.transforms.growing_loop import loop_like
from tiledsl.transforms.lanes import Lanes, select
from tiledsl.transforms.late_products import find_trip
from tiledsl.transforms.prefetch import Ahead, Way
from tiledsl.transforms.product_overlap import find_chain, let_fly
from tiledsl.transforms.rewrite import is_used, terminator
from tiledsl.transforms.schedule import Copies, Registers
from tiledsl.transforms.shared_uses import reads_shared
from tiledsl.transforms.trips import Trips

STAGES = "tile.num_stages"

_LEAST_AHEAD = 2
"""Trips of copies in flight that are worth more than a product in flight."""
_READ, _WRITTEN = 0, 1
"""Which slot of a trip: pairs of slots go round, one pair for each number of slots."""


@dataclass(frozen=True, eq=False)
class _Ring:
    """Boxes that one product reads first: they are waited for together.

    Attributes:
        numbers: The loads.
        lag: Trips after its own in which a slot is still read.
        wait: Where products may be late, the wait for the one that reads the boxes.
        full: One barrier a slot, for the boxes' bytes.
        empty: One barrier a slot, for the warps that have read it; None if all threads meet.
        issuer: The warp that asks for boxes in the loop: a ring's work slows one alone.
        blocks: Blocks that share out some of the boxes among them (`box_ring`).
    """

    numbers: list[int]
    lag: int
    wait: ir.Operation | None
    full: Barriers
    empty: Barriers | None
    issuer: int
    blocks: int


@dataclass
class _Issued:
    """What issuing one trip gave.

    Attributes:
        tiles: By load, its tile.
        carried: By carried value, what the trip yields.
        requests: By ring, the ops that ask for its boxes.
    """

    tiles: dict[int, ir.Value] = field(default_factory=dict[int, ir.Value])
    carried: dict[int, ir.Value] = field(default_factory=dict[int, ir.Value])
    requests: dict[_Ring, list[ir.OpView]] = field(default_factory=dict["_Ring", "list[ir.OpView]"])


def pipeline_loop(
    loop: ir.Operation, what: Ahead, trips: Trips, layouts: Layouts, ahead: int, warps: int
) -> None:
    """Replace `loop`, an `scf.for`, by its pipelined form.

    Args:
        loop: The loop.
        what: What of it runs ahead.
        trips: Its trips.
        layouts: The module's layouts, for buffers.
        ahead: Trips between a load and its use, at least 1.
        warps: How many there are.
    """
    _Pipeline(loop, what, trips, layouts, ahead, warps).build()


class _Pipeline:
    def __init__(
        self,
        loop: ir.Operation,
        what: Ahead,
        trips: Trips,
        layouts: Layouts,
        ahead: int,
        warps: int,
    ) -> None:
        self._loop = loop
        self._warps = warps
        self._what = what
        self._trips = trips
        self._layouts = layouts
        self._body = loop.regions[0].blocks[0]
        self._carried = what.plan.slice.carried
        prefetches = what.prefetches
        self._copied = [n for n, one in prefetches.items() if one.way is Way.COPIES]
        self._boxed = [n for n, one in prefetches.items() if one.way is Way.BOXES]
        self._stored = [n for n, one in prefetches.items() if one.way is Way.EXCHANGED]
        self._queued = [n for n, one in prefetches.items() if one.way in (Way.EXCHANGED, Way.HELD)]
        # Boxes alone are asked for at the end of a trip, when the product before its own is done:
        # warps then arrive at the barrier of the slot that it read, and who copies waits there.
        self._late = len(self._boxed) == len(prefetches)
        self._chain = None
        if self._late or not self._boxed:
            staged = {prefetches[n].load.result for n in [*self._copied, *self._boxed]}
            self._chain = find_chain(loop, staged)
        lag = 0
        if self._chain is not None and not self._late:
            # The slot that keeps a product's operands longer is one that copies do without.
            lag = 1 if ahead > _LEAST_AHEAD else 0
            self._chain = self._chain if lag else None
        ahead -= lag
        self._ahead = ahead
        self._copies = Copies(ahead, lag)
        self._slots = ahead + 1
        self._rings: list[_Ring] = []
        # The loads themselves go while the new loop is filled.
        self._places = {n: one.load.operation.location for n, one in prefetches.items()}
        self._buffers: dict[int, ir.Value] = {}
        self._slot_types: dict[int, ir.Type] = {}

    def build(self) -> None:
        """Build the new loop and erase the old one."""
        with ir.InsertionPoint(self._loop), self._loop.location:
            for number in [*self._copied, *self._stored, *self._boxed]:
                self._buffers[number] = self._allocate(number)
            self._rings = self._make_rings()
            blocks = max((ring.blocks for ring in self._rings), default=1)
            meet_blocks(blocks)
            ahead, queues = self._prologue()
            counts = sorted({self._slot_count(number) for number in self._buffers})
            zero = _integer("i32", 0)
            firsts = [value for n in counts for value in (zero, self._first_written(n))]
            parity = [zero] if self._boxed else []
        held = [value for number in self._queued for value in queues[number]]
        extra = [*ahead, *held, *firsts, *parity]
        made = loop_like(self._loop, extra, [STAGES])
        body = made.regions[0].blocks[0]
        arguments = list(body.arguments)[1 + len(self._loop.results) :]
        with ir.InsertionPoint(body), self._loop.location:
            self._fill(body, arguments, counts)
        for old, new in zip(self._loop.results, made.results, strict=False):
            old.replace_all_uses_with(new)
        if self._copied:
            after = ir.InsertionPoint.after(made)
            tgpu.AsyncWaitOp.build(pending=0, loc=self._loop.location, ip=after)
        for barriers in (one for ring in self._rings for one in (ring.empty, ring.full)):
            if barriers is not None:
                after = ir.InsertionPoint.after(made)
                tgpu.MbarrierEndOp.build(barriers.buffer, loc=self._loop.location, ip=after)
        with ir.InsertionPoint.after(made), self._loop.location:
            meet_blocks(blocks)
        if self._chain is not None:
            let_fly(self._chain, made)
        self._loop.erase()

    def _first_written(self, count: int) -> ir.Value:
        """Build the slot that trip 0 writes, of a buffer with so many."""
        copies = count == self._copies.slots and bool(self._copied)
        return _integer("i32", self._ahead if copies else count - 1)

    def _registers(self, number: int) -> Registers:
        return Registers(self._ahead, self._what.prefetches[number].way is Way.EXCHANGED)

    def _slot_count(self, number: int) -> int:
        if number in self._boxed:
            return self._slots
        return self._copies.slots if number in self._copied else Registers.slots

    # Buffers.

    def _make_rings(self) -> list[_Ring]:
        """Build the barriers of the boxes, by the product that reads them first."""
        loads = [cast("tile.DescriptorLoadOp", self._what.prefetches[n].load) for n in self._boxed]
        found = by_first_product(loads, self._body)
        trip = find_trip(self._loop) if self._late and self._chain is None else None
        waits = {} if trip is None else trip.waits
        # All go as far ahead as the slice's carried values, of which there is one state.
        together = not self._late or self._chain is not None or bool(self._carried)
        rings: list[_Ring] = []
        for product, places in found.items():
            numbers = [self._boxed[place] for place in places]
            wait = None if product is None else waits.get(product)
            full = Barriers(self._slots, self._layouts)
            empty, blocks = None, 1
            if self._late:
                blocks = sharers(loads[place] for place in places)
                empty = Barriers(self._slots, self._layouts, arrivals="warps", blocks=blocks)
            late = trip is not None and product != trip.first.mma.operation
            issuer = len(rings) % self._warps if self._late else 0
            lag = int(together or late)
            rings.append(_Ring(numbers, lag, wait, full, empty, issuer, blocks))
        return rings

    def _allocate(self, number: int) -> ir.Value:
        """Build a buffer for a load's tiles, in the simplest order until one is chosen."""
        load = self._what.prefetches[number].load
        type_: ir.Type = load.result.type
        layout = LinearLayout.identity(shape_of(type_))
        slot = self._layouts.apply(type_, layout, "shared")
        self._slot_types[number] = shared_type(slot)
        shape = (self._slot_count(number), *shape_of(slot))
        held = tile_type(shape, element_of(slot), layout_name(slot))
        loc = self._places[number]
        return tgpu.AllocOp.build(results=[shared_type(held)], loc=loc).buffer

    def _slot(self, number: int, index: ir.Value) -> ir.Value:
        type_ = self._slot_types[number]
        return tgpu.SlotOp.build(self._buffers[number], index, results=[type_]).slot

    def _store(self, number: int, held: ir.Value, index: ir.Value) -> None:
        """Write a load's tile to a slot, in the load's name."""
        with self._places[number]:
            tgpu.LocalStoreOp.build(held, self._slot(number, index))

    # Running ahead.

    def _prologue(self) -> tuple[list[ir.Value], dict[int, list[ir.Value]]]:
        """Issue the first trips; give the slice's carried values and the queues of tiles."""
        operands = self._loop.operands
        lower = Lanes(operands[0])
        carried = {n: operands[3 + n] for n in self._carried}
        queues: dict[int, list[ir.Value]] = {number: [] for number in self._queued}
        furthest = max((self._slots - ring.lag for ring in self._rings), default=self._ahead)
        for trip in range(furthest):
            exists = self._trips.early(trip)
            rings = [ring for ring in self._rings if trip < self._slots - ring.lag]
            slots = {n: _integer("i32", trip) for n in [*self._copied, *self._boxed]}
            # Before the loop by the thread that has made the barriers: no other knows of them yet.
            rings = [replace(ring, issuer=0) for ring in rings]
            issued = self._issue(self._trips.at(lower, trip), carried, exists, slots, rings)
            carried = issued.carried
            for number in self._queued:
                queues[number].append(issued.tiles[number])
        # All loads are under way before the first store waits for its own.
        for number in self._stored:
            self._store(number, queues[number].pop(0), _integer("i32", 0))
        return [carried[n] for n in self._carried], queues

    def _issue(
        self,
        counter: Lanes,
        carried: Mapping[int, ir.Value],
        exists: Lanes | None,
        slots: Mapping[int, ir.Value],
        rings: Sequence[_Ring],
    ) -> _Issued:
        """Clone what runs ahead for the trip at `counter`, if it `exists`, here.

        Args:
            counter: The trip's value of the loop's variable.
            carried: The slice's carried values at its beginning.
            exists: Whether there is such a trip; None if there is.
            slots: By number of a load that is copied, the slot to copy to.
            rings: Which boxes.
        """
        values: dict[ir.Value, ir.Value] = {self._body.arguments[0]: counter.value}
        values.update((self._body.arguments[1 + n], value) for n, value in carried.items())
        issued = _Issued()
        predicate = _integer("i1", 1) if exists is None else exists.value
        self._expect(issued, slots, predicate, rings)
        for number, op in enumerate(self._what.ops):
            prefetch = self._what.prefetches.get(number)
            if prefetch is not None and isinstance(prefetch.load, tile.DescriptorLoadOp):
                for ring in rings:
                    if number in ring.numbers:
                        self._copy_box(ring, number, values, slots[number], predicate, issued)
            elif prefetch is not None and number in slots:
                self._copy(number, values, exists, slots[number])
            elif prefetch is not None:
                assert isinstance(prefetch.load, tile.LoadOp)
                issued.tiles[number] = _load(prefetch.load, values, exists)
                values[prefetch.load.result] = issued.tiles[number]
                continue
            if number in self._what.plan.slice.ops:
                clone_op(op, values, exists)
        if self._copied:
            tgpu.AsyncCommitOp.build()
        yields = terminator(self._body).operands
        issued.carried = {n: values.get(yields[n], yields[n]) for n in self._carried}
        return issued

    def _expect(
        self,
        issued: _Issued,
        slots: Mapping[int, ir.Value],
        predicate: ir.Value,
        rings: Sequence[_Ring],
    ) -> None:
        """Tell a trip's transaction barriers what will come."""
        for ring in rings:
            barrier = ring.full.slot(slots[ring.numbers[0]])
            loads = [self._what.prefetches[number].load for number in ring.numbers]
            total = sum(box_bytes(one) for one in loads if isinstance(one, tile.DescriptorLoadOp))
            expected = tgpu.MbarrierExpectOp.build(
                barrier, predicate, bytes=total, issuer=ring.issuer or None
            )
            issued.requests[ring] = [expected]

    def _copy_box(
        self,
        ring: _Ring,
        number: int,
        values: Mapping[ir.Value, ir.Value],
        index: ir.Value,
        predicate: ir.Value,
        issued: _Issued,
    ) -> None:
        """Build a load in another trip as a copy of its box to a slot."""
        load = self._what.prefetches[number].load
        assert isinstance(load, tile.DescriptorLoadOp)
        slot, barrier = self._slot(number, index), ring.full.slot(index)
        guarded = ring.empty is not None
        copy = copy_box(load, values, slot, barrier, predicate, guarded=guarded, issuer=ring.issuer)
        issued.requests[ring].append(copy)

    def _copy(
        self,
        number: int,
        values: Mapping[ir.Value, ir.Value],
        exists: Lanes | None,
        slot: ir.Value,
    ) -> None:
        """Build a load in another trip as a copy to a slot."""
        load = self._what.prefetches[number].load
        assert isinstance(load, tile.LoadOp)
        with self._places[number]:
            tgpu.AsyncCopyOp.build(
                values.get(load.ptr, load.ptr),
                self._slot(number, slot),
                _mask(load, values, exists),
                cache=load.cache or None,
                eviction=load.eviction or None,
            )

    # The new loop.

    def _fill(self, body: ir.Block, arguments: Sequence[ir.Value], counts: Sequence[int]) -> None:
        """Fill the new loop's body; `arguments` are what it carries besides the old values."""
        queue_sizes = [self._registers(number).held for number in self._queued]
        sizes = [len(self._carried), *queue_sizes, *[2] * len(counts), int(bool(self._boxed))]
        parts = _split(arguments, sizes)
        carried = dict(zip(self._carried, parts[0], strict=True))
        queues = dict(zip(self._queued, parts[1:], strict=False))
        slots = dict(zip(counts, parts[1 + len(self._queued) : -1], strict=True))

        if self._copied:
            tgpu.AsyncWaitOp.build(pending=self._copies.pending)
        here = Lanes(body.arguments[0])
        written = {n: slots[self._slot_count(n)][_WRITTEN] for n in self._copied}
        written |= {n: slots[self._slots][int(r.lag > 0)] for r in self._rings for n in r.numbers}
        parity = self._next_parity(slots, parts[-1])
        issued = _Issued()
        for lag in sorted({ring.lag for ring in self._rings}) or [1]:
            ahead = self._slots - lag if self._rings else self._ahead
            rings = [ring for ring in self._rings if ring.lag == lag]
            later, counter = self._trips.later(here, ahead), self._trips.at(here, ahead)
            some = self._issue(counter, carried, later, written, rings)
            issued = replace(some, requests=issued.requests | some.requests)
        for number, queue in queues.items():
            queue.append(issued.tiles[number])
        self._move_body(body)
        for number, prefetch in self._what.prefetches.items():
            if isinstance(prefetch.load, tile.DescriptorLoadOp):
                index = slots[self._slot_count(number)][_READ]
                with ir.InsertionPoint(prefetch.load.operation):
                    slot = self._slot(number, index)
                read_box(prefetch.load, slot)
            elif number in self._buffers:
                index = slots[self._slot_count(number)][_READ]
                with ir.InsertionPoint(prefetch.load.operation):
                    _read_from(prefetch.load, self._slot(number, index))
            else:
                prefetch.load.result.replace_all_uses_with(queues[number].pop(0))
                prefetch.load.operation.erase()
        self._await_boxes(body, slots, parts[-1])
        # The slot that this trip has read takes what the next one will.
        for number in self._stored:
            self._store(number, queues[number].pop(0), slots[Registers.slots][_WRITTEN])
        if self._late:
            self._ask(body, issued, slots, parts[-1][0])
        nexts = [_following(slot, n) for n in counts for slot in slots[n]] + parity
        held = [value for number in self._queued for value in queues[number]]
        ahead = [issued.carried[n] for n in self._carried]
        _yield([*terminator(self._body).operands, *ahead, *held, *nexts])

    def _next_parity(
        self, slots: Mapping[int, Sequence[ir.Value]], parity: Sequence[ir.Value]
    ) -> list[ir.Value]:
        """Build the next trip's parity."""
        if not self._rings:
            return []
        wraps = Lanes(slots[self._slots][_READ]).eq(self._slots - 1)
        return [(Lanes(parity[0]) ^ wraps.convert("arith.extui", "i32")).value]

    def _await_boxes(
        self,
        body: ir.Block,
        slots: Mapping[int, Sequence[ir.Value]],
        parity: Sequence[ir.Value],
    ) -> None:
        """Wait for each ring's boxes before the first of them is read."""
        for ring in self._rings:
            read = slots[self._slot_count(ring.numbers[0])][_READ]
            buffers = [self._buffers[number] for number in ring.numbers]
            with ir.InsertionPoint(first_reader(buffers, body)):
                tgpu.MbarrierWaitOp.build(ring.full.slot(read), parity[0])

    def _ask(
        self,
        body: ir.Block,
        issued: _Issued,
        slots: Mapping[int, Sequence[ir.Value]],
        parity: ir.Value,
    ) -> None:
        """Ask for boxes once every warp has read what their slots held: at the end of a trip.

        Where products may be late, warps say so when a product is over, and what late ones read in
        the trip before is asked for when the next is issued: by then all have most likely said it.
        """
        for ring in self._rings:
            assert ring.empty is not None
            read, before = slots[self._slots]
            end = _integer("i32", 0).owner.operation
            cast("Any", body).append(end)
            place = ring.wait if ring.wait is not None and ring.lag else end
            index = before if ring.lag else read
            with ir.InsertionPoint(place):
                barrier = ring.empty.slot(index)
                phase = parity
                if ring.wait is None:
                    self._give_up(ring, barrier, index)
                elif ring.lag:
                    wraps = Lanes(read).eq(0).convert("arith.extui", "i32")
                    phase = (Lanes(parity) ^ wraps).value
                issuer = ring.issuer or None
                tgpu.MbarrierWaitOp.build(barrier, phase, by="issuer", issuer=issuer)
            for op in issued.requests[ring]:
                op.operation.move_before(place)
            if ring.wait is not None:
                with ir.InsertionPoint.after(ring.wait):
                    self._give_up(ring, ring.empty.slot(read), read)
            end.erase()

    def _give_up(self, ring: _Ring, barrier: ir.Value, index: ir.Value) -> None:
        """Let each warp say that it has read a slot."""
        slots = [self._slot(number, index) for number in ring.numbers]
        blocks = ring.blocks if ring.blocks > 1 else None
        tgpu.MbarrierArriveOp.build([barrier, *slots], blocks=blocks)

    def _move_body(self, body: ir.Block) -> None:
        """Move the old body's ops, all but the last, to the end of the new one."""
        for old, new in zip(self._body.arguments, body.arguments, strict=False):
            old.replace_all_uses_with(new)
        for op in self._what.ops:
            cast("Any", body).append(op.operation)


def _split(values: Sequence[ir.Value], sizes: Sequence[int]) -> list[list[ir.Value]]:
    found: list[list[ir.Value]] = []
    start = 0
    for size in sizes:
        found.append(list(values[start : start + size]))
        start += size
    return found


def _integer(type_: str, value: int) -> ir.Value:
    made = ir.IntegerAttr.get(ir.Type.parse(type_), value)
    op = cast("Any", ir.Operation).create(
        "arith.constant", results=[made.type], operands=[], attributes={"value": made}
    )
    return cast("ir.Value", op.results[0])


def _following(slot: ir.Value, count: int) -> ir.Value:
    """Build the slot after `slot`, going round."""
    if count == 1:
        return _integer("i32", 0)
    further = Lanes(slot) + 1
    return select(further.eq(count), 0, further).value


def _mask(
    load: tile.LoadOp, values: Mapping[ir.Value, ir.Value], exists: Lanes | None
) -> ir.Value | None:
    """Build a load's mask in another trip, which is false if there is none."""
    mask = None if load.mask is None else values.get(load.mask, load.mask)
    if exists is None:
        return mask
    type_ = like(load.ptr.type, exists.type)
    if is_tile(type_):
        every = tile.SplatOp.build(exists.value, results=[type_]).tile
    else:
        every = exists.value
    return every if mask is None else (Lanes(mask) & Lanes(every)).value


def _load(load: tile.LoadOp, values: Mapping[ir.Value, ir.Value], exists: Lanes | None) -> ir.Value:
    """Build a load in another trip."""
    other = None if load.other is None else values.get(load.other, load.other)
    with load.operation.location:
        made = tile.LoadOp.build(
            values.get(load.ptr, load.ptr),
            _mask(load, values, exists),
            other,
            results=[load.result.type],
            cache=load.cache or None,
            eviction=load.eviction or None,
        )
    return made.result


def clone_op(op: ir.OpView, values: dict[ir.Value, ir.Value], exists: Lanes | None) -> None:
    """Clone an op of the slice into another trip."""
    if isinstance(op, tile.LoadOp):
        values[op.result] = _load(op, values, exists)
        return
    made = cast("Any", op.operation).clone().operation
    for place, operand in enumerate(op.operation.operands):
        made.operands[place] = values.get(operand, operand)
    values.update(zip(op.operation.results, made.results, strict=True))


def _read_from(load: tile.LoadOp, slot: ir.Value) -> None:
    """Let the users of a load read a slot, each in the layout that it wants."""
    for use in list(load.result.uses):
        user = use.owner
        if isinstance(user, tgpu.ConvertLayoutOp):
            place = ir.InsertionPoint(user.operation)
            made = tgpu.LocalLoadOp.build(
                slot, results=[user.tile.type], loc=load.operation.location, ip=place
            )
            user.tile.replace_all_uses_with(made.tile)
            user.operation.erase()
        elif isinstance(user, tgpu.WarpgroupMmaOp) and reads_shared(user, use.operand_number):
            user.operation.operands[use.operand_number] = slot
    if is_used(load.result):
        made = tgpu.LocalLoadOp.build(
            slot,
            results=[load.result.type],
            loc=load.operation.location,
            ip=ir.InsertionPoint(load.operation),
        )
        load.result.replace_all_uses_with(made.tile)
    load.operation.erase()


def _yield(values: Sequence[ir.Value]) -> None:
    cast("Any", ir.Operation).create("scf.yield", results=[], operands=list(values))
