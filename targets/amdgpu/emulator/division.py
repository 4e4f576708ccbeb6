"""The three instructions of LLVM's division: v_div_scale, v_div_fmas and v_div_fixup.

A quotient is refined by fused multiply-adds that would overflow or lose bits where exponents are
extreme. `v_div_scale` scales numerator or denominator by a power of two where that is so, and says
by VCC that the quotient is to be scaled back; `v_div_fmas` does the last step and scales back;
`v_div_fixup` puts in zeros, infinities and NaNs.

Source: the pseudo-code of AMD's RDNA manuals, chapter "Vector Instructions", case by case, but for
what cannot be meant as it stands there. That 1 / denominator is subnormal is tested in the format
of the operands; where the quotient is subnormal too, the denominator is scaled down (up, it would
overflow); `v_div_fmas` scales back by as much as `v_div_scale` scaled, in the direction that the
estimate of the quotient shows; a quotient that came out NaN from an overflow on the way is
infinite.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.amdgpu.emulator import floats
from tiledsl.targets.amdgpu.emulator.decode import Context, Entry
from tiledsl.targets.amdgpu.emulator.operands import mask_reader
from tiledsl.targets.amdgpu.emulator.text import VCC, Parsed, Register
from tiledsl.targets.amdgpu.emulator.vector import Carrying, Operation, operation
from tiledsl.targets.gpu.emulator.fused import fused_multiply_add, sum_to_odd
from tiledsl.targets.gpu.emulator.program import InstructionClass, Step

Array = NDArray[Any]


@dataclass(frozen=True)
class _Limits:
    """The exponents where a format needs care.

    Attributes:
        shift: By which power of two operands are scaled.
        apart: Numerator's exponent less denominator's from which the quotient is near overflow.
        tiny: Exponent field up to which a numerator is tiny.
        bias: Exponent field of 1.
        under: Numerator's exponent less denominator's below which the quotient is 0.
    """

    shift: int
    apart: int
    tiny: int
    bias: int
    under: int


_SINGLE = _Limits(64, 96, 23, 127, -150)
_DOUBLE = _Limits(128, 768, 53, 1023, -1075)


def _scale(limits: _Limits) -> Any:
    """Return the function of v_div_scale: of what to scale, denominator and numerator."""

    def function(value: Array, denominator: Array, numerator: Array) -> tuple[Array, Array]:
        value, denominator, numerator = np.broadcast_arrays(value, denominator, numerator)
        reciprocal = floats.is_subnormal(np.divide(value.dtype.type(1), denominator))
        quotient = floats.is_subnormal(np.divide(numerator, denominator))
        gap = floats.exponent(numerator) - floats.exponent(denominator)
        is_denominator, is_numerator = value == denominator, value == numerator
        cases = [
            (numerator == 0) | (denominator == 0),
            gap >= limits.apart,
            floats.is_subnormal(denominator),
            reciprocal & quotient,
            reciprocal,
            quotient,
            floats.exponent(numerator) <= limits.tiny,
        ]
        up = np.array(limits.shift)
        power = np.select(
            cases,
            [
                0, np.where(is_denominator, up, 0), up, np.where(is_denominator, -up, 0), -up,
                np.where(is_numerator, up, 0), up,
            ],
            0,
        )  # fmt: skip
        result = np.where(cases[0], np.nan, floats.scale(value, power)).astype(value.dtype)
        flags = np.select(cases, [False, True, False, True, False, True, False], False)
        return result, flags

    return function


def _last_step(limits: _Limits, kind: str) -> Entry:
    """Return the entry of v_div_fmas: the last multiply-add, scaled back where VCC says so."""

    def decode(parsed: Parsed, context: Context) -> Step:
        scaled = mask_reader(Register("s", VCC, 2), context)
        inner = Operation(kind, (kind, kind, kind), lambda a, b, c: (a, b, c))
        read, write = inner.parts(parsed, context)

        def step(m: Any) -> None:
            a, b, c = read(m)
            up = np.where(floats.exponent(c) > limits.bias, limits.shift, -limits.shift)
            write(m, _scaled_fma(a, b, c, np.where(scaled(m), up, 0)))

        return step

    return Entry(decode, InstructionClass.FLOAT)


def _scaled_fma(a: Array, b: Array, c: Array, power: Array) -> Array:
    """Return (a * b + c) * 2**power, rounded once."""
    if a.dtype == np.float32:
        product = np.multiply(a, b, dtype=np.float64)
        total = sum_to_odd(*np.broadcast_arrays(product, floats.wide(c)))
        return np.ldexp(total, power).astype(np.float32)
    a, b, c, power = np.broadcast_arrays(a, b, c, power)
    result = np.array(np.ldexp(fused_multiply_add(a, b, c), power))
    for place in zip(*np.nonzero(floats.is_subnormal(result)), strict=True):
        x, y, z = (Fraction(float(one[place])) for one in (a, b, c))
        exact = (x * y + z) * Fraction(2) ** int(power[place])
        result[place] = exact.numerator / exact.denominator
    return result


def _fix(limits: _Limits) -> Any:
    """Return the function of v_div_fixup: of quotient, denominator and numerator."""

    def function(quotient: Array, denominator: Array, numerator: Array) -> Array:
        kind = quotient.dtype.type
        sign = np.signbit(denominator) ^ np.signbit(numerator)
        infinite = np.isinf(denominator), np.isinf(numerator)
        zero = denominator == 0, numerator == 0
        gap = floats.exponent(numerator) - floats.exponent(denominator)
        size = np.select(
            [
                np.isnan(numerator), np.isnan(denominator), zero[0] & zero[1],
                infinite[0] & infinite[1], zero[0] | infinite[1], infinite[0] | zero[1],
                gap < limits.under, np.isnan(quotient),
            ],
            [
                numerator, denominator, kind(np.nan), kind(np.nan), kind(np.inf), kind(0),
                kind(0), kind(np.inf),
            ],
            np.abs(quotient),
        )  # fmt: skip
        signed = np.where(sign, -np.abs(size), np.abs(size))
        return np.where(np.isnan(size), size, signed).astype(quotient.dtype)

    return function


_FLOAT = InstructionClass.FLOAT
_HALF = _Limits(0, 0, 0, 15, -100)

TABLE: dict[str, Entry] = {
    "v_div_scale_f32": Entry(Carrying("f32", ("f32",) * 3, _scale(_SINGLE)), _FLOAT),
    "v_div_scale_f64": Entry(Carrying("f64", ("f64",) * 3, _scale(_DOUBLE)), _FLOAT),
    "v_div_fmas_f32": _last_step(_SINGLE, "f32"),
    "v_div_fmas_f64": _last_step(_DOUBLE, "f64"),
    "v_div_fixup_f32": operation("f32", "f32 f32 f32", _fix(_SINGLE), _FLOAT),
    "v_div_fixup_f64": operation("f64", "f64 f64 f64", _fix(_DOUBLE), _FLOAT),
    "v_div_fixup_legacy_f16": operation("f16", "f16 f16 f16", _fix(_HALF), _FLOAT),
    "v_div_fixup_f16": operation("f16", "f16 f16 f16", _fix(_HALF), _FLOAT),
}
