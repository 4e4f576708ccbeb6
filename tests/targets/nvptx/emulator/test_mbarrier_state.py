"""What an mbarrier counts, when its phases end, and who learns what from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.targets.gpu.emulator.worlds import instruction
from tests.targets.nvptx.emulator.idle_machine import found, idle, make, meet, over, use
from tiledsl.targets.gpu.emulator.findings import Kind
from tiledsl.targets.nvptx.emulator.machine import Machine
from tiledsl.targets.nvptx.emulator.mbarrier_state import MOST, Mbarriers, Use


def _arrive(machine: Machine, one: Use, count: int | None = None, **how: bool) -> list[list[int]]:
    """Let threads arrive; returns the phase and the arrivals missing that each saw."""
    counts = None if count is None else np.full(len(one.lanes), count)
    states = machine.part(Mbarriers).arrive(one, counts, **how)
    return [[int(state) >> 32, int(state) & 0xFFFFFFFF] for state in states]


def _bytes(one: Use, count: int) -> NDArray[np.int64]:
    return np.full(len(one.lanes), count)


# --- phases --------------------------------------------------------------------------------------


def test_one_instruction_may_end_several_phases() -> None:
    machine = idle()
    make(machine, 3)
    states = _arrive(machine, use(machine, range(32)))
    assert states == [[i // 3, 3 - i % 3] for i in range(32)]
    asking = use(machine, [0])
    assert [over(machine, asking, number)[0] for number in (0, 9, 10)] == [True, True, False]
    assert not found(machine)


@pytest.mark.parametrize("phases", range(4))
def test_a_number_names_one_phase_and_a_parity_every_other_one(phases: int) -> None:
    machine = idle()
    make(machine, 1)
    asking = use(machine, [0])
    for _ in range(phases):
        _arrive(machine, asking)
    assert [over(machine, asking, number)[0] for number in range(4)] == [
        number < phases for number in range(4)
    ]
    barriers = machine.part(Mbarriers)
    of_parity = [
        bool(barriers.over(asking, np.array([parity]), parity=True, acquire=True)[0])
        for parity in (0, 1)
    ]
    assert of_parity == [phases % 2 == 1, phases % 2 == 0]


def test_bytes_may_arrive_before_they_are_expected() -> None:
    machine = idle()
    make(machine, 1)
    barriers, one = machine.part(Mbarriers), use(machine, [0])
    barriers.complete_bytes(one, _bytes(one, 96))
    _arrive(machine, one)
    assert over(machine, one) == [False]
    barriers.expect_bytes(one, _bytes(one, 96))
    assert over(machine, one) == [True]
    assert _arrive(machine, one) == [[1, 1]]
    assert not found(machine)


def test_bytes_of_several_threads_add_up() -> None:
    machine = idle()
    make(machine, 1)
    barriers, four = machine.part(Mbarriers), use(machine, range(4))
    barriers.expect_bytes(four, _bytes(four, 16))
    _arrive(machine, use(machine, [0]))
    for _ in range(4):
        assert over(machine, use(machine, [0])) == [False]
        barriers.complete_bytes(use(machine, [0]), np.array([16]))
    assert over(machine, use(machine, [0])) == [True]


def test_who_drops_out_takes_all_its_arrivals_along() -> None:
    machine = idle()
    make(machine, 5)
    assert _arrive(machine, use(machine, [0]), 3, drop=True) == [[0, 5]]
    assert _arrive(machine, use(machine, [0]), 2) == [[0, 2]]
    assert _arrive(machine, use(machine, [0]), 2) == [[1, 2]]
    assert over(machine, use(machine, [0]), 1) == [True]
    assert not found(machine)


def test_an_mbarrier_that_was_unmade_may_be_made_anew() -> None:
    machine = idle()
    make(machine, 4)
    _arrive(machine, use(machine, range(5)))
    machine.part(Mbarriers).invalidate(instruction(2), np.array([0]), np.array([0]))
    make(machine, 2)
    assert _arrive(machine, use(machine, [0])) == [[0, 2]]
    assert not found(machine)


# --- misuse --------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, MOST, MOST + 1])
def test_an_mbarrier_expects_an_arrival_or_more_up_to_a_limit(count: int) -> None:
    machine = idle()
    make(machine, count, index=6)
    messages = [(one.kind, one.message, one.instruction.index) for one in found(machine)]
    bad = (Kind.UNDEFINED, f"an mbarrier cannot expect {count} arrivals", 6)
    assert messages == ([] if 1 <= count <= MOST else [bad])


@pytest.mark.parametrize("beyond", [False, True])
@pytest.mark.parametrize("sign", [1, -1])
def test_bytes_have_a_limit_either_way(sign: int, beyond: bool) -> None:
    machine = idle()
    make(machine, 1)
    barriers, one = machine.part(Mbarriers), use(machine, [0], index=7)
    change = barriers.expect_bytes if sign > 0 else barriers.complete_bytes
    change(one, _bytes(one, MOST + beyond))
    messages = [(finding.message, finding.instruction.index) for finding in found(machine)]
    assert messages == [(f"an mbarrier cannot expect {sign * (MOST + 1)} bytes", 7)] * beyond


def test_arrivals_too_many_end_the_phase_and_are_not_carried_over() -> None:
    machine = idle()
    make(machine, 2)
    _arrive(machine, use(machine, [0], index=7), 3)
    assert [(one.kind, one.instruction.index) for one in found(machine)] == [(Kind.UNDEFINED, 7)]
    assert over(machine, use(machine, [0])) == [True]
    assert _arrive(machine, use(machine, [0])) == [[1, 2]]


def test_only_threads_that_use_what_is_no_mbarrier_are_blamed() -> None:
    machine = idle()
    make(machine, 4, 0)
    make(machine, 4, 8)
    machine.part(Mbarriers).invalidate(instruction(2), np.array([0]), np.array([8]))
    meet(machine)
    states = _arrive(machine, use(machine, [32, 33, 34, 35], [0, 8, 0, 8], index=7))
    assert states == [[0, 4], [0, 0], [0, 3], [0, 0]]
    (finding,) = found(machine)
    assert (finding.kind, finding.instruction.index) == (Kind.UNDEFINED, 7)
    assert (finding.thread, finding.times) == (33, 2)
    assert finding.message == "there is no mbarrier at byte 8 of shared memory"


def test_a_wait_where_there_is_no_mbarrier_is_over() -> None:
    machine = idle()
    make(machine, 1)
    machine.part(Mbarriers).invalidate(instruction(2), np.array([0]), np.array([0]))
    assert over(machine, use(machine, [0], index=7)) == [True]
    assert [(one.kind, one.instruction.index) for one in found(machine)] == [(Kind.UNDEFINED, 7)]


# --- who learns what -----------------------------------------------------------------------------


def test_the_end_of_a_phase_tells_what_was_done_before_it_and_no_more() -> None:
    machine = idle()
    make(machine, 2)
    time, seen = int(machine.clocks.now(np.array([0]))[0]), machine.clocks.seen
    for _ in range(3):  # each at a time of its own
        _arrive(machine, use(machine, [0]))
    assert over(machine, use(machine, [32])) == [True]
    assert seen[1, 0] == time + 1
    _arrive(machine, use(machine, [0]))
    assert over(machine, use(machine, [32]), 1) == [True]
    assert seen[1, 0] == time + 3


@pytest.mark.parametrize("acquire", [False, True])
def test_only_warps_whose_phase_is_over_learn_and_only_if_they_acquire(acquire: bool) -> None:
    machine = idle(threads=96)
    make(machine, 1)
    before = int(machine.clocks.seen[1, 0])
    _arrive(machine, use(machine, [0]))
    asking = use(machine, [32, 64])
    barriers = machine.part(Mbarriers)
    ended = barriers.over(asking, np.array([0, 1]), parity=False, acquire=acquire)
    assert ended.tolist() == [True, False]
    assert machine.clocks.seen[1:, 0].tolist() == [before + acquire, before]


def test_a_copy_tells_of_others_as_it_began_and_of_its_own_warp_as_it_arrives() -> None:
    machine = idle(threads=96)
    make(machine, 1)
    clocks, barriers = machine.clocks, machine.part(Mbarriers)
    began = clocks.seen[1].copy()
    meet(machine)
    now = int(clocks.now(np.array([1]))[0])
    barriers.gather_copy((0, 0), 1, began)
    _arrive(machine, use(machine, [0]), release=False)
    clocks.seen[2] = 0
    assert over(machine, use(machine, [64])) == [True]
    assert clocks.seen[2, :2].tolist() == [began[0], now]
    assert now > began[1]


# --- operations that report to them --------------------------------------------------------------


class _Log:
    """An operation that arrives for its threads when it takes effect, and remembers which."""

    def __init__(self, machine: Machine, one: Use) -> None:
        self.acted: list[list[int]] = []
        self._machine, self._use = machine, one
        machine.part(Mbarriers).later(one, self._act)

    def _act(self, rows: Any) -> None:
        self.acted.append(rows.tolist())
        _arrive(self._machine, self._use.rows(rows))


def test_an_operation_takes_effect_once_and_when_its_phase_is_asked_for() -> None:
    machine = idle()
    make(machine, 1)
    _arrive(machine, use(machine, [0]))
    log = _Log(machine, use(machine, [0]))
    assert over(machine, use(machine, [0]), 0) == [True]
    assert log.acted == []  # that phase is over without it
    assert over(machine, use(machine, [0]), 1) == [True]
    assert over(machine, use(machine, [0]), 2) == [False]
    assert log.acted == [[0]]


def test_an_operation_takes_effect_for_those_alone_whose_mbarrier_is_asked_for() -> None:
    machine = idle()
    make(machine, 2, 0)
    make(machine, 1, 8)
    log = _Log(machine, use(machine, [0, 1, 2], [0, 8, 0]))
    assert over(machine, use(machine, [0], 8)) == [True]
    assert log.acted == [[1]]
    assert over(machine, use(machine, [0], 0)) == [True]
    assert log.acted == [[1], [0, 2]]


def test_what_happens_to_an_mbarrier_is_an_event_and_a_question_is_none() -> None:
    machine = idle()
    barriers = machine.part(Mbarriers)
    events = [barriers.events]
    make(machine, 2)
    one = use(machine, [0])
    events.append(barriers.events)
    _arrive(machine, one)
    events.append(barriers.events)
    barriers.expect_bytes(one, _bytes(one, 16))
    events.append(barriers.events)
    barriers.complete_bytes(one, _bytes(one, 16))
    events.append(barriers.events)
    assert len(set(events)) == len(events)
    over(machine, one)
    assert barriers.events == events[-1]


# --- visits of other blocks ----------------------------------------------------------------------


def _visited() -> Machine:
    """Return a cluster of two blocks; thread 33 of the first was at the second's mbarrier."""
    machine = idle(cluster=2)
    make(machine, 8, 16, lane=64)
    _arrive(machine, use(machine, [33], 2 << 24 | 16, index=7))
    return machine


