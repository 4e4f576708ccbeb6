"""What each op does to memory, and what may have happened since the last barrier.

`Accesses` reads ops into `Action`s; a `State` is the set of accesses that no barrier has ordered
yet. Both are values: states compare equal and join, so that a walk round a loop can tell when
nothing changes. `insert_barriers` has the rules in prose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from mlir import ir

from tiledsl.dialects import tgpu, tile
from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layouts import Layouts
from tiledsl.dialects.types import held_by, is_pointer, is_tile, shape_of
from tiledsl.transforms.rewrite import is_used, terminator
from tiledsl.transforms.shared_uses import buffer_bytes, reads_shared
from tiledsl.transforms.slot_index import UNKNOWN, Slot, slot_of

THREAD_0 = "thread 0"
Maker = tuple[ir.Value, LinearLayout] | str
"""Who makes an access: threads by pointers and layout, or the first thread alone."""


@dataclass(frozen=True)
class Shared:
    """An access of a shared buffer.

    Attributes:
        buffer: The `tgpu.alloc`.
        start: First byte of the buffer, and
        end: one past the last; both 0 before buffers are placed.
        slot: Which slot.
        writes: Whether it writes.
        layout: How threads share the tile; None if several may touch one element.
        guarded: Whether mbarriers order it after all that was done to the same buffer.
    """

    buffer: ir.Operation
    start: int
    end: int
    slot: Slot
    writes: bool
    layout: LinearLayout | None
    guarded: bool = False

    def conflicts(self, later: Shared) -> bool:
        """Whether a barrier must stand between this and a later access."""
        if not (self.writes or later.writes):
            return False
        if self.buffer != later.buffer:
            return self.start < later.end and later.start < self.end
        if later.guarded:
            return False
        same_thread = self.layout is not None and self.layout == later.layout
        return not same_thread and not self.slot.differs(later.slot)


_NOTHING = frozenset[Shared]()


@dataclass(frozen=True)
class Global:
    """An access of global memory.

    Attributes:
        bases: Numbers of the kernel's arguments that the pointers come from; None if unknown.
        writes: Whether it writes.
        maker: Who makes it, where that is one thread for each element.
        kind: For atomics whose result is not used, the operation: two of one kind commute.
        acquires: Whether everything later comes after it.
        releases: Whether everything earlier comes before it.
    """

    bases: frozenset[int] | None
    writes: bool
    maker: Maker | None = None
    kind: str | None = None
    acquires: bool = False
    releases: bool = False

    def conflicts(self, later: Global) -> bool:
        """Whether a barrier must stand between this and a later access."""
        if self.maker == later.maker == THREAD_0:
            return False
        if self.acquires or later.releases:
            return True
        if not (self.writes or later.writes) or (self.kind and self.kind == later.kind):
            return False
        if self.maker is not None and self.maker == later.maker:
            return False
        return self.bases is None or later.bases is None or bool(self.bases & later.bases)


@dataclass(frozen=True)
class Action:
    """What an op does, in order: accesses, an inner barrier, and what follows it.

    Attributes:
        shared: Accesses of shared memory.
        copies: Shared buffers that asynchronous copies begin to write.
        waits: Copies groups that may stay in flight, where the op waits.
        touched: Accesses of global memory.
        after: Shared accesses behind the op's own barrier, where it has one.
        flying: Shared accesses that go on until a product is waited for.
        lands: Products that may stay in flight, where the op waits for the others.
        checked: Shared accesses that must not meet earlier ones, and that later ones wait for by
            themselves, at a transaction barrier.
        given_up: Shared accesses of others that the op lets happen, when products are over.
    """

    shared: tuple[Shared, ...] = ()
    copies: tuple[Shared, ...] = ()
    waits: int | None = None
    touched: tuple[Global, ...] = ()
    after: tuple[Shared, ...] | None = None
    flying: tuple[Shared, ...] | None = None
    lands: int | None = None
    checked: tuple[Shared, ...] = ()
    given_up: tuple[Shared, ...] = ()


@dataclass(frozen=True)
class State:
    """The accesses that may have happened since the last barrier, and those in flight.

    Attributes:
        shared: Accesses of shared memory since the last barrier.
        copies: What asynchronous copies in flight write.
        touched: Accesses of global memory since the last barrier.
        flying: What products in flight read, the latest product first.
    """

    shared: frozenset[Shared] = frozenset()
    copies: frozenset[Shared] = frozenset()
    touched: frozenset[Global] = frozenset()
    flying: tuple[frozenset[Shared], ...] = ()

    def conflict(self, action: Action) -> str:
        """Give the kind of barrier that must stand before an action, "" for none."""
        if any(old.conflicts(new) for old in self.touched for new in action.touched):
            return "all"
        new_shared = (*action.shared, *action.copies, *action.checked)
        for old in (one for product in self.flying for one in product):
            if any(old.conflicts(new) for new in (*new_shared, *action.given_up)):
                raise CompilerBug(f"expected {old} to be waited for before it is overwritten")
        new_shared += action.flying or ()
        if any(old.conflicts(new) for old in self.shared for new in new_shared):
            return "shared"
        return ""

    def after_barrier(self, memory: str) -> State:
        """Give what is left to be ordered after a barrier."""
        touched = frozenset[Global]() if memory == "all" else self.touched
        return replace(self, shared=frozenset(), touched=touched)

    def then(self, action: Action) -> State:
        """Give the state after an action."""
        if action.waits is not None:
            left = frozenset[Shared]() if action.waits == 0 else self.copies
            return replace(self, shared=self.shared | self.copies, copies=left)
        if action.after is not None:
            return replace(self, shared=frozenset(action.after), touched=frozenset())
        if action.flying is not None:
            return replace(self, flying=(frozenset(action.flying), *self.flying))
        if action.lands is not None:
            landed = self.shared.union(*self.flying[action.lands :])
            return replace(self, shared=landed, flying=self.flying[: action.lands])
        return replace(
            self,
            shared=self.shared.union(action.shared),
            # Which groups a wait waits for is not followed: the whole buffer is as good as copied.
            copies=self.copies.union(replace(one, slot=UNKNOWN) for one in action.copies),
            touched=self.touched.union(action.touched),
        )

    def joined(self, other: State) -> State:
        """Give what may have happened on either of two ways."""
        return State(
            self.shared | other.shared,
            self.copies | other.copies,
            self.touched | other.touched,
            tuple(a | b for a, b in zip_longest(self.flying, other.flying, fillvalue=_NOTHING)),
        )

    def _with_slots(self, restated: Callable[[Slot], Slot]) -> State:
        """Restate the slots of what is read and written."""

        def all_of(some: frozenset[Shared]) -> frozenset[Shared]:
            return frozenset(replace(one, slot=restated(one.slot)) for one in some)

        return replace(self, shared=all_of(self.shared), flying=tuple(map(all_of, self.flying)))

    def entering(self, loop: ir.Operation) -> State:
        """Restate the state before a loop for its first trip."""
        return self._with_slots(lambda slot: slot.on_entry(loop))

    def next_trip(self, loop: ir.Operation) -> State:
        """Restate the state at the end of a trip for the next one.

        A pointer computed in the loop has another value by then.
        """
        touched = {
            replace(one, maker=None)
            if isinstance(one.maker, tuple) and _inside(one.maker[0], loop)
            else one
            for one in self.touched
        }
        restated = self._with_slots(lambda slot: slot.next_trip(loop))
        return replace(restated, touched=frozenset(touched))

    def leaving(self, loop: ir.Operation) -> State:
        """Restate the state at the end of a loop's last trip for what follows."""
        return self._with_slots(lambda slot: slot.on_exit(loop))


