"""Atomic operations: kinds, conversions, results, and their messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.tiledsl.language.traced import Pointer, evaluated, traced
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import float16, float32, int8, int32, pointer_type, uint32
from tiledsl.language import atomics, core

NAN = float("nan")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64", "uint32"])
@pytest.mark.parametrize("value", [1.5, 3])
def test_values_convert_to_the_element_type(dtype: str, value: float) -> None:
    x = np.zeros(8, dtype)

    def kernel(p: Any, v: Any) -> None:
        for _ in range(10):
            atomics.atomic_add(p + core.arange(0, 8), v)

    evaluated(kernel, Pointer(x), np.float32(value) if value == 1.5 else np.int32(value))
    once = value if "float" in dtype else int(value)
    assert x.tolist() == [10 * once] * 8


@pytest.mark.parametrize(
    ("name", "dtype", "kind"),
    [
        ("atomic_add", float32, "fadd"),
        ("atomic_add", uint32, "add"),
        ("atomic_max", float32, "fmax"),
        ("atomic_max", uint32, "umax"),
        ("atomic_min", int32, "min"),
        ("atomic_and", int32, "and"),
        ("atomic_or", int32, "or"),
        ("atomic_xor", int32, "xor"),
        ("atomic_xchg", float32, "xchg"),
    ],
)
def test_the_kind_follows_the_type(name: str, dtype: Any, kind: str) -> None:
    module = traced(lambda p: getattr(atomics, name)(p, 1), pointer_type(dtype))
    assert f'kind = "{kind}"' in str(module)


def test_the_old_value_comes_back_and_masked_lanes_give_zero() -> None:
    x = np.arange(1, 9, dtype=np.int32)

    def kernel(p: Any) -> Any:
        i = core.arange(0, 8)
        return atomics.atomic_add(p + i, 10, mask=i < 5)

    assert evaluated(kernel, Pointer(x)).tolist() == [1, 2, 3, 4, 5, 0, 0, 0]
    assert x.tolist() == [11, 12, 13, 14, 15, 6, 7, 8]


def test_compare_and_swap_and_exchange() -> None:
    x = np.array([0, 1, 0, 1], np.int32)

    def kernel(p: Any) -> Any:
        i = core.arange(0, 4)
        return atomics.atomic_cas(p + i, 0, 7), atomics.atomic_xchg(p, 9)

    old, first = evaluated(kernel, Pointer(x))
    assert old.tolist() == [0, 1, 0, 1]
    assert first == 7
    assert x.tolist() == [9, 1, 7, 1]


def test_order_and_scope_become_attributes() -> None:
    module = str(
        traced(
            lambda p: atomics.atomic_cas(p, 0, 1, sem="acquire", scope="sys"), pointer_type(int32)
        )
    )
    assert 'sem = "acquire"' in module
    assert 'scope = "sys"' in module


@pytest.mark.parametrize(
    ("function", "kinds", "message"),
    [
        (
            lambda p: atomics.atomic_add(p, 1),
            [pointer_type(int8)],
            "expected `atomic_add` on int32, int64, uint32, uint64, float16, bfloat16, float32, "
            "float64, found a pointer to int8",
        ),
        (
            lambda p: atomics.atomic_max(p, 1),
            [pointer_type(float16)],
            "expected `atomic_max` on int32, int64, uint32, uint64, float32, float64, "
            "found a pointer to float16",
        ),
        (
            lambda p: atomics.atomic_xor(p, 1),
            [pointer_type(float32)],
            "expected `atomic_xor` on int32, int64, uint32, uint64, found a pointer to float32",
        ),
        (
            lambda v: atomics.atomic_add(v, 1),
            [int32],
            "expected a pointer or a tile of pointers as the first argument of `atomic_add`, "
            "found int32 scalar\n"
            "  hint: an address as an integer converts by x.to(tile.pointer_type(tile.float32))",
        ),
        (
            atomics.atomic_add,
            [pointer_type(float32), (float32, (8,))],
            "expected one pointer for each element of `atomic_add`, found pointers of shape () "
            "and float32 tile of shape (8,)\n  hint: add a tile of offsets to the pointer",
        ),
        (
            lambda p: atomics.atomic_add(p, 1, sem="seq_cst"),
            [pointer_type(int32)],
            'expected `sem` to be one of "relaxed", "acquire", "release", "acq_rel", '
            "found Python str 'seq_cst'",
        ),
        (
            lambda p: atomics.atomic_add(p, 1, scope="block"),
            [pointer_type(int32)],
            'expected `scope` to be one of "cta", "gpu", "sys", found Python str \'block\'',
        ),
    ],
)
def test_wrong_arguments_get_a_message(
    function: Callable[..., Any], kinds: list[Any], message: str
) -> None:
    with pytest.raises(KernelError) as caught:
        traced(function, *kinds)
    assert str(caught.value) == message
