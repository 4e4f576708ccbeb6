"""The device's memory: allocations at real addresses of this process, every access checked.

An emulated address *is* an address here, so pointers keep their alignment, arrays that overlap
overlap, and a child process that was forked sees and changes the same bytes: an allocation is an
anonymous shared mapping of its own. All addresses are looked at through one view of the whole
address space, but only where an allocation lies: each access is checked first, so a wrong address
is a finding and never a crash. Around an allocation lie `_GUARD` bytes that are nobody's, so that
what misses one does not hit the next.

Contract of `load`, `store` and `update`: `address` holds one byte address a lane, (n,) uint64; an
element is 1, 2, 4 or 8 bytes and its values are of the unsigned type of that size; with `count`
elements a lane the values are (n, count). Only active lanes are handed in. `align` is what the
instruction asks of the address; left out, it is the width of the whole access (of 12 bytes: 4).
Lanes that are out of bounds or misaligned are reported through `access` and read 0 or write
nothing. Where two lanes write one element, the higher lane wins.
"""

from __future__ import annotations

import ctypes
import mmap
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.findings import Kind
from tiledsl.targets.gpu.emulator.words import UNSIGNED, Words, natural_alignment

if TYPE_CHECKING:
    from tiledsl.targets.gpu.emulator.cohort import Access, Mask

__all__ = ["UNSIGNED", "Addresses", "Allocation", "GlobalMemory", "Named"]

Addresses = NDArray[np.uint64]

_BASE = 1 << 16
"""The first address looked at: NumPy takes no view at address 0, and Linux maps nothing so low."""
_SPACE = 1 << 47
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


