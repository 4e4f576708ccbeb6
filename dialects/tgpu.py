"""The `tgpu` dialect: layouts, shared memory, asynchronous copies, barriers, matrix instructions.

At this level every tile's encoding names a `tgpu.layout` op at the top of the module:

    "tgpu.layout"() {sym_name = "blocked0", map = "register=[[0,1]] lane=[...] warp=[] shape=[..]"}
    func.func @kernel(...) { ... tensor<128x64xf16, @blocked0> ... }

so types stay short and each layout is written once. `tile` ops without memory effects live on here
with encodings; what involves shared memory or more than one warp is an op of this dialect.

A shared buffer is a value of type `!tgpu.shared<tensor<SxMxNxT, @layout>>`: S slots (a pipeline's
stages) of an MxN tile each, or no leading S for a plain buffer. The layout maps "offset" bits
(in elements) to the tile's index; slots follow one another.
"""

from __future__ import annotations

from mlir import ir

from tiledsl.dialects.op import (
    I1,
    I32,
    Any_,
    Attr,
    Op,
    Operand,
    OptionalOperand,
    Result,
    Symbol,
    Tile,
    VariadicOperand,
    VariadicResult,
    dialect_type,
)
from tiledsl.dialects.tile import Box, axis_fault, results_fault
from tiledsl.dialects.types import element_of, held_by, layout_name, shape_of

Shared = dialect_type("tgpu.shared", "a shared buffer")
TensorMap = dialect_type("tgpu.tensor_map", "a description of a tensor that the launcher makes")
ARRIVALS = ("thread", "warps")
OVERLAPS = "tgpu.overlaps"
"""A kernel's attribute: it waits for the launch before by itself (`tgpu.await_launches`)."""
IN_PLACE = "tgpu.in_place"
"""An attribute of a load: it is done where it stands, and its addresses are computed there."""
LATE = "tgpu.late"
"""An attribute of a load: it may happen as late as it is used, beyond what the kernel writes."""
PIECES = "tgpu.pieces"
"""A kernel's attribute: registers of a tile that a thread works on at a time, at most."""
PRODUCERS = "tgpu.producer_warps"
"""A kernel's attribute: how many warps copy boxes for those that hold tiles."""


def _held_alike(held: ir.Type) -> tuple[ir.Type, str | None]:
    """Return what a buffer and its slot have in common."""
    return element_of(held), layout_name(held)


def _buffer_fault(buffer: ir.Value, tile: ir.Value) -> str | None:
    """Return what is wrong unless a buffer and a tile have the same shape and elements."""
    held = held_by(buffer.type)
    if shape_of(held) != shape_of(tile.type):
        return f"expected a tile of shape {shape_of(held)}, found {tile.type}"
    if element_of(held) != element_of(tile.type):
        return f"expected a tile of {element_of(held)}, found {tile.type}"
    return None


class LayoutOp(Op, name="tgpu.layout"):
    """The definition of a layout: a symbol and the text of a `LinearLayout`."""

    sym_name = Attr(str, "The name that encodings refer to.")
    map = Attr(str, "`str` of the LinearLayout.")


class ConvertLayoutOp(Op, name="tgpu.convert_layout", pure=True):
    """The same tile under another layout."""

    source = Operand(Tile, "The tile.")
    tile = Result(Tile, "Same shape and elements.")

    def verify(self) -> str | None:
        """Require the same shape and elements."""
        source, tile = self.source.type, self.tile.type
        if shape_of(source) != shape_of(tile) or element_of(source) != element_of(tile):
            return f"expected the same shape and elements, found {source} and {tile}"
        return None


class AllocOp(Op, name="tgpu.alloc"):
    """A buffer in shared memory, not initialized; `place_shared` gives it its byte offset."""

    offset = Attr(int, "Bytes from the start of the program's shared memory.", None)
    alignment = Attr(int, "Bytes.", 16)
    buffer = Result(Shared, "The buffer.")


class SlotOp(Op, name="tgpu.slot", pure=True):
    """One slot of a buffer with several."""

    buffer = Operand(Shared, "S slots.")
    index = Operand(I32, "0 <= index < S.")
    slot = Result(Shared, "The buffer without its leading dimension.")

    def verify(self) -> str | None:
        """Require the held type without the leading dimension."""
        whole, slot = held_by(self.buffer.type), held_by(self.slot.type)
        if shape_of(whole)[1:] != shape_of(slot) or _held_alike(whole) != _held_alike(slot):
            return f"expected a slot of {whole}, found {slot}"
        return None


