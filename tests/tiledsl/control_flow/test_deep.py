"""Room for deep recursion."""

import sys

import pytest

from tiledsl.control_flow.deep import with_room


def depth(n: int) -> int:
    return n and 1 + depth(n - 1)


def test_what_needs_more_frames_gets_them() -> None:
    before = sys.getrecursionlimit()
    assert with_room(lambda: depth(50)) == 50
    assert with_room(lambda: depth(50_000)) == 50_000
    assert sys.getrecursionlimit() == before


def test_what_has_no_end_is_told_and_other_errors_pass() -> None:
    with pytest.raises(RecursionError):
        with_room(lambda: depth(-1))

    def fail() -> None:
        depth(50_000)
        raise ValueError("told")

    with pytest.raises(ValueError, match="told"):
        with_room(fail)
