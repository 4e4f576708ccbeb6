"""mbarrier instructions: see `mbarrier_state` for what they do.

A `try_wait` whose phase is not over parks its threads. Hardware lets them go on after a while with
"not yet"; here that happens when nothing else can run, once for each thread until something happens
to some mbarrier again: so a kernel that looks ahead goes on, and one that waits for what never
comes is found deadlocked. A `test_wait` answers at once, but not for ever: after many answers
without anything happening it parks, too.

In LAZY mode a thread's first question about a phase is always answered with "not yet", as if the
phase ended a moment later: a kernel that goes on whatever the answer then is not ordered behind it.

Source: PTX ISA 9.7.13.15.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.cohort import Mask, Mode
from tiledsl.targets.gpu.emulator.program import End, Instruction, InstructionClass, Step
from tiledsl.targets.nvptx.emulator import text as ptx
from tiledsl.targets.nvptx.emulator.mbarrier_state import BYTES, Mbarriers, Use
from tiledsl.targets.nvptx.emulator.memory import take_orders
from tiledsl.targets.nvptx.emulator.opcodes import Ending, Opcode, Options, Place, Table
from tiledsl.targets.nvptx.emulator.operands import Context, Reader, Scatter, Values
from tiledsl.targets.nvptx.emulator.shared_access import Offsets, is_generic, offsets

if TYPE_CHECKING:
    from tiledsl.targets.nvptx.emulator.machine import Machine

_SPACES = ("shared", "shared::cta", "shared::cluster")
_LOOKS = 1000
"""Answers "not yet" of `test_wait` to one thread between two events."""


class _Operand:
    """The mbarrier that an instruction names, and a number beside it."""

    def __init__(self, instruction: ptx.Parsed, context: Context, address: ptx.Operand) -> None:
        self._address: Callable[[Machine], Offsets] = offsets(
            context, address, generic=is_generic(instruction)
        )
        self.instruction: Instruction = context.instruction
        context.note_shared(BYTES)

    def use(self, machine: Machine) -> Use:
        """Return the active threads' use of it."""
        lanes = machine.lanes
        return machine.part(Mbarriers).use(self.instruction, lanes, self.offset(machine))

    def offset(self, machine: Machine) -> NDArray[np.int64]:
        """Return each active thread's address."""
        return self._address(machine)[machine.lanes]


def _numbers(machine: Machine, read: Reader) -> NDArray[np.int64]:
    """Return a number for each active thread."""
    values: Any = np.broadcast_to(read(machine), machine.threads)[machine.lanes]
    return values.astype(np.int64)


def _finish(instruction: ptx.Parsed, *names: str) -> set[str]:
    """Require that nothing but some names and what every form has was said; returns which."""
    options = Options(instruction)
    said = set(instruction.modifiers)
    options.ignore(*names, *_SPACES, "b64")
    take_orders(options)
    options.done()
    return said


def _decode_initialize(instruction: ptx.Parsed, context: Context) -> Step:
    _finish(instruction, "init")
    address, count = instruction.operands
    where, read = _Operand(instruction, context, address), context.read(count, "u32")

    def step(machine: Machine) -> None:
        machine.part(Mbarriers).initialize(
            where.instruction, machine.lanes, where.offset(machine), _numbers(machine, read)
        )

    return step


def _decode_invalidate(instruction: ptx.Parsed, context: Context) -> Step:
    _finish(instruction, "inval")
    where = _Operand(instruction, context, instruction.operands[0])

    def step(machine: Machine) -> None:
        barriers = machine.part(Mbarriers)
        barriers.invalidate(where.instruction, machine.lanes, where.offset(machine))

    return step


def _decode_bytes(instruction: ptx.Parsed, context: Context) -> Step:
    said = _finish(instruction, "expect_tx", "complete_tx")
    address, count = instruction.operands
    where, read = _Operand(instruction, context, address), context.read(count, "u32")
    expects = "expect_tx" in said

    def step(machine: Machine) -> None:
        barriers, use = machine.part(Mbarriers), where.use(machine)
        change = barriers.expect_bytes if expects else barriers.complete_bytes
        change(use, _numbers(machine, read))

    return step


