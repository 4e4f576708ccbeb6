"""A launch's argument bytes lie where their list says, aligned for every argument."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.buffers import LaunchBuffer, contiguous_address

END = 7


def behind(buffer: LaunchBuffer) -> tuple[bytes, int]:
    """Read the arguments as a driver does, and give their address."""
    tags = (ctypes.c_uint64 * 5).from_address(buffer.extra)
    assert (tags[0], tags[2], tags[4]) == (1, 2, END)
    size = ctypes.c_size_t.from_address(tags[3]).value
    return ctypes.string_at(tags[1], size), tags[1]


def test_a_driver_finds_the_last_arguments_aligned_for_a_tensor_map() -> None:
    buffer = LaunchBuffer(END)
    for size in (8, 0, 256, 257, 5000, 3):
        arguments = bytes(i % 251 for i in range(size))
        buffer.fill(arguments)
        found, address = behind(buffer)
        assert found == arguments
        assert address % 64 == 0


def test_only_arrays_without_gaps_have_an_address_to_copy() -> None:
    array = np.arange(12).reshape(3, 4)
    assert contiguous_address(array) == array.ctypes.data
    with pytest.raises(CompilerBug, match="expected a C-contiguous array"):
        contiguous_address(array[:, ::2])
