"""Let a warp of its own copy the boxes of a loop, while the others do nothing but compute.

Where that pays (`producers`) the kernel is split in two: a *producer*, a warp beside those that
the author asked for, runs through the loops with nothing in them but what the boxes' places depend
on; the *consumers* run the kernel as it was, waiting for boxes and giving up slots (`box_ring`).
Both go through all loops around as well, so that the producer is ahead by as many trips as there
are slots, over whatever the consumers do between.

    ring ; barrier
    scf.if tgpu.producer { loops: await readers of a slot, copy boxes to it }
    else { the kernel, in the loop: await a slot, product, give up the slot before }

Loads that one product reads first have a ring of their own, and so have the boxes of the trip of
the loop around, of which there are two slots if they fit. Where the producer is a warpgroup, that
leaves its registers to the others, each ring has a warp of it.

Scalars that both need are computed before the branch. A loop is left to others if its boxes' places
depend on what only the consumers know, or something in a loop around may write what is read or must
come before it; `tile.warp_specialize` asks for the split (or for none), but never for a wrong one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from mlir import ir

from tiledsl.dialects import tgpu, tile
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.layouts import Layouts
from tiledsl.dialects.types import is_tile
from tiledsl.transforms.axis_facts import AxisFacts
from tiledsl.transforms.box_nest import SCHEDULE, fitting, inner_slice, only_boxes, own_boxes
from tiledsl.transforms.box_ring import Ring, end_rings, meet_at, number, rings_of
from tiledsl.transforms.growing_loop import GrowingLoop
from tiledsl.transforms.lanes import Lanes, select
from tiledsl.transforms.late_products import find_trip
from tiledsl.transforms.loop_slice import LoopSlice, may_run_ahead, slice_loop
from tiledsl.transforms.memory_accesses import Accesses
from tiledsl.transforms.pipelined_loop import STAGES
from tiledsl.transforms.prefetch import Ahead, Roles, Writes, is_cheap
from tiledsl.transforms.producers import (
    ASKED,
    CONSUMERS,
    PRODUCERS,
    WARPGROUP,
    takes_a_warpgroup,
    warps_of,
)
from tiledsl.transforms.product_overlap import Chain, find_chain, let_fly
from tiledsl.transforms.scf_ops import for_each, if_else
from tiledsl.transforms.schedule import Role

_MOST_WARPS = 31
"""Warps beside which there is room for one more."""


@dataclass(frozen=True)
class Split:
    """How a kernel is split.

    Attributes:
        what: What of the innermost loop the producer runs.
        levels: What it runs of each loop, the outermost first.
        shared: Ops before the loops that both need.
        own: Loads of the loop around the innermost that the producer makes as well.
    """

    what: Ahead
    levels: Sequence[LoopSlice]
    shared: Sequence[ir.Operation]
    own: Sequence[tile.DescriptorLoadOp]

    @property
    def loads(self) -> list[tile.DescriptorLoadOp]:
        """The loads that the producer makes."""
        every = (one.load for one in self.what.prefetches.values())
        return [load for load in every if isinstance(load, tile.DescriptorLoadOp)]

    def fitting(self, ahead: int, shared_bytes: int) -> int:
        """Return how far the producer can be ahead."""
        if len(self.levels) == 1:
            return ahead
        return fitting(ahead, shared_bytes, self.loads, self.levels[0].loop.op, self.own)

    def own_slots(self, ahead: int, shared_bytes: int) -> int:
        """Return how many slots there are for boxes of the loop around the innermost.

        With two they come a trip of that loop early, and it never waits; with one they are asked
        for when nothing reads the last ones any more.
        """
        twice = (*self.own, *self.own)
        loop = self.levels[0].loop.op
        return 2 if fitting(ahead, shared_bytes, self.loads, loop, twice) == ahead else 1


def find_split(
    inner: ir.Operation, what: Ahead, accesses: Accesses, facts: AxisFacts
) -> Split | None:
    """Return how to split the kernel around a loop, None if that cannot be.

    Args:
        inner: An `scf.for`.
        what: What of it runs ahead.
        accesses: Of the kernel.
        facts: Of the kernel.
    """
    kernel = accesses.kernel
    loops = _loops_around(inner)
    if not only_boxes(what) or loops is None or warps_of(kernel) > _MOST_WARPS:
        return None
    # Where roles part, not all threads come to where blocks meet.
    if accesses.may_meet():
        return None
    level = inner_slice(GrowingLoop(inner), what)
    loads = [*level.loads, *(op for op in level.ops if isinstance(op, tile.LoadOp))]
    levels = [level]
    own = _own_boxes(loops[0], accesses, facts) if loops else ()
    loads += own
    for loop in loops:
        if not may_run_ahead(loop, loads, accesses, facts):
            return None
        wanted = [value for one in levels for value in one.reads]
        wanted += [value for load in own for value in load.parts]
        found = slice_loop(GrowingLoop(loop), wanted, accesses, facts)
        if found is None:
            return None
        loads += [op for op in found.ops if isinstance(op, tile.LoadOp)]
        levels.insert(0, found)
    if not may_run_ahead(kernel.operation, loads, accesses, facts):
        return None
    parts = [value for load in own for value in load.parts]
    shared = _needed_before(kernel, levels, parts, accesses, facts)
    return None if shared is None else Split(what, levels, shared, own)


def _own_boxes(
    loop: ir.Operation, accesses: Accesses, facts: AxisFacts
) -> Sequence[tile.DescriptorLoadOp]:
    """Return the boxes of a loop's own trip that the producer can ask for."""
    found = own_boxes(GrowingLoop(loop), accesses, facts)
    return () if found is None else found[0]


