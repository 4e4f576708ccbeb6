"""Memory that arrays of other libraries share by a protocol: DLPack, the CUDA array interface.

Both protocols are read here and nowhere else. What an object answers is checked before an address
is taken from it: what is not of the protocol's form is a `KernelError` that says what it should
have been (the caller adds the parameter's name).

DLPack: https://dmlc.github.io/dlpack/latest/c_api.html, before 1.0 and from then on.
CUDA array interface, versions 2 and 3: Numba's documentation.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from tiledsl.dialects.diagnostics import KernelError


class _DLDevice(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class DLTensor(ctypes.Structure):
    """The head of a DLPack tensor, as the specification's dlpack.h lays it out."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _DLManagedTensorVersioned(ctypes.Structure):
    """What a capsule of DLPack 1.0 and later holds."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    )


_VERSION = (1, 0)
_READ_ONLY, _COPIED = 1, 2
"""Bits of a versioned tensor's flags."""

_pointer_in = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_is_capsule = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)


class Shared(NamedTuple):
    """Memory that an object shares by DLPack; valid while the capsule lives."""

    tensor: DLTensor
    read_only: bool
    capsule: object


def dlpack(value: Any) -> Shared:
    """Ask an object for its memory by DLPack, of version 1 if it knows that.

    Raises:
        KernelError: It answers with something else, or with a copy, which no kernel can write
            through.
    """
    try:
        # Version 1 can say that memory is read-only, where the one before can only refuse.
        capsule = value.__dlpack__(max_version=_VERSION)
    except TypeError:
        capsule = value.__dlpack__()
    if _is_capsule(capsule, b"dltensor"):
        tensor = DLTensor.from_address(_pointer_in(capsule, b"dltensor"))
        return Shared(tensor, False, capsule)
    if not _is_capsule(capsule, b"dltensor_versioned"):
        raise _not_shared(value, "a DLPack capsule", f"{capsule!r:.80}")
    held = _DLManagedTensorVersioned.from_address(_pointer_in(capsule, b"dltensor_versioned"))
    if held.major != _VERSION[0]:
        raise _not_shared(value, "DLPack of version 1", f"version {held.major}.{held.minor}")
    if held.flags & _COPIED:
        raise _not_shared(value, "the memory itself", "a copy of it")
    return Shared(held.tensor, bool(held.flags & _READ_ONLY), capsule)


def _not_shared(value: object, expected: str, found: str) -> KernelError:
    return KernelError(
        f"expected {expected} from `__dlpack__` of a {type(value).__name__}, found {found}"
    )


class OnCuda(NamedTuple):
    """Memory that an object shares by the CUDA array interface.

    `strides` are in bytes; None of a dense array.
    """

    dtype: np.dtype[Any]
    address: int
    read_only: bool
    shape: Sequence[int]
    strides: Sequence[int] | None


def cuda_interface(value: Any) -> OnCuda:
    """Read the CUDA array interface of an object.

    Raises:
        KernelError: It is not of the form that its specification asks for.
    """
    interface: object = value.__cuda_array_interface__
    if not isinstance(interface, Mapping):
        raise _malformed(value, "a dictionary as", interface)
    known = cast("Mapping[str, Any]", interface)
    try:
        address, read_only = known["data"]
        address = operator.index(address or 0)  # None in an array without elements
    except (KeyError, TypeError, ValueError):
        raise _malformed(value, "`data`, an address and a flag, in", known) from None
    try:
        dtype = np.dtype(known["typestr"])
    except (KeyError, TypeError):
        raise _malformed(value, "`typestr`, one of NumPy's, in", known) from None
    if known.get("mask") is not None:
        raise _malformed(value, "no `mask`, which kernels do not look at, in", known)
    shape = known.get("shape")
    if not isinstance(shape, tuple):
        raise _malformed(value, "`shape`, a tuple, in", known)
    return OnCuda(dtype, address, bool(read_only), shape, known.get("strides"))


def _malformed(value: object, expected: str, found: object) -> KernelError:
    return KernelError(
        f"expected {expected} the `__cuda_array_interface__` of a {type(value).__name__}, "
        f"found {found!r:.100}"
    )
