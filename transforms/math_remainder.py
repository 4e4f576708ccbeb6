"""The exact remainder of float division (C's fmod), as whole-tile arithmetic.

Dividing and multiplying back is wrong as soon as the quotient has more bits than a significand.
Long division of the significands, both scaled to [1, 2), makes as many bits of the quotient at a
time as a float holds exactly, with a correction by one divisor, so that every step is exact. The
number of steps covers the largest difference of exponents; a step with nothing left to divide
changes nothing. Steps are a loop, or, where a loop cannot stand (combine functions), straight-line
code.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from mlir import ir

from tiledsl.transforms.lanes import Lanes, constant, fma, scalar_type, select


@dataclass(frozen=True)
class Format:
    """What the formula needs to know of a float type.

    Attributes:
        element: The type's name.
        mantissa: Stored bits of the significand.
        bias: Of the exponent.
        chunk: Bits of the quotient that one step makes: below the significand's by 2.
        steps: Steps that the largest difference of exponents takes.
    """

    element: str
    mantissa: int
    bias: int
    chunk: int
    steps: int


SINGLE = Format("f32", 23, 127, 22, -(-(254 + 23) // 22))
DOUBLE = Format("f64", 52, 1023, 51, -(-(2046 + 52) // 51))


def remainder(x: Lanes, y: Lanes, format_: Format, straight: bool) -> Lanes:
    """Return x - y trunc(x / y), exactly; of the sign of x.

    NaN where x is infinite or y is 0 (or either is NaN); x where y is infinite.

    Args:
        x: Dividend.
        y: Divisor.
        format_: Constants of their type.
        straight: Whether to unroll the loop.
    """
    dividend, divisor = x.unary("math.absf"), y.unary("math.absf")
    m, e = _split(dividend, format_)
    d, f = _split(divisor, format_)
    # The first digit of the division, so that m < d from there on.
    left = e - f
    first = select(m.ge(d) & left.ge(0), m - d, m)

    def step(m: Lanes, left: Lanes) -> tuple[Lanes, Lanes]:
        bits = left.min_s(format_.chunk).max_s(0)
        scaled = m * _power_of_two(bits, format_)
        quotient = (scaled / d).unary("math.floor")
        rest = fma(-quotient, d, scaled)
        # The quotient's rounding may have carried it past the next integer.
        return select(rest.lt(0.0), rest + d, rest), left - bits

    m, _ = _repeat(step, first, left, format_.steps, straight)
    result = _scaled(m, f, format_)
    # No digit at all: x is the smaller one.
    result = select(dividend.lt(divisor), dividend, result)
    ordinary = dividend.lt(math.inf) & divisor.gt(0.0)
    return select(ordinary, result, math.nan).binary("math.copysign", x)


def _split(x: Lanes, format_: Format) -> tuple[Lanes, Lanes]:
    """Return the significand of x >= 0 in [1, 2) and its exponent, for subnormals too."""
    lift = format_.mantissa + 1
    tiny = x.lt(2.0 ** (1 - format_.bias))
    bits = select(tiny, x * 2.0**lift, x).bits()
    exponent = bits.shr_u(format_.mantissa) - format_.bias
    exponent = exponent - select(tiny, exponent.constant(lift), exponent.constant(0))
    one = format_.bias << format_.mantissa
    stored = bits & ((1 << format_.mantissa) - 1)
    return (stored | one).bitcast(format_.element), exponent


def _power_of_two(exponent: Lanes, format_: Format) -> Lanes:
    return ((exponent + format_.bias) << format_.mantissa).bitcast(format_.element)


def _scaled(m: Lanes, exponent: Lanes, format_: Format) -> Lanes:
    """Return m 2^exponent, exact as a remainder is, in two steps as 2^exponent may be subnormal."""
    half = exponent.shr_s(1)
    first = m * _power_of_two(half, format_)
    return first * _power_of_two(exponent - half, format_)


Step = Callable[[Lanes, Lanes], tuple[Lanes, Lanes]]


def _repeat(step: Step, m: Lanes, left: Lanes, count: int, straight: bool) -> tuple[Lanes, Lanes]:
    if straight:
        for _ in range(count):
            m, left = step(m, left)
        return m, left
    index = scalar_type("i32", m.type.context)
    bounds = [constant(index, n) for n in (0, count, 1)]
    # The bindings' stubs leave the attributes' types open.
    create = cast("Any", ir.Operation).create
    loop = create(
        "scf.for",
        results=[m.type, left.type],
        operands=[*bounds, m.value, left.value],
        regions=1,
    )
    block = cast("Any", ir.Block).create_at_start(
        loop.regions[0], [index, m.type, left.type], [ir.Location.current] * 3
    )
    with ir.InsertionPoint(block):
        results = step(Lanes(block.arguments[1]), Lanes(block.arguments[2]))
        create("scf.yield", operands=[v.value for v in results])
    return Lanes(loop.results[0]), Lanes(loop.results[1])
