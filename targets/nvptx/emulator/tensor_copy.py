"""TMA: bulk copies of bytes, and of boxes of a tensor, between global and shared memory.

    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [to], [from], size, [mbar];
    cp.async.bulk.global.shared::cta.bulk_group [to], [from], size;
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
        [to], [map, {x, y}], [mbar];
    cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [map, {x, y}], [from];

and `cp.reduce.async.bulk` of the same forms out of shared memory, multicast to blocks of the
cluster, `commit_group`, `wait_group` and prefetches (which do nothing). A box lies in shared memory
row after row, its units of 16 bytes exchanged by the map's swizzle according to their address. What
lies outside the tensor is zero, and counts for the mbarrier like the rest. `bulk_copy` does the
rest.

Coordinates and dimensions run from the contiguous dimension outwards, as in PTX.

Source: PTX ISA 9.7.9.25.5, "Data Movement and Conversion Instructions: Bulk copy", and "Tensor
copy".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.findings import Kind
from tiledsl.targets.gpu.emulator.memory import UNSIGNED
from tiledsl.targets.gpu.emulator.program import Instruction, InstructionClass, Step
from tiledsl.targets.nvptx.emulator import text as ptx
from tiledsl.targets.nvptx.emulator.async_proxy import AsyncProxy
from tiledsl.targets.nvptx.emulator.bulk_copy import PIECE, Arrival, BulkGroups, Pieces
from tiledsl.targets.nvptx.emulator.clusters import Clusters
from tiledsl.targets.nvptx.emulator.opcodes import Opcode, Options, Table, unknown
from tiledsl.targets.nvptx.emulator.operands import Context, Reader
from tiledsl.targets.nvptx.emulator.reductions import OPERATIONS, Combine, reduction
from tiledsl.targets.nvptx.emulator.shared_access import offsets
from tiledsl.targets.nvptx.emulator.tensor_maps import BYTES, decode
from tiledsl.targets.nvptx.tensor_map import TensorMap

if TYPE_CHECKING:
    from tiledsl.targets.nvptx.emulator.machine import Machine

_BOX_ALIGNMENT = 128
_TYPES = ("f16", "bf16", "b32", "u32", "s32", "b64", "u64", "s64", "f32", "f64")
_TENSOR_TYPES = {
    "i8": "u8", "ui8": "u8", "ui16": "u16", "i16": "s16", "ui32": "u32", "i32": "s32",
    "ui64": "u64", "i64": "s64", "f16": "f16", "f32": "f32", "f64": "f64", "bf16": "bf16",
    "f8E4M3FN": "u8", "f8E5M2": "u8",
}  # fmt: skip
_DIMENSIONS = {f"{rank}d": rank for rank in range(1, 6)}


def _one(machine: Machine, read: Reader, lane: int) -> int:
    """Return an operand's value in one thread."""
    value: Any = read(machine)
    return int(value[lane] if np.ndim(value) else value)


