"""What a launch cost, counted by instruction: executions, transactions, bank conflicts, FLOPs.

The machines call a `Counters` only when somebody asked for a report (`Cohort.counters` is None
otherwise). Executions are counted by basic block and spread over its instructions at the end, so
counting them costs nothing in the loop. All arrays are indexed by `Instruction.index`.

Global memory is counted in *transactions*, the sectors that each warp's access touches, each once.
Shared memory is counted in *wavefronts*: a warp's access is served in phases of lanes that ask for
as much as all banks give at once (of 4 bytes a lane a whole warp of 32, of 8 bytes half of it, of
16 bytes a quarter), and a phase takes as many wavefronts as there are different words in its
busiest bank; lanes that ask for one word share it. Where neighbours read one address, NVIDIA makes
one phase of two (`Rules.merges`). That is NVIDIA's rule (CUDA C++ Programming Guide, shared memory;
Volta and later; compared with Nsight Compute's counters on an H200) and AMD's (Composable Kernel's
documentation of LDS bank conflicts), with AMD's order of lanes where it reads 16 bytes. Caches are
not counted.

Contract of the calls: `lanes` are the flat threads that took part, one for each element of the
other array; only active lanes are handed in.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

CDNA_READ_16 = tuple(
    half + lane
    for half in (0, 32)
    for first, second in ((0, 20), (4, 16), (8, 28), (12, 24))
    for start in (first, second)
    for lane in range(start, start + 4)
)
"""The lanes of a wave in the order in which CDNA serves a read of 16 bytes a lane, eight a phase.

