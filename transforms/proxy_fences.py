"""Let barriers order what threads do to memory with what units do to it by themselves.

Units that multiply from shared memory (`tgpu.warpgroup_mma`), or copy boxes to or from it, look at
memory another way than loads and stores do. What a thread did is visible to them after a fence of
that thread, and a barrier that tells whoever sets the unit to work. Going over the program, each
access by threads is remembered with the first barrier behind it; if a unit's access conflicts with
it, that barrier carries the fence (`proxy`). An access before a loop whose first barrier is in the
loop is fenced before the loop.

Where warps arrive at an mbarrier to give up what they have read, each thread fences before, if
threads read such slots themselves; what products read takes no fence, as they and copies are units
alike. The other way round no fence is needed: to see that a unit is done is to see what it did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from mlir import ir

from tiledsl.dialects import tgpu
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.transforms.access import Global, Shared
from tiledsl.transforms.kernels import body
from tiledsl.transforms.memory_accesses import Accesses
from tiledsl.transforms.memory_state import Action
from tiledsl.transforms.program_walk import ProgramWalk
from tiledsl.transforms.shared_uses import buffer_uses
from tiledsl.transforms.slot_index import Slot

_UNITS = (tgpu.WarpgroupMmaOp, tgpu.BoxCopyOp, tgpu.BoxStoreOp)
_BARRIERS = (tgpu.BarrierOp, tgpu.WarpgroupBarrierOp, tgpu.ShareResultOp)
_LOOPS = ("scf.for", "scf.while")


@dataclass(frozen=True)
class _Seen:
    """An access by threads that no fence came after, and the first barrier that did."""

    access: Shared | Global
    op: ir.Operation
    barrier: ir.Operation | None = None

    @property
    def memory(self) -> str:
        """Which memory a fence behind it is for."""
        return "shared" if isinstance(self.access, Shared) else "all"


@dataclass(frozen=True)
class _State:
    """The accesses that no fence came after."""

    seen: frozenset[_Seen] = frozenset()
    copies: frozenset[Shared] = frozenset()
    """What asynchronous copies in flight write: as if by threads, when they are waited for."""

    def joined(self, other: _State) -> _State:
        """Give what may have happened on either of two ways."""
        return _State(self.seen | other.seen, self.copies | other.copies)

    def also(self, accesses: Iterable[Shared | Global], op: ir.OpView) -> _State:
        """Give the state after accesses by threads."""
        more = (_Seen(one, op.operation) for one in accesses)
        return replace(self, seen=self.seen.union(more))

    def _with_slots(self, restated: Callable[[Slot], Slot]) -> _State:
        def one(seen: _Seen) -> _Seen:
            access = seen.access
            if isinstance(access, Shared):
                access = replace(access, slot=restated(access.slot))
            return replace(seen, access=access)

        return replace(self, seen=frozenset(map(one, self.seen)))

    def entering(self, loop: ir.Operation) -> _State:
        """Restate the state before a loop for its first trip."""
        return self._with_slots(lambda slot: slot.on_entry(loop))

    def next_trip(self, loop: ir.Operation) -> _State:
        """Restate the state at the end of a trip for the next one."""
        return self._with_slots(lambda slot: slot.next_trip(loop))

    def leaving(self, loop: ir.Operation) -> _State:
        """Restate the state at the end of a loop's last trip for what follows."""
        return self._with_slots(lambda slot: slot.on_exit(loop))


def order_proxies(kernel: ir.OpView, accesses: Accesses) -> None:
    """Put fences into a kernel whose barriers are complete."""
    if not any(isinstance(op, _UNITS) for op in operations(kernel.operation)):
        return
    walk = _Walk(accesses)
    before: dict[ir.Operation, str] | None = None
    while before != walk.fences:
        before = dict(walk.fences)
        walk.block(body(kernel), _State())
    yes = ir.BoolAttr.get(True, kernel.operation.context)
    for op in operations(kernel.operation):
        if isinstance(op, tgpu.MbarrierArriveOp) and any(map(_threads_read, op.slots)):
            op.operation.attributes["proxy"] = yes
    for op, memory in walk.fences.items():
        if memory == "shared" and isinstance(op.opview, _BARRIERS):
            op.attributes["proxy"] = yes
        else:
            tgpu.ProxyFenceOp.build(memory=memory, loc=op.location, ip=ir.InsertionPoint(op))