# --- boxes ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Box:
    """One box of a tensor: where its rows are in global memory.

    Attributes:
        tensor: The tensor map.
        rows: Address of the part inside the tensor, of each row of the box.
        inside: Which rows are inside.
        first: The first element of a row that is inside.
        count: How many of a row are.
    """

    tensor: TensorMap
    rows: NDArray[np.uint64]
    inside: NDArray[np.bool_]
    first: int
    count: int

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of the box, in shared memory."""
        return self.tensor.box[0] * self.tensor.element_bytes

    def offsets(self, start: int) -> NDArray[np.int64]:
        """Return where each piece of the box lies in shared memory that begins at `start`."""
        plain = start + np.arange(self.tensor.box_bytes // PIECE) * PIECE
        units = max(self.tensor.swizzle // PIECE, 1)
        return plain ^ (plain >> 7 & units - 1) << 4

    def load(self, machine: Machine, here: Instruction, lane: int) -> Pieces:
        """Read the box."""
        size = self.tensor.element_bytes
        rows = np.zeros((len(self.rows), self.tensor.box[0]), UNSIGNED[size])
        address = self.rows[self.inside]
        if len(address) and self.count:
            access = machine.access(here, np.full(len(address), lane))
            values = machine.memory.load(access, address, size, self.count, align=size)
            if self.tensor.element == "tf32":
                values = _to_tf32(values)
            part = slice(self.first, self.first + self.count)
            rows[self.inside, part] = values.reshape(len(address), self.count)
        return rows.view(np.uint32).reshape(-1, PIECE // 4)

    def store(
        self,
        machine: Machine,
        here: Instruction,
        lane: int,
        combine: Combine | None,
        pieces: Pieces,
    ) -> None:
        """Write the box, or combine it with what is there: whole pieces of a row.

        A row of the tensor that ends within a piece is written past its end, as an H200 does.
        """
        size = self.tensor.element_bytes
        end = -(-(self.first + self.count) * size // PIECE) * PIECE // size
        count = min(end, self.tensor.box[0]) - self.first
        rows = np.ascontiguousarray(pieces).view(UNSIGNED[size])
        rows = rows.reshape(len(self.rows), self.tensor.box[0])
        address = self.rows[self.inside]
        if not len(address) or not self.count:
            return
        values = rows[self.inside, self.first : self.first + count]
        access = machine.access(here, np.full(len(address), lane))
        if combine is not None:
            old = machine.memory.load(access, address, size, count, align=size)
            values = combine(np.ascontiguousarray(old.reshape(values.shape)), np.array(values))
        values = values[:, 0] if count == 1 else values
        machine.memory.store(access, address, values, size, count, align=size)

    def note(self, machine: Machine, here: Instruction, lane: int) -> None:
        """Count the transactions."""
        counters = machine.cohort.counters
        if counters is not None and self.count and self.inside.any():
            address = self.rows[self.inside]
            width = self.count * self.tensor.element_bytes
            counters.global_access(here.index, address, width, np.full(len(address), lane))


def _to_tf32(bits: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Round f32 to tf32 as an H200 does: to nearest, ties to even. What NaN becomes is a guess."""
    nan = bits & 0x7FFFFFFF > 0x7F800000
    odd = bits >> np.uint32(13) & np.uint32(1)
    rounded = bits + np.uint32(0xFFF) + odd & np.uint32(0xFFFFE000)
    return np.where(nan, np.uint32(0x7FFFFFFF), rounded)


def box_at(tensor: TensorMap, coordinates: list[int]) -> Box:
    """Return the box of a tensor that begins at some coordinates, which may be outside."""
    place = np.zeros((), np.int64)
    inside = np.ones((), np.bool_)
    for axis in range(len(tensor.shape) - 1, 0, -1):
        index = coordinates[axis] + np.arange(tensor.box[axis])
        inside = inside[..., None] & (index >= 0) & (index < tensor.shape[axis])
        place = place[..., None] + index * tensor.strides[axis - 1]
    start = coordinates[0]
    first = min(max(-start, 0), tensor.box[0])
    count = max(min(tensor.box[0], tensor.shape[0] - start) - first, 0)
    address = tensor.address + (start + first) * tensor.element_bytes
    rows = (place.reshape(-1) + address).astype(np.uint64)
    return Box(tensor, rows, inside.reshape(-1), first, count)


_START = 16
"""Bytes: where a box may begin in a row. An H200 takes another coordinate for an illegal
instruction."""


class _Map:
    """The `[map, {coordinates}]` of an instruction."""

    def __init__(self, instruction: ptx.Parsed, context: Context, operand: ptx.Operand) -> None:
        if not isinstance(operand, ptx.Address) or operand.coordinates is None:
            raise unknown(instruction, "expected a tensor map and coordinates")
        base = operand.base
        self._argument = isinstance(base, ptx.Symbol) and context.variable(base).space == "argument"
        self._address = context.address(ptx.Address(base, operand.offset))
        self._coordinates = context.read_all(operand.coordinates, "s32")
        self._here = context.instruction

    @property
    def rank(self) -> int:
        """How many coordinates it has."""
        return len(self._coordinates)

    def box(self, machine: Machine, lane: int) -> Box | None:
        """Return the box that one thread names; None, and a finding, if there is no map."""
        address = int(self._address(machine)[lane]) + (machine.arguments if self._argument else 0)
        access = machine.access(self._here, np.array([lane]))
        where = np.array([address], np.uint64)
        if machine.memory.check(access, where, BYTES, 64) is not None:
            return None
        tensor = decode(machine.memory.bytes_at(address, BYTES).tobytes())
        if tensor is None or len(tensor.shape) != self.rank:
            _undefined(machine, self._here, lane, f"there is no {self.rank}-d tensor map there")
            return None
        coordinates = [_one(machine, read, lane) for read in self._coordinates]
        start = coordinates[0] * tensor.element_bytes
        if start % _START:
            message = (
                f"a box that begins {start} bytes into a row, which is no multiple of {_START}"
            )
            machine.cohort.report(Kind.MISALIGNED, self._here, message, lane)
        return box_at(tensor, coordinates)


