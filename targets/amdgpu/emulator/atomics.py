"""Atomics on global memory: by addresses, flat addresses and descriptors.

    global_atomic_add      v0, v[2:3], v4, off sc0             <- returns what was there
    global_atomic_cmpswap  v[2:3], v[4:5], off                 <- v4 is new, v5 must be there
    buffer_atomic_add_u32  v0, v1, s[4:7], null offen          <- adds v0

They take effect when they are issued; what they return is late like what a load returns. Floats are
added with subnormal numbers kept; which units flush them depends on the memory's kind and is not
emulated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.amdgpu.emulator.atomic_updates import Operation, apply, operations
from tiledsl.targets.amdgpu.emulator.buffer import BUFFER
from tiledsl.targets.amdgpu.emulator.constants import SHARED_BASE
from tiledsl.targets.amdgpu.emulator.decode import Context, Entry
from tiledsl.targets.amdgpu.emulator.flat import FLAT, apertures
from tiledsl.targets.amdgpu.emulator.global_memory import GLOBAL
from tiledsl.targets.amdgpu.emulator.lanes import Lanes, Words, active, as_bits, as_words, get_words
from tiledsl.targets.amdgpu.emulator.text import Parsed
from tiledsl.targets.amdgpu.emulator.transfers import Item, Space, deliver_words, vector
from tiledsl.targets.amdgpu.emulator.waits import Event
from tiledsl.targets.gpu.emulator.cohort import Access, Mask
from tiledsl.targets.gpu.emulator.program import InstructionClass, Step

if TYPE_CHECKING:
    from tiledsl.targets.amdgpu.emulator.machine import Machine

Bits = NDArray[Any]


def _data(machine: Machine, lanes: Lanes, register: int, found: Operation) -> tuple[Bits, Bits]:
    """Return an operation's operands from registers in a row: the value, then what is compared."""
    each = found.size // 4
    value = as_bits(get_words(machine, lanes, register, each))
    if not found.compares:
        return value, value
    return value, as_bits(get_words(machine, lanes, register + each, each))


def _atomic(
    space: Space, found: Operation, parsed: Parsed, context: Context, result: int | None, data: int,
    first: int,
) -> Step:  # fmt: skip
    """Decode an atomic on global memory.

    Args:
        space: How its address is made.
        found: What it does.
        parsed: The instruction.
        context: The decoder's.
        result: The number of the operand that gets what was there; None where it returns nothing.
        data: The number of the operand with the data.
        first: The number of the first operand of the address.
    """
    instruction = context.instruction
    register = vector(parsed.operands[data], context)
    address_of = space.address(parsed, context, first)
    item = Item(4, found.size // 4)
    target = None if result is None else vector(parsed.operands[result], context)
    registers = 0 if target is None else ((1 << item.count) - 1) << target
    flat = space is FLAT
    load, store = (Event.FLAT_LOAD, Event.FLAT_STORE) if flat else (Event.LOAD, Event.STORE)

    def step(machine: Machine) -> None:
        lanes = active(machine)
        address = address_of(machine, lanes)
        if machine.cohort.counters is not None:
            space.count(machine, instruction.index, address, lanes, found.size)
        waits = machine.memory.waits
        waits.order(space.reaches(machine, address, lanes, found.size), writes=True)
        value, compare = _data(machine, lanes, register, found)
        access = Access(machine.cohort, instruction, lanes.threads)
        machine.memory.orders.release(lanes.threads)
        old = as_words(_act(machine, space, access, found, address, value, compare))

        def deliver(words: Words | None, waves: Mask | None) -> None:
            if target is not None:
                deliver_words(machine, lanes, target, item, words, waves)

        if target is None:
            waits.issue(store, instruction, 0, None, deliver, late=False)
        else:
            waits.issue(load, instruction, registers, lambda: old, deliver, late=False)

    return step


def _act(
    machine: Machine, space: Space, access: Access, found: Operation, address: Any, value: Bits,
    compare: Bits,
) -> Bits:  # fmt: skip
    """Act on memory; returns what was there, 0 for lanes that may not touch it."""
    old = np.zeros(len(value), value.dtype)
    if space is BUFFER:
        inside = address["room"] >= found.size
        parts = [(machine.cohort.memory, inside, address["address"])]
    elif space is FLAT:
        shared, private = apertures(address)
        parts = [
            (machine.cohort.memory, ~(shared | private), address),
            (machine.memory.shared, shared, (address - np.uint64(SHARED_BASE)).view(np.int64)),
        ]
    else:
        parts = [(machine.cohort.memory, np.ones(len(value), np.bool_), address)]
    for memory, chosen, places in parts:
        if not chosen.any():
            continue
        part = Access(access.cohort, access.instruction, access.lanes[chosen])
        words, index, good = memory.update(part, places[chosen], found.size)
        lanes = np.flatnonzero(chosen)[good]
        if len(lanes):
            old[lanes] = apply(found, words, index[good], value[lanes], compare[lanes])
    return old


def _returns(parsed: Parsed) -> bool:
    """Whether a modifier says that an atomic returns what was there."""
    hint = parsed.modifiers.get("th", "")
    return "glc" in parsed or "sc0" in parsed or hint.endswith("RETURN")


def _by_address(space: Space, operands: int, found: Operation) -> Entry:
    """Return how a global or flat atomic is decoded; with one more operand it returns something."""

    def decode(parsed: Parsed, context: Context) -> Step:
        returns = len(parsed.operands) > operands
        result = 0 if returns else None
        return _atomic(space, found, parsed, context, result, 1 + returns, 0 + returns)

    return Entry(decode, InstructionClass.ATOMIC)


def _by_descriptor(found: Operation) -> Entry:
    """Return how a buffer atomic is decoded: its data's registers get what was there."""

    def decode(parsed: Parsed, context: Context) -> Step:
        result = 0 if _returns(parsed) else None
        return _atomic(BUFFER, found, parsed, context, result, 0, 1)

    return Entry(decode, InstructionClass.ATOMIC)


TABLE: dict[str, Entry] = {
    **{f"global_atomic_{name}": _by_address(GLOBAL, 3, found) for name, found in operations()},
    **{f"flat_atomic_{name}": _by_address(FLAT, 2, found) for name, found in operations()},
    **{f"buffer_atomic_{name}": _by_descriptor(found) for name, found in operations()},
}
