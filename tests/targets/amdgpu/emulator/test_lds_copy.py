"""Loads from global memory straight to LDS, and LDS reads that transpose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.targets.amdgpu.emulator.fragments import Fragment, Result, pairs
from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.gpu.emulator.cohort import Mode
from tiledsl.targets.gpu.emulator.findings import Kind

_LANE = np.arange(64, dtype=np.uint32)


def _run(text: str, chip: str, mode: Mode, **more: Any) -> Result:
    """Run on an array of 0 to 1023 at s[4:5], with its descriptor in s[8:11] and v1 = 4 x lane."""
    fragment = Fragment(text, chip, mode=mode, lds=4096, **more)
    array = fragment.array(np.arange(1024, dtype=np.uint32))
    address = array.ctypes.data
    descriptor = {8: address & 0xFFFFFFFF, 9: address >> 32, 10: 4096, 11: 0x27000}
    return fragment.run({1: 4 * _LANE, 2: 16 * _LANE}, {**pairs(4, array), **descriptor})


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("load", ["global_load_lds_dword v1, s[4:5]",
                                  "buffer_load_dword v1, s[8:11], 0 offen lds"])  # fmt: skip
def test_lane_i_writes_word_i_from_m0_on(load: str, mode: Mode) -> None:
    text = f"""
        s_mov_b32 m0, 0x100
        {load} offset:8
        s_waitcnt vmcnt(0)
        ds_read_b32 v4, v1 offset:264
        s_waitcnt lgkmcnt(0)
    """
    result = _run(text, "gfx942", mode)
    assert not len(result.findings)
    assert np.array_equal(result.vector(4)[0], 2 + _LANE)


@pytest.mark.parametrize("mode", list(Mode))
def test_gfx950_copies_four_words_a_lane(mode: Mode) -> None:
    text = """
        s_mov_b32 m0, 0
        s_mov_b64 exec, 13
        global_load_lds_dwordx4 v2, s[4:5] offset:16
        s_waitcnt vmcnt(0)
        ds_read_b128 v[4:7], v2 offset:16
        s_waitcnt lgkmcnt(0)
    """
    result = _run(text, "gfx950", mode)
    assert not len(result.findings)
    assert [int(result.vector(r)[0, 3]) for r in range(4, 8)] == [16, 17, 18, 19]


@pytest.mark.parametrize("mode", list(Mode))
def test_touching_what_a_load_to_lds_has_yet_to_write_is_a_finding(mode: Mode) -> None:
    text = """
        s_mov_b32 m0, 0
        global_load_lds_dword v1, s[4:5]
        ds_read_b32 v4, v1
        s_waitcnt vmcnt(0) lgkmcnt(0)
    """
    result = _run(text, "gfx942", mode)
    assert Kind.MISSING_WAIT in result.kinds


@pytest.mark.parametrize("mode", list(Mode))
def test_other_waves_need_the_wait_before_the_barrier(mode: Mode) -> None:
    text = """
        v_readfirstlane_b32 s12, v0
        s_lshl_b32 m0, s12, 2
        global_load_lds_dword v1, s[4:5]
        {wait}
        s_barrier
        ds_read_b32 v4, v3
        s_waitcnt vmcnt(0) lgkmcnt(0)
    """
    thread = np.arange(128).reshape(2, 64).astype(np.uint32)
    for wait, fine in (("s_waitcnt vmcnt(0)", True), ("s_nop 0", False)):
        fragment = Fragment(text.format(wait=wait), "gfx942", threads=128, lds=512, mode=mode)
        array = fragment.array(np.arange(128, dtype=np.uint32))
        result = fragment.run({1: 4 * thread, 3: 4 * thread[::-1]}, pairs(4, array))
        assert bool(len(result.findings)) != fine
        if fine:
            assert np.array_equal(result.vector(4), thread[::-1])


def test_a_width_that_does_not_go_to_lds_is_refused() -> None:
    with pytest.raises(CompilerBug, match="goes to LDS"):
        Fragment("buffer_load_dwordx2 v1, s[8:11], 0 offen lds", "gfx942")


def test_a_transposing_read_gives_each_lane_a_column() -> None:
    text = """
        ds_write_b64 v1, v[2:3]
        s_waitcnt lgkmcnt(0)
        ds_read_b64_tr_b16 v[4:5], v1
        s_waitcnt lgkmcnt(0)
    """
    halves = np.arange(256, dtype=np.uint16).reshape(64, 4)
    words = halves.view(np.uint32)
    given = {1: 8 * _LANE, 2: words[:, 0], 3: words[:, 1]}
    result = Fragment(text, "gfx950", lds=512).run(given)
    assert not len(result.findings)
    found = np.stack([result.vector(4)[0], result.vector(5)[0]], axis=1).view(np.uint16)
    tiles = halves.reshape(4, 4, 16)
    assert np.array_equal(found.reshape(4, 16, 4), tiles.transpose(0, 2, 1))
    with pytest.raises(CompilerBug, match="on this chip"):
        Fragment(text, "gfx942")
