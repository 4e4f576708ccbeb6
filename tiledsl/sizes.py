"""Sizes of grids and blocks: plain integers for a launcher, which needs no MLIR for them."""

from __future__ import annotations

from typing import Any, cast, overload

import numpy as np

from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import constexpr, unwrap


@overload
def cdiv(x: int, div: int) -> int: ...
@overload
def cdiv(x: Any, div: Any) -> Any: ...
def cdiv(x: Any, div: Any) -> Any:
    """Return x / div rounded toward positive infinity, exactly, for integers of any sign.

    Python integers give a Python integer, in and outside a kernel; run-time integers in a kernel a
    value of their promoted type.

    Raises:
        KernelError: An operand is no integer, or `div` is 0.
    """
    a, b = unwrap(x), unwrap(div)
    if type(a) is int and type(b) is int and b:
        return -(-a // b)
    from tiledsl.language import core  # it needs MLIR

    return core.cdiv(a, b)


def next_power_of_2(n: int | constexpr) -> int:
    """Return the least power of two that is at least n (1 for n below 1).

    Raises:
        KernelError: n is no integer known at compile time.
    """
    number: Any = unwrap(n)
    if isinstance(number, np.generic):
        number = cast("Any", number).item()
    if type(number) is not int:
        raise KernelError(f"expected an integer in next_power_of_2, found {number!r}")
    return 1 << max(0, number - 1).bit_length()
