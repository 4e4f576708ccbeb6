"""The numbers that matrix instructions compute, as far as they are known.

A `Product` takes the bits of A (waves, blocks, m, k), B (waves, blocks, k, n) and C (waves, blocks,
m, n) and returns those of A B + C. AMD documents no order and no roundings. For CDNA others
found them by experiment, and these follow them bit for bit:

- `fma_chain`: f32 and f64 of all CDNA: one fused multiply-add after another along k.
- `pairwise`: f16 and bf16 of CDNA 1 and 2: products and a tree of f32 additions over groups of k,
  which are then added to C. CDNA 2 takes subnormal operands as zero and flushes every sum.
- `truncated_sum`: f16, bf16, xf32 and fp8 of CDNA 3: the products of a group are cut (toward zero)
  to 24 bits below the largest one's exponent and summed exactly; the sum and C are cut (downward)
  below the larger one's exponent; their sum is rounded to nearest even. Tiny values next to large
  negative ones so come out a little low, which is what the hardware does.

What is not known (CDNA 4's, RDNA's) is `rounded_once`: products and sums in float64, then one
rounding to nearest even. Integers are exact; they wrap, or saturate where the instruction says
clamp.

Source of the CDNA rules: P. Xie et al., "MMA-Sim: Bit-Accurate Reference Model of Tensor Cores and
Matrix Cores", arXiv 2511.10909; flushing on CDNA 2 also in MIOpen's "MI200 MFMA Behavior
Specifics". NaNs come out as NumPy makes them; payloads are not those of the hardware.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.formats import BF16, F16, Format, round_to_odd
from tiledsl.targets.gpu.emulator.fused import fused_float32, fused_multiply_add

Bits = NDArray[Any]
Reals = NDArray[np.float64]
Product = Callable[[Bits, Bits, Bits], Bits]

_SMALLEST_NORMAL = {"f16": 2.0**-14, "bf16": 2.0**-126, "f32": 2.0**-126}
_ZERO_EXPONENT = -126
"""The exponent that a zero counts with where the largest one is sought."""
_PRODUCT_BITS = 24
"""Bits that CDNA 3 keeps of a product below the exponent of its group's largest, and of C."""
_SUM_BITS = 31
"""Bits that CDNA 3 keeps of the products' sum."""


# --- integers ------------------------------------------------------------------------------------


def integers(bits: int, signed: tuple[bool, bool] = (True, True), clamp: bool = False) -> Product:
    """Return the product of integers of so many bits (held one in a byte) summed in i32.

    Args:
        bits: 8 or 4.
        signed: Of A and of B.
        clamp: Whether the result saturates.
    """

    def values(held: Bits, is_signed: bool) -> Reals:
        if not is_signed:
            return held.astype(np.float64)
        half = 1 << bits - 1
        return ((held.astype(np.int32) ^ half) - half).astype(np.float64)

    def product(a: Bits, b: Bits, c: Bits) -> Bits:
        # Exact: products of 16 bits, far fewer than 2^37 of them.
        sums = values(a, signed[0]) @ values(b, signed[1])
        total = sums.astype(np.int64) + c.view(np.int32)
        if clamp:
            total = np.clip(total, -(1 << 31), (1 << 31) - 1)
        return total.astype(np.int32).view(np.uint32)

    return product


# --- not known: float64, then one rounding -------------------------------------------------------


def rounded_once(a_format: Format, b_format: Format, c_format: Format) -> Product:
    """Return the product in float64 that is rounded once."""

    def product(a: Bits, b: Bits, c: Bits) -> Bits:
        total = a_format.decode(a) @ b_format.decode(b) + c_format.decode(c)
        if c_format.bits == 16 and c_format is BF16:
            return c_format.encode(round_to_odd(total))
        return c_format.encode(total)

    return product


# --- CDNA 1 and later: f32 and f64 ---------------------------------------------------------------


