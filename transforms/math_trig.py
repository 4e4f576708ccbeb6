"""Sine and cosine as whole-tile arithmetic, in f32 and f64, exact in reduction for every argument.

|x| = q pi/2 + r with |r| <= pi/4; q mod 4 chooses between the kernels of sin and cos and their
sign.

The reduction is Payne and Hanek's, without a branch: |x| = m 2^e, and of the binary expansion of
2/pi only a window of bits that begins at a position given by e matters, for higher bits times m
give multiples of 4. The window is picked from constants by a ladder of selects (one rung a bit of
the word index) and a shift; an integer product then has q mod 4 in its top two bits and the
fraction below, long enough that the worst cancellation (some 30 bits in f32, 62 in f64; Muller,
Elementary Functions) leaves more than a full significand. The fraction is split into floats that
convert exactly and multiplied by pi/2 in two pieces.

The kernels' coefficients: f32 minimax by the Remez exchange in 200-bit arithmetic; f64 those of
FreeBSD's msun `k_sin.c` and `k_cos.c` (Sun Microsystems, 1993). Within 1.5 ulp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tiledsl.transforms.lanes import Lanes, fma, polynomial, select

# 2/pi after the binary point, 1216 - 54 bits of it are used: every f64 exponent.
TWO_OVER_PI = int(
    "a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561b7246e3a424dd2e0"
    "06492eea09d1921cfe1deb1cb129a73ee88235f52ebb4484e99c7026b45f7e413991d639835339f4"
    "9c845f8bbdf9283b1ff897ffde05980fef2f118b5a0a6d1f6d367ecf27cb09b74f463f669e5fea2d"
    "7527bac7ebe5f17b3d0739f78a5292ea6bfb5fb11f8d5d0856033046fc7b6babf0cfbc209af4361d",
    16,
)
TWO_OVER_PI_BITS = 1280

SIN_F32 = (-0.16666655242443085, 0.008332191035151482, -0.00019518604676704854)
COS_F32 = (0.04166664555668831, -0.00138873013202101, 2.4430670237052254e-05)
SIN_F64 = (
    -1.66666666666666324348e-01,
    8.33333333332248946124e-03,
    -1.98412698298579493134e-04,
    2.75573137070700676789e-06,
    -2.50507602534068634195e-08,
    1.58969099521155010221e-10,
)
COS_F64 = (
    4.16666666666666019037e-02,
    -1.38888888888741095749e-03,
    2.48015872894767294178e-05,
    -2.75573143513906633035e-07,
    2.08757232129817482790e-09,
    -1.13596475577881948265e-11,
)
PI_2_F32 = (float.fromhex("0x1.921fb6p+0"), float.fromhex("-0x1.777a5cp-25"))
PI_2_THIRD = float.fromhex("-0x1.ee59da0000000p-50")
PI_2_F64 = (float.fromhex("0x1.921fb54442d18p+0"), float.fromhex("0x1.1a62633145c07p-54"))


def sin(x: Lanes, element: str) -> Lanes:
    """Return the sine of x in radians; NaN for infinities."""
    quadrant, r, low = _REDUCE[element](x.unary("math.absf"))
    odd = (quadrant & 1).ne(0)
    value = select(odd, _cos_kernel(r, low, element), _sin_kernel(r, low, element))
    bits = value.bits()
    flips = _sign_from(quadrant, bits) ^ (x.bits() & _sign_mask(element))
    return _nan_unless_finite(x, (bits ^ flips).bitcast(element))


def cos(x: Lanes, element: str) -> Lanes:
    """Return the cosine of x in radians; NaN for infinities."""
    quadrant, r, low = _REDUCE[element](x.unary("math.absf"))
    odd = (quadrant & 1).ne(0)
    value = select(odd, _sin_kernel(r, low, element), _cos_kernel(r, low, element))
    bits = value.bits()
    return _nan_unless_finite(x, (bits ^ _sign_from(quadrant + 1, bits)).bitcast(element))


def sin_of_small(x: Lanes) -> Lanes:
    """Return the sine of an f32 of moderate size: 2 ulp or 2^-24 below 1e4, useless beyond 1e5."""
    quadrant, r = _reduce_small(x)
    odd = (quadrant & 1).ne(0)
    value = select(odd, _cos_kernel(r, None, "f32"), _sin_kernel(r, None, "f32")).bits()
    return (value ^ _sign_from(quadrant, value)).bitcast("f32")


def cos_of_small(x: Lanes) -> Lanes:
    """Return the cosine of an f32 of moderate size, as `sin_of_small`."""
    quadrant, r = _reduce_small(x)
    odd = (quadrant & 1).ne(0)
    value = select(odd, _sin_kernel(r, None, "f32"), _cos_kernel(r, None, "f32")).bits()
    return (value ^ _sign_from(quadrant + 1, value)).bitcast("f32")


def _reduce_small(x: Lanes) -> tuple[Lanes, Lanes]:
    """Reduce by pi/2 in three pieces of 24 bits (Cody and Waite); q comes in the low bits."""
    magic = 1.5 * 2.0**23
    shifted = fma(x, 2.0 / math.pi, magic)
    q = shifted - magic
    r = fma(q, -PI_2_F32[0], x)
    r = fma(q, -PI_2_F32[1], r)
    return shifted.bits(), fma(q, -PI_2_THIRD, r)


def _sign_mask(element: str) -> int:
    return 1 << (int(element[1:]) - 1)


def _sign_from(quadrant: Lanes, bits: Lanes) -> Lanes:
    """Return the sign bit set where bit 1 of the quadrant is."""
    width = _width(bits)
    return (quadrant & 2) << (width - 2)


def _width(integers: Lanes) -> int:
    return int(str(integers.type).rstrip(">").rsplit("i", 1)[1])


def _nan_unless_finite(x: Lanes, result: Lanes) -> Lanes:
    return select(x.unary("math.absf").lt(math.inf), result, math.nan)


def _sin_kernel(r: Lanes, low: Lanes | None, element: str) -> Lanes:
    """Return sin(r + low) for |r| <= pi/4."""
    z = r * r
    if element == "f32" or low is None:
        return fma(r * z, polynomial(z, SIN_F32), r)
    first, *rest = SIN_F64
    v = z * r
    return r - ((z * (low * 0.5 - v * polynomial(z, rest)) - low) - v * first)


def _cos_kernel(r: Lanes, low: Lanes | None, element: str) -> Lanes:
    """Return cos(r + low) for |r| <= pi/4."""
    z = r * r
    if element == "f32" or low is None:
        return fma(z, fma(z, polynomial(z, COS_F32), -0.5), 1.0)
    half = z * 0.5
    w = 1.0 - half
    return w + (((1.0 - w) - half) + (z * (z * polynomial(z, COS_F64)) - r * low))


def _words(offset: int, width: int, count: int) -> list[int]:
    """Return words of the bits of 2/pi, `offset` zeros coming before the first bit of it."""
    padded = TWO_OVER_PI << 64  # room for the last word
    total = offset + TWO_OVER_PI_BITS + 64
    return [(padded >> (total - width * (i + 1))) & ((1 << width) - 1) for i in range(count)]


def _ladder(words: Sequence[Lanes], index: Lanes, rungs: int, wanted: int) -> list[Lanes]:
    """Return words[index], words[index + 1], ...: `wanted` of them, index < 2^rungs."""
    for rung in reversed(range(rungs)):
        step = 1 << rung
        here = (index & step).ne(0)
        # What later rungs may still skip, and what is wanted after them.
        kept = wanted + step - 1
        words = [select(here, words[i + step], words[i]) for i in range(kept)]
    return list(words)


def _reduce_f32(x: Lanes) -> tuple[Lanes, Lanes, None]:
    """Reduce x >= 0: q mod 4 as i32, and r."""
    bits = x.bits()
    exponent = bits.shr_u(23)
    position = (exponent - 127).max_s(0).min_s(127)
    mantissa = (bits & 0x7FFFFF) | 0x800000
    doubled = select(exponent.ge(127), mantissa << 1, mantissa).convert("arith.extui", "i64")
    shift = (position & 31).convert("arith.extui", "i64")
    words = _words(26, 32, 7)
    pairs = [doubled.constant((words[i] << 32) | words[i + 1]) for i in range(6)]
    window = [
        (pair << shift).shr_u(32) for pair in _ladder(pairs, position.shr_u(5), rungs=2, wanted=3)
    ]
    middle = doubled * window[1] + (doubled * window[2]).shr_u(32)
    top = doubled * window[0] + middle.shr_u(32)
    product = (top << 32) | (middle & 0xFFFFFFFF)
    quadrant = (product + (1 << 61)).shr_u(62).convert("arith.trunci", "i32")
    # The signed fraction of a quadrant in units of 2^-62, split into 24 bits and the rest.
    fraction = (product << 2).shr_s(2)
    high = (fraction + (1 << 37)).shr_s(38)
    low = (fraction - (high << 38)).shr_s(6)
    high_f, low_f = (
        part.convert("arith.trunci", "i32").convert("arith.sitofp", "f32") for part in (high, low)
    )
    first, second = (piece * 2.0**-24 for piece in PI_2_F32)
    head = high_f * first
    error = fma(high_f, first, -head)
    r = head + fma(high_f, second, fma(low_f, first * 2.0**-32, error))
    near = x.lt(math.pi / 4)
    return select(near, 0, quadrant), select(near, x, r), None


def _reduce_f64(x: Lanes) -> tuple[Lanes, Lanes, Lanes]:
    """Reduce x >= 0: q mod 4 as i64, and r in two pieces."""
    bits = x.bits()
    exponent = bits.shr_u(52)
    position = (exponent - 1023).max_s(0).min_s(1023)
    mantissa = (bits & ((1 << 52) - 1)) | (1 << 52)
    doubled = select(exponent.ge(1023), mantissa << 1, mantissa)
    high, low = _product_f64(doubled, position)
    quadrant = (high + (1 << 61)).shr_u(62)
    # The signed fraction of a quadrant: 62 bits here, and 64 below, made signed in their turn.
    fraction = (high << 2).shr_s(2) + low.shr_u(63)
    head = (fraction + (1 << 8)).shr_s(9)
    rest = (fraction - (head << 9)).convert("arith.sitofp", "f64")
    rest = fma(low.convert("arith.sitofp", "f64"), 2.0**-64, rest)
    head_f = head.convert("arith.sitofp", "f64")
    first, second = (piece * 2.0**-53 for piece in PI_2_F64)
    product = head_f * first
    error = fma(head_f, first, -product)
    tail = fma(head_f, second, fma(rest, first * 2.0**-9, error))
    r = product + tail
    near = x.lt(math.pi / 4)
    return (
        select(near, 0, quadrant),
        select(near, x, r),
        select(near, 0.0, (product - r) + tail),
    )


def _product_f64(mantissa: Lanes, position: Lanes) -> tuple[Lanes, Lanes]:
    """Return the top 128 bits of mantissa * window modulo 4, two of them before the point.

    The window has 192 bits; the product is made in limbs of 28 bits, whose sums fit 64.
    """
    shift = position & 63
    words = [mantissa.constant(word) for word in _words(55, 64, 19)]
    w = _ladder(words, position.shr_u(6), rungs=4, wanted=4)
    # In two steps: a shift by 64 - 0 would be out of range.
    window = [(w[i] << shift) | w[i + 1].shr_u(1).shr_u(63 - shift) for i in range(3)]
    mask = (1 << 28) - 1
    a, b, c = window
    limbs = [
        a.shr_u(36),
        a.shr_u(8) & mask,
        ((a << 20) | b.shr_u(44)) & mask,
        b.shr_u(16) & mask,
        ((b << 12) | c.shr_u(52)) & mask,
        c.shr_u(24) & mask,
        (c << 4) & mask,
    ]
    m_high, m_low = mantissa.shr_u(28), mantissa & mask
    column = m_low * limbs[6]
    columns = list[Lanes]()
    for i in reversed(range(6)):
        column = m_low * limbs[i] + m_high * limbs[i + 1] + column.shr_u(28)
        columns.insert(0, column & mask)
    c0, c1, c2, c3, c4 = columns[:5]
    return (
        (c0 << 36) | (c1 << 8) | c2.shr_u(20),
        (c2 << 44) | (c3 << 16) | c4.shr_u(12),
    )


_REDUCE = {"f32": _reduce_f32, "f64": _reduce_f64}
