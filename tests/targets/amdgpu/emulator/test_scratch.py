"""Private memory: each lane's own bytes, and what is wrong with them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.amdgpu.emulator.fragments import Fragment
from tiledsl.targets.gpu.emulator.cohort import Mode
from tiledsl.targets.gpu.emulator.findings import Kind

_LANE = np.arange(64, dtype=np.uint32)


@pytest.mark.parametrize("mode", list(Mode))
def test_lanes_have_memory_of_their_own(mode: Mode) -> None:
    text = """
        s_mov_b32 s32, 16
        scratch_store_dwordx4 off, v[4:7], s32 offset:16
        scratch_store_short v1, v0, off
        s_waitcnt vmcnt(0)
        scratch_load_dword v10, off, off offset:40
        scratch_load_ushort v11, v1, off
        scratch_load_dword v12, v1, s32 offset:8
        s_waitcnt vmcnt(0)
    """
    vectors = {1: np.full(64, 8, np.uint32), **{4 + i: 10 * i + _LANE for i in range(4)}}
    result = Fragment(text, "gfx942", private=64, mode=mode).run(vectors)
    assert not len(result.findings)
    assert np.array_equal(result.vector(10)[0], 20 + _LANE)
    assert np.array_equal(result.vector(11)[0], _LANE)
    assert np.array_equal(result.vector(12)[0], _LANE)


@pytest.mark.parametrize("mode", list(Mode))
def test_a_spill_may_be_read_back_without_a_wait_between(mode: Mode) -> None:
    text = "scratch_store_b32 off, v0, off\nscratch_load_b32 v4, off, off\ns_wait_loadcnt 0x0"
    result = Fragment(text, "gfx1201", private=4, mode=mode).run()
    assert not len(result.findings)
    assert np.array_equal(result.vector(4)[0], _LANE[:32])


def test_reading_what_was_never_written_and_beyond_the_end_are_findings() -> None:
    text = "scratch_load_dword v4, off, off\ns_waitcnt vmcnt(0)"
    result = Fragment(text, "gfx942", private=8).run()
    assert result.kinds == [Kind.UNINITIALIZED]
    text = "scratch_store_dwordx2 v1, v[4:5], off\ns_waitcnt vmcnt(0)"
    result = Fragment(text, "gfx942", private=8).run(
        {1: np.where(_LANE == 9, 4, 0).astype(np.uint32)}
    )
    found = result.findings.all()[0]
    assert (found.kind, found.thread, found.times) == (Kind.OUT_OF_BOUNDS, 9, 1)
    assert "byte 4 of private memory, which has 8" in str(found)
