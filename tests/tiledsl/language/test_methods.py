"""Methods of values."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest

from tests.tiledsl.language.traced import evaluated, traced
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import float32
from tiledsl.language.methods import METHODS
from tiledsl.language.methods import names as attribute_names
from tiledsl.language.value import Value


def test_each_method_is_a_function() -> None:
    for module, names in METHODS.items():
        for name in names:
            assert callable(getattr(import_module(f"tiledsl.language.{module}"), name)), name


def test_a_method_is_the_function_of_the_value() -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_array_equal(evaluated(lambda v: v.sum(1), x), x.sum(1))
    np.testing.assert_array_equal(
        evaluated(lambda v: v.reshape(4, 2).trans(), x), x.reshape(4, 2).T
    )
    np.testing.assert_array_equal(evaluated(lambda v: v.max(axis=0, keep_dims=True), x), x[1:])


def test_an_unknown_attribute_is_an_error() -> None:
    with pytest.raises(KernelError) as caught:
        traced(lambda v: v.mean(), (float32, (4,)))
    assert str(caught.value) == (
        "expected an attribute of float32 tile of shape (4,), found `mean`\n"
        "  hint: use tile.sum(x, axis) / count"
    )


def test_the_names_of_values_are_what_they_have() -> None:
    def has_all(value: Value) -> None:
        assert all(hasattr(value, name) for name in attribute_names())
        assert not hasattr(value, "nothing_like_it")
        assert getattr(value, "nothing_like_it", 3) == 3

    traced(has_all, (float32, (4,)))
