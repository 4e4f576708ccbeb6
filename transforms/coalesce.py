"""Choose the layout of each access to global memory, so that a warp's threads read neighbours.

What decides is the pointer's axis facts: along which dimension addresses run on, how far, and from
which alignment. Threads take vectors along that dimension as wide as those facts, the mask's and 16
bytes allow (and no wider than leaves work for every thread), lanes follow in the same direction,
warps spread over what is left, off the axes that the tile is reduced along if they can.

Accesses whose tiles are combined elementwise should agree, else every one costs a conversion: they
form a group, and the best of a group decides for those that gain nothing by a layout of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from mlir import ir

from tiledsl.dialects import tile
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_blocked import blocked
from tiledsl.dialects.types import is_tile, pointee, shape_of, storage_bits
from tiledsl.transforms.axis_facts import AxisFacts, vector_elements
from tiledsl.transforms.layout_inference import Access
from tiledsl.transforms.layout_rules import is_elementwise
from tiledsl.transforms.tile_graph import Node, TileGraph

_ACCESSES = (tile.LoadOp, tile.StoreOp, tile.AtomicRmwOp, tile.AtomicCasOp)
_VECTOR_BYTES = 16
_SECTOR_BYTES = 32
"""What memory moves at least. One thread takes no more than that where a group mixes sizes."""
_LARGEST_TRIP = 32 << 10
"""Bytes of a tile that is worth its shared memory on the way to better stores."""


@dataclass(frozen=True)
class Reach:
    """How an access runs through memory.

    Attributes:
        shape: The tile.
        order: Dimensions, the one along which addresses run on first.
        width: Elements of the widest vector; 1 where nothing is known to be consecutive.
        run: Consecutive elements along `order[0]`, whatever their alignment.
        bytes: Of an element.
    """

    shape: tuple[int, ...]
    order: tuple[int, ...]
    width: int
    run: int
    bytes: int


def accesses(graph: TileGraph, facts: AxisFacts, lanes: int, warps: int) -> dict[Node, Access]:
    """Give what every access on tiles wants; see the module's docstring."""
    nodes = [n for n in graph.nodes if isinstance(n.op, _ACCESSES)]
    reaches = {node: reach_of(node, facts) for node in nodes}
    groups = _Groups(graph)
    wanted: dict[Node, Access] = {}
    for members in groups.split(nodes):
        reduced = groups.reduced_axes(members[0])
        wanted.update(_agree(members, reaches, reduced, lanes, warps))
    return wanted


def reach_of(node: Node, facts: AxisFacts) -> Reach:
    """Read an access's facts."""
    pointer = node.op.operation.operands[0]
    shape = shape_of(pointer.type)
    size = storage_bits(pointee(pointer.type)) // 8
    known = facts.of(pointer)
    axes = list(reversed(range(len(shape))))
    order = tuple(sorted(axes, key=lambda axis: (shape[axis] == 1, -known.contiguity[axis])))
    first = order[0]
    width = vector_elements(facts, pointer, getattr(node.op, "mask", None), first, _VECTOR_BYTES)
    return Reach(shape, order, width, min(known.contiguity[first], shape[first]), size)


