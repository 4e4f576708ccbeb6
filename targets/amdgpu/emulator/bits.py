"""Functions on the bits of unsigned integers, of 32 or 64 bits as their arrays have them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.amdgpu.emulator.functions import Binary, Unary

Array = NDArray[Any]


def high_product(kind: Any) -> Binary:
    """Return the function for the upper 32 bits of a product of that 64-bit kind."""
    return lambda a, b: (a.astype(kind) * b.astype(kind)) >> kind(32)


def shift_left(bits: int) -> Binary:
    """Return `a << (b mod bits)`."""
    kind = np.uint64 if bits == 64 else np.uint32
    mask = kind(bits - 1)
    return lambda a, b: a << (b.astype(kind) & mask)


def shift_right(bits: int, signed: bool = False) -> Binary:
    """Return `a >> (b mod bits)`, arithmetic or logical."""
    kind: Any = {(32, False): np.uint32, (64, False): np.uint64, (32, True): np.int32,
                 (64, True): np.int64}[bits, signed]  # fmt: skip
    return lambda a, b: a >> (b.astype(kind) & kind(bits - 1))


def extract(kind: Any) -> Binary:
    """Return a bit field of `a`: b holds its offset, and its width from bit 16 on."""
    bits = np.dtype(kind).itemsize * 8
    unsigned = np.uint64 if bits == 64 else np.uint32

    def function(a: Array, b: Array) -> Array:
        offset = (b & np.uint32(bits - 1)).astype(unsigned)
        size = ((b >> np.uint32(16)) & np.uint32(0x7F)).astype(unsigned)
        size = np.minimum(size, unsigned(bits) - offset)
        up = np.where(size == 0, 0, unsigned(bits) - offset - size).astype(unsigned)
        top = (a.view(unsigned) << up).view(kind)
        down = np.minimum(unsigned(bits) - size, unsigned(bits - 1))
        return np.where(size == 0, kind(0), top >> down.astype(kind))

    return function


def field_mask(kind: Any) -> Binary:
    """Return ones: as many as the first source says, from the bit on that the second says."""
    bits = np.dtype(kind).itemsize * 8

    def function(a: Array, b: Array) -> Array:
        size, offset = (one.astype(kind) & kind(bits - 1) for one in (a, b))
        return ((kind(1) << size) - kind(1)) << offset

    return function


def count_ones(a: Array) -> Array:
    """Return how many bits are set."""
    return np.bitwise_count(a).astype(np.uint32)


def reverse_bits(a: Array) -> Array:
    """Return the bits in reverse order."""
    bytes_ = np.ascontiguousarray(a)[..., None].view(np.uint8)
    turned = np.packbits(np.unpackbits(bytes_, axis=-1, bitorder="little"), axis=-1)
    return np.ascontiguousarray(turned[..., ::-1]).view(a.dtype)[..., 0]


def first_one(a: Array) -> Array:
    """Return the position of the lowest bit set, -1 without any."""
    low = a & (~a + a.dtype.type(1))
    place = np.bitwise_count(low - a.dtype.type(1)).astype(np.int32)
    return np.where(a == 0, np.int32(-1), place)


def leading_zeros(a: Array) -> Array:
    """Return how many bits are 0 above the highest one, -1 without any."""
    filled = a.copy()
    shift = 1
    while shift < a.itemsize * 8:
        filled |= filled >> a.dtype.type(shift)
        shift *= 2
    zeros = a.itemsize * 8 - np.bitwise_count(filled).astype(np.int32)
    return np.where(a == 0, np.int32(-1), zeros)


def leading_signs(a: Array) -> Array:
    """Return how many bits from the top equal the sign, -1 where all do."""
    unsigned = np.uint64 if a.itemsize == 8 else np.uint32
    return leading_zeros(np.where(a < 0, ~a, a).view(unsigned))


def bit_at(a: Array, b: Array) -> Array:
    """Return bit b of a, as 0 or 1."""
    return (a >> (b.astype(a.dtype) & a.dtype.type(a.itemsize * 8 - 1))) & a.dtype.type(1)


def whole_quads(a: Array) -> Array:
    """Return each four bits all set where any of them is."""
    kind = a.dtype.type
    ones = kind(0x1111111111111111 & (1 << 8 * a.itemsize) - 1)
    any_ = (a | a >> kind(1) | a >> kind(2) | a >> kind(3)) & ones
    return any_ * kind(15)


def quad_mask(a: Array) -> Array:
    """Return one bit for each four: whether any of them is set."""
    kind = a.dtype.type
    out = np.zeros_like(a)
    for quad in range(2 * a.itemsize):
        out |= ((a >> kind(4 * quad) & kind(15)) != 0).astype(a.dtype) << kind(quad)
    return out


def replicate(a: Array) -> Array:
    """Return 64 bits with each of 32 twice."""
    out = np.zeros(a.shape, np.uint64)
    for bit in range(32):
        out |= (a.astype(np.uint64) >> np.uint64(bit) & np.uint64(1)) * np.uint64(3 << 2 * bit)
    return out


def set_bit(value: int) -> Binary:
    """Return the function that gives a bit of its first source a value."""

    def function(old: Array, place: Array) -> Array:
        kind = old.dtype.type
        bit = kind(1) << (place.astype(old.dtype) & kind(old.itemsize * 8 - 1))
        return old | bit if value else old & ~bit

    return function


def pack_halves(first: int, second: int) -> Binary:
    """Return half `first` of a below half `second` of b."""
    low, high = np.uint32(16 * first), np.uint32(16 * second)
    return lambda a, b: (
        (a >> low & np.uint32(0xFFFF)) | ((b >> high & np.uint32(0xFFFF)) << np.uint32(16))
    )


def sign_extended(bits: int) -> Unary:
    """Return the function that extends the low 8 or 16 bits by their sign."""
    kind = {8: np.int8, 16: np.int16}[bits]
    return lambda a: a.astype(kind).astype(np.int32)


RELATIONS: dict[str, Binary] = {
    "eq": np.equal, "lg": np.not_equal, "ne": np.not_equal, "gt": np.greater,
    "ge": np.greater_equal, "lt": np.less, "le": np.less_equal,
}  # fmt: skip