def _loops_around(inner: ir.Operation) -> list[ir.Operation] | None:
    """Return the loops around one, the innermost first; None if there are branches, too."""
    found: list[ir.Operation] = []
    parent = inner.parent
    while parent is not None and parent.operation.name == "scf.for":
        if "unsignedCmp" in parent.operation.attributes:
            return None
        found.append(parent.operation)
        parent = parent.operation.parent
    return found if parent is not None and parent.operation.name == "func.func" else None


def _needed_before(
    kernel: ir.OpView,
    levels: Sequence[LoopSlice],
    parts: Sequence[ir.Value],
    accesses: Accesses,
    facts: AxisFacts,
) -> list[ir.Operation] | None:
    """Return the ops of the kernel's block that levels and boxes need; None if one cannot move."""
    block = kernel.operation.regions[0].blocks[0]
    roles = Roles(Writes.of(list(operations(kernel.operation)), accesses), accesses, facts)
    needed: dict[ir.Operation, None] = {}
    work = [*parts, *(value for one in levels for value in one.reads)]
    while work:
        owner = work.pop().owner
        if isinstance(owner, ir.Block) or owner.operation.block != block:
            continue
        op = owner.operation
        if op in needed:
            continue
        is_load = isinstance(op.opview, tile.LoadOp) and roles.of(op.opview) is Role.LOAD
        if not (is_cheap(op.opview) or is_load) or any(is_tile(one.type) for one in op.results):
            return None
        needed[op] = None
        work += op.operands
    return [op.operation for op in block.operations if op.operation in needed]


def split_kernel(
    split: Split,
    kernel: ir.OpView,
    layouts: Layouts,
    ahead: int,
    shared_bytes: int,
    max_registers: int | None,
) -> None:
    """Split a kernel.

    Args:
        split: How.
        kernel: The kernel.
        layouts: The module's layouts, for buffers.
        ahead: Slots but one.
        shared_bytes: How much shared memory a program may have.
        max_registers: The author's limit of registers a thread, or None.
    """
    slots = ahead + 1, split.own_slots(ahead, shared_bytes)
    _Build(split, kernel, layouts, slots, max_registers).build()


