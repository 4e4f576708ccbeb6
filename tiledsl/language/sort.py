"""`sort` and `topk`: a bitonic network along one dimension of a tile.

Elements change places with those whose index differs in one bit. As sizes are powers of two, a bit
is a dimension of size 2: its halves are split, compared and joined again, all elements at once.
Floats are compared as integers that are in the same order, so NaN, which is the greatest, and the
signs of zeros keep their places in it.

The network is that of K. E. Batcher, "Sorting networks and their applications", 1968: n elements
take log2(n) (log2(n) + 1) / 2 steps, each of which the compiler writes out: it is meant for
hundreds of elements (a router's experts, a beam), not for thousands.
"""

from __future__ import annotations

from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import DType, float32, int8, int16, int32, int64, uint8, unwrap
from tiledsl.language import casts, indexing
from tiledsl.language.core import arange
from tiledsl.language.math import maximum, minimum, where
from tiledsl.language.operands import as_value, static_int
from tiledsl.language.shape import join, reshape, split
from tiledsl.language.value import Operand, Value, describe

_WORDS = {8: int8, 16: int16, 32: int32, 64: int64}


def sort(x: Operand, dim: int | None = None, descending: bool = False) -> Value:
    """Return the tile with its elements in order along one dimension, some hundreds at most.

    Args:
        x: A tile of numbers or bools.
        dim: The dimension; the last one by default.
        descending: Whether the greatest comes first. NaN is greater than any number.

    Raises:
        KernelError: It is no tile of numbers, or has no such dimension.
    """
    value, axis = _operand(x, dim, "sort")
    return _back(_sorted(_ordered(value), axis, bool(unwrap(descending))), value.dtype)


def topk(x: Operand, k: int, dim: int | None = None) -> Value:
    """Return the k greatest elements along one dimension, the greatest first.

    Args:
        x: A tile of numbers or bools.
        k: How many: a power of two, at most the dimension's size.
        dim: The dimension; the last one by default. NaN is greater than any number.

    Raises:
        KernelError: It is no tile of numbers, has no such dimension, or k is out of range.
    """
    value, axis = _operand(x, dim, "topk")
    count, size = static_int(k, "`k`"), value.shape[axis]
    if not 1 <= count <= size or count & (count - 1):
        raise KernelError(f"expected `k` of topk to be a power of two up to {size}, found {count}")
    best = _sorted(_ordered(value), axis, True)
    while best.shape[axis] > count:
        before, half = best.shape[:axis], best.shape[axis] // 2
        parts = reshape(best, (*before, 2, half, *best.shape[axis + 1 :]))
        best = split(indexing.permuted(parts, _to_the_end(parts, axis)))[0]
    return _back(best, value.dtype)


def _operand(x: Operand, dim: int | None, what: str) -> tuple[Value, int]:
    value = as_value(x)
    axis = value.ndim - 1 if unwrap(dim) is None else static_int(dim, "`dim`")
    if value.dtype.is_ptr():
        raise KernelError(f"expected numbers to `{what}`, found {describe(value)}")
    if not value.shape or not -value.ndim <= axis < value.ndim:
        raise KernelError(f"expected a dimension of {describe(value)}, found {axis}")
    return value, axis % value.ndim


# --- integers in the same order ------------------------------------------------------------------


def _ordered(value: Value) -> Value:
    """Return integers that compare as the elements do, NaN above all."""
    if value.dtype.is_bool():
        return casts.to(value, uint8)
    if not value.dtype.is_floating():
        return value
    word = _WORDS[value.dtype.primitive_bitwidth]
    wide = casts.to(value, float32) if value.dtype.is_fp8() else value
    bits = _mirrored(casts.to(value, word, bitcast=True))
    return where(wide == wide, bits, word.highest)


def _back(value: Value, dtype: DType) -> Value:
    """Return the elements that `_ordered` made such integers of."""
    if dtype.is_floating():
        return casts.to(_mirrored(value), dtype, bitcast=True)
    return casts.to(value, dtype)


def _mirrored(bits: Value) -> Value:
    """Turn the order of those below zero round: floats have a sign and a magnitude."""
    word = bits.dtype
    return bits ^ ((bits >> (word.primitive_bitwidth - 1)) & word.highest)


# --- the network ---------------------------------------------------------------------------------


def _to_the_end(value: Value, axis: int) -> list[int]:
    """Return the order of dimensions with one of them last."""
    return [d for d in range(value.ndim) if d != axis] + [axis]


def _sorted(value: Value, axis: int, descending: bool) -> Value:
    bits = value.shape[axis].bit_length() - 1
    for length in range(1, bits + 1):
        for bit in reversed(range(length)):
            value = _exchanged(value, axis, bit, length, descending)
    return value


def _exchanged(value: Value, axis: int, bit: int, length: int, descending: bool) -> Value:
    """Order each element and the one whose index differs in `bit`.

    Runs of 2**length elements are put in order, every other one the other way round; the last run
    is all there is.
    """
    shape, runs = value.shape, value.shape[axis] >> (bit + 1)
    parts = reshape(value, (*shape[:axis], runs, 2, 1 << bit, *shape[axis + 1 :]))
    order = _to_the_end(parts, axis + 1)
    low, high = split(indexing.permuted(parts, order))
    first, second = minimum(low, high), maximum(low, high)
    if descending:
        first, second = second, first
    if 1 << length < shape[axis]:
        sizes = [1] * low.ndim
        sizes[axis] = runs
        turned = reshape((arange(0, runs) >> (length - bit - 1)) & 1 == 1, sizes)
        first, second = where(turned, second, first), where(turned, first, second)
    joined = join(first, second)
    back = indexing.permuted(joined, [order.index(d) for d in range(parts.ndim)])
    return reshape(back, shape)
