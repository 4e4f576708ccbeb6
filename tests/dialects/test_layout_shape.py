from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings

from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_blocked import blocked
from tiledsl.dialects.layout_shape import (
    broadcast_operand,
    broadcast_registers,
    broadcast_to,
    concat,
    distinct_registers,
    drop_axis,
    join,
    register_map,
    split,
    splittable,
)

from .test_layout import surjective_layouts

quick = settings(max_examples=60, deadline=None)
Tensor = npt.NDArray[np.int64]


def distribute(tensor: Tensor, layout: LinearLayout) -> Tensor:
    """Give every thread its registers: [block, warp, lane, register]."""
    assert tensor.shape == layout.shape
    return tensor.ravel()[layout.table]


def tensor_for(layout: LinearLayout) -> Tensor:
    return np.arange(layout.elements, dtype=np.int64).reshape(layout.shape) + 100


@quick
@given(st.data())
def test_dropping_an_axis_keeps_one_register_per_element(data: st.DataObject):
    layout = data.draw(surjective_layouts(data.draw(st.sampled_from([(4, 8), (2, 4, 4), (16,)]))))
    axis = data.draw(st.integers(0, layout.rank - 1))
    dropped, source = drop_axis(layout, axis)
    # Values that do not vary along the axis, as after the reduction.
    shape = [1 if i == axis else n for i, n in enumerate(layout.shape)]
    kept = np.arange(np.prod(shape)).reshape(shape)
    held = distribute(np.broadcast_to(kept, layout.shape), layout)
    assert np.array_equal(held[..., source], distribute(kept.squeeze(axis), dropped))
    assert dropped.free_masks()["register"] == 0
    assert drop_axis(layout, axis, True).layout.squeeze(axis) == dropped


@quick
@given(st.data())
def test_broadcasting_forward_copies_registers(data: st.DataObject):
    layout = data.draw(surjective_layouts(data.draw(st.sampled_from([(4, 1), (1, 8), (2, 1, 4)]))))
    shape = tuple(4 if n == 1 else n for n in layout.shape)
    result, source = broadcast_to(layout, shape)
    tensor = tensor_for(layout)
    held = distribute(tensor, layout)
    assert np.array_equal(held[..., source], distribute(np.broadcast_to(tensor, shape), result))


@quick
@given(st.data())
def test_broadcasting_backward_gives_the_operand_that_costs_nothing(data: st.DataObject):
    result = data.draw(surjective_layouts(data.draw(st.sampled_from([(4, 8), (8, 2, 2)]))))
    axis = data.draw(st.integers(0, result.rank - 1))
    shape = tuple(1 if i == axis else n for i, n in enumerate(result.shape))
    operand, source = broadcast_operand(result, shape)
    assert operand.shape == shape
    tensor = tensor_for(operand)
    want = distribute(np.broadcast_to(tensor, result.shape), result)
    assert np.array_equal(distribute(tensor, operand)[..., source], want)
    again = broadcast_registers(operand, result)
    assert again is not None
    assert np.array_equal(again, source)


def test_a_broadcast_between_threads_has_no_register_map():
    result = blocked((32, 4), (1, 4), (32, 1), (1, 1))
    column = blocked((32, 1), (1, 1), (32, 1), (1, 1))
    assert broadcast_registers(column, result) is not None
    moved = blocked((32, 1), (2, 1), (16, 2), (1, 1))
    assert broadcast_registers(moved, result) is None
    with pytest.raises(ValueError, match="expected a shape that broadcasts"):
        broadcast_registers(result, column)


@quick
@given(st.data())
def test_a_register_map_exists_where_registers_are_reordered_or_copied(data: st.DataObject):
    layout = data.draw(surjective_layouts((4, 8)))
    count = layout.bits("register")
    order = data.draw(st.permutations(range(count)))
    shuffled = layout.permute_registers(order)
    source = register_map(layout, shuffled)
    assert source is not None
    held = distribute(tensor_for(layout), layout)
    assert np.array_equal(held[..., source], distribute(tensor_for(layout), shuffled))


def test_layouts_on_other_lanes_have_no_register_map():
    a = blocked((32, 4), (1, 4), (32, 1), (1, 1))
    assert register_map(a, blocked((32, 4), (1, 2), (16, 2), (1, 1))) is None
    with pytest.raises(ValueError, match="expected equal shapes"):
        register_map(a, a.transpose((1, 0)))


@quick
@given(surjective_layouts())
def test_distinct_registers_hold_the_same_elements(layout: LinearLayout):
    small, source = distinct_registers(layout)
    assert np.array_equal(layout.table[..., source], small.table)
    assert small.free_masks()["register"] == 0
    assert small.is_surjective


@quick
@given(surjective_layouts())
def test_join_and_split_are_numpy_stack_and_index(layout: LinearLayout):
    a, b = tensor_for(layout), -tensor_for(layout)
    joined, source = join(layout)
    both = np.concatenate((distribute(a, layout), distribute(b, layout)), axis=-1)
    assert np.array_equal(both[..., source], distribute(np.stack((a, b), axis=-1), joined))
    halves = split(joined)
    assert halves.layout == layout
    held = distribute(np.stack((a, b), axis=-1), joined)
    assert np.array_equal(held[..., halves.first], distribute(a, layout))
    assert np.array_equal(held[..., halves.second], distribute(b, layout))


@quick
@given(surjective_layouts((4, 4, 2)))
def test_any_layout_has_a_splittable_one_near(layout: LinearLayout):
    ready = splittable(layout)
    assert ready.is_surjective
    halves = split(ready)
    assert halves.layout.shape == (4, 4)
    tensor = tensor_for(ready)
    held = distribute(tensor, ready)
    assert np.array_equal(held[..., halves.first], distribute(tensor[..., 0], halves.layout))
    assert np.array_equal(held[..., halves.second], distribute(tensor[..., 1], halves.layout))


def test_split_needs_both_halves_in_one_thread():
    layout = LinearLayout({"lane": [(0, 1), (1, 0)]}, (2, 2))
    with pytest.raises(ValueError, match="expected a trailing dimension of 2 in a register bit"):
        split(layout)
    with pytest.raises(ValueError, match="expected a trailing dimension of 2"):
        splittable(layout.reshape((4,)))


@quick
@given(st.data())
def test_concat_puts_one_tile_after_the_other(data: st.DataObject):
    layout = data.draw(surjective_layouts((4, 8)))
    axis = data.draw(st.integers(0, 1))
    a, b = tensor_for(layout), -tensor_for(layout)
    result, source = concat(layout, axis)
    both = np.concatenate((distribute(a, layout), distribute(b, layout)), axis=-1)
    assert np.array_equal(both[..., source], distribute(np.concatenate((a, b), axis), result))
