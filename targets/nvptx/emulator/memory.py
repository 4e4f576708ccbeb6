"""Loads and stores: of global, shared, local, constant, parameter and generic addresses.

A memory instruction acts on the active lanes only: their addresses are gathered, the memory that
the state space names is asked, and what it returns is scattered into their registers. A generic
access is split by the window that each lane's address lies in.

Orders and scopes (`.volatile`, `.relaxed.gpu`, `.acquire.gpu`, ...) do not change what one cohort
sees of global memory, because it executes one instruction at a time, but whether it may (`orders`);
what hints say about caches changes nothing at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.cohort import Access, Lanes, Mask
from tiledsl.targets.gpu.emulator.program import Instruction, InstructionClass, Step
from tiledsl.targets.nvptx.emulator import text as ptx
from tiledsl.targets.nvptx.emulator.machine import LOCAL_WINDOW, SHARED_WINDOW, Machine
from tiledsl.targets.nvptx.emulator.moves import in_window
from tiledsl.targets.nvptx.emulator.opcodes import Opcode, Options, Table, unknown
from tiledsl.targets.nvptx.emulator.operands import TYPES, Context, Scatter
from tiledsl.targets.nvptx.emulator.orders import with_order
from tiledsl.targets.nvptx.emulator.text import Parsed

Addresses = NDArray[np.uint64]
Load = Callable[[Machine, Instruction, Lanes, Addresses], NDArray[Any]]
"""Returns (n,) or (n, count) words for some lanes and their addresses."""
Store = Callable[[Machine, Instruction, Lanes, Addresses, NDArray[Any]], None]

SPACES = ("global", "shared", "local", "const", "param", "shared::cta", "shared::cluster")
ORDERS = ("weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "seq_cst", "mmio")
SCOPES = ("cta", "cluster", "gpu", "sys")
_HINTS = ("ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "unified")
_ACCESSED = tuple(
    name for name, kind in TYPES.items() if kind.count == 1 and kind.bits > 1 and name != "bf16"
)


def take_orders(options: Options) -> None:
    """Take what says how an access is ordered and cached."""
    options.ignore(*ORDERS, *SCOPES, *_HINTS)
    options.ignore_prefixes("L1::", "L2::", "level::")


def by_space(address: Addresses) -> Iterator[tuple[str, Mask | None, np.uint64]]:
    """Yield the spaces that generic addresses lie in: (space, which of them, its window).

    The mask is None where all of them do.
    """
    if not len(address) or int(address.max()) < SHARED_WINDOW:
        yield "global", None, np.uint64(0)
        return
    shared, local = in_window(address, SHARED_WINDOW), in_window(address, LOCAL_WINDOW)
    for space, mask, window in (
        ("global", ~(shared | local), 0),
        ("shared", shared, SHARED_WINDOW),
        ("local", local, LOCAL_WINDOW),
    ):
        if mask.all():
            yield space, None, np.uint64(window)
        elif mask.any():
            yield space, mask, np.uint64(window)


def _count_global(machine: Machine, access: Access, address: Addresses, width: int) -> None:
    counters = machine.cohort.counters
    if counters is not None:
        counters.global_access(access.instruction.index, address, width, access.lanes)


def _count_shared(
    machine: Machine, access: Access, offset: NDArray[np.int64], width: int, *, write: bool
) -> None:
    counters = machine.cohort.counters
    if counters is not None:
        counters.shared_access(access.instruction.index, offset, width, access.lanes, write=write)


def load_words(space: str, size: int, count: int, *, strong: bool = False) -> Load:
    """Return what loads `count` words of `size` bytes a lane from a space; "generic" is one.

    A strong load of a word begins the atomics on the half words in it, so it may reach past the end
    of an array of an odd number of those.
    """
    partly = strong and size * count == 4

    def load_global(
        machine: Machine, instruction: Instruction, lanes: Lanes, address: Addresses
    ) -> NDArray[Any]:
        access = machine.access(instruction, lanes)
        _count_global(machine, access, address, size * count)
        return machine.memory.load(access, address, size, count, partly=partly)

    def load_shared(
        machine: Machine, instruction: Instruction, lanes: Lanes, address: Addresses
    ) -> NDArray[Any]:
        access, offset = machine.access(instruction, lanes), address.view(np.int64)
        _count_shared(machine, access, offset, size * count, write=False)
        return machine.shared.load(access, offset, size, count)

    def load_local(
        machine: Machine, instruction: Instruction, lanes: Lanes, address: Addresses
    ) -> NDArray[Any]:
        return machine.local.load(machine.access(instruction, lanes), address, size, count)

    loads = {"global": load_global, "shared": load_shared, "local": load_local}

    def load_generic(
        machine: Machine, instruction: Instruction, lanes: Lanes, address: Addresses
    ) -> NDArray[Any]:
        values: NDArray[Any] | None = None
        for where, mask, window in by_space(address):
            if mask is None:
                return loads[where](machine, instruction, lanes, address - window)
            some = loads[where](machine, instruction, lanes[mask], address[mask] - window)
            if values is None:
                values = np.empty((len(lanes), *some.shape[1:]), some.dtype)
            values[mask] = some
        assert values is not None
        return values

    return loads.get(space, load_generic)


def store_words(space: str, size: int, count: int) -> Store:
    """Return what stores `count` words of `size` bytes a lane to a space; "generic" is one."""

    def store_global(
        machine: Machine,
        instruction: Instruction,
        lanes: Lanes,
        address: Addresses,
        values: NDArray[Any],
    ) -> None:
        access = machine.access(instruction, lanes)
        _count_global(machine, access, address, size * count)
        machine.memory.store(access, address, values, size, count)

    def store_shared(
        machine: Machine,
        instruction: Instruction,
        lanes: Lanes,
        address: Addresses,
        values: NDArray[Any],
    ) -> None:
        access, offset = machine.access(instruction, lanes), address.view(np.int64)
        _count_shared(machine, access, offset, size * count, write=True)
        machine.shared.store(access, offset, values, size, count)

    def store_local(
        machine: Machine,
        instruction: Instruction,
        lanes: Lanes,
        address: Addresses,
        values: NDArray[Any],
    ) -> None:
        machine.local.store(machine.access(instruction, lanes), address, values, size, count)

    stores = {"global": store_global, "shared": store_shared, "local": store_local}

    def store_generic(
        machine: Machine,
        instruction: Instruction,
        lanes: Lanes,
        address: Addresses,
        values: NDArray[Any],
    ) -> None:
        for where, mask, window in by_space(address):
            some = slice(None) if mask is None else mask
            stores[where](machine, instruction, lanes[some], address[some] - window, values[some])

    return stores.get(space, store_generic)


def space_of(options: Options, context: Context, operand: ptx.Operand) -> str:
    """Take the state space of an access: global, shared, local, argument or generic."""
    space = options.choice(SPACES, "generic").partition("::")[0]
    if space == "const":
        return "global"
    if space == "param":
        base = operand.base if isinstance(operand, ptx.Address) else None
        return context.variable(base).space if isinstance(base, ptx.Symbol) else "argument"
    return space


def _load(instruction: Parsed, context: Context) -> Step:
    options = Options(instruction)
    kind = TYPES[options.last(_ACCESSED)]
    to, source = instruction.operands[:2]
    count = int(options.choice(("v2", "v4", "v8"), "v1")[1:])
    space = space_of(options, context, source)
    strong = options.any_of(("volatile", "relaxed", "acquire"))
    take_orders(options)
    options.done()
    size = kind.bits // 8
    writers = context.scatter_all(to, kind.name)
    if len(writers) != count:
        raise unknown(instruction, f"expected {count} registers")
    if space == "argument":
        return _load_argument(source, kind.element, writers, context)
    if space in ("shared", "generic"):
        context.note_shared(size * count)
    address, load = context.address(source), load_words(space, size, count, strong=strong)
    who, element = context.instruction, kind.element

    def step(machine: Machine) -> None:
        lanes = machine.lanes
        values = load(machine, who, lanes, address(machine)[lanes])
        if count == 1:
            writers[0](machine, lanes, values.view(element))
            return
        for i, write in enumerate(writers):
            write(machine, lanes, np.ascontiguousarray(values[:, i]).view(element))

    return with_order(step, instruction.modifiers)


def _load_argument(
    source: ptx.Operand, element: np.dtype[Any], writers: list[Scatter], context: Context
) -> Step:
    """Return the step of `ld.param`; where its address is fixed, all threads read the same."""
    count = len(writers)
    if isinstance(source, ptx.Address) and not isinstance(source.base, ptx.Register):
        base = source.base
        start = base.value if isinstance(base, ptx.Immediate) else context.variable(base).address
        start += source.offset

        def step(machine: Machine) -> None:
            values = np.frombuffer(machine.cohort.arguments, element, count, start)
            for i, write in enumerate(writers):
                write(machine, machine.lanes, values[i : i + 1])

        return step
    address = context.address(source)

    def gather(machine: Machine) -> None:
        data = np.frombuffer(machine.cohort.arguments, np.uint8)
        lanes = machine.lanes
        first = address(machine)[lanes].astype(np.int64)
        for i, write in enumerate(writers):
            place = (first + i * element.itemsize)[:, None] + np.arange(element.itemsize)
            write(machine, lanes, data[place].view(element).reshape(-1))

    return gather


def _store(instruction: Parsed, context: Context) -> Step:
    options = Options(instruction)
    kind = TYPES[options.last(_ACCESSED)]
    destination, source = instruction.operands[:2]
    count = int(options.choice(("v2", "v4", "v8"), "v1")[1:])
    space = space_of(options, context, destination)
    take_orders(options)
    options.done()
    if space == "argument":
        raise unknown(instruction, "a kernel's parameters are constant")
    size = kind.bits // 8
    readers = context.read_all(source, f"b{kind.bits}")
    if len(readers) != count:
        raise unknown(instruction, f"expected {count} registers")
    if space in ("shared", "generic"):
        context.note_shared(size * count)
    address, store = context.address(destination), store_words(space, size, count)
    who = context.instruction

    def step(machine: Machine) -> None:
        lanes = machine.lanes
        values = np.empty((len(lanes), count), f"u{size}")
        for i, read in enumerate(readers):
            value = read(machine)
            values[:, i] = value[lanes] if value.ndim else value
        store(machine, who, lanes, address(machine)[lanes], values if count > 1 else values[:, 0])

    return with_order(step, instruction.modifiers)


def _nothing(instruction: Parsed, context: Context) -> Step:
    """Decode what only moves data between caches."""
    return lambda machine: None


def _policy(instruction: Parsed, context: Context) -> Step:
    """Decode createpolicy, whose result only says how to cache."""
    write = context.write(instruction.operands[0], "b64")
    return lambda machine: write(machine, np.zeros(machine.threads, np.uint64))


TABLE: Table = {
    "ld": Opcode(_load, InstructionClass.GLOBAL),
    "ldu": Opcode(_load, InstructionClass.GLOBAL),
    "ld.shared": Opcode(_load, InstructionClass.SHARED),
    "ld.local": Opcode(_load, InstructionClass.LOCAL),
    "ld.param": Opcode(_load, InstructionClass.MOVE),
    "st": Opcode(_store, InstructionClass.GLOBAL),
    "st.shared": Opcode(_store, InstructionClass.SHARED),
    "st.local": Opcode(_store, InstructionClass.LOCAL),
    "st.param": Opcode(_store, InstructionClass.MOVE),
    "prefetch": Opcode(_nothing, InstructionClass.GLOBAL),
    "prefetchu": Opcode(_nothing, InstructionClass.GLOBAL),
    "applypriority": Opcode(_nothing, InstructionClass.GLOBAL),
    "discard": Opcode(_nothing, InstructionClass.GLOBAL),
    "createpolicy": Opcode(_policy, InstructionClass.MOVE),
}
