"""Shape operations on layouts that drop, copy or add registers, with the map between registers.

Each operation answers the two questions a lowering has: which layout does the result have if no
element changes its thread, and which operand register does each result register come from. The
second answer is an index array, so that lowering one is one vector shuffle. Operations that leave
registers in place (`transpose`, `reshape`, `expand_dims`, `squeeze`) are methods of `LinearLayout`.

Layouts travel forward (`broadcast_to`: operand to result) and backward (`broadcast_operand`: the
operand layout from which a wanted result costs nothing).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tiledsl.dialects import layout_f2 as f2
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_f2 import IntArray, log2_exact


class Reindexed(NamedTuple):
    """A layout and where its registers come from.

    `source[r]` is the operand register that result register `r` is a copy of. With two operands
    their registers count on: operand 1 starts at the number of registers of operand 0.
    """

    layout: LinearLayout
    source: IntArray


class Halves(NamedTuple):
    """The layout of both halves of a tile and the operand registers of the first and second."""

    layout: LinearLayout
    first: IntArray
    second: IntArray


@lru_cache(maxsize=4096)
def register_map(source: LinearLayout, result: LinearLayout) -> IntArray | None:
    """Give the source register of each result register where no element changes its thread.

    None where some element would have to come from another thread, or from a register that
    depends on the lane.
    """
    if source.shape != result.shape:
        raise ValueError(f"expected equal shapes, found {source.shape} and {result.shape}")
    if source.in_dims != result.in_dims or any(
        source.flat(name) != result.flat(name) for name in source.in_dims if name != "register"
    ):
        return None
    span = f2.Span(source.flat("register"))
    columns = [span.solve(column) for column in result.flat("register")]
    found = [column for column in columns if column is not None]
    return f2.table(found) if len(found) == len(columns) else None


@lru_cache(maxsize=4096)
def distinct_registers(layout: LinearLayout) -> Reindexed:
    """Drop registers that copy other registers of the same thread."""
    keep = f2.spread(f2.independent(layout.flat("register")))
    dims = {name: layout.flat(name) for name in layout.in_dims}
    dims["register"] = tuple(dims["register"][i] for i in keep)
    return Reindexed(LinearLayout.from_flat(dims, layout.shape), f2.table([1 << i for i in keep]))


@lru_cache(maxsize=4096)
def slice_of(
    layout: LinearLayout, starts: tuple[int, ...], shape: tuple[int, ...]
) -> Reindexed | None:
    """Give the layout of the part of a tile that begins at `starts`, multiples of its `shape`.

    None where registers alone do not lead from one part to the next: where lanes or warps move
    further than the part is long.
    """
    outside = layout.flatten(
        [whole - part for whole, part in zip(layout.shape, shape, strict=True)]
    )
    others = [name for name in layout.in_dims if name != "register"]
    if any(column & outside for name in others for column in layout.flat(name)):
        return None
    registers = layout.flat("register")
    high = [column & outside for column in registers]
    start = f2.Span(registers).solve(layout.flatten(starts))
    if start is None:
        return None
    free = f2.kernel(high)
    dims = {name: list(dim) for name, dim in layout.bases.items()}
    dims["register"] = [layout.unflatten(f2.apply(registers, mask)) for mask in free]
    return Reindexed(LinearLayout(dims, shape), f2.table(free) ^ start)


def _project(layout: LinearLayout, axes: Sequence[int]) -> LinearLayout:
    """Collapse some dimensions to size 1: their coordinates become 0."""
    dims = {
        name: [[0 if i in axes else x for i, x in enumerate(basis)] for basis in dim]
        for name, dim in layout.bases.items()
    }
    return LinearLayout(dims, [1 if i in axes else size for i, size in enumerate(layout.shape)])


@lru_cache(maxsize=4096)
def drop_axis(layout: LinearLayout, axis: int, keep_dims: bool = False) -> Reindexed:
    """Give the layout of a reduction's result: the coordinate dropped, registers distinct.

    Lanes and warps that differed along the axis hold copies. `source` names, for each result
    register, the operand register that represents it.
    """
    axis %= layout.rank
    projected, source = distinct_registers(_project(layout, (axis,)))
    return Reindexed(projected if keep_dims else projected.squeeze(axis), source)


@lru_cache(maxsize=4096)
def broadcast_to(layout: LinearLayout, shape: tuple[int, ...]) -> Reindexed:
    """Grow dimensions of size 1 by giving every thread the further elements as high registers."""
    _check_broadcast(layout.shape, shape)
    dims: dict[str, list[tuple[int, ...]]] = {n: list(dim) for n, dim in layout.bases.items()}
    added = 0
    for axis in reversed(range(len(shape))):
        for bit in range(log2_exact(shape[axis]) - log2_exact(layout.shape[axis])):
            dims["register"].append(tuple(1 << bit if i == axis else 0 for i in range(len(shape))))
            added += 1
    columns = [1 << i for i in range(layout.bits("register"))] + [0] * added
    return Reindexed(LinearLayout(dims, shape), f2.table(columns))


@lru_cache(maxsize=4096)
def broadcast_operand(result: LinearLayout, shape: tuple[int, ...]) -> Reindexed:
    """Give the operand layout of `shape` whose broadcast to `result` moves nothing between threads.

    `source` names the operand register of each register of `result`.
    """
    _check_broadcast(shape, result.shape)
    grown = [i for i, (a, b) in enumerate(zip(shape, result.shape, strict=True)) if a != b]
    projected = _project(result, grown)
    operand = distinct_registers(projected).layout
    source = register_map(operand, projected)
    assert source is not None  # the operand has every register of the projection
    return Reindexed(operand, source)


def broadcast_registers(operand: LinearLayout, result: LinearLayout) -> IntArray | None:
    """Give the operand register of each result register of a broadcast between given layouts.

    None where that broadcast would have to move elements between threads.
    """
    _check_broadcast(operand.shape, result.shape)
    sizes = zip(operand.shape, result.shape, strict=True)
    return register_map(operand, _project(result, [i for i, (a, b) in enumerate(sizes) if a != b]))


def _check_broadcast(small: Sequence[int], large: Sequence[int]) -> None:
    if len(small) != len(large) or any(a not in (1, b) for a, b in zip(small, large, strict=True)):
        raise ValueError(f"expected a shape that broadcasts to {tuple(large)}, found {small}")


@lru_cache(maxsize=4096)
def join(layout: LinearLayout) -> Reindexed:
    """Append a dimension of size 2: two tiles of one layout interleave, register by register.

    Result register `2 * r + i` is register `r` of operand `i`, so a joined pair is adjacent.
    """
    dims = {name: [(*basis, 0) for basis in dim] for name, dim in layout.bases.items()}
    dims["register"].insert(0, (0,) * layout.rank + (1,))
    n = layout.registers
    columns = [n, *(1 << i for i in range(layout.bits("register")))]
    return Reindexed(LinearLayout(dims, (*layout.shape, 2)), f2.table(columns))


@lru_cache(maxsize=4096)
def split(layout: LinearLayout) -> Halves:
    """Remove a trailing dimension of size 2 that one register bit holds; inverse of `join`.

    Raises:
        ValueError: The trailing dimension is not 2, or not held by one register bit alone;
            convert to `splittable(layout)` first.
    """
    bit = _trailing_register_bit(layout)
    if bit is None:
        raise ValueError(f"expected a trailing dimension of 2 in a register bit, found {layout}")
    dims = {name: [basis[:-1] for basis in dim] for name, dim in layout.bases.items()}
    del dims["register"][bit]
    kept = [1 << i for i in range(layout.bits("register")) if i != bit]
    first = f2.table(kept)
    return Halves(LinearLayout(dims, layout.shape[:-1]), first, first | 1 << bit)


@lru_cache(maxsize=4096)
def splittable(layout: LinearLayout) -> LinearLayout:
    """Give the layout nearest to this one that `split` takes: both halves in one thread."""
    if layout.rank == 0 or layout.shape[-1] != 2:
        raise ValueError(f"expected a trailing dimension of 2, found {layout.shape}")
    if _trailing_register_bit(layout) is not None:
        return layout
    return join(drop_axis(layout, -1).layout).layout


def _trailing_register_bit(layout: LinearLayout) -> int | None:
    """Find the register bit that is the whole of a trailing dimension of size 2."""
    if layout.rank == 0 or layout.shape[-1] != 2:
        return None
    holders = [i for i, column in enumerate(layout.columns) if column & 1]
    if len(holders) != 1 or holders[0] >= layout.bits("register"):
        return None
    return holders[0] if layout.columns[holders[0]] == 1 else None


@lru_cache(maxsize=4096)
def concat(layout: LinearLayout, axis: int) -> Reindexed:
    """Double a dimension: two tiles of one layout follow each other, as low and high registers."""
    axis %= layout.rank
    shape = [2 * size if i == axis else size for i, size in enumerate(layout.shape)]
    dims = {name: list(dim) for name, dim in layout.bases.items()}
    dims["register"].append(
        tuple(layout.shape[axis] if i == axis else 0 for i in range(len(shape)))
    )
    result = LinearLayout(dims, shape)
    return Reindexed(result, np.arange(result.registers, dtype=np.int64))
