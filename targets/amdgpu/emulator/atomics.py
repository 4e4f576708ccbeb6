"""Atomics on global memory, by addresses, flat addresses and descriptors, and on LDS.

    global_atomic_add      v0, v[2:3], v4, off sc0             <- returns what was there
    global_atomic_cmpswap  v[2:3], v[4:5], off                 <- v4 is new, v5 must be there
    ds_cmpst_rtn_b32       v0, v1, v2, v3                      <- gfx9: v2 must be there, v3 is new
    ds_cmpstore_rtn_b32    v0, v1, v2, v3                      <- gfx11: v2 is new, v3 must be there

They take effect when they are issued; what they return is late like what a load returns. Floats are
added with subnormal numbers kept; which units flush them depends on the memory's kind and is not
emulated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.amdgpu.emulator.atomic_updates import Operation, apply, operation
from tiledsl.targets.amdgpu.emulator.buffer import BUFFER
from tiledsl.targets.amdgpu.emulator.decode import Context, Entry
from tiledsl.targets.amdgpu.emulator.flat import FLAT, apertures
from tiledsl.targets.amdgpu.emulator.global_memory import GLOBAL
from tiledsl.targets.amdgpu.emulator.lanes import Lanes, Words, active, get_words
from tiledsl.targets.amdgpu.emulator.lds import issue_done, lds_offset, note_access
from tiledsl.targets.amdgpu.emulator.operands import SHARED_BASE
from tiledsl.targets.amdgpu.emulator.text import Parsed, registers_of
from tiledsl.targets.amdgpu.emulator.transfers import Item, Space, deliver_words, vector
from tiledsl.targets.amdgpu.emulator.waits import Event
from tiledsl.targets.gpu.emulator.cohort import Access, Mask
from tiledsl.targets.gpu.emulator.program import InstructionClass, Step

if TYPE_CHECKING:
    from tiledsl.targets.amdgpu.emulator.machine import Machine

Bits = NDArray[Any]

_GFX9 = {
    "add": ("add", "u"), "sub": ("sub", "u"), "smin": ("min", "i"), "umin": ("min", "u"),
    "smax": ("max", "i"), "umax": ("max", "u"), "and": ("and", "b"), "or": ("or", "b"),
    "xor": ("xor", "b"), "swap": ("swap", "b"), "cmpswap": ("cmpswap", "b"), "inc": ("inc", "u"),
    "dec": ("dec", "u"), "csub": ("csub", "u"),
}  # fmt: skip
"""gfx9's names, which get `_x2` for 64 bits: operation and type."""
_TYPED = {
    "add": "ui", "sub": "u", "rsub": "u", "min": "iu", "max": "iu", "and": "b", "or": "b",
    "xor": "b", "swap": "b", "cmpswap": "b", "inc": "u", "dec": "u", "csub": "u",
    "sub_clamp": "u", "cond_sub": "u",
}  # fmt: skip
"""Operations on integers and the letters of their types in names that have a type."""
_REAL = {
    "add_f32": ("add", "f32"), "add_f64": ("add", "f64"), "pk_add_f16": ("add", "pk_f16"),
    "pk_add_bf16": ("add", "pk_bf16"),
    **{
        f"{name}{infix}_{kind}": (name, kind)
        for name in ("min", "max") for infix in ("", "_num") for kind in ("f32", "f64")
    },
}  # fmt: skip


def _operations() -> Iterator[tuple[str, Operation]]:
    """Give the operations under every name that follows `atomic_`."""
    for name, (action, letter) in _GFX9.items():
        for suffix, bits in (("", 32), ("_x2", 64)):
            yield f"{name}{suffix}", _known(action, f"{letter}{bits}")
    yield from _typed_operations()


def _typed_operations() -> Iterator[tuple[str, Operation]]:
    """Give the operations whose names have a type."""
    for name, letters in _TYPED.items():
        for letter in letters:
            for bits in (32, 64):
                yield f"{name}_{letter}{bits}", _known(name, f"{letter}{bits}")
    for name, (action, kind) in _REAL.items():
        yield name, _known(action, kind)


def _known(name: str, kind: str) -> Operation:
    found = operation(name, kind)
    assert found is not None
    return found


