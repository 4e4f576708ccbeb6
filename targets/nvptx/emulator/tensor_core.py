"""The arithmetic of NVIDIA's matrix units, bit for bit where it is known.

A matrix unit adds `depth` products and the accumulator at once: every product is exact, each term
is cut (toward zero) to so many bits behind the point of the largest one, the cut terms are added
exactly, and only the sum is rounded: toward zero to f32, to nearest even to f16. A product deeper
than `depth` goes through the unit more than once. The largest exponent is that of the factors
added, before the product is normalized; zeros take no part.

    chip                 products at once   bits behind the point
    8.0, 8.6             128 bits of k      24
    8.9                  128 bits of k      24; fp8: 13, and 13 bits of the f32 result
    9.0 and later        256 bits of k      25; fp8 by wgmma on 9.0: 13, and 13 bits of the result

fp8 in `mma.sync` on 9.0 and 10.0 runs as f16: of each four along k the first two are multiplied,
then the last two onto that, and the accumulator is added at the end (`multiply_add_as_f16`). The
f16 form that multiplies four times a warp is a chain of fused multiply-adds in f32
(`multiply_add_in_f32`), and f64 is one along k. Integers are exact and wrap, or saturate. A result
of zero is positive.

Sources: Xie, Wang, Yang, Yang, "MMA-Sim: Bit-Accurate Reference Model of Tensor Cores and Matrix
Cores" (arXiv 2511.10909); Fasi, Higham, Mikaitis, Pranesh, "Numerical Behavior of NVIDIA Tensor
Cores" (PeerJ CS 7:e330, 2021); Khattak, Mikaitis, "Accurate Models of NVIDIA Tensor Cores" (arXiv
2512.07004); and for 9.0 an H200, with which every line was compared bit for bit. What an infinity
or a NaN gives is that of float64; NaN results are 0x7FFFFFFF (f16: 0x7FFF).

All matrices are (rows, columns, warps), so the innermost loop runs over the warps of a cohort.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator import formats
from tiledsl.targets.gpu.emulator.fused import fused_float32, fused_multiply_add
from tiledsl.targets.nvptx.emulator.float_values import propagate

Reals = NDArray[np.float64]
Integers = NDArray[np.int64]
Array = NDArray[Any]

_ABSENT = -4096
"""The exponent of zero: below all others."""
_CHUNK = 1 << 13
"""Products that are worked on at once: they stay in the cache, and cost no page faults."""
_BLOCK = 1 << 15
"""Elements of the result that are worked on at once."""


@dataclass(frozen=True)
class Operand:
    """A type that a matrix unit multiplies.

    Attributes:
        bits: Width.
        least: Exponent of the least normal number; subnormal ones have it too.
        decode: Bits to values, exactly.
    """

    bits: int
    least: int
    decode: Callable[[Array], Reals]


def _mini_float(exponent_bits: int, fraction_bits: int, bias: int) -> Callable[[Array], Reals]:
    """Give the decoder of a type without infinity and NaN, as a table."""
    count = 1 << exponent_bits + fraction_bits
    code = np.arange(count)
    exponent, fraction = code >> fraction_bits, code & (1 << fraction_bits) - 1
    hidden = np.where(exponent == 0, 0, 1 << fraction_bits)
    power = np.maximum(exponent, 1) - bias - fraction_bits
    values = (hidden + fraction) * 2.0**power
    table = np.concatenate([values, -values])
    return lambda bits: table[bits & 2 * count - 1]


def _tf32(bits: Array) -> Reals:
    return formats.TF32.decode(bits)


OPERANDS: dict[str, Operand] = {
    "f16": Operand(16, -14, formats.F16.decode),
    "bf16": Operand(16, -126, formats.BF16.decode),
    "tf32": Operand(32, -126, _tf32),
    "e4m3": Operand(8, -6, formats.E4M3.decode),
    "e5m2": Operand(8, -14, formats.E5M2.decode),
    "e3m2": Operand(8, -2, _mini_float(3, 2, 3)),
    "e2m3": Operand(8, 0, _mini_float(2, 3, 1)),
    # In the middle four bits of its byte (PTX ISA, mma with .kind::f8f6f4).
    "e2m1": Operand(8, 0, lambda bits: _E2M1(bits >> 2)),
}
"""By PTX's name."""
_E2M1 = _mini_float(2, 1, 1)
FP8 = frozenset({"e4m3", "e5m2", "e3m2", "e2m3", "e2m1"})