def fma_chain(format_: Format) -> Product:
    """Return the product of f32 or f64 as a chain of fused multiply-adds along k."""
    fused: Any = fused_float32 if format_.bits == 32 else fused_multiply_add

    def product(a: Bits, b: Bits, c: Bits) -> Bits:
        kind = format_.kind
        left, right = format_.decode(a), format_.decode(b)
        total: Any = c.view(kind)
        for k in range(left.shape[-1]):
            total = fused(left[..., :, k, None], right[..., None, k, :], total)
        return np.ascontiguousarray(total).view(c.dtype)

    return product


# --- CDNA 1 and 2: f16 and bf16 ------------------------------------------------------------------


def pairwise(format_: Format, group: int, flush: bool) -> Product:
    """Return the product of f16 or bf16 as trees of float32 additions.

    Args:
        format_: Of A and B.
        group: Products of one tree.
        flush: Whether subnormal operands and sums are zero (CDNA 2).
    """
    # Sums of f16's normal products are multiples of 2^-56 and so never subnormal.
    flush_sums = flush and format_ is not F16

    def operand(bits: Bits) -> NDArray[np.float32]:
        values = np.ascontiguousarray(bits).view(format_.kind).astype(np.float32)
        if flush:
            values[np.abs(values) < _SMALLEST_NORMAL[format_.name]] = 0
        return values

    def tree(products: list[NDArray[np.float32]]) -> NDArray[np.float32]:
        if len(products) == 1:
            return _flushed(products[0]) if flush_sums else products[0]
        half = len(products) // 2
        total = tree(products[:half]) + tree(products[half:])
        return _flushed(total) if flush_sums else total

    def product(a: Bits, b: Bits, c: Bits) -> Bits:
        left, right = operand(a), operand(b)
        total = c.view(np.float32)
        if flush:
            total = np.where(np.abs(total) < _SMALLEST_NORMAL["f32"], np.float32(0), total)
        for start in range(0, left.shape[-1], group):
            products = [
                left[..., :, k, None] * right[..., None, k, :] for k in range(start, start + group)
            ]
            total = total + tree(products)
            if flush:
                total = _flushed(total)
        return total.view(np.uint32)

    return product


