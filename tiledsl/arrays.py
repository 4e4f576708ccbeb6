"""Read kernel arguments of any library: what type, which address, on which device.

NumPy and torch arrays, CuPy and Numba arrays (`__cuda_array_interface__`), anything with
`__dlpack__`, Python and NumPy scalars. No library is imported here that the caller has not
imported: a reader is chosen once for each Python type, by what that type has.

Contract: `read(value)` gives an `Argument`; a value of no known kind gives None, and the caller,
who knows the parameter's name, words the error. An array is passed as the address of its first
element, so strides are the kernel's business; an empty array is a pointer too. Nothing is copied.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from tiledsl.dialects.diagnostics import KernelError
from tiledsl.foreign import cuda_interface, dlpack
from tiledsl.specialize import (
    DIVISOR,
    FLOATS,
    INTEGERS,
    ArgType,
    integer_type,
    sharing,
    specialize_integer,
)

HOST = "host"


Argument = tuple[ArgType, int | float, str | None]
"""One argument as a launch needs it: what the compiler may know of it; the value to pack, an
address, an integer or a float; and where an array lives, "host", "cuda:0" or "hip:0", None for a
scalar. A plain tuple, because a launch makes one an argument."""


class HostMemory(NamedTuple):
    """The bytes that an array in host memory spans: from `low` to before `high`."""

    low: int
    high: int
    writable: bool


_NUMPY_NAMES: dict[np.dtype[Any], str] = {
    np.dtype(np.bool_): "i1",
    **{
        np.dtype(f"{'' if signed else 'u'}int{bits}"): name
        for name, (bits, signed) in INTEGERS.items()
    },
    np.dtype(np.float16): "fp16",
    np.dtype(np.float32): "fp32",
    np.dtype(np.float64): "fp64",
    np.dtype(ml_dtypes.bfloat16): "bf16",
    np.dtype(ml_dtypes.float8_e4m3fn): "fp8e4m3",
    np.dtype(ml_dtypes.float8_e5m2): "fp8e5m2",
}
_BY_NAME = {name: dtype for dtype, name in _NUMPY_NAMES.items()}
_TORCH_NAMES = {
    "bool": "i1",
    **{f"{'' if signed else 'u'}int{bits}": name for name, (bits, signed) in INTEGERS.items()},
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float64": "fp64",
    "float8_e4m3fn": "fp8e4m3",
    "float8_e5m2": "fp8e5m2",
}


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype (perhaps of ml_dtypes) of the element type called `name`."""
    return _BY_NAME[name]


@cache
def _pointer_types(dtype: str) -> tuple[ArgType, ArgType]:
    return ArgType(dtype, pointer=True), ArgType(dtype, pointer=True, divisor=DIVISOR)


def pointer(dtype: str, address: int, place: str) -> Argument:
    """Return the argument for an array of `dtype` at `address`."""
    return _pointer_types(dtype)[address % DIVISOR == 0], address, place


_scalar_type = cache(ArgType)
_FLOAT = _scalar_type("fp32")


def _read_bool(value: object) -> Argument:
    return _scalar_type("i1"), int(bool(value)), None


@lru_cache(maxsize=4096)  # sizes and strides come again at every launch
def _read_int(value: int) -> Argument | None:
    dtype = integer_type(value)
    return None if dtype is None else (specialize_integer(dtype, int(value)), int(value), None)


def _read_float(value: float) -> Argument:
    return _FLOAT, value, None


def _read_numpy_scalar(value: np.generic) -> Argument | None:
    name = _NUMPY_NAMES.get(value.dtype)
    if name in INTEGERS:
        return specialize_integer(name, int(value)), int(value), None
    if name in FLOATS:
        return _scalar_type(name), float(value), None
    return _read_bool(value) if name == "i1" else None


