from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings

from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_blocked import blocked
from tiledsl.dialects.layout_reduce import ReductionPlan, over_lanes, plan_reduction

from .test_layout import surjective_layouts

Tensor = npt.NDArray[np.int64]


def simulate_sum(plan: ReductionPlan, layout: LinearLayout, tensor: Tensor) -> Tensor:
    """Run the plan on [block, warp, lane, register] values; a wrong copy count shows in the sum."""
    held = tensor.ravel()[layout.table]
    held = held[..., plan.register_groups].sum(axis=-1)
    registers = np.arange(plan.layout.registers)
    for step in plan.lane_steps:
        lanes = np.arange(layout.lanes) ^ step.lane_mask
        held = held + held[:, :, lanes][..., registers ^ step.register_mask]
    if plan.cross_warp:
        memory = np.full(plan.cross_warp.partial.elements, -1)
        memory[plan.cross_warp.partial.table] = held
        # Copies of one partial result agree, or they could not share a place.
        assert np.array_equal(memory[plan.cross_warp.partial.table], held)
        gathered = memory[plan.cross_warp.gathered.table]
        held = gathered[..., plan.cross_warp.groups].sum(axis=-1)
    return held


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_layout_sums_each_element_once(data: st.DataObject):
    shape = data.draw(st.sampled_from([(4, 8), (16,), (2, 4, 4), (8, 1), (2, 2, 2, 4)]))
    layout = data.draw(surjective_layouts(shape))
    axis = data.draw(st.integers(0, len(shape) - 1))
    tensor = np.random.default_rng(0).integers(0, 1 << 40, shape)
    plan = plan_reduction(layout, axis)
    got = simulate_sum(plan, layout, tensor)
    assert np.array_equal(got, tensor.sum(axis).ravel()[plan.layout.table])


def test_a_blocked_row_reduces_in_registers_then_lanes_then_warps():
    layout = blocked((2, 1024), (1, 4), (1, 32), (1, 4))
    plan = plan_reduction(layout, 1)
    assert plan.register_groups.tolist() == [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [8, 9, 10, 11, 12, 13, 14, 15],
    ]
    assert [(s.register_mask, s.lane_mask) for s in plan.lane_steps] == [
        (0, 1 << i) for i in range(5)
    ]
    assert plan.cross_warp is not None
    assert plan.cross_warp.groups.shape == (2, 4)


@pytest.mark.parametrize("warps", [16, 32])
def test_partial_results_of_many_warps_fit_into_lanes(warps: int):
    layout = blocked((1, 8192), (1, 8), (1, 32), (1, warps))
    step = plan_reduction(layout, 1).cross_warp
    assert step is not None
    spread = over_lanes(step.gathered)
    assert spread is not None
    held = spread.table[0, 0, :, 0]
    assert sorted(set(held.tolist())) == list(range(warps))
    whole = plan_reduction(spread, 0)
    assert whole.layout == plan_reduction(layout, 1).layout
    assert whole.cross_warp is None
    assert len(whole.lane_steps) == warps.bit_length() - 1
    tensor = np.arange(warps)
    got = simulate_sum(whole, spread, tensor)
    assert np.array_equal(got, np.full(got.shape, tensor.sum()))


def test_partial_results_stay_in_registers_where_lanes_hold_other_rows():
    step = plan_reduction(blocked((16, 128), (1, 4), (16, 2), (1, 16)), 1).cross_warp
    assert step is not None
    assert over_lanes(step.gathered) is None


def test_a_row_within_a_warp_needs_no_shared_memory():
    plan = plan_reduction(blocked((8, 64), (1, 4), (2, 16), (4, 1)), 1)
    assert plan.cross_warp is None
    assert len(plan.lane_steps) == 4


def test_copies_are_not_combined():
    plan = plan_reduction(blocked((4, 8), (1, 8), (4, 8), (4, 1)), 1)
    assert plan.lane_steps == ()
    assert plan.cross_warp is None


def test_a_layout_with_holes_is_refused():
    with pytest.raises(ValueError, match="expected a layout that holds every element"):
        plan_reduction(LinearLayout({"lane": [(1,)]}, (4,)), 0)
