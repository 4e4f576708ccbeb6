from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from tiledsl.dialects import layout_mma as mma
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_blocked import default
from tiledsl.transforms.matrix_access import MatrixAccess, matrix_access
from tiledsl.transforms.tma_layout import xor_swizzle

Memory = npt.NDArray[np.int64]


def ldmatrix(memory: Memory, rows: npt.NDArray[np.int64], transposed: bool, per: int) -> Memory:
    """Give [lane, matrix, element] as the PTX ISA says; `per` elements make 32 bits."""
    lanes = np.arange(32)
    result = np.empty((32, len(rows), per), dtype=np.int64)
    for i, starts in enumerate(rows):
        matrix = memory[starts[:, None] + np.arange(4 * per)]  # 8 rows of 16 bytes
        for e in range(per):
            if transposed:
                result[:, i, e] = matrix[2 * (lanes % 4) + e, lanes // 4]
            else:
                result[:, i, e] = matrix[lanes // 4, per * (lanes % 4) + e]
    return result


def load(access: MatrixAccess, layout: LinearLayout, shared: LinearLayout, bits: int) -> Memory:
    """Run the instructions of every warp; give [warp, lane, register]."""
    memory = shared.table.copy()
    held = np.empty((layout.warps, 32, layout.registers), dtype=np.int64)
    n = layout.registers // access.instructions
    for warp in range(layout.warps):
        for i in range(access.instructions):
            starts = access.address.table[0, warp, : 8 * access.matrices, i]
            got = ldmatrix(memory, starts.reshape(-1, 8), access.transposed, 32 // bits)
            held[warp, :, i * n : (i + 1) * n] = got.reshape(32, n)
    return held


A, B = mma.mma_sync(16, 8, 16, 16), mma.mma_sync(16, 8, 16, 16)
CASES = {
    "a, k contiguous": (A.tile("a", (64, 64), (2, 2)), (1, 0), 16, False),
    "a, m contiguous": (A.tile("a", (64, 64), (2, 2)), (0, 1), 16, True),
    "b, k contiguous": (B.tile("b", (64, 64), (2, 2)), (0, 1), 16, False),
    "b, n contiguous": (B.tile("b", (64, 64), (2, 2)), (1, 0), 16, True),
    "int8 a": (mma.mma_sync(16, 8, 32, 8).tile("a", (64, 128), (4, 1)), (1, 0), 8, False),
    "tf32 a": (mma.mma_sync(16, 8, 8, 32).tile("a", (64, 32), (2, 2)), (1, 0), 32, False),
    "one a": (A.tile("a", (16, 16), (1, 1)), (1, 0), 16, False),
    "one b": (B.tile("b", (16, 8), (1, 1)), (0, 1), 16, False),
    "half b": (mma.mma_sync(16, 8, 8, 16).tile("b", (8, 8), (1, 1)), (0, 1), 16, False),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("swizzled", [False, True])
def test_ldmatrix_loads_the_operand(name: str, swizzled: bool):
    layout, order, bits, transposed = CASES[name]
    row = layout.shape[order[0]] * bits // 128
    phases = min(8, row, layout.shape[order[1]]) if swizzled else 1
    shared = xor_swizzle(layout.shape, order, 128 // bits, max(1, 8 // row), phases)
    access = matrix_access(layout, shared, bits)
    assert access is not None
    assert access.transposed == transposed
    assert np.array_equal(load(access, layout, shared, bits), layout.table[0])
    if swizzled and row >= 8:
        assert access.degree == 1


def test_as_many_matrices_as_there_are_come_at_once():
    found = [
        matrix_access(CASES[name][0], xor_swizzle(CASES[name][0].shape, CASES[name][1]), 16)
        for name in ("a, k contiguous", "one a", "one b", "half b")
    ]
    assert [(a.matrices, a.instructions) for a in found if a] == [(4, 8), (4, 1), (2, 1), (1, 1)]


def test_stmatrix_fits_an_accumulator_turned_to_16_bits():
    acc = A.tile("acc", (64, 64), (2, 2))
    access = matrix_access(acc, xor_swizzle((64, 64), (1, 0), 8, 1, 8), 16)
    assert access is not None
    assert (access.transposed, access.degree) == (False, 1)


def test_other_layouts_and_types_have_no_matrices():
    plain = LinearLayout.identity((64, 64))
    assert matrix_access(default((64, 64), 32, 4, 8), plain, 16) is None
    assert matrix_access(default((64, 64), 64, 4, 8), plain, 16) is None
    f64 = mma.mma_sync(8, 8, 4, 64).tile("a", (64, 64), (2, 2))
    assert matrix_access(f64, plain, 64) is None
    int8 = mma.mma_sync(16, 8, 32, 8).tile("b", (64, 64), (2, 2))
    assert matrix_access(int8, plain, 8) is None  # 8-bit elements do not transpose
    # A vector smaller than a row of a matrix stays together: no row of 16 bytes.
    assert matrix_access(CASES["one a"][0], xor_swizzle((16, 16), (1, 0), 2, 1, 8), 16) is None
