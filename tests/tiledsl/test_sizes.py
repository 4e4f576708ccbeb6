"""Sizes of grids and blocks."""

import subprocess
import sys

import numpy as np
import pytest

from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import constexpr
from tiledsl.sizes import cdiv, next_power_of_2


@pytest.mark.parametrize(
    ("x", "div", "quotient"), [(7, 2, 4), (8, 2, 4), (0, 3, 0), (-36, 5, -7), (7, -3, -2)]
)
def test_cdiv_rounds_up_for_any_sign(x: int, div: int, quotient: int) -> None:
    assert cdiv(x, div) == quotient
    assert cdiv(constexpr(x), div) == quotient
    assert cdiv(np.int64(x), div) == quotient


def test_cdiv_by_zero_is_an_error() -> None:
    with pytest.raises(KernelError, match=r"^expected a divisor other than 0 in cdiv$"):
        cdiv(3, 0)


@pytest.mark.parametrize(
    ("n", "power"), [(0, 1), (1, 1), (2, 2), (3, 4), (781, 1024), (1024, 1024)]
)
def test_next_power_of_2_is_the_least_that_is_large_enough(n: int, power: int) -> None:
    assert next_power_of_2(n) == power
    assert next_power_of_2(constexpr(n)) == power


def test_next_power_of_2_takes_integers_only() -> None:
    with pytest.raises(KernelError, match=r"^expected an integer in next_power_of_2, found 2\.5$"):
        next_power_of_2(2.5)  # pyright: ignore[reportArgumentType]


def test_sizes_need_no_mlir() -> None:
    code = (
        "import sys, tiledsl as tile; assert tile.cdiv(5, 2) == 3; "
        "assert tile.next_power_of_2(5) == 8; assert 'mlir' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