def _undefined(machine: Machine, here: Instruction, lane: int, message: str) -> None:
    machine.cohort.report(Kind.UNDEFINED, here, message, lane)


def _aligned(machine: Machine, here: Instruction, lane: int, offset: int, to: int) -> bool:
    """Say whether an offset into shared memory is aligned, after reporting that it is not."""
    if offset % to:
        message = f"a bulk copy of shared memory at byte {offset}, which is no multiple of {to}"
        machine.cohort.report(Kind.MISALIGNED, here, message, lane)
    return offset % to == 0


# --- into shared memory --------------------------------------------------------------------------


class _Destination:
    """Where a copy goes in shared memory, and the mbarriers that it reports to."""

    def __init__(
        self,
        context: Context,
        to: ptx.Operand,
        mbarrier: ptx.Operand,
        mask: ptx.Operand | None,
    ) -> None:
        self._to, self._mbarrier = offsets(context, to), offsets(context, mbarrier)
        self._mask = None if mask is None else context.read(mask, "u16")
        self._here = context.instruction

    def blocks(self, machine: Machine, lane: int) -> list[tuple[int, int, int]]:
        """Return (block, offset of the data, offset of the mbarrier), of each block."""
        lanes = np.array([lane])
        clusters = machine.part(Clusters)
        block, to = clusters.locate(lanes, self._to(machine)[lanes])
        other, mbarrier = clusters.locate(lanes, self._mbarrier(machine)[lanes])
        if self._mask is None:
            if block[0] != other[0]:
                _undefined(machine, self._here, lane, "the data and the mbarrier are in two blocks")
            return [(int(block[0]), int(to[0]), int(mbarrier[0]))]
        mask = _one(machine, self._mask, lane)
        ranks = np.array([rank for rank in range(clusters.size) if mask >> rank & 1], np.int64)
        cluster = np.full(len(ranks), clusters.of_block[machine.cohort.block_of[lane]])
        return [(int(one), int(to[0]), int(mbarrier[0])) for one in clusters.block(cluster, ranks)]


def _rest(
    instruction: ptx.Parsed, operands: tuple[ptx.Operand, ...], multicast: bool
) -> ptx.Operand | None:
    """Return the mask of a multicast among the operands that are left."""
    left = list(operands)
    if "L2::cache_hint" in instruction.modifiers and left:
        left.pop()
    if len(left) != int(multicast):
        raise unknown(instruction, "a wrong number of operands")
    return left[0] if left else None


def _loading(instruction: ptx.Parsed) -> bool:
    """Say whether a copy goes into shared memory: whether that is named first."""
    spaces = [one.partition("::")[0] for one in instruction.modifiers]
    spaces = [one for one in spaces if one in ("global", "shared")]
    if sorted(spaces) != ["global", "shared"]:
        raise unknown(instruction)
    return spaces[0] == "shared"


def _finish(instruction: ptx.Parsed, *names: str) -> Options:
    options = Options(instruction)
    options.ignore("async", "bulk", "global", "shared::cta", "shared::cluster", *names)
    options.ignore_prefixes("L2::")
    return options