class LocalStoreOp(Op, name="tgpu.local_store"):
    """Write a tile to a shared buffer."""

    tile = Operand(Tile, "The tile.")
    buffer = Operand(Shared, "Of the same shape and elements.")

    def verify(self) -> str | None:
        """Require the same shape and elements."""
        return _buffer_fault(self.buffer, self.tile)


class LocalLoadOp(Op, name="tgpu.local_load"):
    """Read a tile from a shared buffer."""

    buffer = Operand(Shared, "The buffer.")
    tile = Result(Tile, "Of the same shape and elements.")

    def verify(self) -> str | None:
        """Require the same shape and elements."""
        return _buffer_fault(self.buffer, self.tile)


class AsyncCopyOp(Op, name="tgpu.async_copy"):
    """Begin copying a tile from global memory to a shared buffer; lanes masked off store 0.

    The copy belongs to the group that the next `async_commit` closes.
    """

    ptr = Operand(Tile, "One address a lane.")
    buffer = Operand(Shared, "Of the same shape, of the pointee type.")
    mask = OptionalOperand(Tile, "Lanes to read.")
    cache = Attr(str, "As of tile.load.", "")
    eviction = Attr(str, "As of tile.load.", "")


class AsyncCommitOp(Op, name="tgpu.async_commit"):
    """Close the current group of asynchronous copies; an empty group counts too."""


class AsyncWaitOp(Op, name="tgpu.async_wait"):
    """Wait until at most `pending` of this thread's latest groups are unfinished.

    What other threads copied is visible only after a barrier that follows.
    """

    pending = Attr(int, "Groups that may still be in flight.")


class MbarrierInitOp(Op, name="tgpu.mbarrier_init"):
    """Make barriers in shared memory, one a slot, each in phase 0."""

    barriers = Operand(Shared, "S slots of one i64.")
    arrivals = Attr(str, "Who ends a phase: a thread, or each warp with tiles.", "thread", ARRIVALS)
    blocks = Attr(int, "In how many blocks, all that run the program, it is each warp's.", 1)


class MbarrierExpectOp(Op, name="tgpu.mbarrier_expect"):
    """Arrive at a barrier, whose phase then ends when so many bytes have been copied."""

    barrier = Operand(Shared, "One i64.")
    predicate = Operand(I1, "Whether to.")
    bytes = Attr(int, "What the copies of this phase bring.")
    issuer = Attr(int, "Which of the warps that copy boxes does it.", 0)


class MbarrierArriveOp(Op, name="tgpu.mbarrier_arrive"):
    """Each warp arrives at a barrier that waits for all: it has read what slots held.

    Boxes may be copied to the slots when the phase is over. Products that read them are over for
    the warp, and so are its threads' own reads.
    """

    parts = VariadicOperand(Shared, "The barrier, one i64; then the slots.", 9)
    proxy = Attr(bool, "Whether threads read the slots themselves: as of `tgpu.barrier`.", False)
    blocks = Attr(int, "In how many blocks, all that run the program, it arrives.", 1)

    @property
    def barrier(self) -> ir.Value:
        """Where to arrive."""
        return self.parts[0]

    @property
    def slots(self) -> list[ir.Value]:
        """What may be overwritten."""
        return list(self.parts[1:])


class MbarrierWaitOp(Op, name="tgpu.mbarrier_wait"):
    """Wait until the barrier's phase of this parity is over; what was copied is then visible."""

    barrier = Operand(Shared, "One i64.")
    parity = Operand(I32, "0 or 1.")
    by = Attr(str, "Who waits: all, or the warp that copies boxes.", "all", ("all", "issuer"))
    issuer = Attr(int, "Which of the warps that copy boxes that is.", 0)


class MbarrierEndOp(Op, name="tgpu.mbarrier_end"):
    """Give up barriers that nothing waits for any more; their bytes may be used otherwise."""

    barriers = Operand(Shared, "S slots of one i64.")


class LetNextBeginOp(Op, name="tgpu.let_next_begin"):
    """The next launch of the stream may be set up once all programs of this one have been here."""


