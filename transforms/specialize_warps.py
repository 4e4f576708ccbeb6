"""Let a warp of its own copy the boxes of a loop, while the others do nothing but compute.

Where one thread of those that compute copies boxes as well (`box_nest`, `pipelined_loop`), it waits
in each trip until all warps have read a slot, with little work queued meanwhile. That costs nothing
while products are long: two warpgroups, more than 128 columns each. With one warpgroup, or narrow
products, it does. Here the kernel is split in two: a *producer*, a warp beside those that the
author asked for, runs through the loops with nothing in them but what the boxes' places depend on;
the *consumers* run the kernel as it was, waiting for boxes and giving up slots (`box_ring`). Both
go through all loops around as well, so that the producer is ahead by as many trips as there are
slots, over whatever the consumers do between.

    ring ; barrier
    scf.if tgpu.producer { loops: await readers of a slot, copy boxes to it }
    else { the kernel, in the loop: await a slot, product, give up the slot before }

Scalars that both need are computed before the branch. A loop is left to others if its boxes' places
depend on what only the consumers know, or something in a loop around may write what is read or must
come before it; `tile.warp_specialize` asks for the split (or for none), but never for a wrong one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlir import ir

from tiledsl.dialects import tgpu, tile
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.layouts import Layouts
from tiledsl.dialects.types import is_tile
from tiledsl.transforms.axis_facts import AxisFacts
from tiledsl.transforms.box_nest import SCHEDULE, fitting, inner_slice, only_boxes
from tiledsl.transforms.box_ring import Ring, number
from tiledsl.transforms.growing_loop import GrowingLoop
from tiledsl.transforms.lanes import Lanes, select
from tiledsl.transforms.loop_slice import LoopSlice, may_run_ahead, slice_loop
from tiledsl.transforms.memory_accesses import Accesses
from tiledsl.transforms.pipelined_loop import STAGES
from tiledsl.transforms.prefetch import Ahead, Roles, Writes, is_cheap
from tiledsl.transforms.product_overlap import find_chain, let_fly
from tiledsl.transforms.scf_ops import for_each, if_else
from tiledsl.transforms.schedule import Role

ASKED = "tile.warp_specialize"
_WARPS = "tile.num_warps"
_MOST_WARPS = 31
"""Warps beside which there is room for one more."""
_WARPGROUP = 4
_NARROW = 128
"""Columns of a product up to which a producer of its own pays."""


@dataclass(frozen=True)
class Split:
    """How a kernel is split.

    Attributes:
        what: What of the innermost loop the producer runs.
        levels: What it runs of each loop, the outermost first.
        shared: Ops before the loops that both need.
    """

    what: Ahead
    levels: Sequence[LoopSlice]
    shared: Sequence[ir.Operation]

    @property
    def loads(self) -> list[tile.DescriptorLoadOp]:
        """The loads that the producer makes."""
        every = (one.load for one in self.what.prefetches.values())
        return [load for load in every if isinstance(load, tile.DescriptorLoadOp)]

    def fitting(self, ahead: int, shared_bytes: int) -> int:
        """Return how far the producer can be ahead."""
        if len(self.levels) == 1:
            return ahead
        return fitting(ahead, shared_bytes, self.loads, self.levels[0].loop.op)


def is_asked_for(loop: ir.Operation, kernel: ir.OpView) -> bool:
    """Whether the author wants a producer for a loop, or says nothing and it should pay."""
    if tgpu.PRODUCERS in kernel.operation.attributes:
        return False
    around = loop
    while around.name == "scf.for":
        if ASKED in around.attributes:
            return ir.BoolAttr(around.attributes[ASKED]).value
        parent = around.parent
        assert parent is not None
        around = parent.operation
    return _pays(loop, kernel)


def _pays(loop: ir.Operation, kernel: ir.OpView) -> bool:
    """Whether a loop has one product, of one warpgroup or narrow."""
    products = [op for op in operations(loop) if isinstance(op, tgpu.WarpgroupMmaOp)]
    if len(products) != 1:
        return False
    columns = re.search(r"n(\d+)k", products[0].instruction)
    narrow = columns is not None and int(columns[1]) <= _NARROW
    return narrow or _warps(kernel) == _WARPGROUP


def _warps(kernel: ir.OpView) -> int:
    return ir.IntegerAttr(kernel.operation.attributes[_WARPS]).value


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
    if not only_boxes(what) or loops is None or _warps(kernel) > _MOST_WARPS:
        return None
    level = inner_slice(GrowingLoop(inner), what)
    loads = [*level.loads, *(op for op in level.ops if isinstance(op, tile.LoadOp))]
    levels = [level]
    for loop in loops:
        if not may_run_ahead(loop, loads, accesses, facts):
            return None
        wanted = [value for one in levels for value in one.reads]
        found = slice_loop(GrowingLoop(loop), wanted, accesses, facts)
        if found is None:
            return None
        loads += [op for op in found.ops if isinstance(op, tile.LoadOp)]
        levels.insert(0, found)
    if not may_run_ahead(kernel.operation, loads, accesses, facts):
        return None
    shared = _needed_before(kernel, levels, accesses, facts)
    return None if shared is None else Split(what, levels, shared)


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
    kernel: ir.OpView, levels: Sequence[LoopSlice], accesses: Accesses, facts: AxisFacts
) -> list[ir.Operation] | None:
    """Return the ops of the kernel's own block that the levels need; None if one cannot move."""
    block = kernel.operation.regions[0].blocks[0]
    roles = Roles(Writes.of(list(operations(kernel.operation)), accesses), accesses, facts)
    needed: dict[ir.Operation, None] = {}
    work = [value for one in levels for value in one.reads]
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


