"""What a launch cost, counted by instruction: executions, transactions, bank conflicts, FLOPs.

The machines call a `Counters` only when somebody asked for a report (`Cohort.counters` is None
otherwise). Executions are counted by basic block and spread over its instructions at the end, so
counting them costs nothing in the loop. All arrays are indexed by `Instruction.index`.

Contract of the calls: `lanes` are the flat threads that took part, one for each element of the
other array; only active lanes are handed in.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Rules:
    """How a chip's memory counts.

    Attributes:
        sector_bytes: What global memory moves at least: one transaction.
        banks: Banks of shared memory, of 4 bytes each.
        phase_bytes: The most bytes that shared memory serves at once: a warp's access of more is
            split by lanes into phases of so many.
    """

    sector_bytes: int = 32
    banks: int = 32
    phase_bytes: int = 128


class Counters:
    """What the cohorts of one process cost."""

    def __init__(self, instructions: int, rules: Rules, warp_of: NDArray[np.intp]) -> None:
        self.rules = rules
        self.warp_of = warp_of
        self.blocks: Counter[int] = Counter()
        """Executions of each basic block, by warps."""
        self.flops = np.zeros(instructions, np.int64)

    def executed(self, block: int, warps: int) -> None:
        """Count one execution of a basic block by some warps."""
        self.blocks[block] += warps

    def global_access(
        self, index: int, address: NDArray[np.uint64], width: int, lanes: NDArray[np.intp]
    ) -> None:
        """Count one access to global memory of `width` bytes a lane."""

    def shared_access(
        self, index: int, offset: NDArray[np.int64], width: int, lanes: NDArray[np.intp]
    ) -> None:
        """Count one access to shared memory of `width` bytes a lane."""

    def matrix(self, index: int, warps: int, flops: int) -> None:
        """Count a matrix instruction that some warps execute, of `flops` FLOPs each."""
        self.flops[index] += warps * flops
