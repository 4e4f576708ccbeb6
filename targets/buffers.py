"""Bytes in host memory as drivers take them: the arguments of a launch, and arrays."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from numpy.typing import NDArray

from tiledsl.dialects.diagnostics import CompilerBug


class LaunchBuffer:
    """Argument bytes in the form that both vendors' launch functions take as `extra`.

    That is a list of tags and pointers (buffer, size, end) made once, so that a launch only copies
    bytes. One buffer serves one thread at a time: hold `lock` from `fill` until the launch function
    has returned, when the driver has taken its own copy.

    Args:
        end: The vendor's tag for the end of the list.
    """

    _BUFFER, _SIZE = 1, 2

    def __init__(self, end: int) -> None:
        self.lock = threading.Lock()
        self._end = end
        self._size = ctypes.c_size_t()
        self._filled = 0
        self._reserve(256)

    def _reserve(self, capacity: int) -> None:
        # Aligned for the strictest argument, a tensor map (64).
        storage = ctypes.create_string_buffer(capacity + 64)
        ahead = -ctypes.addressof(storage) % 64
        self._bytes = memoryview(storage).cast("B")[ahead : ahead + capacity]
        self._list = (ctypes.c_void_p * 5)(
            self._BUFFER,
            ctypes.addressof(storage) + ahead,
            self._SIZE,
            ctypes.addressof(self._size),
            self._end,
        )
        self.extra = ctypes.addressof(self._list)

    def fill(self, arguments: bytes) -> None:
        """Put a launch's arguments behind `extra`."""
        size = len(arguments)
        if size != self._filled:
            if size > len(self._bytes):
                self._reserve(size)
            self._size.value = self._filled = size
        self._bytes[:size] = arguments


def contiguous_address(array: NDArray[Any]) -> int:
    """Return where an array's bytes lie, for a copy of all of them at once."""
    if not array.flags.c_contiguous:
        raise CompilerBug(f"expected a C-contiguous array to copy, found strides {array.strides}")
    return array.ctypes.data
