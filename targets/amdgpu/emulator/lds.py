"""LDS: `ds_read*`/`ds_load*` and `ds_write*`/`ds_store*` of every width, two places at once too.

    ds_read_b128      v[0:3], v4 offset:16
    ds_load_u16_d16   v0, v1
    ds_read2st64_b64  v[0:3], v4 offset0:1 offset1:2      <- offsets of 64 elements

Addresses are bytes in the window of the workgroup. They must be aligned to what the instruction
moves, as far as the kernel's smallest access to LDS (`memory_units.granule`) tells that much apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.amdgpu.emulator.decode import Context, Entry
from tiledsl.targets.amdgpu.emulator.lanes import Lanes, Words, active, get_words
from tiledsl.targets.amdgpu.emulator.text import Parsed, registers_of
from tiledsl.targets.amdgpu.emulator.transfers import (
    Item,
    deliver_words,
    extended,
    stored,
    vector,
)
from tiledsl.targets.amdgpu.emulator.waits import Event
from tiledsl.targets.gpu.emulator.cohort import Access, Mask
from tiledsl.targets.gpu.emulator.program import Instruction, InstructionClass, Step

if TYPE_CHECKING:
    from tiledsl.targets.amdgpu.emulator.machine import Machine

Offsets = NDArray[np.int64]

_LOADS = {
    "u8": Item(1), "i8": Item(1, signed=True), "u16": Item(2), "i16": Item(2, signed=True),
    "u8_d16": Item(1, half=0), "u8_d16_hi": Item(1, half=1),
    "i8_d16": Item(1, signed=True, half=0), "i8_d16_hi": Item(1, signed=True, half=1),
    "u16_d16": Item(2, half=0), "u16_d16_hi": Item(2, half=1),
    "b32": Item(4), "b64": Item(4, 2), "b96": Item(4, 3), "b128": Item(4, 4),
}  # fmt: skip
_STORES = {
    "b8": Item(1, half=0), "b16": Item(2, half=0),
    "b8_d16_hi": Item(1, half=1), "b16_d16_hi": Item(2, half=1),
    "b32": Item(4), "b64": Item(4, 2), "b96": Item(4, 3), "b128": Item(4, 4),
}  # fmt: skip
_FAR = 64
"""What the offsets of `st64` count in, in elements."""


def lds_offset(machine: Machine, lanes: Lanes, register: int, offset: int) -> Offsets:
    """Return where in LDS lanes point: a vector register plus a constant."""
    return lanes.pick(machine.vgpr[register]).astype(np.int64) + offset


def note_access(
    machine: Machine,
    instruction: Instruction,
    offset: Offsets,
    lanes: Lanes,
    width: int,
    *,
    write: bool,
) -> NDArray[np.uint32]:
    """Count an access to LDS and begin a time for it; returns all waves' times."""
    counters = machine.cohort.counters
    if counters is not None:
        counters.shared_access(instruction.index, offset, width, lanes.threads, write=write)
    return machine.memory.clocks.advance(np.flatnonzero(machine.active))


def _constant(parsed: Parsed) -> int:
    return parsed.integer("offset")


def _load(item: Item, parsed: Parsed, context: Context) -> Step:
    instruction = context.instruction
    register, base = (vector(one, context) for one in parsed.operands[:2])
    registers, constant = registers_of(parsed.operands[:1]), _constant(parsed)

    def step(machine: Machine) -> None:
        lanes = active(machine)
        offset = lds_offset(machine, lanes, base, constant)
        time = note_access(machine, instruction, offset, lanes, item.width, write=False)
        access = Access(machine.cohort, instruction, lanes.threads)
        words = _read(machine, access, offset, item)

        def deliver(found: Words | None, waves: Mask | None) -> None:
            deliver_words(machine, lanes, register, item, found, waves)

        machine.memory.waits.issue(
            Event.LDS, instruction, registers, lambda: words, deliver, late=False, lds_time=time
        )

    return step


def _read(machine: Machine, access: Access, offset: Offsets, item: Item) -> Words:
    """Return one item a lane as words, (lanes, count)."""
    memory = machine.memory
    found = memory.shared.load(
        access, offset, item.size, item.count, min(memory.granule, item.width)
    )
    return extended(found.reshape(len(offset), item.count), item)


