"""What a vector of lanes holds, kept as arithmetic for as long as it is simple.

Code for a tile works on a few elements at a time, its *lanes*. Most integers in a kernel are index
arithmetic: the same in every lane (`Uniform`), or a scalar plus a constant a lane (`Stepped`). Kept
so, they cost scalar instructions, and a load sees that its addresses are neighbours. Anything else
is a vector (`Spread`).

Exactness: integers wrap, so (base + offset) widened equals base widened plus offset only where that
addition does not wrap. It cannot where base and offset have no bit in common; each scalar carries
the set of bits that may be 1 (`ones`) to show that. Elsewhere the widened value has a *guard*, a
scalar condition under which it holds, and an `exact` vector for when it does not.

`level` is the depth of the loop nest at which a value is known: 0 is outside of all loops. Code for
a value goes to its level, so whatever does not change in the inner loop is computed before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from mlir import ir
from numpy.typing import NDArray

from tiledsl.targets.host.build import Value
from tiledsl.targets.host.machine_types import width_of

Offsets: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Uniform:
    """The same value in every lane.

    Attributes:
        value: A scalar.
        level: Where it is known.
        ones: The bits of an integer that may be 1; those of its width by default.
        constant: The value of an integer constant.
    """

    value: Value
    level: int = 0
    ones: int = -1
    constant: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Stepped:
    """`base` plus a constant a lane, wrapped to the type of `base`.

    Attributes:
        base: A scalar integer.
        offsets: One a lane.
        level: Where the base is known.
        ones: The bits of the base that may be 1.
        guard: A scalar condition under which this is right; None where it always is.
        exact: Makes the vector that is right in any case; only with a guard.
    """

    base: Value
    offsets: Offsets
    level: int
    ones: int
    guard: Value | None = None
    exact: Callable[[], ir.Value] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """A vector, one element a lane."""

    value: Value
    level: int


Simple: TypeAlias = Uniform | Stepped
Lanes: TypeAlias = Simple | Spread


def mask_of(width: int) -> int:
    """Return `width` ones."""
    return (1 << width) - 1


def scalar_part(a: Simple) -> Uniform:
    """Return what is the same in every lane."""
    return a if isinstance(a, Uniform) else Uniform(a.base, a.level, a.ones)


def known_ones(a: Simple) -> int:
    """Return the bits of the scalar part that may be 1, within its width."""
    return a.ones & mask_of(width_of(scalar_part(a).value.type))


def once(make: Callable[[], ir.Value]) -> Callable[[], ir.Value]:
    """Return a function that makes a value when first asked."""
    made: list[ir.Value] = []

    def get() -> ir.Value:
        if not made:
            made.append(make())
        return made[0]

    return get


def trailing_zeros(ones: int, width: int) -> int:
    """Return how many low bits are known to be 0."""
    return (ones & -ones).bit_length() - 1 if ones else width


def ones_of_sum(a: int, b: int, width: int) -> int:
    """Return the bits that may be 1 in x + y, given those of x and y, modulo 2**width."""
    if a & b == 0:
        return a | b
    zeros = min(trailing_zeros(a, width), trailing_zeros(b, width))
    top = min(width, max(a.bit_length(), b.bit_length()) + 1)
    return (1 << top) - 1 & -(1 << zeros)


def ones_of_difference(a: int, b: int, width: int) -> int:
    """Return the bits that may be 1 in x - y."""
    if b == 0:
        return a
    zeros = min(trailing_zeros(a, width), trailing_zeros(b, width))
    return (1 << width) - 1 & -(1 << zeros)


def ones_of_product(a: int, b: int, width: int) -> int:
    """Return the bits that may be 1 in x * y."""
    if a == 0 or b == 0:
        return 0
    zeros = min(width, trailing_zeros(a, width) + trailing_zeros(b, width))
    top = min(width, a.bit_length() + b.bit_length())
    return (1 << top) - 1 & -(1 << zeros)


def disjoint(ones: int, offsets: Offsets, width: int) -> bool:
    """Return whether adding these offsets never carries, whatever the base's `ones` are."""
    low, high = int(offsets.min()), int(offsets.max())
    if low < 0 or high >= 1 << (width - 1):
        return False
    return int(np.bitwise_or.reduce(offsets)) & ones == 0
