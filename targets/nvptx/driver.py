"""Run kernels on NVIDIA GPUs through the CUDA driver, libcuda, which every GPU machine has.

Works in each device's primary context, the one that the CUDA runtime, torch and CuPy share, so that
their arrays and streams can be used as they are. See `tiledsl.targets.driver` for the contract.

A launch on the hot path makes two calls, cuCtxGetCurrent and cuLaunchKernelEx, through structures
that are prepared when the kernel is loaded and change only with the grid.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from ctypes import byref, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache
from typing import Any

from numpy.typing import NDArray

from tiledsl.dialects.diagnostics import KernelError
from tiledsl.targets.driver import (
    PLAIN_LAUNCH,
    DeviceInfo,
    Driver,
    Grid,
    LaunchOptions,
    Resources,
)
from tiledsl.targets.driver_library import DriverLibrary, LaunchBuffer, contiguous_address
from tiledsl.targets.nvptx.chips import (
    MAX_GRID,
    MAX_THREADS,
    STATIC_SHARED_BYTES,
    chip_of_capability,
)
from tiledsl.targets.nvptx.cuda_library import (
    CAPTURE_RELAXED,
    EXTRA_END,
    INVALID_VALUE,
    OUT_OF_RESOURCES,
    PORTABLE_CLUSTER,
    STREAM_NON_BLOCKING,
    AttributeStruct,
    ConfigStruct,
    DeviceAttribute,
    FunctionAttribute,
    JitOption,
    LaunchAttribute,
    cuda_library,
)
from tiledsl.targets.nvptx.driver_options import driver_options
from tiledsl.targets.nvptx.ptxas import parse_resources
from tiledsl.targets.nvptx.tensor_map import TensorMap

_ARGUMENT_BASE = {9: 0x210, 10: 0x380, 12: 0x380}
"""By major capability, as ptxas lays parameters out (EIATTR_PARAM_CBANK of its cubins)."""


class _Device:
    """One device with its primary context, which is never given back: others may use it."""

    def __init__(self, library: DriverLibrary, index: int) -> None:
        self.library = library
        handle, context = c_int(), c_void_p()
        self.library.call("cuDeviceGet", byref(handle), index)
        self.handle = handle.value
        self.library.call("cuDevicePrimaryCtxRetain", byref(context), self.handle)
        self.context: int = context.value or 0

    def is_current(self) -> bool:
        """Whether this thread's calls already go to this device."""
        current = c_void_p()
        self.library.function("cuCtxGetCurrent")(byref(current))
        return current.value == self.context

    @contextmanager
    def current(self) -> Generator[None]:
        """Make this the thread's device, and put back what was."""
        if self.is_current():
            yield
            return
        self.library.call("cuCtxPushCurrent_v2", self.context)
        try:
            yield
        finally:
            self.library.call("cuCtxPopCurrent_v2", byref(c_void_p()))


