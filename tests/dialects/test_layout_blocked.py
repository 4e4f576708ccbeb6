from __future__ import annotations

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from tiledsl.dialects.layout_blocked import blocked, default

powers = st.sampled_from([1, 2, 4, 8, 16])


def test_a_blocked_layout_nests_thread_lane_and_warp_boxes_and_wraps():
    layout = blocked((128, 64), (1, 8), (4, 8), (4, 1))
    assert str(layout) == (
        "register=[[0,1],[0,2],[0,4],[16,0],[32,0],[64,0]] "
        "lane=[[0,8],[0,16],[0,32],[1,0],[2,0]] warp=[[4,0],[8,0]] shape=[128,64]"
    )


def test_order_says_which_dimension_is_fastest():
    layout = blocked((8, 8), (2, 2), (4, 4), (1, 1), order=(0, 1))
    assert str(layout) == (
        "register=[[1,0],[0,1]] lane=[[2,0],[4,0],[0,2],[0,4]] warp=[] shape=[8,8]"
    )


def test_lanes_and_warps_beyond_the_tensor_hold_copies():
    layout = blocked((4, 8), (1, 4), (4, 8), (2, 2))
    assert (layout.registers, layout.lanes, layout.warps) == (4, 32, 4)
    assert layout.free_masks() == {"register": 0, "lane": 0b110, "warp": 0b11, "block": 0}


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_blocked_layout_holds_every_element_with_all_threads(data: st.DataObject):
    rank = data.draw(st.integers(1, 3))
    box = st.tuples(*[powers] * rank)
    shape, lanes, warps = data.draw(box), data.draw(box), data.draw(box)
    order = data.draw(st.permutations(range(rank)))
    layout = blocked(shape, data.draw(box), lanes, warps, order)
    assert layout.is_surjective
    assert (layout.lanes, layout.warps) == (math.prod(lanes), math.prod(warps))
    assert layout.free_masks()["register"] == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(powers, max_size=3), st.sampled_from([32, 64]), powers, powers)
def test_the_default_layout_has_the_threads_asked_for(
    shape: list[int], lanes: int, warps: int, vector: int
):
    layout = default(tuple(shape), lanes, warps, vector)
    assert layout.is_surjective
    assert (layout.lanes, layout.warps) == (lanes, warps)
    threads = lanes * warps
    assert layout.registers == max(1, layout.elements // threads)
    if shape:
        assert layout.contiguous_run(-1) >= min(vector, shape[-1], layout.registers)


def test_the_default_layout_coalesces_along_the_fastest_dimension():
    layout = default((128, 64), 32, 4, 8)
    first = layout.table[0, 0, :, :8].ravel()
    assert np.array_equal(first, np.arange(256))
    assert default((64, 128), 32, 4, 8, (0, 1)) == layout.transpose((1, 0))


def test_an_order_must_be_a_permutation():
    with pytest.raises(ValueError, match="expected an order of 2 dimensions"):
        blocked((2, 2), (1, 1), (2, 1), (1, 1), (0, 0))
