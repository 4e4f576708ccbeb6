"""Which element of a small matrix each register of each lane holds, as index arrays.

Written down from the PTX ISA's own formulas (9.7.14, "Matrix Fragments for mma" and "Register
Fragments for wgmma"), independently of `dialects.layout_mma`, which code is generated from: an
error there would otherwise be repeated here and never be seen.

A `Fragment` says, for each element of a matrix, in which *part* of which register of which lane it
lies: `place[row, column] = (register * LANES + lane) * per + part`. With it, registers become a
matrix by one `take`, and a matrix becomes registers by the inverse permutation. All of one warp (or
warpgroup), whose count goes last in every array: what is done to elements is then done to all warps
of a cohort in one stretch of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
LANES = 32

Coordinates = Callable[[Array, Array, Array], tuple[Array, Array]]
"""(register, lane, part) to (row, column); all arrays broadcast."""


@dataclass(frozen=True, eq=False)
class Fragment:
    """Where a matrix lies in registers.

    Attributes:
        shape: Rows and columns.
        registers: Registers of each lane.
        per: Elements in each register.
        lanes: Lanes that hold it: a warp's, or a warpgroup's.
        place: Flat place of each element, (rows, columns).
    """

    shape: tuple[int, int]
    registers: int
    per: int
    lanes: int
    place: NDArray[np.intp]

    @cached_property
    def order(self) -> NDArray[np.intp]:
        """Which element (flat, row-major) lies in each place: the inverse of `place`."""
        order = np.empty(self.place.size, np.intp)
        order[self.place.reshape(-1)] = np.arange(self.place.size)
        return order

    def gather(self, parts: Array) -> Array:
        """Make matrices of registers: (registers, warps, lanes, per) to (rows, columns, warps)."""
        warps = parts.shape[1]
        places = parts.transpose(0, 2, 3, 1).reshape(-1, warps)
        return places.take(self.place, axis=0)

    def scatter(self, matrix: Array) -> Array:
        """Make registers of matrices: (rows, columns, warps) to (registers, warps, lanes, per)."""
        warps = matrix.shape[2]
        places = matrix.reshape(-1, warps).take(self.order, axis=0)
        return places.reshape(self.registers, self.lanes, self.per, warps).transpose(0, 3, 1, 2)


def fragment(
    shape: tuple[int, int], registers: int, per: int, where: Coordinates, lanes: int = LANES
) -> Fragment:
    """Tabulate a formula of the PTX ISA."""
    register = np.arange(registers)[:, None, None]
    lane = np.arange(lanes)[None, :, None]
    part = np.arange(per)[None, None, :]
    row, column = where(register, lane, part)
    place = np.full(shape, -1, np.intp)
    flat = np.arange(registers * lanes * per).reshape(registers, lanes, per)
    place[np.broadcast_to(row, flat.shape), np.broadcast_to(column, flat.shape)] = flat
    return Fragment(shape, registers, per, lanes, place)


@lru_cache(maxsize=256)
def row_operand(rows: int, k: int, per: int, lanes: int = LANES) -> Fragment:
    """Give matrix A of `mma` m8 and m16 and of `wgmma`: lane / 4 is a row, lane % 4 goes along k.

    Args:
        rows: 8 or 16 of a warp; 64 of a warpgroup, whose warps hold 16 rows each.
        k: Depth.
        per: Elements in a register; 1 also of f64, whose register is 64 bits wide.
        lanes: 32, or 128 of a warpgroup.
    """
    tall = 1 if rows == 8 else 2
    registers = tall * k // (4 * per)

    def where(register: Array, lane: Array, part: Array) -> tuple[Array, Array]:
        warp, lane = lane // LANES, lane % LANES
        row = 16 * warp + lane // 4 + 8 * (register % tall)
        return row, lane % 4 * per + part + register // tall * 4 * per

    return fragment((rows, k), registers, per, where, lanes)


@lru_cache(maxsize=256)
def column_operand(k: int, per: int) -> Fragment:
    """Give matrix B of `mma`, k x 8: lane / 4 is a column, lane % 4 goes along k."""

    def where(register: Array, lane: Array, part: Array) -> tuple[Array, Array]:
        return lane % 4 * per + part + register * 4 * per, lane // 4

    return fragment((k, 8), k // (4 * per), per, where)


@lru_cache(maxsize=256)
def accumulator(rows: int, columns: int, per: int = 1, lanes: int = LANES) -> Fragment:
    """Give C and D: each lane holds pairs of columns, of rows lane / 4 and (if 16) 8 below.

    Args:
        rows: 8 or 16; 64 of a warpgroup.
        columns: 8; up to 256 of a warpgroup.
        per: 2 of f16, whose pair shares a register; else 1.
        lanes: 32, or 128 of a warpgroup.
    """
    tall = 1 if rows == 8 else 2

    def where(register: Array, lane: Array, part: Array) -> tuple[Array, Array]:
        warp, lane = lane // LANES, lane % LANES
        element = register * per + part
        row = 16 * warp + lane // 4 + 8 * (element // 2 % tall)
        return row, lane % 4 * 2 + element % 2 + element // (2 * tall) * 8

    return fragment((rows, columns), rows * columns // (lanes * per), per, where, lanes)


# --- m8n8k4 of f16: four products a warp, each of two groups of four lanes -----------------------

QUADS = 4
"""Products of one warp; product q is that of lanes 4q to 4q + 3 and 4q + 16 to 4q + 19."""
QUAD_LANES = np.array(
    [[*range(4 * q, 4 * q + 4), *range(4 * q + 16, 4 * q + 20)] for q in range(4)]
)


@lru_cache(maxsize=16)
def quad_operand(along_lane: bool, transposed: bool) -> Fragment:
    """Give A (8 x 4) or, transposed, B (4 x 8) of one of the four products on 8 lanes.

    Args:
        along_lane: Whether a lane holds one row of A, or one column of B (A `.row`, B `.col`).
        transposed: Whether it is B.
    """

    def where(register: Array, lane: Array, part: Array) -> tuple[Array, Array]:
        element, high = register * 2 + part, lane // 4 * 4
        if along_lane:
            outer, k = lane % 4 + high, element
        else:
            outer, k = element + high, lane % 4
        return (k, outer) if transposed else (outer, k)

    return fragment((4, 8) if transposed else (8, 4), 2, 2, where, 8)


@lru_cache(maxsize=4)
def quad_accumulator(per: int) -> Fragment:
    """Give C and D (8 x 8) of one of the four products; `per` is 2 of f16 and 1 of f32."""

    def where(register: Array, lane: Array, part: Array) -> tuple[Array, Array]:
        low, high = lane % 4, lane // 4 * 4
        if per == 2:
            return low + high, register * 2 + part
        return (low & 1) + (register & 2) + high, (register & 4) + (low & 2) + (register & 1)

    return fragment((8, 8), 8 // per, per, where, 8)


# --- bits ----------------------------------------------------------------------------------------


def split(registers: Sequence[Array], bits: int) -> Array:
    """Cut registers, each (warps, lanes), into elements: (registers, warps, lanes, per).

    The elements are unsigned; of fewer than 8 bits they come as bytes.
    """
    words = np.stack(registers)
    if bits in (8, 16, 32, 64):
        return words[..., None].view(np.dtype(f"u{bits // 8}"))
    bytes_ = words[..., None].view(np.uint8)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return (bytes_[..., None] >> shifts & ((1 << bits) - 1)).reshape(*words.shape, -1)


def join(parts: Array, word: Any = np.uint32) -> Array:
    """Put elements of 8 bits or more into registers: (registers, warps, lanes)."""
    return np.ascontiguousarray(parts).view(word)[..., 0]
