from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from tiledsl.dialects import layout_mma as mma
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_blocked import default
from tiledsl.transforms.matrix_access import MatrixAccess
from tiledsl.transforms.shared_access import CDNA3, CDNA4, SharedAccess, bank_conflicts
from tiledsl.transforms.swizzle import (
    Access,
    choose_for,
    choose_shared_layout,
    tma_layout,
    tma_mode,
    xor_swizzle,
)

MMA = mma.mma_sync(16, 8, 16, 16)


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


def test_a_pipelined_operand_gets_the_usual_swizzle():
    writer, reader = default((128, 64), 32, 4, 8), MMA.tile("a", (128, 64), (2, 2))
    choice = choose_shared_layout(
        (128, 64), 16, writer, [reader], matrix_loads=True, async_writer=True
    )
    assert choice.layout == xor_swizzle((128, 64), (1, 0), 8, 1, 8)
    assert choice.conflict_free
    store, load = choice.accesses
    assert isinstance(store, SharedAccess)
    assert store.elements == 8
    assert isinstance(load, MatrixAccess)
    assert (load.matrices, load.transposed) == (4, False)


def test_an_operand_contiguous_along_n_is_loaded_transposed():
    writer, reader = default((64, 128), 32, 4, 8), MMA.tile("b", (64, 128), (2, 2))
    choice = choose_shared_layout(
        (64, 128), 16, writer, [reader], matrix_loads=True, async_writer=True
    )
    load = choice.accesses[1]
    assert isinstance(load, MatrixAccess)
    assert load.transposed
    assert choice.conflict_free


def test_an_accumulator_goes_out_by_stmatrix_and_comes_back_in_rows():
    acc, rows = MMA.tile("acc", (128, 128), (2, 2)), default((128, 128), 32, 4, 8)
    choice = choose_shared_layout((128, 128), 16, acc, [rows], matrix_stores=True)
    assert isinstance(choice.accesses[0], MatrixAccess)
    assert choice.conflict_free


CONVERSIONS = {
    "accumulator to rows, f32": ((128, 128), 32, MMA.tile("acc", (128, 128), (2, 2)), 4),
    "accumulator to rows, f16": ((128, 128), 16, MMA.tile("acc", (128, 128), (2, 2)), 8),
    "small accumulator": ((16, 16), 32, MMA.tile("acc", (16, 16), (1, 4)), 4),
    "operand to rows": ((64, 64), 16, MMA.tile("a", (64, 64), (2, 2)), 8),
    "turned rows, f32": ((64, 64), 32, default((64, 64), 32, 4, 4, (0, 1)), 4),
    "turned rows, f16": ((64, 64), 16, default((64, 64), 32, 4, 8, (0, 1)), 8),
    "turned rows, int8": ((128, 128), 8, default((128, 128), 32, 4, 16, (0, 1)), 16),
    "turned rows, f64": ((64, 64), 64, default((64, 64), 32, 4, 2, (0, 1)), 2),
    "three dimensions": ((4, 32, 32), 32, default((4, 32, 32), 32, 4, 4, (0, 1, 2)), 4),
}


@pytest.mark.parametrize("name", CONVERSIONS)
@pytest.mark.parametrize("back", [False, True])
def test_conversions_meet_no_conflict(name: str, back: bool):
    shape, bits, layout, vector = CONVERSIONS[name]
    pair = layout, default(shape, 32, 4, vector)
    writer, reader = pair[::-1] if back else pair
    choice = choose_shared_layout(shape, bits, writer, [reader])
    assert choice.layout.is_invertible
    assert choice.conflict_free
    for access, used, write in zip((writer, reader), choice.accesses, (True, False), strict=True):
        assert isinstance(used, SharedAccess)
        assert bank_conflicts(access, choice.layout, bits, used.elements, write=write) == 1


@pytest.mark.parametrize("memory", [CDNA3, CDNA4])
@pytest.mark.parametrize("operand", ["a", "b"])
@pytest.mark.parametrize("size", [16, 32])
def test_amd_operands_meet_no_conflict(memory: object, operand: mma.Operand, size: int):
    shape = (128, 64) if operand == "a" else (64, 128)
    reader = mma.mfma(size, 256 // size, 8).tile(operand, shape, (2, 2))
    bank = CDNA3 if memory is CDNA3 else CDNA4
    choice = choose_shared_layout(shape, 16, default(shape, 64, 4, 8), [reader], memory=bank)
    assert choice.conflict_free


def test_one_buffer_serves_two_readers():
    shape = (64, 64)
    readers = [MMA.tile("a", shape, (2, 2)), MMA.tile("b", shape, (2, 2))]
    choice = choose_shared_layout(
        shape, 16, default(shape, 32, 4, 8), readers, matrix_loads=True, async_writer=True
    )
    assert choice.conflict_free
    assert all(isinstance(access, MatrixAccess) for access in choice.accesses[1:])


def test_an_asynchronous_writer_keeps_its_vectors():
    shape = (64, 64)
    writer, reader = default(shape, 32, 4, 8), default(shape, 32, 4, 8, (0, 1))
    choice = choose_for(shape, 16, (Access.copy(writer), Access(reader)))
    store = choice.accesses[0]
    assert isinstance(store, SharedAccess)
    assert store.elements * 16 >= 32
    assert np.array_equal(store.registers[0], np.arange(store.elements))


def test_tiles_smaller_than_a_row_of_banks_need_nothing():
    for shape in ((), (1,), (8,), (4, 4)):
        layout = default(shape, 32, 4, 1)
        choice = choose_shared_layout(shape, 16, layout, [layout])
        assert choice.layout == LinearLayout.identity(shape)


def test_layouts_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"expected layouts of shape \(8, 8\), found \(4, 4\)"):
        choose_shared_layout((8, 8), 16, None, [default((4, 4), 32, 1)])


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
