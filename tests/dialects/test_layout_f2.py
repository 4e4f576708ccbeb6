from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from tiledsl.dialects import layout_f2 as f2

quick = settings(max_examples=100, deadline=None)
matrices = st.lists(st.integers(0, 31), max_size=6)


@quick
@given(matrices)
def test_rank_and_kernel_agree_with_enumeration(columns: list[int]):
    images = [f2.apply(columns, x) for x in range(1 << len(columns))]
    assert len(set(images)) == 1 << f2.rank(columns)
    kernel = f2.kernel(columns)
    zeros = {x for x, image in enumerate(images) if image == 0}
    assert {int(x) for x in f2.table(kernel)} == zeros
    assert len(zeros) == 1 << len(kernel)


@quick
@given(matrices, st.integers(0, 31))
def test_solve_finds_a_sum_exactly_where_there_is_one(columns: list[int], vector: int):
    span = f2.Span(columns)
    mask = span.solve(vector)
    reachable = vector in {f2.apply(columns, x) for x in range(1 << len(columns))}
    assert (mask is not None) == reachable == (vector in span)
    if mask is not None:
        assert f2.apply(columns, mask) == vector
        assert mask & ~f2.independent(columns) == 0


@quick
@given(matrices)
def test_a_right_inverse_exists_exactly_for_maps_onto(columns: list[int]):
    small = [column & 7 for column in columns]
    inverse = f2.right_inverse(small, 3)
    assert (inverse is not None) == (f2.rank(small) == 3)
    if inverse is not None:
        assert f2.compose(small, inverse) == (1, 2, 4)


def test_log2_takes_powers_of_two_only():
    assert f2.log2_exact(64) == 6
    for size in (0, -4, 12):
        with pytest.raises(ValueError, match="expected a power of two"):
            f2.log2_exact(size)


def test_spread_lists_set_bits():
    assert f2.spread(0b10110) == [1, 2, 4]