def _words(bits: Bits) -> Words:
    """Return bits of 4 or 8 bytes a lane as words, (lanes, words)."""
    return np.ascontiguousarray(bits).view(np.uint32).reshape(len(bits), -1)


def _bits(words: Words) -> Bits:
    """Return words as one element of 4 or 8 bytes a lane."""
    return np.ascontiguousarray(words).view(f"u{4 * words.shape[1]}")[:, 0]


def _data(machine: Machine, lanes: Lanes, register: int, found: Operation) -> tuple[Bits, Bits]:
    """Return an operation's operands from registers in a row: the value, then what is compared."""
    each = found.size // 4
    value = _bits(get_words(machine, lanes, register, each))
    if not found.compares:
        return value, value
    return value, _bits(get_words(machine, lanes, register + each, each))


# --- global memory -------------------------------------------------------------------------------


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
        old = _words(_act(machine, space, access, found, address, value, compare))

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


# --- LDS -----------------------------------------------------------------------------------------


def _on_lds(found: Operation, returns: bool, compare_first: bool = False) -> Entry:
    """Return how an atomic on LDS is decoded.

    Args:
        found: What it does.
        returns: It returns what was there.
        compare_first: What must be there comes before the new value, as on gfx9.
    """

    def decode(parsed: Parsed, context: Context) -> Step:
        instruction = context.instruction
        numbers = [vector(one, context) for one in parsed.operands]
        target = numbers.pop(0) if returns else None
        base, *data = numbers
        value_at, compare_at = data[0], data[-1]
        if compare_first:
            value_at, compare_at = compare_at, value_at
        each, constant = found.size // 4, parsed.integer("offset")
        registers = registers_of(parsed.operands[:1]) if returns else 0

        def step(machine: Machine) -> None:
            lanes = active(machine)
            offset = lds_offset(machine, lanes, base, constant)
            time = note_access(machine, instruction, offset, lanes, found.size, write=True)
            value = _bits(get_words(machine, lanes, value_at, each))
            compare = _bits(get_words(machine, lanes, compare_at, each))
            access = Access(machine.cohort, instruction, lanes.threads)
            words, index, good = machine.memory.shared.update(access, offset, found.size)
            old = np.zeros(len(value), value.dtype)
            if good.any():
                old[good] = apply(found, words, index[good], value[good], compare[good])
            if target is None:
                issue_done(machine, instruction, time)
                return

            register = target

            def deliver(words: Words | None, waves: Mask | None) -> None:
                deliver_words(machine, lanes, register, Item(4, each), words, waves)

            machine.memory.waits.issue(
                Event.LDS, instruction, registers, lambda: _words(old), deliver, late=False,
                lds_time=time,
            )  # fmt: skip

        return step

    return Entry(decode, InstructionClass.ATOMIC)


def _lds_table() -> Iterator[tuple[str, Entry]]:
    """Give the atomics on LDS."""
    for name, found in _typed_operations():
        action, _, kind = name.rpartition("_")
        if action in ("swap", "cmpswap"):
            continue
        yield f"ds_{name}", _on_lds(found, returns=False)
        yield f"ds_{action}_rtn_{kind}", _on_lds(found, returns=True)
    for bits in (32, 64):
        swap, compare = _known("swap", f"b{bits}"), _known("cmpswap", f"b{bits}")
        yield f"ds_wrxchg_rtn_b{bits}", _on_lds(swap, returns=True)
        yield f"ds_storexchg_rtn_b{bits}", _on_lds(swap, returns=True)
        for infix, returns in (("", False), ("_rtn", True)):
            yield f"ds_cmpst{infix}_b{bits}", _on_lds(compare, returns, compare_first=True)
            yield f"ds_cmpstore{infix}_b{bits}", _on_lds(compare, returns)


TABLE: dict[str, Entry] = {
    **{f"global_atomic_{name}": _by_address(GLOBAL, 3, found) for name, found in _operations()},
    **{f"flat_atomic_{name}": _by_address(FLAT, 2, found) for name, found in _operations()},
    **{f"buffer_atomic_{name}": _by_descriptor(found) for name, found in _operations()},
    **dict(_lds_table()),
}
