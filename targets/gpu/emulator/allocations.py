"""The allocations of an emulated device: where they lie, what they are called, what was written.

An allocation is an anonymous shared mapping of its own, at its real address in this process, so a
child process that was forked sees and changes the same bytes. Around it lie `_GUARD` bytes that are
nobody's, so that what misses one allocation does not hit the next.
"""

from __future__ import annotations

import ctypes
import mmap
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.global_races import GlobalRaces
from tiledsl.targets.gpu.emulator.words import Words

BASE = 1 << 16
"""The first address looked at: NumPy takes no view at address 0, and Linux maps nothing so low."""
SPACE = 1 << 47
"""Bytes of user address space on x86-64 and arm64 Linux."""
_GUARD = 1 << 16


@dataclass(frozen=True)
class Named:
    """An array that findings can name.

    Attributes:
        name: The kernel's parameter, or what else holds it.
        low: Its first byte's address.
        high: One past its last byte.
        item_bytes: Bytes an element.
    """

    name: str
    low: int
    high: int
    item_bytes: int


@dataclass
class Allocation:
    """Some bytes of memory.

    Attributes:
        low: The first byte's address.
        size: Bytes.
        mapping: What keeps them.
        written: One flag a byte: whether anything wrote it; None where all of it counts as written.
    """

    low: int
    size: int
    mapping: Any
    written: NDArray[np.bool_] | None = None

    @property
    def high(self) -> int:
        """One past the last byte."""
        return self.low + self.size


def _map(size: int) -> tuple[Any, int]:
    """Return new bytes, shared with child processes, and their address."""
    mapping = mmap.mmap(-1, max(size, 1))
    return mapping, ctypes.addressof(ctypes.c_char.from_buffer(mapping))


def _flags(size: int) -> NDArray[np.bool_]:
    """Return a flag for each of `size` bytes, not set, shared with child processes."""
    return np.frombuffer(mmap.mmap(-1, max(size, 1)), np.bool_)


class Allocations:
    """What lies where in the device's memory."""

    def __init__(self) -> None:
        self._allocations: list[Allocation] = []
        self._lows: list[int] = []
        self._bounds: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
        self._named: list[Named] = []
        self.races = GlobalRaces()
        space: Any = (ctypes.c_uint8 * (SPACE - BASE)).from_address(BASE)
        self._words = Words(np.frombuffer(space, np.uint8))
        self._spare, self._spare_address = _map(mmap.PAGESIZE)
        """What lanes touch whose own address they may not."""

    # --- allocations -----------------------------------------------------------------------------

    def allocate(self, size: int, *, written: bool = False) -> int:
        """Return the address of `size` new bytes, aligned to a page and all zero.

        Args:
            size: Bytes; the ones around them are not accessible.
            written: Whether reading them before a write is right (constants, for one).
        """
        mapping, start = _map(size + 2 * _GUARD)
        low = start + _GUARD
        flags = None if written else _flags(size)
        position = bisect_right(self._lows, low)
        self._allocations.insert(position, Allocation(low, size, mapping, flags))
        self._lows.insert(position, low)
        self._bounds = None
        return low

    def free(self, address: int) -> None:
        """Release the allocation at an address; a KeyError where none begins there."""
        position = bisect_right(self._lows, address) - 1
        if position < 0 or self._lows[position] != address:
            raise KeyError(address)
        del self._allocations[position], self._lows[position]
        self.races.forget(address)
        self._bounds = None

    def mark_written(self, address: int, size: int) -> None:
        """Count bytes as written: something other than a kernel filled them."""
        allocation = self.find(address)
        if allocation is None or allocation.written is None:
            return
        if size >= allocation.size:
            allocation.written = None
        else:
            start = address - allocation.low
            allocation.written[start : start + size] = True

    def mark_unwritten(self, address: int, size: int) -> None:
        """Count bytes as never written, whatever they hold."""
        allocation = self.find(address)
        if allocation is None or size == 0:
            return
        if allocation.written is None:
            allocation.written = _flags(allocation.size)
            allocation.written[:] = True
        start = address - allocation.low
        allocation.written[start : start + size] = False

    def find(self, address: int) -> Allocation | None:
        """Return the allocation that holds a byte."""
        position = bisect_right(self._lows, address) - 1
        if position < 0 or address >= self._allocations[position].high:
            return None
        return self._allocations[position]

    def bytes_at(self, address: int, size: int) -> NDArray[np.uint8]:
        """Return a view of bytes that the caller knows to be allocated."""
        return self._words.bytes[address - BASE : address - BASE + size]

    def contents(self) -> list[NDArray[np.uint8]]:
        """Return a view of each allocation's bytes."""
        return [self.bytes_at(one.low, one.size) for one in self._allocations]

    def snapshot(self) -> list[tuple[int, bytes, bytes | None]]:
        """Return a copy of everything, for `restore` and for comparing: address, bytes, flags."""
        return [
            (
                one.low,
                self.bytes_at(one.low, one.size).tobytes(),
                None if one.written is None else one.written.tobytes(),
            )
            for one in self._allocations
        ]

    def restore(self, snapshot: Sequence[tuple[int, bytes, bytes | None]]) -> None:
        """Put back what a snapshot holds; what was allocated or freed since stays so."""
        for low, content, flags in snapshot:
            allocation = self.find(low)
            if allocation is None or (allocation.low, allocation.size) != (low, len(content)):
                continue
            self.bytes_at(low, len(content))[:] = np.frombuffer(content, np.uint8)
            if flags is None:
                allocation.written = None
                continue
            if allocation.written is None:
                allocation.written = _flags(allocation.size)
            allocation.written[:] = np.frombuffer(flags, np.bool_)

    def name(self, named: Sequence[Named]) -> None:
        """Say what the arrays of the coming launch are called."""
        self._named = sorted(named, key=lambda one: one.low)

    def describe(self, address: int) -> str:
        """Say which array an address belongs to or is next to, and which element it is."""
        if not self._named:
            return f"address {address:#x}"
        near = min(self._named, key=lambda one: max(one.low - address, address - one.high + 1, 0))
        index, rest = divmod(address - near.low, near.item_bytes)
        count = (near.high - near.low) // near.item_bytes
        inner = f" (byte {rest})" if rest else ""
        size = str(count)
        if not 0 <= index < count:
            size = f"an array of {count} (0 to {count - 1})" if count else "an empty array"
        return f"argument `{near.name}`, element {index}{inner} of {size}"
