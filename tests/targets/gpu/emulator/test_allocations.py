"""What lies where in the device's memory, what of it was written, and what it is called.

Which accesses to it are faults is `test_memory`'s.
"""

from __future__ import annotations

import mmap
import os
import weakref
from itertools import pairwise

import numpy as np
import pytest

from tiledsl.targets.gpu.emulator.allocations import Allocations, Named


def _written(allocations: Allocations, address: int) -> list[int] | None:
    """Return which bytes of an allocation count as written, None for all."""
    allocation = allocations.find(address)
    assert allocation is not None
    return None if allocation.written is None else np.flatnonzero(allocation.written).tolist()


def test_an_allocation_begins_at_a_page_and_is_zero() -> None:
    allocations = Allocations()
    for size in (100, 100, 5000, 1):
        base = allocations.allocate(size)
        assert base % mmap.PAGESIZE == 0
        assert not allocations.bytes_at(base, size).any()
        allocations.bytes_at(base, size)[:] = 0xFF
        allocations.free(base)  # so that the next one may lie here


def test_between_two_allocations_lie_65536_bytes_of_nobody() -> None:
    allocations = Allocations()
    lows = sorted(allocations.allocate(4096) for _ in range(20))
    for low, following in pairwise(lows):
        assert following - (low + 4096) >= 1 << 16


def test_an_allocation_holds_its_bytes_from_the_first_to_the_last() -> None:
    allocations = Allocations()
    sizes = {allocations.allocate(size): size for size in (10, 1, 7)}
    middle = sorted(sizes)[1]
    allocations.free(middle)
    del sizes[middle]
    sizes[allocations.allocate(5)] = 5  # which may lie in the gap
    for base, size in sizes.items():
        first, last = allocations.find(base), allocations.find(base + size - 1)
        assert first is not None
        assert first is last
        assert (first.low, first.high) == (base, base + size)
        assert allocations.find(base - 1) is None
        assert allocations.find(base + size) is None


def test_an_allocation_of_no_bytes_has_an_address_and_holds_nothing() -> None:
    allocations = Allocations()
    base = allocations.allocate(0)
    assert allocations.find(base) is None
    allocations.mark_written(base, 0)
    allocations.mark_unwritten(base, 0)
    allocations.restore(allocations.snapshot())
    assert [len(one) for one in allocations.contents()] == [0]
    allocations.free(base)
    assert allocations.contents() == []


def test_only_where_an_allocation_begins_it_can_be_freed() -> None:
    allocations = Allocations()
    first, second = allocations.allocate(64), allocations.allocate(64)
    for address in (first + 1, first - 1, 0):
        with pytest.raises(KeyError):
            allocations.free(address)
    allocations.free(first)
    assert allocations.find(first) is None
    assert allocations.find(second) is not None


def test_what_is_freed_is_given_back_and_its_accesses_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allocations, forgotten = Allocations(), list[int]()
    monkeypatch.setattr(allocations.races, "forget", forgotten.append)
    base = allocations.allocate(64)
    allocation = allocations.find(base)
    assert allocation is not None
    mapping = weakref.ref(allocation.mapping)
    del allocation
    assert mapping() is not None
    allocations.free(base)
    assert mapping() is None
    assert forgotten == [base]


# --- what was written ----------------------------------------------------------------------------


def test_bytes_are_marked_each_for_itself() -> None:
    allocations = Allocations()
    base, other = allocations.allocate(16), allocations.allocate(16)
    assert _written(allocations, base) == []
    allocations.mark_written(base + 4, 8)
    assert _written(allocations, base) == [4, 5, 6, 7, 8, 9, 10, 11]
    allocations.mark_unwritten(base + 6, 4)
    assert _written(allocations, base) == [4, 5, 10, 11]
    assert _written(allocations, other) == []


def test_in_an_allocation_that_is_written_all_but_what_is_called_unwritten_stays_so() -> None:
    allocations = Allocations()
    base = allocations.allocate(8, written=True)
    allocations.mark_written(base, 4)
    allocations.mark_unwritten(base, 0)
    assert _written(allocations, base) is None
    allocations.mark_unwritten(base + 2, 3)
    assert _written(allocations, base) == [0, 1, 5, 6, 7]


