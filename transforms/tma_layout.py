"""The swizzled shared-memory layouts that the hardware fixes, and those that programs are used to.

TMA writes a tile as boxes whose 16-byte chunks are permuted, and `wgmma` reads operands so; other
code uses the same idea with parameters (`xor_swizzle`). All are plain layouts, from offsets in
elements to the tensor.
"""

from __future__ import annotations

from functools import lru_cache

from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_f2 import log2_exact


@lru_cache(maxsize=1024)
def xor_swizzle(
    shape: tuple[int, ...],
    order: tuple[int, ...],
    vector: int = 1,
    per_phase: int = 1,
    max_phase: int = 1,
) -> LinearLayout:
    """Give a row-major layout whose vectors are permuted within each row by an xor.

    Element c of row r goes where `c ^ (r // per_phase % max_phase * vector)` would.

    Args:
        shape: The tile.
        order: Dimensions, fastest first; c runs along `order[0]` and r along `order[1]`.
        vector: Elements that stay together.
        per_phase: Rows that are permuted alike.
        max_phase: Number of different permutations; 1 is plain order.
    """
    axes: list[list[int]] = []
    for axis in order:
        shift = sum(log2_exact(size) for size in shape[axis + 1 :])
        axes.append([1 << (shift + i) for i in range(log2_exact(shape[axis]))])
    if max_phase > 1:
        first, steps = log2_exact(per_phase), log2_exact(max_phase)
        for i in range(steps):
            axes[1][first + i] |= axes[0][log2_exact(vector) + i]
    return LinearLayout.from_flat({"offset": [c for axis in axes for c in axis]}, shape)


@lru_cache(maxsize=256)
def tma_layout(
    shape: tuple[int, ...], element_bits: int, swizzle_bytes: int = 128, fastest: int = -1
) -> LinearLayout:
    """Give the layout that TMA boxes leave in shared memory and `wgmma` descriptors read.

    The tile is cut along its fastest dimension into boxes of `swizzle_bytes`, one after the other;
    in a box each row is `swizzle_bytes` long, and its 16-byte chunks are permuted: address bits 4
    and up are xored with bits 7 and up (PTX ISA 8.7, "Swizzling modes"). The buffer's start must be
    aligned to 8 * `swizzle_bytes` bytes.

    Args:
        shape: The tile; dimensions but the last two are outermost.
        element_bits: Width of an element.
        swizzle_bytes: 32, 64 or 128.
        fastest: The dimension contiguous in global memory, one of the last two. For an operand of a
            product: k for "K-major", m or n for "MN-major".

    Raises:
        ValueError: The tile has less than one box, or the mode does not exist.
    """
    rank = len(shape)
    fastest %= rank
    if swizzle_bytes not in (32, 64, 128):
        raise ValueError(f"expected a swizzle of 32, 64 or 128 bytes, found {swizzle_bytes}")
    width = swizzle_bytes * 8 // element_bits
    if shape[fastest] < width:
        raise ValueError(f"expected {width} elements along axis {fastest}, found {shape}")
    others = [axis for axis in reversed(range(rank)) if axis != fastest]
    order = (fastest, *others)
    plain = xor_swizzle(shape, order).flat("offset")
    across = log2_exact(width)
    boxes = log2_exact(shape[fastest]) - across
    rows = log2_exact(shape[others[0]]) if others else 0
    inner, further = plain[:across], plain[across : across + boxes]
    outer = plain[across + boxes :]
    columns = [*inner, *outer[:rows], *further, *outer[rows:]]
    chunk, line = log2_exact(128 // element_bits), log2_exact(1024 // element_bits)
    for i in range(log2_exact(swizzle_bytes // 16)):
        # A high address bit also flips a low one, as far as rows reach.
        if line + i < across + rows:
            columns[line + i] ^= columns[chunk + i]
    return LinearLayout.from_flat({"offset": columns}, shape)


def tma_mode(layout: LinearLayout, element_bits: int) -> tuple[int, int] | None:
    """Give the (fastest dimension, swizzle bytes) with which TMA writes a layout, if it can."""
    for fastest in {layout.rank - 1, max(0, layout.rank - 2)}:
        for swizzle_bytes in (128, 64, 32):
            fits = layout.shape[fastest] * element_bits >= swizzle_bytes * 8
            if fits and tma_layout(layout.shape, element_bits, swizzle_bytes, fastest) == layout:
                return fastest, swizzle_bytes
    return None
