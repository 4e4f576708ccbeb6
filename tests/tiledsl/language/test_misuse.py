"""Functions and names of other libraries, given to a tile."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import pytest

import tiledsl as tile
from tests.tiledsl.language.traced import evaluated, traced
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import float32
from tiledsl.language import elementwise, misuse
from tiledsl.language.value import Value

X = np.arange(1, 9, dtype=np.float32)


def test_every_operator_of_numpys_scalars_is_one_of_tiles() -> None:
    for ufunc, name in misuse.OPERATORS.items():
        assert misuse.operator_of(getattr(np, ufunc), elementwise) is getattr(elementwise, name)
    assert misuse.operator_of(np.sqrt, elementwise) is None


@pytest.mark.parametrize(
    "function",
    [
        lambda s, x: s + x,
        lambda s, x: s - x,
        lambda s, x: s * x,
        lambda s, x: s / x,
        lambda s, x: x // s,
        lambda s, x: s < x,
        lambda s, x: s == x,
    ],
)
def test_numpys_scalars_stand_on_either_side(function: Callable[..., Value]) -> None:
    scalar = np.float32(3)
    found = evaluated(lambda x: function(scalar, x), X)
    np.testing.assert_array_equal(found, function(scalar, X))


@pytest.mark.parametrize(
    ("function", "hint"),
    [
        (lambda x: np.exp(x), "use tile.exp"),
        (lambda x: np.sum(x), "use tile.sum"),
        (lambda x: np.add.reduce(x), "use a + b"),
        (lambda x: np.add(x, x, where=True), "use a + b"),
        (lambda x: np.cbrt(x), None),
        (lambda x: np.array(x), None),
        (lambda x: np.fft.fft(x), None),
        (lambda x: sum(x), "tile.sum(x) and the like combine the elements"),
        (lambda x: round(x), "use tile.rint(x)"),
        (lambda x: math.exp(x), "a conversion at run time is x.to(tile.float32)"),
        (lambda x: functools.reduce(max, x), "tile.sum(x) and the like combine the elements"),
    ],
)
def test_what_takes_no_tiles_says_so_wherever_it_is_called(
    function: Callable[[Value], object], hint: str | None
) -> None:
    """These calls are as those of a library are: no kernel's rewriting stands between."""
    with pytest.raises(KernelError) as raised:
        traced(function, (float32, (8,)))
    assert raised.value.hint == hint


def test_synonyms_are_of_names_that_the_package_lacks() -> None:
    assert not set(misuse.SYNONYMS) & set(tile.__all__)


def test_only_functions_with_a_like_here_are_foreign() -> None:
    assert misuse.is_foreign(np.sqrt)
    assert misuse.is_foreign(math.exp)
    assert misuse.is_foreign(np.float16)
    assert not misuse.is_foreign(np.cbrt)
    assert not misuse.is_foreign(tile.sqrt)
    assert not misuse.is_foreign(len)
    assert not misuse.is_foreign(functools.reduce)
