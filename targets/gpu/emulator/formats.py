"""Number formats as bits: what a register's bits mean, and the bits that a value rounds to.

Decoding is exact into float64 (f64 itself into itself). Encoding rounds once, to nearest even
unless said otherwise, from float64; fp8 comes as OCP (`f8E4M3FN`, `f8E5M2`) and as AMD's older
`FNUZ` forms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Bits = NDArray[Any]
"""Unsigned integers of the format's width."""
Reals = NDArray[np.float64]


@dataclass(frozen=True)
class Format:
    """One number format.

    Attributes:
        name: As MLIR spells it.
        bits: Width of a value.
        kind: The NumPy type that has it; for tf32 and xf32 the one that holds it.
    """

    name: str
    bits: int
    kind: Any

    def decode(self, bits: Bits) -> Reals:
        """Return the values of bits, exactly."""
        values = np.ascontiguousarray(bits).view(self.kind)
        if self.name == "tf32":
            cut = np.ascontiguousarray(bits).astype(np.uint32) & np.uint32(0xFFFFE000)
            values = cut.view(np.float32)
        return values.astype(np.float64)

    def encode(self, values: NDArray[Any]) -> Bits:
        """Return the bits of values rounded once to nearest even; overflow as in IEEE 754."""
        with np.errstate(all="ignore"):
            return values.astype(self.kind).view(np.dtype(f"u{self.bits // 8}"))


F64 = Format("f64", 64, np.float64)
F32 = Format("f32", 32, np.float32)
TF32 = Format("tf32", 32, np.float32)
F16 = Format("f16", 16, np.float16)
BF16 = Format("bf16", 16, ml_dtypes.bfloat16)
E4M3 = Format("f8E4M3FN", 8, ml_dtypes.float8_e4m3fn)
E5M2 = Format("f8E5M2", 8, ml_dtypes.float8_e5m2)
E4M3_FNUZ = Format("f8E4M3FNUZ", 8, ml_dtypes.float8_e4m3fnuz)
E5M2_FNUZ = Format("f8E5M2FNUZ", 8, ml_dtypes.float8_e5m2fnuz)


def round_to_odd(values: Reals) -> NDArray[np.float32]:
    """Round float64 to float32 "to odd": what is then rounded to a narrower format rounds once.

    ml_dtypes goes to bf16 and fp8 by way of float32, which would round twice.
    """
    with np.errstate(all="ignore"):
        near = values.astype(np.float32)
    wide = near.astype(np.float64)
    bits = near.view(np.uint32).copy()
    inexact = (wide != values) & np.isfinite(values) & np.isfinite(wide)
    even = inexact & ((bits & 1) == 0)
    toward = np.where(np.abs(wide) > np.abs(values), np.uint32(0xFFFFFFFF), np.uint32(1))
    bits[even] = bits[even] + toward[even]
    return bits.view(np.float32)