def _flushed(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return values with zeros of their sign where they are subnormal."""
    small = np.abs(values) < np.float32(_SMALLEST_NORMAL["f32"])
    return np.where(small, values * np.float32(0), values)


# --- CDNA 3: f16, bf16, xf32 and fp8 -------------------------------------------------------------


def truncated_sum(a_format: Format, b_format: Format, group: int) -> Product:
    """Return the product of CDNA 3: cut products summed exactly, group after group.

    Args:
        a_format: Of A.
        b_format: Of B.
        group: Products that are summed at once. Those of 8-bit formats are summed as two halves,
            the even and the odd ones.
    """
    halves = 2 if a_format.bits == 8 else 1
    # Products of f16 and fp8 fit float32, and what is left of their bits after cutting, too.
    kind = np.float32 if a_format.bits == 8 or a_format is F16 else np.float64

    def product(a: Bits, b: Bits, c: Bits) -> Bits:
        left, left_exponent = _parts(a_format, a, kind)
        right, right_exponent = _parts(b_format, b, kind)
        start = c.view(np.float32)
        total = start
        for first in range(0, left.shape[-1], group):
            sums: list[tuple[NDArray[np.int32], NDArray[np.int32]]] = []
            for half in range(halves):
                chosen = range(first + half, first + group, halves)
                sums.append(_cut_products(left, left_exponent, right, right_exponent, chosen))
            total = _joined(sums, total)
        if _is_tame(left) and _is_tame(right) and np.isfinite(start).all():
            return total.view(np.uint32)
        return _with_extremes(left, right, start, total).view(np.uint32)

    return product


def _is_tame(values: NDArray[Any]) -> bool:
    """Whether no product can be infinite, as no operand is or is beyond half of float32's range."""
    return bool((np.abs(values) < 2.0**64).all())


def _with_extremes(
    left: NDArray[Any], right: NDArray[Any], start: NDArray[np.float32], total: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Put what infinite or NaN operands, and products beyond float32, make of a sum."""
    plain = start.astype(np.float64)
    for k in range(left.shape[-1]):
        part = left[..., :, k, None].astype(np.float64) * right[..., None, k, :]
        part = np.where(np.abs(part) >= 2.0**128, np.copysign(np.inf, part), part)
        plain = plain + part
    return np.where(np.isfinite(plain), total, plain.astype(np.float32))


def _parts(format_: Format, bits: Bits, kind: Any) -> tuple[NDArray[Any], NDArray[np.int16]]:
    """Return values, and their exponents: a subnormal's is the smallest normal's, zero's -126."""
    if format_.bits <= 16:
        values, exponents = _table(format_)
        return values[bits].astype(kind), exponents[bits]
    values = format_.decode(bits)
    return values.astype(kind), _exponents(values, format_)


@cache
def _table(format_: Format) -> tuple[NDArray[np.float64], NDArray[np.int16]]:
    """Return value and exponent of every pattern of bits."""
    every = np.arange(1 << format_.bits).astype(f"u{format_.bits // 8}")
    with np.errstate(invalid="ignore"):  # signaling NaNs
        values = format_.decode(every)
    return values, _exponents(values, format_)


_LEAST_EXPONENT = {
    "f16": -14, "bf16": -126, "tf32": -126,
    "f8E4M3FN": -6, "f8E5M2": -14, "f8E4M3FNUZ": -7, "f8E5M2FNUZ": -15,
}  # fmt: skip


def _exponents(values: Reals, format_: Format) -> NDArray[np.int16]:
    finite = np.where(np.isfinite(values), values, 0)
    exponents = np.maximum(np.frexp(finite)[1] - 1, _LEAST_EXPONENT[format_.name])
    return np.where(finite == 0, _ZERO_EXPONENT, exponents).astype(np.int16)


def _cut_products(
    left: NDArray[Any],
    left_exponent: NDArray[np.int16],
    right: NDArray[Any],
    right_exponent: NDArray[np.int16],
    chosen: range,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return a sum of products along k in units of 2^(e - 24), and e, the largest exponent."""
    largest = np.full(1, -(1 << 12), np.int16)
    for k in chosen:
        largest = np.maximum(
            largest, left_exponent[..., :, k, None] + right_exponent[..., None, k, :]
        )
    exponent = largest.astype(np.int32)
    # All products are 0 where the exponent is beyond what float32's scale could undo.
    scale = np.ldexp(left.dtype.type(1), _PRODUCT_BITS - np.maximum(exponent, -100 if
        left.dtype == np.float32 else -300))  # fmt: skip
    total = np.zeros(exponent.shape, np.int32)
    for k in chosen:
        part = left[..., :, k, None] * right[..., None, k, :]
        part *= scale
        total += part.astype(np.int32)  # toward zero
    return total, exponent


def _joined(
    sums: list[tuple[NDArray[np.int32], NDArray[np.int32]]], c: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return the sums of products (one, or those of two halves) added to C and rounded."""
    total, exponent = sums[0][0].astype(np.float64), sums[0][1]
    if len(sums) == 2:
        larger = np.maximum(exponent, sums[1][1])
        other = np.floor(np.ldexp(sums[1][0].astype(np.float64), sums[1][1] - larger))
        total, exponent = np.floor(np.ldexp(total, exponent - larger)) + other, larger
    bits = c.view(np.uint32)
    c_exponent = np.maximum(bits >> 23 & 255, 1).astype(np.int32) - 127
    larger = np.maximum(exponent, c_exponent)
    total = np.floor(np.ldexp(total, _SUM_BITS - _PRODUCT_BITS + exponent - larger))
    addend = np.floor(np.ldexp(c.astype(np.float64), _PRODUCT_BITS - larger))
    if len(sums) == 2:
        addend[c_exponent < larger - 25] = 0
    scaled = total + addend * 2.0 ** (_SUM_BITS - _PRODUCT_BITS)
    return np.ldexp(scaled, larger - _SUM_BITS).astype(np.float32)