def _read_numpy(value: np.ndarray[Any, Any]) -> Argument | None:
    name = _NUMPY_NAMES.get(value.dtype)
    if name is None:
        return None
    # The array interface's dictionary costs half of what `value.ctypes` does.
    return pointer(name, value.__array_interface__["data"][0], HOST)


def _torch_reader() -> Callable[[Any], Argument | None]:
    torch: Any = sys.modules["torch"]

    names = {
        getattr(torch, spelled): name
        for spelled, name in _TORCH_NAMES.items()
        if hasattr(torch, spelled)
    }
    vendor = "hip" if torch.version.hip else "cuda"
    places = {-1: HOST, **{i: f"{vendor}:{i}" for i in range(64)}}

    def read_torch(value: Any) -> Argument | None:
        name = names.get(value.dtype)
        if name is None or not (value.is_cuda or value.device.type == "cpu"):
            return None
        return pointer(name, value.data_ptr(), places[value.get_device()])

    return read_torch


def _read_cuda_interface(value: Any) -> Argument | None:
    """Read by the CUDA array interface (CuPy, Numba, RAPIDS)."""
    shared = cuda_interface(value)
    name = _NUMPY_NAMES.get(shared.dtype)
    if name is None:
        return None
    device = getattr(getattr(value, "device", None), "id", 0)
    return pointer(name, shared.address, f"cuda:{int(device)}")


_DLPACK_PLACES = {1: "host", 2: "cuda", 3: "host", 10: "hip", 11: "host", 13: "cuda"}
"""DLDeviceType to place: CPU, CUDA, CUDA pinned host, ROCm, ROCm pinned host, CUDA managed."""
_DLPACK_CODES = {0: "i{}", 1: "u{}", 2: "fp{}", 4: "bf{}", 6: "i1", 10: "fp8e4m3", 12: "fp8e5m2"}
"""DLDataTypeCode to a name with the bits in place of {}."""


def _read_dlpack(value: Any) -> Argument | None:
    shared = dlpack(value)
    tensor = shared.tensor
    spelled = _DLPACK_CODES.get(tensor.code, "").format(tensor.bits)
    place = _DLPACK_PLACES.get(tensor.device.type)
    if tensor.lanes != 1 or place is None or spelled not in _BY_NAME:
        return None
    where = HOST if place == HOST else f"{place}:{tensor.device.id}"
    return pointer(spelled, (tensor.data or 0) + tensor.byte_offset, where)


Reader = Callable[[Any], Argument | None]
_readers: dict[type, Reader | None] = {
    bool: _read_bool,
    int: _read_int,
    float: _read_float,
    np.ndarray: _read_numpy,
}


@cache
def is_torch_tensor(kind: type) -> bool:
    """Return whether a Python type is torch's tensor or derived from it."""
    return any(c.__module__ == "torch" and c.__name__ == "Tensor" for c in kind.__mro__)


def _choose(kind: type[Any]) -> Reader | None:
    """Return the reader for a Python type seen for the first time."""
    if issubclass(kind, np.generic):
        return _read_numpy_scalar
    if issubclass(kind, np.ndarray):
        return _read_numpy
    if issubclass(kind, int):
        return _read_int
    if issubclass(kind, float):
        return _read_float
    if is_torch_tensor(kind):
        return _torch_reader()
    if hasattr(kind, "__cuda_array_interface__"):
        return _read_cuda_interface
    return _read_dlpack if hasattr(kind, "__dlpack__") else None


def read(value: object) -> Argument | None:
    """Return what a launch needs of `value`, or None where it is no array and no number.

    Integers are i32 where they fit, else i64, else u64; Python floats are fp32; NumPy scalars and
    arrays keep their type.

    Raises:
        KernelError: It is an array that does not share its memory as it should; the caller adds
            the parameter's name.
    """
    kind = type(value)
    if kind not in _readers:
        _readers[kind] = _choose(kind)
    reader = _readers[kind]
    if reader is None:
        return None
    try:
        return reader(value)
    except KernelError:
        raise
    except Exception as error:  # whatever a foreign array raises when it is asked for its memory
        words = f"{type(error).__name__}: {error}"
        raise KernelError(
            f"expected an array that shares its memory, found a {kind.__name__} that raises {words}"
        ) from error


