"""The units beside registers: their sizes, LDS's granule, and registers that a load will write."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.amdgpu.emulator.fragments import Fragment
from tiledsl.targets.amdgpu.emulator.memory_units import granule
from tiledsl.targets.amdgpu.emulator.scratch import PRIVATE_FLAG
from tiledsl.targets.amdgpu.emulator.text import parse_instruction
from tiledsl.targets.gpu.emulator.cohort import Mode
from tiledsl.targets.gpu.emulator.findings import Kind

_LANE = np.arange(64, dtype=np.uint32)
MODES = pytest.mark.parametrize("mode", list(Mode))


def test_the_granule_is_what_the_smallest_access_is() -> None:
    def of(*lines: str) -> int:
        return granule([parse_instruction(line) for line in lines])

    assert of("v_mov_b32_e32 v0, v1") == 4
    assert of("ds_read_b128 v[0:3], v4") == 16
    assert of("ds_read_b128 v[0:3], v4", "ds_write2st64_b64 v0, v[2:3], v[4:5] offset1:1") == 8
    assert of("ds_read_b96 v[0:2], v4") == 4
    assert of("ds_load_u16_d16_hi v0, v4") == 2
    assert of("ds_bpermute_b32 v0, v1, v2", "ds_store_b64 v0, v[2:3]") == 8
    assert of("ds_write_b8 v0, v1") == 1
    assert of("flat_load_dword v0, v[2:3]", "ds_read_b64 v[0:1], v2") == 1
    assert of("global_load_lds_dwordx4 v[0:1], off") == 16
    assert of("buffer_load_dword v0, s[4:7], 0 offen lds", "ds_read_b64 v[0:1], v2") == 4
    assert of("ds_add_rtn_u64 v[0:1], v2, v[4:5]") == 8


@pytest.mark.parametrize(
    ("lines", "size"),
    [
        (["ds_swizzle_b32 v0, v1 offset:4", "ds_read_b64 v[0:1], v2"], 8),
        (["ds_permute_b32 v0, v1, v2", "ds_read_b128 v[0:3], v4"], 16),
        (["buffer_load_dword v0, off, s[4:7], 0", "ds_read_b64 v[0:1], v2"], 8),
        (["global_load_dword v0, v[2:3], off", "ds_read_b128 v[0:3], v4"], 16),
        (["global_load_lds_dwordx3 v[0:1], off", "ds_read_b64 v[0:1], v2"], 4),
        (["buffer_load_dwordx4 v0, s[4:7], 0 offen lds"], 16),
        (["ds_read_b64_tr_b16 v[0:1], v2"], 4),
        (["ds_add_f32 v0, v1", "ds_read_b64 v[0:1], v2"], 4),
        (["ds_read_i8_d16 v0, v1"], 1),
    ],
)
def test_the_granule_is_of_what_reaches_lds_and_as_it_does(lines: list[str], size: int) -> None:
    assert granule([parse_instruction(line) for line in lines]) == size


@pytest.mark.parametrize(("width", "size"), [("b8", 1), ("b16", 2), ("b32", 4)])
def test_neighbours_that_waves_write_are_told_apart_by_the_granule(width: str, size: int) -> None:
    """Each of two waves writes every other element, and no barrier is between them."""
    thread = np.arange(128).reshape(2, 64)
    apart = (size * (2 * (thread % 64) + thread // 64)).astype(np.uint32)
    text = f"ds_write_{width} v1, v0\ns_waitcnt lgkmcnt(0)"
    result = Fragment(text, "gfx942", threads=128, lds=128 * size).run({1: apart})
    assert result.machine.memory.granule == size
    assert not len(result.findings)
    result = Fragment(text, "gfx942", threads=128, lds=128 * size).run(
        {1: apart & ~np.uint32(size)}
    )
    assert result.kinds == [Kind.RACE]


def test_lds_is_what_the_kernel_and_the_launch_ask_for_together() -> None:
    text = "ds_write_b32 v1, v0\ns_waitcnt lgkmcnt(0)"
    for dynamic, kinds in ((0, [Kind.OUT_OF_BOUNDS]), (128, [])):
        result = Fragment(text, "gfx942", lds=128, dynamic_lds=dynamic).run({1: 4 * _LANE})
        assert result.kinds == kinds
        assert result.machine.memory.shared.size == 128 + dynamic


def test_the_descriptor_of_private_memory_is_of_everything_and_says_what_it_is() -> None:
    result = Fragment("s_nop 0", "gfx90a", private=16, scratch=True, blocks=2).run()
    for register, word in enumerate((0, 0, 0xFFFFFFFF, PRIVATE_FLAG)):
        assert result.scalar(register).tolist() == [word, word]
    assert result.machine.memory.private.data.shape == (128, 16)


_LOADED = """
    s_load_dwordx2 s[4:5], s[0:1], 0x0
    s_mov_b32 s6, 4096
    s_mov_b32 s7, 0x27000
    s_waitcnt lgkmcnt(0)
    v_mov_b32_e32 v10, s4
    v_mov_b32_e32 v11, s5
    ds_write_b32 v1, v1
    scratch_store_dword off, v1, off
    s_waitcnt 0
    global_load_dword v2, v1, s[4:5]
    {0}
    s_waitcnt 0
"""


@MODES
@pytest.mark.parametrize(
    ("second", "late"),
    [
        ("global_load_dword v2, v1, s[4:5] offset:4", False),
        ("buffer_load_dword v2, v1, s[4:7], 0 offen", False),
        ("scratch_load_dword v2, off, off", False),
        ("global_load_dword v2, v2, s[4:5]", True),  # its address is what the first one loads
        ("buffer_load_dword v2, v2, s[4:7], 0 offen", True),
        ("global_atomic_add v2, v1, v9, s[4:5] sc0", True),
        ("flat_load_dword v2, v[10:11]", True),
        ("ds_read_b32 v2, v1", True),
        ("global_store_dword v1, v2, s[4:5]", True),
    ],
)
def test_only_a_load_of_the_same_queue_may_write_what_one_has_yet_to_write(
    second: str, late: bool, mode: Mode
) -> None:
    fragment = Fragment(_LOADED.format(second), "gfx942", lds=256, private=4, mode=mode)
    array = fragment.array(np.arange(1024, dtype=np.uint32))
    assert array.ctypes.data >> 48 == 0  # or a descriptor would have it as a stride
    result = fragment.run({1: 4 * _LANE})
    found = [one for one in result.findings.all() if one.kind is Kind.MISSING_WAIT]
    assert [one.instruction.text for one in found] == [second] * late