def _decode_arrive(instruction: ptx.Parsed, context: Context) -> Step:
    said = _finish(instruction, "arrive", "arrive_drop", "expect_tx", "noComplete")
    target, address, *given = instruction.operands
    where, state = _Operand(instruction, context, address), context.scatter(target, "b64")
    read = context.read(given[0], "u32") if given else None
    transaction, drop = "expect_tx" in said, "arrive_drop" in said
    release, complete = "relaxed" not in said, "noComplete" not in said

    def step(machine: Machine) -> None:
        barriers, use = machine.part(Mbarriers), where.use(machine)
        number = None if read is None else _numbers(machine, read)
        if transaction and number is not None:
            barriers.expect_bytes(use, number)
            number = None
        states = barriers.arrive(use, number, drop=drop, release=release, complete=complete)
        state(machine, machine.lanes, states)

    return step


def _decode_count(instruction: ptx.Parsed, context: Context) -> Step:
    _finish(instruction, "pending_count")
    target, state = instruction.operands

    def count(states: Values) -> Values:
        return (states & np.uint64(0xFFFFFFFF)).astype(np.uint32)

    return context.compute(target, "u32", count, [(state, "b64")])


# --- waiting -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Question:
    """What a wait instruction asks.

    Attributes:
        where: The mbarrier.
        phase: Reads the phase's state or its parity.
        parity: Which of the two it is.
        acquire: Whether threads learn what was released.
        answer: Writes the predicate.
        looks: How often it may say "not yet" to a thread between two events.
        parks: Whether the first such answer takes until nothing else can run.
    """

    where: _Operand
    phase: Reader
    parity: bool
    acquire: bool
    answer: Scatter
    looks: int
    parks: bool

    def subject(self, machine: Machine) -> NDArray[np.int64]:
        """Return a number for what each active thread asks: which mbarrier, which phase."""
        return (_numbers(machine, self.phase) << 20) + self.where.offset(machine)

    def over(self, machine: Machine) -> Mask:
        """Return, of the active threads, for which the phase is over."""
        wanted = _numbers(machine, self.phase)
        if not self.parity:
            wanted >>= 32
        use = self.where.use(machine)
        found = machine.part(Mbarriers).over(use, wanted, parity=self.parity, acquire=self.acquire)
        mask = np.zeros(machine.threads, np.bool_)
        mask[machine.lanes[found]] = True
        return mask


