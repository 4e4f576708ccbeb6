"""Branches, ends, barriers and calls."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.nvptx.emulator.running import run
from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.gpu.emulator.findings import Kind

_STORE = "mad.wide.u32 %d1, %t, 4, %a0; st.global.b32 [%d1], %r1;"


def test_threads_part_and_meet_again() -> None:
    body = f"""
        and.b32 %r2, %t, 1; setp.eq.u32 %p1, %r2, 0;
        @%p1 bra even;
        mul.lo.u32 %r1, %t, 10;
        bra meet;
        even: add.u32 %r1, %t, 1000;
        meet: add.u32 %r1, %r1, 1;
        {_STORE}
    """
    outcome = run(body, np.zeros(64, np.uint32), threads=64)
    t = np.arange(64)
    assert np.array_equal(outcome.arrays[0], np.where(t % 2 == 0, t + 1001, t * 10 + 1))


def test_a_loop_runs_as_often_as_each_thread_wants() -> None:
    body = f"""
        mov.u32 %r1, 0; mov.u32 %r2, 0;
        again: setp.ge.u32 %p1, %r2, %t;
        @%p1 bra done;
        add.u32 %r2, %r2, 1; add.u32 %r1, %r1, %r2;
        bra.uni again;
        done: {_STORE}
    """
    outcome = run(body, np.zeros(64, np.uint32), threads=64)
    t = np.arange(64)
    assert np.array_equal(outcome.arrays[0], t * (t + 1) // 2)


def test_a_table_of_branches() -> None:
    body = f"""
        and.b32 %r2, %t, 3;
        table: .branchtargets zero, one, two;
        brx.idx %r2, table;
        zero: mov.u32 %r1, 10; bra done;
        one: mov.u32 %r1, 11; bra done;
        two: mov.u32 %r1, 12;
        done: {_STORE}
    """
    body = body.replace("and.b32 %r2, %t, 3", "rem.u32 %r2, %t, 3")
    outcome = run(body, np.zeros(32, np.uint32))
    assert np.array_equal(outcome.arrays[0], 10 + np.arange(32) % 3)


def test_threads_that_ended_do_no_more_and_hold_nobody_up() -> None:
    body = f"""
        setp.ge.u32 %p1, %t, 40; @%p1 exit;
        bar.sync 0;
        mov.u32 %r1, 1; {_STORE}
    """
    outcome = run(body, np.zeros(64, np.uint32), threads=64)
    assert outcome.arrays[0].tolist() == [1] * 40 + [0] * 24
    assert not outcome.findings


def test_half_a_warp_at_a_barrier_waits_for_the_other_half() -> None:
    body = f"""
        mov.u32 %r1, 0; setp.lt.u32 %p1, %t, 16; @%p1 bra join;
        mov.u32 %r1, 5;
        join: bar.sync 0;
        {_STORE}
    """
    outcome = run(body, np.zeros(64, np.uint32), threads=64)
    assert outcome.arrays[0].tolist() == [0] * 16 + [5] * 48
    assert not outcome.findings


def test_halves_of_a_warp_at_two_barriers_are_a_divergent_barrier() -> None:
    body = """
        setp.lt.u32 %p1, %t, 16; @%p1 bra other;
        bar.sync 0; bra done;
        other: bar.sync 0;
        done:
    """
    outcome = run(body, np.zeros(1, np.uint32), threads=64)
    assert outcome.kinds == {Kind.DIVERGENT_BARRIER}
    assert "only lanes 0x" in outcome.findings[0].message


def test_a_barrier_that_nobody_else_comes_to_is_a_deadlock() -> None:
    body = "setp.lt.u32 %p1, %t, 32; @%p1 bra done; bar.sync 1, 64; done: bar.sync 0;"
    outcome = run(body, np.zeros(1, np.uint32), threads=64)
    assert outcome.kinds == {Kind.DEADLOCK}
    assert "barrier 1" in outcome.findings[0].message


def test_warps_hand_over_by_named_barriers() -> None:
    body = """
        mov.b64 %d2, s; setp.lt.u32 %p1, %t, 32; @!%p1 bra consumer;
        mad.wide.u32 %d3, %t, 4, %d2; add.u32 %r1, %t, 100; st.shared.b32 [%d3], %r1;
        bar.arrive 3, 64;
        bra done;
        consumer: bar.sync 3, 64;
        and.b32 %r2, %t, 31; mad.wide.u32 %d3, %r2, 4, %d2; ld.shared.b32 %r1, [%d3];
        mad.wide.u32 %d1, %r2, 4, %a0; st.global.b32 [%d1], %r1;
        done:
    """
    outcome = run(body, np.zeros(32, np.uint32), threads=64, shared=128)
    assert np.array_equal(outcome.arrays[0], np.arange(32) + 100)
    assert not outcome.findings
    racing = run(
        body.replace("bar.arrive 3, 64;", "").replace("bar.sync 3, 64;", ""),
        np.zeros(32, np.uint32),
        threads=64,
        shared=128,
    )
    assert Kind.RACE in racing.kinds


def test_the_number_of_a_barrier_may_be_in_a_register() -> None:
    body = f"""
        mov.b64 %d2, s; mad.wide.u32 %d3, %t, 4, %d2; st.shared.b32 [%d3], %t;
        shr.u32 %r3, %t, 6; add.u32 %r3, %r3, 1;
        bar.sync %r3, 64;
        xor.b32 %r4, %t, 32; mad.wide.u32 %d3, %r4, 4, %d2; ld.shared.b32 %r1, [%d3];
        {_STORE}
    """
    outcome = run(body, np.zeros(128, np.uint32), threads=128, shared=512)
    assert np.array_equal(outcome.arrays[0], np.arange(128) ^ 32)
    assert not outcome.findings


def test_barriers_reduce_a_predicate_over_their_block() -> None:
    body = """
        setp.lt.u32 %p1, %t, 40; mov.u32 %r5, %ctaid.x; setp.eq.u32 %p4, %r5, 1;
        bar.red.popc.u32 %r1, 0, %p1;
        bar.red.and.pred %p2, 0, !%p4;
        bar.red.or.pred %p3, 0, %p4;
        selp.u32 %r2, 100, 0, %p2; selp.u32 %r3, 1000, 0, %p3;
        add.u32 %r1, %r1, %r2; add.u32 %r1, %r1, %r3;
        mad.lo.u32 %r6, %r5, 64, %t; mad.wide.u32 %d1, %r6, 4, %a0; st.global.b32 [%d1], %r1;
    """
    outcome = run(body, np.zeros(128, np.uint32), threads=64, blocks=2)
    assert outcome.arrays[0].tolist() == [140] * 64 + [1040] * 64
    assert not outcome.findings


_PRINT = """
    .local .align 8 .b8 frame[32];
    .reg .b64 %SP; .reg .b32 %result;
    mov.b64 %SP, frame; cvta.local.u64 %SP, %SP;
    {{
    .param .b64 param0; st.param.b64 [param0], {format};
    .param .b64 param1; st.param.b64 [param1], %SP;
    .param .b32 retval0;
    call.uni (retval0), vprintf, (param0, param1);
    ld.param.b32 %result, [retval0];
    }}
