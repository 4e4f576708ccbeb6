"""Every operation on intervals against all the integers in them."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledsl.transforms.interval import Interval

intervals = st.tuples(st.integers(-9, 9), st.integers(-9, 9)).map(
    lambda ends: Interval(min(ends), max(ends))
)
Binary = Callable[[Interval, Interval], Interval | None]


def _values(interval: Interval) -> range:
    return range(interval.lo, interval.hi + 1)


def _truncated(a: int, b: int) -> int:
    return int(a / b)


BINARY: list[tuple[Binary, Callable[[int, int], int], bool]] = [
    (lambda a, b: a + b, lambda x, y: x + y, False),
    (lambda a, b: a - b, lambda x, y: x - y, False),
    (lambda a, b: a * b, lambda x, y: x * y, False),
    (Interval.minimum, min, False),
    (Interval.maximum, max, False),
    (Interval.floordiv, lambda x, y: x // y if y else 0, False),
    (Interval.floormod, lambda x, y: x % y if y else 0, False),
    (Interval.truncdiv, _truncated, True),
    (Interval.truncmod, lambda x, y: x - y * _truncated(x, y), True),
    (Interval.bit_and, lambda x, y: x & y, False),
    (Interval.bit_or, lambda x, y: x | y, False),
    (Interval.bit_xor, lambda x, y: x ^ y, False),
]


@pytest.mark.parametrize(("operation", "on_integers", "nonzero"), BINARY)
@settings(max_examples=60, deadline=None)
@given(intervals, intervals)
def test_a_result_holds_every_value(
    operation: Binary,
    on_integers: Callable[[int, int], int],
    nonzero: bool,
    a: Interval,
    b: Interval,
):
    found = operation(a, b)
    for x in _values(a):
        for y in _values(b):
            if found is not None and (y or not nonzero):
                assert on_integers(x, y) in found


@settings(max_examples=60, deadline=None)
@given(intervals, st.integers(0, 5), st.integers(0, 5))
def test_shifts_hold_every_value(a: Interval, low: int, more: int):
    counts = Interval(low, low + more)
    for x in _values(a):
        for count in _values(counts):
            assert x << count in a.left_shift(counts)
            assert x >> count in a.right_shift(counts)


@settings(max_examples=60, deadline=None)
@given(intervals, st.sampled_from([2, 3, 4, 8]))
def test_reading_bits_otherwise_holds_every_value(a: Interval, width: int):
    narrow = a.wrapped(width)
    for x in _values(a):
        bits = x % (1 << width)
        stored = bits - (1 << width) if bits >> (width - 1) else bits
        assert stored in narrow
        assert bits in narrow.unsigned(width)
        assert stored in narrow.unsigned(width).signed(width)


@settings(max_examples=60, deadline=None)
@given(intervals, st.sampled_from([2, 4, 8]))
def test_no_multiple_is_lost(a: Interval, of: int):
    assert all(x in a.multiples(of) for x in _values(a) if x % of == 0)


def test_a_range_that_fits_is_kept_and_one_that_may_wrap_is_void():
    assert Interval(0, 127).wrapped(8) == Interval(0, 127)
    assert Interval(0, 128).wrapped(8) == Interval(-128, 127)


def test_a_bool_reads_as_zero_or_one():
    assert Interval.of_width(1) == Interval(0, 1)


def test_contradicting_bounds_leave_what_was_known():
    assert Interval(0, 3).meet(Interval(5, 9)) == Interval(0, 3)
