"""`flat_load_*`, `flat_store_*`: addresses of which only the bits say what memory they lead to.

Global memory lies where the process has it; LDS and private memory of the lane's own begin at
`SHARED_BASE` and `PRIVATE_BASE`, far above. A flat instruction counts in the queues of global
memory and of LDS, as it may be either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.amdgpu.emulator import transfers
from tiledsl.targets.amdgpu.emulator.constants import PRIVATE_BASE, SHARED_BASE
from tiledsl.targets.amdgpu.emulator.decode import Context, Entry
from tiledsl.targets.amdgpu.emulator.global_memory import read_global, write_global
from tiledsl.targets.amdgpu.emulator.lanes import Lanes, Words, address64
from tiledsl.targets.amdgpu.emulator.text import Parsed
from tiledsl.targets.amdgpu.emulator.transfers import AddressOf, vector
from tiledsl.targets.amdgpu.emulator.waits import Event, Reach
from tiledsl.targets.gpu.emulator.cohort import Access
from tiledsl.targets.gpu.emulator.program import InstructionClass, Step

if TYPE_CHECKING:
    from tiledsl.targets.amdgpu.emulator.machine import Machine

Addresses = NDArray[np.uint64]

_APERTURE = 1 << 32
"""Bytes of address space that LDS has, and private memory."""


def apertures(address: Addresses) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which addresses lead to LDS and which to private memory."""
    shared = (address >= SHARED_BASE) & (address < SHARED_BASE + _APERTURE)
    private = (address >= PRIVATE_BASE) & (address < PRIVATE_BASE + _APERTURE)
    return shared, private


class FlatSpace:
    """All memory, as a `transfers.Space`."""

    load_event = Event.FLAT_LOAD
    store_event = Event.FLAT_STORE
    kind = InstructionClass.GLOBAL

    def __init__(self, *, partly: bool = False) -> None:
        """Make it, for loads of words of which only a byte need be there if `partly`."""
        self._partly = partly

    def address(self, parsed: Parsed, context: Context, first: int) -> AddressOf:
        """Return what computes addresses."""
        register = vector(parsed.operands[first], context)
        offset = np.uint64(parsed.integer("offset") & 0xFFFF_FFFF_FFFF_FFFF)
        return lambda machine, lanes: address64(machine, lanes, register) + offset

    def read(
        self, machine: Machine, access: Access, address: Addresses, size: int, count: int
    ) -> Words:
        """Return the elements at addresses."""
        shared, private = apertures(address)
        other = ~(shared | private)
        if other.all():
            return self._read_global(machine, access, address, size, count)
        found = np.zeros((len(address), count), f"u{size}")
        memory = machine.memory
        if other.any():
            part = _part(access, other)
            found[other] = self._read_global(machine, part, address[other], size, count)
        if shared.any():
            offset = (address[shared] - np.uint64(SHARED_BASE)).astype(np.int64)
            values = memory.shared.load(_part(access, shared), offset, size, count, 1)
            found[shared] = values.reshape(-1, count)
        if private.any():
            offset = (address[private] - np.uint64(PRIVATE_BASE)).astype(np.int64)
            bytes_ = memory.private.read(_part(access, private), offset, size * count)
            found[private] = bytes_.view(f"u{size}")
        return found

    def _read_global(
        self, machine: Machine, access: Access, address: Addresses, size: int, count: int
    ) -> Words:
        memory = machine.cohort.memory
        return read_global(memory, access, address, size, count, partly=self._partly)

    def write(
        self, machine: Machine, access: Access, address: Addresses, values: Words, size: int
    ) -> None:
        """Write elements."""
        shared, private = apertures(address)
        other = ~(shared | private)
        memory, count = machine.memory, values.shape[1]
        if other.any():
            part = _part(access, other)
            write_global(machine.cohort.memory, part, address[other], values[other], size)
        if shared.any():
            offset = (address[shared] - np.uint64(SHARED_BASE)).astype(np.int64)
            own = values[shared] if count > 1 else values[shared, 0]
            memory.shared.store(_part(access, shared), offset, own, size, count, 1)
        if private.any():
            offset = (address[private] - np.uint64(PRIVATE_BASE)).astype(np.int64)
            bytes_ = np.ascontiguousarray(values[private]).view(np.uint8)
            memory.private.write(_part(access, private), offset, bytes_)

    def reaches(
        self, machine: Machine, address: Addresses, lanes: Lanes, width: int
    ) -> Reach | None:
        """Return the memory that is touched."""
        return machine.memory.waits.reach(address, lanes.where, width)

    def count(
        self, machine: Machine, index: int, address: Addresses, lanes: Lanes, width: int
    ) -> None:
        """Count an access, by where it leads."""
        assert machine.cohort.counters is not None
        shared, private = apertures(address)
        other = ~(shared | private)
        if other.any():
            machine.cohort.counters.global_access(
                index, address[other], width, lanes.threads[other]
            )
        if shared.any():
            offset = (address[shared] - np.uint64(SHARED_BASE)).astype(np.int64)
            machine.cohort.counters.shared_access(index, offset, width, lanes.threads[shared])


def _part(access: Access, chosen: NDArray[np.bool_]) -> Access:
    return Access(access.cohort, access.instruction, access.lanes[chosen])


FLAT = FlatSpace()
_PARTS = FlatSpace(partly=True)


def _word(parsed: Parsed, context: Context) -> Step:
    """Decode a load of one word."""
    space = _PARTS if context.swaps else FLAT
    return transfers.load(space, transfers.LOADS["dword"], parsed, context)


TABLE = {
    **transfers.entries(FLAT, "flat_"),
    "flat_load_dword": Entry(_word, InstructionClass.GLOBAL),
    "flat_load_b32": Entry(_word, InstructionClass.GLOBAL),
}
