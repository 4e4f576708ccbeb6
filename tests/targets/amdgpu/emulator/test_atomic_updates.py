"""Atomic operations on many lanes: as if one lane after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledsl.targets.amdgpu.emulator.atomic_updates import Operation, apply, operation
from tiledsl.targets.gpu.emulator import formats

_MASK = 0xFFFFFFFF


def _signed(x: int) -> int:
    return (x ^ 0x80000000) - 0x80000000


_MODELS: dict[tuple[str, str], Callable[[int, int], int]] = {
    ("add", "u32"): lambda old, x: old + x & _MASK,
    ("sub", "u32"): lambda old, x: old - x & _MASK,
    ("rsub", "u32"): lambda old, x: x - old & _MASK,
    ("min", "u32"): min,
    ("max", "u32"): max,
    ("min", "i32"): lambda old, x: min(old, x, key=_signed),
    ("max", "i32"): lambda old, x: max(old, x, key=_signed),
    ("and", "b32"): lambda old, x: old & x,
    ("or", "b32"): lambda old, x: old | x,
    ("xor", "b32"): lambda old, x: old ^ x,
    ("swap", "b32"): lambda old, x: x,
    ("inc", "u32"): lambda old, x: 0 if old >= x else old + 1,
    ("dec", "u32"): lambda old, x: x if old == 0 or old > x else old - 1,
    ("csub", "u32"): lambda old, x: 0 if old < x else old - x,
    ("cond_sub", "u32"): lambda old, x: old if old < x else old - x,
}


def _known(name: str, kind: str) -> Operation:
    found = operation(name, kind)
    assert found is not None
    return found


@pytest.mark.parametrize(("name", "kind"), list(_MODELS), ids="-".join)
@settings(max_examples=20, deadline=None)
@given(st.data())
def test_lanes_act_one_after_another(name: str, kind: str, data: st.DataObject) -> None:
    lanes = data.draw(st.integers(1, 24))
    spread = data.draw(st.sampled_from([1, 3, 24]))
    numbers = st.one_of(st.integers(0, 9), st.integers(0, _MASK))
    index = data.draw(st.lists(st.integers(0, spread - 1), min_size=lanes, max_size=lanes))
    values = data.draw(st.lists(numbers, min_size=lanes, max_size=lanes))
    start = data.draw(st.lists(numbers, min_size=spread, max_size=spread))
    words, value = np.array(start, np.uint32), np.array(values, np.uint32)
    old = apply(_known(name, kind), words, np.array(index), value, value)
    expected, returned = list(start), list[int]()
    for place, x in zip(index, values, strict=True):
        returned.append(expected[place])
        expected[place] = _MODELS[name, kind](expected[place], x)
    assert words.tolist() == expected
    assert old.tolist() == returned


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 3)), min_size=1))
def test_compare_and_swap_sees_what_lanes_before_it_wrote(lanes: list[tuple[int, ...]]) -> None:
    index, value, compare = (np.array(one, np.uint64) for one in zip(*lanes, strict=True))
    words = np.arange(3, dtype=np.uint64)
    old = apply(_known("cmpswap", "b64"), words, index.astype(np.int64), value, compare)
    expected, returned = [0, 1, 2], list[int]()
    for place, x, against in lanes:
        returned.append(expected[place])
        if expected[place] == against:
            expected[place] = x
    assert words.tolist() == expected
    assert old.tolist() == returned


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_floats_are_added_in_order_and_rounded_each_time(kind: Any) -> None:
    bits = np.dtype(f"u{np.dtype(kind).itemsize}")
    values = np.random.default_rng(0).normal(size=300).astype(kind)
    words = np.ones(1, kind).view(bits)
    name = f"f{8 * bits.itemsize}"
    old = apply(_known("add", name), words, np.zeros(300, np.int64), values.view(bits), values)
    total = kind(1)
    for i, x in enumerate(values):
        assert old.view(kind)[i] == total
        total = kind(total + x)
    assert words.view(kind)[0] == total


def test_minima_of_floats_pass_nans_over() -> None:
    words = np.array([1.0, np.nan], np.float64).view(np.uint64)
    value = np.array([np.nan, 3.0]).view(np.uint64)
    apply(_known("min", "f64"), words, np.arange(2), value, value)
    assert words.view(np.float64).tolist() == [1.0, 3.0]


def test_pairs_of_halves_are_added_apart() -> None:
    halves = np.array([1.5, 65504.0], np.float16)
    words = halves.view(np.uint32).copy()
    value = np.array([2.0, 65504.0], np.float16).view(np.uint32)
    with np.errstate(over="ignore"):
        apply(_known("add", "pk_f16"), words, np.zeros(1, np.int64), value, value)
    assert words.view(np.float16).tolist() == [3.5, np.inf]
    one, tiny = (formats.BF16.encode(np.array([x, x], np.float32)) for x in (1.0, 2.0**-9))
    words = one.view(np.uint32).copy()
    for _ in range(3):
        apply(_known("add", "pk_bf16"), words, np.zeros(1, np.int64), tiny.view(np.uint32), words)
    assert formats.BF16.decode(words.view(np.uint16)).tolist() == [1.0, 1.0]


def test_operations_that_there_are_not() -> None:
    assert operation("add", "b32") is not None
    assert operation("nand", "b32") is None
    assert operation("xor", "f32") is None
    assert operation("min", "pk_f16") is None
