"""Atomics on LDS, with (`rtn`) and without what was there.

ds_add_u32             v1, v2
ds_cmpst_rtn_b32       v0, v1, v2, v3                      <- gfx9: v2 must be there, v3 is new
ds_cmpstore_rtn_b32    v0, v1, v2, v3                      <- gfx11: v2 is new, v3 must be there
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.amdgpu.emulator.atomic_updates import (
    Operation,
    apply,
    known,
    typed_operations,
)
from tiledsl.targets.amdgpu.emulator.decode import Context, Entry
from tiledsl.targets.amdgpu.emulator.lanes import Words, active, as_bits, as_words, get_words
from tiledsl.targets.amdgpu.emulator.lds import Offsets, issue_done, lds_offset, note_access
from tiledsl.targets.amdgpu.emulator.text import Parsed, registers_of
from tiledsl.targets.amdgpu.emulator.transfers import Item, deliver_words, vector
from tiledsl.targets.amdgpu.emulator.waits import Event
from tiledsl.targets.gpu.emulator.cohort import Access, Mask
from tiledsl.targets.gpu.emulator.program import InstructionClass, Step

if TYPE_CHECKING:
    from tiledsl.targets.amdgpu.emulator.machine import Machine


@dataclass(frozen=True)
class _Registers:
    """The vector registers of an atomic on LDS.

    Attributes:
        target: Gets what was there; None where nothing does.
        base: The address.
        value: The first of the operand's.
        compare: The first of what must be there; the operand's where there is none.
    """

    target: int | None
    base: int
    value: int
    compare: int


def _registers(parsed: Parsed, context: Context, returns: bool, compare_first: bool) -> _Registers:
    numbers = [vector(one, context) for one in parsed.operands]
    target = numbers.pop(0) if returns else None
    base, first, last = numbers[0], numbers[1], numbers[-1]
    if compare_first:
        first, last = last, first
    return _Registers(target, base, first, last)


def _act(
    machine: Machine,
    access: Access,
    found: Operation,
    offset: Offsets,
    value: NDArray[Any],
    compare: NDArray[Any],
) -> NDArray[Any]:
    """Act on LDS; returns what was there, 0 for lanes that may not touch it."""
    words, index, good = machine.memory.shared.update(access, offset, found.size)
    old = np.zeros(len(value), value.dtype)
    if good.any():
        old[good] = apply(found, words, index[good], value[good], compare[good])
    return old


def _entry(found: Operation, returns: bool, compare_first: bool = False) -> Entry:
    """Return how an atomic on LDS is decoded.

    Args:
        found: What it does.
        returns: It returns what was there.
        compare_first: What must be there comes before the new value, as on gfx9.
    """
    each = found.size // 4

    def decode(parsed: Parsed, context: Context) -> Step:
        instruction, constant = context.instruction, parsed.integer("offset")
        own = _registers(parsed, context, returns, compare_first)
        written = registers_of(parsed.operands[:1]) if returns else 0

        def step(machine: Machine) -> None:
            lanes = active(machine)
            offset = lds_offset(machine, lanes, own.base, constant)
            time = note_access(machine, instruction, offset, lanes, found.size, write=True)
            value = as_bits(get_words(machine, lanes, own.value, each))
            compare = as_bits(get_words(machine, lanes, own.compare, each))
            access = Access(machine.cohort, instruction, lanes.threads)
            old = as_words(_act(machine, access, found, offset, value, compare))
            target = own.target
            if target is None:
                issue_done(machine, instruction, time)
                return

            def deliver(words: Words | None, waves: Mask | None) -> None:
                deliver_words(machine, lanes, target, Item(4, each), words, waves)

            machine.memory.waits.issue(
                Event.LDS, instruction, written, lambda: old, deliver, late=False, lds_time=time
            )

        return step

    return Entry(decode, InstructionClass.ATOMIC)


def _table() -> Iterator[tuple[str, Entry]]:
    """Give the atomics on LDS under every name."""
    for name, found in typed_operations():
        action, _, kind = name.rpartition("_")
        if action in ("swap", "cmpswap"):
            continue
        yield f"ds_{name}", _entry(found, returns=False)
        yield f"ds_{action}_rtn_{kind}", _entry(found, returns=True)
    for bits in (32, 64):
        swap, compare = known("swap", f"b{bits}"), known("cmpswap", f"b{bits}")
        yield f"ds_wrxchg_rtn_b{bits}", _entry(swap, returns=True)
        yield f"ds_storexchg_rtn_b{bits}", _entry(swap, returns=True)
        for infix, returns in (("", False), ("_rtn", True)):
            yield f"ds_cmpst{infix}_b{bits}", _entry(compare, returns, compare_first=True)
            yield f"ds_cmpstore{infix}_b{bits}", _entry(compare, returns)


TABLE: dict[str, Entry] = dict(_table())
