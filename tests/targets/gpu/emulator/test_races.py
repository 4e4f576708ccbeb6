"""What is kept of accesses to shared memory, against a model that keeps everything.

What is found of it in whole accesses is `test_shared_memory`'s.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.targets.gpu.emulator.worlds import instruction
from tiledsl.targets.gpu.emulator.clocks import Clocks
from tiledsl.targets.gpu.emulator.races import Others, Race, Touch, Writes, granules_of

_WARPS = 3
_SHIFT = 2
_WINDOW = 8
"""Granules a block."""


def _touch(index: int, warps: list[int], granules: list[int], count: int = 1) -> Touch:
    """Return an access of `count` granules by each of some flat warps, in their own windows."""
    first = np.array(granules)
    flat = np.array(warps) // _WARPS * _WINDOW + first << _SHIFT
    low, high = int(first.min()) << _SHIFT, int(first.max()) + count << _SHIFT
    return Touch(instruction(index), np.array(warps), flat, count << _SHIFT, low, high)


def _pass_on(clocks: Clocks, giver: int, taker: int) -> None:
    """Let one warp learn what another one did and knows."""
    clocks.acquire(np.array([taker]), clocks.release(np.array([giver])))


def _histories(blocks: int = 1) -> tuple[Clocks, Writes, Others]:
    clocks = Clocks(blocks, _WARPS)
    count = blocks * _WINDOW
    return clocks, Writes(clocks, count, _SHIFT), Others(clocks, count, _SHIFT)


class Model:
    """Every access ever made, and for each warp of a block which of them it knows of."""

    def __init__(self, *, writes: bool) -> None:
        self.writes = writes
        self.known: list[set[int]] = [set() for _ in range(_WARPS)]
        self.own: list[set[int]] = [set() for _ in range(_WARPS)]
        self.last: dict[int, dict[int, int]] = {granule: {} for granule in range(_WINDOW)}
        """Of each granule: the last access by each warp; of writes, only the last of all."""

    def note(self, index: int, warp: int, granules: range) -> None:
        self.own[warp].add(index)
        for granule in granules:
            if self.writes:
                self.last[granule] = {}
            self.last[granule][warp] = index

    def pass_on(self, giver: int, taker: int) -> None:
        self.known[taker] |= self.known[giver] | self.own[giver]

    def races(self, warp: int, granules: range) -> tuple[int, set[tuple[int, int]]] | None:
        """Return the first granule that races, and whose accesses it races with: warp, index."""
        for place, granule in enumerate(granules):
            found = {
                (other, index)
                for other, index in self.last[granule].items()
                if other != warp and index not in self.known[warp]
            }
            if found:
                return place, found
        return None


_warp = st.integers(0, _WARPS - 1)
_what = st.sampled_from(["note", "ask"])
_steps = st.one_of(
    st.tuples(_what, _warp, st.integers(0, 3), st.just(1)),
    st.tuples(_what, _warp, st.sampled_from([0, 2]), st.just(2)),
    st.tuples(_what, _warp, st.just(0), st.just(4)),
    st.tuples(st.just("pass on"), _warp, _warp, st.just(0)),
)


@given(steps=st.lists(_steps, min_size=10, max_size=40), writes=st.booleans())
@settings(max_examples=300, deadline=None)
def test_what_races_is_what_the_warp_does_not_know_of(
    steps: list[tuple[str, int, int, int]], writes: bool
) -> None:
    clocks, *histories = _histories()
    history, model = histories[not writes], Model(writes=writes)
    for index, (what, warp, where, count) in enumerate(steps):
        if what == "pass on":
            _pass_on(clocks, warp, where)
            model.pass_on(warp, where)
            continue
        granules, touch = range(where, where + count), _touch(index, [warp], [where], count)
        if what == "note":
            history.note(touch)
            model.note(index, warp, granules)
            continue
        race, expected = history.races(touch), model.races(warp, granules)
        if expected is None:
            assert race is None
            continue
        place, by = expected
        assert race is not None
        assert race.lanes.tolist() == [True]
        assert int(race.granule[0]) == place
        assert (int(race.rank[0]), int(race.by[0])) in by


def _told(race: Race | None) -> list[tuple[int, int, int] | None]:
    """Return of each lane that races the granule, whose access it was, and the instruction."""
    assert race is not None
    rows: Any = zip(race.lanes, race.granule, race.rank, race.by, strict=True)
    return [(int(one), int(rank), int(by)) if bad else None for bad, one, rank, by in rows]


def test_each_lane_races_by_itself_in_its_own_window() -> None:
    _, writes, reads = _histories(blocks=2)
    for history in (writes, reads):
        history.note(_touch(7, [1, 5], [0, 3], 1))
        asked = history.races(_touch(9, [0, 1, 3, 4], [0, 0, 0, 0], 4))
        assert _told(asked) == [(0, 1, 7), None, (3, 2, 7), (3, 2, 7)]


def test_the_reader_that_is_named_read_by_the_instruction_that_is_named() -> None:
    _, _, reads = _histories()
    reads.note(_touch(5, [1], [0]))
    reads.note(_touch(6, [0], [0]))
    assert _told(reads.races(_touch(7, [0], [0]))) == [(0, 1, 5)]


def test_reads_are_remembered_however_many_follow() -> None:
    clocks, _, reads = _histories()
    reads.note(_touch(1, [1], [0]))
    for index in range(2, 200):
        reads.note(_touch(index, [2], [4]))
    assert _told(reads.races(_touch(200, [0], [0], 4))) == [(0, 1, 1)]
    _pass_on(clocks, 1, 0)
    assert reads.races(_touch(201, [0], [0], 4)) is None
    assert _told(reads.races(_touch(202, [0], [4], 4))) == [(0, 2, 199)]


def test_what_all_know_of_or_lies_elsewhere_takes_no_look_at_granules() -> None:
    clocks, writes, _ = _histories()
    assert not writes.may_race(_touch(1, [0], [0], 8))
    writes.note(_touch(1, [1], [2]))
    assert writes.may_race(_touch(2, [0], [0], 4))
    assert not writes.may_race(_touch(2, [0], [0], 2))
    assert not writes.may_race(_touch(2, [0], [3], 4))
    _pass_on(clocks, 1, 0)
    assert writes.may_race(_touch(3, [2], [2]))
    _pass_on(clocks, 1, 2)
    assert not writes.may_race(_touch(4, [2], [2]))


def test_it_takes_a_look_as_long_as_one_warp_does_not_know_of_one_access() -> None:
    clocks, writes, _ = _histories()
    writes.note(_touch(1, [1, 2], [0, 1]))
    _pass_on(clocks, 1, 0)
    writes.note(_touch(2, [1], [0]))
    _pass_on(clocks, 0, 2)  # of the first write only
    assert _told(writes.races(_touch(3, [0, 2], [0, 0]))) == [(0, 1, 2), (0, 1, 2)]
    _pass_on(clocks, 1, 0)
    _pass_on(clocks, 1, 2)
    assert _told(writes.races(_touch(4, [0, 2], [0, 0], 2))) == [(1, 2, 1), None]


@given(
    shift=st.integers(0, 3),
    firsts=st.lists(st.integers(0, 99), min_size=1),
    count=st.integers(1, 4),
)
@settings(max_examples=50, deadline=None)
def test_the_granules_of_an_access_are_those_its_bytes_lie_in(
    shift: int, firsts: list[int], count: int
) -> None:
    flat, width = np.array(firsts) << shift, count << shift
    expected = [sorted({byte >> shift for byte in range(at, at + width)}) for at in flat.tolist()]
    assert granules_of(flat, width, shift).tolist() == expected
