"""Vector clocks: what one warp has seen of another."""

import numpy as np

from tiledsl.targets.gpu.emulator.clocks import Clocks


def _warps(*which: int) -> np.ndarray[tuple[int, ...], np.dtype[np.intp]]:
    return np.array(which, np.intp)


def test_at_first_a_warp_has_seen_only_itself() -> None:
    clocks = Clocks(2, 3)
    assert clocks.seen[4].tolist() == [0, 1, 0, 0]
    assert clocks.now(_warps(0, 4)).tolist() == [1, 1]
    assert clocks.times().tolist() == [[1, 1, 1], [1, 1, 1]]
    assert not clocks.common().any()


def test_release_begins_a_new_time_that_what_was_released_does_not_know() -> None:
    clocks = Clocks(1, 2)
    known = clocks.release(_warps(0))
    assert known.tolist() == [[1, 0, 0]]
    assert clocks.now(_warps(0)).tolist() == [2]
    clocks.acquire(_warps(1), known)
    assert clocks.seen[1].tolist() == [1, 1, 0]
    assert clocks.common().tolist() == [[1, 0]]


def test_acquiring_never_forgets() -> None:
    clocks = Clocks(1, 2)
    old = clocks.release(_warps(0))
    clocks.acquire(_warps(1), clocks.release(_warps(0)))
    clocks.acquire(_warps(1), old)
    assert clocks.seen[1].tolist() == [2, 1, 0]


def test_warps_that_have_ended_need_not_know() -> None:
    clocks = Clocks(1, 3)
    clocks.acquire(_warps(1), clocks.release(_warps(0)))
    assert clocks.common().tolist() == [[0, 0, 0]]
    clocks.ended = lambda: np.array([False, False, True])
    clocks.acquire(_warps(1), clocks.release(_warps(0)))
    assert clocks.common().tolist() == [[2, 0, 0]]


def test_times_change_only_with_the_version() -> None:
    clocks = Clocks(1, 2)
    before = clocks.times()
    assert clocks.times() is before
    clocks.release(_warps(1))
    assert clocks.times().tolist() == [[1, 2]]
    assert before.tolist() == [[1, 1]]
