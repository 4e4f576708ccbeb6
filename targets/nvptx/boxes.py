"""Boxes of tensors by TMA: which accesses go that way, and how they are issued.

One thread issues a trip's copies under a predicate, without a branch. A box wider than the
permutation's pattern is copied in pieces of that width, which is how `wgmma` wants it to lie.
Copies to tensors are issued by one thread too, or by one of each warpgroup.

Where blocks share out a box among them, each copies its rows of it to the same place in all, and
warps arrive at the mbarriers of all.

Source: PTX ISA 8.7, "cp.async.bulk.tensor", "mbarrier" and "mapa".
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import product
from typing import Any

from mlir import ir
from mlir.dialects import arith, scf

from tiledsl.dialects import ptx, tgpu
from tiledsl.dialects import tile as tile_dialect
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.layout_f2 import log2_exact
from tiledsl.dialects.types import element_of, held_by, shape_of, storage_bits
from tiledsl.targets.gpu import emit
from tiledsl.targets.gpu.emit import i32, integer
from tiledsl.targets.gpu.lowering import Handler, Lowering, Role
from tiledsl.targets.gpu.shared import buffer_layout
from tiledsl.targets.nvptx.chips import Chip
from tiledsl.targets.nvptx.tensor_map import ELEMENTS
from tiledsl.targets.nvptx.warpgroup import WARPGROUP, warpgroup_of
from tiledsl.transforms.axis_facts import AxisFacts
from tiledsl.transforms.box_pieces import LEAST_ROW, LEAST_ROWS, MOST_ROWS
from tiledsl.transforms.expand_descriptors import Access
from tiledsl.transforms.memory_accesses import written_arguments
from tiledsl.transforms.place_tensor_maps import can_map, number_of
from tiledsl.transforms.warpgroup_operand import SharedOperand, operand_of

_FIRST_BARRIER = 1
"""Number of the barrier of the first warpgroup; 0 is that of all (see `lower`)."""
_ADDED = ("f16", "bf16", "f32", "i32")
"""Element types that TMA adds."""
_WORD = 8
"""Bytes of an mbarrier."""
_CHUNK = 16
"""Bytes along the contiguous dimension that a box begins at a multiple of, and that are written
together: past a row's end, too, up to the next multiple (seen on an H200)."""


def keeps_box(chip: Chip, access: Access) -> bool:
    """Whether TMA makes an access through a descriptor.

    The launcher must be able to describe the tensor. A box must begin at a multiple of 16 bytes
    along the contiguous dimension: elsewhere an H200 takes the instruction for an illegal one. What
    the kernel writes TMA does not read: such writes would have to be made visible to it. And what
    it writes must end at a multiple of 16 bytes along that dimension: it writes whole chunks.
    """
    if not (chip.tma and chip.wgmma):
        return False
    loads = isinstance(access, tile_dialect.DescriptorLoadOp)
    type_ = access.output.type if loads else access.tile.type
    size, kernel = storage_bits(type_) // 8, _function(access)
    known = ELEMENTS if loads or not access.adds else _ADDED
    if str(element_of(type_)) not in known or not _is_box(shape_of(type_), size, loads):
        return False
    if any(str(one.type) != "i32" for one in access.box.indices):
        return False
    if not can_map(access.box, _divisors(kernel), size):
        return False
    facts = AxisFacts(kernel)
    if loads:
        base = number_of(access.box.base)
        if base is None or base[1] in written_arguments(kernel) or access.padding != "zero":
            return False
    elif facts.of(access.box.sizes[-1]).divisor * size % _CHUNK:
        return False
    return facts.of(access.box.indices[-1]).divisor * size % _CHUNK == 0


def _is_box(shape: Sequence[int], element_bytes: int, loads: bool) -> bool:
    """Whether one copy, or of stores several, can move a box of that shape.

    A box is a matrix: along dimensions in front of the last two it has one element.
    """
    if len(shape) < 2 or any(extent > 1 for extent in shape[:-2]):
        return False
    rows, columns = shape[-2:]
    most = MOST_ROWS if loads else rows
    return columns * element_bytes >= LEAST_ROW and LEAST_ROWS <= rows <= most


