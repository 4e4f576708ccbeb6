from __future__ import annotations

import math

import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings

from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_f2 import IntArray

quick = settings(max_examples=60, deadline=None)


@st.composite
def shapes(draw: st.DrawFn, max_bits: int = 7) -> tuple[int, ...]:
    bits = draw(st.lists(st.integers(0, 3), min_size=0, max_size=3))
    while sum(bits) > max_bits:
        bits.pop()
    return tuple(1 << b for b in bits)


@st.composite
def layouts(draw: st.DrawFn) -> LinearLayout:
    """Any layout at all: replicated, partial and swizzled ones included."""
    shape = draw(shapes())
    column = st.integers(0, math.prod(shape) - 1)
    dims = {n: draw(st.lists(column, max_size=3)) for n in ("register", "lane", "warp")}
    return LinearLayout.from_flat(dims, shape)


@st.composite
def surjective_layouts(draw: st.DrawFn, shape: tuple[int, ...] | None = None) -> LinearLayout:
    """Layouts that hold every element: a random invertible matrix plus some copies."""
    shape = draw(shapes()) if shape is None else shape
    bits = sum(size.bit_length() - 1 for size in shape)
    columns = [1 << i for i in range(bits)]
    for _ in range(draw(st.integers(0, 6)) if bits > 1 else 0):
        i, j = draw(st.permutations(range(bits)))[:2]
        columns[i] ^= columns[j]
    columns = list(draw(st.permutations(columns)))
    for _ in range(draw(st.integers(0, 3))):
        copy = draw(st.integers(0, math.prod(shape) - 1))
        columns.insert(draw(st.integers(0, len(columns))), draw(st.sampled_from([0, copy])))
    cuts = sorted(draw(st.tuples(*[st.integers(0, len(columns))] * 2)))
    dims = {
        "register": columns[: cuts[0]],
        "lane": columns[cuts[0] : cuts[1]],
        "warp": columns[cuts[1] :],
    }
    return LinearLayout.from_flat(dims, shape)


def places(layout: LinearLayout) -> list[IntArray]:
    """Block, warp, lane and register of every entry of the table."""
    grid: IntArray = np.indices(layout.table.shape).astype(np.int64)
    return [grid[i] for i in range(len(grid))]


def test_the_docstring_example_holds():
    a = LinearLayout({"register": [(0, 1)], "lane": [(1, 0), (2, 0)]}, (4, 2))
    assert a(register=1, lane=3) == (3, 1)
    assert (a.registers, a.lanes, a.warps, a.blocks) == (2, 4, 1, 1)


@quick
@given(layouts())
def test_text_is_read_back_as_the_same_value(layout: LinearLayout):
    again = LinearLayout.parse(str(layout))
    assert again == layout
    assert hash(again) == hash(layout)
    assert str(again) == str(layout)


def test_the_text_form_is_compact():
    layout = LinearLayout({"register": [(0, 1), (0, 2)], "lane": [(1, 0)]}, (2, 4))
    assert str(layout) == "register=[[0,1],[0,2]] lane=[[1,0]] warp=[] shape=[2,4]"
    assert LinearLayout.parse("offset=[[1],[2]] shape=[4]") == LinearLayout.identity((4,))


@pytest.mark.parametrize("text", ["", "register=[[1]]", "shape=[2] x", "register=[1] shape=[2"])
def test_other_text_is_refused(text: str):
    with pytest.raises(ValueError, match="expected"):
        LinearLayout.parse(text)


def test_missing_hardware_inputs_do_not_make_a_different_value():
    assert LinearLayout({"lane": [(1,)]}, (2,)) == LinearLayout({"lane": [(1,)], "block": []}, (2,))
    assert LinearLayout({"lane": [(1,)]}, (2,)) != LinearLayout({"warp": [(1,)]}, (2,))