def split_kernel(split: Split, kernel: ir.OpView, layouts: Layouts, ahead: int) -> None:
    """Split a kernel.

    Args:
        split: How.
        kernel: The kernel.
        layouts: The module's layouts, for buffers.
        ahead: Slots but one.
    """
    _Build(split, kernel, layouts, ahead).build()


class _Build:
    def __init__(self, split: Split, kernel: ir.OpView, layouts: Layouts, ahead: int) -> None:
        self._split = split
        self._kernel = kernel
        self._layouts = layouts
        self._slots = ahead + 1
        self._loops = [level.loop for level in split.levels]
        self._inner = self._loops[-1]

    def build(self) -> None:
        """Build both branches; the consumers' ops move into theirs."""
        block = self._kernel.operation.regions[0].blocks[0]
        *own, last = [op.operation for op in block.operations]
        with ir.InsertionPoint(last), self._inner.op.location:
            ring = Ring(self._split.loads, self._slots, self._layouts)
            tgpu.BarrierOp.build(memory="shared")
            role = tgpu.ProducerOp.build(results=[ir.IntegerType.get_signless(1)]).output

            def produce() -> list[ir.Value]:
                self._produce(ring, 0, {}, number(0), number(1))
                return []

            if_else(role, produce, list, [])
        made = [op.operation for op in block.operations][len(own) : -1]
        self._consume(ring)
        (end,) = made[-1].regions[1].blocks[0].operations
        for op in [op.operation for op in block.operations]:
            if op == made[0]:
                break
            if op not in self._split.shared:
                op.move_before(end.operation)
        one = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 1)
        self._kernel.operation.attributes[tgpu.PRODUCERS] = one

    # The producer.

    def _produce(
        self,
        ring: Ring,
        depth: int,
        values: Mapping[ir.Value, ir.Value],
        index: ir.Value,
        parity: ir.Value,
    ) -> tuple[ir.Value, ir.Value]:
        """Build a loop of the producer, and those in it; give the slot and parity that follow.

        Args:
            ring: The slots.
            depth: Which loop; 0 is the outermost.
            values: What values of loops around are.
            index: The slot to copy to first.
            parity: Of the phase to wait for there. A barrier without arrivals is past phase 1.
        """
        level = self._split.levels[depth]

        def here(value: ir.Value) -> ir.Value:
            return values.get(value, value)

        def trip(counter: ir.Value, carried: Sequence[ir.Value]) -> list[ir.Value]:
            *mine, slot, phase = carried
            if depth + 1 < len(self._loops):
                known, onward = level.evaluate(counter, mine, values)
                return [*onward, *self._produce(ring, depth + 1, known, slot, phase)]
            ring.await_readers(slot, phase)
            known, onward = level.evaluate(counter, mine, values)
            ring.copy(slot, number(1, "i1"), known)
            return [*onward, *self._following(slot, phase)]

        bounds = [here(value) for value in list(level.loop.op.operands)[:3]]
        inits = [*(here(value) for value in level.inits), index, parity]
        *_, last_index, last_parity = for_each(bounds, inits, trip)
        return last_index, last_parity

    def _following(self, index: ir.Value, parity: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Build the next slot and parity: phases are a slot ahead of full's (`box_ring`)."""
        further = Lanes(index) + 1
        wrapped = select(further.eq(self._slots), 0, further)
        turns = wrapped.eq(self._slots - 1)
        return wrapped.value, (Lanes(parity) ^ turns.convert("arith.extui", "i32")).value

    # The consumers.

    def _consume(self, ring: Ring) -> None:
        """Let the loops wait for boxes instead of loading."""
        inner = self._inner
        chain = find_chain(inner.op, {load.result for load in self._split.loads})
        with ir.InsertionPoint(self._loops[0].op), inner.op.location:
            carried: Sequence[ir.Value] = [number(0), number(0)]
        for loop in self._loops:
            carried = loop.grow(carried, [STAGES, ASKED])
        index, parity = carried
        with inner.op.location:
            with ir.InsertionPoint.at_block_begin(inner.block):
                ring.await_boxes(index, parity)
            with ir.InsertionPoint(inner.block):
                ring.give_up(ring.before(index))
                onward: Sequence[ir.Value] = ring.following(index, parity)
            ring.read(index)
        for loop in reversed(self._loops):
            onward = loop.finish(onward)
            if chain is not None and loop is inner:
                let_fly(chain, inner.op)
        text = (
            f"{len(self._split.loads)} boxes a trip by a warp of its own, {self._slots} slots with "
            "mbarriers full and empty"
        )
        inner.op.attributes[SCHEDULE] = ir.StringAttr.get(text, inner.op.context)
        ring.end(self._loops[0].op)