def _store(item: Item, parsed: Parsed, context: Context) -> Step:
    instruction = context.instruction
    base, register = (vector(one, context) for one in parsed.operands[:2])
    constant = _constant(parsed)

    def step(machine: Machine) -> None:
        lanes = active(machine)
        offset = lds_offset(machine, lanes, base, constant)
        time = note_access(machine, instruction, offset, lanes, item.width, write=True)
        access = Access(machine.cohort, instruction, lanes.threads)
        _write(machine, access, offset, stored(machine, lanes, register, item), item)
        issue_done(machine, instruction, time)

    return step


def _write(machine: Machine, access: Access, offset: Offsets, words: Words, item: Item) -> None:
    """Write one item a lane, (lanes, count)."""
    memory = machine.memory
    values = words if item.count > 1 else words[:, 0]
    memory.shared.store(
        access, offset, values, item.size, item.count, min(memory.granule, item.width)
    )


def issue_done(machine: Machine, instruction: Instruction, time: NDArray[np.uint32]) -> None:
    """File an access to LDS that returns nothing and has happened."""
    machine.memory.waits.issue(Event.LDS, instruction, 0, None, _nothing, lds_time=time)


def _nothing(values: Any, waves: Mask | None) -> None:
    """Do what remains of an operation that took effect at issue."""


# --- two places at once --------------------------------------------------------------------------


def _places(parsed: Parsed, words: int, far: bool) -> tuple[int, int]:
    """Return the two constant offsets in bytes."""
    unit = 4 * words * (_FAR if far else 1)
    return parsed.integer("offset0") * unit, parsed.integer("offset1") * unit


def _load_two(words: int, far: bool, parsed: Parsed, context: Context) -> Step:
    instruction = context.instruction
    register, base = (vector(one, context) for one in parsed.operands[:2])
    registers = registers_of(parsed.operands[:1])
    places, item = _places(parsed, words, far), Item(4, words)
    both = Item(4, 2 * words)

    def step(machine: Machine) -> None:
        lanes = active(machine)
        access = Access(machine.cohort, instruction, lanes.threads)
        found: list[Words] = []
        time = np.zeros(0, np.uint32)
        for place in places:
            offset = lds_offset(machine, lanes, base, place)
            time = note_access(machine, instruction, offset, lanes, item.width, write=False)
            found.append(_read(machine, access, offset, item))
        values = np.concatenate(found, axis=1)

        def deliver(given: Words | None, waves: Mask | None) -> None:
            deliver_words(machine, lanes, register, both, given, waves)

        machine.memory.waits.issue(
            Event.LDS, instruction, registers, lambda: values, deliver, late=False,
            lds_time=time - np.uint32(1),
        )  # fmt: skip

    return step


def _store_two(words: int, far: bool, parsed: Parsed, context: Context) -> Step:
    instruction = context.instruction
    base, *data = (vector(one, context) for one in parsed.operands[:3])
    places, item = _places(parsed, words, far), Item(4, words)

    def step(machine: Machine) -> None:
        lanes = active(machine)
        access = Access(machine.cohort, instruction, lanes.threads)
        time = np.zeros(0, np.uint32)
        for place, register in zip(places, data, strict=True):
            offset = lds_offset(machine, lanes, base, place)
            time = note_access(machine, instruction, offset, lanes, item.width, write=True)
            _write(machine, access, offset, get_words(machine, lanes, register, words), item)
        issue_done(machine, instruction, time - np.uint32(1))

    return step


def _loads(item: Item) -> Entry:
    return Entry(lambda parsed, context: _load(item, parsed, context), InstructionClass.SHARED)


def _stores(item: Item) -> Entry:
    return Entry(lambda parsed, context: _store(item, parsed, context), InstructionClass.SHARED)


def _pairs(load: bool, words: int, far: bool) -> Entry:
    make = _load_two if load else _store_two
    return Entry(lambda parsed, context: make(words, far, parsed, context), InstructionClass.SHARED)


TABLE: dict[str, Entry] = {
    **{
        f"ds_{verb}_{name}": _loads(item)
        for verb in ("read", "load")
        for name, item in _LOADS.items()
    },
    **{
        f"ds_{verb}_{name}": _stores(item)
        for verb in ("write", "store")
        for name, item in _STORES.items()
    },
    **{
        f"ds_{verb}_2addr{far}_b{32 * words}": _pairs(verb == "load", words, bool(far))
        for verb in ("load", "store")
        for far in ("", "_stride64")
        for words in (1, 2)
    },
    **{
        f"ds_{verb}2{far}_b{32 * words}": _pairs(verb == "read", words, bool(far))
        for verb in ("read", "write")
        for far in ("", "st64")
        for words in (1, 2)
    },
}