def is_array(value: object) -> bool:
    """Return whether `value` is an array of some library (whatever its element type)."""
    return _is_array_type(type(value))


@cache
def _is_array_type(kind: type[Any]) -> bool:
    return (
        issubclass(kind, np.ndarray)
        or is_torch_tensor(kind)
        or hasattr(kind, "__cuda_array_interface__")
        or (hasattr(kind, "__dlpack__") and not issubclass(kind, np.generic))
    )


def is_writable(value: object) -> bool:
    """Return whether a kernel may store into an array that `read` has read."""
    if isinstance(value, np.ndarray):
        return value.flags.writeable
    reader = _readers.get(type(value))
    if reader is _read_dlpack:
        return not dlpack(value).read_only
    return reader is not _read_cuda_interface or not cuda_interface(value).read_only


def _span(address: int, shape: Sequence[int], byte_strides: Sequence[int], size: int) -> range:
    if math.prod(shape) == 0:
        return range(address, address)
    steps = [(n - 1) * stride for n, stride in zip(shape, byte_strides, strict=True)]
    low = address + sum(step for step in steps if step < 0)
    return range(low, address + sum(step for step in steps if step > 0) + size)


def _dense(shape: Sequence[int], size: int) -> list[int]:
    """Return the strides in bytes of an array without gaps, rows first."""
    return [size * math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


class Extent(NamedTuple):
    """Where the elements of an array are; strides in bytes."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item_bytes: int
    writable: bool


def extent(value: object) -> Extent:
    """Return where the elements of an array are, on the host or where it lives.

    Raises:
        KernelError: It does not share its memory as it should.
    """
    array: Any = value
    if isinstance(value, np.ndarray):
        # The array interface's dictionary costs half of what `array.ctypes` does.
        address, read_only = array.__array_interface__["data"]
        return Extent(address, array.shape, array.strides, array.itemsize, not read_only)
    if is_torch_tensor(type(value)):
        size = array.element_size()
        strides = tuple(stride * size for stride in array.stride())
        return Extent(array.data_ptr(), tuple(array.shape), strides, size, True)
    if hasattr(type(value), "__cuda_array_interface__"):
        on_cuda = cuda_interface(value)
        size = on_cuda.dtype.itemsize
        steps = on_cuda.strides or _dense(on_cuda.shape, size)
        return Extent(
            on_cuda.address, tuple(on_cuda.shape), tuple(steps), size, not on_cuda.read_only
        )
    shared = dlpack(value)
    tensor = shared.tensor
    size = tensor.bits // 8
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(_dense(shape, size))
    if tensor.strides:
        strides = tuple(tensor.strides[i] * size for i in range(tensor.ndim))
    address = (tensor.data or 0) + tensor.byte_offset
    return Extent(address, shape, strides, size, not shared.read_only)


def host_memory(value: object) -> HostMemory:
    """Return the bytes that an array spans, on the host or where it lives."""
    found = extent(value)
    span = _span(found.address, found.shape, found.strides, found.item_bytes)
    return HostMemory(span.start, span.stop, found.writable)


def same_arrays(
    packed: Sequence[float], places: Sequence[str | None], objects: Sequence[object]
) -> tuple[tuple[int, int], ...]:
    """Return the places of arguments that are an earlier one's array, each with that one's place.

    What may be written and what may not are never taken for one: who stores where is still known.
    """
    arrays = [i for i, place in enumerate(places) if place is not None]
    if not sharing([packed[i] for i in arrays]):
        return ()
    found: dict[tuple[float, bool], int] = {}
    firsts = [(i, found.setdefault((packed[i], is_writable(objects[i])), i)) for i in arrays]
    return tuple((i, first) for i, first in firsts if i != first)