def _tell(machine: Machine, source: int, target: int) -> None:
    """Let one warp learn what another one did."""
    known = machine.clocks.release(np.array([source]))
    machine.clocks.acquire(np.array([target]), known)


def test_a_visit_that_the_other_block_never_learns_of_is_found() -> None:
    machine = _visited()
    machine.run()
    (finding,) = found(machine)
    assert (finding.kind, finding.instruction.index) == (Kind.UNDEFINED, 7)
    assert (finding.block, finding.thread) == ((0, 0, 0), 33)
    assert "may have ended" in finding.message


@pytest.mark.parametrize("warp", [2, 3])
def test_a_visit_that_any_warp_of_the_other_block_has_learnt_of_is_none(warp: int) -> None:
    machine = _visited()
    _tell(machine, 1, warp)
    machine.run()
    assert not found(machine)


def test_what_a_block_must_learn_of_is_the_latest_visit() -> None:
    machine = _visited()
    _tell(machine, 1, 2)
    _arrive(machine, use(machine, [33], 2 << 24 | 16, index=8))
    machine.run()
    assert [finding.instruction.index for finding in found(machine)] == [8]


def test_a_visit_of_what_the_other_block_still_makes_is_a_race() -> None:
    machine = idle(cluster=2)
    lanes, offsets = np.array([64]), np.array([16])
    machine.part(Mbarriers).initialize(instruction(0), lanes, offsets, np.array([1]))
    use(machine, [33], 2 << 24 | 16, index=7)
    assert [(one.kind, one.instruction.index) for one in found(machine)] == [(Kind.RACE, 7)]
