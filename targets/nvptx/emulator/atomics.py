"""Atomic operations on memory: atom, which returns what was there, and red, which does not.

Lanes that meet at one address act one after the other, in the order of their numbers: in *rounds*,
the first lane of every address at once, then the second ones, and so on. (Hardware promises no
order, so a kernel whose result depends on it is wrong anyway, except for the last bits of sums of
floats.)

`add.f32` on global memory takes subnormal numbers for zeros, on shared memory it does not; a NaN of
f64 that global memory adds stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.cohort import Lanes
from tiledsl.targets.gpu.emulator.program import Instruction, InstructionClass, Step
from tiledsl.targets.nvptx.emulator.float_values import canonical, flush
from tiledsl.targets.nvptx.emulator.floats import extreme
from tiledsl.targets.nvptx.emulator.machine import Machine
from tiledsl.targets.nvptx.emulator.memory import by_space, space_of, take_orders
from tiledsl.targets.nvptx.emulator.opcodes import Opcode, Options, Table, unknown
from tiledsl.targets.nvptx.emulator.operands import (
    TYPES,
    Context,
    Reader,
    Scatter,
    Type,
    Values,
    select,
)
from tiledsl.targets.nvptx.emulator.orders import with_order
from tiledsl.targets.nvptx.emulator.text import Parsed, Sink, Vector

Operation = Callable[[Values, Values, Values], Values]
"""The new values, of the old ones and of the instruction's one or two operands."""


def _increment(old: Values, limit: Values, _: Values) -> Values:
    found: Values = select(old >= limit, old.dtype.type(0), old + old.dtype.type(1))
    return found


def _decrement(old: Values, limit: Values, _: Values) -> Values:
    one = old.dtype.type(1)
    found: Values = select((old == 0) | (old > limit), limit, old - one)
    return found


def _swap_if_equal(old: Values, expected: Values, new: Values) -> Values:
    found: Values = select(old == expected, new, old)
    return found


def _larger(old: Values, value: Values, _: Values) -> Values:
    if old.dtype.kind in "iu":
        return np.maximum(old, value)
    return extreme(old, value, largest=True, keeps_nan=False)


def _smaller(old: Values, value: Values, _: Values) -> Values:
    if old.dtype.kind in "iu":
        return np.minimum(old, value)
    return extreme(old, value, largest=False, keeps_nan=False)


def _add(old: Values, value: Values, _: Values) -> Values:
    return old + value if old.dtype.kind in "iu" else canonical(old + value)


def _add_in_l2(old: Values, value: Values, _: Values) -> Values:
    """Add as the units of global memory do: f32 is flushed, and NaNs of f64 stay as they are."""
    if old.dtype == np.float32:
        return canonical(flush(flush(old) + flush(value)))
    found = old + value
    return select(np.isnan(value), value, select(np.isnan(old), old, found))


_OPERATIONS: dict[str, Operation] = {
    "add": _add,
    "and": lambda old, value, _: old & value,
    "or": lambda old, value, _: old | value,
    "xor": lambda old, value, _: old ^ value,
    "exch": lambda old, value, _: value,
    "min": _smaller,
    "max": _larger,
    "inc": _increment,
    "dec": _decrement,
    "cas": _swap_if_equal,
}
_ATOMIC_TYPES = tuple(
    name for name, kind in TYPES.items() if kind.bits >= 16 and "8" not in name and name != "f32x2"
)


