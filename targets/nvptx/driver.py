"""Run kernels on NVIDIA GPUs through their driver, which every GPU machine has.

Works in each device's primary context, the one that the CUDA runtime, torch and CuPy share, so that
their arrays and streams can be used as they are. See `tiledsl.targets.driver` for the contract.

A launch on the hot path makes two calls, cuCtxGetCurrent and cuLaunchKernelEx, on a configuration
that is prepared when the kernel is loaded and changes only with the grid, the threads or the
stream, and on a list of the arguments' addresses that never does.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

from numpy.typing import NDArray

from tiledsl.dialects.diagnostics import KernelError
from tiledsl.targets.buffers import LaunchBuffer, contiguous_address
from tiledsl.targets.driver import (
    PLAIN_LAUNCH,
    DeviceInfo,
    Driver,
    Grid,
    LaunchOptions,
    Resources,
)
from tiledsl.targets.nvptx.chips import (
    MAX_GRID,
    MAX_THREADS,
    STATIC_SHARED_BYTES,
    chip_of_capability,
)
from tiledsl.targets.nvptx.cuda_library import UNANSWERED, CudaLibrary, split_version
from tiledsl.targets.nvptx.driver_options import driver_options
from tiledsl.targets.nvptx.ptxas import parse_resources
from tiledsl.targets.nvptx.tensor_map import TensorMap

_DEPENDENT_LAUNCHES_IN_GRAPHS = (12, 3)
"""The first CUDA that captures launches that begin before the one ahead has ended."""
_ARGUMENT_BASE = {9: 0x210, 10: 0x380, 12: 0x380}
"""By major capability, as ptxas lays parameters out (EIATTR_PARAM_CBANK of its cubins)."""

_EXTRA_END = 0
_PORTABLE_CLUSTER = 8
"""Blocks that a cluster may have on every chip that has clusters."""
_LOG_BYTES = 1 << 16
_MOST_SHARED = "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"


class _Device:
    """One device with its primary context, which is never given back: others may use it."""

    def __init__(self, library: CudaLibrary, index: int) -> None:
        self.library = library
        self.handle: Any = library.call("cuDeviceGet", index)
        self.context: Any = library.call("cuDevicePrimaryCtxRetain", self.handle)

    def is_current(self) -> bool:
        """Whether this thread's calls already go to this device."""
        return self.context == self.library.api.cuCtxGetCurrent()[1]

    @contextmanager
    def current(self) -> Generator[None]:
        """Make this the thread's device, and put back what was."""
        if self.is_current():
            yield
            return
        self.library.call("cuCtxPushCurrent", self.context)
        try:
            yield
        finally:
            self.library.call("cuCtxPopCurrent")


class CudaKernel:
    """An entry point loaded on one device; see `tiledsl.targets.driver.Kernel`."""

    def __init__(
        self,
        device: _Device,
        function: Any,
        entry: str,
        resources: Resources,
        shared_bytes: int,
        options: LaunchOptions,
    ) -> None:
        self.entry = entry
        self._resources = resources
        self._device = device
        self._function = function
        self._buffer = LaunchBuffer(_EXTRA_END)
        self._library = device.library
        self._context = device.context
        self._get_current = device.library.api.cuCtxGetCurrent
        self._launch_kernel = device.library.api.cuLaunchKernelEx
        self._config = _config(device.library.api, shared_bytes, options)
        self._shape = ((0, 0, 0), 0, 0)  # what the configuration holds

    @property
    def resources(self) -> Resources:
        """What the loaded code takes."""
        return self._resources

    @property
    def argument_base(self) -> int:
        """Where in its bank the device keeps arguments: those aligned to 64 are so in the bank."""
        major = self._library.device_attribute("COMPUTE_CAPABILITY_MAJOR", self._device.handle)
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
            if self._context == self._get_current()[1]:
                status = self._queue()
            else:
                with self._device.current():
                    status = self._queue()
        if status:
            raise self._refusal(status, grid, threads)

    def _queue(self) -> Any:
        try:
            return self._launch_kernel(self._config, self._function, None, self._buffer.extra)[0]
        except UNANSWERED as error:
            raise self._library.unanswered("cuLaunchKernelEx", error) from error

    def _set_shape(self, grid: Grid, threads: int, stream: int) -> None:
        """Prepare for launches of another shape; C's integers would wrap, so check them first."""
        for axis, count, most in zip("xyz", grid, MAX_GRID, strict=True):
            if not 0 < count <= most:
                raise KernelError(
                    f"expected a grid of 1 to {most} programs along {axis}, found {grid}"
                )
        if not 0 < threads <= MAX_THREADS:
            raise KernelError(f"expected 1 to {MAX_THREADS} threads, found {threads}")
        config = self._config
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX = threads
        config.hStream = stream
        self._shape = (grid, threads, stream)

    def _refusal(self, status: Any, grid: Grid, threads: int) -> KernelError:
        """Say what the driver was asked, and if it was too much for the registers."""
        detail = f"\n  {self.entry}, grid {grid}, {threads} threads"
        if status.name in ("CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"):
            with self._device.current():
                most = self._library.function_attribute("MAX_THREADS_PER_BLOCK", self._function)
            if threads > most:
                detail += f"; with {self._resources.registers} registers at most {most} threads"
        return self._library.error("cuLaunchKernelEx", status, detail)


