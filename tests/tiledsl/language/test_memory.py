"""Loads and stores: broadcasting, masks, conversions, hints, and their messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.tiledsl.language.traced import Pointer, evaluated, traced
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import bool_, float16, float32, int32, int64, pointer_type
from tiledsl.language import core, memory
from tiledsl.language.descriptor import make_tensor_descriptor

P32 = pointer_type(float32)


def test_a_masked_off_lane_gives_other_or_zero_and_reads_nothing() -> None:
    x = np.arange(5, dtype=np.float32) + 1

    def kernel(p: Any, n: Any) -> Any:
        i = core.arange(0, 8)
        filled = memory.load(p + i, mask=i < n, other=-1)
        return filled, memory.load(p + i, mask=i < n)

    filled, zeroed = evaluated(kernel, Pointer(x), np.int32(5))
    assert filled.tolist() == [1, 2, 3, 4, 5, -1, -1, -1]
    assert zeroed.tolist() == [1, 2, 3, 4, 5, 0, 0, 0]


def test_arguments_broadcast_together() -> None:
    x = np.arange(16, dtype=np.float32)

    def kernel(p: Any) -> Any:
        i, j = core.arange(0, 4), core.arange(0, 4)
        return memory.load(p + i[:, None] * 4 + j[None, :], mask=i[:, None] < 3, other=j)

    got = evaluated(kernel, Pointer(x))
    want = x.reshape(4, 4).copy()
    want[3] = np.arange(4)
    np.testing.assert_array_equal(got, want)


def test_scalars_load_and_store() -> None:
    x = np.array([3, 4], np.int32)

    def kernel(p: Any) -> Any:
        memory.store(p + 1, memory.load(p) * 10)
        memory.store(p, 7, mask=False)
        memory.store(p, 9, mask=core.arange(0, 1)[:, None] == 0)

    evaluated(kernel, Pointer(x))
    assert x.tolist() == [9, 30]


def test_stores_convert_to_the_element_type() -> None:
    x = np.zeros(4, np.int32)

    def kernel(p: Any, v: Any) -> None:
        memory.store(p + core.arange(0, 4), v)

    evaluated(kernel, Pointer(x), np.array([1.7, -1.7, 3e9, np.nan], np.float32))
    assert x.tolist() == [1, -1, 2**31 - 1, 0]
    h = np.zeros(4, np.float16)
    evaluated(lambda p: memory.store(p + core.arange(0, 4), 2049), Pointer(h))
    assert h.tolist() == [2048] * 4


def test_a_plainly_true_mask_is_no_mask() -> None:
    module = str(traced(lambda p: memory.load(p, mask=True, other=1.0), P32))
    assert '"tile.load"(%arg0) : (!tile.ptr<f32>) -> f32' in module.replace(
        " {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0>}", ""
    ).replace(" {operandSegmentSizes = array<i32: 1, 0, 0>}", "")


def test_hints_become_attributes() -> None:
    def kernel(p: Any) -> None:
        v = memory.load(p, cache_modifier=".cg", eviction_policy="evict_last", volatile=True)
        memory.store(p, v, cache_modifier=".wt", eviction_policy="evict_first")

    module = str(traced(kernel, P32))
    for text in ('cache = "cg"', 'eviction = "evict_last"', "volatile = true", 'cache = "wt"'):
        assert text in module


def test_bools_load_as_bools() -> None:
    x = np.array([True, False, True, True])
    got = evaluated(lambda p: ~memory.load(p + core.arange(0, 4)), Pointer(x))
    assert got.tolist() == [False, True, False, False]


@pytest.mark.parametrize(
    ("function", "kinds", "message"),
    [
        (
            lambda p: memory.load(p, other=0.0),
            [P32],
            "expected `mask` where `other` is given: without a mask every element is read\n"
            "  hint: load(pointer, mask=..., other=...)",
        ),
        (
            memory.load,
            [float32],
            "expected a pointer or a tile of pointers as the first argument of `load`, "
            "found float32 scalar",
        ),
        (
            lambda p: memory.load(make_tensor_descriptor(p, [4], [1], [4])),
            [P32],
            "expected a pointer or a tile of pointers as the first argument of `load`, found "
            "Python TensorDescriptor tensor descriptor of float32 in boxes of (4,)\n"
            "  hint: a descriptor's own: x.load([i, ...])",
        ),
        (
            lambda p: memory.store(p, 1),
            [int64],
            "expected a pointer or a tile of pointers as the first argument of `store`, "
            "found int64 scalar\n"
            "  hint: an address as an integer converts by x.to(tile.pointer_type(tile.float32))",
        ),
        (
            lambda p, m: memory.load(p, mask=m),
            [P32, int32],
            "expected `mask` to be bools, found int32 scalar\n"
            "  hint: a comparison gives bools, as mask=offsets < n",
        ),
        (
            lambda p, m: memory.load(p, mask=m),
            [(P32, (4,)), (bool_, (8,))],
            "expected arguments of `load` whose shapes broadcast together, found (4,) and (8,)",
        ),
        (
            memory.store,
            [P32, (float32, (8,))],
            "expected one pointer for each element of `store`, found pointers of shape () and "
            "float32 tile of shape (8,)\n  hint: add a tile of offsets to the pointer",
        ),
        (
            memory.store,
            [pointer_type(int32), P32],
            "expected a pointer to become another pointer or a 64-bit integer, "
            "found pointer<float32> to int32\n"
            "  hint: an array is a pointer in a kernel: tile.load(x) reads what x points to",
        ),
        (
            lambda p: memory.load(p, boundary_check=(0,)),
            [P32],
            "expected no `boundary_check` or `padding_option`: block pointers are not supported\n"
            "  hint: mask the ragged edge: mask=offsets < size",
        ),
        (
            lambda p: memory.load(p, cache_modifier="cg"),
            [P32],
            'expected `cache_modifier` to be one of "", ".ca", ".cg", ".cs", ".cv", '
            "found Python str 'cg'",
        ),
        (
            lambda p: memory.store(p, 1.0, eviction_policy="never"),
            [pointer_type(float16)],
            'expected `eviction_policy` to be one of "", "evict_first", "evict_last", '
            "\"evict_normal\", found Python str 'never'",
        ),
    ],
)
def test_wrong_arguments_get_a_message(
    function: Callable[..., Any], kinds: list[Any], message: str
) -> None:
    with pytest.raises(KernelError) as caught:
        traced(function, *kinds)
    assert str(caught.value) == message
