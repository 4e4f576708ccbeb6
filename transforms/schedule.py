"""Plan a software pipeline: which loads of a loop run ahead, with what, how far, into what slots.

A loop that loads, then computes, waits for memory in every trip. The pipelined loop issues the
loads of a later trip first. What they need must run ahead with them: the ops that compute their
addresses and masks, and the values that those carry from trip to trip, as a pointer that advances.
That is their *slice*. Everything else stays in its trip.

No MLIR here. A `Loop` says what each op reads; `plan` decides; `Copies` and `Registers` say where
the data of a trip lies until it is used, for any number of trips, and can be simulated. Both go

    prologue:   issue trips 0, ..., ahead - 1              (those that exist)
    trip i:     have the data of trip i; issue trip i + ahead (if it exists); compute trip i
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar


class Role(Enum):
    """What an op is to a schedule."""

    CHEAP = "cheap"
    """No effects and little work: may run ahead."""
    LOAD = "load"
    """Reads memory that the loop does not write: may run ahead, under a predicate."""
    FIXED = "fixed"
    """Has effects, or does the work that the pipeline is to overlap: stays in its trip."""


@dataclass(frozen=True)
class LoopOp:
    """An op of a loop's body.

    Attributes:
        role: What it is to the schedule.
        reads: Numbers of the ops of the body whose results it reads.
        carried: Numbers of the carried values that it reads, as they are at the trip's beginning.
    """

    role: Role
    reads: tuple[int, ...] = ()
    carried: tuple[int, ...] = ()


@dataclass(frozen=True)
class Loop:
    """A loop's body in order, and what it carries.

    Attributes:
        ops: The ops.
        yields: By carried value, what it is in the next trip: `("op", n)`, `("carried", n)`, or
            None for a value from outside the loop.
    """

    ops: tuple[LoopOp, ...]
    yields: tuple[tuple[str, int] | None, ...] = ()


@dataclass(frozen=True)
class Slice:
    """What must run ahead for some ops to run ahead.

    Attributes:
        ops: Numbers of the ops, in order, without the ops asked for.
        carried: Numbers of the carried values, in order.
    """

    ops: tuple[int, ...] = ()
    carried: tuple[int, ...] = ()

    def joined(self, other: Slice) -> Slice:
        """Return what both need."""
        return Slice(
            tuple(sorted({*self.ops, *other.ops})),
            tuple(sorted({*self.carried, *other.carried})),
        )


Source = tuple[str, int]


def _sources(loop: Loop, value: Source) -> list[Source]:
    """Return what a value is computed from, in this trip or the one before."""
    kind, number = value
    if kind == "carried":
        source = loop.yields[number]
        return [] if source is None else [source]
    op = loop.ops[number]
    return [("op", read) for read in op.reads] + [("carried", read) for read in op.carried]


def slice_of(loop: Loop, op: int) -> Slice | None:
    """Return what must run ahead for `op` to do so, None if something of it cannot.

    The slice holds `op` itself only if it needs its own results of earlier trips.
    """
    needed: set[Source] = set()
    work = [("op", op)]
    while work:
        value = work.pop()
        if value[0] == "op" and loop.ops[value[1]].role is Role.FIXED:
            return None
        fresh = [source for source in _sources(loop, value) if source not in needed]
        needed.update(fresh)
        work += fresh
    ops = sorted(number for kind, number in needed if kind == "op")
    carried = sorted(number for kind, number in needed if kind == "carried")
    return Slice(tuple(ops), tuple(carried))


@dataclass(frozen=True)
class Plan:
    """What runs ahead, together.

    Attributes:
        loads: Numbers of the loads whose data is kept for the trip that uses it, in order.
        slice: What runs ahead with them.
    """

    loads: tuple[int, ...]
    slice: Slice


def plan(loop: Loop, wanted: Sequence[int]) -> Plan | None:
    """Return how to run as many of the `wanted` loads ahead as can, None if none can."""
    loads: list[int] = []
    whole = Slice()
    for op in sorted(wanted):
        found = slice_of(loop, op) if loop.ops[op].role is Role.LOAD else None
        if found is not None:
            loads.append(op)
            whole = whole.joined(found)
    return Plan(tuple(loads), whole) if loads else None


@dataclass(frozen=True)
class Event:
    """Something that a pipelined loop does.

    Attributes:
        kind: "issue" (loads or a group of copies), "wait" (for copies), "store" (what is first in
            the queue of loads, to a slot), "read" (a slot), or "take" (what is first in the queue).
        trip: For which trip.
        slot: To or from which slot.
        real: Whether the trip exists; an issue for one that does not touches no global memory.
        pending: Groups that may be unfinished after a wait.
    """

    kind: str
    trip: int
    slot: int = 0
    real: bool = True
    pending: int = 0


@dataclass(frozen=True)
class Copies:
    """Data on its way through slots of shared memory, by asynchronous copies.

    A trip's copies are one group, so that waiting until `pending` groups are unfinished waits for
    the trip that is about to compute.

    Attributes:
        ahead: Trips between the issue of a copy and its use.
        lag: Trips for which data is still being read after its own: products in flight.
    """

    ahead: int
    lag: int = 0

    @property
    def slots(self) -> int:
        """Slots of a buffer: one for each trip in flight, and those that are read."""
        return self.ahead + 1 + self.lag

    @property
    def pending(self) -> int:
        """Groups that may be unfinished when a trip begins to compute."""
        return self.ahead - 1

    @property
    def first_written(self) -> int:
        """The slot that trip 0 issues to; it reads slot 0, and both go round."""
        return self.ahead

    def events(self, trips: int) -> Iterator[Event]:
        """Yield what happens, in order, for a number of trips."""
        for trip in range(self.ahead):
            yield Event("issue", trip, trip, trip < trips)
        read, written = 0, self.first_written
        for trip in range(trips):
            yield Event("wait", trip, pending=self.pending)
            yield Event("issue", trip + self.ahead, written, trip + self.ahead < trips)
            yield Event("read", trip, read)
            read, written = following(read, self.slots), following(written, self.slots)
        yield Event("wait", trips, pending=0)


def following(slot: int, slots: int) -> int:
    """Return the slot after `slot`, going round."""
    return 0 if slot + 1 == slots else slot + 1


@dataclass(frozen=True)
class Registers:
    """Data on its way in registers, and through a slot of shared memory if threads exchange it.

    A loop carries what it loaded for later trips. Where data is exchanged, that of the next trip
    is stored at the end of a trip, into the slot that every warp has read by then. A second slot
    would save the barrier for that, at the cost of as many programs again that share the memory:
    their arithmetic hides more than a barrier.

    Attributes:
        ahead: Trips between a load and its use.
        exchanged: Whether data goes through shared memory.
    """

    ahead: int
    exchanged: bool

    slots: ClassVar[int] = 1

    @property
    def held(self) -> int:
        """How many trips' data the loop carries."""
        return self.ahead - 1 if self.exchanged else self.ahead

    @property
    def first_written(self) -> int:
        """The slot that trip 0 stores to."""
        return 0

    def events(self, trips: int) -> Iterator[Event]:
        """Yield what happens, in order, for a number of trips."""
        for trip in range(self.ahead):
            yield Event("issue", trip, real=trip < trips)
            if self.exchanged and trip == 0:
                yield Event("store", 0, 0)
        read, written = 0, self.first_written
        for trip in range(trips):
            yield Event("read", trip, read) if self.exchanged else Event("take", trip)
            yield Event("issue", trip + self.ahead, real=trip + self.ahead < trips)
            if self.exchanged:
                yield Event("store", trip + 1, written)
            read, written = following(read, self.slots), following(written, self.slots)
