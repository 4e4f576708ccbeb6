"""What TMA's copies have in common: bytes on their way to shared memory, or out of it.

Into shared memory a copy reports to an mbarrier: the bytes arrive, and are counted there, when
somebody waits for that mbarrier; they are read from global memory then (LAZY) or at the issue
(EAGER). Out of shared memory copies are gathered in *bulk groups* by thread: shared memory counts
as being read until `wait_group.read`, and as read by the thread that waited from then on; global
memory is written by `wait_group` or at the kernel's end, the latest of the copies first (LAZY), or
at the issue (EAGER).

Everything is done in pieces of 16 bytes of shared memory, each with a thread whose block it is
moved to or from: the one that issued the copy, or (multicast) one of the other block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.cohort import Lanes, Mode
from tiledsl.targets.gpu.emulator.findings import Kind
from tiledsl.targets.gpu.emulator.pending import Pending
from tiledsl.targets.gpu.emulator.program import Instruction
from tiledsl.targets.nvptx.emulator.async_proxy import AsyncProxy
from tiledsl.targets.nvptx.emulator.clusters import Clusters
from tiledsl.targets.nvptx.emulator.mbarrier_state import BYTES, Mbarriers, Use, Visits

if TYPE_CHECKING:
    from tiledsl.targets.nvptx.emulator.machine import Machine

PIECE = 16
Pieces = NDArray[np.uint32]
"""(pieces, 4): words of 16 bytes each."""


class Arrivals:
    """The copies into shared memory that have not arrived: a part of a machine.

    A block may not end before they have: its shared memory may be another's by then.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.under_way: list[Arrival] = []
        machine.afterwards.append(self._end)

    def _end(self) -> None:
        message = "the block may end before its copy has arrived: nobody waits for the mbarrier"
        for one in self.under_way:
            self._machine.cohort.report(Kind.MISSING_WAIT, one.instruction, message, one.lane)


@dataclass(eq=False)
class Arrival:
    """One copy into the shared memory of one block.

    Attributes:
        machine: Whose.
        instruction: What issued it.
        lane: The thread that did.
        block: The block that it goes to.
        offsets: Where each piece goes.
        mbarrier: The offset of the mbarrier, in that block.
        fetch: Reads the pieces; called once.
        count: Bytes that the mbarrier is told of.
    """

    machine: Machine
    instruction: Instruction
    lane: int
    block: int
    offsets: NDArray[np.int64]
    mbarrier: int
    fetch: Callable[[], Pieces]
    count: int

    def issue(self) -> None:
        """Begin the copy."""
        machine, barriers = self.machine, self.machine.part(Mbarriers)
        access = machine.access(self.instruction, self._stand_ins())
        warp = int(machine.cohort.warp_of[self.lane])
        granules = machine.shared.begin_copy(access, self.offsets, PIECE, warp)
        seen = machine.clocks.seen[warp].copy()
        eager = machine.cohort.mode is Mode.EAGER
        values = self.fetch() if eager else None
        use = self._use()
        known = machine.access(self.instruction, use.lanes)
        stand_in = machine.part(Clusters).stand_in(use.block)
        machine.part(AsyncProxy).check_bytes(known, stand_in, use.offset, BYTES)
        if int(machine.cohort.block_of[self.lane]) != self.block:
            machine.part(Visits).note(use)

        under_way = machine.part(Arrivals).under_way
        under_way.append(self)

        def arrive(rows: NDArray[np.intp]) -> None:
            under_way.remove(self)
            found = self.fetch() if values is None else values
            machine.shared.end_copy(access, granules, self.offsets, found, 4, warp)
            machine.part(AsyncProxy).written(granules)
            barriers.gather_copy((self.block, self.mbarrier), warp, seen)
            barriers.complete_bytes(use, np.array([self.count]))

        barriers.later(use, arrive)

    def _stand_ins(self) -> Lanes:
        """Return a thread of the block for each piece."""
        own = int(self.machine.cohort.block_of[self.lane])
        other = self.block * self.machine.cohort.threads
        return np.full(len(self.offsets), self.lane if own == self.block else other)

    def _use(self) -> Use:
        warp = self.machine.cohort.warp_of[self.lane]
        return Use(
            self.instruction,
            np.array([self.lane]),
            np.array([self.block]),
            np.array([self.mbarrier]),
            np.array([warp]),
        )


class BulkGroups:
    """The copies out of shared memory of a machine's threads: a part of it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._reads = Pending(machine.threads)
        self._writes = Pending(machine.threads)
        self._unread: list[tuple[Instruction, int]] = []
        self._landing: list[Callable[[], None]] = []
        """The writes that a wait waits for."""
        machine.afterwards.append(self._end)

    def issue(
        self,
        instruction: Instruction,
        lane: int,
        offsets: NDArray[np.int64],
        write: Callable[[Pieces], None],
    ) -> None:
        """Begin a copy of pieces out of the shared memory of a thread's block.

        Args:
            instruction: What issues it.
            lane: The thread.
            offsets: Where the pieces are.
            write: Writes them where they go; called once.
        """
        machine, shared = self._machine, self._machine.shared
        lanes = np.full(len(offsets), lane)
        access = machine.access(instruction, lanes)
        granules = shared.begin_read(access, offsets, PIECE)
        machine.part(AsyncProxy).check(access, granules)
        inside = (offsets >= 0) & (offsets <= shared.size - PIECE)
        unread = instruction, lane
        self._unread.append(unread)

        def read() -> Pieces:
            pieces: Any = shared.peek(lanes, np.where(inside, offsets, 0), 4, 4)
            pieces[~inside] = 0
            return pieces

        eager = machine.cohort.mode is Mode.EAGER
        taken: list[Pieces] = []
        if eager:
            write(read())

        def end_read(ready: NDArray[np.bool_]) -> None:
            shared.end_read(instruction, machine.cohort.warp_of[lanes], granules)
            self._unread.remove(unread)
            if not eager:
                taken.append(read())

        def end_write(ready: NDArray[np.bool_]) -> None:
            if not eager:
                self._landing.append(lambda: write(taken[0]))

        self._reads.issue(np.array([lane]), end_read, advance=False)
        self._writes.issue(np.array([lane]), end_write, advance=False)

    def commit(self, lanes: Lanes) -> None:
        """Close the groups of some threads."""
        self._reads.commit(lanes)
        self._writes.commit(lanes)

    def wait(self, mask: NDArray[np.bool_], keep: int, *, reads_only: bool) -> None:
        """Wait for all but the youngest `keep` groups, or until they have read their source."""
        self._reads.wait(mask, keep)
        if not reads_only:
            self._writes.wait(mask, keep)
            self._land()

    def _land(self) -> None:
        """Write what was waited for, the latest first: copies in flight have no order."""
        for write in reversed(self._landing):
            write()
        self._landing.clear()

    def _end(self) -> None:
        """Finish what nobody waited for: a fault, where shared memory was still being read."""
        machine = self._machine
        message = "the thread ended before its copy had read shared memory: no wait_group.read"
        for instruction, lane in self._unread:
            machine.cohort.report(Kind.MISSING_WAIT, instruction, message, lane)
        every = np.ones(machine.threads, np.bool_)
        self._reads.wait(every, -1)
        self._writes.wait(every, -1)
        self._land()
