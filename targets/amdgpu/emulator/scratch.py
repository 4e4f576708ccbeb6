"""Private memory: `scratch_load_*` and `scratch_store_*`, and the memory itself.

Each lane has bytes of its own, which spilled registers and arrays on the stack live in. An address
is a byte offset from the lane's first byte, made of a vector register, a scalar one and a constant,
either register of which may be `off`:

    scratch_store_b32  off, v4, s32 offset:16
    scratch_load_b128  v[0:3], v9, off

Hardware interleaves the lanes' words (*swizzles*); no address that a kernel can see depends on
that. What a lane reads beyond its bytes is out of bounds, and before a write is a read of what
nothing wrote.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.amdgpu.emulator import transfers
from tiledsl.targets.amdgpu.emulator.decode import Context
from tiledsl.targets.amdgpu.emulator.lanes import Lanes, Words
from tiledsl.targets.amdgpu.emulator.operands import scalar_reader
from tiledsl.targets.amdgpu.emulator.text import Name, Parsed
from tiledsl.targets.amdgpu.emulator.transfers import AddressOf, vector
from tiledsl.targets.amdgpu.emulator.waits import Event
from tiledsl.targets.gpu.emulator.cohort import Access
from tiledsl.targets.gpu.emulator.findings import Kind
from tiledsl.targets.gpu.emulator.program import InstructionClass

if TYPE_CHECKING:
    from tiledsl.targets.amdgpu.emulator.machine import Machine

Offsets = NDArray[np.int64]

PRIVATE_FLAG = 1 << 23
"""ADD_TID_ENABLE in the last word of a descriptor: lanes interleave, as private memory's do."""


class PrivateMemory:
    """The private bytes of every thread of a cohort."""

    def __init__(self, threads: int, size: int) -> None:
        self.size = size
        self.data = np.zeros((threads, max(size, 1)), np.uint8)
        self._written = np.zeros((threads, max(size, 1)), np.bool_)

    def read(self, access: Access, offset: Offsets, width: int) -> NDArray[np.uint8]:
        """Return bytes, (lanes, width); what is out of bounds is 0."""
        columns, bad = self._checked(access, offset, width, "read")
        lanes = access.lanes[:, None]
        fresh = ~self._written[lanes, columns].all(1) & ~bad
        if fresh.any():
            access.report(
                Kind.UNINITIALIZED,
                fresh,
                lambda at: f"read of {width} bytes at byte {int(offset[at])} of private memory",
            )
        found = self.data[lanes, columns]
        found[bad] = 0
        return found

    def write(self, access: Access, offset: Offsets, values: NDArray[np.uint8]) -> None:
        """Write bytes, (lanes, width); what is out of bounds is dropped."""
        columns, bad = self._checked(access, offset, values.shape[1], "write")
        lanes = access.lanes[~bad, None]
        self.data[lanes, columns[~bad]] = values[~bad]
        self._written[lanes, columns[~bad]] = True

    def _checked(
        self, access: Access, offset: Offsets, width: int, verb: str
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        bad = (offset < 0) | (offset + width > self.size)
        if bad.any():
            access.report(
                Kind.OUT_OF_BOUNDS,
                bad,
                lambda at: (
                    f"{verb} of {width} bytes at byte {int(offset[at])} of private memory, "
                    f"which has {self.size}"
                ),
            )
        columns = np.where(bad, 0, offset)[:, None] + np.arange(width)
        return np.minimum(columns, max(self.size, 1) - 1), bad


class ScratchSpace:
    """Private memory, as a `transfers.Space`."""

    load_event = Event.LOAD
    store_event = Event.STORE
    kind = InstructionClass.LOCAL

    def address(self, parsed: Parsed, context: Context, first: int) -> AddressOf:
        """Return what computes byte offsets."""
        own, base = parsed.operands[first], parsed.operands[-1]
        offset = parsed.integer("offset")
        register = None if isinstance(own, Name) else vector(own, context)
        read = None if isinstance(base, Name) else scalar_reader(base, "i32", context)

        def compute(machine: Machine, lanes: Lanes) -> Offsets:
            total = np.full(len(lanes.threads), offset, np.int64)
            if register is not None:
                total += lanes.pick(machine.vgpr[register]).view(np.int32)
            if read is not None:
                total += lanes.spread(read(machine), machine.wave_size)
            return total

        return compute

    def read(
        self, machine: Machine, access: Access, address: Offsets, size: int, count: int
    ) -> Words:
        """Return the elements at offsets."""
        return machine.memory.private.read(access, address, size * count).view(f"u{size}")

    def write(
        self, machine: Machine, access: Access, address: Offsets, values: Words, size: int
    ) -> None:
        """Write elements."""
        del size
        bytes_ = np.ascontiguousarray(values).view(np.uint8)
        machine.memory.private.write(access, address, bytes_)

    def reaches(self, machine: Machine, address: Offsets, lanes: Lanes, width: int) -> None:
        """Return nothing: it is no global memory."""

    def count(
        self, machine: Machine, index: int, address: Offsets, lanes: Lanes, width: int
    ) -> None:
        """Count nothing: swizzled accesses of whole waves are as good as they can be."""


SCRATCH = ScratchSpace()
TABLE = transfers.entries(SCRATCH, "scratch_")
