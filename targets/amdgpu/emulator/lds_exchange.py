"""Moving words between lanes by way of the LDS unit, whose memory has no part in it.

    ds_bpermute_b32 v0, v1, v2            lane l gets v2 of lane v1[l] / 4      (pull)
    ds_permute_b32  v0, v1, v2            lane l gives v2 to lane v1[l] / 4     (push)
    ds_swizzle_b32  v0, v1 offset:swizzle(BITMASK_PERM,"00p00")

Numbers of lanes wrap at the size of a wave (of 32 lanes each on RDNA). A lane that EXEC switches
off gives 0 to one that pulls from it, and gets nothing. Pushed to by several lanes, a lane gets the
highest one's word; by none, 0.

Source: AMD's CDNA3 and RDNA3 ISA, "DS_PERMUTE_B32", "DS_BPERMUTE_B32", "DS_SWIZZLE_B32"; LLVM's
SIDefines.h for the spelling of swizzles.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.amdgpu.emulator.decode import Context, Entry
from tiledsl.targets.amdgpu.emulator.lanes import Words, active
from tiledsl.targets.amdgpu.emulator.text import Parsed, registers_of
from tiledsl.targets.amdgpu.emulator.transfers import Item, deliver_words, vector
from tiledsl.targets.amdgpu.emulator.waits import Event
from tiledsl.targets.gpu.emulator.cohort import Mask
from tiledsl.targets.gpu.emulator.program import InstructionClass, Step

if TYPE_CHECKING:
    from tiledsl.targets.amdgpu.emulator.machine import Machine

Array = NDArray[Any]
Exchange = Callable[["Machine"], Array]
"""Returns what every lane gets, (waves, lanes)."""

_WORD = Item(4)
_SWIZZLE_LANES = 32
"""Lanes that a swizzle moves words among."""


def _step(parsed: Parsed, context: Context, exchange: Exchange) -> Step:
    """Return a step that writes what `exchange` returns, when it is waited for."""
    instruction = context.instruction
    register = vector(parsed.operands[0], context)
    registers = registers_of(parsed.operands[:1])

    def step(machine: Machine) -> None:
        lanes = active(machine)
        words = lanes.pick(exchange(machine))[:, None]

        def deliver(found: Words | None, waves: Mask | None) -> None:
            deliver_words(machine, lanes, register, _WORD, found, waves)

        machine.memory.waits.issue(
            Event.LDS, instruction, registers, lambda: words, deliver, late=False
        )

    return step


def _lane_of(machine: Machine, register: int, offset: int) -> Array:
    """Return the lane that each lane's byte address names."""
    place = (machine.vgpr[register] + np.uint32(offset)) >> np.uint32(2)
    return (place % np.uint32(machine.wave_size)).astype(np.intp)


def _pull(parsed: Parsed, context: Context) -> Step:
    """Decode `ds_bpermute_b32`."""
    address, data = (vector(one, context) for one in parsed.operands[1:3])
    offset = parsed.integer("offset")
    inactive = parsed.stem == "ds_bpermute_fi_b32"  # fetches from lanes that are switched off, too

    def exchange(machine: Machine) -> Array:
        source = machine.vgpr[data]
        if not machine.lanes_full and not inactive:
            source = np.where(machine.lanes, source, np.uint32(0))
        return np.take_along_axis(source, _lane_of(machine, address, offset), 1)

    return _step(parsed, context, exchange)


def _push(parsed: Parsed, context: Context) -> Step:
    """Decode `ds_permute_b32`."""
    address, data = (vector(one, context) for one in parsed.operands[1:3])
    offset = parsed.integer("offset")

    def exchange(machine: Machine) -> Array:
        target = _lane_of(machine, address, offset)
        wave, lane = np.nonzero(machine.lanes)
        found = np.zeros_like(machine.vgpr[data])
        # Where lanes give to the same one the assignment that comes last, the highest, counts.
        found[wave, target[wave, lane]] = machine.vgpr[data][wave, lane]
        return found

    return _step(parsed, context, exchange)