class AwaitLaunchesOp(Op, name="tgpu.await_launches"):
    """Wait until the launches before this one have ended and what they wrote is visible."""


class ProducerOp(Op, name="tgpu.producer", pure=True):
    """Whether this thread belongs to the warps that copy boxes for the others.

    Only kernels whose function has `tgpu.producer_warps` have such warps, behind the `num_warps`
    that hold tiles. An `scf.if` of this alone says what either do; in it warps of one kind meet.
    """

    output = Result(I1, "Whether it does.")


class ProxyFenceOp(Op, name="tgpu.proxy_fence"):
    """What this thread did to memory comes before what units do to it by themselves.

    Such units are those that multiply from shared memory and that copy boxes to and from it.
    """

    memory = Attr(str, "Which memory.", "shared", ("shared", "all"))


class BoxCopyOp(Op, name="tgpu.box_copy"):
    """Begin copying a box of a tensor to a shared buffer, as part of a barrier's phase.

    The parts are the buffer, the barrier, an i1 (whether to copy), then those of
    `tile.descriptor_load`.
    """

    parts = VariadicOperand(Any_, "Buffer, barrier, predicate, base, sizes, strides, indices.", 19)
    map = Attr(int, "Which argument of the kernel describes the tensor, once that is placed.", None)
    rounds = Attr(str, "As of `tile.descriptor_load`.", "", ("", "tf32"))
    guarded = Attr(bool, "Whether the issuer knows that nobody reads the slot any more.", False)
    issuer = Attr(int, "Which of the warps that copy boxes does it.", 0)
    blocks = Attr(int, "Among how many the box is shared out: each copies its rows to all.", 1)

    @property
    def buffer(self) -> ir.Value:
        """Where the box goes."""
        return self.parts[0]

    @property
    def barrier(self) -> ir.Value:
        """What counts its bytes."""
        return self.parts[1]

    @property
    def predicate(self) -> ir.Value:
        """Whether to copy."""
        return self.parts[2]

    @property
    def box(self) -> Box:
        """Which box."""
        return Box.of(self.parts[3:])


class SliceOp(Op, name="tgpu.slice", pure=True):
    """The part of a tile that begins at `starts`, which no element changes its thread for.

    Each start is a multiple of the part's extent; `layout_shape.slice_of` gives the layout.
    """

    source = Operand(Tile, "The tile.")
    starts = Attr(list, "First index along each dimension.")
    tile = Result(Tile, "The part; same elements.")

    def verify(self) -> str | None:
        """Require a part of the tile that begins at a multiple of its size."""
        whole, part = shape_of(self.source.type), shape_of(self.tile.type)
        inside = len(self.starts) == len(part) == len(whole) and all(
            start % extent == 0 and 0 <= start <= size - extent
            for start, extent, size in zip(self.starts, part, whole, strict=True)
        )
        if not inside or element_of(self.source.type) != element_of(self.tile.type):
            return f"expected a part of {self.source.type} at {self.starts}, found {self.tile.type}"
        return None


class BoxStoreOp(Op, name="tgpu.box_store"):
    """Begin copying part of a box from a shared buffer to a tensor; it is a group by itself.

    The parts are the buffer, then those of `tile.descriptor_store` without its tile: where the
    whole box is. Issued by the first thread; where `groups` says what each bit of the warpgroup's
    number adds to an index of the buffer, by the first thread of each warpgroup for the elements
    that its own threads wrote there. What else touches such a buffer does so by warpgroups, too.
    """

    parts = VariadicOperand(Any_, "Buffer, base, sizes, strides, indices.", 17)
    extents = Attr(list, "Of the whole box.")
    starts = Attr(list, "Where in the box the buffer's first element goes.")
    copied = Attr(list, "Rows and columns that one instruction copies.")
    groups = Attr(list, "By bit of the warpgroup's number, rows and columns it adds; or empty.")
    adds = Attr(bool, "As of `tile.descriptor_store`.", False)
    apart = Attr(bool, "As of `tile.descriptor_store`.", False)
    map = Attr(int, "As of `tgpu.box_copy`.", None)

    @property
    def buffer(self) -> ir.Value:
        """Where the elements are."""
        return self.parts[0]

    @property
    def box(self) -> Box:
        """Where they go; `starts` further on."""
        return Box.of(self.parts[1:])

    @property
    def by_warpgroup(self) -> bool:
        """Whether each warpgroup copies its own part."""
        return bool(self.groups)


