"""What an emulated launch is, and what a vendor's decoded program can do with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tiledsl.targets.driver import Grid
from tiledsl.targets.gpu.emulator.cohort import STEP_LIMIT, Cohort, Mode
from tiledsl.targets.gpu.emulator.counters import Rules
from tiledsl.targets.gpu.emulator.engine import Engine
from tiledsl.targets.gpu.emulator.memory import GlobalMemory
from tiledsl.targets.gpu.emulator.program import BasicBlock, Instruction


@dataclass(frozen=True)
class Launch:
    """One run of a kernel.

    Attributes:
        grid: Programs along x, y and z.
        threads: Threads a program.
        arguments: Packed as `tiledsl.targets.arguments` packs them.
        shared_bytes: Dynamic shared memory a program.
        memory: The device's memory.
        mode: When asynchronous operations take effect.
        counting: Whether costs are counted.
        step_limit: Basic blocks that a warp may execute.
    """

    grid: Grid
    threads: int
    arguments: bytes
    shared_bytes: int
    memory: GlobalMemory
    mode: Mode = Mode.EAGER
    counting: bool = False
    step_limit: int = STEP_LIMIT


class Program(Protocol):
    """A decoded kernel; `nvptx.emulator` and `amdgpu.emulator` make them from text.

    `load(text: str, entry: str, chip: str, memory: GlobalMemory) -> Program` of each package
    raises a `CompilerBug` that names the instruction where the text has one that is not known.
    Constants and variables of the module are allocated in `memory` by then.
    """

    @property
    def warp_size(self) -> int:
        """Threads a warp."""
        ...

    @property
    def blocks(self) -> Sequence[BasicBlock]:
        """The basic blocks; the first one is the entry."""
        ...

    @property
    def instructions(self) -> Sequence[Instruction]:
        """Every instruction, by index."""
        ...

    @property
    def cluster(self) -> Grid:
        """Blocks of a cluster along each axis: those must be executed together."""
        ...

    @property
    def static_shared_bytes(self) -> int:
        """Shared memory a block that the code itself has."""
        ...

    @property
    def rules(self) -> Rules:
        """How the chip's memory costs are counted."""
        ...

    @property
    def atomic(self) -> bool:
        """Whether it has atomics on global memory, which no two processes may do at once."""
        ...

    def machine(self, cohort: Cohort) -> Engine:
        """Return what runs one cohort; it is used once."""
        ...
