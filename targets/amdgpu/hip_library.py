"""The part of HIP's C interface that `driver` uses: functions, structures, numbers.

Source: hip_runtime_api.h of ROCm 6, and llvm's AMDGPU usage guide for kernel arguments.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

from tiledsl.targets.driver_library import DriverLibrary

_HANDLE = POINTER(c_void_p)


class Properties(ctypes.Structure):
    """hipDeviceProp_tR0600, 1472 bytes: the fields used, at their places in it."""

    _fields_ = (
        ("name", ctypes.c_char * 256),
        ("_uuid_and_luid", ctypes.c_char * 32),
        ("memory_bytes", c_size_t),
        ("shared_bytes", c_size_t),
        ("_registers", c_int),
        ("warp_size", c_int),
        ("_pitch_to_clock_rate", ctypes.c_char * 76),
        ("multiprocessors", c_int),
        ("_up_to_name", ctypes.c_char * 768),
        ("chip", ctypes.c_char * 256),  # "gfx942:sramecc+:xnack-"
        ("_rest", ctypes.c_char * 56),
    )


_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "hipInit": (c_uint,),
    "hipRuntimeGetVersion": (POINTER(c_int),),
    "hipGetDeviceCount": (POINTER(c_int),),
    "hipGetDevicePropertiesR0600": (POINTER(Properties), c_int),
    "hipGetDevice": (POINTER(c_int),),
    "hipSetDevice": (c_int,),
    "hipDeviceSynchronize": (),
    "hipModuleLoadData": (_HANDLE, c_char_p),
    "hipModuleGetFunction": (_HANDLE, c_void_p, c_char_p),
    "hipModuleLaunchKernel": (c_void_p, *(c_uint,) * 7, c_void_p, c_void_p, c_void_p),
    "hipMalloc": (POINTER(c_uint64), c_size_t),
    "hipFree": (c_uint64,),
    "hipMemcpyHtoD": (c_uint64, c_void_p, c_size_t),
    "hipMemcpyDtoH": (c_void_p, c_uint64, c_size_t),
    "hipStreamCreateWithFlags": (_HANDLE, c_uint),
    "hipStreamDestroy": (c_void_p,),
    "hipStreamIsCapturing": (c_void_p, POINTER(c_int)),
    "hipThreadExchangeStreamCaptureMode": (POINTER(c_int),),
    "hipEventCreate": (_HANDLE,),
    "hipEventRecord": (c_void_p, c_void_p),
    "hipEventSynchronize": (c_void_p,),
    "hipEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
    "hipEventDestroy": (c_void_p,),
}

_HINTS = {
    2: "free arrays, or use smaller ones",
    209: "the code is for another chip than this device's",
    700: "a kernel accessed memory outside its arrays; an emulator finds the access",
}

STREAM_NON_BLOCKING = 1
CAPTURE_RELAXED = 2
"""hipStreamCaptureMode: this thread may do what a graph does not record."""
NO_DEVICE = (100, 101)
"""What hipInit returns on a machine without a device; which one depends on the version."""

EXTRA_END = 3


def _describe(library: DriverLibrary, status: int) -> str:
    """Return "hipErrorName (words)"."""
    told = [
        library.text_function(name)(status).decode()
        for name in ("hipGetErrorName", "hipGetErrorString")
    ]
    return f"{told[0]} ({told[1]})"


def hip_library(*names: str) -> DriverLibrary:
    """Return HIP's library by the names it may have; the system's if none is given."""
    return DriverLibrary(
        title="AMD's HIP library",
        names=names
        or (
            "libamdhip64.so",
            "libamdhip64.so.7",
            "libamdhip64.so.6",
            "/opt/rocm/lib/libamdhip64.so",
        ),
        override="TILEDSL_LIBAMDHIP64",
        prototypes=_PROTOTYPES,
        describe=_describe,
        hints=_HINTS,
    )
