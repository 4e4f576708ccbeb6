"""Say which element of a tile a lane of a loop nest looks at, as bits.

Every tile size is a power of two, so an element's index is a string of bits, and a loop nest that
visits a tile gives each of those bits a source: a bit of a loop's counter, a bit of the lane
number, or a constant. On that form every shape operation is a rearrangement of bits and needs no
arithmetic: `reshape` cuts the string elsewhere, `trans` reorders its parts, `broadcast` drops bits.
It is exact, hashable (the key under which a nest remembers what it has computed) and free of MLIR.

Contract: each loop or lane bit occurs at most once in an index. The lane bits of an index that a
value is evaluated at are 0 ... k - 1, all of them: `compact` makes it so, and says which of the
fewer lanes each of the caller's lanes then takes its element from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Atom: TypeAlias = tuple[int, int]
"""The source of a bit: (`LANE`, bit), (`CONSTANT`, 0 or 1), or (loop level from 1, bit)."""
Bits: TypeAlias = tuple[Atom, ...]
"""A number, least significant bit first."""
Index: TypeAlias = tuple[Bits, ...]
"""One number a dimension; a dimension of size 2**n has n bits."""
Picks: TypeAlias = NDArray[np.int64]

LANE, CONSTANT = 0, -1


def log2(size: int) -> int:
    """Return the number of index bits of a dimension of `size`, a power of two."""
    bits = size.bit_length() - 1
    if size != 1 << bits:
        raise ValueError(f"expected a power of two, found {size}")
    return bits


def number(value: int, bits: int) -> Bits:
    """Return a constant of so many bits."""
    return tuple((CONSTANT, value >> bit & 1) for bit in range(bits))


def linear(index: Index, order: Sequence[int] | None = None) -> Bits:
    """Return the position of an element, row-major unless told otherwise.

    Args:
        index: The element.
        order: The dimensions, the one of the lowest bits first.
    """
    order = range(len(index) - 1, -1, -1) if order is None else order
    return tuple(atom for dimension in order for atom in index[dimension])


def split(position: Bits, shape: Sequence[int]) -> Index:
    """Return the index in `shape` of a row-major position: the inverse of `linear`."""
    dimensions: list[Bits] = []
    start = 0
    for size in reversed(shape):
        end = start + log2(size)
        dimensions.append(position[start:end])
        start = end
    return tuple(reversed(dimensions))


def untransposed(index: Index, order: Sequence[int]) -> Index:
    """Return the source's index where dimension i of `index` is the source's dimension order[i]."""
    source: list[Bits] = [()] * len(order)
    for dimension, bits in zip(order, index, strict=True):
        source[dimension] = bits
    return tuple(source)


def unbroadcast(index: Index, shape: Sequence[int]) -> Index:
    """Return the index in a tile of `shape` whose dimensions of size 1 were repeated."""
    return tuple(() if size == 1 else bits for bits, size in zip(index, shape, strict=True))


def lane_bits(index: Index) -> int:
    """Return how many lane bits an index has: it covers 2 to the power of that many lanes."""
    return sum(atom[0] == LANE for bits in index for atom in bits)


def compact(index: Index, lanes: int) -> tuple[Index, Picks | None]:
    """Rename the lane bits left in an index to 0, 1, ..., lowest position first.

    Args:
        index: May lack some of the caller's lane bits.
        lanes: The caller's number of lane bits.

    Returns:
        The renamed index, and for each of the caller's lanes the lane of the renamed index that
        holds its element; None where they are the same lanes.
    """
    kept = [atom[1] for atom in linear(index) if atom[0] == LANE]
    if kept == list(range(lanes)):
        return index, None
    names: dict[Atom, Atom] = {(LANE, old): (LANE, new) for new, old in enumerate(kept)}
    renamed = tuple(tuple(names.get(atom, atom) for atom in bits) for bits in index)
    lane = np.arange(1 << lanes)
    picks = np.zeros(1 << lanes, np.int64)
    for new, old in enumerate(kept):
        picks |= (lane >> old & 1) << new
    return renamed, picks


def lane_offsets(bits: Bits, lanes: int) -> Picks:
    """Return what the lane bits and constants of a number amount to in each lane."""
    lane = np.arange(1 << lanes)
    total = np.zeros(1 << lanes, np.int64)
    for place, (source, bit) in enumerate(bits):
        if source == LANE:
            total |= (lane >> bit & 1) << place
        elif source == CONSTANT:
            total |= bit << place
    return total


def loop_runs(bits: Bits) -> list[tuple[int, int, int, int]]:
    """Return the runs of consecutive loop bits: (level, lowest bit, number of bits, place)."""
    runs: list[tuple[int, int, int, int]] = []
    for place, (source, bit) in enumerate(bits):
        if source <= LANE:
            continue
        if runs:
            level, low, count, start = runs[-1]
            if (level, low + count, start + count) == (source, bit, place):
                runs[-1] = (level, low, count + 1, start)
                continue
        runs.append((source, bit, 1, place))
    return runs