class CudaKernel:
    """An entry point loaded on one device; see `tiledsl.targets.driver.Kernel`."""

    def __init__(
        self,
        device: _Device,
        function: int,
        entry: str,
        resources: Resources,
        shared_bytes: int,
        options: LaunchOptions,
    ) -> None:
        self.entry = entry
        self._resources = resources
        self._device = device
        self._function = function
        self._buffer = LaunchBuffer(EXTRA_END)
        self._library = library = device.library
        self._get_current = library.function("cuCtxGetCurrent")
        self._current = c_void_p()
        self._current_reference = byref(self._current)
        self._launch_kernel = library.function("cuLaunchKernelEx")
        self._config = _config(shared_bytes, options)
        self._config_reference = byref(self._config)
        self._shape = ((0, 0, 0), 0, 0)  # what the configuration holds

    @property
    def resources(self) -> Resources:
        """What the loaded code takes."""
        return self._resources

    @property
    def argument_base(self) -> int:
        """Where in its bank the device keeps arguments: those aligned to 64 are so in the bank."""
        major = _device_attribute(
            self._library, DeviceAttribute.CAPABILITY_MAJOR, self._device.handle
        )
        return _ARGUMENT_BASE.get(major, 0)

    def launch(self, grid: Grid, threads: int, arguments: bytes, stream: int = 0) -> None:
        """Queue one run; see the Protocol."""
        buffer = self._buffer
        with buffer.lock:
            shape = (grid, threads, stream)
            if shape != self._shape:
                if 0 in grid:
                    return
                self._set_shape(grid, threads, stream)
            buffer.fill(arguments)
            self._get_current(self._current_reference)
            if self._current.value == self._device.context:
                status = self._queue()
            else:
                with self._device.current():
                    status = self._queue()
        if status:
            raise self._refusal(status, grid, threads)

    def _queue(self) -> int:
        return self._launch_kernel(self._config_reference, self._function, None, self._buffer.extra)

    def _set_shape(self, grid: Grid, threads: int, stream: int) -> None:
        """Prepare for launches of another shape; C's integers would wrap, so check them first."""
        for axis, count, most in zip("xyz", grid, MAX_GRID, strict=True):
            if not 0 < count <= most:
                raise KernelError(
                    f"expected a grid of 1 to {most} programs along {axis}, found {grid}"
                )
        if not 0 < threads <= MAX_THREADS:
            raise KernelError(f"expected 1 to {MAX_THREADS} threads, found {threads}")
        self._config.grid[:] = grid
        self._config.block[:] = (threads, 1, 1)
        self._config.stream = stream
        self._shape = (grid, threads, stream)

    def _refusal(self, status: int, grid: Grid, threads: int) -> KernelError:
        """Say what the driver was asked, and if it was too much for the registers."""
        detail = f"\n  {self.entry}, grid {grid}, {threads} threads"
        if status in (INVALID_VALUE, OUT_OF_RESOURCES):
            with self._device.current():
                most = _function_attribute(
                    self._library, FunctionAttribute.MAX_THREADS, self._function
                )
            if threads > most:
                detail += f"; with {self._resources.registers} registers at most {most} threads"
        return self._library.error("cuLaunchKernelEx", status, detail)


def _config(shared_bytes: int, options: LaunchOptions) -> ConfigStruct:
    """Prepare what stays the same from launch to launch."""
    attributes: list[AttributeStruct] = []
    if options.cluster != (1, 1, 1):
        attributes.append(
            AttributeStruct(LaunchAttribute.CLUSTER_DIMENSION, 0, (c_uint * 16)(*options.cluster))
        )
    if options.programmatic:
        attributes.append(
            AttributeStruct(LaunchAttribute.PROGRAMMATIC_STREAM_SERIALIZATION, 0, (c_uint * 16)(1))
        )
    array = (AttributeStruct * len(attributes))(*attributes)
    return ConfigStruct(
        shared_bytes=shared_bytes, attributes=array, attribute_count=len(attributes)
    )


def _function_attribute(library: DriverLibrary, attribute: int, function: int) -> int:
    value = c_int()
    library.call("cuFuncGetAttribute", byref(value), attribute, function)
    return value.value


def _load_module(library: DriverLibrary, binary: bytes, compiler: str) -> tuple[int, str]:
    """Load a cubin or PTX; return the module and the driver's log of translating PTX."""
    info, errors = ctypes.create_string_buffer(1 << 16), ctypes.create_string_buffer(1 << 16)
    settings = {
        JitOption.INFO_LOG: ctypes.addressof(info),
        JitOption.INFO_LOG_BYTES: len(info),
        JitOption.ERROR_LOG: ctypes.addressof(errors),
        JitOption.ERROR_LOG_BYTES: len(errors),
        JitOption.VERBOSE: 1,
        **({} if binary.startswith(b"\x7fELF") else driver_options(compiler)),
    }
    module = c_void_p()
    status = library.function("cuModuleLoadDataEx")(
        byref(module),
        binary + b"\0",  # PTX is text that ends with a zero
        len(settings),
        (c_int * len(settings))(*settings),
        (c_void_p * len(settings))(*settings.values()),
    )
    if status:
        words = errors.value.decode(errors="replace").strip()
        raise library.error("cuModuleLoadDataEx", status, f"\n{words}" if words else "")
    return module.value or 0, info.value.decode(errors="replace")


@contextmanager
def _uncaptured(library: DriverLibrary) -> Generator[None]:
    """Let this thread load code while another, or itself, captures a graph, and not break it."""
    mode = c_int(CAPTURE_RELAXED)
    library.call("cuThreadExchangeStreamCaptureMode", byref(mode))
    try:
        yield
    finally:
        library.call("cuThreadExchangeStreamCaptureMode", byref(mode))


