"""What waves start with, and what only active lanes and waves write."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.amdgpu.emulator.fragments import Fragment
from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.amdgpu.emulator import load
from tiledsl.targets.amdgpu.emulator.text import TTMP
from tiledsl.targets.gpu.emulator.cohort import Cohort
from tiledsl.targets.gpu.emulator.findings import Findings
from tiledsl.targets.gpu.emulator.memory import GlobalMemory

_TEXT = """
\t.text
kernel:
\t{code}
\ts_endpgm
\t.amdhsa_kernel kernel
\t\t.amdhsa_user_sgpr_count {count}
\t\t.amdhsa_user_sgpr_dispatch_ptr {dispatch}
\t\t.amdhsa_user_sgpr_kernarg_segment_ptr 1
\t\t.amdhsa_system_sgpr_workgroup_id_x 1
\t\t.amdhsa_system_sgpr_workgroup_id_y 1
\t\t.amdhsa_system_sgpr_workgroup_id_z 1
\t\t.amdhsa_wavefront_size32 {narrow}
\t.end_amdhsa_kernel
"""


def _cohort(memory: GlobalMemory, threads: int, warp_size: int) -> Cohort:
    programs = np.array([[0, 0, 0], [1, 0, 0], [0, 2, 3]])
    return Cohort((2, 3, 4), programs, threads, warp_size, b"\x07\0\0\0", 0, memory, Findings())


@pytest.mark.parametrize(
    ("chip", "count"), [("gfx90a", 2), ("gfx942", 2), ("gfx1100", 14), ("gfx1201", 2)]
)
def test_workgroup_ids_and_work_items_are_where_the_abi_has_them(chip: str, count: int) -> None:
    memory = GlobalMemory()
    narrow = int(chip.startswith("gfx1"))
    text = _TEXT.format(code="s_nop 0", count=count, dispatch=0, narrow=narrow)
    program = load(text, "kernel", chip, memory)
    size = 32 if narrow else 64
    assert program.warp_size == size
    machine = program.machine(_cohort(memory, 2 * size, size))
    assert machine.waves == 6
    blocks = slice(0, None, 2)
    if chip == "gfx1201":
        assert machine.s_u32[TTMP + 9][blocks].tolist() == [0, 1, 0]
        assert machine.s_u32[TTMP + 7][blocks].tolist() == [0, 0, 2 | 3 << 16]
    else:
        ids = [machine.s_u32[count + axis][blocks].tolist() for axis in range(3)]
        assert ids == [[0, 1, 0], [0, 0, 2], [0, 0, 3]]
    assert machine.v_u32[0][1].tolist() == list(range(size, 2 * size))
    machine.run()


def test_lanes_without_a_thread_are_off() -> None:
    memory = GlobalMemory()
    text = _TEXT.format(code="v_mov_b32 v1, 5", count=2, dispatch=0, narrow=0)
    machine = load(text, "kernel", "gfx942", memory).machine(_cohort(memory, 96, 64))
    machine.vgpr[1] = 0
    machine.run()
    assert machine.v_u32[1][0].all()
    assert machine.v_u32[1][1].tolist() == [5] * 32 + [0] * 32
    assert machine.thread_of[2, 0] == 96


def test_the_dispatch_packet_has_the_sizes() -> None:
    code = "s_load_dword s4, s[0:1], 0x4\n\ts_load_dwordx4 s[8:11], s[0:1], 0xc\n\ts_waitcnt 0"
    text = _TEXT.format(code=code, count=4, dispatch=1, narrow=0)
    memory = GlobalMemory()
    machine = load(text, "kernel", "gfx942", memory).machine(_cohort(memory, 64, 64))
    machine.run()
    assert [int(machine.s_u32[i][0]) for i in (4, 8, 9, 10)] == [1 << 16 | 64, 128, 3, 4]


def test_arguments_are_where_the_first_registers_point() -> None:
    fragment = Fragment("s_load_dword s4, s[0:1], 0x0\ns_waitcnt lgkmcnt(0)")
    fragment.arguments += b"\x05\0\0\0"
    assert fragment.run().scalar(4).tolist() == [5]


def test_only_active_lanes_are_written() -> None:
    result = Fragment("s_mov_b64 exec, 0x5\nv_mov_b32 v1, 9\nv_cmp_eq_u32 vcc, v1, v1").run()
    assert np.flatnonzero(result.vector(1)[0]).tolist() == [0, 2]
    assert int(result.machine.s_u64[53][0]) == 5


def test_registers_that_nothing_set_are_poison() -> None:
    memory = GlobalMemory()
    text = _TEXT.format(code="v_add_f32 v2, v1, v1", count=2, dispatch=0, narrow=0)
    machine = load(text, "kernel", "gfx942", memory).machine(_cohort(memory, 64, 64))
    machine.run()
    assert np.isnan(machine.v_f32[2]).all()


def test_cmpx_switches_lanes_off() -> None:
    older = Fragment("v_cmpx_lt_u32 vcc, v0, 3\nv_mov_b32 v1, 1").run()
    newer = Fragment("v_cmpx_gt_u32 3, v0\nv_mov_b32 v1, 1", "gfx1100").run()
    for result in (older, newer):
        assert np.flatnonzero(result.vector(1)[0]).tolist() == [0, 1, 2]


def test_classes_of_floats_are_told_apart() -> None:
    values = np.array(
        [np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 1.0, -1.0, np.nan], np.float32
    )  # fmt: skip
    bits = [9, 2, 6, 5, 7, 4, 8, 3, 1]
    padded = np.zeros(64, np.float32)
    padded[: len(values)] = values
    for value, bit in enumerate(bits):
        result = Fragment(f"v_cmp_class_f32 vcc, v4, {1 << bit}").run({4: padded})
        found = int(result.machine.s_u64[53][0]) & (1 << len(values)) - 1
        assert found == 1 << value, bit


def test_an_unknown_instruction_is_an_error_that_names_it() -> None:
    with pytest.raises(CompilerBug, match=r"does not know `v_frobnicate_b32`: v_frobnicate_b32 v1"):
        Fragment("v_frobnicate_b32 v1, v2")


def test_symbols_are_reached_from_the_program_counter() -> None:
    text = _TEXT.format(
        code="s_getpc_b64 s[4:5]\n\ts_add_u32 s4, s4, table@rel32@lo+4\n"
        "\ts_addc_u32 s5, s5, table@rel32@hi+12\n\ts_load_dword s6, s[4:5], 0x4\n"
        "\ts_waitcnt lgkmcnt(0)",
        count=2, dispatch=0, narrow=0,
    )  # fmt: skip
    memory = GlobalMemory()
    data = "\t.section .rodata\ntable:\n\t.long 1, 42\n"
    machine = load(text + data, "kernel", "gfx942", memory).machine(_cohort(memory, 64, 64))
    machine.run()
    assert machine.s_u32[6].tolist() == [42] * 3
