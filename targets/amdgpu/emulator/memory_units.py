"""What a cohort has beside registers: LDS, its clocks, barriers, private memory, and waits.

`Machine.memory` is one of these; the families of memory instructions reach everything through it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.amdgpu.emulator.decode import Code
from tiledsl.targets.amdgpu.emulator.orders import Orders
from tiledsl.targets.amdgpu.emulator.scratch import PRIVATE_FLAG, PrivateMemory
from tiledsl.targets.amdgpu.emulator.text import Parsed, registers_of
from tiledsl.targets.amdgpu.emulator.waits import Deliver, Event, Fetch, LdsClocks, Waits
from tiledsl.targets.gpu.emulator.barriers import Barriers
from tiledsl.targets.gpu.emulator.cohort import Cohort, Mask
from tiledsl.targets.gpu.emulator.program import Instruction, InstructionClass
from tiledsl.targets.gpu.emulator.shared_memory import SharedMemory

WORKGROUP = 0
"""The barrier of a workgroup, the only one that waves have."""

_LOADING = (InstructionClass.GLOBAL, InstructionClass.LOCAL)
_LOAD = re.compile(r"(?:global|scratch|buffer)_load_")
_WIDEST_GRANULE = 16
_BYTES = re.compile(r"_[bui](8|16|32|64|96|128)(?=_|$)")
_TO_LDS = {"dwordx4": 16}


class MemoryUnits:
    """See the module's docstring.

    Attributes:
        waits: What is under way.
        orders: What was done to caches.
        clocks: The waves' clocks.
        shared: LDS.
        granule: The bytes that every access of the kernel to LDS is a multiple of.
        barriers: Barriers.
        private: Private memory.
        signalled: For each wave the phase of the barrier that it has signalled, as chips that
            signal and wait apart do.
    """

    def __init__(self, machine: Any) -> None:
        """Make the units of a `Machine`, which imports this module and so is not named here."""
        cohort: Cohort = machine.cohort
        code: Code = machine.code
        self._parsed = code.parsed
        self.waits = Waits(machine)
        self.clocks = LdsClocks(cohort.blocks, cohort.warps)
        self.clocks.waits = self.waits
        self.orders = Orders(machine, self.clocks)
        size = code.lds_bytes + cohort.shared_bytes
        self.granule = code.lds_granule
        self.shared = SharedMemory(cohort, self.clocks, size, self.granule)
        wave = np.arange(cohort.blocks * cohort.warps)
        self.barriers = Barriers(
            self.clocks, wave // cohort.warps, wave, machine.scheduler.live, count=1
        )
        if code.launch.private_buffer is not None:
            first = code.launch.private_buffer
            for word, value in enumerate((0, 0, 0xFFFFFFFF, PRIVATE_FLAG)):
                machine.s_u32[first + word][:] = value
        self.private = PrivateMemory(cohort.blocks * cohort.threads, code.private_bytes)
        self.signalled: NDArray[np.int64] = np.zeros(len(wave), np.int64)

    def issue(
        self,
        event: Event,
        instruction: Instruction,
        registers: int,
        fetch: Fetch | None,
        deliver: Deliver,
    ) -> None:
        """File an asynchronous operation; see `Waits.issue`."""
        self.waits.issue(event, instruction, registers, fetch, deliver)

    def touched(self, instruction: Instruction, registers: int) -> None:
        """File findings where the coming instruction names registers that a load has yet to write.

        Args:
            instruction: Which.
            registers: Those of its registers that some load has yet to write.
        """
        destination = 0
        if instruction.kind in _LOADING:
            parsed = self._parsed[instruction.index]
            if _LOAD.match(parsed.stem):
                destination = registers_of(parsed.operands[:1]) & ~registers_of(parsed.operands[1:])
        self.waits.touched(instruction, registers, destination)

    def ended(self, mask: Mask) -> None:
        """Finish what waves that end have under way; call before the scheduler ends them."""
        self.waits.ended(mask)


def granule(instructions: Sequence[Parsed]) -> int:
    """Return the bytes that every access of a kernel to LDS is a multiple of."""
    found = (_lds_bytes(one.stem, "lds" in one) for one in instructions)
    sizes = [size for size in found if size is not None]
    return min(sizes, default=4)


def _lds_bytes(stem: str, to_lds: bool) -> int | None:
    """Return the bytes that an instruction's accesses to LDS are a multiple of; None of none."""
    if stem.startswith("global_load_lds_") or (stem.startswith("buffer_load_") and to_lds):
        return _TO_LDS.get(stem.rpartition("_")[2], 4)
    if stem.startswith("flat_"):
        return 1  # it may touch anything
    if not stem.startswith("ds_") or "permute" in stem or "swizzle" in stem:
        return None
    found = _BYTES.search(stem)
    bits = 32 if found is None else int(found[1])
    if "_tr" in stem:
        return 4
    return 4 if bits == 96 else min(bits // 8, _WIDEST_GRANULE)
