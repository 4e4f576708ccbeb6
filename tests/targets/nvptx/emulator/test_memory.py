"""Loads and stores of every space and width, and what is wrong with some."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.nvptx.emulator.running import run
from tiledsl.targets.gpu.emulator.cohort import Cohort
from tiledsl.targets.gpu.emulator.findings import Findings, Kind
from tiledsl.targets.gpu.emulator.memory import GlobalMemory
from tiledsl.targets.nvptx.emulator import load


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_every_thread_copies_its_element(size: int) -> None:
    source = np.arange(32).astype(f"u{size}")
    register = {1: "%h1", 2: "%h1", 4: "%r1", 8: "%d9"}[size]
    body = f"""
        mad.wide.u32 %d1, %t, {size}, %a0; mad.wide.u32 %d2, %t, {size}, %a1;
        ld.global.b{8 * size} {register}, [%d1]; st.global.b{8 * size} [%d2], {register};
    """
    outcome = run(body, source, np.zeros_like(source))
    assert np.array_equal(outcome.arrays[1], source)
    assert not outcome.findings


def test_loads_extend_to_their_registers_by_sign() -> None:
    body = """
        mad.wide.u32 %d1, %t, 1, %a0; mad.wide.u32 %d2, %t, 4, %a1; mad.wide.u32 %d3, %t, 4, %a2;
        ld.global.s8 %r1, [%d1]; st.global.b32 [%d2], %r1;
        ld.global.u8 %r1, [%d1]; st.global.b32 [%d3], %r1;
    """
    source = np.arange(-16, 16, dtype=np.int8)
    outcome = run(body, source, np.zeros(32, np.int32), np.zeros(32, np.int32))
    assert np.array_equal(outcome.arrays[1], source)
    assert np.array_equal(outcome.arrays[2], source.view(np.uint8))


@pytest.mark.parametrize(("width", "register"), [(2, "r"), (4, "r"), (8, "r"), (2, "d"), (4, "d")])
def test_vectors_go_element_by_element(width: int, register: str) -> None:
    size = 4 if register == "r" else 8
    names = ", ".join(f"%{register}{i}" for i in range(1, width + 1))
    swapped = ", ".join(f"%{register}{i}" for i in range(width, 0, -1))
    stride = width * size
    body = f"""
        mad.wide.u32 %d20, %t, {stride}, %a0; mad.wide.u32 %d21, %t, {stride}, %a1;
        ld.global.nc.L1::no_allocate.v{width}.b{8 * size} {{{names}}}, [%d20];
        st.global.v{width}.b{8 * size} [%d21], {{{swapped}}};
    """
    source = np.arange(32 * width).astype(f"u{size}").reshape(32, width)
    outcome = run(body, source, np.zeros_like(source), chip="sm_100a")
    assert np.array_equal(outcome.arrays[1], source[:, ::-1])
    assert not outcome.findings


def test_only_threads_whose_predicate_holds_access_memory() -> None:
    body = """
        mad.wide.u32 %d1, %t, 4, %a0;
        setp.lt.u32 %p1, %t, 10;
        @%p1 st.global.b32 [%d1], 7;
        @!%p1 ld.global.b32 %r1, [%d1+-40];
        @!%p1 add.u32 %r1, %r1, 1;
        @!%p1 st.global.b32 [%d1], %r1;
    """
    outcome = run(body, np.zeros(32, np.uint32))
    assert outcome.arrays[0].tolist() == [7] * 10 + [8] * 10 + [1] * 12


def test_shared_memory_through_its_own_and_generic_addresses() -> None:
    body = """
        mov.b64 %d1, s; mad.wide.u32 %d2, %t, 4, %d1;
        st.shared.b32 [%d2], %t;
        bar.sync 0;
        xor.b32 %r1, %t, 33; mad.wide.u32 %d3, %r1, 4, %d1;
        cvta.shared.u64 %d4, %d3;
        isspacep.shared %p1, %d4; isspacep.global %p2, %d4;
        ld.b32 %r2, [%d4];
        @!%p1 mov.b32 %r2, 99;
        @%p2 mov.b32 %r2, 98;
        cvta.to.shared.u64 %d5, %d4; ld.shared.b32 %r3, [%d5];
        sub.u32 %r4, %r2, %r3;
        mad.wide.u32 %d6, %t, 4, %a0; st.global.b32 [%d6], %r2;
        mad.wide.u32 %d6, %t, 4, %a1; st.b32 [%d6], %r4;
    """
    outcome = run(body, np.zeros(64, np.uint32), np.ones(64, np.uint32), threads=64, shared=256)
    assert np.array_equal(outcome.arrays[0], np.arange(64) ^ 33)
    assert not outcome.arrays[1].any()
    assert not outcome.findings


def test_a_generic_access_reaches_a_space_by_lane() -> None:
    body = """
        .local .align 8 .b8 frame[16];
        mov.b64 %d1, frame; cvta.local.u64 %d2, %d1;
        mov.b64 %d3, s; cvta.shared.u64 %d4, %d3;
        st.local.b32 [frame+4], 100; st.shared.b32 [%d3+4], 200;
        rem.u32 %r1, %t, 3;
        setp.eq.u32 %p1, %r1, 1; setp.eq.u32 %p2, %r1, 2;
        selp.b64 %d5, %d2, %a0, %p1; selp.b64 %d5, %d4, %d5, %p2;
        ld.v2.b32 {%r2, %r3}, [%d5];
        add.u32 %r3, %r3, %r1;
        st.b32 [%d5+4], %r3;
        ld.local.b32 %r4, [frame+4];
        mad.wide.u32 %d6, %t, 8, %a1; st.global.v2.b32 [%d6], {%r3, %r4};
    """
    body = body.replace("ld.v2.b32 {%r2, %r3}, [%d5]", "ld.b32 %r3, [%d5+4]")
    outcome = run(body, np.array([0, 50], np.uint32), np.zeros((32, 2), np.uint32), shared=16)
    kind = np.arange(32) % 3
    assert np.array_equal(outcome.arrays[1][:, 0], np.choose(kind, [50, 101, 202]))
    assert np.array_equal(outcome.arrays[1][:, 1], np.choose(kind, [100, 101, 100]))


def test_constants_and_variables_of_the_module_are_filled() -> None:
    text = """
        .version 8.0
        .target sm_80
        .address_size 64
        .const .align 4 .b32 table[3] = {5, 6, 7};
        .global .align 8 .u64 place = generic(table)+4;
        .visible .entry k(.param .u64 k_param_0)
        {
        .reg .b32 %r<3>; .reg .b64 %rd<4>;
        ld.param.u64 %rd1, [k_param_0];
        ld.const.b32 %r1, [table+8]; st.global.b32 [%rd1], %r1;
        ld.global.u64 %rd2, [place]; ld.b32 %r2, [%rd2]; st.global.b32 [%rd1+4], %r2;
        ret;
        }
    """
    outcome = run("", np.zeros(2, np.uint32), text=text)
    assert outcome.arrays[0].tolist() == [7, 6]
    assert not outcome.findings


def test_parameters_are_read_where_they_lie() -> None:
    text = """
        .version 8.0
        .target sm_90a
        .address_size 64
        .visible .entry k(
            .param .u8 k_param_0, .param .u64 k_param_1, .param .align 64 .b8 k_param_2[128]
        )
        {
        .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .b16 %rs<3>;
        ld.param.u8 %rs1, [k_param_0]; ld.param.b64 %rd1, [k_param_1];
        ld.param.v2.b32 {%r1, %r2}, [k_param_2+8];
        mov.b64 %rd2, k_param_2; ld.param.b32 %r3, [%rd2+4];
        cvta.param.u64 %rd3, %rd2; ld.b32 %r4, [%rd3+12];
        cvt.u32.u16 %r5, %rs1;
        st.global.v4.b32 [%rd1], {%r1, %r2, %r3, %r4}; st.global.b32 [%rd1+16], %r5;
        ret;
        }
    """
    memory = GlobalMemory()
    address = memory.allocate(20)
    packed = np.arange(32, dtype=np.uint32) + 1000
    arguments = bytes([200]) + bytes(7) + address.to_bytes(8, "little")
    arguments += bytes(64 - len(arguments)) + packed.tobytes()
    findings = Findings()
    programs = np.zeros((1, 3), np.int64)
    cohort = Cohort((1, 1, 1), programs, 32, 32, arguments, 0, memory, findings)
    load(text, "k", "sm_90a", memory).machine(cohort).run()
    found = memory.bytes_at(address, 20).view(np.uint32).tolist()
    assert found == [1002, 1003, 1001, 1003, 200]
    assert not findings.all()


@pytest.mark.parametrize(
    ("line", "kind", "message"),
    [
        ("ld.global.b32 %r1, [%a0+128];", Kind.OUT_OF_BOUNDS, "read of 4 bytes"),
        ("st.global.b32 [%a0+-4], 1;", Kind.OUT_OF_BOUNDS, "write of 4 bytes"),
        ("ld.global.b32 %r1, [%a0+2];", Kind.MISALIGNED, "read of 4 bytes"),
        (
            "ld.shared.b32 %r1, [s+64];",
            Kind.OUT_OF_BOUNDS,
            "byte 64 of shared memory, which has 64",
        ),
        ("ld.shared.b32 %r1, [s];", Kind.UNINITIALIZED, "shared memory"),
        ("st.shared.b32 [s], %t;", Kind.RACE, "shared memory"),
        (
            ".local .align 4 .b8 f[8]; st.local.b32 [f+8], 1;",
            Kind.OUT_OF_BOUNDS,
            "byte 8 of local memory, which has 8",
        ),
        (
            ".local .align 4 .b8 f[8]; st.local.b32 [f], 1; ld.local.v2.b32 {%r1, %r2}, [f];",
            Kind.UNINITIALIZED,
            "read of 8 bytes at byte 0 of local memory",
        ),
    ],
)
def test_wrong_accesses_are_found(line: str, kind: Kind, message: str) -> None:
    outcome = run(line, np.zeros(32, np.uint32), shared=64)
    (finding,) = outcome.findings
    assert finding.kind is kind
    assert message in finding.message
    assert line.split(";")[-2].strip() in finding.instruction.text


def test_prefetches_and_hints_change_nothing() -> None:
    body = """
        prefetch.global.L2 [%a0]; prefetch.global.L2::evict_last [%a0];
        ld.volatile.global.b32 %r1, [%a0]; ld.acquire.gpu.global.b32 %r1, [%a0];
        ld.relaxed.sys.global.L1::no_allocate.b32 %r1, [%a0];
        ld.global.ca.L2::128B.b32 %r2, [%a0]; st.release.gpu.global.b32 [%a0], %r2;
        st.global.wt.b32 [%a0], %r1;
        createpolicy.fractional.L2::evict_first.b64 %d1, 0f3F800000;
        ld.global.L2::cache_hint.b32 %r3, [%a0], %d1;
        st.global.L2::cache_hint.b32 [%a0], %r3, %d1;
    """
    outcome = run(body, np.array([5], np.uint32))
    assert outcome.arrays[0].tolist() == [5]
    assert not outcome.findings