class StoreWaitOp(Op, name="tgpu.store_wait"):
    """Wait, in threads that issue `tgpu.box_store`, for all but their latest `pending`.

    With `read` only until the buffers have been read; else until what they wrote is visible to
    the thread that waits.
    """

    pending = Attr(int, "Copies that may still be in flight.")
    read = Attr(bool, "Whether having read the buffers is enough.", False)


class WarpgroupBarrierOp(Op, name="tgpu.warpgroup_barrier"):
    """All threads of a warpgroup arrive before any of them goes on; shared memory is visible."""

    proxy = Attr(bool, "As of `tgpu.barrier`.", False)


class SetRegistersOp(Op, name="tgpu.set_registers"):
    """From here on the threads of a role have so many registers each.

    All four warps of a warpgroup come here. Who needs fewer than the kernel begins with gives some
    back, who needs more takes those.
    """

    count = Attr(int, "Registers of a thread.")
    fewer = Attr(bool, "Whether that is fewer than before.", False)


class BarrierOp(Op, name="tgpu.barrier"):
    """All threads of the program arrive before any goes on; earlier memory accesses are visible.

    Within the branch of warps that hold tiles (`tgpu.producer`) it is those threads. `memory` says
    which accesses: "shared", or "all" (global too). Where several blocks run the program their
    threads meet, too, if it says so, which it does not within such a branch.
    """

    memory = Attr(str, "What becomes visible.", "shared", ("shared", "all"))
    proxy = Attr(bool, "Also to units that access shared memory by themselves.", False)
    cluster = Attr(bool, "Whether the threads of all blocks arrive.", False)


class MmaOp(Op, name="tgpu.mma", pure=True):
    """acc + a @ b by a matrix instruction of the target's table.

    The layouts are the instruction's fragments tiled over the warps (`layout_mma.Fragments`): the
    lowering slices registers, fragment by fragment.
    """

    a = Operand(Tile, "In the instruction's operand layout.")
    b = Operand(Tile, "In the instruction's operand layout.")
    acc = Operand(Tile, "In the instruction's accumulator layout.")
    instruction = Attr(str, "Its name in the target's table.")
    precision = Attr(str, "As of tile.dot.", "ieee")
    a_unsigned = Attr(bool, "As of tile.dot.", False)
    b_unsigned = Attr(bool, "As of tile.dot.", False)
    output = Result(Tile, "The accumulator's type.")

    def verify(self) -> str | None:
        """Require the accumulator's type."""
        if self.result.type != self.acc.type:
            return f"expected {self.acc.type}, found {self.result.type}"
        return None


class WarpgroupMmaOp(Op, name="tgpu.warpgroup_mma"):
    """acc + a @ b by warpgroup matrix instructions, which read b, and mostly a, in shared memory.

    Asynchronous: neither the result nor what is read may be touched before a
    `tgpu.warpgroup_wait` that takes the result. Until `share_conversions` an operand that is read
    in shared memory is still a tile in any layout.
    """

    a = Operand(Any_, "(M, K), (K, M) if a_transposed: a buffer, or a tile in the instruction's a.")
    b = Operand(Any_, "(K, N), (N, K) if b_transposed: a buffer.")
    acc = Operand(Tile, "In the instruction's accumulator layout.")
    instruction = Attr(str, "Its name in the target's table.")
    a_shared = Attr(bool, "Whether a is read in shared memory.", True)
    a_transposed = Attr(bool, "Whether the operand is a transposed.", False)
    b_transposed = Attr(bool, "Whether the operand is b transposed.", False)
    a_unsigned = Attr(bool, "As of tile.dot.", False)
    b_unsigned = Attr(bool, "As of tile.dot.", False)
    output = Result(Tile, "The accumulator's type; in flight.")

    def verify(self) -> str | None:
        """Require the accumulator's type."""
        if self.result.type != self.acc.type:
            return f"expected {self.acc.type}, found {self.result.type}"
        return None


