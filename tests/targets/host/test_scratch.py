"""Buffers in use at once do not overlap, and those that are not share memory."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tiledsl.targets.host.scratch import ALIGNMENT, Arena


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 500), st.integers(0, 6)), min_size=1, max_size=20))
def test_buffers_in_use_at_once_do_not_overlap(wanted: list[tuple[int, int]]) -> None:
    arena = Arena()
    for size, life in wanted:
        number = arena.add(size)
        if number >= life:
            arena.touch(number - life)
    total = arena.place()
    for i, a in enumerate(arena.slots):
        assert a.offset % ALIGNMENT == 0
        assert a.offset + a.size <= total
        for b in arena.slots[:i]:
            together = a.first <= b.last and b.first <= a.last
            apart = a.offset + a.size <= b.offset or b.offset + b.size <= a.offset
            assert apart or not together


def test_buffers_used_one_after_the_other_share_memory() -> None:
    arena = Arena()
    for _ in range(5):
        arena.touch(arena.add(640))
    assert arena.place() == 640


def test_what_a_loop_reads_stays_until_its_end() -> None:
    arena = Arena()
    before = arena.add(64)
    with arena.loop():
        arena.touch(before)
        arena.touch(arena.add(64))
    assert arena.place() == 128