@dataclass(frozen=True)
class Accumulation:
    """How a unit adds.

    Attributes:
        depth: Products at once.
        fraction: Bits kept of each term behind the point of the largest.
        kept: Bits behind the point of an f32 result.
    """

    depth: int
    fraction: int
    kept: int = 23


def accumulation(chip: int, type_name: str, *, warpgroup: bool = False) -> Accumulation:
    """Return how a chip adds products of a type.

    Args:
        chip: Major times ten plus minor.
        type_name: PTX's name of the operands' type.
        warpgroup: Whether it is `wgmma`.
    """
    narrow = type_name in FP8
    bits = OPERANDS[type_name].bits
    if chip < 90:
        if narrow:
            return Accumulation(128 // bits, 13, 13)
        return Accumulation(128 // bits, 24)
    if narrow and warpgroup:
        return Accumulation(256 // bits, 13, 13)
    return Accumulation(256 // bits, 25)


def _exponents(values: Reals, least: int) -> NDArray[np.int16]:
    """Return the exponents of values as their type has them: `_ABSENT` of zero."""
    biased = values.view(np.int64) >> 52 & 0x7FF
    exponents = np.maximum(biased - 1023, least).astype(np.int16)
    exponents[values == 0] = _ABSENT
    return exponents


def multiply_add(
    a: Reals, b: Reals, c: Reals, least: tuple[int, int], how: Accumulation, half: bool
) -> Reals:
    """Return c + a @ b as a matrix unit gives it.

    Args:
        a: (m, k, warps).
        b: (k, n, warps).
        c: (m, n, warps).
        least: The least normal exponents of the types of a and of b.
        how: How the unit adds.
        half: Whether results are f16, not f32.
    """
    step = max(1, _BLOCK // max(1, c.shape[0] * c.shape[2]))
    if step < c.shape[1]:
        columns = (slice(i, i + step) for i in range(0, c.shape[1], step))
        parts = [multiply_add(a, b[:, one], c[:, one], least, how, half) for one in columns]
        return np.concatenate(parts, axis=1)
    k = a.shape[1]
    total = np.ascontiguousarray(c)
    b = np.ascontiguousarray(b)
    for start in range(0, k, how.depth):
        part = slice(start, min(start + how.depth, k))
        total = _pass(a[:, part], b[part], total, least, how, half)
    return total


def _pass(
    a: Reals, b: Reals, c: Reals, least: tuple[int, int], how: Accumulation, half: bool
) -> Reals:
    """Send one depth of products through the unit."""
    rows = np.ascontiguousarray(a.transpose(1, 0, 2))  # k first: a sum over it adds whole arrays
    exponent_a, exponent_b = _exponents(rows, least[0]), _exponents(b, least[1])
    largest = _exponents(c, -14 if half else -126)
    chunk = min(len(b), max(1, _CHUNK // max(1, c.size)))
    steps = [slice(i, i + chunk) for i in range(0, len(b), chunk)]
    for step in steps:
        product = exponent_a[step, :, None] + exponent_b[step, None]
        np.maximum(largest, product.max(0), out=largest)
    finite = exponent_a.max() < 1024 and exponent_b.max() < 1024 and np.isfinite(c).all()
    np.clip(largest, -900, 900, out=largest)
    scale = _power(how.fraction - largest)
    total = np.trunc(c * scale)
    buffer = np.empty((chunk, *c.shape))
    for step in steps:
        left = rows[step, :, None]
        terms = buffer[: len(left)]
        np.multiply(left, b[step, None], out=terms)
        terms *= scale
        np.trunc(terms, out=terms)
        total += terms[0] if chunk == 1 else terms.sum(0)
    total *= _power(largest - how.fraction)
    rounded = _round(total, how.kept, half) + 0.0  # -0 becomes 0
    return rounded if finite else _with_specials(rounded, a, b, c)


def runs_as_f16(chip: int, type_name: str) -> bool:
    """Say whether `mma.sync` of a type becomes products of f16."""
    return type_name in FP8 and 90 <= chip < 120


def multiply_add_as_f16(a: Reals, b: Reals, c: Reals, half: bool) -> Reals:
    """Return c + a @ b of fp8 as a chip gives it that has no unit for it; see `multiply_add`."""
    depth = range(a.shape[1])
    least, how = (-14, -14), Accumulation(16, 25)
    total = np.zeros(c.shape)
    for part in ([k for k in depth if k % 4 < 2], [k for k in depth if k % 4 >= 2]):
        total = multiply_add(a[:, part], np.ascontiguousarray(b[part]), total, least, how, half)
    kind = np.float16 if half else np.float32
    found: Reals = (c.astype(kind) + total.astype(kind)).astype(np.float64)
    return found


def multiply_add_in_f32(a: Reals, b: Reals, c: Reals, half: bool) -> Reals:
    """Return c + a @ b of f16 as a chip gives it by fused multiply-adds of f32 along k.

    They begin with nothing, and c is added at the end; for f16, two and two are added to c in turn.
    """
    total = c.astype(np.float32)
    depth = a.shape[1]
    for start in range(0, depth, 2 if half else depth):
        chain = np.zeros(c.shape, np.float32)
        for k in range(start, min(start + 2, depth) if half else depth):
            left, right = (one.astype(np.float32) for one in (a[:, k, None], b[None, k]))
            # Of f16 the first product, which is exact, begins the chain, and keeps its sign.
            first = half and k == start
            chain = (
                left * right if first else fused_float32(*np.broadcast_arrays(left, right, chain))
            )
        total = total + chain
    found: Reals = (total.astype(np.float16) if half else total).astype(np.float64)
    return found


def _power(exponents: NDArray[np.int16]) -> Reals:
    """Return two to the power of integers within float64's normal range."""
    return ((exponents.astype(np.int64) + 1023) << 52).view(np.float64)


def _round(total: Reals, kept: int, half: bool) -> Reals:
    if half:
        return total.astype(np.float16).astype(np.float64)
    return truncate(total, kept)


def truncate(values: Reals, kept: int = 23) -> Reals:
    """Cut float64 toward zero to what f32 holds with `kept` bits behind the point."""
    bits = values.view(np.int64) & np.int64(-1 << 52 - kept)
    cut = bits.view(np.float64)
    small = np.abs(cut) < 2.0**-126
    if small.any():
        step = 2.0 ** (-126 - kept)
        cut = np.where(small, np.trunc(values / step) * step, cut)
    huge = np.abs(cut) >= 2.0**128
    return np.where(huge, np.copysign(np.inf, cut), cut) if huge.any() else cut


def _with_specials(rounded: Reals, a: Reals, b: Reals, c: Reals) -> Reals:
    """Put in what infinities and NaNs among the factors give."""
    exact = c + np.einsum("mkw,knw->mnw", a, b)
    return np.where(np.isfinite(exact), rounded, exact)


def encode(values: Reals, half: bool) -> Array:
    """Return the bits of results, which f32 (f16) holds exactly; every NaN is the same one."""
    if half:
        bits = values.astype(np.float16).view(np.uint16)
        bits[np.isnan(values)] = 0x7FFF
        return bits
    bits = values.astype(np.float32).view(np.uint32)
    bits[np.isnan(values)] = 0x7FFFFFFF
    return bits


def multiply_integers(a: Array, b: Array, c: NDArray[np.int32], saturate: bool) -> Array:
    """Return c + a @ b in 32 bits, wrapped or saturated; a (m, k, warps), b (k, n, warps).

    Products of 8-bit integers add to less than 2**53, so float64 is exact.
    """
    left = a.transpose(2, 0, 1).astype(np.float64)
    right = b.transpose(2, 0, 1).astype(np.float64)
    product = np.matmul(left, right).transpose(1, 2, 0).astype(np.int64)
    total = product + c
    if saturate:
        total = np.clip(total, -(2**31), 2**31 - 1)
    return total.astype(np.int32)


def multiply_add_f64(a: Reals, b: Reals, c: Reals) -> Reals:
    """Return c + a @ b in float64: fused multiply-adds along k, in its order."""
    total = c
    for k in range(a.shape[1]):
        left, right = np.broadcast_arrays(a[:, k, None], b[None, k])
        total = propagate(fused_multiply_add(left, right, total), right, total, left)
    return total