"""


def test_prints_format_as_c_does(capfd: pytest.CaptureFixture[str]) -> None:
    text = b"%d %u %5.2f|%-4d|%llx %s %c %%\n\0"
    data = np.frombuffer(text.ljust(64, b"\0"), np.uint8)
    body = "setp.gt.u32 %p1, %t, 1; @%p1 exit;" + _PRINT.format(format="%a0").replace(
        "mov.b64 %SP, frame;", "mov.b64 %SP, frame;", 1
    )
    stores = """
        sub.s32 %r1, 0, %t; st.local.b32 [frame], %r1; st.local.b32 [frame+4], %r1;
        st.local.f64 [frame+8], 0d400921FB54442D18; st.local.b32 [frame+16], 42;
        st.local.b64 [frame+24], 0xDEADBEEF00; add.u64 %d1, %a0, 9;
        st.local.b64 [frame+32], %a1; st.local.b32 [frame+40], 65;
    """
    body = body.replace("frame[32]", "frame[48]").replace("cvta.local", stores + "cvta.local")
    word = np.frombuffer(b"word\0\0\0\0", np.uint8)
    outcome = run(body, data, word)
    assert not outcome.findings
    found = capfd.readouterr().out.splitlines()
    assert found == [
        "0 0  3.14|42  |deadbeef00 word A %",
        "-1 4294967295  3.14|42  |deadbeef00 word A %",
    ]


def test_a_trap_says_what_was_printed_last(capfd: pytest.CaptureFixture[str]) -> None:
    data = np.frombuffer(b"kernel.py:3: not so\n\0\0\0\0", np.uint8)
    body = "setp.ne.u32 %p1, %t, 5; @%p1 exit;" + _PRINT.format(format="%a0") + "trap; exit;"
    outcome = run(body, data)
    (finding,) = outcome.findings
    assert finding.kind is Kind.ASSERTION
    assert finding.message == "kernel.py:3: not so (thread 5)"
    assert finding.thread == 5
    assert capfd.readouterr().out == ""


def test_a_failed_assert_says_where() -> None:
    strings = b"".join(one.ljust(16, b"\0") for one in (b"x > 0", b"kernel.cu", b"main"))
    body = """
        setp.ne.u32 %p1, %t, 7; @%p1 bra fine;
        add.u64 %d1, %a0, 16; add.u64 %d2, %a0, 32;
        {
        .param .b64 param0; st.param.b64 [param0], %a0;
        .param .b64 param1; st.param.b64 [param1], %d1;
        .param .b32 param2; st.param.b32 [param2], 12;
        .param .b64 param3; st.param.b64 [param3], %d2;
        .param .b64 param4; st.param.b64 [param4], 1;
        call.uni __assertfail, (param0, param1, param2, param3, param4);
        }
        fine:
    """
    outcome = run(body, np.frombuffer(strings, np.uint8))
    (finding,) = outcome.findings
    assert finding.kind is Kind.ASSERTION
    assert finding.message == "kernel.cu:12: main: x > 0 (thread 7)"
    assert finding.thread == 7


def test_other_functions_cannot_be_called() -> None:
    with pytest.raises(CompilerBug, match=r"call\.uni malloc"):
        run("call.uni malloc;", np.zeros(1, np.uint32))


def test_special_registers_tell_threads_apart() -> None:
    n = np.arange(128, dtype=np.int64)
    zero = np.zeros_like(n)
    names = {
        "%tid.x": n % 64,
        "%tid.y": zero,
        "%ntid.x": zero + 64,
        "%ctaid.x": n // 64,
        "%ctaid.z": zero,
        "%nctaid.x": zero + 2,
        "%laneid": n % 32,
        "%warpid": n % 64 // 32,
        "%lanemask_lt": (1 << n % 32) - 1,
        "%lanemask_ge": (1 << 32) - (1 << n % 32),
        "%activemask": zero + 0xFFFFFFFF,
        "%cluster_ctarank": zero,
    }
    index = "mov.u32 %r5, %ctaid.x; mad.lo.u32 %r6, %r5, 64, %t; mad.wide.u32 %d1, %r6, 4, %a0;"
    for name, wanted in names.items():
        body = f"mov.u32 %r1, {name}; {index} st.global.b32 [%d1], %r1;"
        outcome = run(body, np.zeros(128, np.uint32), threads=64, blocks=2, chip="sm_90a")
        assert np.array_equal(outcome.arrays[0], wanted), name
    with pytest.raises(CompilerBug, match="%bogus"):
        run("mov.u32 %r1, %bogus;", np.zeros(1, np.uint32))


def test_clocks_move_on() -> None:
    body = f"mov.u32 %r2, %clock; mov.u32 %r3, %clock; sub.u32 %r1, %r3, %r2; {_STORE}"
    outcome = run(body, np.zeros(32, np.uint32))
    assert (outcome.arrays[0] > 0).all()


def test_moves_pack_and_unpack() -> None:
    body = f"""
        mov.b64 %d2, {{%t, 7}}; mov.b64 {{%r2, %r3}}, %d2; mov.b64 {{_, %r4}}, %d2;
        mov.b32 {{%h1, %h2}}, %t; mov.b32 %r5, {{%h2, %h1}};
        add.u32 %r1, %r2, %r3; add.u32 %r1, %r1, %r4; add.u32 %r1, %r1, %r5;
        {_STORE}
    """
    outcome = run(body, np.zeros(32, np.uint32))
    t = np.arange(32)
    assert np.array_equal(outcome.arrays[0], t + 14 + (t << 16))
