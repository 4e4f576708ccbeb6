"""The device's memory: allocations at real addresses of this process, every access checked.

An emulated address *is* an address here, so pointers keep their alignment, and arrays that overlap
overlap. All addresses are looked at through one view of the whole address space, but only where an
allocation lies: each access is checked first, so a wrong address is a finding and never a crash.

Contract of `load`, `store` and `update`: `address` holds one byte address a lane, (n,) uint64; an
element is 1, 2, 4 or 8 bytes and its values are of the unsigned type of that size; with `count`
elements a lane the values are (n, count). Only active lanes are handed in. `align` is what the
instruction asks of the address; left out, it is the width of the whole access (of 12 bytes: 4).
Lanes that are out of bounds or misaligned are reported through `access` and read 0 or write
nothing. Where two lanes write one element, the higher lane wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.allocations import BASE, SPACE, Allocation, Allocations, Named
from tiledsl.targets.gpu.emulator.findings import Kind
from tiledsl.targets.gpu.emulator.global_races import report_lost, report_race
from tiledsl.targets.gpu.emulator.words import UNSIGNED, natural_alignment

if TYPE_CHECKING:
    from tiledsl.targets.gpu.emulator.cohort import Access, Mask

__all__ = ["UNSIGNED", "Addresses", "Allocation", "GlobalMemory", "Named"]

Addresses = NDArray[np.uint64]


class GlobalMemory(Allocations):
    """Allocations, and checked access to them."""

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
        if not partly:
            self._find_read_races(access, position, bad, size * count)
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
            access = access.only(~bad)
            position, values = position[~bad], values[~bad]
            if not len(position):
                return
        self._find_write_races(access, position, values, size, count)
        self._words.scatter(position, values, size, count)
        self._find_lost(access, position, values, size, count)

    # --- races -----------------------------------------------------------------------------------

    def _find_read_races(
        self, access: Access, position: NDArray[np.int64], bad: Mask | None, width: int
    ) -> None:
        if bad is not None:
            access = access.only(~bad)
            position = position[~bad]
        for owner, lanes in self._owners(position, width):
            part, here = self._part(access, position, lanes)
            offset = here + (BASE - owner.low)
            race = self.races.read(part, owner.low, owner.size, offset, width)
            if race is not None:
                report_race(
                    part, race, ("read", "write"), self._element(here), self.races.instructions
                )

    def _find_write_races(
        self,
        access: Access,
        position: NDArray[np.int64],
        values: NDArray[Any],
        size: int,
        count: int,
    ) -> None:
        for owner, lanes in self._owners(position, size * count):
            part, here = self._part(access, position, lanes)
            new = values if lanes is None else values[lanes]

            def changes(here: NDArray[np.int64] = here, new: NDArray[Any] = new) -> Mask:
                differ = self._words.gather(here, size, count) != new.astype(UNSIGNED[size])
                return np.logical_or.reduce(differ, 1) if differ.ndim > 1 else differ

            offset = here + (BASE - owner.low)
            found = self.races.write(part, owner.low, owner.size, offset, size * count, changes)
            for race, other in zip(found, ("write", "read"), strict=True):
                if race is not None:
                    named = self._element(here)
                    report_race(part, race, ("write", other), named, self.races.instructions)

    def _find_lost(
        self,
        access: Access,
        position: NDArray[np.int64],
        values: NDArray[Any],
        size: int,
        count: int,
    ) -> None:
        """Report lanes that stored different values to one element in one instruction."""
        lost = self._words.gather(position, size, count) != values.astype(UNSIGNED[size])
        if lost.any():
            lanes = np.logical_or.reduce(lost, 1) if lost.ndim > 1 else lost
            report_lost(access, lanes, position, size * count, self._element(position))

    def _owners(
        self, position: NDArray[np.int64], width: int
    ) -> Iterator[tuple[Allocation, Mask | None]]:
        """Give each allocation that lanes touch, and which lanes do (None: all)."""
        left = None
        while left is None or left.any():
            lanes = position if left is None else position[left]
            if not len(lanes):
                return
            owner = self.find(int(lanes.min()) + BASE)
            if owner is None:
                return
            if left is None and int(lanes.max()) + BASE + width <= owner.high:
                yield owner, None
                return
            inside = position + BASE < owner.high
            here = inside if left is None else inside & left
            yield owner, here
            left = ~inside if left is None else left & ~inside

    @staticmethod
    def _part(
        access: Access, position: NDArray[np.int64], lanes: Mask | None
    ) -> tuple[Access, NDArray[np.int64]]:
        return (access, position) if lanes is None else (access.only(lanes), position[lanes])

    def _element(self, position: NDArray[np.int64]) -> Callable[[int], str]:
        return lambda at: self.describe(int(position[at]) + BASE)

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
        return address.view(np.int64) - BASE, bad

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
        inside = np.minimum(address, np.uint64(SPACE)).view(np.int64)
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
