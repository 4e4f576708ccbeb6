"""Loads and stores, whatever memory they go to: widths, halves of registers, when they take effect.

`global_`, `flat_`, `scratch_` and `buffer_` instructions differ in how they make addresses and in
where those lead; that is a `Space`. What they move is the same for all, under the names of gfx9
(`dwordx4`, `ubyte`, `short_d16_hi`) and of gfx11 and later (`b128`, `u8`, `d16_hi_b16`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.amdgpu.emulator.decode import Context, Entry
from tiledsl.targets.amdgpu.emulator.lanes import (
    Lanes,
    Words,
    active,
    get_words,
    put_half,
    put_words,
)
from tiledsl.targets.amdgpu.emulator.text import Operand, Parsed, Register, registers_of
from tiledsl.targets.amdgpu.emulator.waits import Event
from tiledsl.targets.gpu.emulator.cohort import Access, Mask
from tiledsl.targets.gpu.emulator.program import InstructionClass, Step

if TYPE_CHECKING:
    from tiledsl.targets.amdgpu.emulator.machine import Machine

Addresses = NDArray[Any]


@dataclass(frozen=True)
class Item:
    """What one lane loads or stores.

    Attributes:
        size: Bytes of an element.
        count: Elements.
        signed: A short element is extended by its sign.
        half: The half of the register that it goes to, or comes from; None for whole registers.
    """

    size: int
    count: int = 1
    signed: bool = False
    half: int | None = None

    @property
    def width(self) -> int:
        """Bytes a lane."""
        return self.size * self.count


_WORDS = {
    "dword": 1, "dwordx2": 2, "dwordx3": 3, "dwordx4": 4, "b32": 1, "b64": 2, "b96": 3, "b128": 4,
}  # fmt: skip
LOADS: dict[str, Item] = {
    **{name: Item(4, count) for name, count in _WORDS.items()},
    "ubyte": Item(1), "u8": Item(1), "sbyte": Item(1, signed=True), "i8": Item(1, signed=True),
    "ushort": Item(2), "u16": Item(2), "sshort": Item(2, signed=True), "i16": Item(2, signed=True),
    "short_d16": Item(2, half=0), "d16_b16": Item(2, half=0),
    "short_d16_hi": Item(2, half=1), "d16_hi_b16": Item(2, half=1),
    "ubyte_d16": Item(1, half=0), "d16_u8": Item(1, half=0),
    "ubyte_d16_hi": Item(1, half=1), "d16_hi_u8": Item(1, half=1),
    "sbyte_d16": Item(1, signed=True, half=0), "d16_i8": Item(1, signed=True, half=0),
    "sbyte_d16_hi": Item(1, signed=True, half=1), "d16_hi_i8": Item(1, signed=True, half=1),
}  # fmt: skip
"""By what follows `load_` in a mnemonic."""
STORES: dict[str, Item] = {
    **{name: Item(4, count) for name, count in _WORDS.items()},
    "byte": Item(1, half=0), "b8": Item(1, half=0),
    "short": Item(2, half=0), "b16": Item(2, half=0),
    "byte_d16_hi": Item(1, half=1), "d16_hi_b8": Item(1, half=1),
    "short_d16_hi": Item(2, half=1), "d16_hi_b16": Item(2, half=1),
}  # fmt: skip
"""By what follows `store_`."""

AddressOf = Callable[["Machine", Lanes], Addresses]


class Space(Protocol):
    """A kind of memory and the way its instructions name a place in it."""

    load_event: Event
    store_event: Event
    kind: InstructionClass

    def address(self, parsed: Parsed, context: Context, first: int) -> AddressOf:
        """Return what computes addresses; their vector part is operand number `first`."""
        ...

    def read(
        self, machine: Machine, access: Access, address: Addresses, size: int, count: int
    ) -> Words:
        """Return the elements at addresses, (lanes, count)."""
        ...

    def write(
        self, machine: Machine, access: Access, address: Addresses, values: Words, size: int
    ) -> None:
        """Write elements, (lanes, count)."""
        ...

    def reaches(self, machine: Machine, address: Addresses, lanes: Lanes, width: int) -> Any:
        """Return the global memory that is touched, as `Waits.reach` does; None for others."""
        ...

    def count(
        self, machine: Machine, index: int, address: Addresses, lanes: Lanes, width: int
    ) -> None:
        """Count an access; only called where somebody asked for a report."""
        ...


def vector(operand: Operand, context: Context) -> int:
    """Return the number of a vector register operand.

    Raises:
        CompilerBug: It is none.
    """
    if not isinstance(operand, Register) or operand.file != "v":
        raise CompilerBug(f"expected a vector register in `{context.instruction.text}`")
    return operand.index


def extended(words: Words, item: Item) -> Words:
    """Return elements shorter than a word as words, (lanes, 1)."""
    if item.size == 4:
        return words
    if not item.signed:
        return words.astype(np.uint32)
    signed = words.view(np.dtype(f"i{item.size}")).astype(np.int32)
    return signed.view(np.uint32)


def deliver_words(
    machine: Machine,
    lanes: Lanes,
    register: int,
    item: Item,
    words: Words | None,
    waves: Mask | None,
) -> None:
    """Write what a load returned (None: poison) for the waves in a mask (None: all)."""
    chosen = lanes.of(waves, machine.wave_size)
    if chosen is not None:
        lanes = lanes.some(chosen)
        words = None if words is None else words[chosen]
    if item.half is None:
        put_words(machine, lanes, register, item.count, words)
    else:
        put_half(machine, lanes, register, item.half, words)


def load(space: Space, item: Item, parsed: Parsed, context: Context) -> Step:
    """Decode a load: destination, then address."""
    instruction = context.instruction
    register = vector(parsed.operands[0], context)
    item = _with_half(item, parsed.operands[0])
    registers = registers_of(parsed.operands[:1])
    address_of = space.address(parsed, context, 1)

    def step(machine: Machine) -> None:
        lanes = active(machine)
        address = address_of(machine, lanes)
        if machine.cohort.counters is not None:
            space.count(machine, instruction.index, address, lanes, item.width)
        waits = machine.memory.waits
        reach = space.reaches(machine, address, lanes, item.width)
        waits.order(reach, writes=False)

        def fetch() -> Words:
            access = Access(machine.cohort, instruction, lanes.threads)
            return extended(space.read(machine, access, address, item.size, item.count), item)

        def deliver(words: Words | None, waves: Mask | None) -> None:
            deliver_words(machine, lanes, register, item, words, waves)

        late = reach is not None and space.load_event is Event.LOAD
        waits.issue(
            space.load_event, instruction, registers, fetch, deliver, reach=reach, late=late
        )

    return step


def _with_half(item: Item, operand: Operand) -> Item:
    """Return the item for a register of which the text names one half (`v5.h`)."""
    if isinstance(operand, Register) and operand.half is not None and item.size < 4:
        return Item(item.size, item.count, item.signed, operand.half)
    return item


def store(
    space: Space, item: Item, parsed: Parsed, context: Context, data: int, first: int
) -> Step:
    """Decode a store.

    Args:
        space: Where to.
        item: What.
        parsed: The instruction.
        context: The decoder's.
        data: The number of the operand that holds the data.
        first: The number of the first operand of the address.
    """
    instruction = context.instruction
    register = vector(parsed.operands[data], context)
    item = _with_half(item, parsed.operands[data])
    address_of = space.address(parsed, context, first)

    def step(machine: Machine) -> None:
        lanes = active(machine)
        address = address_of(machine, lanes)
        if machine.cohort.counters is not None:
            space.count(machine, instruction.index, address, lanes, item.width)
        waits = machine.memory.waits
        reach = space.reaches(machine, address, lanes, item.width)
        waits.order(reach, writes=True)
        values = stored(machine, lanes, register, item)

        def deliver(nothing: Any, waves: Mask | None) -> None:
            del nothing
            chosen = lanes.of(waves, machine.wave_size)
            if chosen is None:
                access = Access(machine.cohort, instruction, lanes.threads)
                space.write(machine, access, address, values, item.size)
                return
            access = Access(machine.cohort, instruction, lanes.threads[chosen])
            space.write(machine, access, address[chosen], values[chosen], item.size)

        late = reach is not None and space.store_event is Event.STORE
        waits.issue(space.store_event, instruction, 0, None, deliver, reach=reach, late=late)

    return step


def stored(machine: Machine, lanes: Lanes, register: int, item: Item) -> Words:
    """Return what registers hold of a store's elements, (lanes, count)."""
    words = get_words(machine, lanes, register, item.count)
    if item.size == 4:
        return words
    if item.half:
        words >>= np.uint32(16)
    return words.astype(np.uint16 if item.size == 2 else np.uint8)


def entries(space: Space, prefix: str, data: int = 1, first: int = 0) -> dict[str, Entry]:
    """Return the table of a space's loads and stores.

    Args:
        space: Which.
        prefix: Of the mnemonics, with the underscore.
        data: The number of the operand that holds a store's data.
        first: The number of the first operand of a store's address.
    """

    def loads(item: Item) -> Entry:
        return Entry(lambda parsed, context: load(space, item, parsed, context), space.kind)

    def stores(item: Item) -> Entry:
        return Entry(
            lambda parsed, context: store(space, item, parsed, context, data, first), space.kind
        )

    return {
        **{f"{prefix}load_{name}": loads(item) for name, item in LOADS.items()},
        **{f"{prefix}store_{name}": stores(item) for name, item in STORES.items()},
    }
