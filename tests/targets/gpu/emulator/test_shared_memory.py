"""Shared memory: what it holds, and every kind of fault planted once, beside its sound twin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.targets.gpu.emulator.worlds import World
from tiledsl.targets.gpu.emulator.findings import Kind
from tiledsl.targets.gpu.emulator.words import UNSIGNED

_EVERY = np.arange(8)
_OWN = _EVERY * 4
_OTHERS = (_EVERY + 4) % 8 * 4
"""What the other warp's lane of the same number has; two warps of four lanes."""


@given(
    size=st.sampled_from([1, 2, 4, 8]),
    count=st.sampled_from([1, 2, 3, 4]),
    align=st.sampled_from([1, 4, 16]),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_what_is_stored_is_loaded_at_any_width_and_alignment(
    size: int, count: int, align: int, seed: int
) -> None:
    world, rng = World(blocks=2, shared_bytes=8 * 64, granule=1), np.random.default_rng(seed)
    offsets = rng.permutation(8).repeat(2).reshape(8, 2).T.ravel() * 64
    offsets += rng.integers(0, max(16 // align, 1), 16) * align
    values = rng.integers(0, 2**63, (16, count) if count > 1 else 16, np.uint64)
    values = values.astype(UNSIGNED[size])
    world.shared.store(world.access(0), offsets, values, size, count, align)
    world.sync()
    loaded = world.shared.load(world.access(1), offsets, size, count, align)
    np.testing.assert_array_equal(loaded, values)
    assert not world.findings


def test_each_block_has_its_own_window() -> None:
    world = World(blocks=2, warps=1, lanes=2)
    world.write(0, [0, 1, 2, 3], [0, 4, 0, 4], [1, 2, 3, 4])
    assert world.read(1, [0, 1, 2, 3], [0, 4, 0, 4]).tolist() == [1, 2, 3, 4]
    assert not world.findings


# --- races ---------------------------------------------------------------------------------------


def test_reading_another_warps_write_without_a_barrier_is_a_race() -> None:
    world = World()
    world.write(0, _EVERY, _OWN)
    world.read(1, _EVERY, _OTHERS)
    assert world.kinds() == [Kind.RACE]
    assert world.messages() == [
        "read of shared memory at byte 16 by warp 0: no barrier after the write by warp 1 at line "
        "10 (`st`)"
    ]
    (finding,) = world.findings.all()
    assert finding.times == 8
    assert finding.other is not None
    assert finding.other.text == "st"


def test_reading_another_warps_write_after_a_barrier_is_sound() -> None:
    world = World()
    world.write(0, _EVERY, _OWN)
    world.sync()
    assert world.read(1, _EVERY, _OTHERS).tolist() == [4, 5, 6, 7, 0, 1, 2, 3]
    assert not world.findings


def test_a_barrier_before_the_write_does_not_order_it() -> None:
    world = World()
    world.sync()
    world.write(0, _EVERY, _OWN)
    world.read(1, _EVERY, _OTHERS)
    assert world.kinds() == [Kind.RACE]


def test_a_barrier_of_other_warps_does_not_order_a_write() -> None:
    world = World(warps=3)
    world.write(0, [0], [0])
    mask = np.arange(12) >= 4
    phase = world.barriers.arrive(mask, 1, expected=8)
    world.barriers.passed(mask, 1, phase)
    world.read(1, [4], [0])
    assert world.kinds() == [Kind.RACE]


def test_a_warp_may_read_its_own_write_at_once() -> None:
    world = World()
    world.write(0, _EVERY, _OWN)
    assert world.read(1, _EVERY, _OWN[[1, 0, 3, 2, 5, 4, 7, 6]]).tolist() == [
        1,
        0,
        3,
        2,
        5,
        4,
        7,
        6,
    ]
    assert not world.findings


def test_overwriting_what_another_warp_may_still_read_is_a_race() -> None:
    world = World()
    world.write(0, _EVERY, _OWN)
    world.sync()
    world.read(1, _EVERY, _OTHERS)
    world.write(2, _EVERY, _OWN)
    assert world.kinds() == [Kind.RACE]
    assert world.messages() == [
        "write of shared memory at byte 0 by warp 0: no barrier after the read by warp 1 at line "
        "11 (`ld`)"
    ]


def test_overwriting_after_a_barrier_is_sound() -> None:
    world = World()
    for turn in range(3):
        world.write(0, _EVERY, _OWN)
        world.sync()
        world.read(1, _EVERY, _OTHERS)
        world.sync(turn % 2)
    assert not world.findings


def test_a_read_by_one_of_many_warps_is_enough_for_a_race() -> None:
    world = World(warps=4)
    world.write(0, [0], [0])
    world.sync()
    world.read(1, [12], [0])
    world.read(1, [0], [0])
    world.write(2, [0], [0])
    assert world.kinds() == [Kind.RACE]
    assert "the read by warp 3" in world.messages()[0]


def test_overwriting_another_warps_write_is_a_race() -> None:
    world = World()
    world.write(0, _EVERY, _OWN)
    world.write(1, _EVERY, _OTHERS)
    assert world.kinds() == [Kind.RACE]
    assert "no barrier after the write by warp" in world.messages()[0]


def test_two_warps_that_write_one_place_in_one_instruction_race() -> None:
    world = World()
    world.write(0, [0, 4], [8, 8], [3, 3])
    assert world.kinds() == [Kind.RACE]
    assert world.messages() == [
        "two lanes write 4 bytes to byte 8 of shared memory in one instruction, threads 0 and 4"
    ]


def test_lanes_of_one_warp_race_only_with_different_values() -> None:
    world = World()
    world.write(0, [0, 1], [8, 8], [3, 3])
    assert not world.findings
    world.write(1, [0, 1], [8, 8], [3, 4])
    assert world.kinds() == [Kind.RACE]


def test_a_race_is_seen_across_many_accesses_in_between() -> None:
    world = World()
    world.write(0, [0], [0])
    for turn in range(200):
        world.write(1, [0], [4 + turn % 16 * 4])
    world.read(2, [4], [0])
    assert world.kinds() == [Kind.RACE]
    assert "warp 0 at line 10" in world.messages()[0]


def test_accesses_of_other_bytes_do_not_conflict() -> None:
    world = World(granule=1)
    world.shared.store(world.access(0, [0]), np.array([0]), np.array([1], np.uint8), 1)
    world.shared.store(world.access(0, [4]), np.array([1]), np.array([2], np.uint8), 1)
    world.shared.store(world.access(0, [4]), np.array([2]), np.array([2], np.uint16), 2)
    world.shared.load(world.access(1, [0]), np.array([0]), 1)
    world.shared.load(world.access(1, [4]), np.array([2]), 2)
    assert not world.findings
    world.shared.load(world.access(2, [0]), np.array([0]), 4)
    assert world.kinds() == [Kind.RACE]


def test_atomics_race_with_plain_accesses_only() -> None:
    world = World()
    world.write(0, [0], [0], [0])
    world.sync()
    for warp in (0, 1):
        words, index, good = world.shared.update(world.access(1, [warp * 4]), np.array([0]), 4)
        words[index[good]] += np.uint32(1)
    assert not world.findings
    assert world.read(2, [0], [0]).tolist() == [2]
    assert world.kinds() == [Kind.RACE]
    world.sync()
    world.read(3, [0, 4], [0, 0])
    assert len(world.findings) == 1
    world.shared.update(world.access(4, [0]), np.array([0]), 4)
    assert [finding.instruction.index for finding in world.findings.all()] == [2, 4]


# --- memory nobody wrote, bounds, alignment ------------------------------------------------------


def test_reading_what_nobody_wrote_is_a_finding() -> None:
    world = World()
    world.write(0, [0], [0])
    world.read(1, [0, 1], [0, 4])
    assert world.kinds() == [Kind.UNINITIALIZED]
    assert world.messages() == ["read of shared memory at byte 4"]


def test_half_a_written_word_is_not_written() -> None:
    world = World(granule=2)
    world.shared.store(world.access(0, [0]), np.array([0]), np.array([1], np.uint16), 2)
    world.read(1, [0], [0])
    assert world.kinds() == [Kind.UNINITIALIZED]


def test_outside_the_window_reads_zero_and_writes_nothing() -> None:
    world = World(blocks=2)
    world.write(0, [0, 1, 8], [252, 256, 0])
    assert world.kinds() == [Kind.OUT_OF_BOUNDS]
    assert world.messages() == ["write of 4 bytes at byte 256 of shared memory, which has 256"]
    assert world.read(1, [0, 1], [252, -4]).tolist() == [0, 0]
    assert world.findings.all()[1].kind is Kind.OUT_OF_BOUNDS


def test_a_misaligned_access_is_reported() -> None:
    world = World(granule=1)
    world.read(0, [0], [2])
    assert Kind.MISALIGNED in world.kinds()
    world.shared.load(world.access(1, [0]), np.array([4]), 4, 4, align=8)
    assert [f.kind for f in world.findings.all() if f.instruction.index == 1] == [Kind.MISALIGNED]


# --- asynchronous operations ---------------------------------------------------------------------


@pytest.mark.parametrize("reader", [0, 4])
def test_reading_under_an_asynchronous_copy_is_a_missing_wait(reader: int) -> None:
    world = World()
    copied = world.shared.begin_copy(world.access(0, [0]), np.array([0]), 16)
    world.read(1, [reader], [12])
    assert world.kinds() == [Kind.MISSING_WAIT]
    values = np.arange(4, dtype=np.uint32)[None]
    world.shared.end_copy(world.access(0, [0]), copied, np.array([0]), values, 4)
    world.sync()
    assert world.read(2, [reader], [12]).tolist() == [3]
    assert len(world.findings) == 1


def test_a_copy_that_arrived_needs_a_barrier_for_other_warps() -> None:
    world = World()
    copied = world.shared.begin_copy(world.access(0, [0]), np.array([0]), 4)
    world.shared.end_copy(world.access(0, [0]), copied, np.array([0]), np.array([5], np.uint32), 4)
    assert world.read(1, [0], [0]).tolist() == [5]
    assert not world.findings
    world.read(2, [4], [0])
    assert world.kinds() == [Kind.RACE]


def test_copying_over_what_others_may_still_read_is_a_race() -> None:
    world = World()
    world.write(0, [4], [0])
    world.sync()
    world.read(1, [4], [0])
    world.shared.begin_copy(world.access(2, [0]), np.array([0]), 4)
    assert world.kinds() == [Kind.RACE]


def test_copies_end_lane_by_lane() -> None:
    world = World()
    at = np.array([0, 16])
    copied = world.shared.begin_copy(world.access(0, [0, 1]), at, 16)
    values = np.arange(8, dtype=np.uint32).reshape(2, 4)
    world.shared.end_copy(world.access(0, [1]), copied[1:], at[1:], values[1:], 4)
    assert world.read(1, [0], [16]).tolist() == [4]
    assert not world.findings
    world.read(2, [0], [0])
    assert world.kinds() == [Kind.MISSING_WAIT]


def test_copying_elsewhere_disturbs_nobody() -> None:
    world = World(shared_bytes=4096)
    world.write(0, _EVERY, _OWN)
    world.shared.begin_copy(world.access(1, [0]), np.array([32]), 16)
    world.shared.begin_copy(world.access(1, [0]), np.array([2048]), 16)
    world.read(2, _EVERY, _OWN)
    assert not world.findings


def test_writing_under_an_asynchronous_read_is_a_missing_wait() -> None:
    world = World()
    world.write(0, [0], [0])
    held = world.shared.begin_read(world.access(1, [0]), np.array([0]), 4)
    world.read(2, [0], [0])
    assert not world.findings
    world.write(3, [0], [0])
    assert world.kinds() == [Kind.MISSING_WAIT]
    world.shared.end_read(world.access(1, [0]).instruction, np.array([0]), held)
    world.write(4, [0], [0])
    assert len(world.findings) == 1


def test_an_asynchronous_read_is_over_for_others_at_the_barrier_after_its_end() -> None:
    world = World()
    world.write(0, [0], [0])
    access = world.access(1, [0])
    held = world.shared.begin_read(access, np.array([0]), 4)
    world.sync()
    world.shared.end_read(access.instruction, np.array([0]), held)
    world.write(2, [4], [0])
    assert world.kinds() == [Kind.RACE]
    world.sync()
    world.write(3, [4], [0])
    assert len(world.findings) == 1


# --- the whole, against a model ------------------------------------------------------------------


@given(
    actions=st.lists(
        st.tuples(st.sampled_from(["read", "write", "sync"]), st.integers(0, 2), st.integers(0, 3)),
        max_size=30,
    )
)
@settings(max_examples=150, deadline=None)
def test_races_are_those_of_the_definition(actions: list[tuple[str, int, int]]) -> None:
    """Two accesses of a place by two warps, one a write, without a barrier in between.

    Up to the first: a write that races stands for what it overwrote.
    """
    world = World(warps=3, lanes=1)
    world.write(0, [0, 1, 2, 0], [0, 4, 8, 12])
    world.sync()
    past: list[tuple[str, int, int]] = []
    for number, (action, warp, place) in enumerate(actions):
        if action == "sync":
            past = []
            world.sync()
            continue
        race = any(
            other != warp and there == place and "write" in (action, what)
            for what, other, there in past
        )
        past.append((action, warp, place))
        before = len(world.findings)
        if action == "read":
            world.read(number + 1, [warp], [place * 4])
        else:
            world.write(number + 1, [warp], [place * 4])
        assert (len(world.findings) > before) == race
        if race:
            return
