"""A small cohort to try the emulators' parts on, with the findings that it made."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.barriers import Barriers
from tiledsl.targets.gpu.emulator.clocks import Clocks
from tiledsl.targets.gpu.emulator.cohort import Access, Cohort
from tiledsl.targets.gpu.emulator.findings import Findings, Kind
from tiledsl.targets.gpu.emulator.memory import GlobalMemory, Named
from tiledsl.targets.gpu.emulator.program import Instruction, InstructionClass
from tiledsl.targets.gpu.emulator.shared_memory import SharedMemory
from tiledsl.targets.gpu.source_lines import Source


def instruction(index: int, text: str = "access", line: int = 1) -> Instruction:
    return Instruction(index, text, InstructionClass.SHARED, Source("kernel.py", line, 1))


@dataclass
class World:
    """`blocks` blocks of `warps` warps of `lanes` threads; flat threads are numbered through.

    `first` is the first one's number in the launch.
    """

    blocks: int = 1
    warps: int = 2
    lanes: int = 4
    shared_bytes: int = 256
    granule: int = 4
    first: int = 0
    memory: GlobalMemory = field(default_factory=GlobalMemory)
    findings: Findings = field(default_factory=Findings)

    def __post_init__(self) -> None:
        threads = self.warps * self.lanes
        programs = np.zeros((self.blocks, 3), np.int64)
        programs[:, 0] = self.first + np.arange(self.blocks)
        self.cohort = Cohort(
            (self.first + self.blocks, 1, 1),
            programs,
            threads,
            self.lanes,
            b"",
            self.shared_bytes,
            self.memory,
            self.findings,
        )
        self.clocks = Clocks(self.blocks, self.warps)
        self.live = np.ones(self.blocks * threads, np.bool_)
        self.barriers = Barriers(self.clocks, self.cohort.block_of, self.cohort.warp_of, self.live)
        self.shared = SharedMemory(self.cohort, self.clocks, self.shared_bytes, self.granule)

    def access(self, index: int = 0, threads: Any = None, text: str = "access") -> Access:
        every = np.arange(len(self.cohort.block_of))
        return Access(
            self.cohort,
            instruction(index, text, line=10 + index),
            every if threads is None else np.asarray(threads, np.intp),
        )

    def sync(self, barrier: int = 0) -> None:
        """Let all live threads arrive at a barrier and pass it."""
        phase = self.barriers.arrive(self.live, barrier)
        assert self.barriers.passed(self.live, barrier, phase).any()

    def write(
        self, index: int, threads: Any, offsets: Any, values: Any = None, **options: Any
    ) -> None:
        """Store one word of 4 bytes a thread in shared memory."""
        at = np.asarray(offsets, np.int64)
        data = np.arange(len(at)) if values is None else np.asarray(values)
        access = self.access(index, threads, "st")
        self.shared.store(access, at, data.astype(np.uint32), 4, **options)

    def read(self, index: int, threads: Any, offsets: Any, **options: Any) -> NDArray[Any]:
        """Load one word of 4 bytes a thread from shared memory."""
        at = np.asarray(offsets, np.int64)
        return self.shared.load(self.access(index, threads, "ld"), at, 4, **options)

    def kinds(self) -> list[Kind]:
        return [finding.kind for finding in self.findings.all()]

    def messages(self) -> list[str]:
        return [finding.message for finding in self.findings.all()]


class Device:
    """A world with one array of 16 words, `x`; threads are numbered through all blocks."""

    def __init__(self, blocks: int = 1, atomic: bool = False) -> None:
        self.world = World(blocks=blocks, warps=2, lanes=4)
        self.world.cohort.atomic = atomic
        self.memory = self.world.memory
        self.base = self.memory.allocate(64, written=True)
        self.memory.name([Named("x", self.base, self.base + 64, 4)])
        self.begin()

    def begin(self) -> None:
        self.memory.races.begin(len(self.world.cohort.launch_warp))

    def store(self, thread: int, word: int, value: int = 1, width: int = 4) -> None:
        address = np.array([self.base + word * 4], np.uint64)
        dtype: Any = {1: np.uint8, 2: np.uint16, 4: np.uint32}[width]
        access = self.world.access(len(self.world.findings), [thread])
        self.memory.store(access, address, np.array([value], dtype), width)

    def load(self, thread: int, word: int, *, strong: bool = False) -> None:
        access = self.world.access(len(self.world.findings), [thread])
        access.instruction = replace(access.instruction, strong=strong)
        self.memory.load(access, np.array([self.base + word * 4], np.uint64), 4)

    def release(self, *warps: int) -> None:
        self.memory.races.releases.release(self.world.cohort, np.array(warps))

    def acquire(self, warp: int) -> None:
        self.memory.races.releases.acquire(self.world.cohort, np.array([warp]))

    def hand_over(self, giver: int, taker: int) -> None:
        """Let one warp release what it did, and another one acquire it."""
        self.release(giver)
        self.acquire(taker)

    @property
    def races(self) -> int:
        assert all(kind is Kind.RACE for kind in self.world.kinds())
        return len(self.world.findings)
