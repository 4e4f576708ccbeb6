"""Placement against its definition: no two buffers share a byte at one moment."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tiledsl.transforms.shared_plan import Lifetime, place


def lifetime(start: int, length: int, size: int, alignment: int) -> Lifetime:
    return Lifetime(start, start + length, size, alignment)


lifetimes = st.builds(
    lifetime,
    st.integers(0, 20),
    st.integers(0, 10),
    st.sampled_from([4, 16, 100, 1024, 3000, 8192]),
    st.sampled_from([4, 16, 128]),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(lifetimes, max_size=10), st.sampled_from([0, 16, 1024]))
def test_buffers_that_live_at_once_share_no_byte(buffers: list[Lifetime], lone: int):
    placed = place(buffers, lone)
    spans = [
        (offset, offset + one.bytes) for offset, one in zip(placed.offsets, buffers, strict=True)
    ]
    assert placed.bytes == max((end for _, end in spans), default=0)
    for i, (one, (start, end)) in enumerate(zip(buffers, spans, strict=True)):
        assert start % one.alignment == 0
        for other, (other_start, other_end) in list(zip(buffers, spans, strict=True))[:i]:
            if start < other_end and other_start < end:
                assert not one.meets(other)
                assert min(one.bytes, other.bytes) > lone


def test_buffers_of_different_times_share_their_bytes():
    placed = place([Lifetime(0, 4, 4096), Lifetime(5, 9, 8192), Lifetime(0, 9, 64)])
    assert placed.offsets == (0, 0, 8192)
    assert placed.bytes == 8256


def test_small_buffers_keep_to_themselves_when_asked():
    placed = place([Lifetime(0, 1, 64), Lifetime(5, 6, 64)], lone_bytes=64)
    assert sorted(placed.offsets) == [0, 64]
