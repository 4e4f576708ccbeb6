"""Asynchronous copies of 4, 8 or 16 bytes a thread from global to shared memory: cp.async.

Each thread gathers its copies into groups (`commit_group`) and waits for all but the youngest of
them (`wait_group`). Shared memory counts as being written from the issue to the wait, so whatever
touches it before is a missing wait; another warp needs a barrier after the wait besides. In EAGER
mode a copy reads its source when it is issued, in LAZY mode when the wait completes it.

    cp.async.cg.shared.global [to], [from], 16, %r1;   // bytes to read; the rest is zero
    cp.async.ca.shared.global [to], [from], 4, %p1;    // true: read nothing

Source: PTX ISA 9.7.9.25.3, "cp.async"; 9.7.13.15.17, "cp.async.mbarrier.arrive".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.cohort import Lanes, Mode
from tiledsl.targets.gpu.emulator.findings import Kind
from tiledsl.targets.gpu.emulator.pending import Pending
from tiledsl.targets.gpu.emulator.program import Instruction, InstructionClass, Step
from tiledsl.targets.nvptx.emulator import text as ptx
from tiledsl.targets.nvptx.emulator.mbarrier_state import Mbarriers
from tiledsl.targets.nvptx.emulator.opcodes import Opcode, Options, Table, unknown
from tiledsl.targets.nvptx.emulator.operands import Context, Reader
from tiledsl.targets.nvptx.emulator.shared_access import is_generic, offsets

if TYPE_CHECKING:
    from tiledsl.targets.nvptx.emulator.machine import Machine

_WORD = 4
_SIZES = (4, 8, 16)


class Copies:
    """The copies under way of a machine's threads: a part of it."""

    def __init__(self, machine: Machine) -> None:
        self.pending = Pending(machine.threads)

    def finish(self, lanes: Lanes, machine: Machine) -> None:
        """Complete every copy of some threads, in a group or not."""
        mask = np.zeros(machine.threads, np.bool_)
        mask[lanes] = True
        self.pending.wait(mask, -1)