class CudaDriver:
    """NVIDIA's devices; see `tiledsl.targets.driver.Driver`."""

    name = "cuda"

    def __init__(self, library: DriverLibrary) -> None:
        self._library = library
        self._lock = threading.Lock()
        self._devices: dict[int, _Device] = {}
        self._count: int | None = None

    def _device(self, index: int) -> _Device:
        found = self._devices.get(index)
        if found is None:
            with self._lock:
                count = self._start()
                if not 0 <= index < count:
                    raise KernelError(f"expected a CUDA device below {count}, found cuda:{index}")
                found = self._devices.setdefault(index, _Device(self._library, index))
        return found

    def _start(self) -> int:
        """Bring the driver up once; return how many devices it shows, at least one."""
        if self._count is None:
            self._library.call("cuInit", 0)
            count = c_int()
            self._library.call("cuDeviceGetCount", byref(count))
            self._count = count.value
        if self._count == 0:
            raise KernelError("the NVIDIA driver shows no device")
        return self._count

    def version(self) -> tuple[int, int]:
        """Return the CUDA version that the driver supports, as (12, 8)."""
        value = c_int()
        self._library.call("cuDriverGetVersion", byref(value))
        return value.value // 1000, value.value % 1000 // 10

    def devices(self) -> Sequence[DeviceInfo]:
        """Every device the driver shows; takes no memory on any."""
        with self._lock:
            count = self._start()
        return [_device_info(self._library, index) for index in range(count)]

    def load(
        self,
        binary: bytes,
        entry: str,
        shared_bytes: int,
        device: int = 0,
        options: LaunchOptions = PLAIN_LAUNCH,
    ) -> CudaKernel:
        """Load a cubin, or PTX for the driver to translate; see the Protocol."""
        owner = self._device(device)
        with owner.current(), _uncaptured(self._library):
            module, log = _load_module(self._library, binary, options.compiler)
            handle = c_void_p()
            self._library.call("cuModuleGetFunction", byref(handle), module, entry.encode())
            function = handle.value or 0
            resources = _resources(self._library, function, parse_resources(log).get(entry))
            if resources.shared_bytes + shared_bytes > STATIC_SHARED_BYTES:
                most = _device_attribute(
                    self._library, DeviceAttribute.MAX_SHARED_BYTES, owner.handle
                )
                if resources.shared_bytes + shared_bytes > most:
                    raise KernelError(
                        f"{entry} needs {resources.shared_bytes + shared_bytes} bytes of shared "
                        f"memory, this device has {most} for one program",
                        hint="use smaller tiles or fewer num_stages",
                    )
                self._library.call(
                    "cuFuncSetAttribute",
                    function,
                    FunctionAttribute.MAX_DYNAMIC_SHARED_BYTES,
                    shared_bytes,
                )
            width, height, depth = options.cluster
            if width * height * depth > PORTABLE_CLUSTER:
                self._library.call(
                    "cuFuncSetAttribute", function, FunctionAttribute.NON_PORTABLE_CLUSTER, 1
                )
        return CudaKernel(owner, function, entry, resources, shared_bytes, options)

    def allocate(self, size: int, device: int = 0) -> int:
        """Return new device memory, aligned to at least 256 bytes."""
        address = c_uint64()
        with self._device(device).current():
            self._library.call("cuMemAlloc_v2", byref(address), max(size, 1))
        return address.value

    def free(self, address: int, device: int = 0) -> None:
        """Release memory; waits for work that may use it."""
        with self._device(device).current():
            self._library.call("cuMemFree_v2", address)

    def copy_in(self, address: int, array: NDArray[Any], device: int = 0) -> None:
        """Copy a NumPy array to the device."""
        with self._device(device).current():
            data = contiguous_address(array)
            if array.nbytes:
                self._library.call("cuMemcpyHtoD_v2", address, data, array.nbytes)

    def copy_out(self, array: NDArray[Any], address: int, device: int = 0) -> None:
        """Copy device memory to a NumPy array, after all queued work."""
        with self._device(device).current():
            self._library.call("cuCtxSynchronize")
            data = contiguous_address(array)
            if array.nbytes:
                self._library.call("cuMemcpyDtoH_v2", data, address, array.nbytes)

    def synchronize(self, device: int = 0) -> None:
        """Wait for all work on the device."""
        with self._device(device).current():
            self._library.call("cuCtxSynchronize")

    def create_stream(self, device: int = 0) -> int:
        """Return a new stream that does not wait for the default one."""
        stream = c_void_p()
        with self._device(device).current():
            self._library.call("cuStreamCreate", byref(stream), STREAM_NON_BLOCKING)
        return stream.value or 0

    def destroy_stream(self, stream: int, device: int = 0) -> None:
        """Release a stream; its queued work still runs."""
        with self._device(device).current():
            self._library.call("cuStreamDestroy_v2", stream)

    def is_capturing(self, stream: int = 0, device: int = 0) -> bool:
        """Return whether a stream records a graph; the legacy default stream cannot."""
        if stream == 0:
            return False
        status = c_int()
        with self._device(device).current():
            self._library.call("cuStreamIsCapturing", stream, byref(status))
        return status.value != 0

    def record_event(self, stream: int = 0, device: int = 0) -> int:
        """Mark this point of a stream."""
        event = c_void_p()
        with self._device(device).current():
            self._library.call("cuEventCreate", byref(event), 0)
            self._library.call("cuEventRecord", event, stream)
        return event.value or 0

    def elapsed_ms(self, start: int, end: int, device: int = 0) -> float:
        """Return milliseconds between two events, to about half a microsecond."""
        elapsed = c_float()
        with self._device(device).current():
            self._library.call("cuEventSynchronize", end)
            self._library.call("cuEventElapsedTime", byref(elapsed), start, end)
        return elapsed.value

    def destroy_event(self, event: int, device: int = 0) -> None:
        """Release an event."""
        with self._device(device).current():
            self._library.call("cuEventDestroy_v2", event)

    def encode_tensor_map(self, tensor_map: TensorMap, device: int = 0) -> bytes:
        """Return the 128 bytes that a kernel takes as a "tensormap" argument."""
        with self._device(device).current():
            storage = ctypes.create_string_buffer(128 + 64)
            place = -(-ctypes.addressof(storage) // 64) * 64
            rank = len(tensor_map.shape)
            self._library.call(
                "cuTensorMapEncodeTiled", place, tensor_map.type_code, rank, tensor_map.address,
                (c_uint64 * rank)(*tensor_map.shape),
                (c_uint64 * max(rank - 1, 1))(*tensor_map.strides),
                (ctypes.c_uint32 * rank)(*tensor_map.box),
                (ctypes.c_uint32 * rank)(*(1,) * rank),
                0, tensor_map.swizzle_code, tensor_map.l2_code, 0,
            )  # fmt: skip
            return ctypes.string_at(place, 128)


def _device_attribute(library: DriverLibrary, attribute: int, handle: int) -> int:
    value = c_int()
    library.call("cuDeviceGetAttribute", byref(value), attribute, handle)
    return value.value


def _device_info(library: DriverLibrary, index: int) -> DeviceInfo:
    handle, memory, name = c_int(), c_size_t(), ctypes.create_string_buffer(256)
    library.call("cuDeviceGet", byref(handle), index)
    library.call("cuDeviceGetName", name, len(name), handle.value)
    library.call("cuDeviceTotalMem_v2", byref(memory), handle.value)
    major = _device_attribute(library, DeviceAttribute.CAPABILITY_MAJOR, handle.value)
    minor = _device_attribute(library, DeviceAttribute.CAPABILITY_MINOR, handle.value)
    chip = chip_of_capability(major, minor)
    return DeviceInfo(
        index=index,
        name=name.value.decode(),
        chip=chip.name if chip else f"sm_{major}{minor}",
        native=chip is not None and chip.number == 10 * major + minor,
        memory_bytes=memory.value,
        multiprocessors=_device_attribute(
            library, DeviceAttribute.MULTIPROCESSOR_COUNT, handle.value
        ),
        shared_bytes=_device_attribute(library, DeviceAttribute.MAX_SHARED_BYTES, handle.value),
    )


def _resources(library: DriverLibrary, function: int, translated: Resources | None) -> Resources:
    """Ask the driver; only its log of translating PTX tells spills."""
    return Resources(
        registers=_function_attribute(library, FunctionAttribute.REGISTERS, function),
        spill_bytes=translated.spill_bytes if translated else None,
        local_bytes=_function_attribute(library, FunctionAttribute.LOCAL_BYTES, function),
        shared_bytes=_function_attribute(library, FunctionAttribute.SHARED_BYTES, function),
    )


@cache
def driver() -> Driver:
    """Return the one driver of this process, without touching hardware."""
    return CudaDriver(cuda_library())
