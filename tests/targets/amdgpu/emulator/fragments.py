"""Run a few lines of AMDGPU assembly on the emulator.

A fragment gets its arguments' address in s[0:1] and the work-item's number in v0; `run` adds what makes it
a kernel. `Result` has the registers at the end as well as the findings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.amdgpu.chips import CHIPS
from tiledsl.targets.amdgpu.emulator import load
from tiledsl.targets.amdgpu.emulator.machine import Machine
from tiledsl.targets.amdgpu.emulator.text import VCC
from tiledsl.targets.gpu.emulator.cohort import Cohort, Mode
from tiledsl.targets.gpu.emulator.counters import Counters
from tiledsl.targets.gpu.emulator.findings import Findings, Kind
from tiledsl.targets.gpu.emulator.memory import GlobalMemory

Array = NDArray[Any]

_TEXT = """
\t.text
kernel:
{code}
\ts_endpgm
\t.amdhsa_kernel kernel
\t\t.amdhsa_group_segment_fixed_size {lds}
\t\t.amdhsa_private_segment_fixed_size {private}
{user}
\t\t.amdhsa_system_sgpr_workgroup_id_x 1
\t\t.amdhsa_float_denorm_mode_32 3
{size}
\t.end_amdhsa_kernel
"""


_ARGUMENTS = "\t\t.amdhsa_user_sgpr_kernarg_segment_ptr 1\n\t\t.amdhsa_user_sgpr_count 2"
_BUFFER = "\t\t.amdhsa_user_sgpr_private_segment_buffer 1\n\t\t.amdhsa_user_sgpr_count 4"


@dataclass
class Result:
    """What a fragment left behind."""

    machine: Machine
    findings: Findings
    counters: Counters

    def vector(self, register: int, kind: Any = np.uint32) -> Array:
        """Return a vector register, (waves, lanes)."""
        return self.machine.vgpr[register].view(kind)

    def scalar(self, register: int) -> Array:
        """Return a scalar register, (waves,)."""
        return self.machine.s_u32[register]

    @property
    def kinds(self) -> list[Kind]:
        """The kinds of fault found."""
        return [one.kind for one in self.findings.all()]


def pairs(first: int, *arrays: Array) -> dict[int, int]:
    """Return scalar registers that hold the addresses of arrays, from an even number on."""
    words: dict[int, int] = {}
    for place, array in enumerate(arrays):
        words[first + 2 * place] = array.ctypes.data & 0xFFFFFFFF
        words[first + 2 * place + 1] = array.ctypes.data >> 32
    return words


class Fragment:
    """A kernel under construction: arrays in memory, registers, text."""

    def __init__(
        self,
        code: str,
        chip: str = "gfx942",
        *,
        threads: int = 0,
        blocks: int = 1,
        lds: int = 0,
        dynamic_lds: int = 0,
        private: int = 0,
        scratch: bool = False,
        mode: Mode = Mode.LAZY,
    ) -> None:
        """Decode a kernel.

        Args:
            code: Its instructions.
            chip: What for.
            threads: A workgroup's; one wave's by default.
            blocks: Workgroups.
            lds: Bytes of LDS.
            dynamic_lds: Bytes of LDS that the launch adds.
            private: Bytes of private memory a lane.
            scratch: Ask for a descriptor of private memory in s[0:3], and not for arguments.
            mode: When asynchronous operations take effect.
        """
        found = CHIPS[chip]
        self.memory = GlobalMemory()
        lines = "\n".join(f"\t{line.strip()}" for line in code.strip().splitlines())
        size = f"\t\t.amdhsa_wavefront_size32 {int(found.wave_size == 32)}"
        user = _BUFFER if scratch else _ARGUMENTS
        text = _TEXT.format(code=lines, lds=lds, private=private, size=size, user=user)
        self.program = load(text, "kernel", chip, self.memory)
        self.threads = threads or found.wave_size
        self.blocks, self.mode = blocks, mode
        self.dynamic_lds = dynamic_lds
        self.arguments = bytearray()

    def array(self, values: Array) -> Array:
        """Place an array in memory and its address among the arguments; returns the live bytes."""
        values = np.ascontiguousarray(values)
        address = self.memory.allocate(values.nbytes, written=True)
        self.arguments += int(address).to_bytes(8, "little")
        live = self.memory.bytes_at(address, values.nbytes)
        live[:] = values.view(np.uint8).ravel()
        return live.view(values.dtype).reshape(values.shape)

    def run(
        self, vectors: dict[int, Array] | None = None, scalars: dict[int, Any] | None = None
    ) -> Result:
        """Run it, with vector registers (broadcast to (waves, lanes)) and scalar ones given."""
        findings = Findings()
        programs = np.zeros((self.blocks, 3), np.int64)
        programs[:, 0] = np.arange(self.blocks)
        cohort = Cohort(
            (self.blocks, 1, 1), programs, self.threads, self.program.warp_size,
            bytes(self.arguments), self.dynamic_lds, self.memory, findings, mode=self.mode,
            atomic=self.program.atomic,
        )  # fmt: skip
        counters = Counters(len(self.program.instructions), self.program.rules, cohort.warp_of)
        cohort.counters = counters
        machine = self.program.machine(cohort)
        machine.vgpr[1:] = 0
        machine.sgpr[2 : VCC // 2 + 1] = 0
        for register, values in (vectors or {}).items():
            words = values if values.dtype.itemsize == 4 else values.astype(np.uint32)
            machine.vgpr[register][:] = np.ascontiguousarray(words).view(np.uint32)
        for register, value in (scalars or {}).items():
            machine.s_u32[register][:] = value
        machine.run()
        return Result(machine, findings, counters)