@dataclass
class _Batch:
    """The copies of one executed instruction.

    Attributes:
        machine: Whose they are.
        instruction: What issued them.
        size: Bytes that each writes.
        lanes: The threads.
        to: Offsets into shared memory.
        source: Addresses.
        taken: Bytes that each reads.
    """

    machine: Machine
    instruction: Instruction
    size: int
    lanes: Lanes
    to: NDArray[np.int64]
    source: NDArray[np.uint64]
    taken: NDArray[np.int64]

    def issue(self) -> None:
        """Begin the copies."""
        machine, size = self.machine, self.size
        self._check_sizes()
        access = machine.access(self.instruction, self.lanes)
        granules = machine.shared.begin_copy(access, self.to, size)
        eager = machine.cohort.mode is Mode.EAGER
        if not eager:
            self._check_source()
        values = self._fetch(np.arange(len(self.lanes))) if eager else None

        def complete(ready: NDArray[np.bool_]) -> None:
            rows = np.flatnonzero(ready)
            found = self._fetch(rows) if values is None else values[rows]
            done = machine.access(self.instruction, self.lanes[rows])
            words = found[:, 0] if size == _WORD else found
            machine.shared.end_copy(done, granules[rows], self.to[rows], words, _WORD)
            if machine.shared.on_write is not None:  # to the asynchronous proxy it is a plain write
                machine.shared.on_write(machine.cohort.warp_of[done.lanes], granules[rows])

        machine.part(Copies).pending.issue(self.lanes, complete, advance=False)
        self._count()

    def _check_sizes(self) -> None:
        large = self.taken > self.size
        if large.any():
            self.machine.access(self.instruction, self.lanes).report(
                Kind.UNDEFINED,
                large,
                lambda at: f"copies {self.taken[at]} bytes of its source to {self.size} bytes",
            )
            self.taken = np.minimum(self.taken, self.size)

    def _check_source(self) -> None:
        """Report addresses that are wrong, and read nothing from them."""
        for count in np.unique(self.taken[self.taken > 0]):
            rows = np.flatnonzero(self.taken == count)
            access = self.machine.access(self.instruction, self.lanes[rows])
            bad = self.machine.memory.check(access, self.source[rows], int(count), self.size)
            if bad is not None:
                self.taken[rows[bad]] = 0

    def _fetch(self, rows: NDArray[np.intp]) -> NDArray[np.uint32]:
        """Read the source of some copies; what is not read is zero."""
        memory, size, taken = self.machine.memory, self.size, self.taken[rows]
        values = np.zeros((len(rows), size // _WORD), np.uint32)
        bytes_ = values.view(np.uint8)
        for count in np.unique(taken[taken > 0]):
            some = np.flatnonzero(taken == count)
            access = self.machine.access(self.instruction, self.lanes[rows[some]])
            source = self.source[rows[some]]
            if count == size:
                words = memory.load(access, source, _WORD, size // _WORD, size)
                values[some] = words.reshape(len(some), -1)
            else:
                part = memory.load(access, source, 1, int(count), size)
                bytes_[some, :count] = part.reshape(len(some), -1)
        return values

    def _count(self) -> None:
        counters = self.machine.cohort.counters
        if counters is not None:
            index, read = self.instruction.index, self.taken > 0
            counters.global_access(index, self.source[read], self.size, self.lanes[read])
            counters.shared_access(index, self.to, self.size, self.lanes, write=True)


def _taken(instruction: ptx.Parsed, context: Context, size: int) -> Reader | None:
    """Return what reads how many bytes are read, if that is not all of them."""
    operands = list(instruction.operands[3:])
    if "L2::cache_hint" in instruction.modifiers:
        operands.pop()
    if not operands:
        return None
    (operand,) = operands
    if isinstance(operand, ptx.Register) and operand.type == "pred":
        ignored = context.read(operand, "pred")
        return lambda machine: np.where(ignored(machine), 0, size)
    return context.read(operand, "u32")


def _decode_copy(instruction: ptx.Parsed, context: Context) -> Step:
    options = Options(instruction)
    options.ignore("async", "ca", "cg", "shared", "shared::cta", "global")
    options.ignore_prefixes("L2::")
    options.done()
    width = instruction.operands[2]
    if not isinstance(width, ptx.Immediate) or width.value not in _SIZES:
        raise unknown(instruction, "expected 4, 8 or 16 bytes")
    size = width.value
    to = offsets(context, instruction.operands[0])
    source = context.address(instruction.operands[1])
    taken = _taken(instruction, context, size)
    context.note_shared(size)
    here = context.instruction

    def step(machine: Machine) -> None:
        lanes = machine.lanes
        count = size if taken is None else np.broadcast_to(taken(machine), machine.threads)[lanes]
        each: Any = np.array(np.broadcast_to(count, len(lanes)), np.int64)
        _Batch(machine, here, size, lanes, to(machine)[lanes], source(machine)[lanes], each).issue()

    return step


def _decode_commit(instruction: ptx.Parsed, context: Context) -> Step:
    return lambda machine: machine.part(Copies).pending.commit(machine.lanes)


def _decode_wait(instruction: ptx.Parsed, context: Context) -> Step:
    (count,) = instruction.operands
    if not isinstance(count, ptx.Immediate):
        raise unknown(instruction)
    keep = count.value
    return lambda machine: machine.part(Copies).pending.wait(machine.active, keep)


def _decode_wait_all(instruction: ptx.Parsed, context: Context) -> Step:
    def step(machine: Machine) -> None:
        pending = machine.part(Copies).pending
        pending.commit(machine.lanes)
        pending.wait(machine.active)

    return step


def _decode_arrive(instruction: ptx.Parsed, context: Context) -> Step:
    """Decode the arrival that happens when the thread's copies so far have arrived.

    Without `.noinc` the mbarrier expects one arrival more in this phase.
    """
    options = Options(instruction)
    options.ignore("async", "mbarrier", "arrive", "shared", "shared::cta", "b64")
    extra = not options.flag("noinc")
    options.done()
    address = offsets(context, instruction.operands[0], generic=is_generic(instruction))
    context.note_shared(8)
    here = context.instruction

    def step(machine: Machine) -> None:
        barriers, copies = machine.part(Mbarriers), machine.part(Copies)
        lanes = machine.lanes
        use = barriers.use(here, lanes, address(machine)[lanes])
        if extra:
            barriers.expect_arrivals(use)

        def arrive(rows: NDArray[np.intp]) -> None:
            copies.finish(use.lanes[rows], machine)
            barriers.arrive(use.rows(rows))

        barriers.later(use, arrive)

    return step


TABLE: Table = {
    "cp.async.ca": Opcode(_decode_copy, InstructionClass.COPY),
    "cp.async.cg": Opcode(_decode_copy, InstructionClass.COPY),
    "cp.async.commit_group": Opcode(_decode_commit, InstructionClass.COPY),
    "cp.async.wait_group": Opcode(_decode_wait, InstructionClass.SYNCHRONIZE),
    "cp.async.wait_all": Opcode(_decode_wait_all, InstructionClass.SYNCHRONIZE),
    "cp.async.mbarrier.arrive": Opcode(_decode_arrive, InstructionClass.SYNCHRONIZE),
}