def _function(op: ir.OpView) -> ir.OpView:
    parent: Any = op.operation.parent
    while parent.name != "func.func":
        parent = parent.parent
    return parent.opview


def _divisors(kernel: ir.OpView) -> list[int]:
    """Return what each argument is known to be a multiple of."""
    given: Any = kernel.operation.attributes["arg_attrs"]
    return [
        int(one["tile.divisibility"].value) if "tile.divisibility" in one else 1 for one in given
    ]


def _first_issuer(lowering: Lowering, warp: int) -> int:
    """Return the thread that copies boxes: the first of a warp, or of a warp for only that."""
    first = lowering.kernel.threads if lowering.role is Role.PRODUCER else 0
    return first + warp * lowering.machine.warp_size


def _issuer(lowering: Lowering, warp: int = 0) -> ir.Value:
    """Build whether this thread copies boxes."""
    first = _first_issuer(lowering, warp)

    def compare() -> ir.Value:
        return arith.cmpi(arith.CmpIPredicate.eq, lowering.place.thread, i32(first))

    return lowering.once(f"thread {first}", compare)


def _block_of(lowering: Lowering) -> ir.Value:
    """Return which of the blocks that run the program this is: %cluster_ctarank."""
    name = "llvm.nvvm.read.ptx.sreg.cluster.ctarank"
    return lowering.once("block", lambda: emit.intrinsic(name, [], integer(32)))


def _block_id(lowering: Lowering, op: tile_dialect.BlockIdOp) -> None:
    lowering.define(op.id, _block_of(lowering))


def _warp(lowering: Lowering) -> ir.Value:
    """Build the warp's number, which is read from lane 0: ptxas can see that warps stay whole."""

    def read() -> ir.Value:
        shift = i32(log2_exact(lowering.machine.warp_size))
        own = arith.shrui(lowering.place.thread, shift)
        return lowering.machine.shuffle_index(own, i32(0))

    return lowering.once("warp", read)


def _issuing_warp(lowering: Lowering, number: int) -> ir.Value:
    """Build whether this thread's warp has the thread that copies boxes."""
    first = _first_issuer(lowering, number) // lowering.machine.warp_size
    warp = _warp(lowering)

    def compare() -> ir.Value:
        return arith.cmpi(arith.CmpIPredicate.eq, warp, i32(first))

    return lowering.once(f"warp {first}", compare)


def _producer(lowering: Lowering, op: tgpu.ProducerOp) -> None:
    most = i32(lowering.kernel.num_warps)
    lowering.define(op.output, arith.cmpi(arith.CmpIPredicate.uge, _warp(lowering), most))


def _lane(lowering: Lowering) -> ir.Value:
    return arith.andi(lowering.place.thread, i32(lowering.machine.warp_size - 1))


def _first_lane(lowering: Lowering) -> ir.Value:
    def compare() -> ir.Value:
        return arith.cmpi(arith.CmpIPredicate.eq, _lane(lowering), i32(0))

    return lowering.once("first lane", compare)


def _init(lowering: Lowering, op: tgpu.MbarrierInitOp) -> None:
    count = lowering.kernel.num_warps * op.blocks if op.arrivals == "warps" else 1
    for barrier in _each(lowering, op.barriers):
        ptx.MbarrierInitOp.build(barrier, _issuer(lowering), count=count)
    ptx.MbarrierFenceOp.build()


def _end(lowering: Lowering, op: tgpu.MbarrierEndOp) -> None:
    for barrier in _each(lowering, op.barriers):
        ptx.MbarrierInvalOp.build(barrier, _issuer(lowering))


def _each(lowering: Lowering, buffer: ir.Value) -> list[ir.Value]:
    slots = shape_of(held_by(buffer.type))[0]
    start = lowering.value(buffer)
    return [emit.gep(start, slot * _WORD, integer(8)) for slot in range(slots)]


