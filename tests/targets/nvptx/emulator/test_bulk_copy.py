"""Copies under way: when they read and write, whom they keep out, and what waits are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.targets.gpu.emulator.worlds import instruction
from tests.targets.nvptx.emulator.idle_machine import found, idle, make, meet, over, use
from tests.targets.nvptx.emulator.running import run
from tiledsl.targets.gpu.emulator.cohort import Mode
from tiledsl.targets.gpu.emulator.findings import Kind
from tiledsl.targets.nvptx.emulator.bulk_copy import Arrival, BulkGroups, Pieces
from tiledsl.targets.nvptx.emulator.machine import Machine
from tiledsl.targets.nvptx.emulator.mbarrier_state import Mbarriers

MODES = pytest.mark.parametrize("mode", list(Mode))
_ISSUE = 5
"""Index of the instruction that issues copies."""


def _pieces(*first: int) -> Pieces:
    """Return a piece for each number, that counts from there."""
    return (np.array(first)[:, None] + np.arange(4)).astype(np.uint32)


def _look(machine: Machine, lane: int, offset: int) -> list[int]:
    """Return 16 bytes of a thread's shared memory as they are now."""
    return machine.shared.peek(np.array([lane]), np.array([offset]), 4, 4)[0].tolist()


def _store(machine: Machine, lane: int, offset: int, value: int, index: int = 9) -> None:
    """Let a thread store a word in shared memory, as plain stores do."""
    access = machine.access(instruction(index), np.array([lane]))
    words = np.full((1, 2), value, np.uint32)
    machine.shared.store(access, np.array([offset]), words, 4, 2)


def _kinds(machine: Machine) -> list[tuple[Kind, int]]:
    """Return what was found, and the index of the instruction that did it."""
    return [(one.kind, one.instruction.index) for one in found(machine)]


# --- into shared memory --------------------------------------------------------------------------


@dataclass
class _Source:
    """What a copy reads, and how often it did."""

    pieces: Pieces
    reads: int = 0

    def fetch(self) -> Pieces:
        self.reads += 1
        return self.pieces.copy()


def _arriving(
    machine: Machine, offsets: Sequence[int] = (256, 512), *, lane: int = 0, block: int = 0
) -> _Source:
    """Make an mbarrier at byte 0 of a block that a copy into it reports to; begin that."""
    make(machine, 1, lane=block * machine.cohort.threads)
    address = (block + 1 << 24) if block else 0
    one, count = use(machine, [lane], address, index=4), 16 * len(offsets)
    machine.part(Mbarriers).expect_bytes(one, np.array([count]))
    machine.part(Mbarriers).arrive(one)
    source = _Source(_pieces(*(100 * i for i in range(1, len(offsets) + 1))))
    places = np.array(offsets)
    Arrival(machine, instruction(_ISSUE), lane, block, places, 0, source.fetch, count).issue()
    return source


@MODES
def test_a_copy_reads_at_the_issue_or_when_it_is_waited_for_and_arrives_then(mode: Mode) -> None:
    machine = idle(mode=mode)
    source = _arriving(machine)
    assert source.reads == (1 if mode is Mode.EAGER else 0)
    source.pieces += 1000
    assert _look(machine, 0, 256) == [0, 0, 0, 0]
    assert over(machine, use(machine, [32])) == [True]
    late = 0 if mode is Mode.EAGER else 1000
    assert _look(machine, 0, 256) == [late + 100 + i for i in range(4)]
    assert _look(machine, 0, 512) == [late + 200 + i for i in range(4)]
    assert over(machine, use(machine, [32])) == [True]
    assert source.reads == 1
    assert not found(machine)


@MODES
def test_nobody_may_touch_where_a_copy_goes_until_it_is_waited_for(mode: Mode) -> None:
    machine = idle(mode=mode)
    _arriving(machine)
    _store(machine, 0, 520, 7, index=8)
    _store(machine, 0, 528, 7)
    access = machine.access(instruction(10), np.array([32]))
    machine.shared.load(access, np.array([256]), 8)
    assert _kinds(machine) == [(Kind.MISSING_WAIT, 8), (Kind.MISSING_WAIT, 10)]
    over(machine, use(machine, [32], index=11))
    _store(machine, 32, 520, 7, index=12)
    assert len(found(machine)) == 2


@pytest.mark.parametrize("block", [0, 1])
def test_who_has_not_seen_a_copy_arrive_races_with_it(block: int) -> None:
    machine = idle(cluster=2)
    _arriving(machine, [256], lane=33, block=block)
    over(machine, use(machine, [64 * block + 32]))
    _store(machine, 64 * block, 256, 7, index=8)
    assert _kinds(machine) == [(Kind.RACE, 8)]


