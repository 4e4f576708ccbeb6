"""Values to compute with, edge cases among them, and one instruction's results on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.targets.amdgpu.emulator.fragments import Fragment
from tiledsl.targets.amdgpu.chips import CHIPS

Array = NDArray[Any]
One = Callable[[int], Any]
Two = Callable[[int, int], Any]
Three = Callable[[int, int, int], Any]
Oracle = One | Two | Three
"""What an instruction computes of Python's integers."""

_EDGES: dict[int, list[int]] = {
    16: [0, 1, 2, 15, 16, 0x7FFF, 0x8000, 0xFFFF, 0x3C00, 0xBC00, 0x0001, 0x03FF, 0x7C00, 0x7E00],
    32: [
        0, 1, 2, 31, 32, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x3F800000, 0xBF800000, 0x00000001,
        0x007FFFFF, 0x7F800000, 0x7FC00000, 0x7F7FFFFF, 0x00800000, 0xFF800000,
    ],
    64: [
        0, 1, 63, 1 << 63, (1 << 64) - 1, (1 << 63) - 1, 0x3FF0000000000000, 1 << 32,
        0x7FF0000000000000, 0x7FF8000000000000, 0x000FFFFFFFFFFFFF, 0x7FEFFFFFFFFFFFFF,
    ],
}  # fmt: skip
_UNSIGNED: dict[int, Any] = {16: np.uint16, 32: np.uint32, 64: np.uint64}


def evaluated(oracle: Oracle, *values: int) -> Any:
    """Return what an oracle says, whatever the number of its arguments."""
    function: Callable[..., Any] = oracle
    return function(*values)


def some_bits(seed: int, count: int, bits: int = 32) -> Array:
    """Return `count` words: edges, small numbers and anything, in some order."""
    rng = np.random.default_rng(seed)
    anything = (
        rng.integers(0, 1 << bits, count, np.uint64, endpoint=False)
        if bits < 64
        else (rng.integers(0, (1 << 64) - 1, count, np.uint64, endpoint=True))
    )
    edges = rng.choice(np.array(_EDGES[bits], np.uint64), count)
    small = rng.integers(0, 40, count).astype(np.uint64)
    pick = rng.integers(0, 3, count)
    chosen = np.select([pick == 0, pick == 1], [edges, small], anything)
    return chosen.astype(_UNSIGNED[bits])


def computed(
    text: str,
    *sources: Array,
    chip: str = "gfx942",
    kind: Any = np.uint32,
    scalars: dict[int, int] | None = None,
    before: Array | None = None,
) -> Array:
    """Return what instructions leave in v1, or v[1:2], or v[2:3] on chips that want even pairs.

    Args:
        text: Instructions. Sources of 16 and 32 bits are in v4, v5, ..., of 64 in v[4:5], v[6:7].
        sources: One value a lane each.
        chip: For which chip.
        kind: What the result is; 64 bits are read from v[2:3].
        scalars: Scalar registers.
        before: What v1 held.
    """
    size = CHIPS[chip].wave_size
    registers: dict[int, Array] = {} if before is None else {1: _lanes(before, size)}
    register = 4
    for source in sources:
        for word in _words(source):
            registers[register] = _lanes(word, size)
            register += 1
    fragment = Fragment(text, chip)
    result = fragment.run(registers, scalars)
    if np.dtype(kind).itemsize == 8:
        pair = np.stack([result.vector(2)[0], result.vector(3)[0]], axis=1)
        return np.ascontiguousarray(pair).view(kind)[: len(sources[0]), 0]
    words = result.vector(1)[0][: len(sources[0])]
    if np.dtype(kind).itemsize == 2:
        return words.astype(np.uint16).view(kind)
    return words.view(kind)


def lanes_of(chip: str) -> int:
    """Return how many values an instruction takes at once."""
    return CHIPS[chip].wave_size


def _words(source: Array) -> list[Array]:
    if source.dtype.itemsize == 8:
        pair = np.ascontiguousarray(source).view(np.uint32).reshape(-1, 2)
        return [pair[:, 0], pair[:, 1]]
    if source.dtype.itemsize == 2:
        return [np.ascontiguousarray(source).view(np.uint16).astype(np.uint32)]
    return [np.ascontiguousarray(source).view(np.uint32)]


def _lanes(words: Array, size: int) -> Array:
    padded = np.zeros(size, np.uint32)
    padded[: len(words)] = words
    return padded
