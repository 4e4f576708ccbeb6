"""Barriers: who must arrive, who may pass, and what they know then."""

from __future__ import annotations

import numpy as np

from tests.targets.gpu.emulator.worlds import World
from tiledsl.targets.gpu.emulator.barriers import BarrierWait


def _mask(world: World, *threads: int) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    mask = np.zeros(len(world.live), np.bool_)
    mask[list(threads)] = True
    return mask


def test_nobody_passes_until_all_have_arrived() -> None:
    world = World(blocks=1, warps=2, lanes=2)
    some, rest = _mask(world, 0, 1, 2), _mask(world, 3)
    phase = world.barriers.arrive(some, 0)
    assert not world.barriers.passed(some, 0, phase).any()
    later = world.barriers.arrive(rest, 0)
    assert world.barriers.passed(some, 0, phase).tolist() == some.tolist()
    assert world.barriers.passed(rest, 0, later).tolist() == rest.tolist()
    assert world.clocks.seen[0].tolist() == [2, 2, 0]  # warp 1 arrived twice
    assert world.clocks.seen[1][1] >= 2


def test_blocks_do_not_wait_for_each_other() -> None:
    world = World(blocks=2, warps=1, lanes=2)
    mine = _mask(world, 0, 1)
    phase = world.barriers.arrive(mine, 0)
    assert world.barriers.passed(mine, 0, phase).all() == mine.all()
    other = _mask(world, 2)
    phase = world.barriers.arrive(other, 0)
    assert not world.barriers.passed(other, 0, phase).any()


def test_a_counted_barrier_takes_so_many() -> None:
    world = World(blocks=1, warps=2, lanes=2)
    producer, consumer = _mask(world, 0, 1), _mask(world, 2, 3)
    phase = world.barriers.arrive(consumer, 5, expected=4)
    assert not world.barriers.passed(consumer, 5, phase).any()
    world.barriers.arrive(producer, 5, expected=4)
    assert world.barriers.passed(consumer, 5, phase).any()
    assert world.clocks.seen[1][0] == 1


def test_units_that_have_ended_are_not_waited_for() -> None:
    world = World(blocks=1, warps=2, lanes=2)
    there = _mask(world, 0, 1)
    phase = world.barriers.arrive(there, 0)
    world.live[2:] = False
    world.barriers.reconsider()
    assert world.barriers.passed(there, 0, phase).any()


def test_a_barrier_can_be_used_again() -> None:
    world = World(blocks=1, warps=2, lanes=2)
    for turn in range(3):
        world.sync()
        assert world.barriers.phase[0, 0] == turn + 1


def test_arriving_from_different_places_is_marked() -> None:
    world = World(blocks=1, warps=2, lanes=2)
    world.barriers.arrive(_mask(world, 0, 1), 0, at=3)
    world.barriers.arrive(_mask(world, 2, 3), 0, at=4)
    assert world.barriers.mixed[0, 0]
    world.barriers.arrive(world.live, 0, at=3)
    assert not world.barriers.mixed[0, 0]


def test_a_wait_says_what_for() -> None:
    world = World()
    wait = BarrierWait(world.barriers, 2, world.barriers.phase[:, 2].copy())
    assert wait.describe(world.live) == "barrier 2"
    assert not wait.ready(world.live).any()
    world.barriers.arrive(world.live, 2)
    assert wait.ready(world.live).all()
