"""Where warpgroup products find their operands, against the layout of the bytes themselves."""

from __future__ import annotations

import numpy as np
import pytest

from tiledsl.dialects import layout_f2 as f2
from tiledsl.transforms.warpgroup_operand import SharedOperand, operand_of, shared_operand

SHAPES = [(64, 64), (128, 64), (64, 256), (8, 64), (64, 16), (256, 32)]


def unswizzled(operand: SharedOperand, row: int, column: int) -> int:
    """Return the byte of an element in the layout, with the hardware's permutation undone."""
    elements = f2.table(operand.layout.flat("offset"))
    (offset,) = np.flatnonzero(elements == row * operand.shape[1] + column)
    address = int(offset) * operand.element_bytes
    return address ^ (address >> 7 << 4 & operand.swizzle_bytes - 16)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("fastest", [0, 1])
@pytest.mark.parametrize("k_axis", [0, 1])
def test_offsets_are_those_of_the_layout_without_its_permutation(
    shape: tuple[int, int], size: int, fastest: int, k_axis: int
) -> None:
    operand = shared_operand(shape, size, fastest, k_axis)
    if operand is None:
        assert shape[fastest] * size < 32 or shape[1 - fastest] < 8
        return
    for row in range(0, shape[0], max(1, shape[0] // 8)):
        for column in range(0, shape[1], max(1, shape[1] // 8)):
            across, k = (row, column) if k_axis == 1 else (column, row)
            assert operand.offset(across, k) == unswizzled(operand, row, column)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fastest", [0, 1])
def test_a_layout_is_recognized(shape: tuple[int, int], fastest: int) -> None:
    operand = shared_operand(shape, 2, fastest, 1)
    if operand is None:
        pytest.skip("too small along that axis")
    found = operand_of(operand.layout, 2, 1)
    assert found is not None
    assert found.layout == operand.layout
    for across in range(0, shape[0], 8):
        assert found.offset(across, 0) == operand.offset(across, 0)
    assert found.swizzle_bytes == operand.swizzle_bytes


def test_descriptor_fields_are_those_that_a_card_took() -> None:
    operand = shared_operand((128, 64), 2, 1, 1)
    assert operand is not None
    assert (operand.swizzle_bytes, operand.stride_bytes, operand.alignment) == (128, 1024, 1024)
    assert operand.offset(64, 0) == 8192
    assert operand.offset(0, 16) == 32
    turned = shared_operand((64, 256), 2, 1, 0)
    assert turned is not None
    assert (turned.leading_bytes, turned.stride_bytes) == (64 * 128, 1024)
    assert turned.offset(0, 16) == 2048
