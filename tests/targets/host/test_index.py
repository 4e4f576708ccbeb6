"""Index bits against NumPy's own shape operations."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledsl.targets.host import index as indexing
from tiledsl.targets.host.index import LANE, Bits, Index
from tiledsl.targets.host.nest import cover

shapes = st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=3).map(tuple)


def visited(index: Index, loops: tuple[int, ...], lanes: int) -> list[tuple[int, ...]]:
    """Return the elements that a nest visits, lanes innermost."""
    found: list[tuple[int, ...]] = []
    for counters in itertools.product(*map(range, loops)):
        for lane in range(1 << lanes):
            found.append(tuple(valued(bits, counters, lane) for bits in index))
    return found


def valued(bits: Bits, counters: tuple[int, ...], lane: int) -> int:
    total = 0
    for place, (source, bit) in enumerate(bits):
        if source > LANE:
            total |= (counters[source - 1] >> bit & 1) << place
        elif source == LANE:
            total |= (lane >> bit & 1) << place
        else:
            total |= bit << place
    return total


@settings(deadline=None)
@given(shapes, st.integers(0, 5), st.randoms())
def test_a_cover_visits_every_element_once(shape: tuple[int, ...], lanes: int, random: Any) -> None:
    order = list(range(len(shape)))
    random.shuffle(order)
    covered = cover(shape, lanes, order)
    found = visited(covered.index, covered.loops, covered.lanes)
    assert sorted(found) == list(np.ndindex(*shape))


@settings(deadline=None)
@given(shapes, st.integers(0, 3), st.data())
def test_shape_operations_are_numpys(shape: tuple[int, ...], lanes: int, data: Any) -> None:
    source = np.arange(np.prod(shape)).reshape(shape)
    covered = cover(shape, lanes, range(len(shape) - 1, -1, -1))
    index = covered.index
    where = visited(index, covered.loops, covered.lanes)

    order = data.draw(st.permutations(range(len(shape))))
    transposed = source.transpose(order)
    moved = cover(transposed.shape, lanes, range(len(shape) - 1, -1, -1))
    sources = visited(indexing.untransposed(moved.index, order), moved.loops, moved.lanes)
    places = visited(moved.index, moved.loops, moved.lanes)
    assert [source[at] for at in sources] == [transposed[at] for at in places]

    flat = indexing.split(indexing.linear(index), (source.size,))
    reshaped = visited(flat, covered.loops, covered.lanes)
    assert [source.ravel()[at] for at in reshaped] == [source[at] for at in where]


@settings(deadline=None)
@given(st.integers(1, 4), st.data())
def test_compacting_picks_the_element_each_lane_had(lanes: int, data: Any) -> None:
    bits = data.draw(st.permutations([(LANE, bit) for bit in range(lanes)]))
    kept = data.draw(st.integers(0, lanes))
    index = (tuple(bits[:kept]),)
    compacted, picks = indexing.compact(index, lanes)
    assert indexing.lane_bits(compacted) == kept
    fewer = indexing.lane_offsets(compacted[0], kept)
    wanted = indexing.lane_offsets(index[0], lanes)
    assert (wanted == (fewer if picks is None else fewer[picks])).all()
    assert list(fewer) == sorted(fewer)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 255))
def test_constant_bits_count_in_every_lane(value: int) -> None:
    assert list(indexing.lane_offsets(indexing.number(value, 8), 1)) == [value, value]