def _config(api: Any, shared_bytes: int, options: LaunchOptions) -> Any:
    """Prepare what stays the same from launch to launch."""
    attributes: list[Any] = []
    if options.cluster != (1, 1, 1):
        cluster = api.CUlaunchAttribute()
        cluster.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        size = cluster.value.clusterDim
        size.x, size.y, size.z = options.cluster
        attributes.append(cluster)
    if options.programmatic:
        early = api.CUlaunchAttribute()
        early.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        early.value.programmaticStreamSerializationAllowed = 1
        attributes.append(early)
    config = api.CUlaunchConfig()
    config.blockDimY = config.blockDimZ = 1
    config.sharedMemBytes = shared_bytes
    config.attrs = attributes
    config.numAttrs = len(attributes)
    return config


def _load_module(library: CudaLibrary, binary: bytes, compiler: str) -> tuple[Any, str]:
    """Load a cubin or PTX; return the module and the driver's log of translating PTX."""
    info, errors = bytearray(_LOG_BYTES), bytearray(_LOG_BYTES)
    settings = {
        "INFO_LOG_BUFFER": info,
        "INFO_LOG_BUFFER_SIZE_BYTES": len(info),
        "ERROR_LOG_BUFFER": errors,
        "ERROR_LOG_BUFFER_SIZE_BYTES": len(errors),
        "LOG_VERBOSE": 1,
        **({} if binary.startswith(b"\x7fELF") else driver_options(compiler)),
    }
    status, module = library.answer(
        "cuModuleLoadDataEx",
        binary + b"\0",  # PTX is text that ends with a zero
        len(settings),
        [getattr(library.api.CUjit_option, f"CU_JIT_{name}") for name in settings],
        list(settings.values()),
    )
    if status:
        words = _text(errors).strip()
        raise library.error("cuModuleLoadDataEx", status, f"\n{words}" if words else "")
    return module, _text(info)


def _text(buffer: bytes | bytearray) -> str:
    """Return what a buffer holds up to its first zero."""
    return buffer.partition(b"\0")[0].decode(errors="replace")


@contextmanager
def _uncaptured(library: CudaLibrary) -> Generator[None]:
    """Let this thread load code while another, or itself, captures a graph, and not break it."""
    relaxed = library.api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = library.call("cuThreadExchangeStreamCaptureMode", relaxed)
    try:
        yield
    finally:
        library.call("cuThreadExchangeStreamCaptureMode", before)


