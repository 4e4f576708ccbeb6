"""How a tile is cut into the pieces that go through shared memory to a tensor, box by box.

The unit that copies boxes takes rows of at most 128 bytes, permuted (`tma_layout`), so a tile is
cut into columns of that width, and into fewer rows, or narrower, where a piece would take too much
room. A cut must lie between registers (`slice_of`). Where it does not, because lanes or warps reach
further, a piece is several boxes wide.

Where each warpgroup has a part of every piece that is itself made of boxes, not too small, it
copies its part alone, and its threads have to wait for no others. No MLIR here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_shape import slice_of

LEAST_ROW, MOST_ROW = 32, 128
"""Bytes of a row of a box."""
LEAST_ROWS, MOST_ROWS = 8, 256
"""Rows of a box."""
_LEAST_SHARE = 32
"""Rows of a warpgroup's boxes that are worth more than one copy of everybody's."""
_WARPGROUP_BITS = 2
"""Bits of a warp's number below its warpgroup's."""


@dataclass(frozen=True)
class Pieces:
    """A tile in pieces of one shape.

    Attributes:
        layout: How threads hold each piece.
        starts: Where in the tile each begins.
        box: Rows and columns of what one copy moves.
        groups: By bit of the warpgroup's number what it adds to the index in a piece, where each
            warpgroup copies what it holds; empty where one thread copies all.
    """

    layout: LinearLayout
    starts: tuple[tuple[int, int], ...]
    box: tuple[int, int]
    groups: tuple[tuple[int, int], ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of a piece."""
        rows, columns = self.layout.shape
        return rows, columns

    @property
    def elements(self) -> int:
        """Elements of a piece."""
        return self.layout.elements


def cut(layout: LinearLayout, element_bytes: int, most_elements: int) -> Pieces:
    """Cut a tile into pieces of at most so many elements, or as small as can be.

    Args:
        layout: How threads hold the tile, of two dimensions, with rows of at least `LEAST_ROW`
            bytes and `LEAST_ROWS` of them.
        element_bytes: Bytes of an element.
        most_elements: Elements of a piece.
    """
    rows, columns = layout.shape
    width = min(columns, MOST_ROW // element_bytes)
    across = width
    while _part(layout, rows, across) is None:
        across *= 2
    while rows * across > most_elements:
        if rows > LEAST_ROWS and _part(layout, rows // 2, across) is not None:
            rows //= 2
        elif width * element_bytes > LEAST_ROW and _part(layout, rows, across // 2) is not None:
            width, across = min(width, across // 2), across // 2
        else:
            break
    part = _part(layout, rows, across)
    assert part is not None  # as was seen
    starts = product(range(0, layout.shape[0], rows), range(0, columns, across))
    groups = _groups(part, width)
    high = min((row for row, _ in groups if row), default=rows)
    return Pieces(part, tuple(starts), (min(high, rows, MOST_ROWS), width), groups)


def _part(layout: LinearLayout, rows: int, columns: int) -> LinearLayout | None:
    """Give the layout of every part of that shape, None if threads' registers do not divide so."""
    first = slice_of(layout, (0, 0), (rows, columns))
    # By linearity parts begin between registers if those do that are one step along one axis.
    steps = [(row, 0) for row in _doubled(rows, layout.shape[0])]
    steps += [(0, column) for column in _doubled(columns, layout.shape[1])]
    if first is None or any(slice_of(layout, step, (rows, columns)) is None for step in steps):
        return None
    return first.layout


def _doubled(first: int, end: int) -> Iterator[int]:
    while first < end:
        yield first
        first *= 2


def _groups(layout: LinearLayout, width: int) -> tuple[tuple[int, int], ...]:
    """Find what warpgroups add to the index in a piece, if that is boxes; else nothing."""
    warps = layout.flat("warp")
    high = warps[_WARPGROUP_BITS:]
    moved = 0
    for column in high:
        moved |= column
    others = [c for name in layout.in_dims for c in layout.flat(name) if name != "warp"]
    if any(column & moved for column in (*others, *warps[:_WARPGROUP_BITS])):
        return ()
    groups = [layout.unflatten(column) for column in high]
    if any(column & column - 1 or not column for column in high) or len({*high}) < len(high):
        return ()
    if any(0 < row < _LEAST_SHARE or column % width for row, column in groups):
        return ()
    return tuple((row, column) for row, column in groups)
