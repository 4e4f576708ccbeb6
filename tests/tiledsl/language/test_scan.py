"""Scans and histograms against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.tiledsl.language.traced import evaluated, traced
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import float32, int32
from tiledsl.language import scan

RNG = np.random.default_rng(4)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_cumsum_and_cumprod_agree_with_numpy(axis: int, reverse: bool) -> None:
    x = RNG.integers(-3, 4, (4, 8)).astype(np.int32)
    for ours, numpy in ((scan.cumsum, np.cumsum), (scan.cumprod, np.cumprod)):
        got = evaluated(lambda v, f=ours: f(v, axis, reverse), x)
        flipped = np.flip(x, axis) if reverse else x
        want = numpy(flipped, axis, dtype=np.int32)
        np.testing.assert_array_equal(got, np.flip(want, axis) if reverse else want)


@pytest.mark.parametrize(
    ("dtype", "summed"), [("bool", "int32"), ("uint8", "uint32"), ("float16", "float16")]
)
def test_types_are_those_of_sums(dtype: str, summed: str) -> None:
    x = np.ones(16, dtype)
    got = evaluated(scan.cumsum, x)
    assert got.dtype == summed
    assert got.tolist() == list(range(1, 17))


def test_half_floats_accumulate_in_float32() -> None:
    x = np.full(4096, 1.0, np.float16)
    x[0] = 0.25
    assert evaluated(scan.cumsum, x)[-1] == np.float16(4095.25)


def test_histogram_counts_what_is_in_its_bins() -> None:
    for dtype in (np.int8, np.uint8, np.int32, np.uint32, np.int64):
        x = np.array([0, 0, 3, 1, 3, 3, 77, -1], np.int64).astype(dtype)
        got = evaluated(lambda v: scan.histogram(v, 4), x)
        assert got.tolist() == [2, 1, 0, 3]
        assert got.dtype == np.int32


def test_histogram_leaves_masked_elements_out() -> None:
    x, keep = np.zeros(8, np.int32), np.arange(8) < 5
    assert evaluated(lambda v, m: scan.histogram(v, 4, m), x, keep).tolist() == [5, 0, 0, 0]


@pytest.mark.parametrize(
    ("function", "kinds", "message"),
    [
        (
            scan.cumsum,
            [float32],
            "expected a tile of numbers as the argument of `cumsum`, found float32 scalar",
        ),
        (
            lambda v: scan.cumsum(v, 1),
            [(float32, (4,))],
            "expected an axis from -1 to 0, found 1 for a tile of shape (4,)",
        ),
        (
            lambda a, b: scan.associative_scan((a, b), 0, lambda *v: v[:2]),
            [(float32, (4,)), (float32, (8,))],
            "expected tiles of one shape to scan together, found (4,) and (8,)",
        ),
        (
            lambda v: scan.histogram(v, 4),
            [(float32, (4,))],
            "expected a one-dimensional tile of integers as the argument of `histogram`, "
            "found float32 tile of shape (4,)",
        ),
        (
            lambda v: scan.histogram(v, 3),
            [(int32, (1024,))],
            "expected `num_bins` to be a power of two and at most 1024 for 1024 elements, found 3",
        ),
        (
            lambda v, m: scan.histogram(v, 4, m),
            [(int32, (4,)), (int32, (4,))],
            "expected `mask` to be a bool tile, found int32 tile of shape (4,)",
        ),
    ],
)
def test_wrong_arguments_get_a_message(
    function: Callable[..., Any], kinds: list[Any], message: str
) -> None:
    with pytest.raises(KernelError) as caught:
        traced(function, *kinds)
    assert str(caught.value) == message
