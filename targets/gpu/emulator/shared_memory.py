"""Shared memory (LDS) of a cohort: its bytes, and what shows that an access to them is a fault.

Each block has a window of `size` bytes; an address is the byte offset in the window of the lane's
own block. The shadow is kept by *granule*: the smallest power of two that every shared access of
the kernel is a multiple of, so that it is exact and no finer than need be.

For each granule it holds who wrote it last and when, when each warp last read it, and how many
asynchronous operations (`begin_copy`, `begin_read`) are under way on it. An access is a race where
the clocks do not order it after what it conflicts with: a read after another warp's write, a write
after another warp's read or write, or anything while an asynchronous copy is under way (that one
is a missing wait where the copy is the lane's own warp's). Reading a granule that nobody wrote is a
finding too.

`load` and `store` are contracted like those of `memory`, with offsets for addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.clocks import Clocks
from tiledsl.targets.gpu.emulator.cohort import Access, Cohort, Lanes, Mask
from tiledsl.targets.gpu.emulator.findings import Kind
from tiledsl.targets.gpu.emulator.memory import UNSIGNED, Words
from tiledsl.targets.gpu.emulator.program import Instruction

Offsets = NDArray[np.int64]
Granules = NDArray[np.int64]
"""Flat granules, (lanes, granules an access)."""

_NOBODY = 0xFFFF


class SharedMemory:
    """The windows of all blocks of a cohort."""

    def __init__(self, cohort: Cohort, clocks: Clocks, size: int, granule: int) -> None:
        """Make windows of `size` bytes whose shadow has one entry a `granule` bytes."""
        self._cohort = cohort
        self._clocks = clocks
        self.size = size
        self._stride = -(-size // 128) * 128 or 128
        self._shift = granule.bit_length() - 1
        self.data = np.zeros(cohort.blocks * self._stride, np.uint8)
        self._words = {width: self.data.view(kind) for width, kind in UNSIGNED.items()}
        count = len(self.data) >> self._shift
        self._writer = np.full(count, _NOBODY, np.uint16)
        """Rank (in its block) of the warp that wrote last."""
        self._written = np.zeros(count, np.uint32)
        """The writer's time then."""
        self._write_line = np.full(count, -1, np.int32)
        """Index of the instruction that wrote."""
        self._read = np.zeros((clocks.warps, count), np.uint32)
        """Each warp's time when it last read."""
        self._copies = np.zeros(count, np.int16)
        """Asynchronous writes under way."""
        self._readers = np.zeros(count, np.int16)
        """Asynchronous reads under way."""
        self._instructions: dict[int, Instruction] = {}

    # --- access ----------------------------------------------------------------------------------

    def load(
        self, access: Access, offset: Offsets, size: int, count: int = 1, align: int | None = None
    ) -> Words:
        """Return the elements at `offset`: (n,), or (n, count) where count > 1."""
        if not len(offset):
            return np.zeros((0, count) if count > 1 else 0, UNSIGNED[size])
        flat, bad = self._checked(access, offset, size * count, align, "read")
        self._note_read(access, self._granules(flat, size * count), bad)
        words, index = self._place(flat, size, count)
        values = words[index]
        if bad is not None:
            values[bad] = 0
        return values

    def store(
        self,
        access: Access,
        offset: Offsets,
        values: Words,
        size: int,
        count: int = 1,
        align: int | None = None,
    ) -> None:
        """Write the elements, (n,) or (n, count), to `offset`."""
        if not len(offset):
            return
        flat, bad = self._checked(access, offset, size * count, align, "write")
        if bad is not None:
            access = Access(access.cohort, access.instruction, access.lanes[~bad])
            flat, values = flat[~bad], values[~bad]
        self._note_write(access, self._granules(flat, size * count))
        words, index = self._place(flat, size, count)
        words[index] = values
        self._find_conflicts(access, words, index, values, size * count, flat)

    def update(self, access: Access, offset: Offsets, size: int) -> tuple[Words, Any, Mask]:
        """Return what an atomic needs, as `GlobalMemory.update` does; atomics never race."""
        flat, bad = self._checked(access, offset, size, None, "write")
        good = np.ones(len(offset), np.bool_) if bad is None else ~bad
        lanes = Access(access.cohort, access.instruction, access.lanes[good])
        self._note_atomic(lanes, self._granules(flat[good], size))
        words, index = self._place(flat, size, 1)
        return words, index, good

    def _place(self, flat: Offsets, size: int, count: int) -> tuple[Words, NDArray[np.int64]]:
        width = size * count
        if count > 1 and not width & width - 1 and not (flat & width - 1).any():
            return self._words[size].reshape(-1, count), flat >> width.bit_length() - 1
        index = flat >> size.bit_length() - 1
        if count > 1:
            index = index[:, None] + np.arange(count)
        return self._words[size], index

    def _checked(
        self, access: Access, offset: Offsets, width: int, align: int | None, verb: str
    ) -> tuple[Offsets, Mask | None]:
        """Return offsets into `data` that are safe, and the lanes that were wrong (None: none)."""
        outside = (offset < 0) | (offset + width > self.size)
        crooked = (offset & (align or width) - 1) != 0
        bad = outside | crooked
        if not bad.any():
            return offset + self._cohort.block_of[access.lanes] * self._stride, None

        def message(at: int) -> str:
            return (
                f"{verb} of {width} bytes at byte {int(offset[at])} of {self.size} of shared memory"
            )

        if outside.any():
            access.report(Kind.OUT_OF_BOUNDS, outside, message)
        if crooked.any():
            access.report(Kind.MISALIGNED, crooked, message)
        safe = np.where(bad, 0, offset)
        return safe + self._cohort.block_of[access.lanes] * self._stride, bad

    # --- shadow ----------------------------------------------------------------------------------

    def _granules(self, flat: Offsets, width: int) -> Granules:
        first = flat >> self._shift
        count = width >> self._shift
        return first[:, None] if count == 1 else first[:, None] + np.arange(count)

    def _note_read(self, access: Access, granules: Granules, bad: Mask | None) -> None:
        warp = self._cohort.warp_of[access.lanes]
        writer = self._writer[granules]
        fresh = writer == _NOBODY
        known = self._clocks.seen[warp[:, None], np.where(fresh, 0, writer)]
        race = ~fresh & (self._written[granules] > known)
        if bad is not None:
            fresh[bad] = race[bad] = False
        if self._copies[granules].any():
            self._report_copy(access, self._copies[granules] > 0, "read")
            fresh &= self._copies[granules] == 0
        if fresh.any():
            access.report(
                Kind.UNINITIALIZED,
                fresh.any(1),
                lambda at: f"read of shared memory at byte {self._byte(granules[at])}",
            )
        if race.any():
            self._report_race(access, race, granules, "read", "write")
        rank = self._clocks.rank[warp]
        self._read[rank[:, None], granules] = self._clocks.now(warp)[:, None]

    def _note_write(self, access: Access, granules: Granules) -> None:
        warp = self._cohort.warp_of[access.lanes]
        self._check_write(access, granules, warp)
        rank = self._clocks.rank[warp][:, None]
        self._writer[granules] = rank
        self._written[granules] = self._clocks.now(warp)[:, None]
        self._write_line[granules] = access.instruction.index
        self._instructions[access.instruction.index] = access.instruction
        lost = self._writer[granules] != rank
        if lost.any():  # another warp wrote it in this very step
            self._report_race(access, lost, granules, "write", "write")

    def _check_write(self, access: Access, granules: Granules, warp: Lanes) -> None:
        """Report what a write by each lane's warp would be a race with."""
        writer = self._writer[granules]
        fresh = writer == _NOBODY
        known = self._clocks.seen[warp[:, None], np.where(fresh, 0, writer)]
        race = ~fresh & (self._written[granules] > known)
        if race.any():
            self._report_race(access, race, granules, "write", "write")
        if self._clocks.warps > 1:
            seen = self._clocks.seen[warp]
            late = np.zeros(granules.shape, np.bool_)
            own = self._clocks.rank[warp]
            for other in range(self._clocks.warps):
                unseen = self._read[other][granules] > seen[:, other, None]
                late |= unseen & (own != other)[:, None]
            if late.any():
                self._report_race(access, late, granules, "write", "read")
        if (self._copies[granules] > 0).any() or (self._readers[granules] > 0).any():
            busy = (self._copies[granules] > 0) | (self._readers[granules] > 0)
            self._report_copy(access, busy, "write")

    def _note_atomic(self, access: Access, granules: Granules) -> None:
        """Check an atomic against plain accesses."""
        warp = self._cohort.warp_of[access.lanes]
        fresh = self._writer[granules] == _NOBODY
        if fresh.any():
            access.report(
                Kind.UNINITIALIZED,
                fresh.any(1),
                lambda at: f"atomic on shared memory at byte {self._byte(granules[at])}",
            )
        self._check_write(access, granules, warp)

    def _find_conflicts(
        self,
        access: Access,
        words: Words,
        index: NDArray[np.int64],
        values: Words,
        width: int,
        flat: Offsets,
    ) -> None:
        """Report lanes of one warp that wrote different values to one place in one instruction."""
        lost = words[index] != values
        if not lost.any():
            return
        bad = lost.any(1) if lost.ndim > 1 else lost
        access.report(
            Kind.RACE,
            bad,
            lambda at: (
                f"two lanes write different values of {width} bytes to byte "
                f"{int(flat[at]) % self._stride} of shared memory"
            ),
        )

    # --- asynchronous operations -----------------------------------------------------------------

    def begin_copy(self, access: Access, offset: Offsets, width: int) -> Granules:
        """Begin an asynchronous write by the lanes' warps; returns what `end_copy` wants."""
        granules = self._granules(offset + self._base(access.lanes), width)
        self._check_write(access, granules, self._cohort.warp_of[access.lanes])
        np.add.at(self._copies, granules, 1)
        return granules

    def end_copy(
        self, access: Access, granules: Granules, offset: Offsets, values: Words, size: int
    ) -> None:
        """Let the bytes of an asynchronous write arrive: `values` as in `store`."""
        np.subtract.at(self._copies, granules, 1)
        count = 1 if values.ndim == 1 else values.shape[1]
        warp = self._cohort.warp_of[access.lanes]
        self._writer[granules] = self._clocks.rank[warp][:, None]
        self._written[granules] = self._clocks.now(warp)[:, None]
        self._write_line[granules] = access.instruction.index
        self._instructions[access.instruction.index] = access.instruction
        words, index = self._place(offset + self._base(access.lanes), size, count)
        words[index] = values

    def begin_read(self, access: Access, offset: Offsets, width: int) -> Granules:
        """Begin an asynchronous read (a matrix operand); checked as a read, `end_read` ends it."""
        granules = self._granules(offset + self._base(access.lanes), width)
        self._note_read(access, granules, None)
        np.add.at(self._readers, granules, 1)
        return granules

    def end_read(self, granules: Granules) -> None:
        """End an asynchronous read."""
        np.subtract.at(self._readers, granules, 1)

    def _base(self, lanes: Lanes) -> Offsets:
        return self._cohort.block_of[lanes] * self._stride

    # --- reports ---------------------------------------------------------------------------------

    def _byte(self, granules: Sequence[int] | NDArray[np.int64]) -> int:
        return (int(granules[0]) << self._shift) % self._stride

    def _report_race(
        self, access: Access, race: Any, granules: Granules, verb: str, other: str
    ) -> None:
        def message(at: int) -> str:
            granule = int(granules[at][race[at]][0])
            text = f"{verb} of shared memory at byte {self._byte([granule])}"
            if other == "read":
                return f"{text}, which another warp may still have to read"
            line = self._instructions.get(int(self._write_line[granule]))
            place = ""
            if line is not None:
                where = "" if line.source is None else f" at line {line.source.line}"
                place = f"{where} (`{line.text}`)"
            return f"{text}: no barrier after the write by warp {int(self._writer[granule])}{place}"

        access.report(Kind.RACE, race.any(1), message)

    def _report_copy(self, access: Access, busy: Any, verb: str) -> None:
        access.report(
            Kind.MISSING_WAIT,
            busy.any(1),
            lambda at: f"{verb} of shared memory that an asynchronous operation is still using",
        )