@pytest.mark.parametrize("block", [0, 1])
def test_a_copy_over_what_others_may_still_read_is_a_race(block: int) -> None:
    machine = idle(cluster=2)
    make(machine, 1, lane=64 * block)
    _store(machine, 64 * block, 512, 7)
    meet(machine)
    access = machine.access(instruction(3), np.array([64 * block]))
    machine.shared.load(access, np.array([512]), 8)
    source, places = _Source(_pieces(1)), np.array([512])
    Arrival(machine, instruction(_ISSUE), 33, block, places, 0, source.fetch, 16).issue()
    assert _kinds(machine) == [(Kind.RACE, _ISSUE)]


@MODES
def test_a_copy_to_another_block_goes_there_alone_and_its_end_must_be_known(mode: Mode) -> None:
    machine = idle(cluster=2, mode=mode)
    _arriving(machine, [256], lane=33, block=1)
    assert over(machine, use(machine, [64])) == [True]
    assert _look(machine, 64, 256) == [100, 101, 102, 103]
    assert _look(machine, 0, 256) == [0, 0, 0, 0]
    assert not found(machine)
    machine.run()
    assert not found(machine)


@MODES
def test_a_block_that_never_asks_for_another_ones_copy_may_have_ended(mode: Mode) -> None:
    machine = idle(cluster=2, mode=mode)
    _arriving(machine, [256], lane=33, block=1)
    machine.run()
    assert _kinds(machine) == [(Kind.UNDEFINED, _ISSUE), (Kind.MISSING_WAIT, _ISSUE)]
    assert {(one.block, one.thread) for one in found(machine)} == {((0, 0, 0), 33)}


@MODES
@pytest.mark.parametrize("waits", [False, True])
def test_a_block_that_ends_before_a_copy_into_it_has_arrived_lacks_a_wait(
    mode: Mode, waits: bool
) -> None:
    machine = idle(mode=mode)
    _arriving(machine, [256], lane=33)
    if waits:
        over(machine, use(machine, [32]))
    machine.run()
    assert _kinds(machine) == ([] if waits else [(Kind.MISSING_WAIT, _ISSUE)])


@MODES
@pytest.mark.parametrize("waits_first", [False, True])
def test_a_copy_tells_what_its_warp_had_seen_when_it_issued_it(
    mode: Mode, waits_first: bool
) -> None:
    """Warp 1 reads a word and warp 2 overwrites it when the copy has arrived that warp 0 issued.

    That is ordered if warp 0 waits for warp 1 before it issues the copy, not if it waits later.
    """
    issue = """
        mbarrier.arrive.expect_tx.shared.b64 _, [%r60], 64;
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r61], [%a0], 64, [%r60];
    """
    wait = """
        R: mbarrier.try_wait.parity.shared.b64 %p2, [%r60+8], 0;
        @!%p2 bra R;
    """
    body = f"""
        mov.u32 %r60, s; add.s32 %r61, %r60, 128;
        setp.eq.s32 %p1, %t, 0;
        @%p1 st.shared.u32 [%r60+512], 7;
        @%p1 mbarrier.init.shared.b64 [%r60], 1;
        @%p1 mbarrier.init.shared.b64 [%r60+8], 1;
        @%p1 fence.mbarrier_init.release.cluster;
        bar.sync 0;
        setp.ne.s32 %p3, %t, 32; @%p3 bra FIRST;
        ld.shared.u32 %r1, [%r60+512];
        mbarrier.arrive.shared.b64 _, [%r60+8];
        FIRST: setp.ne.s32 %p3, %t, 0; @%p3 bra LAST;
        {wait + issue if waits_first else issue + wait}
        LAST: setp.ne.s32 %p3, %t, 64; @%p3 bra END;
        W: mbarrier.try_wait.parity.shared.b64 %p2, [%r60], 0;
        @!%p2 bra W;
        st.shared.u32 [%r60+512], 8;
        END:
    """
    outcome = run(body, np.zeros(64, np.uint32), chip="sm_90a", threads=96, shared=1024, mode=mode)
    assert outcome.kinds == (set() if waits_first else {Kind.RACE})


# --- out of shared memory ------------------------------------------------------------------------


@dataclass
class _Out:
    """Copies out of shared memory, and what they have written, in order."""

    machine: Machine
    written: list[list[int]] = field(default_factory=list[list[int]])

    def __post_init__(self) -> None:
        for at in range(8):
            _store(self.machine, 0, 16 * at, at)
            _store(self.machine, 0, 16 * at + 8, at)
        meet(self.machine)

    def issue(self, *offsets: int, lane: int = 0) -> None:
        def write(pieces: NDArray[Any]) -> None:
            self.written.append(pieces[:, 0].tolist())

        groups = self.machine.part(BulkGroups)
        groups.issue(instruction(_ISSUE), lane, np.array(offsets), write)

    def commit(self, lane: int = 0) -> None:
        self.machine.part(BulkGroups).commit(np.array([lane]))

    def wait(self, keep: int = 0, *, reads_only: bool = False, lane: int = 0) -> None:
        mask = np.zeros(self.machine.threads, np.bool_)
        mask[lane] = True
        self.machine.part(BulkGroups).wait(mask, keep, reads_only=reads_only)