def _inside(value: ir.Value, loop: ir.Operation) -> bool:
    owner = value.owner
    op = owner.owner.operation if isinstance(owner, ir.Block) else owner.operation.parent
    while op is not None and op.name != "func.func":
        if op.operation == loop:
            return True
        op = op.parent
    return False


@dataclass
class Accesses:
    """Reads what a kernel's ops do; the answers are kept."""

    kernel: ir.OpView
    layouts: Layouts
    _actions: dict[ir.Operation, Action | None] = field(
        default_factory=dict[ir.Operation, Action | None]
    )
    _bases: dict[ir.Value, frozenset[int] | None] = field(
        default_factory=dict[ir.Value, frozenset[int] | None]
    )

    def of(self, op: ir.OpView) -> Action | None:
        """Give what an op does to memory, None for nothing."""
        operation = op.operation
        if operation not in self._actions:
            self._actions[operation] = self._read(op)
        return self._actions[operation]

    def _read(self, op: ir.OpView) -> Action | None:
        match op:
            case tgpu.LocalStoreOp():
                return Action((self._shared(op.buffer, True, op.tile.type),))
            case tgpu.LocalLoadOp():
                return Action((self._shared(op.buffer, False, op.tile.type),))
            case tgpu.AsyncCopyOp():
                copy = self._shared(op.buffer, True, None)
                return Action(copies=(copy,), touched=(self._global(op.ptr, False),))
            case tgpu.WarpgroupMmaOp():
                read = [op.operation.operands[i] for i in (0, 1) if reads_shared(op, i)]
                return Action(flying=tuple(self._shared(buffer, False, None) for buffer in read))
            case tgpu.WarpgroupWaitOp():
                return Action(lands=op.pending)
            case tgpu.AsyncWaitOp():
                return Action(waits=op.pending)
            case tgpu.BoxCopyOp():
                written = replace(self._shared(op.buffer, True, None), guarded=op.guarded)
                return Action(
                    checked=(written,),
                    touched=(self._global(op.box.base, False),),
                )
            case tgpu.MbarrierInitOp() | tgpu.MbarrierEndOp():
                return Action((self._shared(op.barriers, True, None),))
            case tgpu.MbarrierWaitOp():
                return Action((self._shared(op.barrier, False, None),))
            case tgpu.MbarrierArriveOp():
                slots = tuple(self._shared(slot, True, None) for slot in op.slots)
                return Action((self._shared(op.barrier, False, None),), given_up=slots)
            case tgpu.ShareResultOp():
                write, read = (self._shared(op.buffer, writes, None) for writes in (True, False))
                return Action((write,), after=(read,))
            case tile.LoadOp():
                return Action(touched=(self._global(op.ptr, False),))
            case tile.StoreOp():
                return Action(touched=(self._global(op.ptr, True),))
            case tile.AtomicRmwOp() | tile.AtomicCasOp():
                return Action(touched=(self._atomic(op),))
            case _:
                return None

    def _shared(self, buffer: ir.Value, writes: bool, type_: ir.Type | None) -> Shared:
        slot = Slot.constant(0, 1)
        op = buffer.owner
        if isinstance(op, tgpu.SlotOp):
            slot = slot_of(op.index, shape_of(held_by(op.buffer.type))[0])
            op = op.buffer.owner
        if not isinstance(op, tgpu.AllocOp):
            raise CompilerBug(f"expected a buffer that `tgpu.alloc` made, found {buffer}")
        start = op.offset
        end = 0 if start is None else start + buffer_bytes(op.buffer.type)
        return Shared(op.operation, start or 0, end, slot, writes, self._by_one(type_))

    def _by_one(self, type_: ir.Type | None) -> LinearLayout | None:
        """Give the layout of a tile of which each element belongs to one thread."""
        if type_ is None or not is_tile(type_):
            return None
        layout = self.layouts.of(type_)
        free = layout.free_masks()
        return None if free["lane"] or free["warp"] or free["block"] else layout

    def _global(self, ptr: ir.Value, writes: bool) -> Global:
        if not is_tile(ptr.type):
            return Global(self.bases(ptr), writes, THREAD_0 if writes else None)
        layout = self._by_one(ptr.type)
        return Global(self.bases(ptr), writes, None if layout is None else (ptr, layout))

    def _atomic(self, op: tile.AtomicRmwOp | tile.AtomicCasOp) -> Global:
        used = is_used(op.old)
        kind = None if used or isinstance(op, tile.AtomicCasOp) else op.kind
        return replace(
            self._global(op.ptr, True),
            kind=None if kind == "xchg" else kind,
            acquires=used and op.sem in ("acquire", "acq_rel"),
            releases=op.sem in ("release", "acq_rel"),
        )

    def bases(self, ptr: ir.Value) -> frozenset[int] | None:
        """Give the kernel's arguments that a pointer may come from, None if that is unknown."""
        if ptr not in self._bases:
            self._bases[ptr] = pointer_bases(ptr, self.kernel)
        return self._bases[ptr]


