"""The error function as whole-tile arithmetic, in f32 and f64.

Below 1 an odd polynomial; above, erf(x) = 1 - exp(-x - x R(x)), R being a polynomial fitted to
log(erfc(x)): the exponential's error counts little there, for erfc(1) is below 0.16. The split is
N. Juffa's; the coefficients are minimax by the Remez exchange in 200-bit arithmetic. From
`Error.one` on the result is 1. Within 1.5 ulp.

Where 2^x is an instruction, f32 takes erfc from it in one step: 1 - 2^(x S(x)), with the same R and
log2 e multiplied in. What is beyond `Error.one` needs no care there, the power is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlir import ir

from tiledsl.transforms import math_exp
from tiledsl.transforms.fold import constant_number
from tiledsl.transforms.lanes import Lanes, fma, polynomial, select
from tiledsl.transforms.math_exp import Exponential


@dataclass(frozen=True)
class Error:
    """What the formula needs to know of a float type.

    Attributes:
        exponential: For its exp.
        small: p of erf(x) = x + x p(x^2) for |x| < 1.
        large: R of the module's docstring, for 1 <= |x| <= one.
        one: erf of it and of all above rounds to 1.
    """

    exponential: Exponential
    small: Sequence[float]
    large: Sequence[float]
    one: float


SINGLE = Error(
    exponential=math_exp.SINGLE,
    small=(
        0.12837916612625122,
        -0.3761262893676758,
        0.11283618211746216,
        -0.02685512602329254,
        0.005190733354538679,
        -0.0008030750323086977,
        7.920303323771805e-05,
    ),
    large=(
        0.12864848971366882,
        0.6351513266563416,
        0.10623684525489807,
        -0.023762019351124763,
        0.0036424300633370876,
        -0.0003227950946893543,
        1.1230417840124574e-05,
    ),
    one=3.93,
)
DOUBLE = Error(
    exponential=math_exp.DOUBLE,
    small=(
        0.1283791670955126,
        -0.3761263890318375,
        0.11283791670954885,
        -0.026866170645077868,
        0.005223977624828386,
        -0.0008548326981423492,
        0.00012055331132896904,
        -1.4925595771093871e-05,
        1.6461008464941053e-06,
        -1.6350396128854738e-07,
        1.4660328340142412e-08,
        -1.1374955106738396e-09,
        5.960685542654337e-11,
    ),
    large=(
        0.12837915678597978,
        0.6366197752103769,
        0.10277313740400028,
        -0.019131877525702463,
        -0.00019770364192123448,
        0.001670740748384063,
        -0.0005492146153844713,
        -2.406610055872327e-05,
        0.00011206085931747267,
        -6.552258491327656e-05,
        2.469120364297792e-05,
        -6.971344699777135e-06,
        1.5384741256460399e-06,
        -2.6798072769836457e-07,
        3.660150853415591e-08,
        -3.844184002479915e-09,
        2.9980441083327346e-10,
        -1.63471917566131e-11,
        5.558303844362344e-13,
        -8.863997800169469e-15,
    ),
    one=5.93,
)


_POWER = (
    -1.6282955408096313,
    -0.9163296818733215,
    -0.15326736867427826,
    0.03428134694695473,
    -0.005254915915429592,
    0.00046569487312808633,
    -1.6202067854464985e-05,
)
"""S of the module's docstring, -(1 + R) log2 e, in f32."""
_SHORT_POWER = (
    -1.6278890371322632,
    -0.9185094833374023,
    -0.14866536557674408,
    0.02958979457616806,
    -0.002944088075309992,
)
"""T of |erf(x)| = 1 - 2^(|x| T(|x|)) from 0 on: minimax for the error of erf, which is absolute."""


def erf_through_exp2(x: Lanes) -> Lanes:
    """Return the error function in f32 where 2^x is an instruction good to some 2 ulp."""
    magnitude = x.unary("math.absf")
    large = _one_less_power(x, magnitude, _POWER)
    return select(magnitude.lt(1.0), _near_zero(x, SINGLE), large)


def short_erf(x: Lanes) -> Lanes:
    """Return the error function in f32 through 2^x with an absolute error below 2^-20.

    A constant that x was multiplied by goes into the polynomial, and there is no sign to copy from
    a magnitude.
    """
    scale, inner = _taken_apart(x)
    coefficients = [c * scale ** (power + 1) for power, c in enumerate(_SHORT_POWER)]
    if _is(inner, "math.absf"):
        return _one_less_power(None, inner, coefficients)
    return _one_less_power(inner, inner.unary("math.absf"), coefficients)


_SCALES = (2.0**-8, 2.0**8)
"""Between these a constant may go into a polynomial: its powers are ordinary numbers."""


def _taken_apart(x: Lanes) -> tuple[float, Lanes]:
    """Return a positive constant and what it is multiplied by to give x."""
    if _is(x, "arith.mulf"):
        left, right = x.value.owner.operation.operands
        for constant, other in ((right, left), (left, right)):
            number = constant_number(constant)
            if isinstance(number, ir.FloatAttr) and _SCALES[0] <= number.value <= _SCALES[1]:
                return number.value, Lanes(other)
    return 1.0, x


def _is(x: Lanes, name: str) -> bool:
    maker = x.value.owner
    return not isinstance(maker, ir.Block) and maker.operation.name == name


def _one_less_power(x: Lanes | None, magnitude: Lanes, exponent: Sequence[float]) -> Lanes:
    power = (magnitude * polynomial(magnitude, exponent)).approximate("math.exp2")
    rest = 1.0 - power
    return rest if x is None else rest.binary("math.copysign", x)


def _near_zero(x: Lanes, format_: Error) -> Lanes:
    return fma(x, polynomial(x * x, format_.small), x)


def erf(x: Lanes, format_: Error) -> Lanes:
    """Return the error function of x."""
    small = _near_zero(x, format_)
    magnitude = x.unary("math.absf")
    inside = select(magnitude.gt(format_.one), format_.one, magnitude)
    power = fma(inside, -polynomial(inside, format_.large), -inside)
    large = (1.0 - math_exp.exp(power, format_.exponential)).binary("math.copysign", x)
    return select(magnitude.lt(1.0), small, large)
