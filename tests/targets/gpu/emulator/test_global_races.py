"""Races on global memory, each planted beside its sound twin.

What orders programs is `test_releases`'s.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.gpu.emulator.worlds import Device, instruction
from tiledsl.dialects.diagnostics import KernelError


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


def test_a_strong_load_needs_no_order_and_reads_hinder_no_writes() -> None:
    device = Device(blocks=2, atomic=True)
    device.store(0, 3)
    device.load(8, 3, strong=True)
    device.load(0, 5)
    device.store(8, 5)
    assert device.races == 0
    device.load(4, 3, strong=True)  # in the program that stored it a barrier is missing
    assert device.races == 1


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