class CudaDriver:
    """NVIDIA's devices; see `tiledsl.targets.driver.Driver`."""

    name = "cuda"

    def __init__(self, library: CudaLibrary) -> None:
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
            self._count = int(self._library.call("cuDeviceGetCount"))
        if self._count == 0:
            raise KernelError("the NVIDIA driver shows no device")
        return self._count

    def version(self) -> tuple[int, int]:
        """Return the CUDA version that the driver supports, as (12, 8)."""
        return split_version(self._library.call("cuDriverGetVersion"))

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
            function = self._library.call("cuModuleGetFunction", module, entry.encode())
            resources = _resources(self._library, function, parse_resources(log).get(entry))
            if resources.shared_bytes + shared_bytes > STATIC_SHARED_BYTES:
                _allow_shared(owner, function, entry, resources.shared_bytes, shared_bytes)
            width, height, depth = options.cluster
            if width * height * depth > _PORTABLE_CLUSTER:
                self._library.set_function_attribute(
                    "NON_PORTABLE_CLUSTER_SIZE_ALLOWED", function, 1
                )
        if options.programmatic and self.version() < _DEPENDENT_LAUNCHES_IN_GRAPHS:
            options = replace(options, programmatic=False)
        return CudaKernel(owner, function, entry, resources, shared_bytes, options)

    def allocate(self, size: int, device: int = 0) -> int:
        """Return new device memory, aligned to at least 256 bytes."""
        with self._device(device).current():
            return int(self._library.call("cuMemAlloc", max(size, 1)))

    def free(self, address: int, device: int = 0) -> None:
        """Release memory; waits for work that may use it."""
        with self._device(device).current():
            self._library.call("cuMemFree", address)

    def copy_in(self, address: int, array: NDArray[Any], device: int = 0) -> None:
        """Copy a NumPy array to the device."""
        with self._device(device).current():
            data = contiguous_address(array)
            if array.nbytes:
                self._library.call("cuMemcpyHtoD", address, data, array.nbytes)

    def copy_out(self, array: NDArray[Any], address: int, device: int = 0) -> None:
        """Copy device memory to a NumPy array, after all queued work."""
        with self._device(device).current():
            self._library.call("cuCtxSynchronize")
            data = contiguous_address(array)
            if array.nbytes:
                self._library.call("cuMemcpyDtoH", data, address, array.nbytes)

    def synchronize(self, device: int = 0) -> None:
        """Wait for all work on the device."""
        with self._device(device).current():
            self._library.call("cuCtxSynchronize")

    def create_stream(self, device: int = 0) -> int:
        """Return a new stream that does not wait for the default one."""
        flags = self._library.api.CUstream_flags.CU_STREAM_NON_BLOCKING
        with self._device(device).current():
            return int(self._library.call("cuStreamCreate", flags))

    def destroy_stream(self, stream: int, device: int = 0) -> None:
        """Release a stream; its queued work still runs."""
        with self._device(device).current():
            self._library.call("cuStreamDestroy", stream)

    def is_capturing(self, stream: int = 0, device: int = 0) -> bool:
        """Return whether a stream records a graph; the legacy default stream cannot."""
        if stream == 0:
            return False
        with self._device(device).current():
            return bool(self._library.call("cuStreamIsCapturing", stream))

    def record_event(self, stream: int = 0, device: int = 0) -> int:
        """Mark this point of a stream."""
        with self._device(device).current():
            event = self._library.call("cuEventCreate", 0)
            self._library.call("cuEventRecord", event, stream)
        return int(event)

    def elapsed_ms(self, start: int, end: int, device: int = 0) -> float:
        """Return milliseconds between two events, to about half a microsecond."""
        with self._device(device).current():
            self._library.call("cuEventSynchronize", end)
            return self._library.call("cuEventElapsedTime", start, end)

    def destroy_event(self, event: int, device: int = 0) -> None:
        """Release an event."""
        with self._device(device).current():
            self._library.call("cuEventDestroy", event)

    def encode_tensor_map(self, tensor_map: TensorMap, device: int = 0) -> bytes:
        """Return the 128 bytes that a kernel takes as a "tensormap" argument."""
        with self._device(device).current():
            encoded = self._library.call(
                "cuTensorMapEncodeTiled", *_tensor_map_arguments(self._library.api, tensor_map)
            )
        return ctypes.string_at(encoded.getPtr(), 128)


def _tensor_map_arguments(api: Any, described: TensorMap) -> list[Any]:
    """Return what cuTensorMapEncodeTiled takes for a description."""
    shape, strides, box = described.shape, described.strides, described.box
    return [
        api.CUtensorMapDataType(described.type_code),
        len(shape),
        described.address,
        [api.cuuint64_t(size) for size in shape],
        [api.cuuint64_t(stride) for stride in strides or (0,)],  # without any, not NULL
        [api.cuuint32_t(size) for size in box],
        [api.cuuint32_t(1) for _ in box],
        api.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        api.CUtensorMapSwizzle(described.swizzle_code),
        api.CUtensorMapL2promotion(described.l2_code),
        api.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    ]


def _device_info(library: CudaLibrary, index: int) -> DeviceInfo:
    handle = library.call("cuDeviceGet", index)
    major = library.device_attribute("COMPUTE_CAPABILITY_MAJOR", handle)
    minor = library.device_attribute("COMPUTE_CAPABILITY_MINOR", handle)
    chip = chip_of_capability(major, minor)
    return DeviceInfo(
        index=index,
        name=_text(library.call("cuDeviceGetName", 256, handle)),
        chip=chip.name if chip else f"sm_{major}{minor}",
        native=chip is not None and chip.number == 10 * major + minor,
        memory_bytes=library.call("cuDeviceTotalMem", handle),
        multiprocessors=library.device_attribute("MULTIPROCESSOR_COUNT", handle),
        shared_bytes=library.device_attribute(_MOST_SHARED, handle),
    )


def _allow_shared(owner: _Device, function: Any, entry: str, static: int, dynamic: int) -> None:
    """Ask for more shared memory than a kernel has by right, if the device has so much."""
    most = owner.library.device_attribute(_MOST_SHARED, owner.handle)
    if static + dynamic > most:
        raise KernelError(
            f"{entry} needs {static + dynamic} bytes of shared memory, this device has {most} for "
            "one program",
            hint="use smaller tiles or fewer num_stages",
        )
    owner.library.set_function_attribute("MAX_DYNAMIC_SHARED_SIZE_BYTES", function, dynamic)


def _resources(library: CudaLibrary, function: Any, translated: Resources | None) -> Resources:
    """Ask the driver; only its log of translating PTX tells spills."""
    return Resources(
        registers=library.function_attribute("NUM_REGS", function),
        spill_bytes=translated.spill_bytes if translated else None,
        local_bytes=library.function_attribute("LOCAL_SIZE_BYTES", function),
        shared_bytes=library.function_attribute("SHARED_SIZE_BYTES", function),
    )


@cache
def driver() -> Driver:
    """Return the one driver of this process, without touching hardware."""
    return CudaDriver(CudaLibrary())