@dataclass(frozen=True)
class _Atomic:
    """One atomic instruction's element, decoded.

    Attributes:
        kind: The type of memory's element.
        act: What it does to it.
        in_l2: Whether it is another addition on global memory, of f32 or f64.
        instruction: For findings.
    """

    kind: Type
    act: Operation
    in_l2: bool
    instruction: Instruction

    def run(
        self,
        machine: Machine,
        space: str,
        lanes: Lanes,
        address: NDArray[np.uint64],
        operands: tuple[NDArray[Any], NDArray[Any]],
    ) -> NDArray[Any]:
        """Act on memory for some lanes; returns the words that were there, 0 where it may not."""
        size = self.kind.bits // 8
        held = np.zeros(len(lanes), f"u{size}")
        for where, mask, window in by_space(address) if space == "generic" else ((space, None, 0),):
            some = np.arange(len(lanes)) if mask is None else np.flatnonzero(mask)
            place = address[some] - np.uint64(window)
            words, index, good = self._memory(machine, where, lanes[some], place, size)
            some, index = some[good], index[good]
            act = _add_in_l2 if self.in_l2 and where == "global" else self.act
            for now in rounds(index):
                rows, at = some[now], index[now]
                before = words[at]
                after = act(self._typed(before), *(self._typed(one[rows]) for one in operands))
                held[rows] = before
                words[at] = np.ascontiguousarray(after).view(words.dtype).reshape(-1)
        return held

    def _typed(self, words: NDArray[Any]) -> NDArray[Any]:
        """Return words as the element's type; of a packed one as rows."""
        values = words.view(self.kind.element)
        return values if self.kind.count == 1 else values.reshape(-1, self.kind.count)

    def _memory(
        self, machine: Machine, space: str, lanes: Lanes, address: NDArray[np.uint64], size: int
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_]]:
        access = machine.access(self.instruction, lanes)
        counters = machine.cohort.counters
        if space == "shared":
            offset = address.view(np.int64)
            if counters is not None:
                counters.shared_access(self.instruction.index, offset, size, lanes, write=True)
            return machine.shared.update(access, offset, size)
        if counters is not None:
            counters.global_access(self.instruction.index, address, size, lanes)
        return machine.memory.update(access, address, size)


def rounds(index: NDArray[Any]) -> list[NDArray[np.intp]]:
    """Return positions in rounds: in each every index at most once, in order over the rounds."""
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    if not len(order):
        return []
    starts = np.empty(len(order), np.bool_)
    starts[0], starts[1:] = True, ordered[1:] != ordered[:-1]
    if starts.all():
        return [order]
    position = np.arange(len(order))
    rank = position - np.maximum.accumulate(select(starts, position, 0))
    by_rank = np.argsort(rank, kind="stable")
    return np.split(order[by_rank], np.cumsum(np.bincount(rank))[:-1])


def _atomic(instruction: Parsed, context: Context) -> Step:
    """Decode atom, and red where nothing is returned."""
    options = Options(instruction)
    returns = instruction.stem == "atom"
    kind = TYPES[options.last(_ATOMIC_TYPES)]
    name = options.choice(tuple(_OPERATIONS))
    count = int(options.choice(("v2", "v4", "v8"), "v1")[1:])
    to, address, *sources = instruction.operands if returns else (Sink(), *instruction.operands)
    space = space_of(options, context, address)
    options.flag("noftz")
    take_orders(options)
    options.done()
    if space not in ("global", "shared", "generic"):
        raise unknown(instruction)
    context.atomic |= space != "shared"
    size = kind.bits // 8
    if space != "global":
        context.note_shared(size)
    bits = f"b{kind.bits}"
    operands = sources[: 2 if name == "cas" else 1]
    reads = [context.read_all(operand, bits) for operand in operands]
    several = isinstance(to, Vector)
    writes = context.scatter_all(to, bits) if several else [context.scatter(to, bits)]
    if any(len(one) != count for one in reads):
        raise unknown(instruction, f"expected {count} registers")
    in_l2 = name == "add" and kind.name in ("f32", "f64")
    atomic = _Atomic(kind, _OPERATIONS[name], in_l2, context.instruction)
    step = _step(atomic, space, context.address(address), reads, writes)
    return step if space == "shared" else with_order(step, instruction.modifiers)


def _step(
    atomic: _Atomic,
    space: str,
    address: Reader,
    reads: list[list[Reader]],
    writes: list[Scatter],
) -> Step:
    size = atomic.kind.bits // 8
    held = np.dtype(f"u{size}")

    def step(machine: Machine) -> None:
        lanes = machine.lanes
        base = address(machine)[lanes]
        for i in range(len(reads[0])):
            given = [_some(one[i](machine), lanes, held) for one in reads]
            pair = given[0], given[-1]
            before = atomic.run(machine, space, lanes, base + np.uint64(i * size), pair)
            if len(writes) > i:
                writes[i](machine, lanes, before)

    return step


def _some(values: Values, lanes: Lanes, held: np.dtype[Any]) -> NDArray[Any]:
    return values[lanes] if np.ndim(values) else np.full(len(lanes), values, held)


TABLE: Table = {
    "atom": Opcode(_atomic, InstructionClass.ATOMIC),
    "red": Opcode(_atomic, InstructionClass.ATOMIC),
}
