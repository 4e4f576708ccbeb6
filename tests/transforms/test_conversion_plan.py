from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings

from tiledsl.dialects import layout_mma as mma
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_blocked import blocked, default
from tiledsl.transforms.conversion_plan import (
    ConversionPlan,
    LaneShuffle,
    NoConversion,
    RegisterPermutation,
    ThroughShared,
    plan_conversion,
)
from tiledsl.transforms.matrix_access import MatrixAccess
from tiledsl.transforms.shared_access import CDNA3

Values = npt.NDArray[np.int64]  # [warp, lane, register]


def simulate(plan: ConversionPlan, values: Values) -> Values:
    """Move values as a lowering would."""
    match plan:
        case NoConversion():
            return values
        case RegisterPermutation(source):
            return values[..., source]
        case LaneShuffle():
            return np.stack([shuffle(plan, warp) for warp in values])
        case ThroughShared():
            return through_shared(plan, values)


def shuffle(plan: LaneShuffle, values: Values) -> Values:
    lanes = np.arange(len(values))
    sent = values[lanes[None, :], plan.picked()]  # [value, lane]
    got = np.full_like(sent, -1)
    for one, asked in zip(plan.rounds, plan.asked(), strict=True):
        if not plan.moves(one):
            assert np.array_equal(asked, lanes)
        for v in one.values:
            got[v] = sent[v, asked]
    return got[plan.placed(), lanes[None, :]].T


def through_shared(plan: ThroughShared, values: Values) -> Values:
    """Store and load by ordinary vectors; `test_matrix_access` covers the others."""
    free = plan.source.free_masks()
    memory = np.full(plan.choice.layout.elements, -1)
    store, load = plan.choice.accesses
    assert not isinstance(store, MatrixAccess)
    assert not isinstance(load, MatrixAccess)
    writers = np.full_like(memory, -1)
    for warp in range(plan.source.warps):
        for lane in range(plan.source.lanes):
            if lane & free["lane"] or warp & free["warp"]:
                continue
            held = values[warp, lane, plan.stored]
            offsets = store.offsets.table[0, warp, lane]
            memory[offsets[store.registers]] = held[store.registers]
            writers[offsets[store.registers]] = warp
    vectors = load.offsets.table[0][..., load.registers]
    if plan.within_warp:
        assert np.all(writers[vectors] == np.arange(plan.result.warps)[:, None, None, None])
    loaded = memory[vectors].reshape(plan.result.warps, plan.result.lanes, -1)
    return loaded[..., load.fill][..., plan.copied]


def check(source: LinearLayout, result: LinearLayout, bits: int = 32) -> ConversionPlan:
    plan = plan_conversion(source, result, bits)
    assert np.array_equal(simulate(plan, source.table[0]), result.table[0])
    return plan


@st.composite
def thread_layouts(draw: st.DrawFn, lanes: int, warps: int, bits: int) -> LinearLayout:
    """Layouts over so many lane and warp bits, with copies and swizzles, of 2 ** bits elements."""
    columns = [1 << i for i in range(bits)]
    for _ in range(draw(st.integers(0, 5)) if bits > 1 else 0):
        i, j = draw(st.permutations(range(bits)))[:2]
        columns[i] ^= columns[j]
    columns = list(draw(st.permutations(columns)))
    extra = max(0, lanes + warps - bits) + draw(st.integers(0, 2))
    for _ in range(extra):
        copy = draw(st.sampled_from([0, 0, draw(st.integers(0, (1 << bits) - 1))]))
        columns.insert(draw(st.integers(0, len(columns))), copy)
    dims = {
        "lane": columns[:lanes],
        "warp": columns[lanes : lanes + warps],
        "register": columns[lanes + warps :],
    }
    return LinearLayout.from_flat(dims, (1 << bits,))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_layout_converts_to_any_other(data: st.DataObject):
    lanes, warps = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 2))
    bits = data.draw(st.integers(1, 7))
    source = data.draw(thread_layouts(lanes, warps, bits))
    result = data.draw(thread_layouts(lanes, warps, bits))
    check(source, result, data.draw(st.sampled_from([8, 16, 32, 64])))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_layouts_of_one_warp_mostly_convert_by_shuffles(data: st.DataObject):
    source = data.draw(thread_layouts(4, 0, 6))
    result = data.draw(thread_layouts(4, 0, 6))
    plan = check(source, result, 32)
    if source.is_invertible and result.is_invertible and isinstance(plan, ThroughShared):
        # Only its cost stands against a shuffle: a bijection never asks one lane for too much.
        assert plan.within_warp


def test_equal_layouts_need_nothing():
    layout = blocked((32, 32), (1, 4), (4, 8), (1, 1))
    assert isinstance(check(layout, layout), NoConversion)


def test_reordered_registers_are_a_permutation():
    layout = blocked((32, 32), (1, 4), (4, 8), (1, 1))
    assert isinstance(check(layout, layout.permute_registers((4, 3, 2, 1, 0))), RegisterPermutation)


