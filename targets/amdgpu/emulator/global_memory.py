"""`global_load_*` and `global_store_*`: global memory by 64-bit addresses.

An address is two vector registers, or two scalar ones with a 32-bit offset in a vector register,
and a constant offset:

    global_load_dwordx4 v[0:3], v[4:5], off offset:16
    global_load_b128    v[0:3], v4, s[2:3] offset:16 th:TH_LOAD_NT
    global_store_b32    v4, v0, s[2:3]

Hints (`nt`, `sc0`, `glc`, `slc`, `dlc`, `th:`, `scope:`) concern caches, which are not emulated.
Accesses of any alignment are right: HSA runs kernels in unaligned mode.

An atomic on a 16-bit element is made of a load and a compare-and-swap of the word that holds it,
which may reach past the end of an array of an odd number of elements. Nothing tells such a load
from others, so in kernels with a compare-and-swap of 4 bytes (`swaps`) loads of one word need only
a byte of it to be there, and do not count as racing with anything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.amdgpu.emulator import lds_copy, transfers
from tiledsl.targets.amdgpu.emulator.decode import Context, Entry
from tiledsl.targets.amdgpu.emulator.lanes import Lanes, Words, address64
from tiledsl.targets.amdgpu.emulator.operands import scalar_reader
from tiledsl.targets.amdgpu.emulator.text import Name, Parsed
from tiledsl.targets.amdgpu.emulator.transfers import AddressOf, vector
from tiledsl.targets.amdgpu.emulator.waits import Event, Reach
from tiledsl.targets.gpu.emulator.cohort import Access
from tiledsl.targets.gpu.emulator.memory import GlobalMemory
from tiledsl.targets.gpu.emulator.program import InstructionClass, Step

if TYPE_CHECKING:
    from tiledsl.targets.amdgpu.emulator.machine import Machine

Addresses = NDArray[np.uint64]

_SWAP = re.compile(r"(?:global|flat)_atomic_cmpswap(?:_b32)?$")


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


def swaps(code: Sequence[object]) -> bool:
    """Whether some instruction of a text compares and swaps words of 4 bytes."""
    return any(isinstance(one, Parsed) and _SWAP.match(one.stem) for one in code)


def read_global(
    memory: GlobalMemory,
    access: Access,
    address: Addresses,
    size: int,
    count: int,
    *,
    partly: bool = False,
) -> Words:
    """Return elements of global memory at addresses of any alignment, (lanes, count)."""
    values = memory.load(access, address, size, count, align=1, partly=partly)
    return values.reshape(len(address), count)


def write_global(
    memory: GlobalMemory, access: Access, address: Addresses, values: Words, size: int
) -> None:
    """Write elements, (lanes, count), to global memory at addresses of any alignment."""
    count = values.shape[1]
    memory.store(access, address, values if count > 1 else values[:, 0], size, count, align=1)


class GlobalSpace:
    """Global memory, as a `transfers.Space`."""

    def __init__(self, *, partly: bool = False) -> None:
        """Make it, for loads of words of which only a byte need be there if `partly`."""
        self._partly = partly

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
        memory = machine.cohort.memory
        return read_global(memory, access, address, size, count, partly=self._partly)

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
_PARTS = GlobalSpace(partly=True)


def _word(parsed: Parsed, context: Context) -> Step:
    """Decode a load of one word."""
    space = _PARTS if context.swaps else GLOBAL
    return transfers.load(space, transfers.LOADS["dword"], parsed, context)


TABLE = {
    **transfers.entries(GLOBAL, "global_"),
    **lds_copy.entries(GLOBAL, "global_load_lds_"),
    "global_load_dword": Entry(_word, InstructionClass.GLOBAL),
    "global_load_b32": Entry(_word, InstructionClass.GLOBAL),
}