@contextmanager
def _in_issuing_warp(lowering: Lowering, warp: int) -> Generator[None]:
    """Build what only the warp of the thread that copies boxes executes, under a branch.

    LLVM makes one branch of those in a row. The copies themselves are under a predicate.
    """
    alone = lowering.kernel.more_threads == lowering.machine.warp_size
    if lowering.role is Role.PRODUCER and alone:
        yield
        return
    branch = scf.IfOp(_issuing_warp(lowering, warp))
    with ir.InsertionPoint(branch.then_block):
        yield
        scf.YieldOp([])


def _expect(lowering: Lowering, op: tgpu.MbarrierExpectOp) -> None:
    with _in_issuing_warp(lowering, op.issuer):
        acts = arith.andi(lowering.value(op.predicate), _issuer(lowering, op.issuer))
        ptx.MbarrierExpectOp.build(lowering.value(op.barrier), acts, bytes=op.bytes)


def _arrive(lowering: Lowering, op: tgpu.MbarrierArriveOp) -> None:
    if op.proxy:
        ptx.ProxyFenceOp.build()
        lowering.machine.warp_barrier()
    barrier = lowering.value(op.barrier)
    if op.blocks == 1:
        ptx.MbarrierArriveOp.build(barrier, _first_lane(lowering), None)
        return
    # A lane for each block.
    lane = lowering.once("lane", lambda: _lane(lowering))
    acts = lowering.once(
        f"first {op.blocks} lanes",
        lambda: arith.cmpi(arith.CmpIPredicate.ult, lane, i32(op.blocks)),
    )
    ptx.MbarrierArriveOp.build(barrier, acts, lane)


def _wait(lowering: Lowering, op: tgpu.MbarrierWaitOp) -> None:
    some = op.by == "issuer"
    with _in_issuing_warp(lowering, op.issuer) if some else nullcontext():
        ptx.MbarrierWaitOp.build(lowering.value(op.barrier), lowering.value(op.parity))


