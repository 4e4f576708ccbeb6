"""DLPack and the CUDA array interface, well formed and not."""

import ctypes
from typing import Any

import numpy as np
import pytest

from tiledsl.dialects.diagnostics import KernelError
from tiledsl.foreign import cuda_interface, dlpack


class Array:
    """Answers `__dlpack__` with whatever it was given."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __dlpack__(self, **options: Any) -> Any:
        return self.answer(**options) if callable(self.answer) else self.answer


def versioned(flags: int, major: int = 1) -> object:
    """Return a capsule of DLPack 1 whose tensor is at address 64."""
    words = (ctypes.c_uint64 * 16)()
    words[0] = major
    words[3] = flags
    words[4] = 64
    new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
        ("PyCapsule_New", ctypes.pythonapi)
    )
    kept.append(words)
    return new(ctypes.addressof(words), b"dltensor_versioned", None)


kept: list[Any] = []


def test_dlpack_before_version_1_knows_no_maximum_and_is_writable() -> None:
    array = np.arange(4.0)

    def before_version_1() -> object:
        return array.__dlpack__()

    shared = dlpack(Array(before_version_1))
    assert (shared.tensor.data, shared.tensor.bits) == (array.ctypes.data, 64)
    assert not shared.read_only


def test_dlpack_of_version_1_tells_what_is_read_only() -> None:
    assert dlpack(Array(versioned(0))).tensor.data == 64
    assert not dlpack(Array(versioned(0))).read_only
    assert dlpack(Array(versioned(1))).read_only


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "expected a DLPack capsule from `__dlpack__` of a Array, found None"),
        ("x", "expected a DLPack capsule from `__dlpack__` of a Array, found 'x'"),
        (
            versioned(0, major=2),
            "expected DLPack of version 1 from `__dlpack__` of a Array, found version 2.0",
        ),
        (
            versioned(2),
            "expected the memory itself from `__dlpack__` of a Array, found a copy of it",
        ),
    ],
)
def test_what_is_no_dlpack_is_refused(answer: object, message: str) -> None:
    with pytest.raises(KernelError) as raised:
        dlpack(Array(answer))
    assert str(raised.value) == message


class OnCuda:
    """Has the interface that it was given."""

    def __init__(self, interface: object) -> None:
        self.__cuda_array_interface__ = interface


def test_the_cuda_interface_is_read() -> None:
    found = cuda_interface(
        OnCuda({"shape": (3,), "typestr": "<f4", "data": (np.int64(4096), False)})
    )
    assert found == (np.dtype(np.float32), 4096, False, (3,), None)
    assert cuda_interface(OnCuda({"shape": (3,), "typestr": "<f4", "data": (None, True)})) == (
        np.dtype(np.float32),
        0,
        True,
        (3,),
        None,
    )


@pytest.mark.parametrize(
    ("interface", "expected"),
    [
        (None, "a dictionary as"),
        ({"typestr": "<f4"}, "`data`, an address and a flag, in"),
        ({"shape": (3,), "typestr": "<f4", "data": 4096}, "`data`, an address and a flag, in"),
        (
            {"shape": (3,), "typestr": "<f4", "data": ("x", False)},
            "`data`, an address and a flag, in",
        ),
        ({"data": (64, False)}, "`typestr`, one of NumPy's, in"),
        ({"typestr": "?!", "data": (64, False)}, "`typestr`, one of NumPy's, in"),
        ({"typestr": "<f4", "data": (64, False)}, "`shape`, a tuple, in"),
        (
            {"shape": (3,), "typestr": "<f4", "data": (64, False), "mask": object},
            "no `mask`, which kernels do not look at, in",
        ),
    ],
)
def test_a_malformed_cuda_interface_says_what_it_lacks(interface: object, expected: str) -> None:
    with pytest.raises(KernelError) as raised:
        cuda_interface(OnCuda(interface))
    assert str(raised.value) == (
        f"expected {expected} the `__cuda_array_interface__` of a OnCuda, found {interface!r:.100}"
    )
