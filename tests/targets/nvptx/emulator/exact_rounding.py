"""Exact results rounded to binary formats with Python's integers: the oracle of the float tests."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Binary:
    """A binary format of IEEE 754's kind.

    Attributes:
        kind: The NumPy type.
        precision: Bits of a significand, the leading one too.
        least: Exponent of the least normal number.
        most: Exponent of the largest.
    """

    kind: Any
    precision: int
    least: int
    most: int

    def round(self, value: Fraction, mode: str = "rn") -> float:
        """Return a value that is not 0 rounded in a mode."""
        magnitude = abs(value)
        exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
        if magnitude < Fraction(2) ** exponent:
            exponent -= 1
        unit = Fraction(2) ** (max(exponent, self.least) - self.precision + 1)
        count, rest = divmod(magnitude, unit)
        away = {
            "rn": rest * 2 > unit or (rest * 2 == unit and count % 2 == 1),
            "rz": False,
            "rm": rest > 0 and value < 0,
            "rp": rest > 0 and value > 0,
        }[mode]
        rounded = (count + away) * unit
        largest = (2 - Fraction(2) ** (1 - self.precision)) * Fraction(2) ** self.most
        if rounded > largest:
            overflows = mode == "rn" or mode == ("rp" if value > 0 else "rm")
            found = math.inf if overflows else float(largest)
        else:
            found = float(rounded)
        return math.copysign(found, 1 if value > 0 else -1)


FORMATS = {
    "f16": Binary(np.float16, 11, -14, 15),
    "bf16": Binary(ml_dtypes.bfloat16, 8, -126, 127),
    "f32": Binary(np.float32, 24, -126, 127),
    "f64": Binary(np.float64, 53, -1022, 1023),
}


def operands(name: str, count: int, seed: int, columns: int = 1) -> list[NDArray[Any]]:
    """Return columns of operands: random bits, values near each other, and special ones."""
    source = random.Random(f"{name} {seed}")
    binary = FORMATS[name]
    bits = np.dtype(binary.kind).itemsize * 8
    fraction = binary.precision - 1
    bias = binary.most
    specials = [0, 1, bias << fraction, (bias << fraction) + 1, (2 * bias + 1) << fraction]
    specials += [(1 << fraction) - 1, 1 << fraction, ((2 * bias + 1) << fraction) - 1]

    def one(near: int) -> int:
        choice = source.random()
        if choice < 0.15:
            return source.choice(specials) | source.randrange(2) << (bits - 1)
        if choice < 0.4:
            return source.randrange(1 << bits)
        exponent = min(max(near + source.randrange(-fraction - 3, fraction + 4), 0), 2 * bias)
        sign = source.randrange(2) << (bits - 1)
        mantissa = source.choice((source.randrange(1 << fraction), source.randrange(4), 0))
        return sign | exponent << fraction | mantissa

    rows: list[list[int]] = []
    for _ in range(count):
        near = source.choice((bias, source.randrange(2 * bias)))
        rows.append([one(near) for _ in range(columns)])
    columns_of = np.array(rows, f"u{bits // 8}")
    return [np.ascontiguousarray(columns_of[:, i]).view(binary.kind) for i in range(columns)]


def same(found: NDArray[Any], wanted: list[float]) -> list[int]:
    """Return the rows where values differ; NaNs are one, zeros have signs."""
    with np.errstate(invalid="ignore"):  # a signalling NaN says so
        values = found.astype(np.float64)
    other = np.array(wanted, np.float64)
    equal = (values == other) & (np.signbit(values) == np.signbit(other))
    return [int(i) for i in np.flatnonzero(~(equal | (np.isnan(values) & np.isnan(other))))]
