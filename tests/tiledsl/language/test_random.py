"""Philox against its published test vectors, and what is made of its words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.tiledsl.language.traced import evaluated, traced
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import float32, int32
from tiledsl.language import random

# counter, key, result of philox4x32-10: kat_vectors of Random123 1.14.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


def words(text: str) -> list[int]:
    return [int(w, 16) for w in text.split()]


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_philox_gives_the_published_words(counter: str, key: str, result: str) -> None:
    c = [np.full(2, w, np.uint32) for w in words(counter)]
    low, high = words(key)
    seed = np.uint64(high << 32 | low)
    got = evaluated(random.philox, seed, *c)
    assert [int(g[0]) for g in got] == words(result)
    constant = evaluated(lambda *v: random.philox(int(seed), *v), *c)
    assert [int(g[1]) for g in constant] == words(result)


def test_all_bits_of_a_seed_count_and_its_width_does_not() -> None:
    offset = np.arange(8, dtype=np.int32)
    base = evaluated(lambda o: random.randint(5, o), offset)
    for other in (np.int32(5), np.uint32(5), np.int64(5), np.uint64(5)):
        np.testing.assert_array_equal(evaluated(random.randint, other, offset), base)
    far = evaluated(lambda o: random.randint(5 + 2**32, o), offset)
    assert (far != base).any()
    negative = evaluated(lambda o: random.randint(-1, o), offset)
    for other in (np.int32(-1), np.int64(-1)):
        np.testing.assert_array_equal(evaluated(random.randint, other, offset), negative)


def test_high_bits_of_an_offset_count() -> None:
    low = evaluated(lambda o: random.randint(5, o), np.array([7, 8], np.int64))
    high = evaluated(lambda o: random.randint(5, o), np.array([7 + 2**32, 8], np.int64))
    assert low[1] == high[1]
    assert low[0] != high[0]
    narrow = evaluated(lambda o: random.randint(5, o), np.array([7, 8], np.int32))
    np.testing.assert_array_equal(low, narrow)


def test_every_word_maps_into_the_half_open_interval() -> None:
    x = np.array([-(2**31), 2**31 - 1, 0, -1, 1, 255, 256, -256], np.int32)
    got = evaluated(random.uint_to_uniform_float, x)
    assert got.dtype == np.float32
    assert ((got >= 0) & (got < 1)).all()
    np.testing.assert_array_equal(got, (x.view(np.uint32) >> 8) / np.float32(2**24))


def test_uniform_and_normal_numbers_are_distributed_so() -> None:
    offset = np.arange(1 << 14, dtype=np.int32)

    def kernel(o: Any) -> Any:
        return (*random.rand4x(11, o), random.rand(11, o), random.randn(12, o))

    *four, one, normal = evaluated(kernel, offset)
    np.testing.assert_array_equal(four[0], one)
    for u in four:
        assert abs(u.mean() - 0.5) < 0.01
        assert abs(u.var() - 1 / 12) < 0.003
    assert abs(normal.mean()) < 0.03
    assert abs(normal.std() - 1) < 0.02


@pytest.mark.parametrize(
    ("function", "kinds", "message"),
    [
        (
            random.rand,
            [(int32, (4,)), (int32, (4,))],
            "expected the seed to be an integer scalar, found int32 tile of shape (4,)",
        ),
        (
            lambda o: random.rand(0, o),
            [(float32, (4,))],
            "expected integer offsets, found float32 tile of shape (4,)",
        ),
        (
            lambda o: random.philox(0, o, o, o, o),
            [(float32, (4,))],
            "expected integers as the counter, found float32 tile of shape (4,)",
        ),
        (
            random.uint_to_uniform_float,
            [(float32, (4,))],
            "expected 32-bit integers, found float32 tile of shape (4,)",
        ),
    ],
)
def test_wrong_arguments_get_a_message(
    function: Callable[..., Any], kinds: list[Any], message: str
) -> None:
    with pytest.raises(KernelError) as caught:
        traced(function, *kinds)
    assert str(caught.value) == message
