"""The part of the CUDA driver's C interface that `driver` uses: functions, structures, numbers.

Source: cuda.h; names with a version (`_v2`) are what the headers' plain names stand for.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from enum import IntEnum
from typing import Any

from tiledsl.targets.driver_library import DriverLibrary

_HANDLE = POINTER(c_void_p)


class AttributeStruct(ctypes.Structure):
    """CUlaunchAttribute: a tag and a union of 64 bytes."""

    _fields_ = (("id", c_int), ("padding", c_int), ("value", c_uint * 16))


class ConfigStruct(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_bytes", c_uint),
        ("stream", c_void_p),
        ("attributes", POINTER(AttributeStruct)),
        ("attribute_count", c_uint),
    )


_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDeviceTotalMem_v2": (POINTER(c_size_t), c_int),
    "cuDevicePrimaryCtxRetain": (_HANDLE, c_int),
    "cuCtxGetCurrent": (_HANDLE,),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (_HANDLE,),
    "cuCtxSynchronize": (),
    "cuModuleLoadDataEx": (_HANDLE, c_char_p, c_uint, POINTER(c_int), POINTER(c_void_p)),
    "cuModuleGetFunction": (_HANDLE, c_void_p, c_char_p),
    "cuFuncGetAttribute": (POINTER(c_int), c_int, c_void_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuLaunchKernelEx": (POINTER(ConfigStruct), c_void_p, c_void_p, c_void_p),
    "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemcpyHtoD_v2": (c_uint64, c_void_p, c_size_t),
    "cuMemcpyDtoH_v2": (c_void_p, c_uint64, c_size_t),
    "cuStreamCreate": (_HANDLE, c_uint),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuStreamIsCapturing": (c_void_p, POINTER(c_int)),
    "cuThreadExchangeStreamCaptureMode": (POINTER(c_int),),
    "cuEventCreate": (_HANDLE, c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
    "cuEventDestroy_v2": (c_void_p,),
    "cuTensorMapEncodeTiled": (
        c_void_p, c_int, c_uint, c_void_p, *(c_void_p,) * 4, c_int, c_int, c_int, c_int,
    ),
}  # fmt: skip

_HINTS = {
    2: "free arrays, or use smaller ones",
    209: "the code is for another chip than this device's",
    218: "this driver is too old for the PTX: update it, or install nvidia-cuda-nvcc",
    222: "this driver is too old for the PTX: update it, or install nvidia-cuda-nvcc",
    700: "a kernel accessed memory outside its arrays; an emulator finds the access",
    715: "a kernel ran an instruction that this device does not have",
    716: "a kernel's access was not aligned to its size; an emulator finds the access",
}


class DeviceAttribute(IntEnum):
    """CUdevice_attribute."""

    MULTIPROCESSOR_COUNT = 16
    CAPABILITY_MAJOR = 75
    CAPABILITY_MINOR = 76
    MAX_SHARED_BYTES = 97


class FunctionAttribute(IntEnum):
    """CUfunction_attribute."""

    MAX_THREADS = 0
    SHARED_BYTES = 1
    LOCAL_BYTES = 3
    REGISTERS = 4
    MAX_DYNAMIC_SHARED_BYTES = 8
    NON_PORTABLE_CLUSTER = 14


class JitOption(IntEnum):
    """CUjit_option."""

    MAX_REGISTERS = 0
    INFO_LOG = 3
    INFO_LOG_BYTES = 4
    ERROR_LOG = 5
    ERROR_LOG_BYTES = 6
    OPTIMIZATION_LEVEL = 7
    DEBUG_INFO = 11
    VERBOSE = 12
    LINE_INFO = 13


class LaunchAttribute(IntEnum):
    """CUlaunchAttributeID."""

    CLUSTER_DIMENSION = 4
    PROGRAMMATIC_STREAM_SERIALIZATION = 6


INVALID_VALUE, OUT_OF_RESOURCES = 1, 701
STREAM_NON_BLOCKING = 1
CAPTURE_RELAXED = 2
"""CUstreamCaptureMode: this thread may do what a graph does not record."""
EXTRA_END = 0
PORTABLE_CLUSTER = 8
"""Blocks that a cluster may have on every chip that has clusters."""


def _describe(library: DriverLibrary, status: int) -> str:
    """Return "CUDA_ERROR_NAME (words)"."""
    told: list[str] = []
    for function in ("cuGetErrorName", "cuGetErrorString"):
        text = c_char_p()
        library.function(function)(status, byref(text))
        told.append(text.value.decode() if text.value else str(status))
    return f"{told[0]} ({told[1]})"


def cuda_library(*names: str) -> DriverLibrary:
    """Return the driver's library by the names it may have; the system's if none is given."""
    return DriverLibrary(
        title="the NVIDIA driver",
        names=names or ("libcuda.so.1", "libcuda.so", "nvcuda.dll"),
        override="TILEDSL_LIBCUDA",
        prototypes=_PROTOTYPES,
        describe=_describe,
        hints=_HINTS,
    )
