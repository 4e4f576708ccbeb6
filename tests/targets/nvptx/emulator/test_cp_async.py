"""cp.async: what is copied, what is zero, and what must wait."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.nvptx.emulator.running import Outcome, run
from tiledsl.targets.gpu.emulator.cohort import Mode
from tiledsl.targets.gpu.emulator.findings import Kind

MODES = pytest.mark.parametrize("mode", list(Mode))
_START = """
mov.u32 %r60, s; shl.b32 %r61, %t, 4; add.s32 %r62, %r60, %r61;
mul.wide.u32 %d60, %r61, 1; add.s64 %d61, %a0, %d60; add.s64 %d62, %a1, %d60;
"""
_DUMP = "ld.shared.v4.b32 {%r1,%r2,%r3,%r4}, [%r62]; st.global.v4.b32 [%d62], {%r1,%r2,%r3,%r4};"
_COPY = "cp.async.cg.shared.global [%r62], [%d61], 16;"


def _run(body: str, mode: Mode = Mode.EAGER, threads: int = 32, words: int = 0) -> Outcome:
    data = np.arange(1, (words or 4 * threads) + 1, dtype=np.uint32)
    return run(
        _START + body, data, np.zeros(4 * threads, np.uint32), threads=threads,
        shared=16 * threads, mode=mode,
    )  # fmt: skip


@MODES
@pytest.mark.parametrize(
    "wait", ["cp.async.commit_group; cp.async.wait_group 0;", "cp.async.wait_all;"]
)
def test_a_copy_arrives_by_its_wait(mode: Mode, wait: str) -> None:
    outcome = _run(_COPY + wait + _DUMP, mode)
    assert outcome.findings == []
    np.testing.assert_array_equal(outcome.arrays[1], outcome.arrays[0])


@MODES
def test_what_is_not_read_is_zero(mode: Mode) -> None:
    outcome = _run(
        "and.b32 %r10, %t, 3; mul.lo.s32 %r10, %r10, 5; setp.gt.u32 %p1, %r10, 16;"
        "cp.async.cg.shared.global [%r62], [%d61], 16, %r10; cp.async.wait_all;" + _DUMP,
        mode,
    )
    assert outcome.findings == []
    given = outcome.arrays[0].view(np.uint8).reshape(32, 16)
    found = outcome.arrays[1].view(np.uint8).reshape(32, 16)
    for lane in range(32):
        count = lane % 4 * 5
        assert (found[lane, :count] == given[lane, :count]).all()
        assert not found[lane, count:].any()


@MODES
def test_an_ignored_source_is_not_looked_at(mode: Mode) -> None:
    outcome = _run(
        "setp.gt.u32 %p1, %t, 15; cp.async.cg.shared.global [%r62], [%d61], 16, %p1;"
        "cp.async.wait_all;" + _DUMP,
        mode, words=64,
    )  # fmt: skip
    assert outcome.findings == []
    assert outcome.arrays[1].tolist() == [*range(1, 65), *[0] * 64]


@MODES
@pytest.mark.parametrize("size", [4, 8])
def test_smaller_copies(mode: Mode, size: int) -> None:
    outcome = _run(
        f"mov.u32 %r9, 0; st.shared.v4.b32 [%r62], {{%r9,%r9,%r9,%r9}};"
        f"cp.async.ca.shared.global.L2::128B [%r62], [%d61], {size}; cp.async.wait_all;" + _DUMP,
        mode,
    )
    found = outcome.arrays[1].reshape(32, 4)
    np.testing.assert_array_equal(
        found[:, : size // 4], outcome.arrays[0].reshape(32, 4)[:, : size // 4]
    )
    assert not found[:, size // 4 :].any()


@MODES
@pytest.mark.parametrize(
    "wait", ["", "cp.async.wait_group 0;", "cp.async.commit_group; cp.async.wait_group 1;"]
)
def test_data_that_was_not_waited_for_is_found(mode: Mode, wait: str) -> None:
    outcome = _run(_COPY + wait + _DUMP, mode)
    assert outcome.kinds == {Kind.MISSING_WAIT}


@MODES
def test_all_but_the_youngest_groups_arrive(mode: Mode) -> None:
    first = _COPY + "cp.async.commit_group;"
    second = "cp.async.cg.shared.global [%r62+512], [%d61], 16; cp.async.commit_group;"
    data, out = np.arange(128, dtype=np.uint32), np.zeros(128, np.uint32)
    good = run(
        _START + first + second + "cp.async.wait_group 1;" + _DUMP,
        data,
        out,
        shared=1024,
        mode=mode,
    )
    assert good.findings == []
    late = run(
        _START + second + first + "cp.async.wait_group 1;" + _DUMP,
        data,
        out,
        shared=1024,
        mode=mode,
    )
    assert late.kinds == {Kind.MISSING_WAIT}


@MODES
def test_another_warp_needs_a_barrier_after_the_wait(mode: Mode) -> None:
    turn = "xor.b32 %r62, %r61, 512; add.s32 %r62, %r62, %r60;"
    with_barrier = _run(_COPY + "cp.async.wait_all; bar.sync 0;" + turn + _DUMP, mode, 64)
    assert with_barrier.findings == []
    without = _run(_COPY + "cp.async.wait_all;" + turn + _DUMP, mode, 64)
    assert Kind.RACE in without.kinds
    before = _run(_COPY + "bar.sync 0; cp.async.wait_all;" + turn + _DUMP, mode, 64)
    assert before.kinds & {Kind.RACE, Kind.MISSING_WAIT}


@MODES
def test_a_source_out_of_bounds_is_found_at_the_copy(mode: Mode) -> None:
    outcome = _run(_COPY + "cp.async.wait_all;" + _DUMP, mode, words=64)
    assert outcome.kinds == {Kind.OUT_OF_BOUNDS}
    assert outcome.findings[0].instruction.text.startswith("cp.async.cg")
    assert outcome.findings[0].times == 16
    assert outcome.arrays[1].tolist() == [*range(1, 65), *[0] * 64]


@MODES
def test_crooked_addresses_are_found(mode: Mode) -> None:
    assert _run("cp.async.cg.shared.global [%r62], [%d61+4], 16;", mode).kinds >= {Kind.MISALIGNED}
    assert _run("cp.async.cg.shared.global [%r62+4], [%d61], 16;", mode).kinds >= {Kind.MISALIGNED}


def test_more_bytes_than_there_is_room_for_are_found() -> None:
    outcome = _run("mov.u32 %r1, 17; cp.async.cg.shared.global [%r62], [%d61], 16, %r1;")
    assert outcome.kinds == {Kind.UNDEFINED}


def test_a_lazy_copy_reads_its_source_at_the_wait() -> None:
    body = _COPY + "mov.u32 %r9, 77; st.global.b32 [%d61], %r9; cp.async.wait_all;" + _DUMP
    eager, lazy = _run(body, Mode.EAGER), _run(body, Mode.LAZY)
    assert eager.arrays[1][0] == 1
    assert lazy.arrays[1][0] == 77


@MODES
@pytest.mark.parametrize(("form", "count"), [(".noinc", 32), ("", 1)])
def test_an_mbarrier_waits_for_copies(mode: Mode, form: str, count: int) -> None:
    arrive = "" if form else "@%p1 mbarrier.arrive.shared.b64 _, [%r59];"
    body = f"""
    add.s32 %r59, %r60, 1024; setp.eq.u32 %p1, %t, 0;
    @%p1 mbarrier.init.shared.b64 [%r59], {count};
    bar.sync 0;
    {_COPY}
    cp.async.mbarrier.arrive{form}.shared.b64 [%r59];
    {arrive}
    W: mbarrier.try_wait.parity.shared.b64 %p2, [%r59], 0; @!%p2 bra W;
    """
    data, out = np.arange(128, dtype=np.uint32), np.zeros(128, np.uint32)
    outcome = run(_START + body + _DUMP, data, out, shared=1040, mode=mode)
    assert outcome.findings == []
    np.testing.assert_array_equal(outcome.arrays[1], data)
