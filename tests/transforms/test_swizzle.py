from __future__ import annotations

import numpy as np
import pytest

from tiledsl.dialects import layout_mma as mma
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_blocked import blocked, default
from tiledsl.transforms.matrix_access import MatrixAccess
from tiledsl.transforms.shared_access import CDNA3, CDNA4, NVIDIA, SharedAccess, bank_conflicts
from tiledsl.transforms.swizzle import choose_for, choose_shared_layout
from tiledsl.transforms.swizzle_construct import Access, constructed_layouts
from tiledsl.transforms.tma_layout import xor_swizzle

MMA = mma.mma_sync(16, 8, 16, 16)


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


def test_constructed_layouts_are_bijections_whatever_the_access():
    shape = (32, 32)
    writer = default(shape, 32, 4, 4)
    readers = [MMA.tile("acc", shape, (2, 2)), default(shape, 32, 4, 2, (0, 1))]
    accesses = [Access(writer, write=True), *(Access(r, matrix=True) for r in readers)]
    for bits in (8, 16, 32, 64):
        found = list(constructed_layouts(shape, bits, accesses, NVIDIA))
        assert found
        assert all(layout.is_invertible for layout in found)


@pytest.mark.parametrize("elements", [8, 16])
def test_gfx950_writes_turned_and_reads_wide_without_conflicts(elements: int):
    """An operand contiguous along n: rows of global memory are written to 32 banks, read from 64."""
    bits = 128 // elements
    writer = blocked((64, 128), (2, elements), (64 * elements // 128, 128 // elements), (8, 1))
    reader = mma.mfma(32, elements * 2, elements).tile("b", (64, 128), (4, 2))
    choice = choose_shared_layout((64, 128), bits, writer, [reader], memory=CDNA4)
    assert choice.conflict_free
