"""Shared memory (LDS) of a cohort: its bytes, and what shows that an access to them is a fault.

Each block has a window of `size` bytes; an address is the byte offset in the window of the lane's
own block. What is known of the bytes is kept by *granule*: the smallest power of two that every
shared access of the kernel is a multiple of, so that it is exact and no finer than need be.

An access is a race where the clocks do not order it after what it conflicts with: a read after
another warp's write, a write after another warp's read or write, an atomic after another warp's
plain access and the reverse (`races`). Two lanes that write different values to one place in one
instruction are one too, and so are two warps that write any. Whatever touches a granule while an
asynchronous operation is under way on it (`begin_copy`, `begin_read`) is a missing wait. Reading a
granule that nobody wrote is a finding too.

`load`, `store` and `update` are contracted like those of `memory`, with offsets for addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.clocks import Clocks
from tiledsl.targets.gpu.emulator.cohort import Access, Cohort, Lanes, Mask
from tiledsl.targets.gpu.emulator.findings import Kind, by_instruction
from tiledsl.targets.gpu.emulator.program import Instruction
from tiledsl.targets.gpu.emulator.races import Others, Race, Touch, Writes, granules_of
from tiledsl.targets.gpu.emulator.under_way import UnderWay
from tiledsl.targets.gpu.emulator.words import UNSIGNED, Words, natural_alignment, zero_bytes

Offsets = NDArray[np.int64]
Granules = NDArray[np.int64]
"""Flat granules, (lanes, granules an access)."""


class SharedMemory:
    """The windows of all blocks of a cohort."""

    def __init__(self, cohort: Cohort, clocks: Clocks, size: int, granule: int) -> None:
        """Make windows of `size` bytes whose shadow has one entry a `granule` bytes."""
        cohort.clocks = clocks
        self._cohort = cohort
        self._clocks = clocks
        self.size = size
        self._stride = -(-size // 128) * 128 or 128
        self._shift = granule.bit_length() - 1
        self._base = cohort.block_of * self._stride
        """Where the window of each flat thread's block begins."""
        self._words = Words(zero_bytes(cohort.blocks * self._stride))
        self.data = self._words.bytes
        count = len(self.data) >> self._shift
        self._written = Words(zero_bytes(count))
        """By granule: 1 if anything wrote it."""
        self._writes = Writes(clocks, count, self._shift)
        self._reads = Others(clocks, count, self._shift)
        self._atomics = Others(clocks, count, self._shift)
        self._instructions: dict[int, Instruction] = {}
        """Who accessed, by index."""
        self._owner: dict[int, NDArray[np.int32]] = {}
        """Scratch: by word of some width, the lane that wrote it last in this instruction."""
        self._under_way = UnderWay(count, self._shift, self._stride)
        self.on_write: Callable[[Lanes, Granules], None] | None = None
        """Is told the warp and the granules of each lane of every plain write and atomic."""

    # --- access ----------------------------------------------------------------------------------

    def load(
        self, access: Access, offset: Offsets, size: int, count: int = 1, align: int | None = None
    ) -> NDArray[Any]:
        """Return the elements at `offset`: (n,), or (n, count) where count > 1."""
        if not len(offset):
            return np.zeros((0, count) if count > 1 else 0, UNSIGNED[size])
        touch, bad = self._checked(access, offset, size * count, align, "read")
        self._note_read(access, touch, bad)
        values = self._words.gather(touch.flat, size, count)
        if bad is not None:
            values[bad] = 0
        return values

    def store(
        self,
        access: Access,
        offset: Offsets,
        values: NDArray[Any],
        size: int,
        count: int = 1,
        align: int | None = None,
    ) -> None:
        """Write the elements, (n,) or (n, count), to `offset`."""
        if not len(offset):
            return
        touch, bad = self._checked(access, offset, size * count, align, "write")
        if bad is not None:
            access, touch, values = _without(access, touch, bad, values)
        self._check_write(access, touch)
        self._words.scatter(touch.flat, values, size, count)
        self._check_lanes(access, touch, values, size, count)
        self._note_write(touch)
        if self.on_write is not None:
            self.on_write(touch.warp, self._granules(touch))

    def update(self, access: Access, offset: Offsets, size: int) -> tuple[NDArray[Any], Any, Mask]:
        """Return what an atomic needs, as `GlobalMemory.update` does; atomics never race."""
        if not len(offset):
            return self._words.of[size], np.zeros(0, np.int64), np.zeros(0, np.bool_)
        touch, bad = self._checked(access, offset, size, None, "write")
        good = np.ones(len(offset), np.bool_) if bad is None else ~bad
        self._note_atomic(access, touch, bad)
        if self.on_write is not None:
            self.on_write(touch.warp, self._granules(touch))
        return self._words.of[size], touch.flat >> size.bit_length() - 1, good

    def _checked(
        self, access: Access, offset: Offsets, width: int, align: int | None, verb: str
    ) -> tuple[Touch, Mask | None]:
        """Return an access whose positions are safe, and the lanes that were wrong (None: none)."""
        low, high = int(offset.min()), int(offset.max()) + width
        bad = None
        if low < 0 or high > self.size:
            outside = (offset < 0) | (offset > self.size - width)
            access.report(Kind.OUT_OF_BOUNDS, outside, self._saying(verb, width, offset))
            bad = outside
        align = align or natural_alignment(width)
        if align > 1:
            crooked = (offset & align - 1) != 0
            if crooked.any():
                access.report(Kind.MISALIGNED, crooked, self._saying(verb, width, offset))
                bad = crooked if bad is None else bad | crooked
        if bad is not None:
            low, high = max(low, 0), min(high, self.size)
            offset = np.where(bad, 0, offset)
        warp = self._cohort.warp_of[access.lanes]
        flat = offset + self._base[access.lanes]
        return Touch(access.instruction, warp, flat, width, low, high), bad

    def _saying(self, verb: str, width: int, offset: Offsets) -> Callable[[int], str]:
        return lambda at: (
            f"{verb} of {width} bytes at byte {int(offset[at])} of shared memory, "
            f"which has {self.size}"
        )

    # --- faults ----------------------------------------------------------------------------------

    def _note_read(self, access: Access, touch: Touch, bad: Mask | None) -> None:
        busy = self._under_way.by_writes(touch)
        if busy is not None:
            self._report_busy(access, busy, "read")
        fresh = self._fresh(touch)
        if fresh is not None:
            if bad is not None:
                fresh &= ~bad
            if busy is not None:
                fresh &= ~busy
            self._report_fresh(access, fresh, touch, "read")
        if self._clocks.group > 1:
            self._instructions[touch.instruction.index] = touch.instruction
            for history in (self._writes, self._atomics):
                self._report_races(access, touch, history, bad, "read", "write")
            self._reads.note(touch)

    def _check_write(self, access: Access, touch: Touch) -> None:
        """Report what a write by each lane's warp would be a race with."""
        busy = self._under_way.by_any(touch)
        if busy is not None:
            self._report_busy(access, busy, "write")
        if self._clocks.group > 1:
            self._report_races(access, touch, self._writes, None, "write", "write")
            self._report_races(access, touch, self._atomics, None, "write", "atomic")
            self._report_races(access, touch, self._reads, None, "write", "read")

    def peek(self, lanes: Lanes, offset: Offsets, size: int, count: int = 1) -> NDArray[Any]:
        """Return elements as `load` does, unchecked: what an asynchronous read finds at last."""
        return self._words.gather(offset + self._base[lanes], size, count)

    def visit(self, access: Access, offset: Offsets, width: int, by: NDArray[np.intp]) -> None:
        """Check and note a read by warps of other blocks, of the blocks of the access's lanes."""
        touch, bad = self._checked(access, offset, width, None, "read")
        touch.warp = by
        self._note_read(access, touch, bad)

    def granules(self, lanes: Lanes, offset: Offsets, width: int) -> Granules:
        """Return the flat granules that accesses within bounds touch, (lanes, granules)."""
        return granules_of(offset + self._base[lanes], width, self._shift)

    def byte_of(self, granule: int) -> int:
        """Return the offset of a flat granule in its block's window."""
        return (granule << self._shift) % self._stride

    @property
    def granule_count(self) -> int:
        """Granules of all blocks."""
        return len(self.data) >> self._shift

    def _note_write(self, touch: Touch) -> None:
        self._set_written(touch.flat, touch.width)
        if self._clocks.group > 1:
            self._instructions[touch.instruction.index] = touch.instruction
            self._writes.note(touch)

    def _note_atomic(self, access: Access, touch: Touch, bad: Mask | None) -> None:
        """Check an atomic against plain accesses."""
        busy = self._under_way.by_any(touch)
        if busy is not None:
            self._report_busy(access, busy, "atomic")
        fresh = self._fresh(touch)
        if fresh is not None:
            self._report_fresh(access, fresh if bad is None else fresh & ~bad, touch, "atomic")
        if self._clocks.group > 1:
            self._report_races(access, touch, self._writes, bad, "atomic", "write")
            self._report_races(access, touch, self._reads, bad, "atomic", "read")
            self._instructions[touch.instruction.index] = touch.instruction
            self._atomics.note(touch)

    def _granules(self, touch: Touch) -> Granules:
        return granules_of(touch.flat, touch.width, self._shift)

    def _fresh(self, touch: Touch) -> Mask | None:
        """Return which lanes touch a granule that nobody wrote; None if none does."""
        flags = self._written.gather(touch.flat >> self._shift, 1, touch.width >> self._shift)
        if flags.all():
            return None
        return flags == 0 if flags.ndim == 1 else np.logical_or.reduce(flags == 0, 1)

    def _set_written(self, flat: Offsets, width: int) -> None:
        count = width >> self._shift
        ones = np.ones((len(flat), count) if count > 1 else len(flat), np.uint8)
        self._written.scatter(flat >> self._shift, ones, 1, count)

    def _check_lanes(
        self, access: Access, touch: Touch, values: NDArray[Any], size: int, count: int
    ) -> None:
        """Report lanes that wrote to one place in one instruction.

        Lanes of one warp may if they write the same value.
        """
        owner = self._owner.get(touch.width)
        if owner is None:
            owner = self._owner[touch.width] = np.zeros(len(self.data) // touch.width + 1, np.int32)
        word = touch.flat // touch.width  # the same one means that they overlap
        lane = np.arange(len(word), dtype=np.int32)
        owner[word] = lane
        last = owner[word]
        twice = last != lane
        if not twice.any():
            return
        lost = self._words.gather(touch.flat, size, count) != values
        lost = np.logical_or.reduce(lost, 1) if lost.ndim > 1 else lost
        bad = twice & (lost | (touch.warp != touch.warp[last]))
        if bad.any():
            threads = access.lanes % self._cohort.threads
            access.report(
                Kind.RACE,
                bad,
                lambda at: (
                    f"two lanes write {touch.width} bytes to byte "
                    f"{int(touch.flat[at]) % self._stride} of shared memory in one instruction, "
                    f"threads {int(threads[at])} and {int(threads[last[at]])}"
                ),
            )

    # --- asynchronous operations -----------------------------------------------------------------

    def begin_copy(
        self, access: Access, offset: Offsets, width: int, by: int | None = None
    ) -> Granules:
        """Begin an asynchronous write by the lanes' warps; returns what `end_copy` wants.

        What is returned has one row a lane: a copy may end for some lanes before others.

        Args:
            access: The lanes whose blocks are written to.
            offset: Where in their shared memory.
            width: How many bytes each.
            by: The warp of the cluster that writes, if it is not the lanes' own.
        """
        touch, bad = self._checked(access, offset, width, None, "write")
        if by is not None:
            touch.warp = np.full(len(touch.flat), by)
        if bad is None:
            self._check_write(access, touch)
        granules = self._granules(touch)
        self._under_way.begin(granules, touch, writing=True)
        return granules

    def end_copy(
        self,
        access: Access,
        granules: Granules,
        offset: Offsets,
        values: NDArray[Any],
        size: int,
        by: int | None = None,
    ) -> None:
        """Let the bytes of an asynchronous write arrive: `values` as in `store`."""
        self._under_way.end(granules, writing=True)
        count = 1 if values.ndim == 1 else values.shape[1]
        width = size * count
        good = (offset >= 0) & (offset <= self.size - width)
        if not good.all():
            access = Access(access.cohort, access.instruction, access.lanes[good])
            offset, values = offset[good], values[good]
        if not len(offset):
            return
        flat = offset + self._base[access.lanes]
        warp = self._cohort.warp_of[access.lanes] if by is None else np.full(len(flat), by)
        low, high = int(offset.min()), int(offset.max()) + width
        self._words.scatter(flat, values, size, count)
        self._note_write(Touch(access.instruction, warp, flat, width, low, high))

    def begin_read(self, access: Access, offset: Offsets, width: int) -> Granules:
        """Begin an asynchronous read (a matrix operand); checked as a read, `end_read` ends it."""
        touch, bad = self._checked(access, offset, width, None, "read")
        self._note_read(access, touch, bad)
        granules = self._granules(touch)
        self._under_way.begin(granules, touch, writing=False)
        return granules

    def end_read(self, here: Instruction, warp: NDArray[np.intp], granules: Granules) -> None:
        """End an asynchronous read: each row of granules was read until now, as its warp knows.

        Args:
            here: What read.
            warp: The flat warp that has waited for each row.
            granules: What `begin_read` returned, or some rows of it.
        """
        self._under_way.end(granules, writing=False)
        if self._clocks.group > 1 and len(granules):
            flat = granules[:, 0] << self._shift
            offset, width = flat % self._stride, granules.shape[1] << self._shift
            low, high = int(offset.min()), int(offset.max()) + width
            self._reads.note(Touch(here, warp, flat, width, low, high))

    # --- reports ---------------------------------------------------------------------------------

    def _report_races(
        self,
        access: Access,
        touch: Touch,
        history: Writes | Others,
        bad: Mask | None,
        verb: str,
        other: str,
    ) -> None:
        race = history.races(touch)
        if race is None:
            return
        lanes = race.lanes if bad is None else race.lanes & ~bad
        if lanes.any():
            instructions = self._instructions
            access.report(
                Kind.RACE,
                lanes,
                self._telling(touch, race, verb, other),
                lambda at: instructions.get(int(race.by[at])),
            )

    def _telling(self, touch: Touch, race: Race, verb: str, other: str) -> Callable[[int], str]:
        def message(at: int) -> str:
            granule = (int(touch.flat[at]) >> self._shift) + int(race.granule[at])
            by = by_instruction(self._instructions.get(int(race.by[at])))
            mine = int(self._clocks.rank[touch.warp[at]])
            return (
                f"{verb} of shared memory at byte {self.byte_of(granule)} by warp {mine}: no "
                f"barrier after the {other} by warp {int(race.rank[at])}{by}"
            )

        return message

    def _report_fresh(self, access: Access, fresh: Mask, touch: Touch, verb: str) -> None:
        if fresh.any():
            access.report(
                Kind.UNINITIALIZED,
                fresh,
                lambda at: f"{verb} of shared memory at byte {int(touch.flat[at]) % self._stride}",
            )

    def _report_busy(self, access: Access, busy: Mask, verb: str) -> None:
        access.report(
            Kind.MISSING_WAIT,
            busy,
            lambda at: f"{verb} of shared memory that an asynchronous operation is still using",
        )


def _without(
    access: Access, touch: Touch, bad: Mask, values: NDArray[Any]
) -> tuple[Access, Touch, NDArray[Any]]:
    """Return an access with the lanes in `bad` left out."""
    good = ~bad
    lanes: Lanes = access.lanes[good]
    kept = Touch(
        touch.instruction, touch.warp[good], touch.flat[good], touch.width, touch.low, touch.high
    )
    return Access(access.cohort, access.instruction, lanes), kept, values[good]
