"""Logarithms as whole-tile arithmetic: log, log2, log10 and log1p in f32 and f64.

x = 2^e (1 + f) with 1 + f in [2/3, 4/3) (f32) or [sqrt(1/2), sqrt(2)) (f64), so that e = 0 around 1
and nothing cancels there. log(1 + f) comes as f + tail with |tail| well below |f|, which leaves f
exact through the multiplication by 1 / ln(base), whose constant has two pieces.

f32: log(1 + f) = f - f^2/2 + f^3 p(f). f64: with s = f / (2 + f), log(1 + f) =
f - (f^2/2 - s (f^2/2 + s^2 p(s^2))), the form of FreeBSD's msun `e_log.c` (Sun Microsystems, 1993).
Both p are minimax, by the Remez exchange in 200-bit arithmetic. Results stay within 2 ulp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tiledsl.transforms.lanes import Lanes, fma, polynomial, select


@dataclass(frozen=True)
class Logarithm:
    """What the formulas need to know of a float type.

    Attributes:
        element: The type's name.
        mantissa: Stored bits of the significand.
        smallest: The smallest normal number.
        infinity: The bits of infinity.
        one: The bits of 1.0.
        low: The bits of the lower end of 1 + f.
        tail: p of the module's docstring.
    """

    element: str
    mantissa: int
    smallest: float
    infinity: int
    one: int
    low: int
    tail: Sequence[float]


SINGLE = Logarithm(
    element="f32",
    mantissa=23,
    smallest=2.0**-126,
    infinity=0x7F800000,
    one=0x3F800000,
    low=0x3F2AAAAB,
    tail=(
        0.33333224058151245,
        -0.24999688565731049,
        0.20010028779506683,
        -0.1668548285961151,
        0.14011217653751373,
        -0.12114705890417099,
        0.13960640132427216,
        -0.13194888830184937,
    ),
)
DOUBLE = Logarithm(
    element="f64",
    mantissa=52,
    smallest=2.0**-1022,
    infinity=0x7FF0000000000000,
    one=0x3FF0000000000000,
    low=0x3FE6A09E667F3BCD,
    tail=(
        0.6666666666666666,
        0.40000000000004954,
        0.2857142856939601,
        0.2222222260977927,
        0.1818177810054932,
        0.15387000957888322,
        0.13251858424975527,
        0.13237531341053974,
    ),
)


@dataclass(frozen=True)
class Base:
    """The base of a logarithm: 1 / ln(base) and log_base(2), each in two pieces by element type."""

    per_ln: dict[str, tuple[float, float]]
    per_octave: dict[str, tuple[float, float]]


# Second pieces: the constant to 40 digits less the first piece.
E = Base(
    per_ln={"f32": (1.0, 0.0), "f64": (1.0, 0.0)},
    per_octave={
        "f32": (float.fromhex("0x1.62e430p-1"), float.fromhex("-0x1.05c610p-29")),
        "f64": (float.fromhex("0x1.62e42fefa39efp-1"), float.fromhex("0x1.abc9e3b39803fp-56")),
    },
)
TWO = Base(
    per_ln={
        "f32": (float.fromhex("0x1.715476p+0"), float.fromhex("0x1.4ae0c0p-26")),
        "f64": (float.fromhex("0x1.71547652b82fep+0"), float.fromhex("0x1.777d0ffda0d24p-56")),
    },
    per_octave={"f32": (1.0, 0.0), "f64": (1.0, 0.0)},
)
TEN = Base(
    per_ln={
        "f32": (float.fromhex("0x1.bcb7b2p-2"), float.fromhex("-0x1.5b235ep-27")),
        "f64": (float.fromhex("0x1.bcb7b1526e50ep-2"), float.fromhex("0x1.95355baaafad3p-57")),
    },
    per_octave={
        "f32": (float.fromhex("0x1.344136p-2"), float.fromhex("-0x1.ec10c0p-27")),
        "f64": (float.fromhex("0x1.34413509f79ffp-2"), float.fromhex("-0x1.9dc1da994fd21p-59")),
    },
)


def log(x: Lanes, format_: Logarithm, base: Base = E) -> Lanes:
    """Return the logarithm of x: -inf at 0, NaN below."""
    tiny = x.lt(format_.smallest)
    lift = format_.mantissa + 1
    normal = select(tiny, x * 2.0**lift, x)
    exponent = _exponent(normal.bits(), format_)
    f = (normal.bits() - (exponent << format_.mantissa)).bitcast(format_.element) - 1.0
    e = _to_float(exponent, format_) + select(tiny, x.constant(-lift), x.constant(0))
    result = _combined(e, f, _tail(f, format_), format_, base)
    return _with_special_cases(x, result, format_)


def log1p(x: Lanes, format_: Logarithm) -> Lanes:
    """Return log(1 + x) without cancellation near 0.

    With e the exponent of 1 + x rounded, f = x 2^-e + (2^-e - 1) needs one rounding only.
    """
    u = x + 1.0
    exponent = _exponent(u.bits(), format_)
    shift = exponent << format_.mantissa
    # 4 * 2^-e is a normal number for every e; 2^-e is not.
    scale = (x.bits().constant(format_.one + (2 << format_.mantissa)) - shift).bitcast(
        format_.element
    )
    f = (x.bits() - shift).bitcast(format_.element) + fma(scale, 0.25, -1.0)
    # Where e is 0, f is x itself, which may be too small for its exponent to be meddled with.
    f = select(exponent.eq(0), x, f)
    e = _to_float(exponent, format_)
    result = _combined(e, f, _tail(f, format_), format_, E)
    return _with_special_cases(u, result, format_).binary("math.copysign", x)


def _exponent(bits: Lanes, format_: Logarithm) -> Lanes:
    """Return e of x = 2^e (1 + f) from the bits of x, as an integer."""
    return (bits - format_.low).shr_s(format_.mantissa)


def _to_float(exponent: Lanes, format_: Logarithm) -> Lanes:
    if format_.element == "f64":
        # Vector units convert 32-bit integers; 64-bit ones take many instructions.
        exponent = exponent.convert("arith.trunci", "i32")
    return exponent.convert("arith.sitofp", format_.element)


def _tail(f: Lanes, format_: Logarithm) -> Lanes:
    """Return log(1 + f) - f."""
    if format_.element == "f32":
        return (f * f) * fma(f, polynomial(f, format_.tail), -0.5)
    s = f / (f + 2.0)
    z = s * s
    half_square = f * f * 0.5
    return fma(s, fma(z, polynomial(z, format_.tail), half_square), -half_square)


def _combined(e: Lanes, f: Lanes, tail: Lanes, format_: Logarithm, base: Base) -> Lanes:
    """Return log_base(2^e (1 + f)), the small parts added first."""
    scale, scale_low = base.per_ln[format_.element]
    octave, octave_low = base.per_octave[format_.element]
    if base is E:
        return fma(e, octave, f + fma(e, octave_low, tail))
    rest = fma(f, scale_low, tail * scale)
    if octave_low:
        rest = fma(e, octave_low, rest)
    return fma(e, octave, fma(f, scale, rest))


def _with_special_cases(x: Lanes, result: Lanes, format_: Logarithm) -> Lanes:
    # One unsigned comparison singles out the positive finite numbers.
    ordinary = (x.bits() - 1).ult(format_.infinity - 1)
    special = select(x.lt(0.0), x.constant(math.nan), select(x.eq(0.0), -math.inf, x))
    return select(ordinary, result, special)
