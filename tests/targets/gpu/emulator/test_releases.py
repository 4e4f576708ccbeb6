"""What orders programs: releases, and acquires after them, each beside a twin that lacks one."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.gpu.emulator.worlds import Device, World


def _go_on(device: Device, first: int) -> None:
    """Let a new cohort be executed, of which this is the first program."""
    world, findings = device.world, device.world.findings
    device.world = World(world.blocks, memory=device.memory, findings=findings, first=first)
    device.world.cohort.atomic = True


def test_a_release_and_an_acquire_after_it_order_programs() -> None:
    device = Device(blocks=2, atomic=True)
    device.store(0, 3)
    device.hand_over(0, 2)
    device.load(8, 3)
    device.store(8, 3, 5)
    assert device.races == 0


@pytest.mark.parametrize(
    "order", ["", "release", "acquire", "acquire release", "another's release acquire"]
)
def test_programs_that_lack_one_of_the_two_are_not_ordered(order: str) -> None:
    device = Device(blocks=2, atomic=True)
    device.release(0)  # before the store
    device.store(0, 3)
    for one in order.split():
        if one in ("release", "acquire"):
            warp = {"release": 2 if "another" in order else 0, "acquire": 2}[one]
            getattr(device, one)(warp)
    device.load(8, 3)
    assert device.races == 1
    device.store(8, 3, 5)
    assert device.races == 2


def test_barriers_pass_on_what_is_released_and_what_is_acquired() -> None:
    device = Device(blocks=2, atomic=True)
    device.store(4, 3)
    device.world.sync()
    device.hand_over(0, 2)
    device.load(12, 3)
    assert device.races == 1
    device.world.sync()
    device.load(12, 3)
    assert device.races == 1


def test_programs_pass_on_what_they_acquired() -> None:
    device = Device(blocks=3, atomic=True)
    device.store(0, 3)
    device.hand_over(0, 2)
    device.hand_over(2, 4)
    device.load(16, 3)
    assert device.races == 0


@pytest.mark.parametrize("times", [2, 20])
def test_an_acquire_before_the_release_that_matters_is_none(times: int) -> None:
    device = Device(blocks=2, atomic=True)
    for _ in range(times):
        device.store(0, 5)
        device.hand_over(0, 2)
    device.store(0, 3)
    device.release(0)
    device.load(8, 5)
    assert device.races == 0
    device.load(8, 3)
    assert device.races == 1


def test_programs_of_clusters_may_have_been_ordered_otherwise() -> None:
    device = Device(blocks=2, atomic=True)
    device.world.cohort.clustered = True
    device.store(0, 3)
    device.load(8, 3)
    assert device.races == 0


def test_before_any_release_an_acquire_orders_nothing() -> None:
    device = Device(blocks=2, atomic=True)
    device.store(0, 3)
    device.acquire(2)
    device.load(8, 3)
    assert device.races == 1


def test_warps_may_release_at_once() -> None:
    device = Device(blocks=3, atomic=True)
    for warp in range(3):  # two of the first program, one of the second
        device.store(4 * warp, warp)
    device.release(0, 1, 2)
    device.acquire(4)
    for warp in range(3):
        device.load(16, warp)
    assert device.races == 0


@pytest.mark.parametrize(("releases", "races"), [(1, 1), (3, 1), (4, 0), (9, 0)])
def test_whether_an_acquire_came_too_early_is_known_for_the_latest_releases(
    releases: int, races: int
) -> None:
    device = Device(blocks=2, atomic=True)
    device.acquire(2)
    device.store(0, 3)
    for _ in range(releases):
        device.release(0)
    device.load(8, 3)
    assert device.races == races


def test_releases_that_cover_no_more_of_a_warp_do_not_make_its_others_forgotten() -> None:
    device = Device(blocks=2, atomic=True)
    device.acquire(2)
    device.store(4, 3)
    device.world.sync()
    for _ in range(9):
        device.release(0)  # what warp 1 did, as the first time
    device.load(8, 3)
    assert device.races == 1


@pytest.mark.parametrize("acquires", [True, False])
@pytest.mark.parametrize(("earlier", "later"), [(0, 2), (2, 0)])
def test_programs_that_are_executed_later_acquire_what_others_released(
    earlier: int, later: int, acquires: bool
) -> None:
    device = Device(blocks=2, atomic=True)
    device.memory.races.begin(8)
    _go_on(device, earlier)
    device.store(4, 3)
    device.release(1)
    _go_on(device, later)
    if acquires:
        device.acquire(0)
    device.load(0, 3)
    assert device.races == (0 if acquires else 1)
    device.release(3)  # also the launch's last warp may


def test_releases_of_the_launch_before_do_not_count() -> None:
    device = Device(blocks=3, atomic=True)
    device.release(0)
    device.begin()
    _go_on(device, first=0)
    device.store(0, 3)
    device.hand_over(2, 4)
    device.load(16, 3)
    assert device.races == 1


def test_in_a_kernel_without_atomics_nothing_is_released_and_nothing_acquired() -> None:
    device = Device(blocks=2, atomic=False)
    before = device.world.clocks.seen.copy()
    device.hand_over(0, 2)
    np.testing.assert_array_equal(device.world.clocks.seen, before)