def test_an_accumulator_becomes_the_next_operand_in_registers():
    f = mma.mma_sync(16, 8, 16, 16)
    plan = check(f.tile("acc", (64, 64), (4, 1)), f.tile("a", (64, 64), (4, 1)), 16)
    assert isinstance(plan, RegisterPermutation | NoConversion)


def test_an_accumulator_becomes_an_8_bit_operand_by_shuffles():
    acc = mma.mma_sync(16, 8, 16, 16).tile("acc", (64, 64), (4, 1))
    plan = check(acc, mma.mma_sync(16, 8, 32, 8).tile("a", (64, 64), (4, 1)), 8)
    assert isinstance(plan, LaneShuffle)
    assert plan.shuffles(8) < acc.registers


def test_a_transpose_within_a_warp_is_shuffles_without_clashes():
    a, b = blocked((8, 4), (1, 4), (8, 1), (1, 1)), blocked((8, 4), (4, 1), (2, 4), (1, 1))
    plan = check(a, b, 32)
    assert isinstance(plan, LaneShuffle)
    assert plan.shuffles(32) == 3  # a quarter stays where it is


def test_a_swap_of_neighbours_is_a_butterfly():
    a = LinearLayout({"register": [(1,)], "lane": [(2,), (4,)]}, (8,))
    b = LinearLayout({"register": [(1,)], "lane": [(2,), (4 + 2,)]}, (8,))
    c = LinearLayout({"register": [(2,)], "lane": [(1,), (4,)]}, (8,))
    assert not isinstance(check(a, b), ThroughShared)
    plan = check(a, c)
    assert isinstance(plan, LaneShuffle)


def test_what_both_halves_of_a_warp_want_is_exchanged_not_asked_for():
    """RDNA 3's accumulator as its next operand: each lane has half of what both halves want."""
    fragments = mma.wmma_gfx11()
    acc, operand = fragments.swap().acc, fragments.a
    plan = check(acc, operand, 16)
    assert isinstance(plan, LaneShuffle)
    assert plan.is_butterfly
    assert plan.shuffles(16) == acc.registers // 2


def test_small_values_share_a_shuffle():
    a = blocked((32, 8), (1, 8), (32, 1), (1, 1))
    rolled = LinearLayout(
        {"register": a.bases["register"], "lane": [a.bases["lane"][i] for i in (1, 2, 3, 4, 0)]},
        (32, 8),
    )
    plan = check(a, rolled, 8)
    assert isinstance(plan, LaneShuffle)
    assert (plan.shuffles(8), plan.shuffles(16), plan.shuffles(64)) == (2, 4, 16)


def test_copies_in_every_lane_need_no_shuffle():
    a = LinearLayout({"register": [(1,), (2,)], "lane": [(0,), (0,)]}, (4,))
    b = LinearLayout({"lane": [(1,), (2,)]}, (4,))
    plan = check(a, b)
    assert isinstance(plan, LaneShuffle)
    assert plan.shuffles(32) == 0
    assert plan.is_butterfly


def test_another_warp_s_elements_come_through_shared_memory():
    plan = check(default((64, 64), 32, 4, 4), default((64, 64), 32, 4, 4, (0, 1)))
    assert isinstance(plan, ThroughShared)
    assert not plan.within_warp
    assert plan.choice.conflict_free


def test_many_registers_within_a_warp_go_through_shared_memory_without_a_barrier():
    a = blocked((32, 128), (1, 128), (32, 1), (1, 1))
    b = blocked((32, 128), (32, 4), (1, 32), (1, 1))
    plan = check(a, b, 8)
    assert isinstance(plan, ThroughShared)
    assert plan.within_warp


def test_a_trip_uses_matrix_stores_where_the_chip_has_them():
    acc = mma.mma_sync(16, 8, 16, 16).tile("acc", (128, 128), (2, 2))
    plan = plan_conversion(acc, default((128, 128), 32, 4, 8), 16, matrix_stores=True)
    assert isinstance(plan, ThroughShared)
    assert isinstance(plan.choice.accesses[0], MatrixAccess)


def test_waves_of_64_lanes_convert_too():
    source, result = default((64, 64), 64, 4, 8), mma.mfma(32, 8, 8).tile("a", (64, 64), (2, 2))
    plan = plan_conversion(source, result, 16, memory=CDNA3)
    assert np.array_equal(simulate(plan, source.table[0]), result.table[0])


@pytest.mark.parametrize(
    ("source", "result", "message"),
    [
        ("lane=[[1]] shape=[2]", "lane=[[1]] shape=[4]", "expected equal shapes"),
        ("lane=[[1]] shape=[2]", "register=[[1]] shape=[2]", "expected as many lanes and warps"),
        ("block=[[1]] shape=[2]", "register=[[1]] shape=[2]", "expected the same blocks"),
        ("lane=[[0]] shape=[2]", "lane=[[1]] shape=[2]", "expected a source that holds every"),
    ],
)
def test_conversions_that_make_no_sense_are_refused(source: str, result: str, message: str):
    with pytest.raises(ValueError, match=message):
        plan_conversion(LinearLayout.parse(source), LinearLayout.parse(result))