class Answers:
    """How often each thread was told "not yet" since anything happened: a part of a machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._since = np.full(machine.threads, -1, np.int64)
        self._count = np.zeros(machine.threads, np.int64)
        self.due: Mask = np.zeros(machine.threads, np.bool_)
        """Who waited in vain and goes on with "not yet"."""
        self._asked: dict[int, Mask] = {}
        """By subject, who has asked for the first time and was not told the end since."""

    def first(self, subject: NDArray[np.int64]) -> Mask:
        """Return which of the active threads ask about a subject for the first time."""
        lanes = self._machine.lanes
        first = np.zeros(self._machine.threads, np.bool_)
        for one in np.unique(subject):
            some = lanes[subject == one]
            asked = self._asked.setdefault(int(one), np.zeros_like(first))
            first[some[~asked[some]]] = True
            asked[some] = True
        return first

    def forget(self, subject: NDArray[np.int64], ended: Mask) -> None:
        """Begin anew for those of the active threads that are told the end of what they asked."""
        lanes = self._machine.lanes
        over = ended[lanes]
        for one in np.unique(subject[over]):
            if (asked := self._asked.get(int(one))) is not None:
                asked[lanes[over & (subject == one)]] = False

    def may(self, mask: Mask, looks: int) -> Mask:
        """Return which threads may be told so."""
        now = self._machine.part(Mbarriers).events
        return mask & ((self._since != now) | (self._count < looks))

    def tell(self, mask: Mask) -> None:
        """Count an answer."""
        now = self._machine.part(Mbarriers).events
        self._count[mask] = np.where(self._since[mask] == now, self._count[mask], 0) + 1
        self._since[mask] = now
        self.due &= ~mask


class _Phase:
    """A `scheduler.Wait` for the end of a phase, or for nothing else being able to run."""

    def __init__(self, machine: Machine, question: _Question) -> None:
        self._machine = machine
        self._question = question

    def ready(self, mask: Mask) -> Mask:
        """Return whose phase is over, and who has waited long enough."""
        machine = self._machine
        over = machine.narrowed(mask, self._question.over)
        if machine.scheduler.alone and not over.any():
            answers = machine.part(Answers)
            tired = answers.may(mask, self._question.looks)
            answers.due |= tired
            return tired
        return over

    def describe(self, mask: Mask) -> str:
        """Say which mbarrier it is."""
        machine = self._machine
        byte = machine.narrowed(mask, self._question.where.offset)[0]
        return f"the mbarrier at byte {byte} of shared memory"


def _decode_wait(instruction: ptx.Parsed, context: Context) -> Ending:
    said = _finish(instruction, "test_wait", "try_wait", "parity")
    target, address, phase, *hint = instruction.operands
    parity, tries = "parity" in said, "try_wait" in said
    for each in hint:
        context.read(each, "u32")
    question = _Question(
        _Operand(instruction, context, address),
        context.read(phase, "u32" if parity else "b64"),
        parity,
        "relaxed" not in said,
        context.scatter(target, "pred"),
        1 if tries else _LOOKS,
        tries,
    )

    def build(place: Place) -> End:
        return lambda machine: _ask(machine, question, place)

    return Ending(build, alone=True)


def _ask(machine: Machine, question: _Question, place: Place) -> int | None:
    """Answer who asks; in LAZY mode those who ask for the first time with "not yet"."""
    if machine.cohort.mode is not Mode.LAZY:
        return _answer(machine, question, place)
    first = machine.part(Answers).first(question.subject(machine))
    if not first.any():
        return _answer(machine, question, place)
    lanes = np.flatnonzero(first)
    question.answer(machine, lanes, np.zeros(len(lanes), np.bool_))
    again = machine.active & ~first
    if not again.any():
        return place.following
    machine.scheduler.go(first, place.following)
    following = machine.narrowed(again, lambda inner: _answer(inner, question, place))
    if following is not None:
        machine.scheduler.go(again, following)
    return None


def _answer(machine: Machine, question: _Question, place: Place) -> int | None:
    """Answer who can be answered; the others wait here and ask again."""
    over = question.over(machine)
    not_yet = machine.active & ~over
    answers = machine.part(Answers)
    answers.forget(question.subject(machine), over)
    told = not_yet & answers.due if question.parks else answers.may(not_yet, question.looks)
    if told.any():
        answers.tell(told)
    for mask, value in ((over, True), (told, False)):
        lanes = np.flatnonzero(mask)
        question.answer(machine, lanes, np.full(len(lanes), value))
    waiting = not_yet & ~told
    if not waiting.any():
        return place.following
    gone = over | told
    if gone.any():
        machine.scheduler.go(gone, place.following)
    machine.scheduler.park(waiting, place.block, _Phase(machine, question), place.block)
    return None


TABLE: Table = {
    "mbarrier.init": Opcode(_decode_initialize, InstructionClass.SYNCHRONIZE),
    "mbarrier.inval": Opcode(_decode_invalidate, InstructionClass.SYNCHRONIZE),
    "mbarrier.expect_tx": Opcode(_decode_bytes, InstructionClass.SYNCHRONIZE),
    "mbarrier.complete_tx": Opcode(_decode_bytes, InstructionClass.SYNCHRONIZE),
    "mbarrier.arrive": Opcode(_decode_arrive, InstructionClass.SYNCHRONIZE),
    "mbarrier.arrive_drop": Opcode(_decode_arrive, InstructionClass.SYNCHRONIZE),
    "mbarrier.pending_count": Opcode(_decode_count, InstructionClass.SYNCHRONIZE),
    "mbarrier.test_wait": Opcode(_decode_wait, InstructionClass.SYNCHRONIZE),
    "mbarrier.try_wait": Opcode(_decode_wait, InstructionClass.SYNCHRONIZE),
}