class GlobalMemory:
    """Allocations, and checked access to them."""

    def __init__(self) -> None:
        self._allocations: list[Allocation] = []
        self._lows: list[int] = []
        self._bounds: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
        self._named: list[Named] = []
        space: Any = (ctypes.c_uint8 * (_SPACE - _BASE)).from_address(_BASE)
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
        flags = None if written else np.frombuffer(mmap.mmap(-1, max(size, 1)), np.bool_)
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
            flags = mmap.mmap(-1, allocation.size)
            allocation.written = np.frombuffer(flags, np.bool_)
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
        return self._words.bytes[address - _BASE : address - _BASE + size]

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
        """Put back what a snapshot holds; what was allocated since stays as it is."""
        for low, content, flags in snapshot:
            allocation = self.find(low)
            self.bytes_at(low, len(content))[:] = np.frombuffer(content, np.uint8)
            if allocation is not None and allocation.written is not None and flags is not None:
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
        return f"argument `{near.name}`, element {index}{inner} of {count}"

    # --- access ----------------------------------------------------------------------------------

    def load(
        self,
        access: Access,
        address: Addresses,
        size: int,
        count: int = 1,
        align: int | None = None,
        *,
        partly: bool = False,
    ) -> NDArray[Any]:
        """Return the elements at `address`: (n,), or (n, count) where count > 1.

        With `partly`, one byte of each access must be allocated: of the last word of an array whose
        elements are smaller, which an atomic on such an element reads and swaps as a whole.
        """
        if not len(address):
            return np.zeros((0, count) if count > 1 else 0, UNSIGNED[size])
        position, bad = self._checked(access, address, size * count, align, "read", partly)
        values = self._words.gather(position, size, count)
        if bad is not None:
            values[bad] = 0
        return values

    def store(
        self,
        access: Access,
        address: Addresses,
        values: NDArray[Any],
        size: int,
        count: int = 1,
        align: int | None = None,
    ) -> None:
        """Write the elements, (n,) or (n, count), to `address`."""
        if not len(address):
            return
        position, bad = self._checked(access, address, size * count, align, "write")
        if bad is not None:
            position, values = position[~bad], values[~bad]
        self._words.scatter(position, values, size, count)

    def update(
        self, access: Access, address: Addresses, size: int
    ) -> tuple[NDArray[Any], Any, Mask]:
        """Return what an atomic needs: words of that size, each lane's index, which lanes are good.

        The caller reads and writes `words[index[good]]`, in the order of lanes. Words of 4 bytes
        may be allocated in part, as `load` says.
        """
        if not len(address):
            return self._words.of[size], np.zeros(0, np.int64), np.zeros(0, np.bool_)
        position, bad = self._checked(access, address, size, None, "write", size == 4)
        good = np.ones(len(address), np.bool_) if bad is None else ~bad
        return self._words.of[size], position >> size.bit_length() - 1, good

    def _checked(
        self,
        access: Access,
        address: Addresses,
        width: int,
        align: int | None,
        verb: str,
        partly: bool = False,
    ) -> tuple[NDArray[np.int64], Mask | None]:
        """Return positions that are safe to touch, and the lanes that were wrong (None: none)."""
        owner, bad = self._judged(access, address, width, align, verb, partly)
        if owner is None or owner.written is not None:
            self._track_written(access, address, width, verb, bad, owner)
        if bad is not None:
            address = np.where(bad, np.uint64(self._spare_address), address)
        return address.view(np.int64) - _BASE, bad

    def check(
        self,
        access: Access,
        address: Addresses,
        width: int,
        align: int | None = None,
        verb: str = "read",
    ) -> Mask | None:
        """Report lanes that could not access `width` bytes, and return which (None: all could).

        For an access that is made later; whether the bytes were written is asked then.
        """
        return self._judged(access, address, width, align, verb)[1] if len(address) else None

    def _judged(
        self,
        access: Access,
        address: Addresses,
        width: int,
        align: int | None,
        verb: str,
        partly: bool = False,
    ) -> tuple[Allocation | None, Mask | None]:
        """Return the allocation that holds all lanes' bytes, if one does, and the wrong lanes."""
        low, high = int(address.min()), int(address.max())
        owner = self.find(low)
        bad, inside = None, 1 if partly else width
        if owner is None or high + inside > owner.high:
            owner = None
            bad = self._outside(address, inside)
            if bad is not None:
                self._report(access, Kind.OUT_OF_BOUNDS, bad, address, f"{verb} of {width} bytes")
        align = align or natural_alignment(width)
        if align > 1:
            crooked = (address & np.uint64(align - 1)) != 0
            if crooked.any():
                text = f"{verb} of {width} bytes that asks for alignment to {align}"
                self._report(access, Kind.MISALIGNED, crooked, address, text)
                bad = crooked if bad is None else bad | crooked
        return owner, bad

    def _report(self, access: Access, kind: Kind, bad: Mask, address: Addresses, text: str) -> None:
        def message(at: int) -> str:
            where = int(address[at])
            crooked = f", address {where:#x}" if kind is Kind.MISALIGNED else ""
            return f"{text} at {self.describe(where)}{crooked}"

        access.report(kind, bad, message)

    def _outside(self, address: Addresses, width: int) -> Mask | None:
        """Return which lanes touch a byte outside all allocations; None if none does."""
        if self._bounds is None:
            sizes = [one.size for one in self._allocations]
            self._bounds = np.array(self._lows, np.int64), np.array(sizes, np.int64)
        lows, sizes = self._bounds
        if not len(lows):
            return np.ones(len(address), np.bool_)
        inside = np.minimum(address, np.uint64(_SPACE)).view(np.int64)
        owner = np.searchsorted(lows, inside, "right") - 1
        bad = (owner < 0) | (inside - lows[owner] > sizes[owner] - width)
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
        for allocation in [owner] if owner is not None else self._allocations:
            if allocation.written is None:
                continue
            inside = (address >= np.uint64(allocation.low)) & (address < np.uint64(allocation.high))
            if bad is not None:
                inside &= ~bad
            if not inside.any():
                continue
            offset = (address[inside] - np.uint64(allocation.low)).astype(np.int64)
            # What reaches past the end (`partly`) has the fate of the last byte.
            bytes_ = np.minimum(offset[:, None] + np.arange(width), allocation.size - 1)
            if verb == "write":
                allocation.written[bytes_] = True
                continue
            fresh = np.zeros(len(address), np.bool_)
            fresh[inside] = ~allocation.written[bytes_].all(1)
            if fresh.any():
                text = f"{verb} of {width} bytes"
                self._report(access, Kind.UNINITIALIZED, fresh, address, text)
