"""Races on global memory: two warps of a launch at one place, one writing, and nothing orders them.

Within a block or a cluster barriers order them, which the clocks know. Between programs nothing
does, save a release and an acquire after it in a kernel that has atomics (`releases`). There, an
access that goes past the caches of its own accord (`Instruction.strong`) needs none, and nobody
asks whether other programs have read what is written.

Who wrote and who read a place last in this launch is kept by *grain*, the smallest alignment that
accesses to that allocation have had, and only for allocations that the kernel stores to: reads from
before the first store are remembered and worked in then, the latest `_KEPT` of them.

A write of the value that is there already is no race: programs may all store one flag. Atomics are
no plain accesses and are not looked at. Two lanes that store different values to one element in one
instruction are a race, too.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.findings import Kind, by_instruction
from tiledsl.targets.gpu.emulator.releases import Releases
from tiledsl.targets.gpu.emulator.words import Words

if TYPE_CHECKING:
    from tiledsl.targets.gpu.emulator.cohort import Access, Cohort
    from tiledsl.targets.gpu.emulator.program import Instruction

Offsets = NDArray[np.int64]
Ids = NDArray[np.uint32]
Mask = NDArray[np.bool_]

_KEPT = 64
_RENEW = 1 << 31
"""Numbers of warps begin again at 0 (and what is kept is forgotten) when they come this far."""


@dataclass
class _Touch:
    """An access, of each lane; reads from before the first store are kept."""

    warp: Ids
    time: NDArray[np.uint32]
    offset: Offsets
    width: int
    by: int


@dataclass(frozen=True)
class Race:
    """What an access is not ordered after.

    Attributes:
        lanes: Which lanes race.
        warp: For each lane that does, the number in the launch of a warp whose access it races
            with; of others, anything.
        by: The index of the instruction that made that access.
    """

    lanes: Mask
    warp: NDArray[np.int64]
    by: NDArray[np.int64]


class _Marks:
    """Which warp was at each grain last, its time then, and with which instruction it was there."""

    def __init__(self, grains: int) -> None:
        self.warp = _shared(grains)
        self.time = _shared(grains)
        self.by = _shared(grains)

    def refine(self, factor: int, grains: int) -> None:
        """Let each grain be `factor` ones."""
        for name in ("warp", "time", "by"):
            old: Words = getattr(self, name)
            new = _shared(grains)
            values = old.of[4].repeat(factor)[:grains]
            new.of[4][: len(values)] = values
            setattr(self, name, new)


@dataclass
class _Shadow:
    """What is known of one allocation in the launch that is numbered `launch`."""

    size: int
    launch: int
    grain: int = 16
    writes: _Marks | None = None
    reads: _Marks | None = None
    before: deque[_Touch] = field(default_factory=lambda: deque[_Touch](maxlen=_KEPT))


def _shared(grains: int) -> Words:
    """Return 4 zero bytes a grain, shared with processes forked later."""
    size = -(-4 * max(grains, 1) // 16) * 16
    return Words(np.frombuffer(mmap.mmap(-1, size), np.uint8))


class GlobalRaces:
    """The accesses of the launch under way, by allocation."""

    def __init__(self) -> None:
        self._launch = 0
        # Marks begin as 0, which must be nobody's, also where no launch was begun.
        self._base = 1
        self._next = 1
        self._shadows: dict[int, _Shadow] = {}
        self.instructions: Sequence[Instruction] = ()
        """Those of the kernel."""
        self.releases = Releases()
        """What orders programs."""

    def begin(self, warps: int, instructions: Sequence[Instruction] = ()) -> None:
        """Begin a launch of so many warps; no access from before counts any more."""
        self.instructions = instructions
        if self._next + warps >= _RENEW:
            self._shadows = {}
            self._next = 1
        self._launch += 1
        self.releases.begin(warps)
        self._base, self._next = self._next, self._next + warps

    def forget(self, low: int) -> None:
        """Drop what is known of an allocation."""
        self._shadows.pop(low, None)

    def read(self, access: Access, low: int, size: int, offset: Offsets, width: int) -> Race | None:
        """Note a read of an allocation; returns how it races with a write, None if not."""
        cohort = access.cohort
        if cohort.clocks is None:
            return None
        shadow = self._shadow(low, size)
        warp, time = self._ids(cohort, access)
        if shadow.writes is None:
            shadow.before.append(_Touch(warp, time, offset, width, access.instruction.index))
            return None
        self._fit(shadow, offset, width)
        lenient = cohort.atomic and access.instruction.strong
        race = self._unordered(cohort, access, shadow, shadow.writes, warp, offset, width, lenient)
        if shadow.reads is not None:
            by = access.instruction.index
            _mark(shadow.reads, shadow.grain, _Touch(warp, time, offset, width, by))
        return race

    def write(
        self,
        access: Access,
        low: int,
        size: int,
        offset: Offsets,
        width: int,
        changes: Callable[[], Mask],
    ) -> tuple[Race | None, Race | None]:
        """Note a write to an allocation.

        Args:
            access: The access.
            low: The allocation's address.
            size: Its bytes.
            offset: Each lane's first byte in it.
            width: Bytes a lane.
            changes: Says which lanes write something else than is there.

        Returns:
            How it races with a write, and how with a read; None if not.
        """
        cohort = access.cohort
        if cohort.clocks is None:
            return None, None
        shadow = self._shadow(low, size)
        warp, time = self._ids(cohort, access)
        self._fit(shadow, offset, width)
        if shadow.writes is None or shadow.reads is None:
            self._begin_marks(shadow)
        assert shadow.writes is not None
        assert shadow.reads is not None
        where = warp, offset, width
        lenient = cohort.atomic and access.instruction.strong
        after_write = self._unordered(cohort, access, shadow, shadow.writes, *where, lenient)
        after_read = self._unordered(cohort, access, shadow, shadow.reads, *where, cohort.atomic)
        if after_write is not None or after_read is not None:
            changed = changes()
            after_write, after_read = _only(after_write, changed), _only(after_read, changed)
        by = access.instruction.index
        _mark(shadow.writes, shadow.grain, _Touch(warp, time, offset, width, by))
        return after_write, after_read

    # --- marks -----------------------------------------------------------------------------------

    def _ids(self, cohort: Cohort, access: Access) -> tuple[Ids, NDArray[np.uint32]]:
        assert cohort.clocks is not None
        warp = cohort.warp_of[access.lanes]
        return cohort.launch_warp[warp] + np.uint32(self._base), cohort.clocks.now(warp)

    def _shadow(self, low: int, size: int) -> _Shadow:
        shadow = self._shadows.get(low)
        if shadow is None or shadow.size != size:
            shadow = self._shadows[low] = _Shadow(size, self._launch)
        elif shadow.launch != self._launch:
            shadow.launch = self._launch
            shadow.before.clear()
        return shadow

    def _begin_marks(self, shadow: _Shadow) -> None:
        for reads in shadow.before:
            self._fit(shadow, reads.offset, reads.width)
        grains = -(-shadow.size // shadow.grain)
        shadow.writes, shadow.reads = _Marks(grains), _Marks(grains)
        for reads in shadow.before:
            _mark(shadow.reads, shadow.grain, reads)
        shadow.before.clear()

    def _fit(self, shadow: _Shadow, offset: Offsets, width: int) -> None:
        """Make grains so small that the access consists of whole ones."""
        bits = width | shadow.grain
        if len(offset):
            bits |= int(np.bitwise_or.reduce(offset))
        grain = bits & -bits
        if grain < shadow.grain:
            for marks in (shadow.writes, shadow.reads):
                if marks is not None:
                    marks.refine(shadow.grain // grain, -(-shadow.size // grain))
            shadow.grain = grain

    def _unordered(
        self,
        cohort: Cohort,
        access: Access,
        shadow: _Shadow,
        marks: _Marks,
        warp: Ids,
        offset: Offsets,
        width: int,
        lenient: bool,
    ) -> Race | None:
        """Find the lanes that touch a grain which another warp was at without an order.

        If `lenient`, programs need no order.
        """
        place, count = offset // shadow.grain * 4, width // shadow.grain
        last = marks.warp.gather(place, 4, count).reshape(len(place), count)
        others = (last >= self._base) & (last != warp[:, None])
        if not others.any():
            return None
        assert cohort.clocks is not None
        lanes = np.flatnonzero(np.logical_or.reduce(others, 1))
        number = last[lanes].astype(np.int64) - self._base
        own = cohort.warp_of[access.lanes[lanes]]
        who = cohort.flat_warp(number)
        group = cohort.clocks.group
        same = (who >= 0) & (who // group == own[:, None] // group)
        time = marks.time.gather(place[lanes], 4, count).reshape(len(lanes), count)
        unseen = time > cohort.clocks.seen[own[:, None], who % group]
        if lenient:
            between: Any = False
        elif cohort.atomic and not same.all():
            between = ~self.releases.ordered(cohort, np.maximum(number, 0), time, own)
        else:
            between = not cohort.atomic
        race = others[lanes] & np.where(same, unseen, between)
        found = np.zeros(len(place), np.bool_)
        found[lanes] = np.logical_or.reduce(race, 1)
        if not found.any():
            return None
        by = marks.by.gather(place[lanes], 4, count).reshape(len(lanes), count)
        first = np.arange(len(lanes)), race.argmax(1)
        other, instruction = (np.zeros(len(place), np.int64) for _ in range(2))
        other[lanes], instruction[lanes] = number[first], by[first]
        return Race(found, other, instruction)


def _only(race: Race | None, lanes: Mask) -> Race | None:
    """Return a race without the lanes that are not in a mask."""
    if race is None or not (race.lanes & lanes).any():
        return None
    return replace(race, lanes=race.lanes & lanes)


def _mark(marks: _Marks, grain: int, one: _Touch) -> None:
    place, count = one.offset // grain * 4, one.width // grain
    by = np.full(len(one.warp), one.by, np.uint32)
    for words, values in ((marks.warp, one.warp), (marks.time, one.time), (marks.by, by)):
        wide: Any = values
        if count > 1:
            wide = np.broadcast_to(values[:, None], (len(values), count))
        words.scatter(place, wide, 4, count)


def report_race(
    access: Access,
    race: Race,
    verbs: tuple[str, str],
    element: Callable[[int], str],
    instructions: Sequence[Instruction],
) -> None:
    """File a race.

    Args:
        access: The access.
        race: What it is not ordered after.
        verbs: What it does ("read", "write") and what the other one did.
        element: Says of a lane which element it is.
        instructions: The kernel's, if they are known.
    """
    cohort = access.cohort

    def other(at: int) -> Instruction | None:
        index = int(race.by[at])
        return instructions[index] if index < len(instructions) else None

    def message(at: int) -> str:
        block, warp = divmod(int(race.warp[at]), cohort.warps)
        own = cohort.warp_of[access.lanes[at]]
        mine = int(cohort.launch_warp[own])
        program = "this program" if mine // cohort.warps == block else f"program {_at(block)}"
        return (
            f"{verbs[0]} of {element(at)} by warp {mine % cohort.warps}: nothing orders it after "
            f"the {verbs[1]} by warp {warp} of {program}{by_instruction(other(at))}"
        )

    def _at(block: int) -> tuple[int, int, int]:
        x, y, _ = cohort.grid
        return block % x, block // x % y, block // (x * y)

    access.report(Kind.RACE, race.lanes, message, other)


def report_lost(
    access: Access, lanes: Mask, position: Offsets, width: int, element: Callable[[int], str]
) -> None:
    """File that lanes, at positions, stored other values to one element than a later lane did."""
    cohort = access.cohort

    def message(at: int) -> str:
        there = np.abs(position - position[at]) < width
        there[: at + 1] = False
        last = access.lanes[np.flatnonzero(there)[-1]] if there.any() else None
        by = "another thread" if last is None else f"thread {int(last) % cohort.threads}"
        if last is not None and cohort.block_of[last] != cohort.block_of[access.lanes[at]]:
            x, y, z = (int(one) for one in cohort.programs[cohort.block_of[last]])
            by += f" of program {(x, y, z)}"
        return f"write of {element(at)}, where {by} stores another value by the same instruction"

    access.report(Kind.RACE, lanes, message)
