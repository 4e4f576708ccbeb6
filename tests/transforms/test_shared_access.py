from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_blocked import blocked, default
from tiledsl.dialects.layout_f2 import table
from tiledsl.transforms.shared_access import (
    CDNA3,
    CDNA4,
    NVIDIA,
    SharedMemory,
    bank_conflicts,
    conflict_degree,
    shared_access,
    shared_offsets,
)
from tiledsl.transforms.tma_layout import xor_swizzle


@st.composite
def shared_layouts(draw: st.DrawFn, shape: tuple[int, ...]) -> LinearLayout:
    """Any bijection from offsets to the tensor."""
    layout = LinearLayout.identity(shape)
    columns = list(draw(st.permutations(layout.columns)))
    for _ in range(draw(st.integers(0, 5))):
        i, j = draw(st.permutations(range(len(columns))))[:2]
        columns[i] ^= columns[j]
    return LinearLayout.from_flat({"offset": columns}, shape)


@st.composite
def register_layouts(draw: st.DrawFn, shape: tuple[int, int]) -> LinearLayout:
    vector = draw(st.sampled_from([1, 2, 4, 8]))
    order = draw(st.sampled_from([(1, 0), (0, 1)]))
    return default(shape, 32, draw(st.sampled_from([1, 4])), vector, order)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_vectors_are_aligned_and_hold_every_register(data: st.DataObject):
    shape = (16, 32)
    shared = data.draw(shared_layouts(shape))
    layout = data.draw(register_layouts(shape))
    if data.draw(st.booleans()):
        dims = {name: layout.flat(name) for name in layout.in_dims}
        dims["register"] = (*dims["register"], dims["register"][0] if dims["register"] else 0)
        layout = LinearLayout.from_flat(dims, shape)  # with a copy
    access = shared_access(layout, shared, 16)
    offsets = shared_offsets(layout, shared).table
    vectors = offsets[0][:, :, access.registers]
    assert vectors.shape[-1] == access.elements
    assert np.all(vectors == vectors[..., :1] + np.arange(access.elements))
    assert np.all(vectors[..., 0] % access.elements == 0)
    assert access.instructions == len(access.registers)
    # A read: vectors come back, registers are picked from them.
    memory = np.arange(shared.elements)[shared.table]  # what each offset holds
    loaded = memory[vectors].reshape(layout.warps, layout.lanes, -1)
    assert np.array_equal(loaded[..., access.fill], layout.table[0])


def test_in_order_vectors_are_consecutive_registers():
    layout = blocked((8, 32), (2, 4), (4, 8), (1, 1), (1, 0))
    turned = layout.permute_registers((2, 0, 1))
    shared = LinearLayout.identity((8, 32))
    assert shared_access(turned, shared, 16).elements == 4
    assert shared_access(turned, shared, 16, in_order=True).elements == 1
    assert shared_access(layout, shared, 16, in_order=True).registers.tolist() == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
    ]


def test_vectors_stop_at_the_widest_that_is_allowed():
    layout, shared = default((4, 256), 32, 1, 32), LinearLayout.identity((4, 256))
    assert shared_access(layout, shared, 8).elements == 16
    assert shared_access(layout, shared, 64).elements == 2
    assert shared_access(layout, shared, 16, max_bytes=4).elements == 2


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_conflict_degree_is_what_counting_addresses_finds(data: st.DataObject):
    shape = (16, 64)
    bits = data.draw(st.sampled_from([8, 16, 32, 64]))
    shared = data.draw(shared_layouts(shape))
    layout = data.draw(register_layouts(shape))
    memory = data.draw(st.sampled_from([NVIDIA, CDNA3, CDNA4]))
    write = data.draw(st.booleans())
    access = shared_access(layout, shared, bits, memory, write=write)
    counted = bank_conflicts(layout, shared, bits, access.elements, memory, write)
    assert access.degree == counted


def test_a_column_of_rows_of_128_bytes_conflicts_32_times():
    shape = (32, 32)
    column = blocked(shape, (1, 1), (32, 1), (1, 1))
    assert bank_conflicts(column, LinearLayout.identity(shape), 32, 1) == 32
    row = blocked(shape, (1, 1), (1, 32), (1, 1))
    assert bank_conflicts(row, LinearLayout.identity(shape), 32, 1) == 1


