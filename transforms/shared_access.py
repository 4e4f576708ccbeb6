"""How the threads of a warp read or write a tile in shared memory: vector width and bank conflicts.

A register layout and a shared-memory layout, both linear maps over F2 into the tensor, compose to a
linear map from registers, lanes and warps to offsets. From its columns follow the widest vector
every thread can move at once, which registers make it up, and exactly how often the banks have to
be asked: the words that a phase of lanes touches form a subspace, and the part of it that lies on
one bank is another.

Contract: a shared-memory layout is a `LinearLayout` from "offset" (in elements) onto the tensor,
with each element at one offset. Elements have 8 to 64 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from tiledsl.dialects import layout_f2 as f2
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_f2 import IntArray, log2_exact

Phases = tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(frozen=True)
class SharedMemory:
    """The banks of a chip's shared memory and which lanes are served together.

    An access is served in phases, groups of lanes whose words are fetched at once if no two lie on
    one bank. Every known grouping is a subspace of the lane number and its cosets, so it is given
    by lane masks that generate it: (1, 2, 4) is lanes 0 to 7, 8 to 15, ...

    Attributes:
        banks: Number of banks, a power of two.
        bank_bytes: Bytes of a bank's word.
        reads: For each width in bytes a lane, ascending, the masks that generate a phase.
        writes: The same for writes.
        write_banks: Number of banks that writes see, if not `banks`.
    """

    banks: int
    bank_bytes: int
    reads: Phases
    writes: Phases
    write_banks: int | None = None

    def banks_for(self, write: bool) -> int:
        """Give the number of banks that reads or writes are spread over."""
        return self.write_banks or self.banks if write else self.banks

    def phase(self, lane_bytes: int, write: bool) -> tuple[int, ...]:
        """Give the generators of the lanes served together when each moves `lane_bytes`."""
        table = self.writes if write else self.reads
        return next((masks for width, masks in table if lane_bytes <= width), table[-1][1])

    @property
    def row_bytes(self) -> int:
        """Bytes that all banks deliver at once."""
        return self.banks * self.bank_bytes


_CONSECUTIVE: Phases = ((4, (1, 2, 4, 8, 16)), (8, (1, 2, 4, 8)), (16, (1, 2, 4)))

NVIDIA = SharedMemory(32, 4, _CONSECUTIVE, _CONSECUTIVE)
"""32 lanes of 4 bytes, half warps of 8, quarter warps of 16 (CUDA C++ Programming Guide; measured
wavefronts of LDS.128 agree)."""

RDNA = NVIDIA
"""LDS of gfx11 and gfx12 in wave32, seen as 32 banks; taken to group consecutive lanes."""

CDNA3 = SharedMemory(32, 4, (*_CONSECUTIVE[:2], (16, (1, 2, 20))), _CONSECUTIVE)
"""LDS of gfx90a and gfx942. `ds_read_b128` serves lanes {0-3, 20-23}, {4-7, 16-19}, {8-11, 28-31},
{12-15, 24-27} and the same from 32 on together, `ds_write_b128` consecutive eights (ROCm blog,
"Avoiding LDS Bank Conflicts on AMD GPUs Using CK-Tile Framework")."""

CDNA4 = SharedMemory(
    64,
    4,
    ((8, (1, 2, 4, 8, 16)), (16, (1, 2, 12, 20))),
    _CONSECUTIVE,
    write_banks=32,
)
"""LDS of gfx950: 64 banks for reads; `ds_read_b128` serves lanes {0-3, 12-15, 20-27} together.
Writes are half as wide and see 32 banks (measured by HipKittens, arXiv 2511.08083)."""


@dataclass(frozen=True, eq=False)
class SharedAccess:
    """One way for all threads to read or write a tile, in vectors of `elements` elements.

    Attributes:
        offsets: Map from register, lane and warp to the offset in elements, of shape (size,).
        steps: Register masks that move by 1, 2, 4, ... elements within a vector.
        instructions: Vectors of one thread.
        degree: How many times each phase is served; 1 is free of conflicts.
        wavefronts: Times the banks are asked by one warp for the whole tile.
    """

    offsets: LinearLayout
    steps: tuple[int, ...]
    instructions: int
    degree: int
    wavefronts: int

    @property
    def elements(self) -> int:
        """Elements of one vector, consecutive and aligned in shared memory."""
        return 1 << len(self.steps)

    @cached_property
    def registers(self) -> IntArray:
        """Registers of each vector, [vector, element]; each distinct element once."""
        columns = self.offsets.flat("register")
        span = f2.Span()
        starts = [
            mask
            for mask in f2.kernel([column & (self.elements - 1) for column in columns])
            if span.add(f2.apply(columns, mask))  # else it only reaches copies
        ]
        registers = f2.table(starts)[:, None] ^ f2.table(self.steps)[None, :]
        registers.setflags(write=False)
        return registers

    @cached_property
    def fill(self) -> IntArray:
        """For each register its place in `registers`, flattened: a read is `loaded[fill]`."""
        offsets = self.offsets.register_offsets
        order = np.argsort(offsets[self.registers.ravel()])
        found = np.searchsorted(offsets[self.registers.ravel()][order], offsets)
        result = order[found].astype(np.int64)
        result.setflags(write=False)
        return result

    @cached_property
    def vector_offsets(self) -> IntArray:
        """Offset of each vector of thread 0, in elements; another thread's differ by an xor."""
        return self.offsets.register_offsets[self.registers[:, 0]]

    @property
    def is_additive(self) -> bool:
        """Whether `vector_offsets` may be added to a thread's first offset instead of xored.

        So it is if no bit can be set in both; the offsets are then immediate operands.
        """
        return not _moved(self.offsets) & int(np.bitwise_or.reduce(self.vector_offsets))


