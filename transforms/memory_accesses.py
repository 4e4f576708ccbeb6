"""What each op does to memory.

`Accesses` reads ops into `Action`s (`memory_state`): which bytes of shared memory, or which of the
kernel's arguments, an op reads or writes, and who does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from mlir import ir

from tiledsl.dialects import tgpu, tile
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layouts import Layouts
from tiledsl.dialects.types import element_of, held_by, is_float, is_pointer, is_tile, shape_of
from tiledsl.transforms.access import THREAD_0, Global, Region, Shared
from tiledsl.transforms.axis_facts import AxisFacts
from tiledsl.transforms.memory_state import Action
from tiledsl.transforms.rewrite import is_used, terminator
from tiledsl.transforms.shared_uses import buffer_bytes, buffer_uses, reads_shared
from tiledsl.transforms.slot_index import Slot, constant_of, slot_of
from tiledsl.transforms.stores_in_flight import BoxStore, Wait
from tiledsl.transforms.trip_stripes import stripe_of

_GLOBAL = (tile.LoadOp, tile.StoreOp, tile.AtomicRmwOp, tile.AtomicCasOp, tgpu.AsyncCopyOp)
_MEETINGS = (tgpu.BarrierOp, tgpu.WarpgroupBarrierOp)


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
    _acting: dict[ir.Block, Sequence[tuple[str, ir.OpView]]] = field(
        default_factory=dict[ir.Block, Sequence[tuple[str, ir.OpView]]]
    )

    def of(self, op: ir.OpView) -> Action | None:
        """Give what an op does to memory, None for nothing."""
        operation = op.operation
        if operation not in self._actions:
            self._actions[operation] = self._read(op)
        return self._actions[operation]

    def acting(self, block: ir.Block) -> Sequence[tuple[str, ir.OpView]]:
        """Give the ops of a block that do something to memory, meet, or hold others; by name."""
        if block not in self._acting:
            named = [(op.operation.name, op) for op in block.operations]
            self._acting[block] = [
                (name, op)
                for name, op in named
                if name.startswith("scf.") or isinstance(op, _MEETINGS) or self.of(op) is not None
            ]
        return self._acting[block]

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
            case tgpu.BoxStoreOp():
                source = self._shared(op.buffer, False, None)
                return Action(stores=(BoxStore(source, self._box(op)),))
            case tgpu.StoreWaitOp():
                return Action(store_wait=Wait(op.pending, op.read))
            case tgpu.MbarrierInitOp() | tgpu.MbarrierEndOp():
                return Action((self._shared(op.barriers, True, None),))
            case tgpu.MbarrierWaitOp() | tgpu.MbarrierExpectOp():
                return Action((self._shared(op.barrier, False, None),))
            case tgpu.MbarrierArriveOp():
                slots = tuple(self._shared(slot, True, None) for slot in op.slots)
                return Action((self._shared(op.barrier, False, None),), given_up=slots)
            case tgpu.ShareResultOp():
                write, read = (self._shared(op.buffer, writes, None) for writes in (True, False))
                return Action((write,), after=(read,), alone=self.split)
            case tile.LoadOp():
                return Action(touched=(self._global(op.ptr, False),))
            case tile.StoreOp():
                return Action(touched=(self._global(op.ptr, True),))
            case tile.AtomicRmwOp() | tile.AtomicCasOp():
                return Action(touched=(self._atomic(op),))
            case _:
                return None

    def may_meet(self) -> bool:
        """Whether the order of global memory may make the blocks that run a program meet.

        That is asked before `insert_barriers` knows, and then in doubt yes.
        """
        if not self.split:
            return False
        ops = list(operations(self.kernel.operation))
        touched = [(op, one) for op in ops for one in self._touched(op)]
        for number, (op, one) in enumerate(touched):
            if one.writes and _in_loop(op) and not _goes_round(op, one):
                return True
            others = (other for _, other in touched[number + 1 :])
            if any(one.conflicts(other) or other.conflicts(one) for other in others):
                return True
        return any(isinstance(op, tile.BarrierOp) for op in ops)

    def _touched(self, op: ir.OpView) -> Sequence[Global]:
        if isinstance(op, tile.DescriptorLoadOp | tile.DescriptorStoreOp):
            return [Global(self.bases(op.box.base), isinstance(op, tile.DescriptorStoreOp))]
        found = self.of(op) if isinstance(op, _GLOBAL) else None
        return () if found is None else found.touched

    @cached_property
    def split(self) -> bool:
        """Whether several blocks run a program (`split_programs`): they share global memory."""
        return tile.NUM_CTAS in self.kernel.operation.attributes

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
        layout = self._by_one(type_)
        by_warpgroup = _by_warpgroup(op)
        return Shared(
            op.operation, start or 0, end, slot, writes, layout, by_warpgroup=by_warpgroup
        )

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
        if self.split:
            # What every block has whole several make, or one of them alone writes. And what one
            # touches in a trip another may touch in the next.
            return Global(self.bases(ptr), writes)
        layout = self._by_one(ptr.type)
        maker = None if layout is None else (ptr, layout)
        return Global(self.bases(ptr), writes, maker, stripe=stripe_of(ptr, self._facts))

    def _box(self, op: tgpu.BoxStoreOp) -> Global:
        """Read what a copy from shared memory writes.

        Of several blocks' boxes it must be known that those of the whole program are divided.
        """
        box, shape = op.box, shape_of(held_by(op.buffer.type))
        ones = (1,) * (len(box.indices) - len(shape))
        extents, starts = (*ones, *op.extents), (*(0 for _ in ones), *op.starts)
        divided = all(
            self._facts.of(index).divisor % extent == 0
            for index, extent in zip(box.indices, extents, strict=True)
        )
        divided = divided and (op.apart or not self.split)
        first = [
            (value, more + start)
            for (value, more), start in zip(map(_split, box.indices), starts, strict=True)
        ]
        region = Region(
            (box.base, *box.sizes, *box.strides),
            tuple(first),
            (*ones, *shape),
            starts,
            (extents, shape, *op.copied, *op.groups) if divided else None,
        )
        kind = None
        if op.adds:
            kind = "fadd" if is_float(element_of(held_by(op.buffer.type))) else "add"
        return Global(self.bases(box.base), True, kind=kind, region=region)

    @cached_property
    def _facts(self) -> AxisFacts:
        return AxisFacts(self.kernel)

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


def _in_loop(op: ir.OpView) -> bool:
    around = op.operation.parent
    while around is not None and around.operation.name != "func.func":
        if around.operation.name in ("scf.for", "scf.while"):
            return True
        around = around.operation.parent
    return False


def _goes_round(op: ir.OpView, one: Global) -> bool:
    """Whether a write needs no order with itself in another trip of a loop."""
    if isinstance(op, tile.DescriptorStoreOp):
        return op.apart
    return not one.conflicts(one)


def _by_warpgroup(alloc: tgpu.AllocOp) -> bool:
    """Whether each warpgroup has a part of a buffer, which others leave alone."""
    users = buffer_uses(alloc.buffer).users
    return any(isinstance(user, tgpu.BoxStoreOp) and user.by_warpgroup for user in users)


def _split(index: ir.Value) -> tuple[ir.Value, int]:
    """Return an index as a value and a constant that was added to it."""
    owner = index.owner
    if not isinstance(owner, ir.Block) and owner.operation.name == "arith.addi":
        left, right = owner.operation.operands
        more = constant_of(right)
        if more is not None:
            value, rest = _split(left)
            return value, rest + more
    return index, 0


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
