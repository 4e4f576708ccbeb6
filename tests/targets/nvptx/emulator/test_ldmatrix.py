"""ldmatrix, stmatrix and movmatrix against the PTX ISA's figures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.targets.nvptx.emulator.running import Outcome, run
from tiledsl.targets.gpu.emulator.findings import Kind

Array = NDArray[Any]
_START = """
mov.u32 %r60, s; shl.b32 %r61, %t, 4; add.s32 %r62, %r60, %r61;
mul.wide.u32 %d60, %r61, 1; add.s64 %d61, %a0, %d60; add.s64 %d62, %a1, %d60;
"""
_FILL = """
ld.global.v4.b32 {%r50,%r51,%r52,%r53}, [%d61];
st.shared.v4.b32 [%r62], {%r50,%r51,%r52,%r53};
bar.warp.sync -1;
"""
_DUMP = "st.global.v4.b32 [%d62], {%r1,%r2,%r3,%r4};"


def _bytes(seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, 512, np.uint8)


def _load(form: str, registers: int, rows: Array, chip: str = "sm_90a") -> Array:
    """Return (32 lanes, registers)."""
    names = ", ".join(f"%r{i + 1}" for i in range(registers))
    clear = "".join(f"mov.b32 %r{i}, 0;" for i in range(1, 5))
    body = f"{_START}{_FILL}{clear}ldmatrix.sync.aligned.{form} {{{names}}}, [%r62];{_DUMP}"
    outcome = run(body, rows, np.zeros(128, np.uint32), shared=512, chip=chip)
    assert outcome.findings == []
    return outcome.arrays[1].reshape(32, 4)[:, :registers]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_each_lane_gets_a_pair_of_its_row(count: int) -> None:
    rows = _bytes()
    halves = rows.view(np.uint16).reshape(4, 8, 8)
    found = _load(f"m8n8.x{count}.shared.b16", count, rows)
    for lane in range(32):
        for matrix in range(count):
            low, high = halves[matrix, lane // 4, lane % 4 * 2 : lane % 4 * 2 + 2]
            assert found[lane, matrix] == int(high) << 16 | int(low)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_transposed_it_is_a_pair_of_its_column(count: int) -> None:
    rows = _bytes()
    halves = rows.view(np.uint16).reshape(4, 8, 8)
    found = _load(f"m8n8.x{count}.trans.shared.b16", count, rows)
    for lane in range(32):
        for matrix in range(count):
            low, high = halves[matrix, lane % 4 * 2 : lane % 4 * 2 + 2, lane // 4]
            assert found[lane, matrix] == int(high) << 16 | int(low)


@pytest.mark.parametrize("count", [1, 2])
def test_square_matrices_of_bytes_are_transposed(count: int) -> None:
    rows = _bytes()
    matrices = rows.reshape(2, 16, 16)
    found = _load(f"m16n16.x{count}.trans.shared.b8", 2 * count, rows, "sm_100a")
    for lane in range(32):
        for register in range(2 * count):
            column = lane // 4 + register % 2 * 8
            four = matrices[register // 2, lane % 4 * 4 : lane % 4 * 4 + 4, column]
            assert found[lane, register] == int.from_bytes(four.tobytes(), "little")


@pytest.mark.parametrize(("form", "bits"), [("b4x16_p64", 4), ("b6x16_p32", 6)])
def test_packed_elements_are_unpacked_to_bytes(form: str, bits: int) -> None:
    rows = _bytes()
    found = _load(f"m8n16.x4.shared.b8x16.{form}", 4, rows, "sm_100a")
    for lane in range(32):
        for matrix in range(4):
            row = int.from_bytes(rows.reshape(4, 8, 16)[matrix, lane // 4].tobytes(), "little")
            elements = [row >> bits * i & (1 << bits) - 1 for i in range(16)]
            four = elements[lane % 4 * 4 : lane % 4 * 4 + 4]
            assert found[lane, matrix] == int.from_bytes(bytes(four), "little")


def _store(form: str, registers: int, words: Array) -> Array:
    """Store (32, registers) and return the bytes of shared memory."""
    names = ", ".join(f"%r{i + 1}" for i in range(registers))
    body = (
        f"{_START} ld.global.v4.b32 {{%r1,%r2,%r3,%r4}}, [%d61];"
        "mov.u32 %r40, 0; st.shared.v4.b32 [%r62], {%r40,%r40,%r40,%r40}; bar.warp.sync -1;"
        f"stmatrix.sync.aligned.{form} [%r62], {{{names}}}; bar.warp.sync -1;"
        "ld.shared.v4.b32 {%r1,%r2,%r3,%r4}, [%r62];" + _DUMP
    )
    outcome = run(body, words, np.zeros(128, np.uint32), shared=512, chip="sm_100a")
    assert outcome.findings == []
    return outcome.arrays[1].view(np.uint8)


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_what_is_stored_is_loaded_again(trans: str, count: int) -> None:
    words = _bytes(1).view(np.uint32)
    rows = _store(f"m8n8.x{count}{trans}.shared.b16", count, words)
    found = _load(f"m8n8.x{count}{trans}.shared.b16", count, rows)
    np.testing.assert_array_equal(found, words.reshape(32, 4)[:, :count])


def test_a_tall_matrix_of_bytes_is_stored_by_columns() -> None:
    words = _bytes(2).view(np.uint32)
    rows = _store("m16n8.x2.trans.shared.b8", 2, words).reshape(32, 16)
    for lane in range(32):
        for matrix in range(2):
            four = int(words.reshape(32, 4)[lane, matrix]).to_bytes(4, "little")
            for i, value in enumerate(four):
                row, column = lane // 4 + i // 2 * 8, lane % 4 * 2 + i % 2
                assert rows[matrix * 8 + column, row] == value


def test_a_matrix_is_transposed_in_registers() -> None:
    words = _bytes(3).view(np.uint32)
    outcome = run(
        f"{_START} ld.global.b32 %r1, [%d61]; movmatrix.sync.aligned.m8n8.trans.b16 %r2, %r1;"
        "st.global.b32 [%d62], %r2;",
        words, np.zeros(128, np.uint32), shared=16,
    )  # fmt: skip
    before = words.reshape(32, 4)[:, :1].copy().view(np.uint16).reshape(8, 8)
    after = outcome.arrays[1].reshape(32, 4)[:, :1].copy().view(np.uint16).reshape(8, 8)
    np.testing.assert_array_equal(after, before.T)


def _faulty(body: str) -> Outcome:
    return run(_START + _FILL + body, _bytes(), np.zeros(128, np.uint32), shared=512)


def test_rows_that_are_not_aligned_are_found() -> None:
    outcome = _faulty("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r62+4];")
    assert outcome.kinds == {Kind.MISALIGNED}


def test_rows_out_of_bounds_are_found() -> None:
    outcome = _faulty("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1,%r2,%r3,%r4}, [%r62+16];")
    assert outcome.kinds == {Kind.OUT_OF_BOUNDS}


def test_generic_addresses_are_shared_ones() -> None:
    outcome = _faulty(
        "mul.wide.u32 %d1, %r62, 1; cvta.shared.u64 %d2, %d1;"
        "ldmatrix.sync.aligned.m8n8.x4.b16 {%r1,%r2,%r3,%r4}, [%d2];"
    )
    assert outcome.findings == []


def test_a_warp_that_has_lost_lanes_is_found() -> None:
    outcome = _faulty(
        "setp.eq.u32 %p1, %t, 3; @%p1 exit; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r62];"
    )
    assert outcome.kinds == {Kind.UNDEFINED}
