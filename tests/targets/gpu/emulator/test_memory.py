"""Device memory: what an access moves, and which accesses are faults."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.targets.gpu.emulator.worlds import World
from tiledsl.targets.gpu.emulator.findings import Kind
from tiledsl.targets.gpu.emulator.memory import UNSIGNED, Named


def _addresses(base: int, offsets: Any) -> Any:
    return np.uint64(base) + np.asarray(offsets, np.uint64)


@pytest.fixture
def world() -> World:
    return World()


@given(
    size=st.sampled_from([1, 2, 4, 8]),
    count=st.sampled_from([1, 2, 3, 4]),
    align=st.sampled_from([1, 2, 4, 8, 16]),
    seed=st.integers(0, 99),
)
@settings(max_examples=80, deadline=None)
def test_what_is_stored_is_loaded_at_any_width_and_alignment(
    size: int, count: int, align: int, seed: int
) -> None:
    world, rng = World(), np.random.default_rng(seed)
    base = world.memory.allocate(4096, written=True)
    slots = rng.permutation(4096 // 64)[:8] * 64
    address = _addresses(base, slots + rng.integers(0, 16 // align, 8) * align)
    shape = (8, count) if count > 1 else 8
    values = rng.integers(0, 2**63, shape, np.uint64).astype(UNSIGNED[size])
    world.memory.store(world.access(), address, values, size, count, align)
    loaded = world.memory.load(world.access(), address, size, count, align)
    assert loaded.dtype == UNSIGNED[size]
    np.testing.assert_array_equal(loaded, values)
    for lane in range(8):
        raw = world.memory.bytes_at(int(address[lane]), size * count)
        assert raw.tobytes() == values[lane].tobytes()
    assert not world.findings


def test_bits_of_signalling_nans_pass_unchanged(world: World) -> None:
    base = world.memory.allocate(64, written=True)
    bits = np.array([[0x7F800001, 0xFFF00000, 0x00000001, 0x7FF00000]], np.uint32)
    world.memory.store(world.access(0, [0]), _addresses(base, [0]), bits, 4, 4)
    np.testing.assert_array_equal(
        world.memory.load(world.access(0, [0]), _addresses(base, [0]), 4, 4), bits
    )


def test_twelve_bytes_need_an_alignment_of_four(world: World) -> None:
    base = world.memory.allocate(256)
    values = np.arange(6, dtype=np.uint32).reshape(2, 3)
    address = _addresses(base, [4, 16])
    world.memory.store(world.access(0, [0, 1]), address, values, 4, 3)
    np.testing.assert_array_equal(world.memory.load(world.access(1, [0, 1]), address, 4, 3), values)
    assert not world.findings


def test_arrays_that_overlap_are_one_memory(world: World) -> None:
    base = world.memory.allocate(64, written=True)
    words = np.array([0x01020304, 0x05060708], np.uint32)
    world.memory.store(world.access(0, [0, 1]), _addresses(base, [0, 4]), words, 4)
    halves = world.memory.load(world.access(0, [0, 1, 2]), _addresses(base, [0, 2, 4]), 2)
    assert [hex(half) for half in halves] == ["0x304", "0x102", "0x708"]


def test_the_higher_lane_wins_where_two_write_one_element(world: World) -> None:
    base = world.memory.allocate(64, written=True)
    world.memory.store(
        world.access(0, [0, 1, 2]), _addresses(base, [8, 8, 8]), np.array([1, 2, 3], np.uint32), 4
    )
    assert world.memory.load(world.access(0, [0]), _addresses(base, [8]), 4)[0] == 3


def test_what_misses_an_array_is_reported_and_does_nothing(world: World) -> None:
    first, second = world.memory.allocate(64, written=True), world.memory.allocate(64, written=True)
    world.memory.name([Named("x", first, first + 64, 4), Named("y", second, second + 64, 4)])
    values = np.array([7, 8, 9], np.uint32)
    world.memory.store(world.access(0, [0, 1, 2]), _addresses(first, [60, 64, 68]), values, 4)
    assert world.kinds() == [Kind.OUT_OF_BOUNDS]
    assert world.messages() == [
        "write of 4 bytes at argument `x`, element 16 of an array of 16 (0 to 15)"
    ]
    assert world.findings.all()[0].times == 2
    assert world.memory.load(world.access(1, [0]), _addresses(first, [60]), 4)[0] == 7
    assert not world.memory.bytes_at(second, 64).any()
    loaded = world.memory.load(world.access(1, [0, 1]), _addresses(first, [60, 64]), 4)
    assert loaded.tolist() == [7, 0]


@pytest.mark.parametrize("address", [0, 8, 1 << 46, (1 << 47) - 8, 1 << 60, 2**64 - 8])
def test_wild_addresses_are_findings_and_no_crash(world: World, address: int) -> None:
    world.memory.allocate(64)
    at = np.array([address], np.uint64)
    assert world.memory.load(world.access(0, [0]), at, 8).tolist() == [0]
    world.memory.store(world.access(1, [0]), at, np.array([1], np.uint64), 8)
    assert world.kinds() == [Kind.OUT_OF_BOUNDS, Kind.OUT_OF_BOUNDS]


def test_with_no_allocation_everything_is_out_of_bounds(world: World) -> None:
    at = np.array([1 << 40], np.uint64)
    assert world.memory.load(world.access(0, [0]), at, 4).tolist() == [0]
    assert world.kinds() == [Kind.OUT_OF_BOUNDS]
    assert world.messages() == ["read of 4 bytes at address 0x10000000000"]


def test_the_end_of_an_array_is_exact_to_the_byte(world: World) -> None:
    base = world.memory.allocate(10, written=True)
    world.memory.load(world.access(0, [0]), _addresses(base, [6]), 4, align=2)
    assert not world.findings
    world.memory.load(world.access(0, [0]), _addresses(base, [8]), 4)
    assert world.kinds() == [Kind.OUT_OF_BOUNDS]


def test_before_the_beginning_is_named_by_the_array_that_follows(world: World) -> None:
    base = world.memory.allocate(64)
    world.memory.name([Named("x", base, base + 64, 4)])
    world.memory.store(world.access(0, [0]), _addresses(base - 4, [0]), np.array([1], np.uint32), 4)
    assert world.messages() == [
        "write of 4 bytes at argument `x`, element -1 of an array of 16 (0 to 15)"
    ]


def test_a_misaligned_access_is_reported_with_its_address(world: World) -> None:
    base = world.memory.allocate(64, written=True)
    loaded = world.memory.load(world.access(0, [0, 1]), _addresses(base, [0, 4]), 4, 2)
    assert loaded.shape == (2, 2)
    assert world.kinds() == [Kind.MISALIGNED]
    assert world.messages() == [
        "read of 8 bytes that asks for alignment to 8 at "
        f"address {base + 4:#x}, address {base + 4:#x}"
    ]


def test_reading_what_nobody_wrote_is_a_finding(world: World) -> None:
    base = world.memory.allocate(64)
    world.memory.name([Named("x", base, base + 64, 4)])
    world.memory.store(world.access(0, [0]), _addresses(base, [8]), np.array([1], np.uint32), 4)
    world.memory.load(world.access(1, [0]), _addresses(base, [8]), 4)
    assert not world.findings
    world.memory.load(world.access(2, [0, 1]), _addresses(base, [8, 12]), 4)
    assert world.kinds() == [Kind.UNINITIALIZED]
    assert world.messages() == ["read of 4 bytes at argument `x`, element 3 of 16"]


def test_what_the_host_filled_counts_as_written(world: World) -> None:
    base = world.memory.allocate(64)
    world.memory.mark_written(base, 16)
    world.memory.load(world.access(0, [0]), _addresses(base, [12]), 4)
    assert not world.findings
    world.memory.load(world.access(0, [0]), _addresses(base, [16]), 4)
    assert world.kinds() == [Kind.UNINITIALIZED]
    world.memory.mark_written(base, 64)
    world.memory.load(world.access(1, [0]), _addresses(base, [32]), 4)
    assert len(world.findings) == 1


def test_what_the_host_calls_unwritten_is(world: World) -> None:
    base = world.memory.allocate(64, written=True)
    world.memory.mark_unwritten(base + 8, 8)
    world.memory.load(world.access(0, [0, 1]), _addresses(base, [4, 16]), 4)
    assert not world.findings
    world.memory.load(world.access(0, [0]), _addresses(base, [12]), 4)
    assert world.kinds() == [Kind.UNINITIALIZED]


def test_a_snapshot_is_everything(world: World) -> None:
    base = world.memory.allocate(8)
    before = world.memory.snapshot()
    world.memory.store(world.access(0, [0]), _addresses(base, [4]), np.array([7], np.uint32), 4)
    assert world.memory.snapshot() != before
    world.memory.restore(before)
    assert world.memory.snapshot() == before
    world.memory.load(world.access(1, [0]), _addresses(base, [4]), 4)
    assert world.kinds() == [Kind.UNINITIALIZED]


def test_lanes_in_different_arrays_may_share_an_access(world: World) -> None:
    first, second = world.memory.allocate(64), world.memory.allocate(64)
    at = np.array([first, second], np.uint64)
    world.memory.store(world.access(0, [0, 1]), at, np.array([1, 2], np.uint32), 4)
    assert world.memory.load(world.access(0, [0, 1]), at, 4).tolist() == [1, 2]
    assert not world.findings


def test_an_atomic_gets_the_words_and_the_lanes_that_are_good(world: World) -> None:
    base = world.memory.allocate(16, written=True)
    words, index, good = world.memory.update(
        world.access(0, [0, 1, 2]), _addresses(base, [0, 16, 4]), 4
    )
    words[index[good]] += np.array([5, 6], np.uint32)
    assert good.tolist() == [True, False, True]
    assert world.memory.load(world.access(1, [0, 1]), _addresses(base, [0, 4]), 4).tolist() == [
        5,
        6,
    ]
    assert world.kinds() == [Kind.OUT_OF_BOUNDS]


def test_no_lane_at_all_is_no_access(world: World) -> None:
    none = np.zeros(0, np.uint64)
    assert world.memory.load(world.access(0, []), none, 4, 4).shape == (0, 4)
    assert world.memory.load(world.access(0, []), none, 4).shape == (0,)
    world.memory.store(world.access(0, []), none, np.zeros(0, np.uint32), 4)
    assert not world.memory.update(world.access(0, []), none, 4)[2].any()


def test_memory_that_was_freed_is_out_of_bounds(world: World) -> None:
    base = world.memory.allocate(64, written=True)
    world.memory.free(base)
    world.memory.load(world.access(0, [0]), _addresses(base, [0]), 4)
    assert world.kinds() == [Kind.OUT_OF_BOUNDS]
    with pytest.raises(KeyError):
        world.memory.free(base)


def test_a_forked_process_writes_the_same_bytes(world: World) -> None:
    base = world.memory.allocate(64, written=True)
    child = os.fork()
    if not child:
        world.memory.store(
            world.access(0, [0]), _addresses(base, [0]), np.array([42], np.uint32), 4
        )
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert world.memory.load(world.access(0, [0]), _addresses(base, [0]), 4)[0] == 42
