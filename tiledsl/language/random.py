"""Random numbers without state: Philox 4x32-10, counted by an offset.

The same seed and offset give the same bits on every target. The generator is that of Salmon,
Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), with a 64-bit seed
as its key. A uniform float has the top 24 bits of a word, so that it is in [0, 1) for every word.
"""

from __future__ import annotations

import math

from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import float32, int32, int64, uint32, uint64, unwrap
from tiledsl.language import casts
from tiledsl.language.math import cos, log, maximum, sin, sqrt, umulhi
from tiledsl.language.operands import as_value, broadcast_values, static_int
from tiledsl.language.value import Operand, Value, constant, describe

N_ROUNDS_DEFAULT = 10
_KEYS = (0x9E3779B9, 0xBB67AE85)
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)


def philox(
    seed: Operand,
    c0: Operand,
    c1: Operand,
    c2: Operand,
    c3: Operand,
    n_rounds: int = N_ROUNDS_DEFAULT,
) -> tuple[Value, Value, Value, Value]:
    """Return four words of random bits for a 128-bit counter.

    Args:
        seed: An integer scalar; all its 64 bits count.
        c0: The lowest 32 bits of the counter, a tile or scalar.
        c1: The next bits; the four broadcast.
        c2: The next bits.
        c3: The highest bits.
        n_rounds: Rounds of the bijection; 10 is the recommended number.

    Returns:
        Four uint32 tiles.
    """
    low_key, high_key = _seed_words(seed)
    words = broadcast_values(*(_word(c) for c in (c0, c1, c2, c3)), what="`philox`")
    a, b, c, d = words
    for _ in range(static_int(n_rounds, "`n_rounds`")):
        m0, m1 = (constant(m, uint32, a.shape) for m in _MULTIPLIERS)
        a, b, c, d = (
            umulhi(m1, c) ^ b ^ low_key,
            m1 * c,
            umulhi(m0, a) ^ d ^ high_key,
            m0 * a,
        )
        low_key, high_key = low_key + _KEYS[0], high_key + _KEYS[1]
    return a, b, c, d


def _word(value: Operand) -> Value:
    found = as_value(value)
    if not found.dtype.is_int():
        raise KernelError(f"expected integers as the counter, found {describe(found)}")
    return casts.to(found, uint32)


def _seed_words(seed: Operand) -> tuple[Value, Value]:
    plain = unwrap(seed)
    if isinstance(plain, int) and not isinstance(plain, bool):
        bits = plain & (2**64 - 1)
        return constant(bits & 0xFFFFFFFF, uint32), constant(bits >> 32, uint32)
    found = as_value(plain)
    if not found.dtype.is_int() or found.shape:
        raise KernelError(f"expected the seed to be an integer scalar, found {describe(found)}")
    # Sign extension makes -1 one seed whatever its width.
    wide = casts.to(found, int64 if found.dtype.is_int_signed() else uint64)
    high = casts.to(casts.to(wide, uint64) >> 32, uint32)
    return casts.to(wide, uint32), high


def randint4x(
    seed: Operand, offset: Operand, n_rounds: int = N_ROUNDS_DEFAULT
) -> tuple[Value, Value, Value, Value]:
    """Return four tiles of random int32, of the shape of `offset`; all its 64 bits count."""
    count = as_value(offset)
    if not count.dtype.is_int():
        raise KernelError(f"expected integer offsets, found {describe(count)}")
    low = casts.to(count, uint32)
    if count.dtype.primitive_bitwidth == 64:
        high = casts.to(casts.to(count, uint64) >> 32, uint32)
    else:
        high = constant(0, uint32, count.shape)
    zero = constant(0, uint32, count.shape)
    a, b, c, d = philox(seed, low, high, zero, zero, n_rounds)
    return casts.to(a, int32), casts.to(b, int32), casts.to(c, int32), casts.to(d, int32)


def randint(seed: Operand, offset: Operand, n_rounds: int = N_ROUNDS_DEFAULT) -> Value:
    """Return a tile of random int32 of the shape of `offset`, one an offset."""
    return randint4x(seed, offset, n_rounds)[0]


def uint_to_uniform_float(x: Operand) -> Value:
    """Return 32-bit words as float32 in [0, 1), by their top 24 bits."""
    word = as_value(x)
    if not word.dtype.is_int() or word.dtype.primitive_bitwidth != 32:
        raise KernelError(f"expected 32-bit integers, found {describe(word)}")
    return casts.to(casts.to(word, uint32) >> 8, float32) * 2.0**-24


def rand(seed: Operand, offset: Operand, n_rounds: int = N_ROUNDS_DEFAULT) -> Value:
    """Return float32 uniform in [0, 1) of the shape of `offset`."""
    return uint_to_uniform_float(randint(seed, offset, n_rounds))


def rand4x(
    seed: Operand, offset: Operand, n_rounds: int = N_ROUNDS_DEFAULT
) -> tuple[Value, Value, Value, Value]:
    """Return four tiles of float32 uniform in [0, 1), for the cost of one."""
    a, b, c, d = randint4x(seed, offset, n_rounds)
    return (
        uint_to_uniform_float(a),
        uint_to_uniform_float(b),
        uint_to_uniform_float(c),
        uint_to_uniform_float(d),
    )


def pair_uniform_to_normal(u1: Operand, u2: Operand) -> tuple[Value, Value]:
    """Return two normal float32 from two uniform ones (Box and Muller)."""
    radius = sqrt(-2.0 * log(maximum(1.0e-7, u1)))
    angle = as_value(u2) * (2 * math.pi)
    return radius * cos(angle), radius * sin(angle)


def randn(seed: Operand, offset: Operand, n_rounds: int = N_ROUNDS_DEFAULT) -> Value:
    """Return float32 of mean 0 and deviation 1, normally distributed, of the shape of `offset`."""
    a, b, _, _ = randint4x(seed, offset, n_rounds)
    return pair_uniform_to_normal(uint_to_uniform_float(a), uint_to_uniform_float(b))[0]


def randn4x(
    seed: Operand, offset: Operand, n_rounds: int = N_ROUNDS_DEFAULT
) -> tuple[Value, Value, Value, Value]:
    """Return four tiles of normally distributed float32, for little more than the cost of one."""
    a, b, c, d = rand4x(seed, offset, n_rounds)
    first, second = pair_uniform_to_normal(a, b), pair_uniform_to_normal(c, d)
    return (*first, *second)