def _decode_load_box(instruction: ptx.Parsed, context: Context) -> Step:
    options = _finish(instruction, "tensor", "tile", "mbarrier::complete_tx::bytes")
    rank = _DIMENSIONS[options.choice(_DIMENSIONS)]
    multicast = options.flag("multicast::cluster")
    options.done()
    to, source, mbarrier, *rest = instruction.operands
    tensor = _Map(instruction, context, source)
    if tensor.rank != rank:
        raise unknown(instruction, f"expected {rank} coordinates")
    mask = _rest(instruction, tuple(rest), multicast)
    destination = _Destination(context, to, mbarrier, mask)
    context.note_shared(PIECE)
    context.need(AsyncProxy)
    here = context.instruction

    def step(machine: Machine) -> None:
        for lane in machine.lanes.tolist():
            box = tensor.box(machine, lane)
            if box is None:
                continue
            box.note(machine, here, lane)
            fetch = _once(lambda box=box, lane=lane: box.load(machine, here, lane))
            for block, start, at in destination.blocks(machine, lane):
                if _aligned(machine, here, lane, start, _BOX_ALIGNMENT):
                    where, count = box.offsets(start), box.tensor.box_bytes
                    Arrival(machine, here, lane, block, where, at, fetch, count).issue()

    return step


def _once(fetch: Callable[[], Pieces]) -> Callable[[], Pieces]:
    """Return a function that fetches at the first call and remembers."""
    found: list[Pieces] = []

    def remembered() -> Pieces:
        if not found:
            found.append(fetch())
        return found[0]

    return remembered