class WarpgroupWaitOp(Op, name="tgpu.warpgroup_wait"):
    """Wait until at most `pending` of the latest `tgpu.warpgroup_mma` are unfinished.

    The result is the tile, which may be touched if it was not among those.
    """

    tile = Operand(Tile, "A result in flight.")
    pending = Attr(int, "Products that may still be in flight.", 0)
    held = Attr(bool, "Whether what stands before it must not be scheduled behind it.", False)
    output = Result(Tile, "The same tile.")


class AnchorOp(Op, name="tgpu.anchor"):
    """The same tile, which is computed before this op: where products are in flight, order counts.

    Pure ops are free to move to their uses; what an anchor takes does not move past it.
    """

    tile = Operand(Tile, "The tile.")
    output = Result(Tile, "The same.")


class FmaDotOp(Op, name="tgpu.fma_dot", pure=True):
    """acc + a @ b by fused multiply-adds, where no matrix instruction fits.

    Each thread must hold, for every accumulator element (i, j) of its own, all a[i, :] and b[:, j].
    """

    a = Operand(Tile, "(M, K) or (B, M, K).")
    b = Operand(Tile, "(K, N) or (B, K, N).")
    acc = Operand(Tile, "(M, N) or (B, M, N).")
    precision = Attr(str, "As of tile.dot.", "ieee")
    a_unsigned = Attr(bool, "As of tile.dot.", False)
    b_unsigned = Attr(bool, "As of tile.dot.", False)
    output = Result(Tile, "The accumulator's type.")


class PartialReduceOp(Op, name="tgpu.partial_reduce", pure=True):
    """What each warp can combine of a `tile.reduce` by itself: its registers and lanes.

    The result is (partials, *kept), `kept` being the shape without the axis, in the layout
    `plan_reduction(layout of the sources, axis).cross_warp.partial`: every warp's partial result
    has its own place along the new first dimension, in the order of the axis where the sources'
    layout is ordered along it. Lowering takes the steps of `tile.reduce` up to the lanes.
    """

    sources = VariadicOperand(Tile, "One shape and layout.")
    axis = Attr(int, "As of `tile.reduce`.")
    combine = Attr(Symbol, "As of `tile.reduce`.")
    kind = Attr(str, "As of `tile.reduce`.", "")
    results_ = VariadicResult(Tile, "(partials, *kept), one a source.")

    def verify(self) -> str | None:
        """Require the kept shape behind the partials."""
        rank = len(shape_of(self.sources[0].type))
        if wrong := axis_fault(self.axis, rank) or results_fault(self):
            return wrong
        for source, result in zip(self.sources, self.results_, strict=True):
            kept = list(shape_of(source.type))
            del kept[self.axis]
            if shape_of(result.type)[1:] != tuple(kept):
                return f"expected (partials, *{tuple(kept)}), found {result.type}"
        return None


class ShareResultOp(Op, name="tgpu.share_result"):
    """Give every replica the value that only the first replica of each element holds.

    An atomic acts once an element, in the first thread that holds it; the others get its result
    through `buffer`. Contains the barrier (of all memory) between writing and reading the buffer;
    `insert_barriers` orders it against everything else.
    """

    value = Operand(Any_, "A scalar, or a tile whose layout replicates.")
    buffer = Operand(Shared, "Room for the tile, or for one element.")
    proxy = Attr(bool, "As of `tgpu.barrier`.", False)
    output = Result(Any_, "The type of `value`.")


OPS: tuple[type[Op], ...] = (
    LayoutOp,
    ConvertLayoutOp,
    AllocOp,
    SlotOp,
    LocalStoreOp,
    LocalLoadOp,
    AsyncCopyOp,
    AsyncCommitOp,
    AsyncWaitOp,
    MbarrierInitOp,
    MbarrierExpectOp,
    MbarrierArriveOp,
    MbarrierWaitOp,
    MbarrierEndOp,
    BoxCopyOp,
    LetNextBeginOp,
    AwaitLaunchesOp,
    ProducerOp,
    SliceOp,
    BoxStoreOp,
    StoreWaitOp,
    SetRegistersOp,
    ProxyFenceOp,
    WarpgroupBarrierOp,
    BarrierOp,
    MmaOp,
    WarpgroupMmaOp,
    WarpgroupWaitOp,
    AnchorOp,
    FmaDotOp,
    PartialReduceOp,
    ShareResultOp,
)
TYPES = (("shared", 1), ("tensor_map", 0))
