"""Flat instructions: one address for global memory, LDS and private memory."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.amdgpu.emulator.fragments import Fragment
from tiledsl.targets.gpu.emulator.cohort import Mode

_TEXT = """
    s_mov_b64 s[8:9], src_shared_base
    s_mov_b64 s[10:11], src_private_base
    v_mov_b32_e32 v2, s4
    v_mov_b32_e32 v3, s5
    s_mov_b64 exec, 2
    v_mov_b32_e32 v2, 16
    v_mov_b32_e32 v3, s9
    s_mov_b64 exec, 4
    v_mov_b32_e32 v2, 8
    v_mov_b32_e32 v3, s11
    s_mov_b64 exec, 7
    flat_store_dwordx2 v[2:3], v[6:7]
    s_waitcnt vmcnt(0) lgkmcnt(0)
    flat_load_dwordx2 v[8:9], v[2:3]
    flat_load_ushort v10, v[2:3] offset:4
    s_waitcnt vmcnt(0) lgkmcnt(0)
    v_mov_b32_e32 v11, 16
    ds_read_b32 v12, v11
    scratch_load_dword v13, off, off offset:12
    s_waitcnt vmcnt(0) lgkmcnt(0)
"""


@pytest.mark.parametrize("mode", list(Mode))
def test_each_lane_s_address_says_what_memory_it_means(mode: Mode) -> None:
    """Lane 0 has an array's address, lane 1 one in LDS, lane 2 one in its private memory."""
    text = _TEXT.replace("ds_read_b32 v12, v11", "s_mov_b64 exec, 2\nds_read_b32 v12, v11")
    text = text.replace("scratch_load", "s_mov_b64 exec, 4\nscratch_load")
    fragment = Fragment(text, "gfx942", lds=64, private=16, mode=mode)
    array = fragment.array(np.zeros(4, np.uint32))
    address = array.ctypes.data
    lane = np.arange(64, dtype=np.uint32)
    result = fragment.run(
        {6: 100 + lane, 7: 200 + lane}, {4: address & 0xFFFFFFFF, 5: address >> 32}
    )
    assert not len(result.findings)
    assert array[:2].tolist() == [100, 200]
    assert result.vector(8)[0, :3].tolist() == [100, 101, 102]
    assert result.vector(9)[0, :3].tolist() == [200, 201, 202]
    assert result.vector(10)[0, :3].tolist() == [200, 201, 202]
    assert result.vector(12)[0, 1] == 101
    assert result.vector(13)[0, 2] == 202


def test_flat_atomics_act_on_global_memory_and_lds() -> None:
    text = """
        s_mov_b64 s[8:9], src_shared_base
        v_mov_b32_e32 v1, 0
        ds_write_b32 v1, v1
        v_mov_b32_e32 v2, s4
        v_mov_b32_e32 v3, s5
        s_mov_b32 exec_lo, 0xaaaaaaaa
        s_mov_b32 exec_hi, 0xaaaaaaaa
        v_mov_b32_e32 v2, 0
        v_mov_b32_e32 v3, s9
        s_mov_b64 exec, -1
        flat_atomic_add v4, v[2:3], v6 sc0
        s_waitcnt vmcnt(0) lgkmcnt(0)
        ds_read_b32 v5, v1
        s_waitcnt lgkmcnt(0)
    """
    fragment = Fragment(text, "gfx942", lds=4)
    array = fragment.array(np.array([1000], np.uint32))
    address = array.ctypes.data
    one = np.ones(64, np.uint32)
    result = fragment.run({6: one}, {4: address & 0xFFFFFFFF, 5: address >> 32})
    assert not len(result.findings)
    assert array[0] == 1032
    assert result.vector(5)[0, 0] == 32
    assert result.vector(4)[0, :4].tolist() == [1000, 0, 1001, 1]
