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
accesses through one pointer argument conflict if one writes, unless the same thread makes both.
Atomics publish and acquire for the whole program: those that release come after all earlier
accesses, those that acquire before all later ones; two that commute need no order.

Units that multiply from shared memory, or copy boxes to it, see what threads did there only after
a fence of the threads; barriers carry it (`proxy`). A slot that boxes are copied to again and again
needs no barrier of all threads: warps arrive at an mbarrier when they have read it, and who copies
waits there. What products read takes no fence, as they and the copies are units alike; what
threads read themselves (`local_load`) does, by each of them before its warp arrives.

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

from dataclasses import dataclass, field
from typing import Any

from mlir import ir

from tiledsl.dialects import tgpu, tile
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.layouts import Layouts
from tiledsl.transforms.kernels import body, kernels
from tiledsl.transforms.memory_accesses import Accesses, State
from tiledsl.transforms.shared_uses import buffer_uses


def insert_barriers(module: ir.Module) -> None:
    """Run the pass described above on `module`, in place."""
    layouts = Layouts(module)
    for op in list(operations(module.operation)):
        if isinstance(op, tile.BarrierOp):
            tgpu.BarrierOp.build(memory="all", loc=op.location, ip=ir.InsertionPoint(op))
            op.operation.erase()
    for kernel in kernels(module):
        for op, memory in _needed(kernel, Accesses(kernel, layouts)).items():
            tgpu.BarrierOp.build(memory=memory, loc=op.location, ip=ir.InsertionPoint(op))
        _order_proxies(kernel)


_BY_UNITS = (tgpu.WarpgroupMmaOp, tgpu.BoxCopyOp)
_BY_THREADS = (tgpu.LocalStoreOp, tgpu.LocalLoadOp, tgpu.AsyncCopyOp, tgpu.ShareResultOp)
_LOOPS = ("scf.for", "scf.while")


def _order_proxies(kernel: ir.OpView) -> None:
    """Let barriers order what threads do to shared memory with what units do to it.

    In loops in which threads themselves leave it alone the fence stands before the loop.
    """
    if not any(isinstance(op, _BY_UNITS) for op in operations(kernel.operation)):
        return
    yes = ir.BoolAttr.get(True, kernel.operation.context)
    fenced: set[ir.Operation] = set()
    for op in list(operations(kernel.operation)):
        if isinstance(op, tgpu.MbarrierArriveOp) and any(map(_threads_read, op.slots)):
            op.operation.attributes["proxy"] = yes
        if not isinstance(op, tgpu.BarrierOp | tgpu.ShareResultOp):
            continue
        idle = _outermost_idle_loop(op)
        if idle is None:
            op.operation.attributes["proxy"] = yes
        elif idle not in fenced:
            fenced.add(idle)
            tgpu.ProxyFenceOp.build(loc=idle.location, ip=ir.InsertionPoint(idle))


def _threads_read(slot: ir.Value) -> bool:
    """Whether threads themselves read the buffer that a slot belongs to."""
    buffer = slot.owner.buffer if isinstance(slot.owner, tgpu.SlotOp) else slot
    return any(isinstance(user, tgpu.LocalLoadOp) for user in buffer_uses(buffer).users)


def _outermost_idle_loop(op: ir.OpView) -> ir.Operation | None:
    """Return the outermost loop around an op in which no thread accesses shared memory itself."""
    found: ir.Operation | None = None
    around: Any = op.operation.parent
    while around.name != "func.func":
        if around.name in _LOOPS:
            if any(isinstance(one, _BY_THREADS) for one in operations(around)):
                break
            found = around.operation
        around = around.parent
    return found


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
class _Walk:
    """The walk over a kernel: where barriers must stand, found so far.

    A barrier once found stays, so the walk round a loop ends: what flows in only grows.
    """

    accesses: Accesses
    barriers: dict[ir.Operation, str] = field(default_factory=dict[ir.Operation, str])
    only_check: bool = False
    """Whether only the presence of all barriers is asked, not where the best place is."""

    def block(self, block: ir.Block, state: State) -> State:
        """Walk a block and give what may have happened at its end."""
        for op in block.operations:
            match op.operation.name:
                case "scf.for":
                    state = self._for(op.operation, state)
                case "scf.while":
                    state = self._while(op.operation, state)
                case "scf.if":
                    state = self._if(op.operation, state)
                case _:
                    state = self._op(op, state)
        return state

    def _op(self, op: ir.OpView, state: State) -> State:
        """Decide on a barrier before an op and let the op happen."""
        if isinstance(op, tgpu.BarrierOp):
            return state.after_barrier(op.memory)
        found = self.accesses.of(op)
        if found is None:
            return state
        operation = op.operation
        wanted = state.conflict(found)
        known = self.barriers.get(operation)
        if wanted and known != "all":
            known = self.barriers[operation] = wanted
        if known:
            state = state.after_barrier(known)
        return state.then(found)

    def _if(self, op: ir.Operation, state: State) -> State:
        ends = [self.block(region.blocks[0], state) for region in op.regions if len(region.blocks)]
        if len(ends) < 2:
            ends.append(state)
        return ends[0].joined(ends[1])

    def _for(self, op: ir.Operation, state: State) -> State:
        """Walk a loop: what only its first trip waits for is waited for before it."""
        if op in self.barriers:
            state = state.after_barrier(self.barriers[op])
        if self.only_check:
            return self._trips(op, state)
        alone = _Walk(self.accesses, dict(self.barriers))
        alone._trips(op, State(copies=state.copies))
        entered = _Walk(self.accesses, dict(alone.barriers))
        end = entered._trips(op, state)
        more = dict(entered.barriers.items() - alone.barriers.items())
        if more:
            memory = "all" if "all" in more.values() else "shared"
            self.barriers = {**alone.barriers, op: memory}
            return self._trips(op, state.after_barrier(memory))
        self.barriers = entered.barriers
        return end

    def _trips(self, op: ir.Operation, state: State) -> State:
        entry = state.entering(op)
        while True:
            end = self.block(op.regions[0].blocks[0], entry)
            merged = entry.joined(end.next_trip(op))
            if merged == entry:
                return end.leaving(op).joined(state)
            entry = merged

    def _while(self, op: ir.Operation, state: State) -> State:
        entry = state
        while True:
            decided = self.block(op.regions[0].blocks[0], entry)
            end = self.block(op.regions[1].blocks[0], decided)
            merged = entry.joined(end.next_trip(op))
            if merged == entry:
                return decided.leaving(op)
            entry = merged