@pytest.mark.parametrize(
    ("bases", "shape", "message"),
    [
        ({"lane": [(1,)]}, (3,), "expected a power of two, found 3"),
        ({"lane": [(2,)]}, (2,), r"expected lane bases inside \(2,\), found \(2,\)"),
        ({"lane": [(1, 0)]}, (2,), r"expected lane bases inside \(2,\), found \(1, 0\)"),
        ({"thread": [(1,)]}, (2,), r"expected hardware inputs, 'offset' or 'dim<i>'"),
        ({"lane": [(1,)], "offset": []}, (2,), r"expected hardware inputs"),
    ],
)
def test_ill_formed_layouts_are_refused(
    bases: dict[str, list[tuple[int, ...]]], shape: tuple[int, ...], message: str
):
    with pytest.raises(ValueError, match=message):
        LinearLayout(bases, shape)


@quick
@given(layouts())
def test_scalar_array_and_table_evaluation_agree(layout: LinearLayout):
    block, warp, lane, register = places(layout)
    arrays = layout.apply({"register": register, "lane": lane, "warp": warp, "block": block})
    for w in range(layout.warps):
        for t in range(layout.lanes):
            for r in range(layout.registers):
                found = layout(register=r, lane=t, warp=w)
                assert found == tuple(int(a[0, w, t, r]) for a in arrays)
                assert layout.flatten(found) == layout.table[0, w, t, r]


@quick
@given(layouts())
def test_the_bit_matrix_is_the_map(layout: LinearLayout):
    matrix = layout.bit_matrix()
    in_bits = {name: layout.bits(name) for name in layout.in_dims}
    assert LinearLayout.from_bit_matrix(matrix, in_bits, layout.shape) == layout
    for place, flat in enumerate(layout.table.ravel().tolist()):
        vector = [place >> i & 1 for i in range(matrix.shape[1])]
        image: list[int] = (matrix @ np.array(vector, dtype=np.uint8) % 2).tolist()
        assert sum(bit << i for i, bit in enumerate(image)) == flat


@quick
@given(layouts())
def test_rank_predicates_count_elements(layout: LinearLayout):
    held = np.unique(layout.table)
    assert len(held) == 1 << layout.matrix_rank
    assert layout.is_surjective == (len(held) == layout.elements)
    assert layout.is_injective == (len(held) == layout.table.size)
    assert layout.is_invertible == (layout.is_surjective and layout.is_injective)


@quick
@given(layouts())
def test_places_without_free_bits_hold_each_element_once(layout: LinearLayout):
    masks = layout.free_masks()
    block, warp, lane, register = places(layout)
    kept = (
        (register & masks["register"]) | (lane & masks["lane"]) | (warp & masks["warp"]) | block
    ) == 0
    stored = layout.table[kept]
    assert len(np.unique(stored)) == len(stored) == len(np.unique(layout.table))


@quick
@given(surjective_layouts())
def test_inverse_finds_a_holder_of_every_element(layout: LinearLayout):
    inverse = layout.inverse()
    assert layout.compose(inverse) == LinearLayout.from_flat(
        {f"dim{i}": inverse_identity(layout, i) for i in range(layout.rank)}, layout.shape
    )
    if layout.is_invertible:
        both = inverse.compose(layout)
        assert np.array_equal(both.bit_matrix(), place_identity(layout))


def inverse_identity(layout: LinearLayout, axis: int) -> list[int]:
    bits = layout.shape[axis].bit_length() - 1
    return [1 << (layout.axis_shift(axis) + i) for i in range(bits)]


def place_identity(layout: LinearLayout) -> npt.NDArray[np.uint8]:
    sizes = {n: layout.bits(n) for n in layout.in_dims}
    dims: dict[str, list[list[int]]] = {}
    for i, (name, bits) in enumerate(sizes.items()):
        dims[name] = [[1 << b if j == i else 0 for j in range(len(sizes))] for b in range(bits)]
    return LinearLayout(dims, [1 << b for b in sizes.values()]).bit_matrix()


