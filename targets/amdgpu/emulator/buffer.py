"""`buffer_load_*` and `buffer_store_*`: memory by a descriptor of four scalar registers.

    buffer_load_dwordx4 v[0:3], v4, s[4:7], 0 offen offset:16
    buffer_store_dword  v0, v[4:5], s[4:7], s8 idxen offen

The descriptor has a base (48 bits), a stride (14 bits), the number of records and flags. The place
is base + scalar offset + vector offset (`offen`) + constant offset + index (`idxen`) x stride. What
lies outside the records is no fault: a load gives 0 there, element by element, and a store is
dropped. Without a stride records are bytes; with one they are indices.

A descriptor whose lanes interleave is that of private memory, on chips that have no `scratch_`
instructions (gfx90a): the place is then private to the lane, and the scalar offset counts the bytes
of a whole wave.

Source: AMD's CDNA3 ISA, "Buffer Addressing" and "Range Checking"; RDNA3 ISA, "Buffer Resource".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.amdgpu.emulator import lds_copy, transfers
from tiledsl.targets.amdgpu.emulator.decode import Context, Entry
from tiledsl.targets.amdgpu.emulator.global_memory import read_global, write_global
from tiledsl.targets.amdgpu.emulator.lanes import Lanes, Words
from tiledsl.targets.amdgpu.emulator.operands import scalar_reader
from tiledsl.targets.amdgpu.emulator.scratch import PRIVATE_FLAG
from tiledsl.targets.amdgpu.emulator.text import Parsed, Register
from tiledsl.targets.amdgpu.emulator.transfers import AddressOf, vector
from tiledsl.targets.amdgpu.emulator.waits import Event, Reach
from tiledsl.targets.gpu.emulator.cohort import Access
from tiledsl.targets.gpu.emulator.program import InstructionClass, Step

if TYPE_CHECKING:
    from tiledsl.targets.amdgpu.emulator.machine import Machine

Places = NDArray[Any]
"""Where lanes' accesses go, as records of `PLACE`."""
PLACE = np.dtype([("address", np.uint64), ("room", np.int64), ("private", np.bool_)])
"""An address (or a byte of private memory), the bytes in range from there on, and which it is."""

_BASE_BITS = np.uint64((1 << 48) - 1)
_STRIDE_BITS = 0x3FFF
Parts = Callable[["Machine", Lanes], NDArray[np.int64]]


def _descriptor(parsed: Parsed, first: int, context: Context) -> int:
    """Return the first scalar register of the descriptor, the operand after the vector address."""
    found = parsed.operands[first + 1]
    if not isinstance(found, Register) or found.file != "s" or found.count != 4:
        raise CompilerBug(f"expected a descriptor in `{context.instruction.text}`")
    return found.index


def _vector_parts(
    parsed: Parsed, first: int, context: Context
) -> tuple[Parts | None, Parts | None]:
    """Return what reads the index and the offset from vector registers, where there are any."""
    indexed, offset = "idxen" in parsed, "offen" in parsed
    if not indexed and not offset:
        return None, None
    register = vector(parsed.operands[first], context)

    def part(number: int) -> Parts:
        return lambda machine, lanes: lanes.pick(machine.vgpr[number]).astype(np.int64)

    index = part(register) if indexed else None
    return index, part(register + indexed) if offset else None