@MODES
def test_a_copy_out_reads_by_the_first_wait_and_writes_by_the_second(mode: Mode) -> None:
    machine = idle(mode=mode)
    out = _Out(machine)
    out.issue(32, 64)
    out.commit()
    eager = mode is Mode.EAGER
    assert out.written == ([[2, 4]] if eager else [])
    _store(machine, 0, 64, 70, index=8)  # too early
    assert _kinds(machine) == [(Kind.MISSING_WAIT, 8)]
    out.wait(reads_only=True)
    _store(machine, 0, 32, 70, index=9)
    assert out.written == ([[2, 4]] if eager else [])
    out.wait()
    out.wait()
    assert out.written == ([[2, 4]] if eager else [[2, 70]])
    machine.run()
    assert _kinds(machine) == [(Kind.MISSING_WAIT, 8)]


def test_reading_what_a_copy_out_reads_is_no_fault() -> None:
    machine = idle()
    out = _Out(machine)
    out.issue(32)
    access = machine.access(instruction(8), np.array([32]))
    machine.shared.load(access, np.array([32]), 8)
    assert not found(machine)


def test_copies_that_one_wait_waits_for_land_the_latest_first_in_lazy_mode() -> None:
    for mode, order in ((Mode.EAGER, [[1], [2], [3]]), (Mode.LAZY, [[3], [2], [1]])):
        out = _Out(idle(mode=mode))
        out.issue(16)
        out.issue(32)
        out.commit()
        out.issue(48)
        out.commit()
        out.wait()
        assert out.written == order


@pytest.mark.parametrize("reads_only", [False, True])
@pytest.mark.parametrize("keep", range(4))
def test_a_wait_leaves_the_youngest_groups(keep: int, reads_only: bool) -> None:
    machine = idle(mode=Mode.LAZY)
    out = _Out(machine)
    for group in range(3):
        out.issue(16 * group)
        out.commit()
    out.wait(keep, reads_only=reads_only)
    assert sorted(out.written) == [[group] for group in range(0 if reads_only else 3 - keep)]
    for group in range(3):
        _store(machine, 0, 16 * group, 7, index=10 + group)
    assert _kinds(machine) == [(Kind.MISSING_WAIT, 10 + one) for one in range(3 - keep, 3)]


def test_groups_are_each_threads_own_and_must_be_committed() -> None:
    machine = idle(mode=Mode.LAZY)
    out = _Out(machine)
    out.issue(16, lane=0)
    out.issue(32, lane=1)
    out.commit(0)
    out.wait(lane=1)
    assert out.written == []
    out.wait(lane=0)
    assert out.written == [[1]]
    out.commit(1)
    out.wait(lane=1)
    assert out.written == [[1], [2]]


@pytest.mark.parametrize("told", [False, True])
def test_who_overwrites_must_know_of_the_wait(told: bool) -> None:
    machine = idle()
    out = _Out(machine)
    out.issue(32)
    out.commit()
    meet(machine)
    out.wait(reads_only=True)
    if told:
        meet(machine)
    _store(machine, 32, 32, 7, index=8)
    assert _kinds(machine) == ([] if told else [(Kind.RACE, 8)])


@MODES
@pytest.mark.parametrize("read", [False, True])
def test_what_is_under_way_at_the_end_is_written_and_must_have_been_read(
    mode: Mode, read: bool
) -> None:
    machine = idle(mode=mode)
    out = _Out(machine)
    out.issue(32, lane=3)
    out.commit(3)
    if read:
        out.wait(reads_only=True, lane=3)
    machine.run()
    assert out.written == [[2]]
    assert _kinds(machine) == ([] if read else [(Kind.MISSING_WAIT, _ISSUE)])
    assert [one.thread for one in found(machine)] == ([] if read else [3])


@MODES
def test_a_copy_out_that_was_never_committed_is_written_at_the_end(mode: Mode) -> None:
    machine = idle(mode=mode)
    out = _Out(machine)
    out.issue(32)
    out.wait()
    machine.run()
    assert out.written == [[2]]
    assert _kinds(machine) == [(Kind.MISSING_WAIT, _ISSUE)]


@MODES
@pytest.mark.parametrize("outside", [-16, 1024])
def test_pieces_outside_shared_memory_are_found_and_zero(mode: Mode, outside: int) -> None:
    machine = idle(mode=mode)
    out = _Out(machine)
    _store(machine, 0, 0, 7)
    meet(machine)
    out.issue(32, outside)
    out.commit()
    out.wait()
    assert out.written == [[2, 0]]
    assert _kinds(machine) == [(Kind.OUT_OF_BOUNDS, _ISSUE)]
