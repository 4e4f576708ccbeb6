"""Whether `ldmatrix` and `stmatrix` can move a tile between registers and shared memory, and how.

These instructions move 8 x 8 matrices of 16-bit elements, one to four at a time. A matrix is eight
rows of 16 bytes anywhere in shared memory, whose addresses eight lanes supply; lane l gets (or
gives) 32 bits: elements 2 * (l % 4) and the next of row l / 4, or, transposed, that place of the
transposed matrix. Elements of 8 or 32 bits move as parts or pairs of 16-bit ones, untransposed.

On layouts this says which columns of the map from registers and lanes to offsets must be the 16
bytes of a row; the columns that are left may be anything, and they are the row addresses.

Source: PTX ISA 8.7, "ldmatrix" and "stmatrix".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tiledsl.dialects import layout_f2 as f2
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_f2 import log2_exact
from tiledsl.transforms.shared_access import NVIDIA, SharedMemory, shared_offsets

ROW_BYTES = 16


@dataclass(frozen=True, eq=False)
class MatrixAccess:
    """A tile moved by `ldmatrix` or `stmatrix`.

    Attributes:
        transposed: Whether with `.trans`.
        matrices: Matrices of one instruction: 1, 2 or 4.
        instructions: Instructions for the whole tile.
        address: Map from instruction ("register"), lane and warp to the offset, in elements, of the
            row whose address that lane supplies; of shape (size,). Instruction i moves registers
            [i * n, (i + 1) * n), n = registers / instructions, in order, packed to 32 bits.
        degree: How many times each matrix is served; 1 is free of bank conflicts.
        wavefronts: Times the banks are asked by one warp for the whole tile.
    """

    transposed: bool
    matrices: int
    instructions: int
    address: LinearLayout
    degree: int
    wavefronts: int


@lru_cache(maxsize=8192)
def matrix_access(
    layout: LinearLayout,
    shared: LinearLayout,
    element_bits: int,
    memory: SharedMemory = NVIDIA,
) -> MatrixAccess | None:
    """Plan `ldmatrix` (or `stmatrix`, which is alike) for a tile; None where it does not fit.

    Args:
        layout: Where threads hold the tile, say as an operand of a matrix instruction.
        shared: Where shared memory holds it.
        element_bits: Width of an element.
        memory: The chip's banks.
    """
    if layout.lanes != 32 or element_bits not in (8, 16, 32):
        return None
    offsets = shared_offsets(layout, shared)
    packed = log2_exact(32 // element_bits)
    register, lane = offsets.flat("register"), offsets.flat("lane")
    if len(register) < packed:
        return None
    straight = [*register[:packed], *lane[:2]], lane[2:]
    turned = lane[2:], [*register[:packed], *lane[:2]]
    for transposed, (row, rows) in ((False, straight), (True, turned)):
        if transposed and element_bits != 16:
            continue
        rest = [*register[packed:], *offsets.flat("warp"), *offsets.flat("block")]
        if _is_row(row, [*rows, *rest], element_bits):
            return _plan(offsets, rows, packed, element_bits, memory, transposed)
    return None


def _is_row(row: f2.Columns, others: f2.Columns, element_bits: int) -> bool:
    """Whether `row` walks 16 bytes in order and nothing else leaves the start of a row."""
    size = ROW_BYTES * 8 // element_bits
    in_order = all(column == 1 << i for i, column in enumerate(row))
    return in_order and len(row) == log2_exact(size) and not any(c & (size - 1) for c in others)


def _plan(
    offsets: LinearLayout,
    rows: f2.Columns,
    packed: int,
    element_bits: int,
    memory: SharedMemory,
    transposed: bool,
) -> MatrixAccess:
    matrices = offsets.flat("register")[packed:]
    together = min(2, len(matrices))
    address = LinearLayout.from_flat(
        {
            "register": matrices[together:],
            # Lanes 8 i to 8 i + 7 supply the rows of matrix i; with fewer matrices the lanes
            # above are not asked.
            "lane": [*rows, *matrices[:together], *[0] * (2 - together)],
            "warp": offsets.flat("warp"),
            "block": offsets.flat("block"),
        },
        offsets.shape,
    )
    word = memory.bank_bytes * 8
    words = [column * element_bits // word for column in rows] + [1, 2]
    degree = 1 << (f2.rank(words) - f2.rank(w & (memory.banks - 1) for w in words))
    count = 1 << (len(matrices) - together)
    return MatrixAccess(
        transposed,
        1 << together,
        count,
        address,
        degree,
        (count << together) * degree,
    )
