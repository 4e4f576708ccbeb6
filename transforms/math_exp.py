"""Exponentials as whole-tile arithmetic: exp, exp2, expm1 and tanh in f32 and f64.

All rest on one reduction: x = n ln 2 + r with n an integer and |r| <= ln 2 / 2, so that
exp(x) = 2^n exp(r). Adding 1.5 * 2^mantissa rounds n to an integer that can also be read off the
sum's low bits; ln 2 comes in two pieces (Cody and Waite) and multiplies by fma, so that r loses
nothing. 2^n is multiplied in as two halves: the product rounds once, into subnormals too.

The polynomials are minimax approximations, by the Remez exchange in 200-bit arithmetic with the
leading coefficients rounded first and the others fitted to them. Their relative errors are below
2^-28 in f32 and 2^-60 in f64. Results stay within 1 ulp (exp, exp2) or 2 ulp (expm1, tanh).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiledsl.transforms.lanes import Lanes, fma, polynomial, select

LOG2_E = 1.4426950408889634
LN2 = 0.6931471805599453


@dataclass(frozen=True)
class Exponential:
    """What the formulas need to know of a float type.

    Attributes:
        element: The type's name.
        mantissa: Stored bits of the significand.
        bias: Of the exponent.
        ln2: ln 2 in two pieces.
        tail: q of exp(r) = 1 + r + r^2 q(r).
        lowest: exp of it and of all below is 0 (after rounding).
        highest: exp of it and of all above overflows.
        lowest2: As `lowest`, for exp2.
        highest2: As `highest`, for exp2.
        tanh_tail: p of tanh(x) = x + x^3 p(x^2) below `TANH_SMALL`.
    """

    element: str
    mantissa: int
    bias: int
    ln2: tuple[float, float]
    tail: Sequence[float]
    lowest: float
    highest: float
    lowest2: float
    highest2: float
    tanh_tail: Sequence[float]


TANH_SMALL = 0.55

SINGLE = Exponential(
    element="f32",
    mantissa=23,
    bias=127,
    ln2=(float.fromhex("0x1.62e430p-1"), float.fromhex("-0x1.05c610p-29")),
    tail=(
        0.4999999403953552,
        0.16666516661643982,
        0.04166810214519501,
        0.008369192481040955,
        0.001383890281431377,
    ),
    lowest=-104.0,
    highest=89.0,
    lowest2=-150.0,
    highest2=128.0,
    tanh_tail=(
        -0.33333319425582886,
        0.13332636654376984,
        -0.05385684221982956,
        0.021088233217597008,
        -0.006295476108789444,
    ),
)
DOUBLE = Exponential(
    element="f64",
    mantissa=52,
    bias=1023,
    ln2=(float.fromhex("0x1.62e42fefa39efp-1"), float.fromhex("0x1.abc9e3b39803fp-56")),
    tail=(
        0.5,
        0.16666666666666677,
        0.04166666666666667,
        0.008333333333321482,
        0.0013888888888878733,
        0.0001984126988628555,
        2.4801587349855416e-05,
        2.7557244202703727e-06,
        2.755724050216958e-07,
        2.5109001540839706e-08,
        2.092826340062694e-09,
    ),
    lowest=-746.0,
    highest=710.0,
    lowest2=-1076.0,
    highest2=1024.0,
    tanh_tail=(
        -0.333333333333333,
        0.1333333333332656,
        -0.053968253963715226,
        0.021869488384277165,
        -0.008863232571286201,
        0.0035920916849749864,
        -0.0014555403716580693,
        0.0005884333274548417,
        -0.0002333507860396486,
        8.326904410730115e-05,
        -1.946346767762315e-05,
    ),
)


def clamp_keeping_nan(x: Lanes, low: float, high: float) -> Lanes:
    """Return x within [low, high]; NaN stays NaN."""
    x = select(x.gt(high), high, x)
    return select(x.lt(low), low, x)


def _nearest_integer(
    x: Lanes, scale: float, format_: Exponential, bias: int
) -> tuple[Lanes, Lanes]:
    """Return the integer n nearest to scale * x, and an integer with n + bias in its low bits."""
    magic = 1.5 * 2.0**format_.mantissa + bias
    shifted = fma(x, scale, magic)
    return shifted - magic, shifted.bits()


def _reduced(x: Lanes, n: Lanes, format_: Exponential) -> Lanes:
    high, low = format_.ln2
    return fma(n, -low, fma(n, -high, x))


def _scaled(p: Lanes, n_and_twice_bias: Lanes, format_: Exponential) -> Lanes:
    """Return p * 2^n, rounded once; the integer holds n + 2 * bias in its low bits."""
    half = n_and_twice_bias.shr_s(1)
    other = n_and_twice_bias - half
    first = (half << format_.mantissa).bitcast(format_.element)
    second = (other << format_.mantissa).bitcast(format_.element)
    return p * first * second


def _expm1_near_zero(r: Lanes, format_: Exponential) -> Lanes:
    return fma(r * r, polynomial(r, format_.tail), r)


def exp(x: Lanes, format_: Exponential) -> Lanes:
    """Return e^x."""
    x = clamp_keeping_nan(x, format_.lowest, format_.highest)
    n, integer = _nearest_integer(x, LOG2_E, format_, 2 * format_.bias)
    r = _reduced(x, n, format_)
    return _scaled(_one_plus(r, format_), integer, format_)


def _one_plus(r: Lanes, format_: Exponential) -> Lanes:
    """Return exp(r): r stays outside the inner sum, so that its rounding counts least."""
    return fma(r, polynomial(r, (1.0, *format_.tail)), 1.0)


def exp2(x: Lanes, format_: Exponential) -> Lanes:
    """Return 2^x; exact where x is an integer."""
    x = clamp_keeping_nan(x, format_.lowest2, format_.highest2)
    n, integer = _nearest_integer(x, 1.0, format_, 2 * format_.bias)
    r = (x - n) * LN2
    return _scaled(_one_plus(r, format_), integer, format_)


def exp_through_exp2(x: Lanes) -> Lanes:
    """Return e^x in f32 where 2^x is an instruction good to some 2 ulp.

    x log2 e is split into an integer n and a rest, the rest to twice the precision: the instruction
    sees the rest and cannot magnify its rounding. Only n is clamped, to -126 to 127, so that the
    rest grows for an x out of range and the instruction itself gives infinity, zero or NaN. It may
    take subnormal numbers for zero: as a rest they give 1, as a result they stand for less than
    2^-252. The method is that of CUDA's `expf`; a clamp to 0 to 1 costs nothing on NVIDIA.
    """
    log2_e, log2_e_low = float.fromhex("0x1.715476p+0"), float.fromhex("0x1.4ae0c0p-26")
    least, steps = -126, 253
    share = fma(x, log2_e / steps, -least / steps)
    share = share.binary("arith.maxnumf", 0.0).binary("arith.minnumf", 1.0)
    magic = 1.5 * 2.0**23 + least + 127
    shifted = fma(share, float(steps), magic)
    rest = fma(x, log2_e_low, fma(x, log2_e, (magic - least) - shifted))
    return rest.approximate("math.exp2") * (shifted.bits() << 23).bitcast("f32")


def expm1(x: Lanes, format_: Exponential) -> Lanes:
    """Return e^x - 1 without cancellation near 0."""
    clamped = clamp_keeping_nan(x, -40.0, format_.highest)
    # 2^(n - 1), doubled at the end: 2^n itself overflows before e^x does.
    n, integer = _nearest_integer(clamped, LOG2_E, format_, format_.bias - 1)
    r = _reduced(clamped, n, format_)
    scale = (integer << format_.mantissa).bitcast(format_.element)
    half = fma(scale, _expm1_near_zero(r, format_), scale - 0.5)
    return (half + half).binary("math.copysign", x)


def tanh(x: Lanes, format_: Exponential, exponential: Lanes | None = None) -> Lanes:
    """Return the hyperbolic tangent.

    Near 0 an odd polynomial, elsewhere 1 - 2 / (exp(2 |x|) + 1).

    Args:
        x: The argument.
        format_: Constants of its type.
        exponential: exp(2 |x|) where the caller has a cheaper one than `exp`.
    """
    magnitude = x.unary("math.absf")
    if exponential is None:
        exponential = exp(magnitude + magnitude, format_)
    large = 1.0 - 2.0 / (exponential + 1.0)
    square = x * x
    small = fma(square * magnitude, polynomial(square, format_.tanh_tail), magnitude)
    return select(magnitude.lt(TANH_SMALL), small, large).binary("math.copysign", x)
