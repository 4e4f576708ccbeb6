"""Wait for copies from shared memory to tensors where something depends on them, and not before.

A copy (`tgpu.box_store`) takes effect when it likes. What comes later must find things as if it had
been done at once, so a `tgpu.store_wait` stands

- before what writes the bytes that a copy reads: until it has read them;
- before what reads or writes what a copy writes, or may: until it is complete. `stores_in_flight`
  says which accesses those are: in short, those through the same argument that are not provably
  elsewhere, and releases, which promise others that earlier writes are done;
- before the author's own barriers: until all are complete;
- at the kernel's end: until shared memory has been read, for it is gone then. Tensors are complete
  when the grid is.

It lets as many later copies go on as it can. Only threads that issue copies wait; the barrier that
the others need is found by `insert_barriers`, to which a copy that was waited for is an access like
others. What only the first trip of a loop would wait for is waited for before the loop.

Before: the `tgpu` level, after `place_shared`: buffers that share bytes are known.
After: the same with every `tgpu.store_wait` that is needed.

    "tgpu.box_store"(%b, ...)
    "tgpu.local_store"(%t, %b)
becomes
    "tgpu.box_store"(%b, ...)
    "tgpu.store_wait"() {pending = 0, read = true}
    "tgpu.local_store"(%t, %b)
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mlir import ir

from tiledsl.dialects import tgpu, tile
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.layouts import Layouts
from tiledsl.transforms.kernels import body, kernels
from tiledsl.transforms.memory_accesses import Accesses
from tiledsl.transforms.memory_state import State
from tiledsl.transforms.program_walk import ProgramWalk
from tiledsl.transforms.stores_in_flight import Flight, Wait


def wait_for_stores(module: ir.Module) -> None:
    """Run the pass described above on `module`, in place."""
    layouts = Layouts(module)
    for kernel in kernels(module):
        if not any(isinstance(op, tgpu.BoxStoreOp) for op in operations(kernel.operation)):
            continue
        walk = _Walk(Accesses(kernel, layouts))
        walk.block(body(kernel), State())
        for op, wait in walk.waits.items():
            tgpu.StoreWaitOp.build(
                pending=wait.pending,
                read=wait.read or None,
                loc=op.location,
                ip=ir.InsertionPoint(op),
            )


@dataclass
class _Walk(ProgramWalk[State]):
    """The walk over a kernel: where waits must stand, found so far.

    A wait once found stays, so the walk round a loop ends. Of the state only what is in flight is
    used.
    """

    accesses: Accesses
    waits: dict[ir.Operation, Wait] = field(default_factory=dict[ir.Operation, Wait])

    def op(self, op: ir.OpView, state: State) -> State:
        """Decide on a wait before an op and let the op happen."""
        action = self.accesses.of(op)
        match op:
            case tile.BarrierOp():
                wanted = state.storing.all(read=False)
            case _ if op.operation.name == "func.return":
                wanted = state.storing.all(read=True)
            case _:
                wanted = None if action is None else state.awaited(action)
        if wanted is not None:
            self.waits[op.operation] = wanted.joined(self.waits.get(op.operation))
        state = self._waited(op.operation, state)
        if action is None or not action.stores:
            return state
        return _flight(state.storing.issued(action.stores))

    def _waited(self, op: ir.Operation, state: State) -> State:
        """Give the state after the wait before an op, if there is one."""
        wait = self.waits.get(op)
        return state if wait is None else _flight(state.storing.after(wait))

    def loop(self, op: ir.Operation, state: State) -> State:
        """Walk a loop: what only its first trip waits for is waited for before it."""
        state = self._waited(op, state)
        alone = _Walk(self.accesses, dict(self.waits))
        alone.trips(op, State())
        entered = _Walk(self.accesses, dict(alone.waits))
        end = entered.trips(op, state)
        self.waits = alone.waits
        if entered.waits == alone.waits:
            return end
        more = [wait for one, wait in entered.waits.items() if alone.waits.get(one) != wait]
        found: Wait = more[0]
        for wait in more[1:]:
            found = found.joined(wait)
        self.waits[op] = replace(found, pending=0).joined(self.waits.get(op))
        return self.trips(op, self._waited(op, state))


def _flight(storing: Flight) -> State:
    return State(storing=storing)