def test_vectors_wider_than_possible_are_refused():
    shape = (32, 32)
    column = blocked(shape, (1, 1), (1, 32), (1, 1))
    with pytest.raises(ValueError, match="expected vectors of 4, found 1"):
        bank_conflicts(column, LinearLayout.identity(shape), 32, 4)


def phases(memory: SharedMemory, lane_bytes: int, write: bool, lanes: int) -> set[frozenset[int]]:
    group = table(memory.phase(lane_bytes, write)).tolist()
    return {frozenset(first ^ lane for lane in group) for first in range(lanes)}


def lanes_of(*ranges: tuple[int, int]) -> frozenset[int]:
    return frozenset(lane for first, last in ranges for lane in range(first, last + 1))


def test_nvidia_serves_quarter_warps_of_16_bytes_and_half_warps_of_8():
    assert lanes_of((8, 15)) in phases(NVIDIA, 16, False, 32)
    assert lanes_of((16, 31)) in phases(NVIDIA, 8, True, 32)
    assert phases(NVIDIA, 2, False, 32) == {lanes_of((0, 31))}


def test_amd_serves_the_lanes_that_were_measured():
    assert lanes_of((0, 3), (20, 23)) in phases(CDNA3, 16, False, 64)
    assert lanes_of((12, 15), (24, 27)) in phases(CDNA3, 16, False, 64)
    assert lanes_of((8, 15)) in phases(CDNA3, 16, True, 64)
    assert lanes_of((0, 3), (12, 15), (20, 27)) in phases(CDNA4, 16, False, 64)
    assert lanes_of((4, 11), (16, 19), (28, 31)) in phases(CDNA4, 16, False, 64)
    assert lanes_of((0, 31)) in phases(CDNA4, 8, False, 64)
    assert lanes_of((16, 31)) in phases(CDNA4, 8, True, 64)
    assert lanes_of((32, 63)) in phases(CDNA4, 4, True, 64)


def test_writes_of_gfx950_see_half_the_banks() -> None:
    """Lanes 128 bytes apart read from different banks and write to one."""
    layout = LinearLayout.from_flat(
        {"register": [], "lane": [1, 2, 4, 8, 32, 16], "warp": []}, (64,)
    )
    shared = LinearLayout.identity((64,))
    found = [shared_access(layout, shared, 32, CDNA4, write=w).degree for w in (False, True)]
    assert found == [1, 2]
    for write, degree in enumerate(found):
        assert bank_conflicts(layout, shared, 32, 1, CDNA4, bool(write)) == degree


def test_lanes_that_read_the_same_word_do_not_conflict():
    broadcast = LinearLayout({"lane": [(0,)] * 5, "register": [(1,), (2,)]}, (4,))
    offsets = shared_offsets(broadcast, LinearLayout.identity((4,)))
    assert conflict_degree(offsets, 0, 32) == 1


def test_offsets_are_additive_where_no_bit_is_shared():
    layout = default((64, 64), 32, 1, 4)
    assert shared_access(layout, LinearLayout.identity((64, 64)), 32).is_additive
    swizzled = xor_swizzle((64, 64), (1, 0), 4, 1, 8)
    assert not shared_access(layout, swizzled, 32).is_additive


def test_a_vector_in_order_is_not_permuted_by_another_register() -> None:
    """Column n holds its rows in the order k ^ n: only its first column is in order."""
    shared = LinearLayout({"offset": [(1, 0), (2, 0), (1, 1), (2, 2)]}, (4, 4))
    held = LinearLayout({"register": [(1, 0), (2, 0), (0, 1), (0, 2)]}, (4, 4))
    assert shared_access(held, shared, 32).elements == 4
    assert shared_access(held, shared, 32, in_order=True).elements == 1
    plain = LinearLayout({"offset": [(1, 0), (2, 0), (0, 1), (0, 2)]}, (4, 4))
    assert shared_access(held, plain, 32, in_order=True).elements == 4
