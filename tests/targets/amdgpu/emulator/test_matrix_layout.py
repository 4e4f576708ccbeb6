"""Fragments of matrix instructions: AMD's published formulas, and our compiler's layouts."""

from __future__ import annotations

import numpy as np
import pytest

from tiledsl.dialects import layout_mma
from tiledsl.dialects.layout import LinearLayout
from tiledsl.targets.amdgpu.emulator import matrix_layout as layout
from tiledsl.targets.amdgpu.emulator.matrix_layout import Fragment, Shape

_MFMA = [Shape(32, 2), Shape(16, 4), Shape(32, 8), Shape(16, 16), Shape(32, 16), Shape(16, 32),
         Shape(16, 64), Shape(32, 4, 2), Shape(16, 4, 4), Shape(4, 4, 16), Shape(32, 1, 2)]  # fmt: skip


def _held(fragment: Fragment, lane: int, element: int, rows: int, columns: int) -> tuple[int, ...]:
    """Return block, row and column of what a lane holds."""
    flat = int(fragment.holds[lane, element])
    return flat // (rows * columns), flat // columns % rows, flat % columns


@pytest.mark.parametrize("shape", _MFMA, ids=str)
def test_every_element_of_an_mfma_is_in_one_place(shape: Shape) -> None:
    for fragment in (layout.mfma_operand(shape), layout.mfma_accumulator(shape)):
        assert sorted(fragment.holds.ravel()) == list(range(fragment.holds.size))
        assert np.array_equal(fragment.holds.ravel()[fragment.where.ravel()],
                              np.arange(fragment.where.size))  # fmt: skip


def test_an_mfma_accumulator_is_as_the_calculator_says() -> None:
    """v_mfma_f32_32x32x8_f16: i = 8 (r / 4) % 32 + 4 (lane / 32) + r % 4, j = lane % 32."""
    sums = layout.mfma_accumulator(Shape(32, 8))
    for lane in range(64):
        for r in range(16):
            i = 8 * (r // 4) % 32 + 4 * (lane // 32) + r % 4
            assert _held(sums, lane, r, 32, 32) == (0, i, lane % 32)


def test_blocks_of_an_mfma_are_as_the_calculator_says() -> None:
    """v_mfma_f32_16x16x4_4b_f16, v_mfma_f32_4x4x4_16b_f16, v_mfma_f64_4x4x4_4b_f64."""
    operand, sums = (f(Shape(16, 4, 4)) for f in (layout.mfma_operand, layout.mfma_accumulator))
    for lane in range(64):
        for r in range(4):
            assert _held(operand, lane, r, 16, 4) == (lane // 16, lane % 16, r)
        for r in range(16):
            assert _held(sums, lane, r, 16, 16) == (r // 4, 4 * (lane // 16) + r % 4, lane % 16)
    small = layout.mfma_accumulator(Shape(4, 4, 16))
    double = layout.mfma_operand(Shape(4, 4, 4)), layout.mfma_accumulator(Shape(4, 4, 4), f64=True)
    for lane in range(64):
        assert _held(small, lane, 3, 4, 4) == (lane // 4, 3, lane % 4)
        assert _held(double[0], lane, 0, 4, 4) == (lane // 4 % 4, lane % 4, lane // 16)
        assert _held(double[1], lane, 0, 4, 4) == (lane // 4 % 4, lane // 16, lane % 4)


def test_an_f64_accumulator_interleaves_its_rows() -> None:
    sums = layout.mfma_accumulator(Shape(16, 4), f64=True)
    for lane in range(64):
        for r in range(4):
            assert _held(sums, lane, r, 16, 16) == (0, 4 * r + lane // 16, lane % 16)


def test_wmma_of_gfx12_is_as_the_calculator_says() -> None:
    half, byte = layout.wmma_operand_gfx12(16, 16), layout.wmma_operand_gfx12(16, 8)
    nibble, sums = layout.wmma_operand_gfx12(32, 4), layout.wmma_accumulator_gfx12()
    for lane in range(32):
        upper, row = lane // 16, lane % 16
        for e in range(8):
            k = 8 * (e // 4) + 4 * upper + e % 4
            assert _held(half, lane, e, 16, 16) == (0, row, k)
            assert _held(byte, lane, e, 16, 16) == (0, row, 8 * upper + e)
            assert _held(sums, lane, e, 16, 16) == (0, 8 * upper + e, row)
        for e in range(16):
            assert _held(nibble, lane, e, 16, 32) == (0, row, 16 * upper + e)


def test_wmma_of_gfx11_is_as_the_calculator_says() -> None:
    operand, sums = layout.wmma_operand_gfx11(16), layout.wmma_accumulator_gfx11()
    for lane in range(32):
        for e in range(16):
            assert _held(operand, lane, e, 16, 16) == (0, lane % 16, e)
        for r in range(8):
            assert _held(sums, lane, r, 16, 16) == (0, 2 * r + lane // 16, lane % 16)
    assert operand.where.max() < 16 * 16, "the lower half of the wave is the one that is read"


def _agrees(fragment: Fragment, compiler: LinearLayout, lanes: int) -> None:
    """Check that a lane holds at each register what the compiler takes it to hold."""
    rows, columns = compiler.shape
    for lane in range(lanes):
        for register in range(fragment.per_lane):
            place = compiler.apply({"register": register, "lane": lane})
            assert _held(fragment, lane, register, rows, columns)[1:] == tuple(place)


@pytest.mark.parametrize(("size", "k"), [(32, 8), (16, 16), (32, 16), (16, 32), (16, 4), (32, 2)])
def test_the_compiler_takes_mfma_accumulators_for_what_they_are(size: int, k: int) -> None:
    fragments = layout_mma.mfma(size, k)
    _agrees(layout.mfma_accumulator(Shape(size, k)), fragments.acc, 64)
    _agrees(layout.mfma_operand(Shape(size, k)), fragments.a, 64)


def test_the_compiler_takes_wmma_for_what_it_is() -> None:
    old, new = layout_mma.wmma_gfx11(), layout_mma.wmma_gfx12()
    _agrees(layout.wmma_accumulator_gfx11(), old.acc, 32)
    _agrees(layout.wmma_operand_gfx11(16), old.a, 32)
    _agrees(layout.wmma_accumulator_gfx12(), new.acc, 32)
    _agrees(layout.wmma_operand_gfx12(16, 8), new.a, 32)
    _agrees(
        layout.mfma_accumulator(Shape(16, 4), f64=True), layout_mma.mfma(16, 4, f64=True).acc, 64
    )


def test_blocks_share_left_operands_by_groups() -> None:
    """CBSZ and ABID, as AMD's calculator gives them for block 9 of sixteen."""
    shape = Shape(4, 4, 16)
    cases = {(0, 0): 9, (1, 0): 8, (1, 1): 9, (2, 0): 8, (2, 3): 11, (3, 1): 9, (4, 2): 2}
    for (cbsz, abid), block in cases.items():
        assert layout.broadcast_left(shape, cbsz, abid)[9] == block


def test_lanes_exchange_right_operands() -> None:
    """BLGP, as AMD's calculator gives it for lanes 5 and 45."""
    found = [tuple(layout.swizzled_right(blgp)[[5, 45]]) for blgp in range(8)]
    assert found == [(5, 45), (5, 13), (37, 45), (21, 61), (5, 13), (21, 29), (37, 45), (53, 61)]