def _decode_load_bytes(instruction: ptx.Parsed, context: Context) -> Step:
    options = _finish(instruction, "mbarrier::complete_tx::bytes")
    multicast = options.flag("multicast::cluster")
    options.done()
    to, source, size, mbarrier, *rest = instruction.operands
    mask = _rest(instruction, tuple(rest), multicast)
    destination = _Destination(context, to, mbarrier, mask)
    address, read_size = context.address(source), context.read(size, "u32")
    context.note_shared(PIECE)
    context.need(AsyncProxy)
    here = context.instruction

    def step(machine: Machine) -> None:
        for lane in machine.lanes.tolist():
            count = _one(machine, read_size, lane)
            row = np.array([address(machine)[lane]])
            lanes = np.array([lane])
            if not _whole(machine, here, lane, count):
                continue
            if machine.memory.check(machine.access(here, lanes), row, count, PIECE) is not None:
                continue

            def fetch(
                row: NDArray[np.uint64] = row, count: int = count, lane: int = lane
            ) -> Pieces:
                access = machine.access(here, np.array([lane]))
                words = machine.memory.load(access, row, 4, count // 4, align=PIECE)
                return words.reshape(-1, PIECE // 4)

            once = _once(fetch)
            for block, start, at in destination.blocks(machine, lane):
                if _aligned(machine, here, lane, start, PIECE):
                    where = start + np.arange(count // PIECE) * PIECE
                    Arrival(machine, here, lane, block, where, at, once, count).issue()

    return step


def _whole(machine: Machine, here: Instruction, lane: int, count: int) -> bool:
    """Say whether a size is one that a bulk copy can have, after reporting that it is not."""
    good = count > 0 and count % PIECE == 0
    if not good and count:
        _undefined(machine, here, lane, f"a bulk copy of {count} bytes, no multiple of {PIECE}")
    return good


# --- out of shared memory ------------------------------------------------------------------------


def _operation(options: Options, instruction: ptx.Parsed) -> str | None:
    if instruction.opcode.startswith("cp.reduce"):
        options.ignore("reduce")
        return options.choice(OPERATIONS)
    return None


def _decode_store_box(instruction: ptx.Parsed, context: Context) -> Step:
    options = _finish(instruction, "tensor", "tile", "bulk_group")
    operation = _operation(options, instruction)
    rank = _DIMENSIONS[options.choice(_DIMENSIONS)]
    options.done()
    target, source, *rest = instruction.operands
    tensor = _Map(instruction, context, target)
    if tensor.rank != rank or _rest(instruction, tuple(rest), False) is not None:
        raise unknown(instruction)
    start = offsets(context, source)
    context.note_shared(PIECE)
    context.need(AsyncProxy)
    here = context.instruction

    def step(machine: Machine) -> None:
        for lane in machine.lanes.tolist():
            box, at = tensor.box(machine, lane), int(start(machine)[lane])
            if box is None or not _aligned(machine, here, lane, at, _BOX_ALIGNMENT):
                continue
            box.note(machine, here, lane)
            kind = _TENSOR_TYPES[box.tensor.element]
            combine = None if operation is None else reduction(operation, kind)

            write = partial(box.store, machine, here, lane, combine)
            machine.part(BulkGroups).issue(here, lane, box.offsets(at), write)

    context.atomic = context.atomic or operation is not None
    return step


def _decode_store_bytes(instruction: ptx.Parsed, context: Context) -> Step:
    options = _finish(instruction, "bulk_group", "noftz")
    operation = _operation(options, instruction)
    kind = "b32" if operation is None else options.last(_TYPES)
    options.done()
    target, source, size, *rest = instruction.operands
    if _rest(instruction, tuple(rest), False) is not None:
        raise unknown(instruction)
    address, start = context.address(target), offsets(context, source)
    read_size = context.read(size, "u32")
    combine = None if operation is None else reduction(operation, kind)
    width = int(kind.lstrip("bfsu")) // 8
    context.note_shared(PIECE)
    context.need(AsyncProxy)
    context.atomic = context.atomic or operation is not None
    here = context.instruction

    def step(machine: Machine) -> None:
        for lane in machine.lanes.tolist():
            count, at = _one(machine, read_size, lane), int(start(machine)[lane])
            row = np.array([address(machine)[lane]])
            access = machine.access(here, np.array([lane]))
            good = _whole(machine, here, lane, count) and _aligned(machine, here, lane, at, PIECE)
            if not good or machine.memory.check(access, row, count, PIECE, "write") is not None:
                continue

            def write(pieces: Pieces, row: NDArray[np.uint64] = row, access: Any = access) -> None:
                words = np.ascontiguousarray(pieces).view(UNSIGNED[width]).reshape(1, -1)
                if combine is not None:
                    old = machine.memory.load(access, row, width, words.shape[1], align=PIECE)
                    words = combine(np.ascontiguousarray(old), words)
                machine.memory.store(access, row, words, width, words.shape[1], align=PIECE)

            where = at + np.arange(count // PIECE) * PIECE
            machine.part(BulkGroups).issue(here, lane, where, write)

    return step


# --- decoding ------------------------------------------------------------------------------------


def _decode_box(instruction: ptx.Parsed, context: Context) -> Step:
    decode_one = _decode_load_box if _loading(instruction) else _decode_store_box
    return decode_one(instruction, context)


def _decode_bytes(instruction: ptx.Parsed, context: Context) -> Step:
    decode_one = _decode_load_bytes if _loading(instruction) else _decode_store_bytes
    return decode_one(instruction, context)


def _decode_commit(instruction: ptx.Parsed, context: Context) -> Step:
    return lambda machine: machine.part(BulkGroups).commit(machine.lanes)


def _decode_wait(instruction: ptx.Parsed, context: Context) -> Step:
    options = Options(instruction)
    options.ignore("async", "bulk", "wait_group")
    reads_only = options.flag("read")
    options.done()
    (count,) = instruction.operands
    if not isinstance(count, ptx.Immediate):
        raise unknown(instruction)
    keep = count.value

    def step(machine: Machine) -> None:
        machine.part(BulkGroups).wait(machine.active, keep, reads_only=reads_only)

    return step


def _decode_prefetch(instruction: ptx.Parsed, context: Context) -> Step:
    return lambda machine: None


TABLE: Table = {
    "cp.async.bulk": Opcode(_decode_bytes, InstructionClass.COPY),
    "cp.async.bulk.tensor": Opcode(_decode_box, InstructionClass.COPY),
    "cp.reduce.async.bulk": Opcode(_decode_store_bytes, InstructionClass.COPY),
    "cp.reduce.async.bulk.tensor": Opcode(_decode_store_box, InstructionClass.COPY),
    "cp.async.bulk.prefetch": Opcode(_decode_prefetch, InstructionClass.COPY),
    "cp.async.bulk.commit_group": Opcode(_decode_commit, InstructionClass.COPY),
    "cp.async.bulk.wait_group": Opcode(_decode_wait, InstructionClass.SYNCHRONIZE),
}
