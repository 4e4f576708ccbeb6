"""The thread blocks that one process executes together, and what they share.

A thread has a *flat* number in its cohort: block in the cohort x threads a block + thread in the
block. Warps (waves) are numbered likewise. Both machines index their registers by flat threads, so
everything that they hand to memory, counters and findings is a flat number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.driver import Grid
from tiledsl.targets.gpu.emulator.clocks import Clocks
from tiledsl.targets.gpu.emulator.counters import Counters
from tiledsl.targets.gpu.emulator.findings import Finding, Findings, Kind
from tiledsl.targets.gpu.emulator.memory import GlobalMemory
from tiledsl.targets.gpu.emulator.program import Instruction

Lanes = NDArray[np.intp]
"""Flat threads."""
Mask = NDArray[np.bool_]

STEP_LIMIT = 2_000_000
"""Basic blocks that a warp may execute, unless somebody says otherwise: a minute or more."""


class Mode(Enum):
    """When an asynchronous operation takes effect.

    EAGER: at once. LAZY: as late as the kernel's waits allow, so that what a wait should have
    waited for is not there without it.
    """

    EAGER = "eager"
    LAZY = "lazy"


@dataclass
class Cohort:
    """Some blocks of one launch.

    Attributes:
        grid: The launch's programs along x, y and z.
        programs: The program ids of the blocks here, (blocks, 3), x first.
        threads: Threads a block.
        warp_size: Threads a warp (wave).
        arguments: The packed arguments.
        shared_bytes: Dynamic shared memory a block.
        memory: The device's memory.
        findings: Where faults go.
        counters: Where costs go; None where nobody asked for a report.
        mode: When asynchronous operations take effect.
        atomic: Whether the kernel has atomics on global memory, which may order its blocks.
        clustered: Whether its blocks are in clusters of several.
        step_limit: Basic blocks that a warp may execute before it is said not to end.
        progress: Where the number of the block that is executed is left now and then, if anywhere.
        clocks: The warps' clocks, once the machine has made them.
    """

    grid: Grid
    programs: NDArray[np.int64]
    threads: int
    warp_size: int
    arguments: bytes
    shared_bytes: int
    memory: GlobalMemory
    findings: Findings
    counters: Counters | None = None
    mode: Mode = Mode.EAGER
    atomic: bool = False
    clustered: bool = False
    step_limit: int = STEP_LIMIT
    progress: NDArray[np.int64] | None = None
    clocks: Clocks | None = None
    block_of: Lanes = field(init=False)
    """Block in the cohort of each flat thread."""
    warp_of: Lanes = field(init=False)
    """Flat warp of each flat thread."""
    launch_warp: NDArray[np.uint32] = field(init=False)
    """Number in the launch of each flat warp."""

    def __post_init__(self) -> None:
        every = np.arange(self.blocks * self.threads)
        self.block_of = every // self.threads
        self.warp_of = self.block_of * self.warps + every % self.threads // self.warp_size
        x, y, _ = self.grid
        block = self.programs @ np.array([1, x, x * y])
        warps = block[:, None] * self.warps + np.arange(self.warps)
        self.launch_warp = warps.ravel().astype(np.uint32)
        self._by_number = np.argsort(self.launch_warp)
        self._numbers = self.launch_warp[self._by_number].astype(np.int64)

    def flat_warp(self, number: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return the flat warps that have some numbers in the launch, -1 for those elsewhere."""
        at = np.minimum(np.searchsorted(self._numbers, number), len(self._numbers) - 1)
        return np.where(self._numbers[at] == number, self._by_number[at], -1)

    @property
    def blocks(self) -> int:
        """Blocks in the cohort."""
        return len(self.programs)

    @property
    def warps(self) -> int:
        """Warps a block."""
        return -(-self.threads // self.warp_size)

    def report(
        self,
        kind: Kind,
        instruction: Instruction,
        message: str,
        thread: int,
        times: int = 1,
        other: Instruction | None = None,
    ) -> None:
        """File a finding that flat thread `thread` was the first to make.

        Args:
            kind: What is wrong.
            instruction: The instruction that did it.
            message: What happened.
            thread: Who did it.
            times: How many lanes did.
            other: The instruction that it conflicts with, if there is one and it is known.
        """
        block = self.block_of[thread]
        x, y, z = (int(one) for one in self.programs[block])
        inside = int(thread - block * self.threads)
        finding = Finding(kind, message, instruction, (x, y, z), inside, times, other)
        self.findings.add(finding)

    def report_trap(self, instruction: Instruction, says: str, threads: Lanes) -> None:
        """File that threads trapped, in ascending order, for the reason that they say or none."""
        source = instruction.source
        if source is not None:  # which the finding shows anyway
            says = says.removeprefix(f"{source.file}:{source.line}:")
        inside = threads[self.block_of[threads] == self.block_of[threads[0]]] % self.threads
        message = f"{says.strip() or 'the kernel trapped'} ({_listed(inside)})"
        self.report(Kind.ASSERTION, instruction, message, int(threads[0]), len(threads))


def _listed(threads: Lanes) -> str:
    """Name some threads, in ascending order."""
    first, last, count = int(threads[0]), int(threads[-1]), len(threads)
    if count == 1:
        return f"thread {first}"
    if last - first == count - 1:
        return f"threads {first} to {last}"
    few = ", ".join(map(str, threads[:4].tolist()))
    return f"threads {few}" if count <= 4 else f"{count} threads: {few}, ... {last}"


class Access:
    """One execution of one memory instruction: who to blame for what goes wrong in it."""

    __slots__ = ("cohort", "instruction", "lanes")

    def __init__(self, cohort: Cohort, instruction: Instruction, lanes: Lanes) -> None:
        self.cohort = cohort
        self.instruction = instruction
        self.lanes = lanes
        """The flat thread of each element of the arrays that go with this access."""

    def only(self, good: Mask) -> Access:
        """Return this access without the lanes that are not in a mask."""
        return Access(self.cohort, self.instruction, self.lanes[good])

    def report(
        self,
        kind: Kind,
        bad: Mask,
        message: Callable[[int], str],
        other: Callable[[int], Instruction | None] | None = None,
    ) -> None:
        """File a finding for the lanes in `bad`.

        `message`, and `other` for the instruction that it conflicts with, are called with the
        first's position.
        """
        at = int(np.flatnonzero(bad)[0])
        times = int(np.count_nonzero(bad))
        known = None if other is None else other(at)
        lane = int(self.lanes[at])
        self.cohort.report(kind, self.instruction, message(at), lane, times, known)
