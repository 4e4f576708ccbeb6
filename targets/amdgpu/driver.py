"""Run kernels on AMD GPUs through HIP, libamdhip64, of ROCm 6 or later.

HIP keeps one current device a thread and works in the context that torch and CuPy use too, so that
their arrays and streams can be used as they are. See `tiledsl.targets.driver` for the contract.
What a kernel takes is read from the code object, which says more than HIP does.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from ctypes import byref, c_float, c_int, c_uint64, c_void_p
from functools import cache
from typing import Any

from numpy.typing import NDArray

from tiledsl.dialects.diagnostics import CompilerBug, KernelError
from tiledsl.targets.amdgpu.chips import CHIPS
from tiledsl.targets.amdgpu.code_object import KernelMetadata, kernels
from tiledsl.targets.amdgpu.hip_library import (
    CAPTURE_RELAXED,
    EXTRA_END,
    NO_DEVICE,
    STREAM_NON_BLOCKING,
    Properties,
    hip_library,
)
from tiledsl.targets.buffers import LaunchBuffer, contiguous_address
from tiledsl.targets.driver import (
    PLAIN_LAUNCH,
    DeviceInfo,
    Driver,
    Grid,
    LaunchOptions,
    Resources,
)
from tiledsl.targets.driver_library import DriverLibrary

_MAX_THREADS_ALONG_AXIS = 2**32 - 1
"""HIP counts a grid's threads along an axis in 32 bits."""


@contextmanager
def _current(library: DriverLibrary, device: int) -> Generator[None]:
    """Make `device` the thread's device, and put back what was."""
    before = c_int()
    library.call("hipGetDevice", byref(before))
    if before.value == device:
        yield
        return
    library.call("hipSetDevice", device)
    try:
        yield
    finally:
        library.call("hipSetDevice", before.value)


class HipKernel:
    """An entry point loaded on one device; see `tiledsl.targets.driver.Kernel`."""

    def __init__(
        self,
        library: DriverLibrary,
        device: int,
        function: int,
        metadata: KernelMetadata,
        image: bytes,
        shared_bytes: int,
    ) -> None:
        self.metadata = metadata
        self._image = image  # some versions of HIP keep a pointer to it, not a copy
        self._library = library
        self._device = device
        self._function = function
        self._shared_bytes = shared_bytes
        self._buffer = LaunchBuffer(EXTRA_END)
        self._get_device = library.function("hipGetDevice")
        self._current = c_int()
        self._current_reference = byref(self._current)
        self._launch_kernel = library.function("hipModuleLaunchKernel")
        visible = [a for a in metadata.arguments if not a.hidden]
        self._argument_bytes = visible[-1].offset + visible[-1].size if visible else 0

    @property
    def resources(self) -> Resources:
        """What the loaded code takes."""
        return self.metadata.resources

    def launch(self, grid: Grid, threads: int, arguments: bytes, stream: int = 0) -> None:
        """Queue one run; see the Protocol."""
        if 0 in grid:
            return
        self._check(grid, threads, arguments)
        buffer = self._buffer
        with buffer.lock:
            buffer.fill(arguments)
            self._get_device(self._current_reference)
            if self._current.value == self._device:
                status = self._queue(grid, threads, stream)
            else:
                with _current(self._library, self._device):
                    status = self._queue(grid, threads, stream)
        if status:
            detail = f"\n  {self.metadata.name}, grid {grid}, {threads} threads"
            raise self._library.error("hipModuleLaunchKernel", status, detail)

    def _queue(self, grid: Grid, threads: int, stream: int) -> int:
        return self._launch_kernel(
            self._function, *grid, threads, 1, 1, self._shared_bytes, stream, None,
            self._buffer.extra,
        )  # fmt: skip

    def _check(self, grid: Grid, threads: int, arguments: bytes) -> None:
        """Refuse what HIP would wrap or take in silence."""
        if not 0 < threads <= self.metadata.max_workgroup:
            raise KernelError(
                f"expected 1 to {self.metadata.max_workgroup} threads, found {threads}"
            )
        for axis, count, size in zip("xyz", grid, (threads, 1, 1), strict=True):
            most = _MAX_THREADS_ALONG_AXIS // size
            if not 0 < count <= most:
                raise KernelError(
                    f"expected a grid of 1 to {most} programs along {axis}, found {grid}"
                )
        if len(arguments) != self._argument_bytes:
            raise CompilerBug(
                f"{self.metadata.name} takes {self._argument_bytes} bytes of arguments, "
                f"found {len(arguments)}"
            )


@contextmanager
def _uncaptured(library: DriverLibrary) -> Generator[None]:
    """Let this thread load code while another, or itself, captures a graph, and not break it."""
    mode = c_int(CAPTURE_RELAXED)
    library.call("hipThreadExchangeStreamCaptureMode", byref(mode))
    try:
        yield
    finally:
        library.call("hipThreadExchangeStreamCaptureMode", byref(mode))


