from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from tiledsl.dialects.layout import LinearLayout
from tiledsl.transforms.tma_layout import tma_layout, tma_mode, xor_swizzle


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_xor_swizzles_are_the_usual_formula(data: st.DataObject):
    order = data.draw(st.sampled_from([(1, 0), (0, 1)]))
    vector, per_phase, max_phase = (data.draw(st.sampled_from([1, 2, 4])) for _ in range(3))
    shape = (16, 32) if order == (1, 0) else (32, 16)
    layout = xor_swizzle(shape, order, vector, per_phase, max_phase)
    for offset in range(512):
        index = layout(offset=offset)
        c, r = index[order[0]], index[order[1]]
        assert offset == r * 32 + (c ^ (r // per_phase % max_phase * vector))


@pytest.mark.parametrize("swizzle_bytes", [32, 64, 128])
@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("fastest", [0, 1])
def test_tma_boxes_follow_one_another_with_swizzled_chunks(
    swizzle_bytes: int, bits: int, fastest: int
):
    shape = (64, 128) if fastest == 1 else (128, 64)
    layout = tma_layout(shape, bits, swizzle_bytes, fastest)
    assert layout.is_invertible
    width, size = swizzle_bytes * 8 // bits, bits // 8
    for offset in range(layout.elements):
        index = layout(offset=offset)
        inner, row = index[fastest], index[1 - fastest]
        address = inner // width * 64 * swizzle_bytes + row * swizzle_bytes + inner % width * size
        address ^= (address >> 7) % (swizzle_bytes // 16) << 4
        assert offset * size == address
    assert tma_mode(layout, bits) == (fastest, swizzle_bytes)


def test_a_k_major_operand_of_64_columns_is_the_usual_128_byte_swizzle():
    assert tma_layout((128, 64), 16) == xor_swizzle((128, 64), (1, 0), 8, 1, 8)


def test_few_rows_are_swizzled_as_far_as_they_reach():
    layout = tma_layout((4, 64), 16)
    assert layout == xor_swizzle((4, 64), (1, 0), 8, 1, 4)


def test_stages_of_tma_boxes_are_outermost():
    one, many = tma_layout((64, 128), 16), tma_layout((2, 64, 128), 16)
    assert many.columns[:-1] == one.columns
    assert many(offset=64 * 128) == (1, 0, 0)


def test_tma_has_no_other_modes():
    assert tma_mode(LinearLayout.identity((64, 128)), 16) is None
    with pytest.raises(ValueError, match="expected a swizzle of 32, 64 or 128 bytes, found 16"):
        tma_layout((64, 64), 16, 16)
    with pytest.raises(ValueError, match="expected 64 elements along axis 1"):
        tma_layout((64, 32), 16)
