"""Pairs of instructions (VOPD)."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.amdgpu.emulator.fragments import Fragment, Result
from tiledsl.dialects.diagnostics import CompilerBug

_LANE = np.arange(32, dtype=np.uint32)


def _run(text: str, **scalars: int) -> Result:
    vectors = {register: 100 * register + _LANE for register in range(1, 9)}
    return Fragment(text, "gfx1100").run(vectors, {int(k[1:]): v for k, v in scalars.items()})


@pytest.mark.parametrize(
    "text",
    [
        "v_dual_mov_b32 v1, v2 :: v_dual_mov_b32 v2, v1",
        "v_dual_mov_b32 v1, v2 :: v_dual_add_nc_u32 v2, 0, v1",
    ],
)
def test_both_halves_read_before_either_writes(text: str) -> None:
    result = _run(text)
    assert np.array_equal(result.vector(1)[0], 200 + _LANE)
    assert np.array_equal(result.vector(2)[0], 100 + _LANE)


def test_the_halves_are_any_two_operations() -> None:
    result = _run("v_dual_lshlrev_b32 v1, 3, v2 :: v_dual_max_f32 v4, v5, v6")
    assert np.array_equal(result.vector(1)[0], (200 + _LANE) << 3)
    assert np.array_equal(result.vector(4)[0], 600 + _LANE)
    result = _run("v_dual_fmac_f32 v1, v2, v3 :: v_dual_and_b32 v4, 15, v5")
    a, b, c = ((100 * r + _LANE).view(np.float32) for r in (2, 3, 1))
    assert np.array_equal(result.vector(1, np.float32)[0], a * b + c)
    assert np.array_equal(result.vector(4)[0], (500 + _LANE) & 15)


def test_a_choice_within_a_pair_reads_vcc() -> None:
    text = "s_mov_b32 vcc_lo, 0xf0\nv_dual_cndmask_b32 v1, v2, v3 :: v_dual_mov_b32 v4, 9"
    result = _run(text)
    chosen = (_LANE >= 4) & (_LANE < 8)
    assert np.array_equal(result.vector(1)[0], np.where(chosen, 300, 200) + _LANE)
    assert (result.vector(4)[0] == 9).all()


def test_lanes_that_are_off_keep_both_registers() -> None:
    result = _run("s_mov_b32 exec_lo, 1\nv_dual_mov_b32 v1, 0 :: v_dual_mov_b32 v2, s4", s4=7)
    assert result.vector(1)[0].tolist() == [0, *(100 + _LANE[1:])]
    assert result.vector(2)[0].tolist() == [7, *(200 + _LANE[1:])]


def test_half_a_pair_alone_and_a_half_that_is_none_are_errors() -> None:
    with pytest.raises(CompilerBug, match="half of a pair stands alone"):
        Fragment("v_dual_mov_b32 v1, v2", "gfx1100")
    with pytest.raises(CompilerBug, match="does not know this half of a pair"):
        Fragment("v_dual_mov_b32 v1, v2 :: v_dual_readfirstlane_b32 v2, v1", "gfx1100")
