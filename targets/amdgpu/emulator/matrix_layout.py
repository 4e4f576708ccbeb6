"""Which element of a matrix each lane and register of a matrix instruction holds.

An operand of a matrix instruction is spread over the lanes of a wave, and over the *elements* of
each lane: what its registers hold, one after another, the low bits of a register first. A
`Fragment` says where each element of the (block, row, k) matrix of an operand is, as one flat
number (lane x elements a lane + element), so a whole operand of all waves is one `take`.

Right operands and accumulators are given transposed where that makes two the same: the right
operand is read as (block, column, k), the accumulator as (block, row, column).

Sources: AMD's CDNA3 ISA, "Matrix Arithmetic Instructions", RDNA3 and RDNA4 ISA, "WMMA"; the tables
agree with AMD's matrix instruction calculator for every instruction that it knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.intp]

CDNA_LANES = 64
RDNA_LANES = 32


@dataclass(frozen=True, eq=False)
class Fragment:
    """Where the elements of one operand are.

    Attributes:
        where: (blocks, rows, columns): lane x `per_lane` + element of the lane.
        holds: (lanes, `per_lane`): the flat number (block, row, column) of what each lane holds.
        per_lane: Elements that a lane holds.
    """

    where: Index
    holds: Index
    per_lane: int


@dataclass(frozen=True)
class Shape:
    """What a matrix instruction multiplies: `blocks` products of (size x k) and (k x size)."""

    size: int
    k: int
    blocks: int = 1

    @property
    def flops(self) -> int:
        """Floating-point operations."""
        return 2 * self.size * self.size * self.k * self.blocks


def _fragment(
    block: Index, row: Index, column: Index, blocks: int, rows: int, columns: int
) -> Fragment:
    """Make a fragment of where each (lane, element) belongs."""
    lanes, per_lane = np.broadcast_shapes(block.shape, row.shape, column.shape)
    holds = np.broadcast_to((block * rows + row) * columns + column, (lanes, per_lane)).copy()
    where = np.zeros(blocks * rows * columns, np.intp)
    # Where several lanes hold the same element the first one's counts.
    where[holds.ravel()[::-1]] = np.arange(lanes * per_lane)[::-1]
    return Fragment(where.reshape(blocks, rows, columns), holds, per_lane)


def _lanes_elements(lanes: int, per_lane: int) -> tuple[Index, Index]:
    return np.arange(lanes)[:, None], np.arange(per_lane)[None, :]


@cache
def mfma_operand(shape: Shape) -> Fragment:
    """Return a left or right operand of `v_mfma`.

    Lanes count rows, then blocks, then groups along k, each of which holds a run of k.
    """
    size, k, blocks = shape.size, shape.k, shape.blocks
    groups = CDNA_LANES // (size * blocks)
    lane, element = _lanes_elements(CDNA_LANES, k // groups)
    row, block, group = lane % size, lane // size % blocks, lane // (size * blocks)
    return _fragment(block, row, group * (k // groups) + element, blocks, size, k)


@cache
def mfma_accumulator(shape: Shape, f64: bool = False) -> Fragment:
    """Return the accumulator of `v_mfma`.

    Lanes hold columns. A lane holds runs of four rows, the lanes of one run side by side, and the
    blocks one after another, but for the 4 x 4 shapes, whose blocks lie across the lanes, and for
    f64, whose rows interleave over the groups of lanes.
    """
    size, blocks = shape.size, shape.blocks
    per_lane = size * size * blocks // CDNA_LANES
    lane, element = _lanes_elements(CDNA_LANES, per_lane)
    column, group = lane % size, lane // size
    if f64 and size == 4:
        block, row = group % blocks, group // blocks
    elif f64:
        block, row = 0 * lane, element * (CDNA_LANES // size) + group
    elif size == 4:
        block, row = group, element
    else:
        a_block = per_lane // blocks
        block, within = element // a_block, element % a_block
        row = (within // 4 * (CDNA_LANES // size) + group) * 4 + within % 4
    return _fragment(block, row, column, blocks, size, size)


@cache
def wmma_operand_gfx11(k: int) -> Fragment:
    """Return a left or right operand of RDNA 3's `v_wmma`: both halves of a wave hold all of it."""
    lane, element = _lanes_elements(RDNA_LANES, k)
    return _fragment(0 * lane, lane % 16, element, 1, 16, k)


@cache
def wmma_accumulator_gfx11() -> Fragment:
    """Return RDNA 3's accumulator: rows alternate between the halves of the wave."""
    lane, element = _lanes_elements(RDNA_LANES, 8)
    return _fragment(0 * lane, 2 * element + lane // 16, lane % 16, 1, 16, 16)


@cache
def wmma_operand_gfx12(k: int, bits: int) -> Fragment:
    """Return a left or right operand of RDNA 4's `v_wmma`, of elements of so many bits.

    The halves of the wave share k: eight bytes of it by turns where elements have 16 bits, half of
    it each otherwise.
    """
    lane, element = _lanes_elements(RDNA_LANES, k // 2)
    run = 4 if bits == 16 else k // 2
    depth = element // run * 2 * run + lane // 16 * run + element % run
    return _fragment(0 * lane, lane % 16, depth, 1, 16, k)


@cache
def wmma_accumulator_gfx12() -> Fragment:
    """Return RDNA 4's accumulator: the halves of the wave hold rows 0 to 7 and 8 to 15."""
    lane, element = _lanes_elements(RDNA_LANES, 8)
    return _fragment(0 * lane, lane // 16 * 8 + element, lane % 16, 1, 16, 16)


@cache
def broadcast_left(shape: Shape, cbsz: int, abid: int) -> Index:
    """Return the block whose left operand each block uses (CBSZ, ABID): one of each 2^cbsz."""
    block = np.arange(shape.blocks)
    return block >> cbsz << cbsz | abid if cbsz else block


@cache
def swizzled_right(blgp: int) -> Index:
    """Return the lane whose right operand each lane uses (BLGP)."""
    lane = np.arange(CDNA_LANES)
    if blgp == 0:
        return lane
    if blgp == 3:
        return (lane + 16) % CDNA_LANES
    width, first = (32, blgp - 1) if blgp < 3 else (16, blgp - 4)
    return lane % width + first * width
