"""The mbarriers of a cohort: arrivals, transactions, phases, and what is done only when awaited.

An mbarrier lies at an offset in a block's shared memory; its 8 bytes are opaque, so its state is
kept here, under (block, offset). A phase ends when as many arrivals as it expects have come and all
bytes that it expects have arrived. What the arriving warps did before is released to those that see
the phase end.

Asynchronous operations that report to an mbarrier (`later`) take effect when somebody first asks
whether the phase is over and it would not be without them: until then, nothing may touch what they
write. (In EAGER mode they have read their source by then.)

Using an offset where there is no mbarrier, or using one wrongly, is a finding; a wait there is
over.

Source: PTX ISA 9.7.13.15, "mbarrier".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.clocks import Clock
from tiledsl.targets.gpu.emulator.cohort import Access, Lanes, Mask
from tiledsl.targets.gpu.emulator.findings import Kind
from tiledsl.targets.gpu.emulator.program import Instruction
from tiledsl.targets.gpu.emulator.shared_memory import Granules
from tiledsl.targets.nvptx.emulator.clusters import Clusters

if TYPE_CHECKING:
    from tiledsl.targets.nvptx.emulator.machine import Machine

BYTES = 8
MOST = (1 << 20) - 1
"""The largest count of arrivals, and of bytes either way."""

Key = tuple[int, int]
"""(block, offset)."""
Later = Callable[[NDArray[np.intp]], None]
"""Lets an operation take effect for some rows of its use."""


@dataclass
class Mbarrier:
    """One mbarrier.

    Attributes:
        expected: Arrivals of each phase to come.
        pending: Arrivals that the current phase still expects.
        bytes: Bytes that it still expects.
        phase: How many phases are over.
        gathering: What arriving warps knew, (warps,).
        released: The same of phases that are over.
    """

    expected: int
    pending: int
    gathering: Clock
    released: Clock
    bytes: int = 0
    phase: int = 0


@dataclass
class Use:
    """Threads that do something to mbarriers in one instruction.

    Attributes:
        instruction: What does it.
        lanes: The threads.
        block: Whose shared memory it is.
        offset: Where in it.
        warp: The flat warp whose doing it is.
    """

    instruction: Instruction
    lanes: Lanes
    block: NDArray[np.intp]
    offset: NDArray[np.int64]
    warp: NDArray[np.intp]

    def rows(self, rows: NDArray[np.intp]) -> Use:
        """Return some of it."""
        return Use(
            self.instruction,
            self.lanes[rows],
            self.block[rows],
            self.offset[rows],
            self.warp[rows],
        )

    def by_key(self) -> Iterator[tuple[Key, NDArray[np.intp]]]:
        """Yield each mbarrier with the rows that use it."""
        keys = np.stack((self.block, self.offset))
        if len(self.lanes) == 1:
            yield (int(keys[0, 0]), int(keys[1, 0])), np.zeros(1, np.intp)
            return
        each, which = np.unique(keys, axis=1, return_inverse=True)
        for i, (block, offset) in enumerate(each.T):
            yield (int(block), int(offset)), np.flatnonzero(which == i)


class Visits:
    """What blocks do at mbarriers of others: those must be there by then, and until it is over.

    A block's shared memory is gone when its last thread has ended. So some thread of it must have
    learnt of each visit before.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._latest: dict[tuple[int, int], tuple[int, Instruction, int]] = {}
        """By block and visiting warp: the warp's time, what it did and which thread did it."""
        machine.afterwards.append(self._end)

    def note(self, use: Use) -> None:
        """Note a use of mbarriers of other blocks."""
        machine = self._machine
        stand_in = machine.part(Clusters).stand_in(use.block)
        machine.shared.visit(machine.access(use.instruction, stand_in), use.offset, BYTES, use.warp)
        times = machine.clocks.now(use.warp)
        for at, lane in enumerate(use.lanes.tolist()):
            key = int(use.block[at]), int(use.warp[at])
            self._latest[key] = int(times[at]), use.instruction, lane

    def _end(self) -> None:
        """Report visits that nobody in the block has learnt of."""
        clocks, cohort = self._machine.clocks, self._machine.cohort
        message = (
            "the block whose mbarrier this is may have ended by then: no barrier of the cluster"
        )
        for (block, warp), (time, instruction, lane) in self._latest.items():
            own = clocks.seen[block * clocks.warps : (block + 1) * clocks.warps]
            if int(own[:, clocks.rank[warp]].max()) < time:
                cohort.report(Kind.UNDEFINED, instruction, message, lane)


