"""Load boxes ahead over the end of a loop: the pipeline of a loop within a loop stays full.

A program that computes several tiles goes through its inner loop, over the pieces of a tile, again
and again. Pipelined alone, that loop would begin each time by waiting for its first boxes. Here the
nest stays as it is, but what loads for it is a *cursor* that goes through the trips of all tiles as
if they were one loop, `ahead` trips before the trip that computes: over the end of a tile, past
tiles without trips, to the last trip of the last tile. So the next tile's first boxes come while
this tile's last products and its epilogue are under way.

Loads that one product reads first have a ring of slots (`box_ring`); rings go round together. Slots
are given up and filled again at the end of a trip, or, where products may be late
(`late_products`), given up promptly.

Boxes that the outer loop's own trip needs, as attention's queries, have a ring of one slot: the
next tile's are asked for when nothing reads this tile's any more.

The cursor is what both loops carry: whether its trip exists, the two loops' variables, and what of
the outer loop's trip the boxes' places depend on (`loop_slice`), computed where a tile begins.
Where trips wait for each other is `box_ring`'s protocol; its counters go on over tiles.

    scf.for %t = ... {
      %m, %n = ...
      %s = scf.for %k = ... iter_args(%acc = %zero) { load [%m, %k], load [%n, %k], product }
      epilogue
    }
becomes
    ring; %c = first trip; for 0 .. ahead { copy the boxes of %c; %c = following %c }
    scf.for %t = ... iter_args(%slot, %parity, %c) {
      %m, %n = ...
      %s, ... = scf.for %k = ... iter_args(%acc = %zero, %slot, %parity, %c) {
        await %slot; product; give up the slot before; copy the boxes of %c; %c = following %c }
      epilogue
    }
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mlir import ir

from tiledsl.dialects import tgpu, tile
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.layouts import Layouts
from tiledsl.transforms.axis_facts import AxisFacts
from tiledsl.transforms.box_ring import Ring, end_rings, meet_at, number, rings_of
from tiledsl.transforms.boxes import box_bytes, tile_bytes
from tiledsl.transforms.growing_loop import GrowingLoop
from tiledsl.transforms.lanes import Lanes, constant
from tiledsl.transforms.late_products import find_trip
from tiledsl.transforms.loop_slice import LoopSlice, may_run_ahead, slice_loop
from tiledsl.transforms.memory_accesses import Accesses
from tiledsl.transforms.pipelined_loop import STAGES, clone_op
from tiledsl.transforms.prefetch import Ahead, Way
from tiledsl.transforms.product_overlap import find_chain, let_fly
from tiledsl.transforms.rewrite import is_used
from tiledsl.transforms.scf_ops import for_each, if_else, while_

SCHEDULE = "tgpu.schedule"
"""What a pipelined loop's schedule is, in words; for who reads the IR."""
_EPILOGUE_BYTES = 32 * 1024
"""Shared memory that is left at least to what the outer loop does besides."""


@dataclass(frozen=True)
class Nest:
    """A loop around one whose loads run ahead.

    Attributes:
        outer: The outer loop.
        inner: The inner one, in its body.
        what: What of the inner loop runs ahead: boxes alone.
        around: What of the outer loop must be known for that.
        varies: Whether the inner loop's trips depend on the outer loop's.
        own: Boxes of the outer loop's own trip, and what must be known of a trip to copy them.
    """

    outer: GrowingLoop
    inner: GrowingLoop
    what: Ahead
    around: LoopSlice
    varies: bool
    own: tuple[tuple[tile.DescriptorLoadOp, ...], LoopSlice] | None

    @property
    def loads(self) -> list[tile.DescriptorLoadOp]:
        """The loads that run ahead."""
        every = (one.load for one in self.what.prefetches.values())
        return [load for load in every if isinstance(load, tile.DescriptorLoadOp)]

    def fitting(self, ahead: int, shared_bytes: int) -> int:
        """Return how far loads can run ahead: the ring is there during the epilogue, too."""
        own = () if self.own is None else self.own[0]
        return fitting(ahead, shared_bytes, self.loads, self.outer.op, own)


