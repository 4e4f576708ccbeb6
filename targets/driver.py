"""What the floor above asks of a device driver, whichever vendor made the device.

Launching, copying and loading look the same on NVIDIA and AMD once the names are taken away, so
`tiledsl` is written against these Protocols and each target's `driver.py` satisfies them.

Contract: a driver is created without touching hardware; the first call that needs the vendor's
library loads it, and without one (or without a device) that call raises `KernelError`, never
`OSError`. Addresses and streams are plain integers, as every array library hands them out; stream
0 is the vendor's default stream. All calls are thread safe, work on any thread and leave its
current device as they found it. Code once loaded stays loaded: unloading it from a finalizer could
break a graph capture that is under way, which loading does not. What the vendor's library refuses
is a `KernelError` with the vendor's name for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

Grid = tuple[int, int, int]
"""Programs along x, y and z: workgroups, not threads."""


@dataclass(frozen=True)
class DeviceInfo:
    """One device as the driver describes it.

    Attributes:
        index: The driver's ordinal.
        name: The marketing name, as "NVIDIA H200".
        chip: The name to compile for, a key of the target's chip table ("sm_90a", "gfx942"), or
            the device's own name where the table has no fit: compiling for it then says so.
        native: Whether the device is of exactly that chip. If not, only portable code runs on it,
            as PTX text; machine code does not.
        memory_bytes: Device memory in all.
        multiprocessors: Streaming multiprocessors or compute units.
        shared_bytes: The most shared memory one workgroup can have.
    """

    index: int
    name: str
    chip: str
    native: bool
    memory_bytes: int
    multiprocessors: int
    shared_bytes: int


@dataclass(frozen=True)
class Resources:
    """What one kernel takes of the device, as the assembler or the driver reports it.

    Attributes:
        registers: 32-bit vector registers a thread (on AMD: vector and accumulation registers).
        spill_bytes: Bytes a thread spilled to memory, 0 in a healthy kernel; None where the source
            does not say (a driver knows only `local_bytes`).
        local_bytes: Bytes of private memory a thread, spills and stack arrays together.
        shared_bytes: Shared memory fixed at compile time, in bytes a workgroup.
        scalar_registers: AMD's scalar registers a wave; 0 where there are none.
    """

    registers: int
    spill_bytes: int | None
    local_bytes: int
    shared_bytes: int
    scalar_registers: int = 0


@dataclass(frozen=True)
class LaunchOptions:
    """What a launch asks for beyond grid, threads and arguments; the defaults ask for nothing.

    Attributes:
        cluster: Workgroups a cluster along x, y and z (sm_90 and later).
        programmatic: Let the launch begin before the one ahead of it in the stream has ended; the
            kernel itself must wait (griddepcontrol) before it touches that one's memory.
        compiler: Options for the driver's own compiler, in ptxas's words, where it gets text.
    """

    cluster: Grid = (1, 1, 1)
    programmatic: bool = False
    compiler: str = ""


PLAIN_LAUNCH = LaunchOptions()


class Kernel(Protocol):
    """One entry point, loaded on one device."""

    @property
    def resources(self) -> Resources:
        """What the driver says that the loaded code takes."""
        ...

    def launch(self, grid: Grid, threads: int, arguments: bytes, stream: int = 0) -> None:
        """Queue one run on `stream` and return without waiting for it.

        Args:
            grid: Workgroups along x, y, z; with a zero among them nothing runs.
            threads: Threads a workgroup.
            arguments: Packed as `tiledsl.targets.arguments.ArgumentLayout` packs them.
            stream: The vendor's stream handle.
        """
        ...


class Driver(Protocol):
    """One vendor's driver. `device` is always a driver ordinal."""

    @property
    def name(self) -> str:
        """How users write it: "cuda" or "hip"."""
        ...

    def devices(self) -> Sequence[DeviceInfo]:
        """Every device the driver shows, in its order."""
        ...

    def load(
        self,
        binary: bytes,
        entry: str,
        shared_bytes: int,
        device: int = 0,
        options: LaunchOptions = PLAIN_LAUNCH,
    ) -> Kernel:
        """Load `binary` on `device` and find `entry` in it.

        Args:
            binary: What the target's assembler returned for this device's chip.
            entry: The kernel's symbol.
            shared_bytes: Dynamic shared memory that every launch gets.
            device: Where to load it.
            options: What every launch asks for.
        """
        ...

    def allocate(self, size: int, device: int = 0) -> int:
        """Return the address of `size` new bytes of device memory; 0 bytes are allowed."""
        ...

    def free(self, address: int, device: int = 0) -> None:
        """Release what `allocate` returned."""
        ...

    def copy_in(self, address: int, array: NDArray[Any], device: int = 0) -> None:
        """Copy a C-contiguous NumPy array to device memory and wait for it."""
        ...

    def copy_out(self, array: NDArray[Any], address: int, device: int = 0) -> None:
        """Copy device memory to a C-contiguous NumPy array, after all queued work."""
        ...

    def synchronize(self, device: int = 0) -> None:
        """Wait for all work on `device`; a fault in an earlier kernel raises here."""
        ...

    def create_stream(self, device: int = 0) -> int:
        """Return a new stream that does not wait for the default one."""
        ...

    def destroy_stream(self, stream: int, device: int = 0) -> None:
        """Release a stream made by `create_stream`."""
        ...

    def is_capturing(self, stream: int = 0, device: int = 0) -> bool:
        """Return whether what is queued on `stream` is recorded into a graph instead of run."""
        ...

    def record_event(self, stream: int = 0, device: int = 0) -> int:
        """Mark this point of `stream`; for `elapsed_ms`."""
        ...

    def elapsed_ms(self, start: int, end: int, device: int = 0) -> float:
        """Wait for event `end` and return the device's own milliseconds from `start` to it."""
        ...

    def destroy_event(self, event: int, device: int = 0) -> None:
        """Release an event made by `record_event`."""
        ...
