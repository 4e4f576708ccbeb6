"""Fragments: the PTX ISA's figures, and the layouts that our code generator uses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_mma import mma_sync, wgmma
from tiledsl.targets.nvptx.emulator.fragments import (
    Fragment,
    accumulator,
    column_operand,
    join,
    quad_accumulator,
    quad_operand,
    row_operand,
    split,
)


def _place(layout: LinearLayout, per: int) -> NDArray[Any]:
    """Tabulate a layout of code generation as `Fragment.place` is."""
    place = np.full(layout.shape, -1)
    lanes = 32 * layout.warps
    for register in range(layout.registers):
        for thread in range(lanes):
            row, column = (
                sum_xor(layout, axis, register, thread % 32, thread // 32) for axis in (0, 1)
            )
            place[row, column] = (register // per * lanes + thread) * per + register % per
    return place


def sum_xor(layout: LinearLayout, axis: int, register: int, lane: int, warp: int) -> int:
    found = 0
    for name, index in (("register", register), ("lane", lane), ("warp", warp)):
        for bit, basis in enumerate(layout.bases[name]):
            if index >> bit & 1:
                found ^= basis[axis]
    return found


@pytest.mark.parametrize(
    ("m", "k", "bits"),
    [(16, 8, 16), (16, 16, 16), (16, 4, 32), (16, 8, 32), (16, 16, 8), (16, 32, 8), (8, 4, 64)],
)
def test_the_code_generator_lays_fragments_out_as_the_isa_does(m: int, k: int, bits: int) -> None:
    ours, per = mma_sync(m, 8, k, bits), max(1, 32 // bits)
    np.testing.assert_array_equal(row_operand(m, k, per).place, _place(ours.a, per))
    assert ours.b is not None
    np.testing.assert_array_equal(column_operand(k, per).place, _place(ours.b, per))
    np.testing.assert_array_equal(accumulator(m, 8).place, _place(ours.acc, 1))


@pytest.mark.parametrize(("n", "k", "bits"), [(8, 16, 16), (64, 16, 16), (128, 8, 32), (32, 32, 8)])
def test_so_it_does_those_of_a_warpgroup(n: int, k: int, bits: int) -> None:
    ours, per = wgmma(n, k, bits), max(1, 32 // bits)
    np.testing.assert_array_equal(row_operand(64, k, per, 128).place, _place(ours.a, per))
    np.testing.assert_array_equal(accumulator(64, n, 1, 128).place, _place(ours.acc, 1))


def test_elements_of_f16_lie_where_the_isa_says() -> None:
    """PTX ISA 8.7, "Matrix Fragments for mma.m16n8k16 with floating point type"."""
    a = row_operand(16, 16, 2).place
    for lane in range(32):
        group, place = lane >> 2, lane % 4
        for i in range(8):
            row = group if i < 2 or 4 <= i < 6 else group + 8
            column = place * 2 + (i & 1) + (0 if i < 4 else 8)
            assert a[row, column] == (i // 2 * 32 + lane) * 2 + i % 2


def test_elements_of_f64_lie_where_the_isa_says() -> None:
    """PTX ISA 8.7, "Matrix Fragments for mma.m16n8k16 with floating point type", .f64."""
    a, b = row_operand(16, 16, 1).place, column_operand(16, 1).place
    for lane in range(32):
        group, place = lane >> 2, lane % 4
        for i in range(8):
            row = group if i % 2 == 0 else group + 8
            column = (i * 2 if i % 2 == 0 else i * 2 - 2) + place
            assert a[row, column] == i * 32 + lane
        for i in range(4):
            assert b[place + 4 * i, group] == i * 32 + lane


def test_single_bits_lie_where_the_isa_says() -> None:
    """PTX ISA 8.7, "Matrix Fragments for mma.m16n8k256"."""
    a = row_operand(16, 256, 32).place
    for lane in range(32):
        group, place = lane >> 2, lane % 4
        for i in range(0, 128, 5):
            row = group if i < 32 or 64 <= i < 96 else group + 8
            column = place * 32 + (i & 31) + (0 if i < 64 else 128)
            assert a[row, column] == (i // 32 * 32 + lane) * 32 + i % 32


def test_accumulators_of_the_quads_lie_where_the_isa_says() -> None:
    """PTX ISA 8.7, "Matrix Fragments for mma.m8n8k4 with .f16 floating point type"."""
    c = quad_accumulator(1).place
    for lane in range(8):
        of_warp = lane if lane < 4 else lane + 12
        for i in range(8):
            row = (of_warp & 1) + (i & 2) + (0 if of_warp < 16 else 4)
            column = (i & 4) + (of_warp & 2) + (i & 1)
            assert c[row, column] == i * 8 + lane


_FRAGMENTS = [
    row_operand(16, 16, 2), row_operand(8, 16, 4), row_operand(64, 8, 1, 128),
    column_operand(32, 4), column_operand(16, 2), accumulator(16, 8), accumulator(16, 8, 2),
    accumulator(64, 24, 1, 128), accumulator(64, 40, 2, 128), quad_operand(True, False),
    quad_operand(False, False), quad_operand(True, True), quad_operand(False, True),
    quad_accumulator(1), quad_accumulator(2),
]  # fmt: skip


@pytest.mark.parametrize("fragment", _FRAGMENTS, ids=lambda one: f"{one.shape}x{one.per}")
def test_every_place_holds_one_element(fragment: Fragment) -> None:
    size = fragment.registers * fragment.lanes * fragment.per
    assert sorted(fragment.place.ravel()) == list(range(size))


@pytest.mark.parametrize("fragment", _FRAGMENTS, ids=lambda one: f"{one.shape}x{one.per}")
def test_scattering_undoes_gathering(fragment: Fragment) -> None:
    shape = (fragment.registers, 3, fragment.lanes, fragment.per)
    parts = np.arange(np.prod(shape)).reshape(shape)
    matrix = fragment.gather(parts)
    assert matrix.shape == (*fragment.shape, 3)
    np.testing.assert_array_equal(fragment.scatter(matrix), parts)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 4, 8, 16, 32]))
def test_registers_are_split_from_their_low_bits_up(word: int, bits: int) -> None:
    parts = split([np.full((1, 32), word, np.uint32)], bits)
    assert parts.shape == (1, 1, 32, 32 // bits)
    expected = [word >> i * bits & (1 << bits) - 1 for i in range(32 // bits)]
    assert parts[0, 0, 5].tolist() == expected
    if bits >= 8:
        assert (join(parts) == word).all()
