"""Put barriers where one thread must wait for what others did to memory, and nowhere else.

Threads of a program run apart. If one writes shared memory and another reads or overwrites it, or
the other way round, a barrier must stand between. The analysis walks the program with the accesses
that may have happened since the last barrier, through branches and round loops until nothing
changes; an access that conflicts with one of them gets a barrier just before it, or before the loop
where only the first trip needs it.

Two accesses of shared memory conflict if their bytes overlap, one writes, and not both of

- the same thread makes both, element by element: one buffer, one layout without copies; or
- they name different slots of a buffer (`slot_index`).

An asynchronous copy writes until it is waited for; others see what it wrote after a barrier that
follows the wait.

Global memory follows program order as well, as far as threads of one program are concerned: two
accesses through one pointer argument conflict if one writes, unless the same thread makes both or
they belong to different trips of a loop that each touch a piece of their own (`trip_stripes`).
Atomics publish and acquire for the whole program: those that release come after all earlier
accesses, those that acquire before all later ones; two that commute need no order.

Where a copy to a tensor reads a buffer by parts, each warpgroup its own, a barrier of the
warpgroup's threads does for its accesses among each other. What such a copy reads and writes counts
from the wait for it (`wait_for_stores`). A slot that boxes are copied to again and again needs no
barrier of all threads: warps arrive at an mbarrier when they have read it, and who copies waits
there. A barrier stands between making an mbarrier and all use, that of the same thread too: ptxas
may have another lane make it, which compute-sanitizer takes for a race.

Where several blocks run a program (`split_programs`), they follow its order together: a barrier for
global memory is one of all blocks' threads (`cluster`).

Units that multiply from shared memory, or copy boxes to and from it, see what threads did only
after a fence of the threads: `proxy_fences`.

The author's own barriers (`tile.barrier`) order global memory whatever the analysis knows.

Before: the `tgpu` level, after `place_shared`, so that buffers that share bytes are known.
After: the same with every `tgpu.barrier` that is needed, and no `tile.barrier`.

    "tgpu.local_store"(%a, %s) : ...
    %b = "tgpu.local_load"(%s) : ...
becomes
    "tgpu.local_store"(%a, %s) : ...
    "tgpu.barrier"() {memory = "shared"} : () -> ()
    %b = "tgpu.local_load"(%s) : ...
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce

from mlir import ir

from tiledsl.dialects import tgpu, tile
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.layouts import Layouts
from tiledsl.transforms.access import stronger
from tiledsl.transforms.kernels import body, kernels
from tiledsl.transforms.memory_accesses import Accesses
from tiledsl.transforms.memory_state import State
from tiledsl.transforms.program_walk import ProgramWalk
from tiledsl.transforms.proxy_fences import order_proxies


def insert_barriers(module: ir.Module) -> None:
    """Run the pass described above on `module`, in place."""
    layouts = Layouts(module)
    for kernel in kernels(module):
        accesses = Accesses(kernel, layouts)
        for op in list(operations(kernel.operation)):
            if isinstance(op, tile.BarrierOp):
                _meet(op, "all", accesses.split)
                op.operation.erase()
        for op, memory in _needed(kernel, accesses).items():
            if memory == "warpgroup":
                tgpu.WarpgroupBarrierOp.build(loc=op.location, ip=ir.InsertionPoint(op))
            else:
                _meet(op, memory, accesses.split)
        order_proxies(kernel, accesses)


def _meet(before: ir.OpView | ir.Operation, memory: str, split: bool) -> None:
    """Put a barrier before an op."""
    cluster = (split and memory == "all") or None
    place = ir.InsertionPoint(before)
    tgpu.BarrierOp.build(memory=memory, cluster=cluster, loc=before.location, ip=place)


def _needed(kernel: ir.OpView, accesses: Accesses) -> dict[ir.Operation, str]:
    """Find the barriers, by the op that each stands before.

    What a loop's later trips ask for may do for what its first trip asked for: a barrier is dropped
    again if without it none is missing.
    """
    walk = _Walk(accesses)
    walk.block(body(kernel), State())
    needed = dict(walk.barriers)
    for op in walk.barriers:
        without = {other: memory for other, memory in needed.items() if other != op}
        trial = _Walk(accesses, dict(without), only_check=True)
        trial.block(body(kernel), State())
        if trial.barriers == without:
            needed = without
    return needed


@dataclass
class _Walk(ProgramWalk[State]):
    """The walk over a kernel: where barriers must stand, found so far.

    A barrier once found stays, so the walk round a loop ends: what flows in only grows.
    """

    accesses: Accesses
    barriers: dict[ir.Operation, str] = field(default_factory=dict[ir.Operation, str])
    only_check: bool = False
    """Whether only the presence of all barriers is asked, not where the best place is."""

    def ops_of(self, block: ir.Block) -> Iterable[tuple[str, ir.OpView]]:
        """Give the ops that matter; a walk goes over them many times."""
        return self.accesses.acting(block)

    def op(self, op: ir.OpView, state: State) -> State:
        """Decide on a barrier before an op and let the op happen."""
        if isinstance(op, tgpu.BarrierOp):
            return state.after_barrier(op.memory)
        found = self.accesses.of(op)
        if found is None:
            return state
        operation = op.operation
        known = stronger(state.conflict(found), self.barriers.get(operation, ""))
        if known:
            self.barriers[operation] = known
            state = state.after_barrier(known)
        return state.then(found)

    def loop(self, op: ir.Operation, state: State) -> State:
        """Walk a loop: what only its first trip waits for is waited for before it."""
        if op in self.barriers:
            state = state.after_barrier(self.barriers[op])
        if self.only_check:
            return self.trips(op, state)
        alone = _Walk(self.accesses, dict(self.barriers))
        in_flight = State(copies=state.copies, reading=state.reading, storing=state.storing)
        alone.trips(op, in_flight)
        entered = _Walk(self.accesses, dict(alone.barriers))
        end = entered.trips(op, state)
        more = dict(entered.barriers.items() - alone.barriers.items())
        if more:
            memory = reduce(stronger, more.values())
            self.barriers = {**alone.barriers, op: memory}
            return self.trips(op, state.after_barrier(memory))
        self.barriers = entered.barriers
        return end
