"""Accumulators of plain FMAs: every thread has something to do, in boxes as square as can be."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledsl.dialects.layout_mma import fma_operands
from tiledsl.transforms.dot_layouts import fma_accumulator

_SIZES = st.sampled_from([1, 2, 4, 8, 16, 64, 128])


@settings(max_examples=100, deadline=None)
@given(
    st.tuples(_SIZES, _SIZES),
    st.sampled_from([(), (1,), (2,), (16,)]),
    st.sampled_from([(32, 1), (32, 4), (64, 8)]),
)
def test_all_threads_share_the_accumulator(
    shape: tuple[int, int], batch: tuple[int, ...], threads: tuple[int, int]
):
    lanes, warps = threads
    layout = fma_accumulator((*batch, *shape), lanes, warps)
    assert (layout.lanes, layout.warps) == (lanes, warps)
    assert layout.is_surjective
    elements = math.prod((*batch, *shape))
    assert layout.registers <= 2 * max(1, elements // (lanes * warps))


@pytest.mark.parametrize("shape", [(128, 128), (64, 64), (32, 128), (128, 32)])
def test_a_thread_reads_little_for_what_it_multiplies(shape: tuple[int, int]):
    layout = fma_accumulator(shape, 32, 4)
    operands = fma_operands(layout, 1)
    assert operands.a.registers + operands.b.registers <= 3 * math.isqrt(layout.registers)
    assert layout.contiguous_run() == 4