def fitting(
    ahead: int,
    shared_bytes: int,
    loads: Sequence[tile.DescriptorLoadOp],
    loop: ir.Operation,
    own: Sequence[tile.DescriptorLoadOp] = (),
) -> int:
    """Return how far loads can run ahead whose slots live through a loop.

    Args:
        ahead: How far they should.
        shared_bytes: How much shared memory there is.
        loads: The loads.
        loop: The loop, around that of the loads; what else it does needs shared memory as well.
        own: Boxes of the loop's own trip, of which there is one slot.
    """
    exchanged = [op.tile for op in operations(loop) if isinstance(op, tgpu.ConvertLayoutOp)]
    rest = max([_EPILOGUE_BYTES, *(tile_bytes(value.type) for value in exchanged)])
    rest += sum(map(box_bytes, own))
    return min(ahead, (shared_bytes - rest) // sum(map(box_bytes, loads)) - 1)


def find_nest(
    inner: ir.Operation, what: Ahead, accesses: Accesses, facts: AxisFacts
) -> Nest | None:
    """Return the nest of a loop with the one around it, None if boxes cannot run ahead there.

    Args:
        inner: An `scf.for`.
        what: What of it runs ahead by itself.
        accesses: Of the kernel.
        facts: Of the kernel.
    """
    parent = inner.parent
    if parent is None or parent.operation.name != "scf.for" or not only_boxes(what):
        return None
    outer = GrowingLoop(parent.operation)
    if "unsignedCmp" in outer.op.attributes:
        return None
    body = [op.operation for op in outer.block.operations]
    if sum(op.name in ("scf.for", "scf.while") for op in body) != 1:
        return None
    ahead = [what.ops[n] for n in (*what.prefetches, *what.plan.slice.ops)]
    loads = [op for op in ahead if isinstance(op, tile.LoadOp | tile.DescriptorLoadOp)]
    if not may_run_ahead(outer.op, loads, accesses, facts):
        return None
    loop = GrowingLoop(inner)
    around = slice_loop(outer, inner_slice(loop, what).reads, accesses, facts)
    if around is None:
        return None
    varies = any(bound in around.wanted for bound in list(inner.operands)[:2])
    own = own_boxes(outer, accesses, facts)
    return Nest(outer, loop, what, around, varies, own)


def own_boxes(
    outer: GrowingLoop, accesses: Accesses, facts: AxisFacts
) -> tuple[tuple[tile.DescriptorLoadOp, ...], LoopSlice] | None:
    """Return the boxes of the outer loop's own trip that can be asked for in the one before."""
    loads = tuple(op for op in outer.block.operations if isinstance(op, tile.DescriptorLoadOp))
    wanted = tuple(load for load in loads if is_used(load.output))
    if not wanted or not may_run_ahead(outer.op, wanted, accesses, facts):
        return None
    places = [index for load in wanted for index in load.box.indices]
    found = slice_loop(outer, places, accesses, facts)
    return None if found is None or found.carried else (wanted, found)


def only_boxes(what: Ahead) -> bool:
    """Whether nothing but boxes runs ahead."""
    return all(one.way is Way.BOXES for one in what.prefetches.values())


def inner_slice(loop: GrowingLoop, what: Ahead) -> LoopSlice:
    """Return what runs ahead of a loop with boxes, as a slice."""
    ops = [what.ops[n] for n in what.plan.slice.ops]
    loads = [one.load for one in what.prefetches.values()]
    return LoopSlice(loop, ops, what.plan.slice.carried, loads=loads)


@dataclass(frozen=True)
class _Cursor:
    """A trip of the nest.

    Attributes:
        exists: Whether there is such a trip.
        at: The inner loop's variable.
        inner: What the inner loop's slice carries.
        tile: The outer loop's variable.
        outer: What the outer loop's slice carries into its next trip.
        known: What of the outer loop's trip is asked for.
    """

    exists: Lanes
    at: Lanes
    inner: list[ir.Value]
    tile: Lanes
    outer: list[ir.Value]
    known: list[ir.Value]

    def values(self) -> list[ir.Value]:
        """Return all of them, for a loop to carry."""
        lanes = [self.exists, self.at, self.tile]
        return [*(one.value for one in lanes), *self.inner, *self.outer, *self.known]

    def like(self, values: Sequence[ir.Value]) -> _Cursor:
        """Return the cursor whose `values` these are."""
        exists, at, tile_, *rest = values
        a = len(self.inner)
        b = a + len(self.outer)
        return _Cursor(Lanes(exists), Lanes(at), rest[:a], Lanes(tile_), rest[a:b], rest[b:])


class _OwnBoxes:
    """The boxes of the outer loop's own trip, in a ring of one slot that is filled a trip ahead."""

    def __init__(self, nest: Nest, layouts: Layouts) -> None:
        """Build the ring, here."""
        assert nest.own is not None
        loads, self._slice = nest.own
        self._outer = nest.outer
        self.ring = Ring(loads, 1, layouts)
        self.parity = number(0)

    def begin(self) -> None:
        """Ask for the first trip's boxes, here, if there is a trip."""
        lower, upper = (Lanes(value) for value in list(self._outer.op.operands)[:2])
        self._copy(lower.lt(upper), lower)

    def fill(self, parity: ir.Value) -> ir.Value:
        """Wait for the boxes of a trip, ask for the next one's behind it; give its parity."""
        outer = self._outer
        with ir.InsertionPoint.at_block_begin(outer.block):
            slot = number(0)
        with ir.InsertionPoint.after(self.ring.give_up_behind(outer.block, slot)):
            self.ring.await_readers(slot, parity)
            counter = Lanes(outer.counter)
            upper, step = (Lanes(value) for value in list(outer.op.operands)[1:3])
            self._copy(step.ult(upper - counter), counter + step)
        self.ring.read_in(outer.block, slot, parity)
        with ir.InsertionPoint(outer.block):
            return (Lanes(parity) ^ 1).value

    def _copy(self, exists: Lanes, counter: Lanes) -> None:
        """Build the copies of a trip's boxes, if there is such a trip."""

        def then() -> list[ir.Value]:
            values, _ = self._slice.evaluate(counter.value, [])
            self.ring.copy(number(0), number(1, "i1"), values)
            return []

        if_else(exists.value, then, list, [])


def pipeline_nest(nest: Nest, layouts: Layouts, ahead: int) -> None:
    """Replace a nest by its pipelined form.

    Args:
        nest: The nest.
        layouts: The module's layouts, for buffers.
        ahead: Trips between a load and its use, at least 1.
    """
    _Build(nest, layouts, ahead).build()


class _Build:
    def __init__(self, nest: Nest, layouts: Layouts, ahead: int) -> None:
        self._nest = nest
        self._layouts = layouts
        self._ahead = ahead
        self._what = nest.what
        self._loads = nest.loads
        # With the wait for its product, where that may be late.
        self._rings: dict[Ring, ir.Operation | None] = {}
        bounds = list(nest.inner.op.operands)
        self._lower, self._upper, self._step = bounds[:3]
        self._inits = [bounds[3 + n] for n in nest.what.plan.slice.carried]

    def build(self) -> None:
        outer, inner = self._nest.outer, self._nest.inner
        chain = find_chain(inner.op, {load.result for load in self._loads})
        trip = find_trip(inner.op) if chain is None else None
        location = outer.op.location
        with ir.InsertionPoint(outer.op), location:
            found = rings_of(self._loads, inner.block, self._ahead + 1, self._layouts)
            waits = {} if trip is None else trip.waits
            self._rings = {ring: waits.get(one) if one else None for one, ring in found.items()}
            own = _OwnBoxes(self._nest, self._layouts) if self._nest.own else None
            every = (*self._rings, *([] if own is None else [own.ring]))
            meet_at(every)
            if own is not None:
                own.begin()
            cursor = self._prologue()
            counters = [number(0), number(0)]
        turns = [] if own is None else [own.parity]
        grown = outer.grow([*counters, *cursor.values(), *turns])
        carried = inner.grow(grown[: len(grown) - len(turns)], [STAGES])
        with location:
            (index, parity), cursor = carried[:2], cursor.like(carried[2:])
            counters = self._fill(index, parity, cursor)
            onward = inner.finish(counters)
            turned = [] if own is None else [own.fill(grown[-1])]
        if chain is not None:
            let_fly(chain, inner.op)
        outer.finish([*onward, *turned])
        self._describe()
        end_rings(every, outer.op)

    def _fill(self, index: ir.Value, parity: ir.Value, cursor: _Cursor) -> list[ir.Value]:
        """Fill the inner loop's body; give what it carries more into the next trip."""
        block = self._nest.inner.block
        with ir.InsertionPoint.at_block_begin(block):
            before = next(iter(self._rings)).before(index)
            values, inner = self._values(cursor)
        first = next(iter(self._rings))
        for ring, place in self._rings.items():
            with ir.InsertionPoint(block) if place is None else ir.InsertionPoint(place):
                if place is None:
                    ring.give_up(before)
                phase = parity if place is None else ring.earlier(index, parity)
                ring.await_readers(before, phase)
                ring.copy(before, cursor.exists.value, values)
            if place is not None:
                with ir.InsertionPoint.after(place):
                    ring.give_up(index)
        with ir.InsertionPoint(block):
            following = self._following(cursor, inner)
            onward = [*first.following(index, parity), *following.values()]
        for ring in self._rings:
            ring.read_in(block, index, parity)
        return onward

    def _describe(self) -> None:
        boxes = "box" if len(self._loads) == 1 else "boxes"
        text = (
            f"{len(self._loads)} {boxes} a trip, {self._ahead} trips ahead over the ends of "
            f"this loop, {self._ahead + 1} slots with mbarriers full and empty"
        )
        for loop in (self._nest.inner, self._nest.outer):
            loop.op.attributes[SCHEDULE] = ir.StringAttr.get(text, loop.op.context)

    def _prologue(self) -> _Cursor:
        """Copy the boxes of the first trips."""
        cursor = self._first()
        bounds = [number(n) for n in (0, self._ahead, 1)]

        def trip(index: ir.Value, carried: Sequence[ir.Value]) -> list[ir.Value]:
            here = cursor.like(carried)
            values, inner = self._values(here)
            for ring in self._rings:
                ring.copy(index, here.exists.value, values)
            return self._following(here, inner).values()

        return cursor.like(for_each(bounds, cursor.values(), trip))

    # Trips.

    def _values(self, cursor: _Cursor) -> tuple[dict[ir.Value, ir.Value], list[ir.Value]]:
        """Return what values are in the cursor's trip, and what the inner slice carries on."""
        inner, plan = self._nest.inner, self._what.plan
        values = self._known(cursor)
        values[inner.counter] = cursor.at.value
        carried = plan.slice.carried
        mine = inner.carried
        values.update((mine[n], value) for n, value in zip(carried, cursor.inner, strict=True))
        for op in plan.slice.ops:
            clone_op(self._what.ops[op], values, cursor.exists)
        yields = inner.yields
        return values, [values.get(yields[n], yields[n]) for n in carried]

    def _known(self, cursor: _Cursor) -> dict[ir.Value, ir.Value]:
        """Return what the outer loop's values are in the cursor's trip."""
        return dict(zip(self._nest.around.wanted, cursor.known, strict=True))

    def _entered(self, at: Lanes, carried: Sequence[ir.Value]) -> _Cursor:
        """Build the first trip of a tile that there is."""
        around = self._nest.around
        values, onward = around.evaluate(at.value, carried)

        def here(value: ir.Value) -> ir.Value:
            return values.get(value, value)

        lower, upper = Lanes(here(self._lower)), Lanes(here(self._upper))
        known = [here(value) for value in around.wanted]
        inner = [here(value) for value in self._inits]
        return _Cursor(lower.lt(upper), lower, inner, at, onward, known)

    def _first(self) -> _Cursor:
        """Build the first trip of the first tile that has one."""
        around = self._nest.around
        bounds = list(self._nest.outer.op.operands)
        first, last = Lanes(bounds[0]), Lanes(bounds[1])
        carried = [bounds[3 + n] for n in around.carried]
        nothing = _Cursor(
            Lanes(number(0, "i1")),
            Lanes(self._lower).constant(0),
            [constant(value.type, 0) for value in self._inits],
            first,
            carried,
            [constant(value.type, 0) for value in around.wanted],
        )
        types = [value.type for value in nothing.values()]
        found = if_else(
            first.lt(last).value,
            lambda: self._entered(first, carried).values(),
            nothing.values,
            types,
        )
        return self._sought(nothing.like(found)) if self._nest.varies else nothing.like(found)

    def _sought(self, cursor: _Cursor) -> _Cursor:
        """Go to the next tile until one has a trip, unless the cursor's trip exists."""

        def goes_on(carried: Sequence[ir.Value]) -> ir.Value:
            here = cursor.like(carried)
            return (self._more_tiles(here) & (here.exists ^ 1)).value

        def body(carried: Sequence[ir.Value]) -> list[ir.Value]:
            here = cursor.like(carried)
            return self._entered(self._next_tile(here), here.outer).values()

        return cursor.like(while_(cursor.values(), goes_on, body))

    def _more_tiles(self, cursor: _Cursor) -> Lanes:
        _, last, step = (Lanes(value) for value in list(self._nest.outer.op.operands)[:3])
        return step.ult(last - cursor.tile)

    def _next_tile(self, cursor: _Cursor) -> Lanes:
        return cursor.tile + Lanes(self._nest.outer.op.operands[2])

    def _following(self, cursor: _Cursor, inner: list[ir.Value]) -> _Cursor:
        """Build the trip after the cursor's."""
        known = self._known(cursor)
        step, upper = (Lanes(known.get(one, one)) for one in (self._step, self._upper))
        more = step.ult(upper - cursor.at)
        further = replace(cursor, at=cursor.at + step, inner=inner)
        types = [value.type for value in cursor.values()]
        over = cursor.exists & (more ^ 1)
        if self._nest.varies:
            left = replace(cursor, exists=cursor.exists.constant(0))
            found = if_else(over.value, lambda: self._sought(left).values(), further.values, types)
            return cursor.like(found)
        tiles = self._more_tiles(cursor)
        found = if_else(
            (over & tiles).value,
            lambda: self._entered(self._next_tile(cursor), cursor.outer).values(),
            further.values,
            types,
        )
        return replace(cursor.like(found), exists=cursor.exists & (more | tiles))