class HipDriver:
    """AMD's devices; see `tiledsl.targets.driver.Driver`."""

    name = "hip"

    def __init__(self, library: DriverLibrary) -> None:
        self._library = library
        self._lock = threading.Lock()
        self._count: int | None = None

    def _start(self) -> int:
        """Bring HIP up once; return how many devices it shows, at least one."""
        with self._lock:
            if self._count is None:
                count = c_int()
                status = self._library.function("hipInit")(0)
                if status == 0:
                    status = self._library.function("hipGetDeviceCount")(byref(count))
                if status not in (0, *NO_DEVICE):
                    raise self._library.error("hipInit", status)
                self._count = count.value if status == 0 else 0
            if self._count == 0:
                raise KernelError("AMD's HIP library shows no device")
            return self._count

    @contextmanager
    def _on(self, device: int) -> Generator[None]:
        count = self._start()
        if not 0 <= device < count:
            raise KernelError(f"expected a HIP device below {count}, found hip:{device}")
        with _current(self._library, device):
            yield

    def version(self) -> tuple[int, int]:
        """Return the HIP version, as (6, 2)."""
        value = c_int()
        self._library.call("hipRuntimeGetVersion", byref(value))
        return value.value // 10_000_000, value.value // 100_000 % 100

    def devices(self) -> Sequence[DeviceInfo]:
        """Every device that HIP shows."""
        return [self._info(index) for index in range(self._start())]

    def _info(self, index: int) -> DeviceInfo:
        properties = Properties()
        self._library.call("hipGetDevicePropertiesR0600", byref(properties), index)
        chip = properties.chip.decode().split(":", 1)[0]
        return DeviceInfo(
            index=index,
            name=properties.name.decode(),
            chip=chip,
            native=chip in CHIPS,
            memory_bytes=properties.memory_bytes,
            multiprocessors=properties.multiprocessors,
            shared_bytes=properties.shared_bytes,
        )

    def load(
        self,
        binary: bytes,
        entry: str,
        shared_bytes: int,
        device: int = 0,
        options: LaunchOptions = PLAIN_LAUNCH,
    ) -> HipKernel:
        """Load a linked code object; see the Protocol. AMD's devices have no launch options."""
        if options != PLAIN_LAUNCH:
            raise KernelError(f"expected no clusters or dependent launches on AMD, found {options}")
        known = kernels(binary)
        if entry not in known:
            raise CompilerBug(f"the code object has no kernel {entry}, only {sorted(known)}")
        with self._on(device):
            most = self._info(device).shared_bytes
            needed = known[entry].lds_bytes + shared_bytes
            if needed > most:
                raise KernelError(
                    f"{entry} needs {needed} bytes of shared memory, this device has {most} for "
                    "one program",
                    hint="use smaller tiles or fewer num_stages",
                )
            module, function = c_void_p(), c_void_p()
            with _uncaptured(self._library):
                self._library.call("hipModuleLoadData", byref(module), binary)
            self._library.call("hipModuleGetFunction", byref(function), module, entry.encode())
        return HipKernel(
            self._library, device, function.value or 0, known[entry], binary, shared_bytes
        )

    def allocate(self, size: int, device: int = 0) -> int:
        """Return new device memory."""
        address = c_uint64()
        with self._on(device):
            self._library.call("hipMalloc", byref(address), max(size, 1))
        return address.value

    def free(self, address: int, device: int = 0) -> None:
        """Release memory; waits for work that may use it."""
        with self._on(device):
            self._library.call("hipFree", address)

    def copy_in(self, address: int, array: NDArray[Any], device: int = 0) -> None:
        """Copy a NumPy array to the device."""
        data = contiguous_address(array)
        with self._on(device):
            if array.nbytes:
                self._library.call("hipMemcpyHtoD", address, data, array.nbytes)

    def copy_out(self, array: NDArray[Any], address: int, device: int = 0) -> None:
        """Copy device memory to a NumPy array, after all queued work."""
        data = contiguous_address(array)
        with self._on(device):
            self._library.call("hipDeviceSynchronize")
            if array.nbytes:
                self._library.call("hipMemcpyDtoH", data, address, array.nbytes)

    def synchronize(self, device: int = 0) -> None:
        """Wait for all work on the device."""
        with self._on(device):
            self._library.call("hipDeviceSynchronize")

    def create_stream(self, device: int = 0) -> int:
        """Return a new stream that does not wait for the default one."""
        stream = c_void_p()
        with self._on(device):
            self._library.call("hipStreamCreateWithFlags", byref(stream), STREAM_NON_BLOCKING)
        return stream.value or 0

    def destroy_stream(self, stream: int, device: int = 0) -> None:
        """Release a stream."""
        with self._on(device):
            self._library.call("hipStreamDestroy", stream)

    def is_capturing(self, stream: int = 0, device: int = 0) -> bool:
        """Return whether a stream records a graph; the default stream cannot."""
        if stream == 0:
            return False
        status = c_int()
        with self._on(device):
            self._library.call("hipStreamIsCapturing", stream, byref(status))
        return status.value != 0

    def record_event(self, stream: int = 0, device: int = 0) -> int:
        """Mark this point of a stream."""
        event = c_void_p()
        with self._on(device):
            self._library.call("hipEventCreate", byref(event))
            self._library.call("hipEventRecord", event, stream)
        return event.value or 0

    def elapsed_ms(self, start: int, end: int, device: int = 0) -> float:
        """Return milliseconds between two events."""
        elapsed = c_float()
        with self._on(device):
            self._library.call("hipEventSynchronize", end)
            self._library.call("hipEventElapsedTime", byref(elapsed), start, end)
        return elapsed.value

    def destroy_event(self, event: int, device: int = 0) -> None:
        """Release an event."""
        with self._on(device):
            self._library.call("hipEventDestroy", event)


@cache
def driver() -> Driver:
    """Return the one driver of this process, without touching hardware."""
    return HipDriver(hip_library())