def _agree(
    members: Sequence[Node],
    reaches: Mapping[Node, Reach],
    reduced: Iterable[int],
    lanes: int,
    warps: int,
) -> dict[Node, Access]:
    """Let the members of a group that run through memory alike have one layout."""
    running = [node for node in members if reaches[node].run > 1] or members
    lead = max(running, key=lambda n: (n.depth, reaches[n].width * reaches[n].bytes))
    found: dict[Node, Access] = {}
    for node in members:
        reach = reaches[node]
        firm = reach.run > 1 and not isinstance(node.op, tile.AtomicRmwOp | tile.AtomicCasOp)
        like = reach if firm else reaches[lead]
        alike = [reaches[n] for n in running if reaches[n].order == like.order]
        width = max(r.width for r in alike)
        if len({r.bytes for r in alike}) > 1:
            width = min(width, max(1, _SECTOR_BYTES // max(r.bytes for r in alike)))
        layout = coalesced(reach.shape, lanes, warps, width, like.order, tuple(sorted(reduced)))
        serves = partial(stores_well, reach) if isinstance(node.op, tile.StoreOp) else None
        found[node] = Access(layout, firm, serves)
    return found


@lru_cache(maxsize=1024)
def stores_well(reach: Reach, layout: LinearLayout) -> bool:
    """Whether a tile is as well stored from `layout` as after a conversion.

    It is where each store of a warp fills whole sectors of memory, and where there is at most one
    element a thread. A conversion of a large tile takes so much shared memory that half sectors are
    still the lesser evil.
    """
    if math.prod(reach.shape) <= layout.lanes * layout.warps:
        return True
    axis = reach.order[0]
    shift = layout.axis_shift(axis)
    run = layout.contiguous_run(axis, reach.width)
    lanes = set(layout.flat("lane"))
    while run < reach.run and (run << shift) in lanes:
        run *= 2
    large = math.prod(reach.shape) * reach.bytes > _LARGEST_TRIP
    return run * reach.bytes >= (_SECTOR_BYTES // 2 if large else _SECTOR_BYTES)


@lru_cache(maxsize=1024)
def coalesced(
    shape: tuple[int, ...],
    lanes: int,
    warps: int,
    vector: int,
    order: tuple[int, ...],
    reduced: tuple[int, ...] = (),
) -> LinearLayout:
    """Give the layout of threads that each take `vector` elements along `order[0]`.

    Args:
        shape: The tile.
        lanes: Threads of a warp; they fill the dimensions in `order`.
        warps: Warps of a program; they fill the slowest dimensions first, the `reduced` ones last.
        vector: Elements of a thread; fewer where that would leave threads without work.
        order: Dimensions, fastest first.
        reduced: Axes that the tile is reduced along.
    """
    spare = max(1, math.prod(shape) // (lanes * warps))
    per_thread = [1] * len(shape)
    per_thread[order[0]] = min(vector, shape[order[0]], spare)
    rest = [size // box for size, box in zip(shape, per_thread, strict=True)]

    def fill(count: int, axes: Sequence[int]) -> list[int]:
        box = [1] * len(shape)
        for axis in axes:
            box[axis] = min(count, rest[axis])
            rest[axis] //= box[axis]
            count //= box[axis]
        box[axes[-1]] *= count  # more threads than elements: copies
        return box

    lane_box = fill(lanes, order)
    slow = [axis for axis in order[::-1] if axis not in reduced]
    slow += [axis for axis in order[::-1] if axis in reduced]
    warp_box = fill(warps, slow)
    # What is left of slow dimensions each thread takes side by side: the same rows are read in
    # another order, and a thread can write short vectors along them to shared memory.
    for axis in order[1:]:
        per_thread[axis] = rest[axis]
    return blocked(shape, per_thread, lane_box, warp_box, order)


class _Groups:
    """Tiles that elementwise ops and control flow bind together, as a union of sets."""

    def __init__(self, graph: TileGraph) -> None:
        self._graph = graph
        self._parent: dict[ir.Value, ir.Value] = {}
        self._reduced: dict[ir.Value, set[int]] = {}
        for node in graph.nodes:
            if not node.free and node.results and is_elementwise(node.op):
                self._bind(node.results[0], node.operands)
        for join in graph.joins:
            self._bind(join.targets[0], [*join.targets[1:], *join.sources])
        for node in graph.nodes:
            if isinstance(node.op, tile.ReduceOp):
                root = self._root(node.operands[0])
                self._reduced.setdefault(root, set()).add(node.op.axis)

    def _root(self, value: ir.Value) -> ir.Value:
        while (parent := self._parent.get(value)) is not None:
            value = parent
        return value

    def _bind(self, value: ir.Value, others: Sequence[ir.Value]) -> None:
        for other in others:
            if self._graph.is_free(other):
                continue
            a, b = self._root(value), self._root(other)
            if a != b:
                self._parent[b] = a

    def _of(self, node: Node) -> ir.Value:
        """Give the group of an access: that of the tile that it reads or writes."""
        op = node.op
        moved = op.operation.results[0] if isinstance(op, tile.LoadOp) else op.operation.operands[1]
        return self._root(moved if is_tile(moved.type) else node.operands[0])

    def split(self, nodes: Sequence[Node]) -> list[list[Node]]:
        """Sort accesses by group; free tiles that are stored are groups of their own."""
        found: dict[ir.Value | Node, list[Node]] = {}
        for node in nodes:
            root = self._of(node)
            found.setdefault(node if self._graph.is_free(root) else root, []).append(node)
        return list(found.values())

    def reduced_axes(self, node: Node) -> set[int]:
        """Give the axes along which tiles of the access's group are reduced."""
        return self._reduced.get(self._of(node), set())