Lanes 0-3 go with 20-23, 4-7 with 16-19, 8-11 with 28-31, 12-15 with 24-27, and so from lane 32 on
(ROCm blog, "Avoiding LDS Bank Conflicts on AMD GPUs Using CK-Tile")."""

CDNA4_READ_16 = tuple(
    half + lane
    for half in (0, 32)
    for starts in ((0, 12, 20, 24), (4, 8, 16, 28))
    for start in starts
    for lane in range(start, start + 4)
)
"""The same of gfx950, sixteen a phase: lanes 0-3, 12-15 and 20-27 go together (measured by
HipKittens, arXiv 2511.08083)."""


@dataclass(frozen=True)
class Rules:
    """How a chip's memory counts.

    Attributes:
        sector_bytes: What global memory moves at least: one transaction. NVIDIA's sectors are 32
            bytes; AMD's requests are 64 bytes on CDNA and 128, a cache line, on RDNA.
        banks: Banks of shared memory, of 4 bytes each.
        phase_bytes: The most bytes that shared memory serves at once: a warp's access of more is
            split by lanes into phases of so many.
        writes_halved: Whether writes are served half as wide and see half of the banks.
        read_16: The order in which lanes are split into phases where they read 16 bytes each;
            empty where it is their own.
        merges: Whether a read of 8 (16) bytes a lane takes one phase instead of two for a warp (for
            each half of it) in which each two lanes that are one apart, or each two that are two
            apart, read one address, as far as both are active.
    """

    sector_bytes: int = 32
    banks: int = 32
    phase_bytes: int = 128
    writes_halved: bool = False
    read_16: tuple[int, ...] = ()
    merges: bool = False


class Counters:
    """What the cohorts of one process cost.

    Attributes:
        blocks: Executions of each basic block, by warps.
        accesses: Warps' accesses to global memory.
        transactions: Sectors that they touched.
        used: Bytes that some lane asked for, each once a warp's access.
        shared_accesses: Warps' accesses to shared memory.
        phases: What those would take without bank conflicts.
        wavefronts: What they take.
        worst: The most wavefronts a phase that one access took.
        flops: Floating-point operations of matrix instructions.
    """

    def __init__(self, instructions: int, rules: Rules, warp_of: NDArray[np.intp]) -> None:
        self.rules = rules
        self.warp_of = warp_of
        self.blocks: Counter[int] = Counter()
        self.accesses = np.zeros(instructions, np.int64)
        self.transactions = np.zeros(instructions, np.int64)
        self.used = np.zeros(instructions, np.int64)
        self.shared_accesses = np.zeros(instructions, np.int64)
        self.phases = np.zeros(instructions, np.int64)
        self.wavefronts = np.zeros(instructions, np.int64)
        self.worst = np.zeros(instructions)
        self.flops = np.zeros(instructions, np.int64)

    def executed(self, block: int, warps: int) -> None:
        """Count one execution of a basic block by some warps."""
        self.blocks[block] += warps

    def global_access(
        self, index: int, address: NDArray[np.uint64], width: int, lanes: NDArray[np.intp]
    ) -> None:
        """Count one access to global memory of `width` bytes a lane."""
        if not len(address):
            return
        warp = self.warp_of[lanes]
        first = address.view(np.int64)
        self.accesses[index] += len(np.unique(warp))
        self.transactions[index] += _distinct(warp, first, width, self.rules.sector_bytes)
        grain = int(np.bitwise_or.reduce(first)) | width
        grain &= -grain
        self.used[index] += _distinct(warp, first, width, grain) * grain

    def shared_access(
        self,
        index: int,
        offset: NDArray[np.int64],
        width: int,
        lanes: NDArray[np.intp],
        *,
        write: bool = False,
    ) -> None:
        """Count one access to shared memory of `width` bytes a lane.

        Args:
            index: The instruction.
            offset: Byte offset of each lane in its block's window.
            width: Bytes a lane.
            lanes: The flat threads.
            write: Whether it writes; reads of 16 bytes may be split otherwise.
        """
        if not len(offset):
            return
        warp = self.warp_of[lanes]
        phase = self._phases(warp, lanes, width, write)
        if self.rules.merges and width > 4 and not write:
            phase = self._merged(phase, warp, lanes, offset, width)
        _, phase = np.unique(phase, return_inverse=True)
        word = offset[:, None] + np.arange(0, max(width, 4), 4) >> 2
        banks = self.rules.banks >> (write and self.rules.writes_halved)
        slot = phase[:, None] * banks + word % banks
        keys = np.unique((slot << 32 | word).ravel())
        every = int(phase.max()) + 1
        words = np.bincount(keys >> 32, minlength=every * banks)
        wavefronts = words.reshape(every, banks).max(1)
        self.shared_accesses[index] += len(np.unique(warp))
        self.phases[index] += every
        self.wavefronts[index] += int(wavefronts.sum())
        self.worst[index] = max(self.worst[index], self._worst(phase, warp, wavefronts))

    def _phases(
        self, warp: NDArray[np.intp], lanes: NDArray[np.intp], width: int, write: bool
    ) -> NDArray[np.int64]:
        """Return which phase of all warps each lane is served in."""
        lane = self._lane(warp, lanes)
        if width == 16 and not write and self.rules.read_16:
            lane = np.argsort(np.array(self.rules.read_16))[lane]
        served = self.rules.phase_bytes >> (write and self.rules.writes_halved)
        together = max(served // max(width, 4), 1)
        return warp.astype(np.int64) * 64 + lane // together

    def _lane(self, warp: NDArray[np.intp], lanes: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return each thread's place in its warp."""
        first = np.searchsorted(self.warp_of, np.arange(int(self.warp_of[-1]) + 1))
        return lanes - first[warp]

    def _merged(
        self,
        phase: NDArray[np.int64],
        warp: NDArray[np.intp],
        lanes: NDArray[np.intp],
        offset: NDArray[np.int64],
        width: int,
    ) -> NDArray[np.int64]:
        """Return phases with the pairs made one that `Rules.merges` is about."""
        lane = self._lane(warp, lanes)
        every = np.full((int(warp.max()) + 1, 32), -1, np.int64)
        every[warp, lane] = offset
        together = 32 if width == 8 else 16
        merged = np.zeros((len(every), 32 // together), np.bool_)
        for apart in (1, 2):
            other = every[:, np.arange(32) ^ apart]
            agree = (every < 0) | (other < 0) | (every == other)
            merged |= agree.reshape(len(every), -1, together).all(2)
        return np.where(merged[warp, lane // together], phase & ~1, phase)

    def _worst(
        self, phase: NDArray[np.intp], warp: NDArray[np.intp], wavefronts: NDArray[np.int64]
    ) -> float:
        """Return the most wavefronts a phase that one warp's access took."""
        owner = np.zeros(len(wavefronts), np.intp)
        owner[phase] = warp
        total = np.bincount(owner, wavefronts)
        phases = np.bincount(owner)
        return float(np.max(total[phases > 0] / phases[phases > 0]))

    def matrix(self, index: int, warps: int, flops: int) -> None:
        """Count a matrix instruction that some warps execute, of `flops` FLOPs each."""
        self.flops[index] += warps * flops

    def merge(self, other: Counters) -> None:
        """Add what another cohort cost."""
        self.blocks.update(other.blocks)
        for name in _SUMS:
            getattr(self, name).__iadd__(getattr(other, name))
        np.maximum(self.worst, other.worst, out=self.worst)


_SUMS = (
    "accesses",
    "transactions",
    "used",
    "shared_accesses",
    "phases",
    "wavefronts",
    "flops",
)


def _distinct(warp: NDArray[np.intp], first: NDArray[np.int64], width: int, grain: int) -> int:
    """Return how many grains of `grain` bytes warps touch, each once a warp."""
    low, high = first // grain, (first + width - 1) // grain
    spread = int((high - low).max()) + 1
    grains: NDArray[Any] = low[:, None] + np.arange(spread)
    keys = (grains - int(low.min())) + warp[:, None] * (int(high.max() - low.min()) + 1)
    return len(np.unique(keys[grains <= high[:, None]]))
