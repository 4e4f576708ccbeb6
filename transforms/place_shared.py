"""Give every shared buffer its bytes, so that buffers live at different times may share them.

A buffer lives from its first access to its last. A loop that it is accessed in but not allocated in
carries it around, so it lives through the whole loop; one allocated in the loop's body is a new one
each time. While an asynchronous copy may still be writing, its buffer lives: until an `async_wait`
with nothing pending, or to the end. Buffers that boxes are copied from one after the other, with no
loop between, live as long as the last of them, if there is room: the copies go on meanwhile. They
share no bytes at all where as many programs fit side by side without: then nobody waits to fill
them. Nor are transaction barriers given up outside of loops whose bytes nobody else wants.

Sharing bytes costs a barrier between the last access of one buffer and the first of the next;
`insert_barriers`, which runs later, sees the overlap and puts it in. That is worth it for kilobytes
out of loops, which decide how many programs fit on the machine at once. It is not for the few words
of a reduction, nor within a loop, as long as all together stays small.

Before: the `tgpu` level.
After: every `tgpu.alloc` has an `offset`; the kernel's `tgpu.shared_bytes` is the total.

    %s = "tgpu.alloc"() : () -> !tgpu.shared<tensor<64x64xf16, @shared0>>
becomes
    %s = "tgpu.alloc"() {offset = 0} : () -> !tgpu.shared<tensor<64x64xf16, @shared0>>
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mlir import ir

from tiledsl.dialects import tgpu
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.diagnostics import KernelError, Span
from tiledsl.transforms.kernels import kernels
from tiledsl.transforms.shared_plan import Lifetime, Placement, place
from tiledsl.transforms.shared_uses import buffer_bytes, buffer_uses

_SMALL_BYTES = 1024
_ROOM = 4
"""Programs that should fit side by side before sharing bytes within a loop pays."""
_LOOPS = ("scf.for", "scf.while")


def place_shared(module: ir.Module, *, limit: int) -> None:
    """Run the pass described above on `module`, in place.

    Args:
        module: The module.
        limit: Bytes of shared memory that one program can have.

    Raises:
        KernelError: The buffers that live at once need more.
    """
    i64 = ir.IntegerType.get_signless(64, module.context)
    for kernel in kernels(module):
        moments = _Moments.of(kernel)
        placement = _placed(moments, limit)
        for alloc, offset in zip(moments.allocs, placement.offsets, strict=True):
            alloc.operation.attributes["offset"] = ir.IntegerAttr.get(i64, offset)
        kernel.operation.attributes["tgpu.shared_bytes"] = ir.IntegerAttr.get(i64, placement.bytes)
        _keep_to_the_end(kernel, moments)


def fits(kernel: ir.OpView, limit: int) -> bool:
    """Whether a kernel's buffers, as they are used now, fit into `limit` bytes."""
    moments = _Moments.of(kernel)
    return place([moments.lifetime(alloc) for alloc in moments.allocs]).bytes <= limit


