"""Arguments of every library."""

import enum
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tiledsl.arrays import (
    HOST,
    HostMemory,
    host_memory,
    is_array,
    is_writable,
    numpy_dtype,
    read,
)
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.specialize import NAMES, ArgType


class Color(enum.IntEnum):
    RED = 3


@pytest.mark.parametrize(
    ("value", "type_", "packed"),
    [
        (True, ArgType("i1"), 1),
        (np.bool_(False), ArgType("i1"), 0),
        (5, ArgType("i32"), 5),
        (1, ArgType("i32", value=1), 1),
        (32, ArgType("i32", divisor=16), 32),
        (2**31, ArgType("i64", divisor=16), 2**31),
        (2**64 - 1, ArgType("u64", extreme=True), 2**64 - 1),
        (Color.RED, ArgType("i32"), 3),
        (2.5, ArgType("fp32"), 2.5),
        (np.int32(7), ArgType("i32"), 7),
        (np.uint8(7), ArgType("u8"), 7),
        (np.int64(7), ArgType("i64"), 7),
        (np.float64(0.1), ArgType("fp64"), 0.1),
        (np.float16(0.5), ArgType("fp16"), 0.5),
        (ml_dtypes.bfloat16(0.5), ArgType("bf16"), 0.5),
    ],
)
def test_a_scalar_has_a_documented_type_and_its_own_value(
    value: object, type_: ArgType, packed: float
) -> None:
    found = read(value)
    assert found is not None
    assert found[0] == type_
    assert found[1] == packed
    assert found[2] is None


@pytest.mark.parametrize("name", NAMES)
def test_an_array_of_each_type_is_a_pointer_to_it(name: str) -> None:
    array = np.zeros(64, numpy_dtype(name))
    found = read(array)
    assert found is not None
    assert found[0].dtype == name
    assert found[0].pointer
    assert (found[1], found[2]) == (array.ctypes.data, HOST)


def test_alignment_is_read_off_the_address() -> None:
    array = np.zeros(64, np.float32)
    offset = (-array.ctypes.data % 16) // 4
    aligned, skewed = read(array[offset:]), read(array[offset + 1 :])
    assert aligned is not None
    assert skewed is not None
    assert aligned[0].divisor == 16
    assert skewed[0].divisor == 1


@pytest.mark.parametrize("value", [None, "text", [1, 2], {}, 2**64, object(), np.zeros(3, complex)])
def test_what_no_kernel_takes_gives_none(value: object) -> None:
    assert read(value) is None


def test_memory_spans_of_views() -> None:
    base = np.zeros((4, 12), np.float32)
    start = base.ctypes.data
    assert host_memory(base) == HostMemory(start, start + 192, True)
    assert host_memory(base[:, 4:8]) == HostMemory(start + 16, start + 176, True)
    assert host_memory(base[::-1]) == HostMemory(start, start + 192, True)
    assert host_memory(base.T) == HostMemory(start, start + 192, True)
    assert host_memory(np.broadcast_to(base[0], (9, 12)))[:2] == (start, start + 48)
    assert host_memory(base[:0]).low == host_memory(base[:0]).high
    base.flags.writeable = False
    assert not host_memory(base).writable


class ThroughDLPack:
    """An array that has nothing but the DLPack protocol."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> object:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


def test_dlpack_is_enough() -> None:
    array = np.arange(24, dtype=np.int16).reshape(4, 6)[:, 1:3]
    wrapped = ThroughDLPack(array)
    found = read(wrapped)
    assert is_array(wrapped)
    assert found is not None
    assert (found[0].dtype, found[1]) == ("i16", array.ctypes.data)
    assert host_memory(wrapped)[:2] == host_memory(array)[:2]


class OnCuda:
    """An array that has nothing but the CUDA array interface."""

    __cuda_array_interface__ = {  # noqa: RUF012 (the protocol's form)
        "shape": (3,), "typestr": "<f2", "data": (4096, False), "version": 3,
    }  # fmt: skip


def test_the_cuda_array_interface_is_enough() -> None:
    found = read(OnCuda())
    assert found is not None
    assert found[0] == ArgType("fp16", pointer=True, divisor=16)
    assert (found[1], found[2]) == (4096, "cuda:0")


def test_whether_memory_is_read_only_is_asked_of_every_protocol() -> None:
    array = np.zeros(4)
    wrapped = ThroughDLPack(array)
    read(wrapped)
    assert is_writable(wrapped)
    assert host_memory(wrapped).writable
    array.flags.writeable = False
    assert not is_writable(array)
    assert not is_writable(wrapped)
    assert not host_memory(wrapped).writable

    class ReadOnly(OnCuda):
        __cuda_array_interface__ = {**OnCuda.__cuda_array_interface__, "data": (4096, True)}  # noqa: RUF012

    read(OnCuda())
    read(ReadOnly())
    assert is_writable(OnCuda())
    assert not is_writable(ReadOnly())


def test_an_array_that_cannot_be_read_says_what_it_raised() -> None:
    class Refusing:
        def __dlpack__(self, **options: Any) -> object:
            raise BufferError("it requires gradients")

    with pytest.raises(KernelError) as raised:
        read(Refusing())
    assert str(raised.value) == (
        "expected an array that shares its memory, found a Refusing that raises "
        "BufferError: it requires gradients"
    )
    assert isinstance(raised.value.__cause__, BufferError)


def test_torch_tensors_on_the_cpu() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(4, 6, dtype=torch.bfloat16)[:, 2:4]
    found = read(tensor)
    assert found is not None
    assert (found[0].dtype, found[1], found[2]) == ("bf16", tensor.data_ptr(), HOST)
    memory = host_memory(tensor)
    assert memory.high - memory.low == (3 * 6 + 2) * 2


def test_nothing_is_imported_for_libraries_that_the_caller_lacks() -> None:
    if "torch" not in sys.modules:
        read(np.zeros(1))
        assert "torch" not in sys.modules
