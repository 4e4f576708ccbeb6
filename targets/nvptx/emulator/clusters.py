"""Blocks of one cluster: whose shared memory an address names, and the barrier they share.

An address in `shared::cluster` has the number of its block in the cluster, plus one, above bit 24;
zero there means the thread's own block, so a `shared::cta` address is one, too. The cluster's
blocks must be in one cohort.

Source: PTX ISA 9.7.9.23, "mapa"; 9.7.9.24, "getctarank"; 9.7.13.4, "barrier.cluster".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.gpu.emulator.cohort import Lanes
from tiledsl.targets.gpu.emulator.program import End, InstructionClass, Step
from tiledsl.targets.gpu.emulator.scheduler import Mask
from tiledsl.targets.nvptx.emulator import text as ptx
from tiledsl.targets.nvptx.emulator.convergence import gather
from tiledsl.targets.nvptx.emulator.machine import SHARED_WINDOW
from tiledsl.targets.nvptx.emulator.opcodes import Ending, Opcode, Options, Place, Table
from tiledsl.targets.nvptx.emulator.operands import Context, Values

if TYPE_CHECKING:
    from tiledsl.targets.nvptx.emulator.machine import Machine

_RANK_SHIFT = 24
_OFFSET = (1 << _RANK_SHIFT) - 1
_RANK_MASK = 0xFF


class Clusters:
    """Which blocks of the cohort make up which cluster: a part of a machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        shape = np.array(machine.layout.cluster)
        programs = machine.cohort.programs
        self.size = int(shape.prod())
        _, self.of_block = np.unique(programs // shape, axis=0, return_inverse=True)
        """Cluster of each block."""
        inside = programs % shape
        self.rank = inside[:, 0] + shape[0] * (inside[:, 1] + shape[1] * inside[:, 2])
        """Number in its cluster of each block."""
        self._block = np.full((int(self.of_block.max()) + 1, self.size), -1)
        self._block[self.of_block, self.rank] = np.arange(len(programs))

    def block(self, cluster: NDArray[np.intp], rank: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return the blocks of some numbers in some clusters.

        Raises:
            CompilerBug: One of them is not in this cohort.
        """
        found = self._block[cluster, rank]
        if (found < 0).any():
            raise CompilerBug("the blocks of a cluster are not emulated together")
        return found

    def locate(
        self, lanes: Lanes, address: NDArray[np.int64]
    ) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        """Return the block and the offset in its shared memory that threads' addresses name."""
        own = self._machine.cohort.block_of[lanes]
        field = address >> _RANK_SHIFT & _RANK_MASK
        if not field.any():
            return own, address
        rank = np.where(field == 0, self.rank[own], field - 1)
        return self.block(self.of_block[own], rank % self.size), address & _OFFSET

    def stand_in(self, block: NDArray[np.intp]) -> Lanes:
        """Return a thread of each block, to look at its shared memory with."""
        return block * self._machine.cohort.threads


def _decode_map(instruction: ptx.Parsed, context: Context) -> Step:
    options = Options(instruction)
    kind = options.last({"u32", "u64"})
    generic = not options.flag("shared::cluster")
    options.done()
    target, source, rank = instruction.operands
    window = np.uint64(SHARED_WINDOW if generic else 0)

    def mapped(address: Values, block: Values) -> Values:
        offset = address.astype(np.uint64) & np.uint64(_OFFSET)
        field = block.astype(np.uint64) + np.uint64(1) << np.uint64(_RANK_SHIFT)
        return (offset | field | window).astype(address.dtype)

    return context.compute(target, kind, mapped, [(source, kind), (rank, "u32")])


def _decode_rank(instruction: ptx.Parsed, context: Context) -> Step:
    options = Options(instruction)
    kind = options.last({"u32", "u64"})
    options.flag("shared::cluster")
    options.done()
    target, source = instruction.operands
    read, write = context.read(source, kind), context.write(target, "u32")

    def step(machine: Machine) -> None:
        address = np.broadcast_to(read(machine), machine.threads).astype(np.int64)
        own = machine.part(Clusters).rank[machine.cohort.block_of]
        field = address >> _RANK_SHIFT & _RANK_MASK
        write(machine, np.where(field == 0, own, field - 1).astype(np.uint32))

    return step


# --- the barrier of a cluster --------------------------------------------------------------------


class ClusterBarrier:
    """`barrier.cluster`: every thread of the cluster that has not ended arrives, then waits."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._of_block = machine.part(Clusters).of_block
        self._of_thread = self._of_block[machine.cohort.block_of]
        self._arrived: Mask = np.zeros(machine.threads, np.bool_)
        clusters = int(self._of_thread.max()) + 1
        self.phase = np.zeros(clusters, np.int64)
        self.awaited = np.full(machine.threads, -1, np.int64)
        """The phase that each thread arrived in, and has to wait for."""
        self._gathering = np.zeros((clusters, machine.clocks.width), np.uint32)
        self._released = np.zeros_like(self._gathering)

    def _of_warp(self, warps: NDArray[np.intp]) -> NDArray[np.intp]:
        return self._of_block[warps // self._machine.clocks.warps]

    def arrive(self, mask: Mask) -> None:
        """Let threads arrive."""
        warps = np.unique(self._machine.cohort.warp_of[mask])
        known = self._machine.clocks.release(warps)
        np.maximum.at(self._gathering, self._of_warp(warps), known)
        self._arrived |= mask
        self.awaited[mask] = self.phase[self._of_thread[mask]]
        self._complete()

    def _complete(self) -> None:
        missing = self._machine.live & ~self._arrived
        done = np.ones(len(self.phase), np.bool_)
        done[self._of_thread[missing]] = False
        there = np.zeros(len(self.phase), np.bool_)
        there[self._of_thread[self._arrived]] = True
        done &= there
        if done.any():
            self.phase[done] += 1
            self._arrived[done[self._of_thread]] = False
            self._released[done] = np.maximum(self._released[done], self._gathering[done])

    def ready(self, mask: Mask) -> Mask:
        """Return which threads' phase is over, and let them learn."""
        self._complete()
        machine = self._machine
        over = mask & (self.phase[self._of_thread] > self.awaited)
        if over.any():
            warps = np.unique(machine.cohort.warp_of[over])
            machine.clocks.acquire(warps, self._released[self._of_warp(warps)])
        return over

    def describe(self, mask: Mask) -> str:
        """Say what they wait for."""
        return "the barrier of their cluster"


def _decode_barrier(instruction: ptx.Parsed, context: Context) -> Ending:
    options = Options(instruction)
    options.ignore("cluster", "aligned", "release", "relaxed", "acquire")
    waits = options.choice({"arrive", "wait"}) == "wait"
    options.done()

    def build(place: Place) -> End:
        def end(machine: Machine) -> int | None:
            barrier = machine.part(ClusterBarrier)
            if not waits:
                barrier.arrive(machine.active)
                return place.following
            ready = barrier.ready(machine.active)
            if int(np.count_nonzero(ready)) == machine.count:
                return place.following
            if ready.any():
                machine.scheduler.go(ready, place.following)
            rest = machine.active & ~ready
            machine.scheduler.park(rest, place.following, barrier, place.block)
            return None

        return end

    return gather(build)


TABLE: Table = {
    "mapa": Opcode(_decode_map, InstructionClass.INTEGER),
    "getctarank": Opcode(_decode_rank, InstructionClass.INTEGER),
    "barrier.cluster.arrive": Opcode(_decode_barrier, InstructionClass.SYNCHRONIZE),
    "barrier.cluster.wait": Opcode(_decode_barrier, InstructionClass.SYNCHRONIZE),
}