def _described(
    lowering: Lowering, op: tgpu.BoxCopyOp | tgpu.BoxStoreOp
) -> tuple[SharedOperand, ir.Value]:
    """Return how a buffer's boxes lie in shared memory, and the tensor map that they are of."""
    held = held_by(op.buffer.type)
    operand = operand_of(buffer_layout(lowering, op.buffer), storage_bits(held) // 8, 1)
    assert operand is not None  # `place_tensor_maps` has seen it
    block = lowering.function.operation.regions[0].blocks[0]
    number: int = op.map
    return operand, lowering.value(block.arguments[number])


def _box_copy(lowering: Lowering, op: tgpu.BoxCopyOp) -> None:
    """Issue the copies of a box; of one that blocks share out, this block's rows, to all."""
    operand, map_ = _described(lowering, op)
    *outer, column = (lowering.value(one) for one in op.box.indices)
    width = operand.swizzle_bytes // operand.element_bytes
    buffer, every = lowering.value(op.buffer), 0
    if op.blocks > 1:
        rows, every = operand.shape[0] // op.blocks, (1 << op.blocks) - 1
        block = _block_of(lowering)
        outer[-1] = arith.addi(outer[-1], arith.muli(block, i32(rows)))
        buffer = emit.gep(buffer, arith.muli(block, i32(operand.offset(rows, 0))), integer(8))
    with _in_issuing_warp(lowering, op.issuer):
        acts = arith.andi(lowering.value(op.predicate), _issuer(lowering, op.issuer))
        for first in range(0, operand.shape[1], width):
            to = emit.gep(buffer, operand.offset(0, first), integer(8))
            at = column if first == 0 else arith.addi(column, i32(first))
            place = [at, *reversed(outer)]
            parts = [to, lowering.value(op.barrier), acts, map_, *place]
            ptx.TensorLoadOp.build(parts, blocks=every or None)


def _proxy_fence(lowering: Lowering, op: tgpu.ProxyFenceOp) -> None:
    del lowering
    ptx.ProxyFenceOp.build(memory=op.memory)


# Copies to tensors.


def _sender(lowering: Lowering, by_warpgroup: bool) -> ir.Value:
    """Return whether this thread issues copies to tensors: one does, or one of each warpgroup."""
    threads = lowering.kernel.num_warps * lowering.machine.warp_size
    if by_warpgroup:
        threads = min(threads, WARPGROUP * lowering.machine.warp_size)
    acts = lowering.place.is_first(threads)
    return emit.constant(integer(1), 1) if acts is None else acts


def _box_store(lowering: Lowering, op: tgpu.BoxStoreOp) -> None:
    """Issue the copies of a buffer's boxes, each warpgroup those of its own part."""
    operand, map_ = _described(lowering, op)
    source = emit.gep(lowering.value(op.buffer), i32(0), integer(8))
    *outer, row, column = (lowering.value(one) for one in op.box.indices)
    groups = list(zip(op.groups[::2], op.groups[1::2], strict=True))
    for bit, (down, across) in enumerate(groups):
        group = lowering.once("warpgroup", lambda: warpgroup_of(lowering))
        own = arith.andi(arith.shrui(group, i32(bit)), i32(1))
        row = arith.addi(row, arith.muli(own, i32(down)))
        column = arith.addi(column, arith.muli(own, i32(across)))
        moved = arith.muli(own, i32(operand.offset(down, across)))
        source = emit.gep(source, moved, integer(8))
    acts = _sender(lowering, op.by_warpgroup)
    for down, across in _first_group(operand.shape, op.copied, groups):
        from_ = emit.gep(source, operand.offset(down, across), integer(8))
        to = [arith.addi(row, i32(down + op.starts[0])), *reversed(outer)]
        at = arith.addi(column, i32(across + op.starts[1]))
        ptx.TensorStoreOp.build([from_, acts, map_, at, *to], adds=op.adds or None)
    ptx.BulkCommitOp.build(acts)


def _first_group(
    shape: Sequence[int], copied: Sequence[int], groups: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Yield where the boxes of warpgroup 0 begin in a buffer."""
    for row, column in product(*map(range, (0, 0), shape, copied)):
        if not any(row & down or column & across for down, across in groups):
            yield row, column


def _store_wait(lowering: Lowering, op: tgpu.StoreWaitOp) -> None:
    kernel = lowering.function.operation
    by_warpgroup = any(
        isinstance(one, tgpu.BoxStoreOp) and one.by_warpgroup for one in operations(kernel)
    )
    acts = _sender(lowering, by_warpgroup)
    ptx.BulkWaitOp.build(acts, pending=op.pending, read=op.read or None)


def _warpgroup_barrier(lowering: Lowering, op: tgpu.WarpgroupBarrierOp) -> None:
    """Meet at a barrier that only the warpgroup's threads come to."""
    if op.proxy:
        ptx.ProxyFenceOp.build()
    group = lowering.once("warpgroup", lambda: warpgroup_of(lowering))
    number = arith.addi(group, i32(_FIRST_BARRIER))
    threads = i32(WARPGROUP * lowering.machine.warp_size)
    emit.intrinsic("llvm.nvvm.barrier.cta.sync.aligned.count", [number, threads])


HANDLERS: dict[str, Handler] = {
    "tile.block_id": _block_id,
    "tgpu.mbarrier_init": _init,
    "tgpu.mbarrier_end": _end,
    "tgpu.mbarrier_expect": _expect,
    "tgpu.mbarrier_arrive": _arrive,
    "tgpu.mbarrier_wait": _wait,
    "tgpu.box_copy": _box_copy,
    "tgpu.producer": _producer,
    "tgpu.proxy_fence": _proxy_fence,
    "tgpu.box_store": _box_store,
    "tgpu.store_wait": _store_wait,
    "tgpu.warpgroup_barrier": _warpgroup_barrier,
}
