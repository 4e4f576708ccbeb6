"""How a cohort numbers its threads and warps, and who is blamed for what goes wrong in it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.targets.gpu.emulator.worlds import World, instruction
from tiledsl.targets.gpu.emulator.cohort import Cohort
from tiledsl.targets.gpu.emulator.findings import Kind

_GRID = (4, 3, 2)
_PROGRAMS = [(3, 0, 0), (0, 2, 1), (1, 1, 0)]
"""Numbers 3, 20 and 5 in the launch."""


def _cohort(threads: int = 6, warp_size: int = 4) -> Cohort:
    """Return three blocks of a larger launch, by default each of a warp and a half."""
    programs = np.array(_PROGRAMS, np.int64)
    return replace(
        World().cohort, grid=_GRID, programs=programs, threads=threads, warp_size=warp_size
    )


# --- numbers -------------------------------------------------------------------------------------


def test_threads_and_warps_are_numbered_block_by_block_and_no_warp_spans_two() -> None:
    cohort = _cohort()
    assert (cohort.blocks, cohort.warps) == (3, 2)
    assert cohort.block_of.tolist() == [0] * 6 + [1] * 6 + [2] * 6
    assert cohort.warp_of.tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 4, 4, 4, 4, 5, 5]


def test_in_the_launch_warps_are_numbered_along_x_then_y_then_z() -> None:
    assert _cohort().launch_warp.tolist() == [6, 7, 40, 41, 10, 11]


def test_a_number_in_the_launch_gives_the_flat_warp_and_minus_one_elsewhere() -> None:
    cohort = _cohort()
    assert cohort.flat_warp(cohort.launch_warp.astype(np.int64)).tolist() == list(range(6))
    numbers = np.array([[0, 5, 8], [9, 12, 39], [42, 47, 11]])
    assert cohort.flat_warp(numbers).tolist() == [[-1] * 3, [-1] * 3, [-1, -1, 5]]


# --- findings ------------------------------------------------------------------------------------


def test_a_finding_names_the_program_and_the_thread_in_it() -> None:
    cohort, other = _cohort(), instruction(2)
    cohort.report(Kind.RACE, instruction(1), "planted", 6 + 5, 3, other)
    (finding,) = cohort.findings.all()
    assert (finding.block, finding.thread) == ((0, 2, 1), 5)
    assert (finding.kind, finding.message, finding.times) == (Kind.RACE, "planted", 3)
    assert (finding.instruction, finding.other) == (instruction(1), other)


def test_an_access_blames_the_first_bad_lane_and_counts_them_all() -> None:
    world = World(blocks=2)
    access = world.access(1, [2, 3, 9, 15])
    bad = np.array([False, False, True, True])
    access.report(Kind.RACE, bad, lambda at: f"position {at}", lambda at: instruction(40 + at))
    (finding,) = world.findings.all()
    assert (finding.message, finding.times) == ("position 2", 2)
    assert (finding.block, finding.thread) == ((1, 0, 0), 1)
    assert finding.other == instruction(42)


def test_an_access_without_some_lanes_blames_the_others() -> None:
    world = World()
    access = world.access(1, [2, 3, 5])
    part = access.only(np.array([False, True, True]))
    assert (part.lanes.tolist(), access.lanes.tolist()) == ([3, 5], [2, 3, 5])
    part.report(Kind.RACE, np.array([False, True]), lambda at: f"position {at}")
    (finding,) = world.findings.all()
    assert (finding.message, finding.thread, finding.instruction) == (
        "position 1",
        5,
        access.instruction,
    )
    assert finding.other is None


# --- traps ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("threads", "named"),
    [
        ([7], "thread 7"),
        ([6, 7], "threads 6 to 7"),
        (range(30), "threads 0 to 29"),
        ([1, 3], "threads 1, 3"),
        ([1, 3, 4, 9], "threads 1, 3, 4, 9"),
        ([1, 3, 4, 8, 20, 29], "6 threads: 1, 3, 4, 8, ... 29"),
    ],
)
def test_a_trap_names_its_threads(threads: list[int], named: str) -> None:
    cohort = _cohort(threads=30)
    cohort.report_trap(instruction(1), "", np.array(threads))
    (finding,) = cohort.findings.all()
    assert finding.kind is Kind.ASSERTION
    assert finding.message == f"the kernel trapped ({named})"
    assert (finding.block, finding.thread) == (_PROGRAMS[0], threads[0])


def test_a_trap_of_several_blocks_names_the_threads_of_the_first_and_counts_all() -> None:
    cohort = _cohort()
    cohort.report_trap(instruction(1), "too large", np.array([8, 9, 10, 12, 13]))
    (finding,) = cohort.findings.all()
    assert finding.message == "too large (threads 2 to 4)"
    assert (finding.block, finding.thread, finding.times) == (_PROGRAMS[1], 2, 5)


@pytest.mark.parametrize(
    ("says", "message"),
    [
        ("kernel.py:7: too large", "too large (thread 0)"),
        ("other.py:7: too large", "other.py:7: too large (thread 0)"),
        ("kernel.py:7:", "the kernel trapped (thread 0)"),
    ],
)
def test_a_trap_does_not_say_twice_where_it_is(says: str, message: str) -> None:
    world = World()
    world.cohort.report_trap(instruction(1, line=7), says, np.array([0]))
    assert world.messages() == [message]


def test_a_trap_that_nobody_knows_the_line_of_keeps_what_it_says() -> None:
    world = World()
    nowhere = replace(instruction(1), source=None)
    world.cohort.report_trap(nowhere, "kernel.py:7: too large", np.array([0]))
    assert world.messages() == ["kernel.py:7: too large (thread 0)"]