def _moved(offsets: LinearLayout) -> int:
    """Give the offset bits in which threads differ."""
    moved = 0
    for column in offsets.columns[offsets.bits("register") :]:
        moved |= column
    return moved


@lru_cache(maxsize=8192)
def shared_offsets(layout: LinearLayout, shared: LinearLayout) -> LinearLayout:
    """Give the map from register, lane and warp to the offset in shared memory, in elements."""
    return shared.inverse().compose(layout)


@lru_cache(maxsize=8192)
def shared_access(
    layout: LinearLayout,
    shared: LinearLayout,
    element_bits: int,
    memory: SharedMemory = NVIDIA,
    *,
    write: bool = False,
    max_bytes: int = 16,
    in_order: bool = False,
) -> SharedAccess:
    """Find the widest vectors in which threads can move a tile, and what they cost.

    Registers of a vector need not be consecutive; `registers` says which they are. Copies held by
    other lanes are moved by all (a writer masks those off, see `LinearLayout.free_masks`).

    Args:
        layout: Where threads hold the tile.
        shared: Where shared memory holds it.
        element_bits: Width of an element.
        memory: The chip's banks.
        write: Whether this is a write.
        max_bytes: Widest vector.
        in_order: Whether a vector must be consecutive registers in order, as where its other end is
            a vector in global memory.
    """
    offsets = shared_offsets(layout, shared)
    columns = offsets.flat("register")
    span = f2.Span(columns)
    moved = _moved(offsets)
    steps: list[int] = []
    for bit in range(log2_exact(max(1, max_bytes * 8 // element_bits))):
        mask = span.solve(1 << bit)
        if mask is None or moved >> bit & 1:
            break
        # In order, no other register may permute the elements of a vector either.
        others = (column for i, column in enumerate(columns) if i != bit)
        if in_order and (mask != 1 << bit or any(column >> bit & 1 for column in others)):
            break
        steps.append(mask)
    degree = conflict_degree(offsets, len(steps), element_bits, memory, write)
    phases = layout.lanes >> len(memory.phase((element_bits << len(steps)) // 8, write))
    count = 1 << (span.rank - len(steps))
    return SharedAccess(offsets, tuple(steps), count, degree, count * max(1, phases) * degree)


def conflict_degree(
    offsets: LinearLayout,
    vector_bits: int,
    element_bits: int,
    memory: SharedMemory = NVIDIA,
    write: bool = False,
) -> int:
    """Give how often the busiest bank is asked in each phase; all phases are alike, by linearity.

    Args:
        offsets: Map from lanes to offsets in elements.
        vector_bits: log2 of the elements of a vector.
        element_bits: Width of an element.
        memory: The chip's banks.
        write: Whether this is a write.
    """
    lane_bytes = (element_bits << vector_bits) // 8
    lanes = offsets.flat("lane")
    scale = element_bits // 8
    words = [
        f2.apply(lanes, mask) * scale // memory.bank_bytes
        for mask in memory.phase(lane_bytes, write)
        if mask < 1 << len(lanes)
    ]
    words += [1 << i for i in range(log2_exact(max(1, lane_bytes // memory.bank_bytes)))]
    banks = memory.banks_for(write)
    return 1 << (f2.rank(words) - f2.rank(word & (banks - 1) for word in words))


def bank_conflicts(
    layout: LinearLayout,
    shared: LinearLayout,
    element_bits: int,
    vector_elements: int,
    memory: SharedMemory = NVIDIA,
    write: bool = False,
) -> int:
    """Count the degree of conflict by listing every address: the slow check of `conflict_degree`.

    Vectors are taken from `shared_access`, narrowed to `vector_elements`.

    Raises:
        ValueError: There are no vectors as wide as that.
    """
    width = vector_elements * element_bits // 8
    access = shared_access(layout, shared, element_bits, memory, write=write, max_bytes=width)
    if access.elements != vector_elements:
        raise ValueError(f"expected vectors of {vector_elements}, found {access.elements}")
    phase = {int(x) for x in f2.table(memory.phase(width, write)) if x < layout.lanes}
    worst = 1
    offsets = access.offsets.table[0][:, :, access.registers[:, 0]]
    for first in range(layout.lanes):
        lanes = [first ^ lane for lane in phase]
        for warp in range(layout.warps):
            for vector in range(len(access.registers)):
                starts = offsets[warp, lanes, vector] * element_bits // 8
                worst = max(worst, _busiest(starts, width, memory, memory.banks_for(write)))
    return worst


def _busiest(starts: IntArray, width: int, memory: SharedMemory, count: int) -> int:
    """Give how many different words of vectors of `width` bytes lie on the busiest of the banks."""
    banks: dict[int, set[int]] = {}
    for start in starts.tolist():
        for byte in range(start, start + width):
            word = byte // memory.bank_bytes
            banks.setdefault(word % count, set()).add(word)
    return max(len(words) for words in banks.values())