def places(parsed: Parsed, context: Context, first: int) -> AddressOf:
    """Return what computes where a buffer instruction goes.

    Args:
        parsed: The instruction.
        context: The decoder's.
        first: The number of the vector address among its operands.
    """
    register = _descriptor(parsed, first, context)
    index_of, offset_of = _vector_parts(parsed, first, context)
    constant = parsed.integer("offset")
    scalar_offset = scalar_reader(parsed.operands[first + 2], "u32", context)

    def compute(machine: Machine, lanes: Lanes) -> Places:
        size = machine.wave_size
        words = [machine.s_u32[register + word] for word in range(4)]
        base = words[0].astype(np.uint64) | words[1].astype(np.uint64) << np.uint64(32)
        stride = words[1].astype(np.int64) >> 16 & _STRIDE_BITS
        records = lanes.spread(words[2].astype(np.int64), size)
        private = lanes.spread(words[3] & np.uint32(PRIVATE_FLAG) != 0, size)
        moved = lanes.spread(np.broadcast_to(scalar_offset(machine), base.shape), size)
        moved = moved.astype(np.int64)
        offset = np.full(len(lanes.threads), constant, np.int64)
        if offset_of is not None:
            offset += offset_of(machine, lanes)
        room = records - moved - offset
        if index_of is not None:
            index, strides = index_of(machine, lanes), lanes.spread(stride, size)
            room = np.where(strides == 0, room, np.where(index < records, 1 << 40, 0))
            offset = offset + index * strides
        found = np.empty(len(offset), PLACE)
        own = offset + moved // size
        start = lanes.spread(base & _BASE_BITS, size) + (moved + offset).astype(np.uint64)
        found["address"] = np.where(private, own.astype(np.uint64), start)
        found["room"] = room
        found["private"] = private
        return found

    return compute


class BufferSpace:
    """Memory by descriptors, as a `transfers.Space`."""

    load_event = Event.LOAD
    store_event = Event.STORE
    kind = InstructionClass.GLOBAL

    def address(self, parsed: Parsed, context: Context, first: int) -> AddressOf:
        """Return what computes places."""
        return places(parsed, context, first)

    def read(
        self, machine: Machine, access: Access, address: Places, size: int, count: int
    ) -> Words:
        """Return the elements at places, 0 where they are out of range."""
        if len(address) and address["private"].all():
            offset = address["address"].astype(np.int64)
            return machine.memory.private.read(access, offset, size * count).view(f"u{size}")
        memory, start, room = machine.cohort.memory, address["address"], address["room"]
        if (room >= size * count).all():
            return read_global(memory, access, start, size, count)
        found = np.zeros((len(start), count), f"u{size}")
        for element in range(count):
            inside = room >= size * (element + 1)
            part = Access(access.cohort, access.instruction, access.lanes[inside])
            at = start[inside] + np.uint64(size * element)
            found[inside, element] = read_global(memory, part, at, size, 1)[:, 0]
        return found

    def write(
        self, machine: Machine, access: Access, address: Places, values: Words, size: int
    ) -> None:
        """Write elements but for those that are out of range."""
        if len(address) and address["private"].all():
            offset = address["address"].astype(np.int64)
            bytes_ = np.ascontiguousarray(values).view(np.uint8)
            machine.memory.private.write(access, offset, bytes_)
            return
        memory, start, room = machine.cohort.memory, address["address"], address["room"]
        if (room >= size * values.shape[1]).all():
            write_global(memory, access, start, values, size)
            return
        for element in range(values.shape[1]):
            inside = room >= size * (element + 1)
            part = Access(access.cohort, access.instruction, access.lanes[inside])
            at = start[inside] + np.uint64(size * element)
            write_global(memory, part, at, values[inside, element, None], size)

    def reaches(self, machine: Machine, address: Places, lanes: Lanes, width: int) -> Reach | None:
        """Return the global memory that is touched."""
        if len(address) and address["private"].any():
            return None
        return machine.memory.waits.reach(address["address"], lanes.where, width)

    def count(
        self, machine: Machine, index: int, address: Places, lanes: Lanes, width: int
    ) -> None:
        """Count an access to global memory of the lanes that are in range."""
        assert machine.cohort.counters is not None
        inside = (address["room"] >= width) & ~address["private"]
        machine.cohort.counters.global_access(
            index, address["address"][inside], width, lanes.threads[inside]
        )


BUFFER = BufferSpace()


def _load(name: str, entry: Entry) -> Entry:
    """Return how a load is decoded that its modifier `lds` may send to LDS."""

    def decode(parsed: Parsed, context: Context) -> Step:
        if "lds" not in parsed:
            return entry.decode(parsed, context)
        return lds_copy.copy(BUFFER, name.removeprefix("buffer_load_"), parsed, context)

    return Entry(decode, entry.kind)


TABLE = {
    name: _load(name, entry) if name.startswith("buffer_load_") else entry
    for name, entry in transfers.entries(BUFFER, "buffer_", data=0, first=1).items()
}
