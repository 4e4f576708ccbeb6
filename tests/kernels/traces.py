"""Every access to memory of an emulated run, with no notion of what orders them.

It is what the mutation tests ask instead of the emulator's own checks: which bytes were written and
read, which of them by several warps, and which with no barrier between.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.barriers import Barriers
from tiledsl.targets.gpu.emulator.memory import GlobalMemory
from tiledsl.targets.gpu.emulator.shared_memory import SharedMemory

_GLOBAL = 1 << 48
"""Added to the addresses of global memory; those of shared memory are small."""


@dataclass(frozen=True)
class _Access:
    """One instruction's access at one time.

    Attributes:
        text: The instruction.
        address: Each lane's.
        owner: Each lane's cohort, block, phase and warp, a column each.
        width: Bytes a lane.
        writes: Whether it writes; None for an atomic.
        shared: Whether it is to shared memory.
    """

    text: str
    address: NDArray[np.int64]
    owner: NDArray[np.int64]
    width: int
    writes: bool | None
    shared: bool

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """The bytes that it touches, each once a warp: cohort, block, phase, warp, byte."""
        base = 0 if self.shared else _GLOBAL
        bytes_ = self.address[:, None] + (np.arange(self.width) + base)
        owners = self.owner.repeat(self.width, axis=0)
        return np.unique(np.concatenate((owners, bytes_.reshape(-1, 1)), axis=1), axis=0)


class Trace:
    """What a run touches; make it, run, and stop watching (`patch`) before asking.

    A *phase* is what lies between two barriers that all warps of a block pass. Barriers that only
    some warps pass are not used here. Atomics conflict with nothing; their addresses are kept.
    """

    def __init__(self, patch: pytest.MonkeyPatch, arrays: Sequence[tuple[int, int]]) -> None:
        """Begin to watch; of global memory, only the bytes of some arrays are of interest."""
        self._arrays = arrays
        self._barriers: list[Barriers] = []
        self._accesses: list[_Access] = []
        begin = Barriers.__init__

        def made(barriers: Barriers, *arguments: Any, **options: Any) -> None:
            begin(barriers, *arguments, **options)
            self._barriers.append(barriers)

        patch.setattr(Barriers, "__init__", made)
        for owner in (SharedMemory, GlobalMemory):
            self._spy(patch, owner, "load", writes=False)
            self._spy(patch, owner, "store", writes=True)
            self._spy(patch, owner, "update", writes=None)
        self._spy(patch, SharedMemory, "begin_copy", writes=True)
        self._spy(patch, SharedMemory, "begin_read", writes=False)

    # --- watching --------------------------------------------------------------------------------

    def _spy(
        self, patch: pytest.MonkeyPatch, owner: Any, name: str, *, writes: bool | None
    ) -> None:
        """Watch a method; `writes` is None for atomics."""
        original = getattr(owner, name)

        def spied(memory: Any, access: Any, address: Any, *rest: Any, **options: Any) -> Any:
            self._look(owner, name, writes, access, address, rest, options)
            return original(memory, access, address, *rest, **options)

        patch.setattr(owner, name, spied)

    def _look(
        self,
        owner: Any,
        name: str,
        writes: bool | None,
        access: Any,
        address: Any,
        rest: tuple[Any, ...],
        options: dict[str, Any],
    ) -> None:
        place, lanes = address.astype(np.int64), access.lanes
        if owner is GlobalMemory:
            inside = self._is_of_interest(place)
            place, lanes = place[inside], lanes[inside]
        if not len(place):
            return
        cohort = access.cohort
        block = cohort.block_of[lanes]
        phase = self._barriers[-1].phase.sum(1)[block]
        number = np.full(len(block), len(self._barriers))
        owners = np.stack((number, block, phase, cohort.warp_of[lanes]), axis=1)
        text = re.sub(r"^@!?%p\d+\s+", "", access.instruction.text)
        width = 0 if writes is None else _width(name, rest, options)
        shared = owner is SharedMemory
        self._accesses.append(_Access(text, place, owners, width, writes, shared))

    def _is_of_interest(self, address: Any) -> Any:
        inside = np.zeros(len(address), np.bool_)
        for low, high in self._arrays:
            inside |= (address >= low) & (address < high)
        return inside

    # --- asking ----------------------------------------------------------------------------------

    @cached_property
    def written(self) -> dict[str, list[int]]:
        """Which addresses each store writes, and each atomic, which says how often."""
        places: dict[str, list[NDArray[np.int64]]] = defaultdict(list)
        for one in self._accesses:
            if one.writes is not False:
                block = one.owner[:, 1] if one.shared else 0
                place = one.address + (block << 50)
                places[one.text].append(place if one.writes is None else np.unique(place))
        atomics = {one.text for one in self._accesses if one.writes is None}
        joined = {text: np.concatenate(several) for text, several in places.items()}
        return {
            text: (np.sort(place) if text in atomics else np.unique(place)).tolist()
            for text, place in joined.items()
        }

    @cached_property
    def _read(self) -> NDArray[np.int64]:
        """The bytes that are loaded, each of shared memory with its block."""
        found = [np.zeros(0, np.int64)]
        for one in self._accesses:
            if one.writes is False:
                block = (one.owner[:, 0] << 8) + one.owner[:, 1] + 1 if one.shared else 0
                base = one.address + (block << 50)
                found.append(np.unique(base[:, None] + np.arange(one.width)))
        return np.unique(np.concatenate(found))

    def reads_no_more_than(self, other: Trace) -> bool:
        """Say whether all bytes that are loaded are loaded there, too."""
        return bool(np.isin(self._read, other._read).all())

    @cached_property
    def conflicts(self) -> set[tuple[str, str]]:
        """Pairs of instructions by which two warps of a block touch a byte in one phase.

        The first one writes.
        """
        texts = sorted({one.text for one in self._accesses})
        rows, access = self._rows()
        _, place = np.unique(rows[:, [0, 1, 2, 4]], axis=0, return_inverse=True)
        # A place is like another where the same warps do the same to it; one of each is enough.
        who = access * (1 << 20) + rows[:, 3]
        order = np.lexsort((who, place.ravel()))
        starts = np.flatnonzero(np.diff(place.ravel()[order], prepend=-1))
        mixed = (who[order] + 1).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        likeness = np.bitwise_xor.reduceat(mixed ^ mixed >> np.uint64(29), starts)
        found: set[tuple[str, str]] = set()
        ends = np.append(starts[1:], len(order))
        for one in np.unique(likeness, return_index=True)[1]:
            several = np.unique(who[order[starts[one] : ends[one]]])
            users = [(texts[user >> 21], bool(user >> 20 & 1), user & 0xFFFFF) for user in several]
            for text, writes, warp in users:
                found |= {(text, other) for other, _, owner in users if writes and owner != warp}
        return found

    def passes(self) -> bool:
        """Say whether a warp touches a byte of global memory that another warp writes."""
        rows, access = self._rows()
        rows, access = rows[rows[:, 4] >= _GLOBAL], access[rows[:, 4] >= _GLOBAL]
        if not len(rows):
            return False
        _, place = np.unique(rows[:, 4], return_inverse=True)
        owner = (rows[:, 0] << 40) + (rows[:, 1] << 20) + rows[:, 3]
        low = np.full(place.max() + 1, np.iinfo(np.int64).max)
        high = np.full(place.max() + 1, -1)
        np.minimum.at(low, place, owner)
        np.maximum.at(high, place, owner)
        written = np.zeros(len(low), np.bool_)
        written[place[access & 1 == 1]] = True
        return bool((written & (low != high)).any())

    def _rows(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return all bytes touched but by atomics, and of each row its instruction.

        That is twice the place of its text among all in order, and 1 where it writes.
        """
        texts = {text: n for n, text in enumerate(sorted({one.text for one in self._accesses}))}
        rows, access = [np.zeros((0, 5), np.int64)], [np.zeros(0, np.int64)]
        for one in self._accesses:
            if one.writes is not None:
                rows.append(one.rows)
                access.append(np.full(len(one.rows), 2 * texts[one.text] + one.writes))
        return np.concatenate(rows), np.concatenate(access)


def _width(name: str, rest: tuple[Any, ...], options: dict[str, Any]) -> int:
    """Return how many bytes a lane touches, by the arguments of a memory's method."""
    if name.startswith("begin"):
        return int(rest[0])
    rest = rest[1:] if name == "store" else rest
    return int(rest[0]) * int(rest[1] if len(rest) > 1 else options.get("count", 1))
