"""Cuts of tiles into pieces: all of the tile, once, by boxes that the unit takes, in thread order."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_blocked import default
from tiledsl.dialects.layout_shape import slice_of
from tiledsl.transforms.box_pieces import LEAST_ROW, MOST_ROW, MOST_ROWS, Pieces, cut

ACCUMULATOR = LinearLayout.parse(
    "register=[[0,1],[8,0],[0,8],[0,16],[0,32],[0,64],[0,128]] "
    "lane=[[0,2],[0,4],[1,0],[2,0],[4,0]] warp=[[16,0],[32,0],[64,0]] shape=[128,256]"
)
"""Of a product by two warpgroups, m64n256 each."""


def check(layout: LinearLayout, size: int, pieces: Pieces) -> None:
    """Check that pieces are parts of the tile in the same threads, and boxes what may be copied."""
    covered = np.zeros(layout.shape, np.int64)
    rows, columns = pieces.shape
    for start in pieces.starts:
        part = slice_of(layout, start, pieces.shape)
        assert part is not None
        assert part.layout == pieces.layout
        covered[start[0] : start[0] + rows, start[1] : start[1] + columns] += 1
    assert (covered == 1).all()
    high, wide = pieces.box
    assert high <= MOST_ROWS
    assert LEAST_ROW <= wide * size <= MOST_ROW
    for row, column in pieces.groups:
        assert row % high == column % wide == 0


@given(
    st.integers(3, 9), st.integers(4, 8), st.sampled_from([1, 2, 4, 8]), st.integers(0, 4),
    st.integers(6, 14), st.data(),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_any_tile_is_cut_into_boxes(
    rows: int, columns: int, size: int, warps: int, most: int, data: st.DataObject
) -> None:
    shape = (1 << rows, max(1 << columns, LEAST_ROW // size))
    layout = default(shape, 32, 1 << warps)
    layout = layout.permute_registers(data.draw(st.permutations(range(layout.bits("register")))))
    check(layout, size, cut(layout, size, 1 << most))


def test_warpgroups_copy_what_they_hold() -> None:
    pieces = cut(ACCUMULATOR, 2, 8192)
    check(ACCUMULATOR, 2, pieces)
    assert pieces.starts == ((0, 0), (0, 64), (0, 128), (0, 192))
    assert (pieces.shape, pieces.box, pieces.groups) == ((128, 64), (64, 64), ((64, 0),))


def test_pieces_get_narrower_where_rows_cannot_be_cut_and_room_is_scarce() -> None:
    pieces = cut(ACCUMULATOR, 2, 2048)
    assert (pieces.shape, pieces.box, len(pieces.starts)) == ((128, 16), (64, 16), 16)
    assert cut(ACCUMULATOR, 2, 1) == pieces


def test_rows_are_cut_between_registers() -> None:
    tall = LinearLayout.parse(
        "register=[[0,1],[8,0],[0,8],[0,16],[0,32],[128,0]] "
        "lane=[[0,2],[0,4],[1,0],[2,0],[4,0]] warp=[[16,0],[32,0],[64,0]] shape=[256,64]"
    )
    whole = cut(tall, 2, 1 << 20)
    assert (whole.shape, whole.box, whole.groups) == ((256, 64), (64, 64), ((64, 0),))
    assert cut(tall, 2, 8192).starts == ((0, 0), (128, 0))


def test_a_part_has_no_layout_where_lanes_lead_out_of_it() -> None:
    layout = LinearLayout.parse("register=[[1]] lane=[[2],[4]] warp=[] shape=[8]")
    assert slice_of(layout, (0,), (4,)) is None
    part = slice_of(layout.permute_registers([0]), (0,), (8,))
    assert part is not None
    assert part.layout == layout


def test_parts_begin_at_registers() -> None:
    layout = LinearLayout.parse("register=[[4],[1]] lane=[[2]] warp=[] shape=[8]")
    part = slice_of(layout, (4,), (4,))
    assert part is not None
    assert str(part.layout) == "register=[[1]] lane=[[2]] warp=[] shape=[4]"
    assert part.source.tolist() == [1, 3]
    mixed = LinearLayout.parse("register=[[5],[1]] lane=[[2]] warp=[] shape=[8]")
    part = slice_of(mixed, (4,), (4,))
    assert part is not None
    assert part.source.tolist() == [3, 1]