def pointer_bases(ptr: ir.Value, kernel: ir.OpView) -> frozenset[int] | None:
    """Give the kernel's arguments that a pointer may come from, None if that is unknown."""
    found: set[int] = set()
    seen: set[ir.Value] = set()
    stack = [ptr]
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        owner = value.owner
        if isinstance(owner, ir.Block) and owner.owner.operation == kernel.operation:
            found.add(ir.BlockArgument(value).arg_number)
            continue
        sources = pointer_sources(value)
        if not sources:
            return None
        stack += sources
    return frozenset(found)


def written_arguments(kernel: ir.OpView) -> list[int]:
    """Give the arguments that a kernel may write through, as far as its pointers can be traced."""
    written: set[int] = set()

    def note(op: ir.Operation) -> ir.WalkResult:
        match op.opview:
            case tile.StoreOp() | tile.AtomicRmwOp() | tile.AtomicCasOp() as write:
                written.update(pointer_bases(write.ptr, kernel) or ())
            case tile.DescriptorStoreOp() as write:
                written.update(pointer_bases(write.box.base, kernel) or ())
            case _:
                pass
        return ir.WalkResult.ADVANCE

    kernel.operation.walk(note, ir.WalkOrder.PRE_ORDER)
    return sorted(written)


def pointer_sources(value: ir.Value) -> list[ir.Value]:
    """Give the pointers that a pointer is computed from or flows from; none if unknown."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        op, number = owner.owner.operation, ir.BlockArgument(value).arg_number
        if op.name == "scf.for":
            return [op.operands[2 + number], _end(op, 0).operands[number - 1]]
        if op.name == "scf.while":
            before = owner == op.regions[0].blocks[0]
            if before:
                return [op.operands[number], _end(op, 1).operands[number]]
            return [_end(op, 0).operands[number + 1]]
        return []
    op, number = owner.operation, ir.OpResult(value).result_number
    match op.name:
        case "scf.for":
            return [op.operands[3 + number], _end(op, 0).operands[number]]
        case "scf.while":
            return [_end(op, 0).operands[number + 1]]
        case "scf.if":
            return [_end(op, side).operands[number] for side in range(2)]
        case "tile.load":
            return []
        case _:
            return [one for one in op.operands if is_pointer(one.type)]


def _end(op: ir.Operation, region: int) -> ir.Operation:
    return terminator(op.regions[region].blocks[0])