@dataclass
class _Deferred:
    """An operation that takes effect when it is waited for."""

    use: Use
    act: Later
    rows: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, np.intp))


class Mbarriers:
    """The mbarriers of a machine: a part of it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._known: dict[Key, Mbarrier] = {}
        self._deferred: dict[Key, list[_Deferred]] = defaultdict(list)
        self.events = 0
        """Changes whenever anything happens to any of them."""

    # --- who uses what ---------------------------------------------------------------------------

    def use(self, instruction: Instruction, lanes: Lanes, address: NDArray[np.int64]) -> Use:
        """Return a use of mbarriers by addresses in shared memory, `shared::cluster` ones too.

        It is checked as a read of the mbarrier's bytes: whoever initialized it must come before.
        """
        machine = self._machine
        clusters = machine.part(Clusters)
        block, offset = clusters.locate(lanes, address)
        use = Use(instruction, lanes, block, offset, machine.cohort.warp_of[lanes])
        own = machine.cohort.block_of[lanes] == block
        machine.shared.load(machine.access(instruction, lanes[own]), offset[own], BYTES)
        if not own.all():
            machine.part(Visits).note(use.rows(np.flatnonzero(~own)))
        return use

    def granules(self) -> Granules:
        """Return the granules of shared memory that they all lie in."""
        keys = np.array(list(self._known), np.int64).reshape(-1, 2)
        lanes = self._machine.part(Clusters).stand_in(keys[:, 0])
        return self._machine.shared.granules(lanes, keys[:, 1], BYTES)

    def report(self, use: Use, rows: NDArray[np.intp], message: str) -> None:
        """File a finding for some rows of a use."""
        bad = np.zeros(len(use.lanes), np.bool_)
        bad[rows] = True
        access = Access(self._machine.cohort, use.instruction, use.lanes)
        access.report(Kind.UNDEFINED, bad, lambda at: message)

    def _find(self, use: Use, key: Key, rows: NDArray[np.intp]) -> Mbarrier | None:
        found = self._known.get(key)
        if found is None:
            self.report(use, rows, f"there is no mbarrier at byte {key[1]} of shared memory")
        return found

    # --- what is done to them --------------------------------------------------------------------

    def initialize(
        self,
        instruction: Instruction,
        lanes: Lanes,
        offset: NDArray[np.int64],
        count: NDArray[np.int64],
    ) -> None:
        """Make mbarriers of the threads' own blocks."""
        use = self._overwrite(instruction, lanes, offset)
        self.events += 1
        for key, rows in use.by_key():
            wanted = int(count[rows[-1]])
            if key in self._known:
                self.report(use, rows, f"there is an mbarrier at byte {key[1]} already")
            if not 1 <= wanted <= MOST:
                self.report(use, rows, f"an mbarrier cannot expect {wanted} arrivals")
            nothing = np.zeros(self._machine.clocks.width, np.uint32)
            self._known[key] = Mbarrier(wanted, wanted, nothing, nothing.copy())

    def invalidate(self, instruction: Instruction, lanes: Lanes, offset: NDArray[np.int64]) -> None:
        """Unmake mbarriers."""
        use = self._overwrite(instruction, lanes, offset)
        for key, rows in use.by_key():
            if self._find(use, key, rows) is not None:
                del self._known[key]

    def _overwrite(self, instruction: Instruction, lanes: Lanes, offset: NDArray[np.int64]) -> Use:
        """Write the bytes of mbarriers of the threads' own blocks."""
        machine = self._machine
        access = machine.access(instruction, lanes)
        machine.shared.store(access, offset, np.zeros(len(lanes), np.uint64), BYTES)
        block, warp = machine.cohort.block_of[lanes], machine.cohort.warp_of[lanes]
        return Use(instruction, lanes, block, offset, warp)

    def arrive(
        self,
        use: Use,
        count: NDArray[np.int64] | None = None,
        *,
        drop: bool = False,
        release: bool = True,
        complete: bool = True,
    ) -> NDArray[np.uint64]:
        """Let threads arrive; returns the state that each sees.

        Args:
            use: Who arrives where.
            count: Arrivals of each thread; one where it is left out.
            drop: Whether later phases expect them no more.
            release: Whether what they did before is made known.
            complete: Whether the arrivals may end the phase.
        """
        states = np.zeros(len(use.lanes), np.uint64)
        self.events += 1
        for key, rows in use.by_key():
            found = self._find(use, key, rows)
            if found is None:
                continue
            if release:
                self.gather(key, use.warp[rows])
            for row in rows:
                states[row] = found.phase << 32 | found.pending
                number = 1 if count is None else int(count[row])
                if number > found.pending:
                    self.report(use, rows, f"{number} arrivals where {found.pending} are expected")
                found.pending = max(found.pending - number, 0)
                found.expected -= number if drop else 0
                if found.pending == 0 and found.bytes == 0:
                    if not complete:
                        self.report(use, rows, "an arrival with .noComplete completes the phase")
                    self._end_phase(found)
        return states

    def gather(self, key: Key, warps: NDArray[np.intp]) -> None:
        """Make known to those who wait what warps did so far."""
        found = self._known.get(key)
        if found is not None:
            clocks = self._machine.clocks.release(np.unique(warps))
            found.gathering = np.maximum(found.gathering, clocks.max(0))

    def gather_copy(self, key: Key, warp: int, seen: Clock) -> None:
        """Make known that a copy has arrived, and what its warp had seen of others when it began.

        Args:
            key: The mbarrier.
            warp: Who issued it; what that did until now is made known, too.
            seen: Its clock then.
        """
        found = self._known.get(key)
        if found is not None:
            clocks = self._machine.clocks
            known, own = seen.copy(), clocks.rank[warp]
            known[own] = clocks.release(np.array([warp]))[0, own]
            found.gathering = np.maximum(found.gathering, known)

    def expect_arrivals(self, use: Use) -> None:
        """Expect one arrival more in this phase for each thread."""
        for key, rows in use.by_key():
            found = self._find(use, key, rows)
            if found is not None:
                found.pending += len(rows)

    def expect_bytes(self, use: Use, count: NDArray[np.int64]) -> None:
        """Expect bytes in this phase."""
        self._add_bytes(use, count)

    def complete_bytes(self, use: Use, count: NDArray[np.int64]) -> None:
        """Count bytes that have arrived."""
        self._add_bytes(use, -count)

    def _add_bytes(self, use: Use, count: NDArray[np.int64]) -> None:
        self.events += 1
        for key, rows in use.by_key():
            found = self._find(use, key, rows)
            if found is None:
                continue
            found.bytes += int(count[rows].sum())
            if abs(found.bytes) > MOST:
                self.report(use, rows, f"an mbarrier cannot expect {found.bytes} bytes")
            if found.pending == 0 and found.bytes == 0:
                self._end_phase(found)

    @staticmethod
    def _end_phase(found: Mbarrier) -> None:
        found.phase += 1
        found.pending = found.expected
        found.released = np.maximum(found.released, found.gathering)

    # --- operations that report to them ----------------------------------------------------------

    def later(self, use: Use, act: Later) -> None:
        """Let an operation take effect when it is waited for.

        `act` is called with rows of `use`, once for each.
        """
        for key, some in use.by_key():
            self._deferred[key].append(_Deferred(use, act, some))

    def _settle(self, key: Key) -> None:
        """Let everything take effect that reports to one mbarrier."""
        for one in self._deferred.pop(key, []):
            one.act(one.rows)

    # --- waiting ---------------------------------------------------------------------------------

    def over(self, use: Use, wanted: NDArray[np.int64], *, parity: bool, acquire: bool) -> Mask:
        """Return for which threads the phase that they ask about is over.

        Args:
            use: Who asks.
            wanted: The phase's number, or its parity.
            parity: Which of the two it is.
            acquire: Whether they learn what was released.
        """
        over = np.ones(len(use.lanes), np.bool_)
        for key, rows in use.by_key():
            found = self._find(use, key, rows)
            if found is None:
                continue
            over[rows] = _passed(found, wanted[rows], parity)
            if key in self._deferred and not over[rows].all():
                self._settle(key)
                over[rows] = _passed(found, wanted[rows], parity)
            if acquire:
                warps = np.unique(use.warp[rows[over[rows]]])
                if len(warps):
                    known = np.broadcast_to(found.released, (len(warps), len(found.released)))
                    self._machine.clocks.acquire(warps, known)
        return over


def _passed(found: Mbarrier, wanted: NDArray[np.int64], parity: bool) -> Mask:
    return np.not_equal(wanted & 1, found.phase & 1) if parity else np.less(wanted, found.phase)
