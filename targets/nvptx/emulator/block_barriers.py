"""Barriers of a thread block: bar and barrier, with .sync, .arrive and .red.

The aligned forms (`bar`, `barrier.aligned`) are executed by whole warps and gather them first; the
others by whichever threads come. A group may come to several barriers at once, where their number
is in a register. `.red` also reduces a predicate over all threads that arrive (and, or, popc),
which each of them gets as it goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.barriers import ALL, BarrierWait, distinct
from tiledsl.targets.gpu.emulator.program import End, InstructionClass
from tiledsl.targets.gpu.emulator.scheduler import Mask
from tiledsl.targets.nvptx.emulator.convergence import gather
from tiledsl.targets.nvptx.emulator.opcodes import Ending, Opcode, Options, Place, Table
from tiledsl.targets.nvptx.emulator.operands import Context, Reader, Scatter
from tiledsl.targets.nvptx.emulator.text import Operand, Parsed

if TYPE_CHECKING:
    from tiledsl.targets.nvptx.emulator.machine import Machine

_COUNT = 16
"""Barriers a block."""


class Votes:
    """How many threads have arrived at each barrier with true and with false, by block.

    Of the last two phases: a barrier cannot complete its next phase before everybody has read what
    came of this one.
    """

    def __init__(self, machine: Machine) -> None:
        shape = machine.cohort.blocks, _COUNT, 2
        self._phase = np.full(shape, -1, np.int64)
        self._votes = np.zeros((*shape, 2), np.int64)

    def add(self, blocks: NDArray[np.intp], number: int, phase: Any, votes: Any) -> None:
        """Count the votes of threads of some blocks in the phase that each block is in."""
        there = distinct(blocks)
        slot = phase[there] % 2
        fresh = self._phase[there, number, slot] != phase[there]
        self._votes[there[fresh], number, slot[fresh]] = 0
        self._phase[there, number, slot] = phase[there]
        place: Any = (blocks, number, phase[blocks] % 2, votes.astype(np.intp))
        np.add.at(self._votes, place, 1)

    def counts(self, blocks: NDArray[np.intp], number: int, phase: Any) -> Any:
        """Return, for threads of some blocks, how many voted false and true: (threads, 2)."""
        return self._votes[blocks, number, phase[blocks] % 2]


@dataclass(frozen=True)
class _Reduction:
    """The `.red` of a barrier: what is reduced, how, and where the result goes."""

    operation: str
    vote: Reader
    write: Scatter

    def result(self, counts: Any) -> Any:
        """Return the results for counts of false and true votes."""
        if self.operation == "and":
            return counts[:, 0] == 0
        return counts[:, 1] > 0 if self.operation == "or" else counts[:, 1].astype(np.uint32)


class _ReducedWait(BarrierWait):
    """A wait whose threads get the reduction as they are released."""

    def __init__(self, wait: _Arrival, phase: NDArray[np.int64]) -> None:
        super().__init__(wait.machine.barriers, wait.number, phase)
        self._arrival = wait
        self._reached = phase

    def ready(self, mask: Mask) -> Mask:
        """Return which threads may go on."""
        found = super().ready(mask)
        self._arrival.deliver(found, self._reached)
        return found


@dataclass(frozen=True)
class _Arrival:
    """Threads that come to one barrier."""

    machine: Machine
    number: int
    mask: Mask
    reduction: _Reduction | None

    def arrive(self, expected: int, at: int) -> NDArray[np.int64]:
        """Arrive; returns the phase that this is."""
        barriers = self.machine.barriers
        if self.reduction is not None:
            lanes = np.flatnonzero(self.mask)
            votes = np.broadcast_to(self.reduction.vote(self.machine), self.machine.threads)[lanes]
            blocks = self.machine.cohort.block_of[lanes]
            phase = barriers.phase[:, self.number]
            self.machine.part(Votes).add(blocks, self.number, phase, votes)
        return barriers.arrive(self.mask, self.number, expected, at)

    def deliver(self, mask: Mask, phase: NDArray[np.int64]) -> None:
        """Write the reduction to threads that go on."""
        if self.reduction is None:
            return
        lanes = np.flatnonzero(mask)
        blocks = self.machine.cohort.block_of[lanes]
        counts = self.machine.part(Votes).counts(blocks, self.number, phase)
        self.reduction.write(self.machine, lanes, self.reduction.result(counts))


def _barrier(instruction: Parsed, context: Context) -> Ending:
    options = Options(instruction)
    aligned = options.flag("aligned") or instruction.stem == "bar"
    options.ignore("cta")
    waits = options.choice(("sync", "arrive", "red")) != "arrive"
    operands = list(instruction.operands)
    reduction = None
    if "red" in instruction.modifiers:
        operation = options.choice(("and", "or", "popc"))
        kind = options.last(("pred", "u32"))
        write = context.scatter(operands.pop(0), kind)
        reduction = _Reduction(operation, context.read(operands.pop(), "pred"), write)
    options.done()
    build = _builder(context, operands, waits, reduction)
    return gather(build) if aligned else Ending(build)


def _builder(
    context: Context, operands: list[Operand], waits: bool, reduction: _Reduction | None
) -> Callable[[Place], End]:
    """Return what makes the end of a barrier: the barrier's number, and the threads it expects."""
    number = context.read(operands[0], "u32")
    expected = context.read(operands[1], "u32") if len(operands) > 1 else None
    who = context.instruction

    def build(place: Place) -> End:
        def end(machine: Machine) -> int | None:
            for barrier, count, mask in _barriers(machine, number, expected):
                arrival = _Arrival(machine, barrier, mask, reduction)
                phase = arrival.arrive(count, who.index)
                if not waits:
                    continue
                passed = machine.barriers.passed(mask, barrier, phase)
                arrival.deliver(passed, phase)
                if int(np.count_nonzero(passed)) == machine.count:
                    return place.following
                rest = mask & ~passed
                if passed.any():
                    machine.scheduler.go(passed, place.following)
                if rest.any():
                    wait = _ReducedWait(arrival, phase)
                    machine.scheduler.park(rest, place.following, wait, place.block)
            return None if waits else place.following

        return end

    return build


def _barriers(
    machine: Machine, number: Reader, expected: Reader | None
) -> Iterator[tuple[int, int, Mask]]:
    """Yield each barrier that active threads come to, the threads it expects, and which come."""
    numbers = np.asarray(number(machine))
    counts = np.asarray(ALL if expected is None else expected(machine))
    if numbers.ndim == 0 and counts.ndim == 0:
        yield int(numbers), int(counts), machine.active
        return
    key = np.broadcast_to(numbers.astype(np.int64) << 32 | counts.astype(np.int64), machine.threads)
    for one in np.unique(key[machine.lanes]):
        yield int(one >> 32), int(one & 0xFFFFFFFF), machine.active & (key == one)


TABLE: Table = {
    f"{stem}.{form}": Opcode(_barrier, InstructionClass.SYNCHRONIZE)
    for stem in ("bar", "bar.cta", "barrier", "barrier.cta")
    for form in ("sync", "arrive", "red")
}