def test_marking_what_nobody_allocated_marks_nothing() -> None:
    allocations = Allocations()
    base = allocations.allocate(8)
    for outside in (base - 8, base + 8):
        allocations.mark_written(outside, 4)
        allocations.mark_unwritten(outside, 4)
    assert _written(allocations, base) == []


@pytest.mark.parametrize("written", [False, True])
def test_what_a_child_process_marks_is_marked_here(written: bool) -> None:
    allocations = Allocations()
    base = allocations.allocate(8, written=written)
    allocations.mark_unwritten(base, 8)
    child = os.fork()
    if not child:
        allocations.mark_written(base + 2, 3)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert _written(allocations, base) == [2, 3, 4]


# --- contents ------------------------------------------------------------------------------------


def test_contents_are_the_bytes_themselves_by_address() -> None:
    allocations = Allocations()
    bases = sorted(allocations.allocate(size) for size in (4, 4))
    low, high = allocations.contents()
    allocations.bytes_at(bases[0] + 1, 2)[:] = 7
    high[3] = 9
    assert low.tolist() == [0, 7, 7, 0]
    assert allocations.bytes_at(bases[1], 4).tolist() == [0, 0, 0, 9]


@pytest.mark.parametrize(
    ("written", "change", "size"),
    [(False, "mark_written", 2), (False, "mark_written", 8), (True, "mark_unwritten", 2)],
)
def test_restoring_puts_back_what_counts_as_written(written: bool, change: str, size: int) -> None:
    allocations = Allocations()
    base = allocations.allocate(8, written=written)
    before, flags = allocations.snapshot(), _written(allocations, base)
    getattr(allocations, change)(base, size)
    assert _written(allocations, base) != flags
    allocations.restore(before)
    assert _written(allocations, base) == flags


def test_restoring_leaves_what_was_allocated_and_freed_since() -> None:
    allocations = Allocations()
    kept, freed = allocations.allocate(4), allocations.allocate(4)
    before = allocations.snapshot()
    allocations.free(freed)
    since = allocations.allocate(8)
    for address, size in ((kept, 4), (since, 8)):
        allocations.bytes_at(address, size)[:] = 5
    allocations.restore(before)
    assert allocations.bytes_at(kept, 4).tolist() == [0] * 4
    assert allocations.bytes_at(since, 8).tolist() == [5] * 8
    assert len(allocations.contents()) == 2


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (1000, "argument `x`, element 0 of 4"),
        (1007, "argument `x`, element 1 (byte 3) of 4"),
        (1015, "argument `x`, element 3 (byte 3) of 4"),
        (1017, "argument `x`, element 4 (byte 1) of an array of 4 (0 to 3)"),
        (1030, "argument `y`, element -5 of an array of 3 (0 to 2)"),
        (1042, "argument `y`, element 1 of 3"),
        (1046, "argument `z`, element 0 of 2"),
        (990, "argument `x`, element -3 (byte 2) of an array of 4 (0 to 3)"),
        (2000, "argument `none`, element 0 of an empty array"),
        (5000, "argument `none`, element 1500 of an empty array"),
    ],
)
def test_an_address_is_described_by_the_nearest_array(address: int, expected: str) -> None:
    allocations = Allocations()
    named = [Named("x", 1000, 1016, 4), Named("y", 1040, 1046, 2), Named("z", 1046, 1048, 1)]
    allocations.name([Named("none", 2000, 2000, 2), *reversed(named)])
    assert allocations.describe(address) == expected


def test_the_names_are_those_of_the_last_launch() -> None:
    allocations = Allocations()
    allocations.name([Named("old", 1000, 1016, 4)])
    allocations.name([Named("new", 2000, 2016, 4)])
    assert allocations.describe(1000).startswith("argument `new`")
    allocations.name([])
    assert allocations.describe(1000) == "address 0x3e8"
