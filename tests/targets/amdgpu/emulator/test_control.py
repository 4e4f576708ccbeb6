"""Control flow of waves: branches, divergence between waves, jumps, traps, ends."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.amdgpu.emulator.fragments import Fragment
from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.gpu.emulator.findings import Kind


def test_waves_take_their_own_ways_and_meet_again() -> None:
    text = """
        v_readfirstlane_b32 s4, v0
        s_mov_b32 s5, 0
        s_cmp_lt_u32 s4, 64
        s_cbranch_scc1 .Lfirst
        s_mov_b32 s5, 7
        s_branch .Ljoin
        .Lfirst:
        s_mov_b32 s5, 3
        .Ljoin:
        s_add_u32 s5, s5, 10
    """
    result = Fragment(text, threads=256).run()
    assert result.scalar(5).tolist() == [13, 17, 17, 17]


def test_each_wave_runs_its_loop_as_often_as_it_wants() -> None:
    text = """
        v_readfirstlane_b32 s4, v0
        s_lshr_b32 s4, s4, 6
        s_mov_b32 s5, 0
        .Lloop:
        s_add_u32 s5, s5, 100
        s_sub_u32 s4, s4, 1
        s_cmp_ge_i32 s4, 0
        s_cbranch_scc1 .Lloop
    """
    result = Fragment(text, threads=256).run()
    assert result.scalar(5).tolist() == [100, 200, 300, 400]


@pytest.mark.parametrize(
    ("branch", "setup", "taken"),
    [
        ("s_cbranch_vccz", "s_mov_b64 vcc, 0", True),
        ("s_cbranch_vccnz", "s_mov_b64 vcc, 0", False),
        ("s_cbranch_execz", "s_mov_b64 exec, 0", True),
        ("s_cbranch_execnz", "s_mov_b64 exec, 0x100", True),
        ("s_cbranch_scc0", "s_cmp_eq_u32 1, 1", False),
    ],
)
def test_branches_look_at_masks_and_scc(branch: str, setup: str, taken: bool) -> None:
    text = f"{setup}\ns_mov_b32 s5, 1\n{branch} .Lend\ns_mov_b32 s5, 0\n.Lend:"
    assert int(Fragment(text).run().scalar(5)[0]) == taken


def test_jumps_go_to_addresses_of_labels() -> None:
    text = """
        s_getpc_b64 s[4:5]
        .Lpost:
        s_add_u32 s4, s4, (.Lfunction-.Lpost)&4294967295
        s_addc_u32 s5, s5, (.Lfunction-.Lpost)>>32
        s_mov_b32 s8, 1
        s_swappc_b64 s[6:7], s[4:5]
        s_add_u32 s8, s8, 100
        s_endpgm
        .Lfunction:
        s_add_u32 s8, s8, 10
        s_setpc_b64 s[6:7]
    """
    assert int(Fragment(text).run().scalar(8)[0]) == 111


def test_a_jump_into_the_middle_of_a_block_is_an_error() -> None:
    text = "s_getpc_b64 s[4:5]\ns_add_u32 s4, s4, 24\ns_setpc_b64 s[4:5]"
    with pytest.raises(CompilerBug, match="where no block begins"):
        Fragment("s_mov_b32 s9, 0\n" + text + "\ns_nop 0\ns_nop 0").run()


def test_a_trap_is_a_failed_assertion_and_ends_the_wave() -> None:
    text = """
        v_readfirstlane_b32 s4, v0
        s_mov_b32 s5, 0
        s_cmp_eq_u32 s4, 64
        s_cbranch_scc0 .Lgood
        s_trap 2
        .Lgood:
        s_mov_b32 s5, 1
    """
    result = Fragment(text, threads=128).run()
    (finding,) = result.findings.all()
    assert (finding.kind, finding.thread) == (Kind.ASSERTION, 64)
    assert result.scalar(5)[0] == 1


def test_lanes_of_waves_that_have_ended_do_nothing() -> None:
    text = """
        s_load_dwordx2 s[8:9], s[0:1], 0x0
        v_readfirstlane_b32 s4, v0
        s_waitcnt lgkmcnt(0)
        v_lshlrev_b32 v2, 2, v0
        v_mov_b32 v3, 1
        s_cmp_eq_u32 s4, 0
        s_cbranch_scc0 .Lgoes_on
        s_endpgm
        .Lgoes_on:
        global_store_dword v2, v3, s[8:9]
    """
    fragment = Fragment(text, threads=128)
    out = fragment.array(np.zeros(128, np.uint32))
    result = fragment.run()
    assert not result.kinds
    assert out.tolist() == [0] * 64 + [1] * 64


def test_what_llvm_puts_between_instructions_for_time_alone_does_nothing() -> None:
    # v_nop: between a WMMA and the vector instructions that overwrite its operands.
    text = "s_mov_b32 s9, 5\ns_nop 3\nv_nop\ns_delay_alu instid0(VALU_DEP_1)\ns_sleep 1"
    assert Fragment(text, "gfx1201", threads=32).run().scalar(9).tolist() == [5]
