"""Prints and assertions on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from tests.tiledsl.language.traced import traced
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import bfloat16, bool_, float32, int32, uint8
from tiledsl.language import debug
from tiledsl.targets.target import Options

CHECKED = Options(debug=True)


def test_a_print_says_which_integers_are_signed() -> None:
    module = str(
        traced(
            lambda a, b, c: debug.device_print("x", a, b, c, hex=True),
            (int32, (4,)),
            uint8,
            (bfloat16, (4,)),
        )
    )
    lines = [line for line in module.splitlines() if "tile.print" in line]
    assert len(lines) == 3
    assert all('prefix = "x"' in line and "hex = true" in line for line in lines)
    assert ["signed = false" in line for line in lines] == [False, True, True]
    assert "arith.extf %arg2 : tensor<4xbf16> to tensor<4xf32>" in module


def test_a_print_of_text_alone_has_no_values() -> None:
    assert '"tile.print"()' in str(traced(lambda: debug.device_print("here")))


def test_an_assertion_is_there_with_debug_alone() -> None:
    def kernel(c: Any) -> None:
        debug.device_assert(c, "no")

    assert "tile.assert" not in str(traced(kernel, bool_))
    assert 'message = "' in str(traced(kernel, bool_, options=CHECKED))


def test_an_assertion_takes_numbers_and_a_mask() -> None:
    module = str(
        traced(lambda v, m: debug.device_assert(v, mask=m), (float32, (4,)), bool_, options=CHECKED)
    )
    assert "arith.cmpf une" in module
    assert "assertion failed" in module
    assert "(tensor<4xi1>, tensor<4xi1>)" in module


def test_a_barrier_is_an_op() -> None:
    assert '"tile.barrier"()' in str(traced(debug.debug_barrier))


@pytest.mark.parametrize(
    ("function", "kinds", "message"),
    [
        (
            debug.device_print,
            [int32],
            "expected a string as the first argument of `device_print`, found int32 scalar",
        ),
        (
            lambda c: debug.device_assert(c, cast("Any", 3)),
            [bool_],
            "expected `msg` to be a string, found Python int 3",
        ),
    ],
)
def test_wrong_arguments_get_a_message(
    function: Callable[..., Any], kinds: list[Any], message: str
) -> None:
    with pytest.raises(KernelError) as caught:
        traced(function, *kinds)
    assert str(caught.value) == message
