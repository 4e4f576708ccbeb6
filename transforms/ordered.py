"""Layouts in which an axis runs through registers, then lanes, then warps: for order-keeping work.

A scan, and a reduction by a function that does not commute, must combine neighbours before what
lies farther apart. A layout is *ordered* along an axis if

- every place bit that moves along the axis moves along it alone, by a power of two, and
- those powers ascend through the register bits, then the lane bits, then the warp bits.

So each thread holds consecutive runs, the lower lane the earlier run, the lower warp the earlier
lanes. Lowering of `tile.scan` may assume this and that no warp bit moves along the axis; lowering
of `tile.reduce` and `tgpu.partial_reduce` may assume it where `kind` is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_blocked import blocked


@lru_cache(maxsize=1024)
def is_ordered(layout: LinearLayout, axis: int, across_warps: bool = True) -> bool:
    """Say whether `layout` is ordered along `axis`, and within each warp unless `across_warps`."""
    shift = layout.axis_shift(axis)
    field = (layout.shape[axis] - 1) << shift
    along = [column for column in layout.columns if column & field]
    warps = [c for name in ("warp", "block") for c in layout.flat(name) if c & field]
    if warps and not across_warps:
        return False
    return along == [1 << (shift + i) for i in range(len(along))]


@lru_cache(maxsize=1024)
def ordered(
    shape: tuple[int, ...], axis: int, lanes: int, warps: int, across_warps: bool = True
) -> LinearLayout:
    """Give an ordered layout that keeps as many threads busy as it can.

    Warps and then lanes go to the other dimensions first, where they need not exchange anything.

    Args:
        shape: The tile.
        axis: The axis to be ordered along.
        lanes: Threads of a warp.
        warps: Warps of a program.
        across_warps: Whether warps may share a line along the axis.
    """
    others = [i for i in reversed(range(len(shape))) if i != axis]
    rest = list(shape)

    def fill(count: int, axes: Sequence[int]) -> list[int]:
        box = [1] * len(shape)
        for i in axes:
            box[i] = min(count, rest[i])
            rest[i] //= box[i]
            count //= box[i]
        box[axes[-1] if axes else axis] *= count  # more threads than elements: copies
        return box

    copies = 1 if others or across_warps else warps
    warp = fill(warps // copies, [*others, axis] if across_warps else others)
    lane = fill(lanes, [*others, axis])
    per_thread = [size if i == axis else 1 for i, size in enumerate(rest)]
    return blocked(shape, per_thread, lane, warp, [axis, *others]).replicate(warp=copies)
