"""A driver whose device is this program: what `targets.driver` asks for, on an emulator.

One driver serves one chip. What it loads is the text that the vendor's assembler would get (PTX, or
AMDGPU assembly), decoded once; a launch runs to its end before it returns, so streams and events
exist but order nothing. Faults of the kernel are a `KernelError` (or a warning) after the launch,
as `settings` says, once what it did write is in memory.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tiledsl.dialects.diagnostics import KernelError
from tiledsl.targets.buffers import contiguous_address
from tiledsl.targets.driver import PLAIN_LAUNCH, DeviceInfo, Grid, LaunchOptions, Resources
from tiledsl.targets.gpu.emulator import grid as grids
from tiledsl.targets.gpu.emulator import settings
from tiledsl.targets.gpu.emulator.cohort import Mode
from tiledsl.targets.gpu.emulator.findings import Findings
from tiledsl.targets.gpu.emulator.launch import Launch, Program
from tiledsl.targets.gpu.emulator.memory import GlobalMemory
from tiledsl.targets.gpu.emulator.report import make_report
from tiledsl.targets.immediate import Immediate
from tiledsl.targets.target import find

Load = Callable[[str, str, str, GlobalMemory], Program]

TEXTS = {"nvptx": "ptx", "amdgpu": "amdgcn"}
"""The text of an artifact that each target's emulator reads."""


def text_of(chip: str) -> str:
    """Return the name of the text that the emulator of a chip reads.

    Raises:
        KernelError: No emulator has such a chip.
    """
    owner, name = find(chip)
    if owner.NAME not in TEXTS:
        raise KernelError(f"expected a GPU to emulate, found {name!r}")
    return TEXTS[owner.NAME]


class EmulatorDriver(Immediate):
    """A `tiledsl.targets.driver.Driver` that emulates one chip."""

    name = "emulate"

    def __init__(self, chip: str) -> None:
        self.chip = chip
        owner, _ = find(chip)
        text_of(chip)
        self._owner = owner.NAME
        self._load = cast("Load", import_module(f"tiledsl.targets.{owner.NAME}.emulator").load)
        self.memory = GlobalMemory()
        self._lock = threading.Lock()
        """One launch at a time: names are the memory's, and cores are few."""
        super().__init__()

    def devices(self) -> Sequence[DeviceInfo]:
        """Return the one device there is."""
        chips: Any = import_module(f"tiledsl.targets.{self._owner}.chips")
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        shared = chips.chip(self.chip).shared_bytes
        cores = settings.processes()
        name = f"emulated {self.chip}"
        return [DeviceInfo(0, name, self.chip, True, memory, cores, shared)]

    def load(
        self,
        binary: bytes,
        entry: str,
        shared_bytes: int,
        device: int = 0,
        options: LaunchOptions = PLAIN_LAUNCH,
    ) -> EmulatedKernel:
        """Decode a kernel.

        Args:
            binary: Its text, encoded.
            entry: Its name.
            shared_bytes: Dynamic shared memory of a launch.
            device: 0.
            options: What every launch asks for; its clusters must be those that the text names.

        Raises:
            KernelError: The clusters are others.
            CompilerBug: The text has an instruction that the emulator does not know.
        """
        with self._lock:
            text = binary.decode()
            program = self._load(text, entry, self.chip, self.memory)
        if options.cluster not in ((1, 1, 1), program.cluster):
            raise KernelError(
                f"expected a launch in clusters of {program.cluster}, as the kernel says, "
                f"found {options.cluster}"
            )
        return EmulatedKernel(self, program, text, entry, shared_bytes)

    def allocate(self, size: int, device: int = 0) -> int:
        """Return the address of `size` new bytes of device memory; 0 bytes are allowed."""
        with self._lock:
            return self.memory.allocate(size)

    def free(self, address: int, device: int = 0) -> None:
        """Release what `allocate` returned."""
        with self._lock:
            self.memory.free(address)

    def copy_in(self, address: int, array: NDArray[Any], device: int = 0) -> None:
        """Copy a C-contiguous NumPy array to device memory."""
        contiguous_address(array)
        self.memory.bytes_at(address, array.nbytes)[:] = array.reshape(-1).view(np.uint8)
        self.memory.mark_written(address, array.nbytes)

    def copy_out(self, array: NDArray[Any], address: int, device: int = 0) -> None:
        """Copy device memory to a C-contiguous NumPy array."""
        contiguous_address(array)
        array.reshape(-1).view(np.uint8)[:] = self.memory.bytes_at(address, array.nbytes)

    def encode_tensor_map(self, tensor_map: Any, device: int = 0) -> bytes:
        """Return the 128 bytes that a kernel's copies by TMA take for a tensor (NVIDIA).

        Raises:
            KernelError: The emulated chip has no such copies.
        """
        if self._owner != "nvptx":
            raise KernelError(f"expected a chip with TMA, found {self.chip}")
        return import_module("tiledsl.targets.nvptx.emulator.tensor_maps").encode(tensor_map)

    def launch(
        self, program: Program, entry: str, grid: Grid, threads: int, arguments: bytes, shared: int
    ) -> None:
        """Run a decoded kernel to its end.

        Raises:
            KernelError: It did something wrong, and `settings` do not say to warn.
        """
        chosen = settings.current()
        mode = settings.current_mode()
        findings = Findings()
        counting = chosen.report is not None
        launch = Launch(
            grid, threads, arguments, shared, self.memory, Mode(mode), counting=counting,
            step_limit=settings.current_step_limit(),
        )  # fmt: skip
        with self._lock:
            self.memory.name(chosen.names)
            for named in chosen.names:
                # Parts of tuples and descriptors are named after their parameter.
                if named.name.partition(".")[0] in chosen.uninitialized:
                    self.memory.mark_unwritten(named.low, named.high - named.low)
            counters = grids.run(program, launch, findings)
        if chosen.report is not None and counters is not None:
            decoded = program.blocks, program.instructions
            shape = grid, threads, shared + program.static_shared_bytes
            chosen.report(
                make_report(entry, self.chip, mode, shape, decoded, counters, findings.all())
            )
        if chosen.findings != "report":
            findings.raise_or_warn(entry, warn=chosen.findings == "warn")


class EmulatedKernel:
    """A `tiledsl.targets.driver.Kernel`: one decoded entry point.

    Attributes:
        driver: Whose it is.
        program: The decoded text.
        text: The text.
        entry: The kernel's name in it.
        shared_bytes: Dynamic shared memory of a launch.
    """

    def __init__(
        self, driver: EmulatorDriver, program: Program, text: str, entry: str, shared_bytes: int
    ) -> None:
        self.driver = driver
        self.program = program
        self.text = text
        self.entry = entry
        self.shared_bytes = shared_bytes

    @property
    def resources(self) -> Resources:
        """What the code takes, as far as an emulator knows: no registers are counted."""
        return Resources(0, None, 0, 0)

    def launch(self, grid: Grid, threads: int, arguments: bytes, stream: int = 0) -> None:
        """Run on `grid`; returns when it has ended. With a zero in the grid nothing runs."""
        if 0 not in grid:
            self.driver.launch(
                self.program, self.entry, grid, threads, arguments, self.shared_bytes
            )
