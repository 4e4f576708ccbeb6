"""The device's memory: allocations at real addresses of this process, every access checked.

An emulated address *is* an address here, so pointers keep their alignment, arrays that overlap
overlap, and a child process that was forked sees and changes the same bytes: an allocation is an
anonymous shared mapping of its own. All addresses are looked at through one view of the whole
address space, but only where an allocation lies: each access is checked first, so a wrong address
is a finding and never a crash.

Contract of `load`, `store` and `update`: `address` holds one byte address a lane, (n,) uint64; an
element is 1, 2, 4 or 8 bytes and its values are of the unsigned type of that size; with `count`
elements a lane the values are (n, count). Only active lanes are handed in. `align` is what the
instruction asks of the address, the width of the whole access where it is left out. Lanes that are
out of bounds or misaligned are reported through `access` and read 0 or write nothing. Where two
lanes write one element, the higher lane wins.
"""

from __future__ import annotations

import ctypes
import mmap
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.gpu.emulator.findings import Kind

if TYPE_CHECKING:
    from tiledsl.targets.gpu.emulator.cohort import Access, Mask

UNSIGNED: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
"""The unsigned type of each size in bytes."""

Addresses = NDArray[np.uint64]
Words = NDArray[Any]

_SPACE = 1 << 47
"""Bytes of user address space on x86-64 and arm64 Linux."""


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
    mapping = mmap.mmap(-1, max(size, 1))
    return mapping, ctypes.addressof(ctypes.c_char.from_buffer(mapping))


