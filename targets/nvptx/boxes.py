"""Boxes of tensors by TMA: which accesses go that way, and how they are issued.

One thread issues a trip's copies under a predicate, without a branch. A box wider than the
permutation's pattern is copied in pieces of that width, which is how `wgmma` wants it to lie.

Source: PTX ISA 8.7, "cp.async.bulk.tensor" and "mbarrier".
"""

from __future__ import annotations

from typing import Any

from mlir import ir
from mlir.dialects import arith

from tiledsl.dialects import ptx, tgpu
from tiledsl.dialects import tile as tile_dialect
from tiledsl.dialects.layout_f2 import log2_exact
from tiledsl.dialects.types import held_by, shape_of, storage_bits
from tiledsl.targets.gpu import emit
from tiledsl.targets.gpu.emit import i32, integer
from tiledsl.targets.gpu.lowering import Handler, Lowering, Role
from tiledsl.targets.gpu.shared import buffer_layout
from tiledsl.targets.nvptx.chips import Chip
from tiledsl.transforms.axis_facts import AxisFacts
from tiledsl.transforms.expand_descriptors import Access
from tiledsl.transforms.memory_accesses import written_arguments
from tiledsl.transforms.place_tensor_maps import can_map, number_of
from tiledsl.transforms.warpgroup_operand import operand_of

_WORD = 8
"""Bytes of an mbarrier."""
_LEAST_ROW, _MOST_ROWS = 32, 256
_START = 16
"""Bytes that a box's beginning along the contiguous dimension is a multiple of."""


def keeps_box(chip: Chip, access: Access) -> bool:
    """Whether TMA makes an access through a descriptor.

    The launcher must be able to describe the tensor, and nothing in the kernel may write it: such
    writes would have to be made visible to TMA. A box must begin at a multiple of 16 bytes along
    the contiguous dimension: elsewhere an H200 takes the instruction for an illegal one.
    """
    if not (chip.tma and chip.wgmma) or not isinstance(access, tile_dialect.DescriptorLoadOp):
        return False
    type_ = access.output.type
    size, shape = storage_bits(type_) // 8, shape_of(type_)
    kernel = _function(access)
    # A box is a matrix: along dimensions in front of the last two it has one element.
    if access.padding != "zero" or any(str(one.type) != "i32" for one in access.box.indices):
        return False
    if not can_map(access.box, _divisors(kernel), size):
        return False
    base = number_of(access.box.base)
    if base is None or base[1] in written_arguments(kernel):
        return False
    *outer, rows, columns = shape
    if any(extent > 1 for extent in outer):
        return False
    if columns * size < _LEAST_ROW or not 8 <= rows <= _MOST_ROWS:
        return False
    return AxisFacts(kernel).of(access.box.indices[-1]).divisor * size % _START == 0


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


def _issuer(lowering: Lowering) -> ir.Value:
    """Build whether this thread copies boxes: the first, or the first that does nothing else."""
    first = lowering.kernel.threads if lowering.role is Role.PRODUCER else 0

    def compare() -> ir.Value:
        return arith.cmpi(arith.CmpIPredicate.eq, lowering.place.thread, i32(first))

    return lowering.once(f"thread {first}", compare)


def _first_warp(lowering: Lowering) -> ir.Value:
    def compare() -> ir.Value:
        warp = i32(lowering.machine.warp_size)
        return arith.cmpi(arith.CmpIPredicate.ult, lowering.place.thread, warp)

    return lowering.once("first warp", compare)


def _producer(lowering: Lowering, op: tgpu.ProducerOp) -> None:
    """Compare the warp's number, which is read from lane 0: ptxas can see that warps stay whole."""
    machine = lowering.machine
    shift = i32(log2_exact(machine.warp_size))
    warp = machine.shuffle_index(arith.shrui(lowering.place.thread, shift), i32(0))
    most = i32(lowering.kernel.num_warps)
    lowering.define(op.output, arith.cmpi(arith.CmpIPredicate.uge, warp, most))


def _first_lane(lowering: Lowering) -> ir.Value:
    def compare() -> ir.Value:
        lane = arith.andi(lowering.place.thread, i32(lowering.machine.warp_size - 1))
        return arith.cmpi(arith.CmpIPredicate.eq, lane, i32(0))

    return lowering.once("first lane", compare)


def _init(lowering: Lowering, op: tgpu.MbarrierInitOp) -> None:
    count = lowering.kernel.num_warps if op.arrivals == "warps" else 1
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


def _expect(lowering: Lowering, op: tgpu.MbarrierExpectOp) -> None:
    acts = arith.andi(lowering.value(op.predicate), _issuer(lowering))
    ptx.MbarrierExpectOp.build(lowering.value(op.barrier), acts, bytes=op.bytes)


def _arrive(lowering: Lowering, op: tgpu.MbarrierArriveOp) -> None:
    if op.proxy:
        ptx.ProxyFenceOp.build()
        lowering.machine.warp_barrier()
    ptx.MbarrierArriveOp.build(lowering.value(op.barrier), _first_lane(lowering))


def _wait(lowering: Lowering, op: tgpu.MbarrierWaitOp) -> None:
    some = op.by == "issuer" and lowering.role is not Role.PRODUCER
    waits = _first_warp(lowering) if some else None
    ptx.MbarrierWaitOp.build(lowering.value(op.barrier), lowering.value(op.parity), waits)


def _box_copy(lowering: Lowering, op: tgpu.BoxCopyOp) -> None:
    held = held_by(op.buffer.type)
    operand = operand_of(buffer_layout(lowering, op.buffer), storage_bits(held) // 8, 1)
    assert operand is not None  # `place_tensor_maps` has seen it
    block = lowering.function.operation.regions[0].blocks[0]
    number: int = op.map
    map_ = lowering.value(block.arguments[number])
    *outer, column = (lowering.value(one) for one in op.box.indices)
    acts = arith.andi(lowering.value(op.predicate), _issuer(lowering))
    width = operand.swizzle_bytes // operand.element_bytes
    for first in range(0, operand.shape[1], width):
        to = emit.gep(lowering.value(op.buffer), operand.offset(0, first), integer(8))
        at = column if first == 0 else arith.addi(column, i32(first))
        place = [at, *reversed(outer)]
        ptx.TensorLoadOp.build([to, lowering.value(op.barrier), acts, map_, *place])


def _proxy_fence(lowering: Lowering, op: tgpu.ProxyFenceOp) -> None:
    del lowering, op
    ptx.ProxyFenceOp.build()


HANDLERS: dict[str, Handler] = {
    "tgpu.mbarrier_init": _init,
    "tgpu.mbarrier_end": _end,
    "tgpu.mbarrier_expect": _expect,
    "tgpu.mbarrier_arrive": _arrive,
    "tgpu.mbarrier_wait": _wait,
    "tgpu.box_copy": _box_copy,
    "tgpu.producer": _producer,
    "tgpu.proxy_fence": _proxy_fence,
}
