"""Ranges: what stays Python's, hints, types, and messages; and the bounds of the loop made of one."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiledsl.language.traced import evaluated, traced
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import constexpr, float32, int8, int32, int64, uint8, uint32, uint64
from tiledsl.language import ranges
from tiledsl.language.builder import current
from tiledsl.language.trips import Trips

EXTREMES = st.one_of(
    st.integers(-9, 9), st.sampled_from([-(2**63), -(2**63) + 3, 2**63 - 1, 2**62, -(2**62)])
)


def test_a_range_of_python_numbers_is_pythons() -> None:
    assert ranges.python_range(1, constexpr(5)) == builtins.range(1, 5)
    assert ranges.static_range(constexpr(4)) == builtins.range(4)
    assert list(ranges.range(2, 8, 3)) == [2, 5]


def test_the_loop_variable_has_the_type_of_the_bounds() -> None:
    def types(a: Any, b: Any, c: Any, d: Any, e: Any) -> None:
        for bounds, dtype, counter in (
            ((a,), int32, int32),
            ((b,), int32, int32),
            ((a, b), int32, int32),
            ((c,), uint32, int64),
            ((b, c), uint32, int64),
            ((a, c), int64, int64),
            ((d, b), int64, int64),
            ((e,), uint64, int64),
            ((a, 2**40), int32, int32),
        ):
            made = ranges.python_range(*bounds)
            assert isinstance(made, ranges.range)
            assert (made.dtype, made.counter) == (dtype, counter), bounds

    traced(types, int8, uint8, uint32, int64, uint64)


@settings(max_examples=40, deadline=None)
@given(EXTREMES, EXTREMES, EXTREMES)
def test_trips_are_counted_without_overflow(start: int, stop: int, step: int) -> None:
    import numpy as np

    def count(a: Any, b: Any, c: Any) -> Any:
        first, trips, by = Trips(ranges.range(a, b, c)).bounds
        return first, trips, by

    low, trips, by = evaluated(count, *(np.int64(n) for n in (start, stop, step)))
    wanted = max(0, -((start - stop) // step)) if step else 0
    assert (int(low), int(trips) % 2**64, int(by)) == (0, wanted, 1)


def test_hints_become_attributes() -> None:
    def hinted() -> None:
        made = ranges.range(
            4, num_stages=constexpr(3), loop_unroll_factor=2, warp_specialize=True, flatten=None
        )
        attributes = {name: str(a) for name, a in made.attributes().items()}
        assert attributes == {
            "tile.num_stages": "3 : i64",
            "tile.loop_unroll_factor": "2 : i64",
            "tile.warp_specialize": "true",
        }
        assert current().count == 0

    traced(hinted)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: reversed(ranges.range(4)), "expected a range that counts down itself, found a "
         "run-time one in `reversed`\n  hint: range(n - 1, -1, -1) counts down from n - 1 to 0"),
        (lambda x: ranges.range(), "expected one to three bounds of a range, found 0"),
        (lambda x: ranges.range(0, 4, 0), "expected a step other than 0"),
        (lambda x: ranges.range(x), "expected integers as bounds of a range, found float32 scalar"),
        (lambda x: ranges.range(4.0), "expected the bounds of a range to be an integer known at "
         "compile time, found Python float 4.0"),
        (lambda x: ranges.range(4, stages=2), "range: no hint is called `stages`\n"
         "  hint: hints: num_stages, loop_unroll_factor, disallow_acc_multi_buffer, flatten, "
         "warp_specialize, overlap_products, disable_licm"),
        (lambda x: ranges.range(4, num_stages=0), "expected `num_stages` to be at least 1, found 0"),
        (lambda x: ranges.static_range(x), "expected the bounds of static_range to be an integer "
         "known at compile time, found float32 scalar\n  hint: make it a parameter annotated "
         "`tile.constexpr`"),
        (lambda x: ranges.range(x.to(int64), x.to(uint64)).dtype, "expected bounds of a range with "
         "a common integer type"),
    ],
)  # fmt: skip
def test_messages(function: Any, message: str) -> None:
    with pytest.raises(KernelError) as found:
        traced(function, float32)
    assert str(found.value) == message