def _placed(moments: _Moments, limit: int) -> Placement:
    """Place a kernel's buffers, sharing no more than there is need to."""
    lifetimes = [moments.lifetime(alloc) for alloc in moments.allocs]
    flowing = [moments.lifetime(alloc, flowing=True) for alloc in moments.allocs]
    apart = [
        moments.through_loop(alloc, lifetime)
        for alloc, lifetime in zip(moments.allocs, flowing, strict=True)
    ]
    for some, lone in (
        (apart, _SMALL_BYTES), (flowing, _SMALL_BYTES), (lifetimes, _SMALL_BYTES), (lifetimes, 0),
    ):  # fmt: skip
        placement = place(some, lone)
        if placement.bytes <= (limit // _ROOM if some is apart else limit):
            alone = [
                replace(lifetime, start=0, end=moments.last) if _goes_out(alloc) else lifetime
                for alloc, lifetime in zip(moments.allocs, some, strict=True)
            ]
            other = place(alone, lone)
            return other if _fit(other, limit) == _fit(placement, limit) else placement
    raise _too_large(moments.allocs, lifetimes, place(lifetimes), limit)


def _fit(placement: Placement, limit: int) -> int:
    """Return how many programs fit side by side."""
    return limit // max(placement.bytes, 1)


def _goes_out(alloc: tgpu.AllocOp) -> bool:
    """Whether boxes are copied from a buffer to a tensor."""
    return any(isinstance(user, tgpu.BoxStoreOp) for user in buffer_uses(alloc.buffer).users)


def _keep_to_the_end(kernel: ir.OpView, moments: _Moments) -> None:
    """Give up no barriers whose bytes nobody wants: threads would have to meet for that."""
    spans = {alloc.operation: _span(alloc) for alloc in moments.allocs}
    for op in list(operations(kernel.operation)):
        if not isinstance(op, tgpu.MbarrierEndOp) or moments.loops[op.operation]:
            continue
        alloc = op.barriers.owner.operation
        start, end = spans[alloc]
        others = (span for other, span in spans.items() if other != alloc)
        if not any(start < last and first < end for first, last in others):
            op.operation.erase()


def _span(alloc: tgpu.AllocOp) -> tuple[int, int]:
    start = alloc.offset
    return start, start + buffer_bytes(alloc.buffer.type)


def _too_large(
    allocs: list[tgpu.AllocOp], lifetimes: list[Lifetime], placement: Placement, limit: int
) -> KernelError:
    """Point at the largest of the buffers."""
    largest = max(range(len(allocs)), key=lambda i: lifetimes[i].bytes)
    return KernelError(
        f"expected tiles that fit into shared memory: {placement.bytes} bytes wanted, "
        f"{limit} available",
        Span.of(allocs[largest].operation.location),
        hint="use smaller tiles or fewer stages",
    )


@dataclass
class _Moments:
    """The ops of a kernel numbered in program order; an op with regions ends after them."""

    begin: dict[ir.Operation, int] = field(default_factory=dict[ir.Operation, int])
    end: dict[ir.Operation, int] = field(default_factory=dict[ir.Operation, int])
    loops: dict[ir.Operation, tuple[ir.Operation, ...]] = field(
        default_factory=dict[ir.Operation, tuple[ir.Operation, ...]]
    )
    allocs: list[tgpu.AllocOp] = field(default_factory=list[tgpu.AllocOp])
    idle: list[int] = field(default_factory=list[int])
    """When no asynchronous copy is in flight, outside of loops."""
    last: int = 0

    @staticmethod
    def of(kernel: ir.OpView) -> _Moments:
        """Number the ops of a kernel."""
        moments = _Moments()
        moments._number(kernel.operation, ())
        return moments

    def _number(self, parent: ir.Operation, loops: tuple[ir.Operation, ...]) -> None:
        for region in parent.regions:
            for block in region.blocks:
                for op in block.operations:
                    operation = op.operation
                    self.last += 1
                    self.begin[operation] = self.last
                    self.loops[operation] = loops
                    match op:
                        case tgpu.AllocOp():
                            self.allocs.append(op)
                        case tgpu.AsyncWaitOp() if op.pending == 0 and parent.name == "func.func":
                            self.idle.append(self.last)
                        case _:
                            is_loop = operation.name in _LOOPS
                            self._number(operation, (*loops, operation) if is_loop else loops)
                    self.last += 1
                    self.end[operation] = self.last

    def lifetime(self, alloc: tgpu.AllocOp, *, flowing: bool = False) -> Lifetime:
        """Give when a buffer lives; one that is never accessed, at its allocation.

        Args:
            alloc: The buffer.
            flowing: Whether it lives while boxes are copied from other buffers, too.
        """
        operation = alloc.operation
        around = self.loops[operation]
        start: list[int] = []
        end: list[int] = []
        copied = False
        for user in buffer_uses(alloc.buffer).users:
            # The outermost loop around the access that is not around the allocation, if any.
            held = self.loops[user.operation][len(around) :]
            whole = held[0] if held else user.operation
            start.append(self.begin[whole])
            last_user = _last_of_row(user) if flowing and whole == user.operation else whole
            end.append(self.end[last_user])
            copied = copied or isinstance(user, tgpu.AsyncCopyOp)
        first = min(start, default=self.begin[operation])
        last = max(end, default=self.begin[operation])
        if copied:
            last = next((moment for moment in self.idle if moment >= last), self.last)
        return Lifetime(first, last, buffer_bytes(alloc.buffer.type), alloc.alignment)

    def through_loop(self, alloc: tgpu.AllocOp, lifetime: Lifetime) -> Lifetime:
        """Stretch a lifetime to the whole of the innermost loop around the allocation."""
        around = self.loops[alloc.operation]
        if not around:
            return lifetime
        start, end = self.begin[around[-1]], self.end[around[-1]]
        return replace(lifetime, start=start, end=max(end, lifetime.end))


def _last_of_row(user: ir.OpView) -> ir.Operation:
    """Give the last op of its block that copies a box out as `user` does, before any loop."""
    last = user.operation
    if not isinstance(user, tgpu.BoxStoreOp):
        return last
    found = False
    for op in last.block.operations:
        found = found or op.operation == user.operation
        if found and op.operation.name in _LOOPS:
            break
        if found and isinstance(op, tgpu.BoxStoreOp):
            last = op.operation
    return last
