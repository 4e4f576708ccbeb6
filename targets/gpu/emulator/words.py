"""Bytes seen as words of every width: what gathers and scatters elements for all lanes at once.

Global memory is one `Words` over the address space, shared memory one over its windows. NumPy moves
one item a lane quickly and one row a lane slowly, so the elements of a lane go as a single item
wherever they are aligned as a whole: 2 x 4 bytes as one 8-byte word, 4 x 4 bytes as one 16-byte
word. What is not aligned so goes element by element, and what is not even aligned to its elements
byte by byte.

Contract: positions are (n,) int64 byte positions that the caller has checked; an element is 1, 2, 4
or 8 bytes of the unsigned type of that size; values are (n,), or (n, count) where count > 1. Where
two lanes write one byte, the higher lane wins.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

UNSIGNED: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
"""The unsigned type of each size in bytes."""

_ITEM: dict[int, Any] = {**UNSIGNED, 16: np.complex128}
"""The type whose copies move that many bytes unchanged; NumPy has no integer of 16 bytes."""

Positions = NDArray[np.int64]
Values = NDArray[Any]


class Words:
    """A stretch of bytes; `bytes` is its own array of them, of a multiple of 16 and aligned so."""

    def __init__(self, bytes_: NDArray[np.uint8]) -> None:
        self.bytes = bytes_
        self.of = {size: bytes_.view(kind) for size, kind in _ITEM.items()}
        """The same memory as items of each size."""

    def gather(self, position: Positions, size: int, count: int) -> Values:
        """Return a copy of the elements at each lane's position."""
        width = size * count
        if count == 1 and not _misaligned(position, size):
            return self.of[size].take(position >> _shift(size))
        if width in _ITEM and not _misaligned(position, width):
            items = self.of[width].take(position >> _shift(width))
            return items.view(UNSIGNED[size]).reshape(len(position), count)
        if not width % 16 and not _misaligned(position, 16):
            items = self.of[16].take((position >> 4)[:, None] + np.arange(width >> 4))
            return items.view(UNSIGNED[size])
        if not _misaligned(position, size):
            return self.of[size].take((position >> _shift(size))[:, None] + np.arange(count))
        single = self.bytes.take(position[:, None] + np.arange(width)).view(UNSIGNED[size])
        return single if count > 1 else single[:, 0]

    def scatter(self, position: Positions, values: Values, size: int, count: int) -> None:
        """Write each lane's elements to its position."""
        width = size * count
        if count == 1 and not _misaligned(position, size):
            self.of[size][position >> _shift(size)] = values
            return
        values = np.ascontiguousarray(values, UNSIGNED[size])
        if width in _ITEM and not _misaligned(position, width):
            items = values.view(_ITEM[width])
            self.of[width][position >> _shift(width)] = items.reshape(len(position))
        elif not width % 16 and not _misaligned(position, 16):
            items = values.view(np.complex128)
            self.of[16][(position >> 4)[:, None] + np.arange(width >> 4)] = items
        elif not _misaligned(position, size):
            self.of[size][(position >> _shift(size))[:, None] + np.arange(count)] = values
        else:
            single = values.view(np.uint8).reshape(len(position), width)
            self.bytes[position[:, None] + np.arange(width)] = single


def zero_bytes(size: int) -> NDArray[np.uint8]:
    """Return new zero bytes for a `Words`, at least `size` of them."""
    return np.zeros(-(-size // 16), np.complex128).view(np.uint8)


def _shift(width: int) -> int:
    return width.bit_length() - 1


def _misaligned(position: Positions, width: int) -> bool:
    return width > 1 and bool((position & width - 1).any())


def natural_alignment(width: int) -> int:
    """Return the alignment that an access of `width` bytes has by itself: 12 bytes have 4."""
    return width & -width
