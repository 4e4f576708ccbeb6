"""`global_load_*` and `global_store_*`: global memory by 64-bit addresses.

An address is two vector registers, or two scalar ones with a 32-bit offset in a vector register,
and a constant offset:

    global_load_dwordx4 v[0:3], v[4:5], off offset:16
    global_load_b128    v[0:3], v4, s[2:3] offset:16 th:TH_LOAD_NT
    global_store_b32    v4, v0, s[2:3]

Hints (`nt`, `sc0`, `glc`, `slc`, `dlc`, `th:`, `scope:`) concern caches, which are not emulated.
Accesses of any alignment are right: HSA runs kernels in unaligned mode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.amdgpu.emulator import lds_copy, transfers
from tiledsl.targets.amdgpu.emulator.decode import Context
from tiledsl.targets.amdgpu.emulator.lanes import Lanes, Words, address64
from tiledsl.targets.amdgpu.emulator.operands import scalar_reader
from tiledsl.targets.amdgpu.emulator.text import Name, Parsed
from tiledsl.targets.amdgpu.emulator.transfers import AddressOf, vector
from tiledsl.targets.amdgpu.emulator.waits import Event, Reach
from tiledsl.targets.gpu.emulator.cohort import Access
from tiledsl.targets.gpu.emulator.memory import GlobalMemory
from tiledsl.targets.gpu.emulator.program import InstructionClass

if TYPE_CHECKING:
    from tiledsl.targets.amdgpu.emulator.machine import Machine

Addresses = NDArray[np.uint64]


def global_address(parsed: Parsed, context: Context, first: int) -> AddressOf:
    """Return what computes the addresses of a global instruction.

    Args:
        parsed: The instruction; its last operand is `off` or scalar registers with a base.
        context: The decoder's.
        first: The number of the operand with the vector part.
    """
    register = vector(parsed.operands[first], context)
    base = parsed.operands[-1]
    offset = np.uint64(parsed.integer("offset") & 0xFFFF_FFFF_FFFF_FFFF)
    if isinstance(base, Name):

        def from_pair(machine: Machine, lanes: Lanes) -> Addresses:
            address = address64(machine, lanes, register)
            return address + offset if offset else address

        return from_pair
    read = scalar_reader(base, "u64", context)

    def from_base(machine: Machine, lanes: Lanes) -> Addresses:
        start = lanes.spread(read(machine) + offset, machine.wave_size)
        return start + lanes.pick(machine.vgpr[register]).astype(np.uint64)

    return from_base


def read_global(
    memory: GlobalMemory, access: Access, address: Addresses, size: int, count: int
) -> Words:
    """Return elements of global memory at addresses of any alignment, (lanes, count)."""
    return memory.load(access, address, size, count, align=1).reshape(len(address), count)


def write_global(
    memory: GlobalMemory, access: Access, address: Addresses, values: Words, size: int
) -> None:
    """Write elements, (lanes, count), to global memory at addresses of any alignment."""
    count = values.shape[1]
    memory.store(access, address, values if count > 1 else values[:, 0], size, count, align=1)


class GlobalSpace:
    """Global memory, as a `transfers.Space`."""

    load_event = Event.LOAD
    store_event = Event.STORE
    kind = InstructionClass.GLOBAL

    def address(self, parsed: Parsed, context: Context, first: int) -> AddressOf:
        """Return what computes addresses."""
        return global_address(parsed, context, first)

    def read(
        self, machine: Machine, access: Access, address: Addresses, size: int, count: int
    ) -> Words:
        """Return the elements at addresses."""
        return read_global(machine.cohort.memory, access, address, size, count)

    def write(
        self, machine: Machine, access: Access, address: Addresses, values: Words, size: int
    ) -> None:
        """Write elements."""
        write_global(machine.cohort.memory, access, address, values, size)

    def reaches(
        self, machine: Machine, address: Addresses, lanes: Lanes, width: int
    ) -> Reach | None:
        """Return the memory that is touched."""
        return machine.memory.waits.reach(address, lanes.where, width)

    def count(
        self, machine: Machine, index: int, address: Addresses, lanes: Lanes, width: int
    ) -> None:
        """Count an access."""
        assert machine.cohort.counters is not None
        machine.cohort.counters.global_access(index, address, width, lanes.threads)


GLOBAL = GlobalSpace()
TABLE = {**transfers.entries(GLOBAL, "global_"), **lds_copy.entries(GLOBAL, "global_load_lds_")}
