"""Races on global memory, each planted beside its sound twin."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.targets.gpu.emulator.worlds import World, instruction
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.targets.gpu.emulator.findings import Kind
from tiledsl.targets.gpu.emulator.memory import Named


class Device:
    """A world with one array of 16 words, `x`; threads are numbered through all blocks."""

    def __init__(self, blocks: int = 1, atomic: bool = False) -> None:
        self.world = World(blocks=blocks, warps=2, lanes=4)
        self.world.cohort.atomic = atomic
        self.memory = self.world.memory
        self.base = self.memory.allocate(64, written=True)
        self.memory.name([Named("x", self.base, self.base + 64, 4)])
        self.begin()

    def begin(self) -> None:
        self.memory.races.begin(len(self.world.cohort.launch_warp))

    def store(self, thread: int, word: int, value: int = 1, width: int = 4) -> None:
        address = np.array([self.base + word * 4], np.uint64)
        dtype: Any = {1: np.uint8, 2: np.uint16, 4: np.uint32}[width]
        access = self.world.access(len(self.world.findings), [thread])
        self.memory.store(access, address, np.array([value], dtype), width)

    def load(self, thread: int, word: int, *, strong: bool = False) -> None:
        access = self.world.access(len(self.world.findings), [thread])
        access.instruction = replace(access.instruction, strong=strong)
        self.memory.load(access, np.array([self.base + word * 4], np.uint64), 4)

    def release(self, warp: int) -> None:
        self.memory.races.releases.release(self.world.cohort, np.array([warp]))

    def acquire(self, warp: int) -> None:
        self.memory.races.releases.acquire(self.world.cohort, np.array([warp]))

    @property
    def races(self) -> int:
        assert all(kind is Kind.RACE for kind in self.world.kinds())
        return len(self.world.findings)


def test_reading_another_warps_store_without_a_barrier_is_a_race() -> None:
    device = Device()
    device.store(0, 3)
    device.load(4, 3)
    assert device.world.messages() == [
        "read of argument `x`, element 3 of 16 by warp 1: nothing orders it after the write by "
        "warp 0 of this program"
    ]


def test_both_sides_of_a_race_are_named() -> None:
    device = Device(blocks=3)
    device.memory.races.begin(6, [instruction(i, f"op{i}", line=10 + i) for i in range(4)])
    device.memory.store(
        device.world.access(2, [12]), np.array([device.base], np.uint64), np.array([1]), 4
    )
    device.memory.store(
        device.world.access(3, [20]), np.array([device.base], np.uint64), np.array([2]), 4
    )
    (finding,) = device.world.findings.all()
    assert finding.message == (
        "write of argument `x`, element 0 of 16 by warp 1: nothing orders it after the write by "
        "warp 1 of program (1, 0, 0) at line 12 (`op2`)"
    )
    assert (finding.block, finding.thread) == ((2, 0, 0), 4)
    assert finding.other is not None
    assert finding.other.index == 2
    with pytest.raises(KernelError) as raised:
        device.world.findings.raise_or_warn("k", False)
    assert [text for text, _ in raised.value.notes] == ["the other access"]


def test_a_barrier_orders_warps_of_a_program() -> None:
    device = Device()
    device.store(0, 3)
    device.world.sync()
    device.load(4, 3)
    device.world.sync()
    device.store(0, 3, 2)
    assert device.races == 0


@pytest.mark.parametrize("reads_before", [1, 100])
def test_overwriting_what_another_warp_may_still_read_is_a_race(reads_before: int) -> None:
    device = Device()
    for _ in range(reads_before):  # before the first store nothing is marked yet
        device.load(4, 3)
    device.store(0, 3)
    assert device.races == 1
    device.store(0, 4)
    device.load(4, 5)
    device.store(0, 5)
    assert device.races == 2


def test_two_warps_that_store_different_values_race() -> None:
    device = Device()
    device.store(0, 3, 7)
    device.store(4, 3, 7)  # the same flag
    assert device.races == 0
    device.store(0, 3, 8)
    assert device.races == 1


def test_the_same_warp_may_do_as_it_likes() -> None:
    device = Device()
    device.store(0, 3, 1)
    device.load(1, 3)
    device.store(2, 3, 2)
    assert device.races == 0


def test_nothing_orders_programs() -> None:
    device = Device(blocks=2)
    device.store(0, 3)
    device.world.sync()
    device.load(8, 3)
    assert device.races == 1
    device.store(8, 3, 5)
    assert device.races == 2


def test_a_release_and_an_acquire_after_it_order_programs() -> None:
    device = Device(blocks=2, atomic=True)
    device.store(0, 3)
    device.release(0)
    device.acquire(2)
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
    device.release(0)
    device.acquire(2)
    device.load(12, 3)
    assert device.races == 1
    device.world.sync()
    device.load(12, 3)
    assert device.races == 1


def test_programs_pass_on_what_they_acquired() -> None:
    device = Device(blocks=3, atomic=True)
    device.store(0, 3)
    device.release(0)
    device.acquire(2)
    device.release(2)
    device.acquire(4)
    device.load(16, 3)
    assert device.races == 0


@pytest.mark.parametrize("times", [2, 20])
def test_an_acquire_before_the_release_that_matters_is_none(times: int) -> None:
    device = Device(blocks=2, atomic=True)
    for _ in range(times):
        device.store(0, 5)
        device.release(0)
    device.acquire(2)
    device.store(0, 3)
    device.release(0)
    device.load(8, 5)
    assert device.races == 0
    device.load(8, 3)
    assert device.races == 1


def test_a_strong_load_needs_no_order_and_reads_hinder_no_writes() -> None:
    device = Device(blocks=2, atomic=True)
    device.store(0, 3)
    device.load(8, 3, strong=True)
    device.load(0, 5)
    device.store(8, 5)
    assert device.races == 0
    device.load(4, 3, strong=True)  # in the program that stored it a barrier is missing
    assert device.races == 1


def test_programs_of_clusters_may_have_been_ordered_otherwise() -> None:
    device = Device(blocks=2, atomic=True)
    device.world.cohort.clustered = True
    device.store(0, 3)
    device.load(8, 3)
    assert device.races == 0


def test_releases_order_no_warps_of_a_program() -> None:
    device = Device(blocks=2, atomic=True)
    device.store(0, 3)
    device.release(0)
    device.acquire(1)
    device.load(4, 3)
    assert device.races == 1
    device.store(0, 3, 2)
    assert device.races == 2


def test_launches_are_ordered() -> None:
    device = Device(blocks=2)
    device.store(0, 3)
    device.begin()
    device.load(8, 3)
    device.store(4, 3, 6)
    assert device.races == 1  # with the read in this launch, not with the store before it


def test_neighbours_in_a_word_do_not_conflict() -> None:
    device = Device()
    device.store(0, 1, 5)
    address = np.array([device.base, device.base + 2], np.uint64)
    access = device.world.access(0, [0, 4])
    device.memory.store(access, address, np.array([1, 2], np.uint16), 2)
    device.memory.load(device.world.access(1, [0]), address[:1], 2)
    assert device.races == 0
    device.memory.load(device.world.access(2, [0]), address[1:], 2)
    assert device.races == 1


def test_lanes_that_store_different_values_to_one_element_race() -> None:
    device = Device()
    address = np.full(2, device.base, np.uint64)
    device.memory.store(device.world.access(0, [0, 1]), address, np.array([1, 1], np.uint32), 4)
    assert device.races == 0
    device.memory.store(device.world.access(0, [0, 1]), address, np.array([1, 2], np.uint32), 4)
    assert device.races == 1
    assert device.world.messages() == [
        "write of argument `x`, element 0 of 16, where thread 1 stores another value by the same "
        "instruction"
    ]


def test_memory_that_was_freed_is_forgotten() -> None:
    device = Device()
    device.store(0, 3)
    device.memory.free(device.base)
    device.memory.races.forget(12345)
    assert device.races == 0


def test_lanes_in_different_arrays_are_looked_at_apart() -> None:
    device = Device()
    other = device.memory.allocate(64, written=True)
    both = np.array([device.base, other], np.uint64)
    device.memory.store(device.world.access(0, [0, 1]), both, np.array([1, 2], np.uint32), 4)
    device.memory.load(device.world.access(1, [4]), both[1:], 4)
    assert device.races == 1
    device.memory.load(device.world.access(2, [4, 5]), both + np.uint64(4), 4)
    device.memory.store(
        device.world.access(2, [0]), both[:1] + np.uint64(4), np.array([9], np.uint32), 4
    )
    assert device.races == 2
