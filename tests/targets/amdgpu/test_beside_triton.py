"""Our main loops do a trip in as few instructions as Triton's did, of which no fewer are products.

Triton's figures are what `python -m benchmarks.amd_assembly` measured, kept in
benchmarks/results/amd_assembly.json; the rows of ours there show what a change gains or loses.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import amd_assembly
from benchmarks.amd_loops import Loop, main_loop

RECORD = Path(amd_assembly.__file__).parent / "results" / "amd_assembly.json"


def recorded(kernel: str, chip: str) -> Any:
    rows = json.loads(RECORD.read_text())
    return next(row for row in rows if (row["kernel"], row["chip"]) == (kernel, chip))


def ours(kernel: str, chip: str) -> Loop:
    (case,) = (case for case in amd_assembly.CASES if case.name == kernel)
    return main_loop(amd_assembly.our_assembly(case, chip))


@pytest.mark.parametrize(
    ("kernel", "chip"),
    [
        ("matmul bf16 128x128x64, 8 warps", "gfx942"),
        ("attention 128x64, d 128, 8 warps", "gfx1201"),
    ],
)
def test_a_trip_takes_no_more_instructions_than_triton_s(kernel: str, chip: str) -> None:
    loop, triton = ours(kernel, chip), recorded(kernel, chip)["triton"]
    assert loop.counts["matrix"] == triton["trip"]["matrix"]
    assert loop.instructions <= triton["instructions"]
    assert loop.spilled == 0
    # All reads of shared memory and global memory are of 16 bytes.
    assert not loop.counts.get("lds read", 0)
    assert not loop.counts.get("load", 0)


def test_a_main_loop_is_the_one_with_most_matrix_instructions() -> None:
    text = """
.LBB0_1:
	s_add_i32 s0, s0, 1
	s_cbranch_scc1 .LBB0_1
.LBB0_2:
	global_load_dwordx4 v[0:3], v4, s[0:1]
	s_cbranch_execz .LBB0_4
.LBB0_3:
	ds_read_b128 v[0:3], v4 ; a comment
	v_mfma_f32_32x32x8_bf16 v[0:15], v[0:1], v[2:3], v[0:15]
	s_waitcnt lgkmcnt(0)
	s_cbranch_scc0 .LBB0_2
	s_endpgm
.LBB0_4:
	v_mov_b32 v0, 0
	s_branch .LBB0_3
  .vgpr_count: 17
  .vgpr_spill_count: 3
"""
    loop = main_loop(text)
    assert loop.counts == {
        "load 128": 1, "lds read 128": 1, "matrix": 1, "wait": 1, "scalar": 3, "vector": 1,
    }  # fmt: skip
    assert (loop.instructions, loop.vgprs, loop.spilled) == (7, 17, 3)
    assert loop.share == 1 / 7
