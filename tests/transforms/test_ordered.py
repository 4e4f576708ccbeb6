"""Ordered layouts against their definition, place by place."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_blocked import blocked, default
from tiledsl.transforms.ordered import is_ordered, ordered

shapes = st.lists(st.sampled_from([1, 2, 4, 8, 16, 64]), min_size=1, max_size=4).map(tuple)
sizes = st.sampled_from([1, 2, 4, 8])


@settings(max_examples=60, deadline=None)
@given(shapes, st.data(), st.sampled_from([32, 64]), sizes, st.booleans())
def test_the_ordered_layout_of_any_tile_is_ordered_and_holds_it(
    shape: tuple[int, ...], data: st.DataObject, lanes: int, warps: int, across: bool
):
    axis = data.draw(st.integers(0, len(shape) - 1))
    layout = ordered(shape, axis, lanes, warps, across)
    assert is_ordered(layout, axis, across)
    assert layout.is_surjective
    assert (layout.lanes, layout.warps) == (lanes, warps)


@settings(max_examples=60, deadline=None)
@given(shapes, st.data(), sizes)
def test_places_of_an_ordered_layout_visit_an_axis_in_order(
    shape: tuple[int, ...], data: st.DataObject, warps: int
):
    axis = data.draw(st.integers(0, len(shape) - 1))
    layout = data.draw(
        st.sampled_from([ordered(shape, axis, 32, warps), default(shape, 32, warps, 4)])
    )
    field = (layout.shape[axis] - 1) << layout.axis_shift(axis)
    along = (layout.table & field) >> layout.axis_shift(axis)
    others = layout.table & ~field
    lines: dict[int, list[int]] = {}
    # The table counts registers fastest, then lanes, then warps.
    for other, place in zip(others.ravel().tolist(), along.ravel().tolist(), strict=True):
        lines.setdefault(other, []).append(place)
    in_order = all(_first_seen(line) == list(range(shape[axis])) for line in lines.values())
    assert not is_ordered(layout, axis) or in_order


def _first_seen(line: list[int]) -> list[int]:
    return list(dict.fromkeys(line))


def test_registers_that_wrap_around_the_lanes_are_not_in_order():
    assert not is_ordered(blocked((256,), (2,), (32,), (1,)), 0)
    assert is_ordered(blocked((64,), (2,), (32,), (1,)), 0)


def test_a_line_shared_by_warps_is_in_order_only_where_that_is_allowed():
    layout = blocked((64,), (1,), (32,), (2,))
    assert is_ordered(layout, 0)
    assert not is_ordered(layout, 0, across_warps=False)


def test_a_lane_that_moves_two_axes_at_once_is_not_in_order():
    layout = LinearLayout({"register": [(1, 0)], "lane": [(1, 1)]}, (2, 2))
    assert not is_ordered(layout, 0)