def _swizzle(parsed: Parsed, context: Context) -> Step:
    """Decode `ds_swizzle_b32`."""
    data = vector(parsed.operands[1], context)
    spelled = parsed.modifiers.get("offset", "0")
    lane = np.arange(context.wave_size)
    within = swizzled(_swizzle_code(spelled, parsed), lane % _SWIZZLE_LANES)
    source = lane // _SWIZZLE_LANES * _SWIZZLE_LANES + within

    def exchange(machine: Machine) -> Array:
        given = machine.vgpr[data]
        if not machine.lanes_full:
            given = np.where(machine.lanes, given, np.uint32(0))
        return given[:, source]

    return _step(parsed, context, exchange)


def swizzled(code: int, lane: Array) -> Array:
    """Return the lane of 32 that each of 32 lanes reads under a swizzle's 16 bits."""
    if code >= 0xE000:
        raise CompilerBug(f"the AMDGPU emulator does not know the FFT swizzle {code:#x}")
    if code >= 0xC000:  # rotation of 32 lanes, some bits of their numbers kept
        amount, keep, down = code >> 5 & 31, code & 31, code >> 10 & 1
        turned = lane + (_SWIZZLE_LANES - amount if down else amount)
        return lane & keep | turned % _SWIZZLE_LANES & ~keep & 31
    if code & 0x8000:  # any permutation of four lanes
        return lane & ~3 | code >> 2 * (lane & 3) & 3
    return (lane & code & 31 | code >> 5 & 31) ^ (code >> 10 & 31)


_MACRO = re.compile(r"swizzle\((\w+),(.*)\)$")


def _swizzle_code(spelled: str, parsed: Parsed) -> int:
    """Return a swizzle's 16 bits from a number or from LLVM's words for it."""
    if re.fullmatch(r"0x[0-9a-fA-F]+|\d+", spelled):
        return int(spelled, 0)
    match = _MACRO.match(spelled.replace(" ", ""))
    maker = None if match is None else _MAKERS.get(match[1])
    if match is None or maker is None:
        raise CompilerBug(f"the AMDGPU emulator does not know this swizzle: {parsed.text}")
    return maker([one.strip('"') for one in match[2].split(",")])


def _from_bits(arguments: list[str]) -> int:
    """Return the code for a letter a bit, the highest first: 0, 1, p (preserve), i (invert)."""
    code = 0
    for place, letter in enumerate(reversed(arguments[0])):
        keep, one, flip = {"0": (0, 0, 0), "1": (0, 1, 0), "p": (1, 0, 0), "i": (1, 0, 1)}[letter]
        code |= keep << place | one << 5 + place | flip << 10 + place
    return code


def _from_quad(arguments: list[str]) -> int:
    return 0x8000 | sum(int(lane, 0) << 2 * place for place, lane in enumerate(arguments))


def _from_broadcast(arguments: list[str]) -> int:
    size, lane = (int(one, 0) for one in arguments)
    return 31 & ~(size - 1) | lane << 5


def _from_swap(arguments: list[str]) -> int:
    return 31 | int(arguments[0], 0) << 10


def _from_reverse(arguments: list[str]) -> int:
    return 31 | (int(arguments[0], 0) - 1) << 10


def _from_rotation(arguments: list[str]) -> int:
    down, amount = (int(one, 0) for one in arguments)
    return 0xC000 | down << 10 | amount << 5


_MAKERS: dict[str, Callable[[list[str]], int]] = {
    "BITMASK_PERM": _from_bits, "QUAD_PERM": _from_quad, "BROADCAST": _from_broadcast,
    "SWAP": _from_swap, "REVERSE": _from_reverse, "ROTATE": _from_rotation,
}  # fmt: skip

_KIND = InstructionClass.EXCHANGE
TABLE = {
    "ds_bpermute_b32": Entry(_pull, _KIND),
    "ds_bpermute_fi_b32": Entry(_pull, _KIND),
    "ds_permute_b32": Entry(_push, _KIND),
    "ds_swizzle_b32": Entry(_swizzle, _KIND),
}
