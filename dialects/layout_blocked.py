"""Blocked layouts: boxes of elements a thread, of threads a warp, of warps a program.

These are the layouts of global loads and stores and the default of everything that has no wish of
its own. They are plain values of `LinearLayout`; nothing later asks whether a layout is blocked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_f2 import log2_exact


def blocked(
    shape: Sequence[int],
    per_thread: Sequence[int],
    lanes: Sequence[int],
    warps: Sequence[int],
    order: Sequence[int] | None = None,
) -> LinearLayout:
    """Give each thread a small box, each warp a box of threads, and wrap around the tensor.

    Args:
        shape: The tensor's sizes.
        per_thread: Box of consecutive elements that one thread holds.
        lanes: Threads of a warp along each dimension.
        warps: Warps along each dimension.
        order: Dimensions, fastest first; the last dimension is fastest by default.

    Where the tensor is larger than the boxes, each thread gets further registers; where it is
    smaller, lanes and warps hold copies, so their numbers are always the products of `lanes` and
    of `warps`.

    Raises:
        ValueError: A size is not a power of two, or `order` is not a permutation.
    """
    rank = len(shape)
    fastest = _order(rank, order)
    left = [log2_exact(size) for size in shape]
    position = [sum(left[axis + 1 :]) for axis in range(rank)]  # next free flat index bit

    def take(axis: int, bits: int) -> list[int]:
        """Give out the next index bits of a dimension, as far as there are any."""
        bits = min(bits, left[axis])
        found = [1 << (position[axis] + i) for i in range(bits)]
        position[axis] += bits
        left[axis] -= bits
        return found

    def box(sizes: Sequence[int], copies: bool) -> list[int]:
        columns: list[int] = []
        for axis in fastest:
            bits = log2_exact(sizes[axis])
            found = take(axis, bits)
            columns += found + [0] * (bits - len(found) if copies else 0)
        return columns

    register = box(per_thread, copies=False)
    lane, warp = box(lanes, copies=True), box(warps, copies=True)
    register += box([1 << bits for bits in left], copies=False)
    return LinearLayout.from_flat({"register": register, "lane": lane, "warp": warp}, shape)


@lru_cache(maxsize=1024)
def default(
    shape: tuple[int, ...],
    lanes: int,
    warps: int,
    vector: int = 1,
    order: tuple[int, ...] | None = None,
) -> LinearLayout:
    """Give the layout that coalesces: `vector` consecutive elements a thread, then lanes, warps.

    Lanes and then warps fill the dimensions in `order`, fastest first; what is left over wraps in
    registers. With fewer elements than threads the vector shrinks before threads hold copies.

    Raises:
        ValueError: A size is not a power of two, or `order` is not a permutation.
    """
    if not shape:
        return LinearLayout({"register": ()}, ()).replicate(lane=lanes, warp=warps)
    fastest = _order(len(shape), order)
    per_thread = [1] * len(shape)
    spare = max(1, math.prod(shape) // (lanes * warps))
    per_thread[fastest[0]] = min(vector, shape[fastest[0]], spare)
    rest = [size // box for size, box in zip(shape, per_thread, strict=True)]

    def fill(count: int) -> list[int]:
        box = [1] * len(shape)
        for axis in fastest:
            box[axis] = min(count, rest[axis])
            rest[axis] //= box[axis]
            count //= box[axis]
        box[fastest[-1]] *= count  # more threads than elements: copies
        return box

    return blocked(shape, per_thread, fill(lanes), fill(warps), fastest)


def _order(rank: int, order: Sequence[int] | None) -> tuple[int, ...]:
    fastest = tuple(range(rank))[::-1] if order is None else tuple(order)
    if sorted(fastest) != list(range(rank)):
        raise ValueError(f"expected an order of {rank} dimensions, found {fastest}")
    return fastest