def test_a_partial_layout_has_no_inverse():
    with pytest.raises(ValueError, match="expected a layout that holds every element"):
        LinearLayout({"lane": [(1,)]}, (4,)).inverse()


@quick
@given(st.data())
def test_composition_is_evaluation_after_evaluation(data: st.DataObject):
    outer = data.draw(layouts())
    sizes = tuple(outer.size(name) for name in outer.in_dims)
    column = st.integers(0, math.prod(sizes) - 1)
    inner = LinearLayout.from_flat({"offset": data.draw(st.lists(column, max_size=5))}, sizes)
    both = outer.compose(inner)
    for offset in range(inner.size("offset")):
        r, lane, w, b = inner(offset=offset)
        assert both(offset=offset) == outer(register=r, lane=lane, warp=w, block=b)


def test_composition_needs_matching_sizes():
    with pytest.raises(ValueError, match="expected outputs of sizes"):
        LinearLayout.identity((4,)).compose(LinearLayout.identity((8,)))


@quick
@given(st.data())
def test_a_product_tiles_its_second_factor_with_the_first(data: st.DataObject):
    a, b = data.draw(layouts()), data.draw(layouts())
    if a.rank != b.rank:
        with pytest.raises(ValueError, match="expected equal ranks"):
            _ = a * b
        return
    product = a * b
    assert product.registers == a.registers * b.registers
    for r in range(product.registers):
        for t in range(product.lanes):
            low = a(register=r % a.registers, lane=t % a.lanes)
            high = b(register=r // a.registers, lane=t // a.lanes)
            want = tuple(x + s * y for x, y, s in zip(low, high, a.shape, strict=True))
            assert product(register=r, lane=t) == want


@quick
@given(st.data())
def test_transpose_and_reshape_move_elements_as_numpy_does(data: st.DataObject):
    layout = data.draw(layouts())
    tensor = np.arange(layout.elements).reshape(layout.shape)
    order = data.draw(st.permutations(range(layout.rank)))
    moved = tensor.transpose(order)
    assert np.array_equal(moved.ravel()[layout.transpose(order).table], layout.table)
    flat = layout.reshape((layout.elements,))
    assert np.array_equal(flat.table, layout.table)
    axis = data.draw(st.integers(0, layout.rank))
    assert layout.expand_dims(axis).squeeze(axis) == layout


def test_impossible_relabelings_are_refused():
    layout = LinearLayout.identity((4, 2))
    with pytest.raises(ValueError, match="expected a permutation"):
        layout.transpose((0, 0))
    with pytest.raises(ValueError, match="expected 8 elements"):
        layout.reshape((4,))
    with pytest.raises(ValueError, match="expected size 1 along axis 0"):
        layout.squeeze(0)


def test_register_bits_can_be_reordered():
    layout = LinearLayout({"register": [(0, 1), (1, 0)]}, (2, 2))
    swapped = layout.permute_registers((1, 0))
    assert swapped.bases["register"] == ((1, 0), (0, 1))


@quick
@given(surjective_layouts(), st.sampled_from([1, 2, 4, 8]))
def test_contiguous_run_is_the_longest_aligned_run(layout: LinearLayout, limit: int):
    for axis in range(layout.rank):
        run = layout.contiguous_run(axis, limit)
        assert run <= limit
        assert is_run(layout, axis, run)
        longer = 2 * run
        assert longer > min(limit, layout.registers) or not is_run(layout, axis, longer)


def is_run(layout: LinearLayout, axis: int, run: int) -> bool:
    groups = layout.table.reshape(-1, run)
    step = 1 << layout.axis_shift(axis)
    along = groups >> layout.axis_shift(axis) & (layout.shape[axis] - 1)
    consecutive = np.all(groups == groups[:, :1] + step * np.arange(run))
    return run <= layout.shape[axis] and bool(consecutive and np.all(along[:, 0] % run == 0))


def test_a_scalar_has_runs_of_one():
    assert LinearLayout({"register": [()]}, ()).contiguous_run() == 1