@dataclass
class _Walk(ProgramWalk[_State]):
    """The walk over a kernel.

    Attributes:
        accesses: What its ops do.
        fences: By barrier or loop, which memory a fence before it is for, found so far.
    """

    accesses: Accesses
    fences: dict[ir.Operation, str] = field(default_factory=dict[ir.Operation, str])

    def op(self, op: ir.OpView, state: _State) -> _State:
        """Ask for the fences that an op needs, and let the op happen."""
        action = self.accesses.of(op)
        if isinstance(op, _UNITS):
            assert action is not None  # units access memory
            self._need(action, state)
            return state
        if action is None:
            return self._behind(op, state) if isinstance(op, _BARRIERS) else state
        if action.waits is not None:
            left = state.copies if action.waits else frozenset[Shared]()
            return replace(state.also(state.copies, op), copies=left)
        state = replace(state, copies=state.copies.union(action.copies))
        state = state.also((*action.shared, *action.touched), op)
        if isinstance(op, _BARRIERS):
            state = self._behind(op, state).also(action.after or (), op)
        return state

    def loop(self, op: ir.Operation, state: _State) -> _State:
        """Walk a loop, before which there may be a fence."""
        return self.trips(op, self._fenced(op, state))

    def _fenced(self, op: ir.Operation, state: _State) -> _State:
        memory = self.fences.get(op)
        if memory is None:
            return state
        kept = () if memory == "all" else (one for one in state.seen if one.memory == "all")
        return replace(state, seen=frozenset(kept))

    def _behind(self, op: ir.OpView, state: _State) -> _State:
        """Give the state behind a barrier."""
        left = self._fenced(op.operation, state)
        met = {one if one.barrier else replace(one, barrier=op.operation) for one in left.seen}
        return replace(left, seen=frozenset(met))

    def _need(self, action: Action, state: _State) -> None:
        """Ask for a fence for each access by threads that one of a unit conflicts with."""
        shared = (*action.checked, *(action.flying or ()))
        shared += tuple(one.source for one in action.stores if one.source is not None)
        touched = (*action.touched, *(one.target for one in action.stores))
        for one in state.seen:
            access = one.access
            if isinstance(access, Shared):
                conflicts = any(access.conflicts(new) for new in shared)
            else:
                conflicts = any(access.conflicts(new) for new in touched)
            if conflicts:
                self._ask(one)

    def _ask(self, one: _Seen) -> None:
        """Put a fence before the first barrier behind an access, or the loop that this is in."""
        if one.barrier is None:
            raise CompilerBug(f"expected a barrier between a unit and {one.op}")
        place = one.barrier
        held = list(_loops_around(one.op))
        for loop in _loops_around(one.barrier):
            if loop not in held:
                place = loop
        known = self.fences.get(place)
        self.fences[place] = "all" if "all" in (known, one.memory) else "shared"


def _threads_read(slot: ir.Value) -> bool:
    """Whether threads themselves read the buffer that a slot belongs to."""
    buffer = slot.owner.buffer if isinstance(slot.owner, tgpu.SlotOp) else slot
    return any(isinstance(user, tgpu.LocalLoadOp) for user in buffer_uses(buffer).users)


def _loops_around(op: ir.Operation) -> Iterator[ir.Operation]:
    """Yield the loops around an op, from the inside out."""
    parent: Any = op.parent
    while parent.name != "func.func":
        if parent.name in _LOOPS:
            yield parent.operation
        parent = parent.parent
