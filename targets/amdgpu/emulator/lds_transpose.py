"""`ds_read_b64_tr_b16` of gfx950: LDS reads whose 16 lanes exchange what they read as a transpose.

Sixteen lanes read four 16-bit elements each, which are taken for a tile of 4 rows and 16 columns,
row after row; each lane gets one column. Only the exchange differs from `ds_read_b64`.

Source: AMD's CDNA4 ISA, "LDS transpose loads"; the other widths are not known here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.amdgpu.emulator.decode import Context, Entry
from tiledsl.targets.amdgpu.emulator.lanes import Words, active
from tiledsl.targets.amdgpu.emulator.lds import lds_offset, note_access
from tiledsl.targets.amdgpu.emulator.text import Parsed, registers_of
from tiledsl.targets.amdgpu.emulator.transfers import Item, deliver_words, vector
from tiledsl.targets.amdgpu.emulator.waits import Event
from tiledsl.targets.gpu.emulator.cohort import Access, Mask
from tiledsl.targets.gpu.emulator.findings import Kind
from tiledsl.targets.gpu.emulator.program import InstructionClass, Step

if TYPE_CHECKING:
    from tiledsl.targets.amdgpu.emulator.machine import Machine

_LANES = 16
_ELEMENTS = 4
_ITEM = Item(4, 2)


def transposed(words: Words) -> Words:
    """Return what lanes get, (lanes, 2), of what they read; lanes are a multiple of 16."""
    tiles = np.ascontiguousarray(words).view(np.uint16).reshape(-1, _ELEMENTS, _LANES)
    columns = np.ascontiguousarray(tiles.transpose(0, 2, 1))
    return columns.reshape(-1, _ELEMENTS).view(np.uint32)


def _load(parsed: Parsed, context: Context) -> Step:
    if context.chip.number != 0x950:
        raise CompilerBug(f"the AMDGPU emulator does not know `{parsed.text}` on this chip")
    instruction = context.instruction
    register, base = (vector(one, context) for one in parsed.operands[:2])
    registers, constant = registers_of(parsed.operands[:1]), parsed.integer("offset")

    def step(machine: Machine) -> None:
        lanes = active(machine)
        whole = machine.lanes.all(1) == machine.lanes.any(1)
        access = Access(machine.cohort, instruction, lanes.threads)
        if not whole.all():
            wave = int(np.flatnonzero(~whole)[0])
            thread = int(machine.thread_of[wave, 0])
            machine.cohort.report(
                Kind.UNDEFINED, instruction, "a transposing read by some lanes only", thread
            )
            return
        offset = lds_offset(machine, lanes, base, constant)
        time = note_access(machine, instruction, offset, lanes, _ITEM.width, write=False)
        memory = machine.memory
        words = transposed(memory.shared.load(access, offset, 4, 2, min(memory.granule, 8)))

        def deliver(found: Words | None, waves: Mask | None) -> None:
            deliver_words(machine, lanes, register, _ITEM, found, waves)

        memory.waits.issue(
            Event.LDS, instruction, registers, lambda: words, deliver, late=False, lds_time=time
        )

    return step


TABLE = {"ds_read_b64_tr_b16": Entry(_load, InstructionClass.SHARED)}