class GlobalMemory:
    """Allocations, and checked access to them."""

    def __init__(self) -> None:
        self._allocations: list[Allocation] = []
        self._lows: list[int] = []
        self._named: list[Named] = []
        space: Any = (ctypes.c_uint8 * _SPACE).from_address(0)
        every = np.frombuffer(space, np.uint8)
        self._words = {size: every.view(kind) for size, kind in UNSIGNED.items()}

    # --- allocations -----------------------------------------------------------------------------

    def allocate(self, size: int, *, written: bool = False) -> int:
        """Return the address of `size` new bytes, aligned to a page and all zero.

        Args:
            size: Bytes; the ones after them are not accessible.
            written: Whether reading them before a write is right (constants, for one).
        """
        mapping, low = _map(size)
        flags = None if written else np.frombuffer(mmap.mmap(-1, max(size, 1)), np.bool_)
        allocation = Allocation(low, size, mapping, flags)
        position = bisect_right(self._lows, low)
        self._allocations.insert(position, allocation)
        self._lows.insert(position, low)
        return low

    def free(self, address: int) -> None:
        """Release the allocation at an address; a KeyError where none begins there."""
        position = bisect_right(self._lows, address) - 1
        if position < 0 or self._lows[position] != address:
            raise KeyError(address)
        del self._allocations[position], self._lows[position]

    def mark_written(self, address: int, size: int) -> None:
        """Count bytes as written: something other than a kernel filled them."""
        allocation = self.find(address)
        if allocation is not None and allocation.written is not None:
            if size >= allocation.size:
                allocation.written = None
            else:
                start = address - allocation.low
                allocation.written[start : start + size] = True

    def find(self, address: int) -> Allocation | None:
        """Return the allocation that holds a byte."""
        position = bisect_right(self._lows, address) - 1
        if position < 0 or address >= self._allocations[position].high:
            return None
        return self._allocations[position]

    def bytes_at(self, address: int, size: int) -> NDArray[np.uint8]:
        """Return a view of bytes that the caller knows to be allocated."""
        return self._words[1][address : address + size]

    def name(self, named: list[Named]) -> None:
        """Say what the arrays of the coming launch are called."""
        self._named = sorted(named, key=lambda one: one.low)

    def describe(self, address: int) -> str:
        """Say which array an address that is out of bounds belongs to, and which element it is."""
        below = [one for one in self._named if one.low <= address]
        if not below and not self._named:
            return f"address {address:#x}"
        near = below[-1] if below else self._named[0]
        index, rest = divmod(address - near.low, near.item_bytes)
        count = (near.high - near.low) // near.item_bytes
        inner = f" (byte {rest})" if rest else ""
        return f"argument `{near.name}`, element {index}{inner} of {count}"

    # --- access ----------------------------------------------------------------------------------

    def load(
        self,
        access: Access,
        address: Addresses,
        size: int,
        count: int = 1,
        align: int | None = None,
    ) -> Words:
        """Return the elements at `address`: (n,), or (n, count) where count > 1."""
        if not len(address):
            return np.zeros((0, count) if count > 1 else 0, UNSIGNED[size])
        safe, bad = self._checked(access, address, size * count, align, "read")
        words, index = self._place(safe, size, count)
        values = words[index]
        if bad is not None:
            values[bad] = 0
        return values

    def store(
        self,
        access: Access,
        address: Addresses,
        values: Words,
        size: int,
        count: int = 1,
        align: int | None = None,
    ) -> None:
        """Write the elements, (n,) or (n, count), to `address`."""
        if not len(address):
            return
        safe, bad = self._checked(access, address, size * count, align, "write")
        if bad is not None:
            safe, values = safe[~bad], values[~bad]
        words, index = self._place(safe, size, count)
        words[index] = values

    def _place(self, address: Addresses, size: int, count: int) -> tuple[Words, NDArray[np.int64]]:
        """Return a view of all memory, and where in it each lane's elements are."""
        width = size * count
        if count > 1 and not width & width - 1 and not (address & np.uint64(width - 1)).any():
            rows = self._words[size].reshape(-1, count)
            return rows, (address >> np.uint64(width.bit_length() - 1)).view(np.int64)
        if (address & np.uint64(size - 1)).any():  # rare: elements that straddle words
            raise CompilerBug("an access to memory is aligned to less than its elements")
        index = (address >> np.uint64(size.bit_length() - 1)).view(np.int64)
        if count > 1:
            index = index[:, None] + np.arange(count)
        return self._words[size], index

    def update(self, access: Access, address: Addresses, size: int) -> tuple[Words, Any, Mask]:
        """Return what an atomic needs: words of that size, each lane's index, which lanes are good.

        The caller reads and writes `words[index[good]]`, in the order of lanes.
        """
        safe, bad = self._checked(access, address, size, None, "write")
        good = np.ones(len(address), np.bool_) if bad is None else ~bad
        words, index = self._place(safe, size, 1)
        return words, index, good

    def _checked(
        self, access: Access, address: Addresses, width: int, align: int | None, verb: str
    ) -> tuple[Addresses, Mask | None]:
        """Return addresses that are safe to touch, and the lanes that were wrong (None: none)."""
        low, high = int(address.min()), int(address.max())
        allocation = self.find(low)
        bad = None
        if allocation is None or high + width > allocation.high:
            bad = self._outside(address, width)
            if bad is not None:
                access.report(
                    Kind.OUT_OF_BOUNDS,
                    bad,
                    lambda at: f"{verb} of {width} bytes at {self.describe(int(address[at]))}",
                )
            allocation = None
        crooked = (address & np.uint64((align or width) - 1)) != 0
        if crooked.any():
            access.report(
                Kind.MISALIGNED,
                crooked,
                lambda at: (
                    f"{verb} of {width} bytes at {self.describe(int(address[at]))}, "
                    f"address {int(address[at]):#x}"
                ),
            )
            bad = crooked if bad is None else bad | crooked
        self._track_written(access, address, width, verb, bad, allocation)
        if bad is None:
            return address, None
        safe = np.where(bad, np.uint64(self._anywhere()), address)
        return safe, bad

    def _anywhere(self) -> int:
        """Return an address that may be read, for lanes whose own may not."""
        if not hasattr(self, "_spare"):
            self._spare, self._spare_address = _map(4096)
        return self._spare_address

    def _outside(self, address: Addresses, width: int) -> Mask | None:
        """Return which lanes touch a byte outside all allocations; None if none does."""
        lows = np.array(self._lows, np.uint64)
        if not len(lows):
            return np.ones(len(address), np.bool_)
        highs = np.array([one.high for one in self._allocations], np.uint64)
        owner = np.searchsorted(lows, address, "right") - 1
        bad = (owner < 0) | (address + np.uint64(width) > highs[owner])
        return bad if bad.any() else None

    def _track_written(
        self,
        access: Access,
        address: Addresses,
        width: int,
        verb: str,
        bad: Mask | None,
        owner: Allocation | None,
    ) -> None:
        """Keep which bytes were written, and report a read of one that was not."""
        if owner is not None and owner.written is None:
            return
        candidates = [owner] if owner is not None else self._allocations
        for allocation in candidates:
            if allocation.written is None:
                continue
            inside = (address >= np.uint64(allocation.low)) & (address < np.uint64(allocation.high))
            if bad is not None:
                inside &= ~bad
            if not inside.any():
                continue
            offset = (address[inside] - np.uint64(allocation.low)).astype(np.int64)
            bytes_ = offset[:, None] + np.arange(width)
            if verb == "write":
                allocation.written[bytes_] = True
                continue
            fresh = np.zeros(len(address), np.bool_)
            fresh[inside] = ~allocation.written[bytes_].all(1)
            if fresh.any():
                access.report(
                    Kind.UNINITIALIZED,
                    fresh,
                    lambda at: f"read of {width} bytes at {self.describe(int(address[at]))}",
                )