@dataclass(frozen=True)
class _Counters:
    """What the producer counts. A barrier without arrivals is past phase 1.

    Attributes:
        index: The slot to copy to.
        late: Parity of the phase that ends when a slot is given up a trip late (`box_ring`).
        prompt: The same where slots are given up promptly.
        own_index: The slot to copy boxes of the loop around to.
        own: Its parity, as `prompt`.
    """

    index: Lanes
    late: Lanes
    prompt: Lanes
    own_index: Lanes
    own: Lanes

    @property
    def values(self) -> list[ir.Value]:
        """All of them, for a loop to carry."""
        every = (self.index, self.late, self.prompt, self.own_index, self.own)
        return [one.value for one in every]

    @staticmethod
    def of(values: Sequence[ir.Value]) -> _Counters:
        """Return the counters whose `values` these are."""
        return _Counters(*map(Lanes, values))


_COUNTERS = len(fields(_Counters))


class _Build:
    def __init__(
        self,
        split: Split,
        kernel: ir.OpView,
        layouts: Layouts,
        slots: tuple[int, int],
        max_registers: int | None,
    ) -> None:
        self._split = split
        self._kernel = kernel
        self._layouts = layouts
        self._slots, self._own_slots = slots
        self._max_registers = max_registers
        self._loops = [level.loop for level in split.levels]
        self._inner = self._loops[-1]
        self._rings: dict[Ring, ir.Operation | None] = {}
        self._own: Ring | None = None

    def build(self) -> None:
        """Build both branches; the consumers' ops move into theirs."""
        block = self._kernel.operation.regions[0].blocks[0]
        *_, last = before = [op.operation for op in block.operations]
        split, layouts = self._split, self._layouts
        chain = find_chain(self._inner.op, {load.result for load in split.loads})
        trip = find_trip(self._inner.op) if chain is None else None
        with ir.InsertionPoint(last), self._inner.op.location:
            rings = rings_of(split.loads, self._inner.block, self._slots, layouts)
            self._own = Ring(split.own, self._own_slots, layouts) if split.own else None
            # With the wait for its product, where that may be late and slots are given up promptly.
            waits = {} if trip is None else trip.waits
            self._rings = {ring: waits.get(one) if one else None for one, ring in rings.items()}
            shares = takes_a_warpgroup(
                self._inner.op, self._kernel, trip is not None, self._max_registers
            )
            if shares:
                # A warp for each: none waits for another's slot.
                for issuer, ring in enumerate(self._every_ring):
                    ring.issuer = issuer % WARPGROUP
            meet_at(self._every_ring)
            if not self._shared_out:
                tgpu.BarrierOp.build(memory="shared")
            role = tgpu.ProducerOp.build(results=[ir.IntegerType.get_signless(1)]).output

            def produce() -> list[ir.Value]:
                if shares:
                    tgpu.SetRegistersOp.build(count=PRODUCERS, fewer=True)
                self._produce(0, {}, _Counters.of([number(n) for n in (0, 1, 1, 0, 1)]))
                return []

            if_else(role, produce, list, [])
        known = set(before)
        made = [op.operation for op in block.operations if op.operation not in known]
        branch = made[-1]
        self._consume(chain)
        # Blocks meet where producers come, too.
        end_rings(self._every_ring, branch if self._shared_out else self._loops[0].op)
        (end,) = branch.regions[1].blocks[0].operations
        for op in [op.operation for op in block.operations]:
            if op == branch:
                break
            if op not in made and op not in self._split.shared:
                op.move_before(end.operation)
        if shares:
            place = ir.InsertionPoint.at_block_begin(branch.regions[1].blocks[0])
            tgpu.SetRegistersOp.build(count=CONSUMERS, loc=self._inner.op.location, ip=place)
        more = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), WARPGROUP if shares else 1)
        self._kernel.operation.attributes[tgpu.PRODUCERS] = more

    @property
    def _every_ring(self) -> list[Ring]:
        return [*self._rings, *([self._own] if self._own else [])]

    @property
    def _shared_out(self) -> bool:
        """Whether blocks share out boxes among them."""
        return any(ring.blocks > 1 for ring in self._every_ring)

    # The producer.

    def _produce(
        self, depth: int, values: Mapping[ir.Value, ir.Value], counters: _Counters
    ) -> _Counters:
        """Build a loop of the producer, and those in it; give the counters that follow.

        Args:
            depth: Which loop; 0 is the outermost.
            values: What values of loops around are.
            counters: What to copy to first.
        """
        level = self._split.levels[depth]

        def here(value: ir.Value) -> ir.Value:
            return values.get(value, value)

        def trip(counter: ir.Value, carried: Sequence[ir.Value]) -> list[ir.Value]:
            mine, now = carried[:-_COUNTERS], _Counters.of(carried[-_COUNTERS:])
            if depth + 1 == len(self._loops):
                known, onward = level.evaluate(counter, mine, values)
                for ring, wait in self._rings.items():
                    ring.await_readers(now.index.value, (now.prompt if wait else now.late).value)
                    ring.copy(now.index.value, number(1, "i1"), known)
                return [*onward, *self._following(now).values]
            known, onward = level.evaluate(counter, mine, values)
            if self._own is not None and depth + 2 == len(self._loops):
                slot, parity = now.own_index.value, now.own.value
                self._own.await_readers(slot, parity)
                self._own.copy(slot, number(1, "i1"), known)
                own_index, own = map(Lanes, self._own.following(slot, parity))
                now = replace(now, own_index=own_index, own=own)
            return [*onward, *self._produce(depth + 1, known, now).values]

        bounds = [here(value) for value in list(level.loop.op.operands)[:3]]
        inits = [*(here(value) for value in level.inits), *counters.values]
        return _Counters.of(for_each(bounds, inits, trip)[-_COUNTERS:])

    def _following(self, counters: _Counters) -> _Counters:
        """Build the next trip's counters."""
        further = counters.index + 1
        wraps = further.eq(self._slots)
        index = select(wraps, 0, further)
        late, prompt = (
            one.convert("arith.extui", "i32") for one in (index.eq(self._slots - 1), wraps)
        )
        return replace(
            counters, index=index, late=counters.late ^ late, prompt=counters.prompt ^ prompt
        )

    # The consumers.

    def _consume(self, chain: Chain | None) -> None:
        """Let the loops wait for boxes instead of loading."""
        inner, loops = self._inner, self._loops
        with ir.InsertionPoint(loops[0].op), inner.op.location:
            carried: Sequence[ir.Value] = [number(0) for _ in range(4 if self._own else 2)]
        for loop in loops[:-1]:
            carried = loop.grow(carried, [STAGES, ASKED])
        turns = carried[2:]
        index, parity = inner.grow(carried[:2], [STAGES, ASKED])
        with inner.op.location:
            onward = inner.finish(self._read(index, parity))
            if self._own is not None:
                onward = [*onward, *self._read_own(self._own, *turns)]
        if chain is not None:
            let_fly(chain, inner.op)
        for loop in reversed(loops[:-1]):
            onward = loop.finish(onward)
        boxes = len(self._split.loads) + len(self._split.own)
        text = (
            f"{boxes} boxes a trip by a warp of its own, {self._slots} slots with "
            "mbarriers full and empty"
        )
        inner.op.attributes[SCHEDULE] = ir.StringAttr.get(text, inner.op.context)

    def _read(self, index: ir.Value, parity: ir.Value) -> Sequence[ir.Value]:
        """Let the innermost loop read slots and give them up; give its next trip's counters."""
        block = self._inner.block
        for ring, wait in self._rings.items():
            if wait is None:
                with ir.InsertionPoint(block):
                    ring.give_up(ring.before(index))
            else:
                with ir.InsertionPoint.after(wait):
                    ring.give_up(index)
            ring.read_in(block, index, parity)
        with ir.InsertionPoint(block):
            return next(iter(self._rings)).following(index, parity)

    def _read_own(self, ring: Ring, index: ir.Value, parity: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Let the loop around read its own trip's boxes; give its next trip's counters."""
        block = self._loops[-2].block
        ring.give_up_behind(block, index)
        ring.read_in(block, index, parity)
        with ir.InsertionPoint(block):
            return ring.following(index, parity)
