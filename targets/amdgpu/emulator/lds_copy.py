"""Loads from global memory straight to LDS: `global_load_lds_*`, and `buffer_load_*` with `lds`.

    s_mov_b32 m0, s4
    global_load_lds_dwordx4 v[0:1], off offset:64
    buffer_load_dword v0, s[8:11], 0 offen lds

Each lane gives an address to read at; where in LDS it goes is not its choice: lane i writes at M0 +
the constant offset + i x its bytes (of 1 and 2 bytes: as a word of 4). The data arrive when a wait
for loads covers them, in both modes; what touches their place in LDS before that is a missing wait.

Source: AMD's CDNA3 ISA, "Memory Buffer Load to LDS" and "Global: load to LDS"; CDNA4 ISA for
widths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.amdgpu.emulator.decode import Context, Entry
from tiledsl.targets.amdgpu.emulator.lanes import Words, active
from tiledsl.targets.amdgpu.emulator.text import M0, Parsed
from tiledsl.targets.amdgpu.emulator.transfers import LOADS, Space, extended
from tiledsl.targets.amdgpu.emulator.waits import Event
from tiledsl.targets.gpu.emulator.cohort import Access, Mask
from tiledsl.targets.gpu.emulator.program import InstructionClass, Step

if TYPE_CHECKING:
    from tiledsl.targets.amdgpu.emulator.machine import Machine

_NAMES = ("ubyte", "sbyte", "ushort", "sshort", "dword", "dwordx3", "dwordx4")
_M0_BITS = 0xFFFF


def copy(space: Space, width: str, parsed: Parsed, context: Context) -> Step:
    """Decode a load to LDS, whose first operand is the address's vector part.

    Args:
        space: Where from.
        width: What follows `load_` in the name of the same load to registers.
        parsed: The instruction.
        context: The decoder's.

    Raises:
        CompilerBug: None of that width goes to LDS.
    """
    if width not in _NAMES:
        raise CompilerBug(f"no load of this kind goes to LDS: {parsed.text}")
    item = LOADS[width]
    instruction = context.instruction
    address_of = space.address(parsed, context, 0)
    constant = parsed.integer("offset")
    bytes_ = max(item.width, 4)

    def step(machine: Machine) -> None:
        lanes = active(machine)
        address = address_of(machine, lanes)
        size = machine.wave_size
        every = np.arange(machine.waves * size) if lanes.where is None else lanes.where
        start = machine.s_u32[M0].astype(np.int64) & _M0_BITS
        offset = lanes.spread(start, size) + constant + every % size * bytes_
        counters, memory = machine.cohort.counters, machine.memory
        if counters is not None:
            space.count(machine, instruction.index, address, lanes, item.width)
            counters.shared_access(instruction.index, offset, bytes_, lanes.threads, write=True)
        reach = space.reaches(machine, address, lanes, item.width)
        memory.waits.order(reach, writes=False)
        access = Access(machine.cohort, instruction, lanes.threads)
        granules = memory.shared.begin_copy(access, offset, bytes_)

        def fetch() -> Words:
            return extended(space.read(machine, access, address, item.size, item.count), item)

        def deliver(words: Words | None, waves: Mask | None) -> None:
            assert words is not None
            values = words if words.shape[1] > 1 else words[:, 0]
            chosen = lanes.of(waves, size)
            if chosen is None:
                memory.shared.end_copy(access, granules, offset, values, 4)
                return
            part = Access(machine.cohort, instruction, lanes.threads[chosen])
            memory.shared.end_copy(part, granules[chosen], offset[chosen], values[chosen], 4)

        memory.waits.issue(Event.LOAD, instruction, 0, fetch, deliver, reach=reach, held=True)

    return step


def entries(space: Space, prefix: str) -> dict[str, Entry]:
    """Return how loads to LDS are decoded that have mnemonics of their own."""

    def entry(width: str) -> Entry:
        return Entry(
            lambda parsed, context: copy(space, width, parsed, context), InstructionClass.COPY
        )

    return {f"{prefix}{width}": entry(width) for width in _NAMES}
