"""Overlap a loop's loads with the arithmetic of earlier trips.

A trip of a matrix product's loop that loads its operands and then multiplies leaves the arithmetic
idle for as long as memory takes. The pipelined loop loads for a later trip while it multiplies for
this one. With `copy="cp.async"` the data goes to shared memory by asynchronous copies, `stages - 1`
trips ahead, and from there straight into the operands' layout. With `copy="registers"`, and for
loads that no copy fits (too narrow pieces, another fill value than 0), it is loaded into registers
before the arithmetic and, where threads exchange it, stored to shared memory after it.

Nothing is read that the loop would not have read: loads of trips that do not exist are masked off.
A load stays in its trip if the loop may write what it reads (through the same pointer argument, or
an unknown one), if something orders it, or if its address depends on the trip's own arithmetic.

Loops are pipelined whose loads feed matrix products; a loop that carries `tile.num_stages` itself,
as the author's word, with all its loads of tiles. That attribute overrides the function's, which
overrides `stages`. Copies that no product reads run only so far ahead as shared memory lets them.

Before: the `tgpu` level, after `assign_layouts`.
After: the same; buffers in a provisional layout, and no barrier yet: one is needed between an
`async_wait` and the first `local_load` of what it waited for, as `insert_barriers` knows.

    scf.for %i = ... {
      %a = "tile.load"(%p) : ...
      %x = "tgpu.convert_layout"(%a) : ...
      %acc = "tgpu.mma"(%x, ...) : ...
becomes
    "tgpu.async_copy"(%p0, %slot0, %exists0) ; "tgpu.async_commit"() ...
    scf.for %i = ... iter_args(%read = 0, %write = 2) {
      "tgpu.async_wait"() {pending = 1}
      "tgpu.async_copy"(%p2, %slot_write, %exists2) ; "tgpu.async_commit"()
      %x = "tgpu.local_load"(%slot_read) : ...
      %acc = "tgpu.mma"(%x, ...) : ...
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from mlir import ir

from tiledsl.dialects.contracts import operations
from tiledsl.dialects.layouts import Layouts
from tiledsl.transforms.axis_facts import AxisFacts
from tiledsl.transforms.box_nest import find_nest, pipeline_nest
from tiledsl.transforms.kernels import kernels
from tiledsl.transforms.memory_accesses import Accesses
from tiledsl.transforms.pipelined_loop import STAGES, pipeline_loop
from tiledsl.transforms.prefetch import Ahead, Way, copied_bytes, find_ahead
from tiledsl.transforms.producers import is_asked_for, warps_of
from tiledsl.transforms.simplify import tidy
from tiledsl.transforms.specialize_warps import find_split, split_kernel
from tiledsl.transforms.trips import Trips

_MOST_HELD = 2
"""Trips ahead of loads into registers: holding more costs registers that arithmetic needs."""


def pipeline_loops(
    module: ir.Module,
    *,
    stages: int,
    copy: Literal["cp.async", "registers"],
    shared_bytes: int = 1 << 20,
    max_registers: int | None = None,
) -> None:
    """Run the pass described above on `module`, in place.

    Args:
        module: The module.
        stages: Trips at work at a time; 1 leaves loops as they are.
        copy: How data gets to shared memory.
        shared_bytes: How much shared memory a program may have.
        max_registers: The author's limit of registers a thread, or None.
    """
    layouts = Layouts(module)
    changed = False
    for kernel in kernels(module):
        own = _stages_on(kernel.operation)
        loops = _innermost_first(kernel.operation)
        while loops:
            loop = loops.pop(0)
            asked = _stages_on(loop)
            count = asked if asked is not None else own if own is not None else stages
            if count < 2:
                continue
            wish = _Wish(
                count - 1, copy == "cp.async", asked is not None, shared_bytes, max_registers
            )
            around = _loops_around(loop)
            apart = [one for one in loops if one not in around]
            beyond = [one for one in loops if one not in around[:1]]
            done = _pipeline(loop, Accesses(kernel, layouts), wish)
            changed |= done is not None
            # Loops made anew are done with.
            loops = {_Done.ALL: apart, _Done.NEST: beyond}.get(done, loops) if done else loops
    if changed:
        tidy(module)


class _Done(Enum):
    LOOP = "the loop"
    NEST = "it and the one around it"
    ALL = "it and all around it"


@dataclass(frozen=True)
class _Wish:
    """How a loop is to be pipelined.

    Attributes:
        ahead: Trips ahead.
        copies: Whether there are asynchronous copies.
        every: Whether all loads of tiles are wanted.
        shared_bytes: How much shared memory a program may have.
        max_registers: The author's limit of registers a thread, or None.
    """

    ahead: int
    copies: bool
    every: bool
    shared_bytes: int
    max_registers: int | None


def _pipeline(loop: ir.Operation, accesses: Accesses, wish: _Wish) -> _Done | None:
    """Pipeline one loop if there is something to gain; say what was pipelined."""
    if "unsignedCmp" in loop.attributes:
        return None
    facts = AxisFacts(accesses.kernel)
    trips = Trips.of(loop, facts)

    def found(ahead: int) -> Ahead | None:
        return find_ahead(loop, accesses, facts, ahead=ahead, copies=wish.copies, every=wish.every)

    what = found(wish.ahead)
    if what is None:
        return None
    if is_asked_for(loop, accesses.kernel):
        split = find_split(loop, what, accesses, facts)
        ahead = 0 if split is None else split.fitting(wish.ahead, wish.shared_bytes)
        if split is not None and ahead > 0:
            limits = wish.shared_bytes, wish.max_registers
            split_kernel(split, accesses.kernel, accesses.layouts, ahead, *limits)
            return _Done.ALL
    nest = find_nest(loop, what, accesses, facts)
    if nest is not None:
        ahead = nest.fitting(wish.ahead, wish.shared_bytes)
        if ahead > 0:
            pipeline_nest(nest, accesses.layouts, ahead)
            return _Done.NEST
    ahead = min(wish.ahead, trips.most - 1)
    what = found(ahead) if ahead > 0 else None
    if what is None:
        return None
    if any(one.way in (Way.EXCHANGED, Way.HELD) for one in what.prefetches.values()):
        ahead = min(ahead, _MOST_HELD)
    # Where products wait for the copies their author has to know that there is no room.
    if (size := copied_bytes(what)) > 0:
        ahead = min(ahead, wish.shared_bytes // size - 1)
    if ahead < 1:
        return None
    warps = warps_of(accesses.kernel)
    pipeline_loop(loop, what, trips, accesses.layouts, ahead, warps)
    return _Done.LOOP


def _stages_on(op: ir.Operation) -> int | None:
    if STAGES not in op.attributes:
        return None
    return ir.IntegerAttr(op.attributes[STAGES]).value


def _loops_around(loop: ir.Operation) -> list[ir.Operation]:
    """Return the loops that a loop stands in, the innermost first."""
    found: list[ir.Operation] = []
    parent = loop.parent
    while parent is not None and parent.operation.name != "func.func":
        if parent.operation.name == "scf.for":
            found.append(parent.operation)
        parent = parent.operation.parent
    return found


def _innermost_first(kernel: ir.Operation) -> list[ir.Operation]:
    """Return every `scf.for`, those inside another before it."""
    loops = [op.operation for op in operations(kernel) if op.operation.name == "scf.for"]
    return loops[::-1]
