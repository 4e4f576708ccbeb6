"""The registers of a cohort's waves, and the loop that executes them.

A unit is a wave. Vector registers are one array (registers, waves, lanes) and scalar registers one
(pairs, waves, 2) of 32-bit words; every register is kept as views of each type that instructions
read it as, in lists by number, so reading one costs an attribute and an index:

    machine.v_u32[4]       v4 of all waves, (waves, lanes); likewise v_i32, v_f32
    machine.v_u16[2*4+1]   its high half; likewise v_i16, v_f16
    machine.s_u32[4]       s4 of all waves, (waves,); likewise s_i32, s_f32
    machine.s_u64[2]       s[4:5], (waves,); likewise s_i64, s_f64
    machine.c_u32[4]       s4 as a column (waves, 1), which broadcasts over lanes; all types too

VCC, EXEC, M0 and the trap registers are scalar registers under the numbers of `text`; SCC is
`machine.scc`. EXEC is also kept as `lanes` (active lanes of active waves) with `lanes_full`;
whoever writes EXEC calls `refresh`.

Invariants: an instruction computes for all waves and lanes and masks only what it writes (with
`lanes` for vector registers, `active` for scalar ones); waves that are in another group, or lanes
that EXEC switches off, keep theirs. Registers that the hardware does not set start as poison (NaN).

Asynchronous loads: `outstanding` has a bit for each register (numbered as `text.registers_of`
says) that some load has still to write. Each step is checked against it before it runs, and what
is hit goes to `memory.touched`. `memory` issues and waits, and keeps `outstanding` up to date.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.amdgpu.emulator.decode import Code, WaveBlock
from tiledsl.targets.amdgpu.emulator.lanes import POISON
from tiledsl.targets.amdgpu.emulator.memory_units import MemoryUnits
from tiledsl.targets.amdgpu.emulator.text import EXEC, TTMP
from tiledsl.targets.gpu.emulator.cohort import Cohort
from tiledsl.targets.gpu.emulator.endless import Arrays
from tiledsl.targets.gpu.emulator.engine import Engine
from tiledsl.targets.gpu.emulator.program import BasicBlock
from tiledsl.targets.gpu.emulator.scheduler import Mask

SCALARS = 132
_KINDS: dict[str, Any] = {
    "u16": np.uint16, "i16": np.int16, "f16": np.float16, "u32": np.uint32, "i32": np.int32,
    "f32": np.float32, "u64": np.uint64, "i64": np.int64, "f64": np.float64,
}  # fmt: skip

Views = list[NDArray[Any]]


class Machine(Engine):
    """What runs one cohort; see the module's docstring.

    Attributes:
        code: The decoded kernel.
        waves: Waves in the cohort.
        wave_size: Lanes a wave.
        vgpr: All vector registers, (registers, waves, lanes).
        sgpr: All scalar registers, (pairs, waves, 2).
        scc: The scalar condition code of each wave.
        mode: The MODE register of each wave.
        lanes: Which lanes are active: EXEC of the active waves.
        lanes_full: Whether every lane is, so that vector registers can be written without a mask.
        thread_of: The flat thread of each lane, (waves, lanes); of a lane without one, the last.
        outstanding: Registers that loads have still to write.
    """

    UNITS = "waves"

    v_u16: Views
    v_i16: Views
    v_f16: Views
    v_u32: Views
    v_i32: Views
    v_f32: Views
    s_u32: Views
    s_i32: Views
    s_f32: Views
    s_u64: Views
    s_i64: Views
    s_f64: Views
    c_u16: Views
    c_i16: Views
    c_f16: Views
    c_u32: Views
    c_i32: Views
    c_f32: Views
    c_u64: Views
    c_i64: Views
    c_f64: Views

    def __init__(self, code: Code, cohort: Cohort) -> None:
        waves = cohort.blocks * cohort.warps
        super().__init__(cohort, code.blocks, waves)
        self.code = code
        self.waves = waves
        self.wave_size = code.wave_size
        self.vgpr = np.full((code.vectors, waves, code.wave_size), POISON, np.uint32)
        self.sgpr = np.full((SCALARS // 2, waves, 2), POISON, np.uint32)
        self.scc = np.zeros(waves, np.bool_)
        self.mode = np.full(waves, code.mode, np.uint32)
        self.outstanding = 0
        self._view_registers()
        self._exec: NDArray[Any] = self.s_u64[EXEC // 2]
        if code.wave_size == 32:
            self._exec = self.s_u32[EXEC]
        self._all = self._exec.dtype.type(2**code.wave_size - 1)
        self.lanes: Mask = np.ones((waves, code.wave_size), np.bool_)
        self.lanes_full = True
        this: Any = self  # pyright knows this module under two names
        self.memory = MemoryUnits(this)
        self._placed: list[int] = []
        self._start()

    def _view_registers(self) -> None:
        """Make the lists of views."""
        for name in ("u32", "i32", "f32"):
            kind = _KINDS[name]
            setattr(self, f"v_{name}", list(self.vgpr.view(kind)))
            scalars = [self.sgpr.view(kind)[i >> 1, :, i & 1] for i in range(SCALARS)]
            setattr(self, f"s_{name}", scalars)
            setattr(self, f"c_{name}", [one[:, None] for one in scalars])
        for name in ("u16", "i16", "f16"):
            halves = self.vgpr.view(_KINDS[name]).reshape(*self.vgpr.shape, 2)
            numbers = range(2 * len(self.vgpr))
            setattr(self, f"v_{name}", [halves[i >> 1, ..., i & 1] for i in numbers])
            short = self.sgpr.view(_KINDS[name])
            setattr(self, f"c_{name}", [short[i >> 2, :, i & 3, None] for i in range(2 * SCALARS)])
        for name in ("u64", "i64", "f64"):
            pairs = list(self.sgpr.view(_KINDS[name])[..., 0])
            setattr(self, f"s_{name}", pairs)
            setattr(self, f"c_{name}", [one[:, None] for one in pairs])

    # --- start and end ---------------------------------------------------------------------------

    def _start(self) -> None:
        """Give registers the values that the hardware starts a wave with."""
        cohort, launch = self.cohort, self.code.launch
        wave = np.arange(self.waves)
        in_block = (wave % cohort.warps)[:, None] * self.wave_size + np.arange(self.wave_size)
        exists = in_block < cohort.threads
        block = wave // cohort.warps
        self.thread_of = block[:, None] * cohort.threads + np.minimum(in_block, cohort.threads - 1)
        self._exec[:] = self.bits_of(exists)
        # Workgroups have one dimension, so packed work item ids (x | y << 10 | z << 20) are x.
        self.v_u32[0][:] = in_block
        programs = cohort.programs[block]
        for register, axis in launch.workgroup_ids:
            self.s_u32[register][:] = programs[:, axis]
        if launch.trap_ids:
            self.s_u32[TTMP + 9][:] = programs[:, 0]
            self.s_u32[TTMP + 7][:] = programs[:, 1] | programs[:, 2] << 16
        for register, content in (
            (launch.arguments, cohort.arguments),
            (launch.dispatch, self._packet()),
        ):
            if register is not None:
                self.s_u64[register // 2][:] = self._place(content)
        self.refresh()

    def run(self) -> None:
        """Run every wave to its end, or to a deadlock."""
        try:
            with np.errstate(all="ignore"):
                super().run()
        finally:
            for address in self._placed:
                self.cohort.memory.free(address)

    def _place(self, content: bytes) -> int:
        """Return the address of bytes for the time of the run; loads of them may be widened."""
        memory = self.cohort.memory
        address = memory.allocate(-(-max(len(content), 1) // 64) * 64, written=True)
        memory.bytes_at(address, len(content))[:] = np.frombuffer(content, np.uint8)
        self._placed.append(address)
        return address

    def _packet(self) -> bytes:
        """Return the dispatch packet, as far as it has the sizes of workgroup and grid."""
        threads, (x, y, z) = self.cohort.threads, self.cohort.grid
        return struct.pack("<HHHHHHIII", 0, 0, threads, 1, 1, 0, x * threads, y, z).ljust(64, b"\0")

    def leave(self) -> None:
        """End the active waves: their lanes are active no more, and nobody waits for them."""
        self.memory.ended(self.active)
        self._exec[self.active] = 0
        self.scheduler.exit(self.active)
        self.memory.barriers.reconsider()

    # --- execution -------------------------------------------------------------------------------

    def enter(self, mask: Mask) -> None:
        """Make `mask` the current group."""
        super().enter(mask)
        self.refresh()

    def refresh(self) -> None:
        """Bring `lanes` up to date with EXEC and the current group."""
        # Waves that have ended keep a stale EXEC, so `full` (all live waves) is not enough.
        everybody = self.count == self.waves
        if everybody and (self._exec == self._all).all():
            if not self.lanes_full:
                self.lanes = np.ones((self.waves, self.wave_size), np.bool_)
                self.lanes_full = True
            return
        self.lanes_full = False
        self.lanes = self.lanes_of(self._exec)
        if not everybody:
            self.lanes &= self.active[:, None]

    def execute(self, block: BasicBlock) -> int | None:
        """Run one block for the current group, looking before each step at what loads write."""
        assert isinstance(block, WaveBlock)
        for step, registers, instruction in block.guarded:
            if registers & self.outstanding:
                self.memory.touched(instruction, registers & self.outstanding)
            step(self)
        if block.end_registers & self.outstanding:
            self.memory.touched(block.instructions[-1], block.end_registers & self.outstanding)
        return block.end(self)

    def registers(self) -> Arrays:
        """Return every register."""
        return self.sgpr, self.scc, self.mode, self.vgpr

    def memories(self) -> Arrays:
        """Return the bytes of LDS, private and global memory."""
        memory = self.memory
        return memory.shared.data, memory.private.data, *self.cohort.memory.contents()

    # --- masks -----------------------------------------------------------------------------------

    def lanes_of(self, bits: NDArray[Any]) -> Mask:
        """Turn one bit a lane, (waves,) words of the wave's size, into (waves, lanes)."""
        packed = np.ascontiguousarray(bits).view(np.uint8).reshape(self.waves, -1)
        return np.unpackbits(packed, axis=1, bitorder="little").view(np.bool_)

    def bits_of(self, lanes: Mask) -> NDArray[Any]:
        """Turn (waves, lanes) into one bit a lane."""
        packed = np.packbits(lanes, axis=1, bitorder="little")
        return packed.view(np.uint64 if self.wave_size == 64 else np.uint32)[:, 0]

    def read_mask(self, register: int) -> Mask:
        """Return the lane mask that scalar registers hold, as (waves, lanes)."""
        wide = self.wave_size == 64
        return self.lanes_of(self.s_u64[register // 2] if wide else self.s_u32[register])

    def write_mask(self, register: int, lanes: Mask) -> None:
        """Write a lane mask to scalar registers of the active waves."""
        bits = self.bits_of(lanes)
        row = self.s_u64[register // 2] if self.wave_size == 64 else self.s_u32[register]
        if self.full:
            row[:] = bits
        else:
            np.copyto(row, bits, where=self.active)
