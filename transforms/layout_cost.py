"""Whether a tile in another layout is better made anew or converted.

Converting moves the whole tile; making it anew does its op's work again and asks the same question
of what the op reads. So a conversion travels up through transparent ops to where the fewest bytes
move: before a cast to a larger type, before a broadcast, to free tiles, which cost nothing to move.

It may end at a load of a vector of no more elements than there are threads, a bias beside an
accumulator, say: such a load gains little by its layout, and where a conversion would let all warps
meet each warp had better read what it needs.

Costs are in bytes of the whole tile moved through shared memory, weighted by loops.
"""

from __future__ import annotations

import math

from mlir import ir

from tiledsl.dialects import tile
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_shape import register_map
from tiledsl.dialects.types import shape_of
from tiledsl.transforms.layout_inference import Inference
from tiledsl.transforms.layout_rules import backward, forward, tile_bytes, work
from tiledsl.transforms.tile_graph import Node

_DEPTH = 24
"""How many ops a conversion may travel up."""
_LOOP_WEIGHT = 8
_MOST_READ = 64
"""Elements that a thread reads at most in place of a conversion: they take registers."""


def conversion_cost(inference: Inference, value: ir.Value, layout: LinearLayout) -> float:
    """Give the cost of converting a tile from its decided layout."""
    own = inference.layouts[value]
    if register_map(own, layout) is not None:
        return 0
    within_warp = own.flat("warp") == layout.flat("warp")
    maker, join = inference.graph.maker.get(value), inference.graph.join_of.get(value)
    depth = maker.depth if maker else join.depth if join else 0
    return tile_bytes(value.type) * (1 if within_warp else 2) * _LOOP_WEIGHT**depth


class Costs:
    """Answers for one function; the answers are kept."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self._graph = inference.graph
        self._own: dict[ir.Value, LinearLayout] = {}
        self._choice: dict[tuple[ir.Value, LinearLayout], tuple[float, bool]] = {}
        self._uses: dict[ir.Value, int] = {}
        for node in self._graph.nodes:
            for value in node.operands:
                self._uses[value] = self._uses.get(value, 0) + 1
        for join in self._graph.joins:
            for value in join.sources:
                self._uses[value] = self._uses.get(value, 0) + 1

    def own_layout(self, value: ir.Value) -> LinearLayout:
        """Give the layout to convert from: the decided one; for free tiles a canonical one."""
        decided = self._inference.layouts.get(value)
        if decided is not None:
            return decided
        if value not in self._own:
            node = self._graph.maker[value]
            layout = self._inference.default(value.type)
            if node.operands and backward(node.op, layout) is None:
                layout = forward(node.op, self.own_layout(node.operands[0]))
            self._own[value] = layout
        return self._own[value]

    def recompute(self, value: ir.Value, layout: LinearLayout) -> bool:
        """Whether `value` in `layout` is best made anew by its (transparent) op."""
        return self._best(value, layout, _DEPTH)[1]

    def _best(self, value: ir.Value, layout: LinearLayout, depth: int) -> tuple[float, bool]:
        """Give the least cost of `value` in `layout` and whether that is by making it anew."""
        own = self._inference.layouts.get(value)
        if own == layout:
            return 0, False
        if (value, layout) in self._choice:
            return self._choice[value, layout]
        node = self._graph.maker.get(value)
        free = self._graph.is_free(value)
        convert = conversion_cost(self._inference, value, layout) if own else math.inf
        best = convert, False
        if node is not None and node.transparent and (depth or free):
            anew = self._anew(node, layout, max(0, depth - 1))
            # Of equals the earlier conversion: it may be joined with a load's way through shared
            # memory.
            if anew is not None and anew <= convert:
                best = anew, True
        if node is not None and self._may_read_again(node, layout):
            again = float(tile_bytes(value.type) * self._weight(node))
            if again < best[0]:
                best = again, True
        self._choice[value, layout] = best
        return best

    def _may_read_again(self, node: Node, layout: LinearLayout) -> bool:
        """Whether an op is the load of a small vector, which may as well be read in a layout."""
        if not isinstance(node.op, tile.LoadOp) or node.op.volatile:
            return False
        threads = self._inference.lanes * self._inference.warps
        shape = shape_of(node.results[0].type)
        small = max(shape, default=1) == math.prod(shape) <= threads
        few = layout.registers <= _MOST_READ
        return small and few and all(map(self._graph.is_free, node.operands))

    def _anew(self, node: Node, layout: LinearLayout, depth: int) -> float | None:
        wanted = backward(node.op, layout)
        if wanted is None or (isinstance(node.op, tile.CatOp | tile.JoinOp) and not wanted):
            return None
        cost = sum(self._best(value, wanted, depth)[0] for value in set(node.operands))
        if node.free:
            return cost
        again = sum(self._uses.get(value, 0) for value in node.results) > 1
        if not again:
            return cost
        elements = tile_bytes(node.results[0].type) / tile_bytes_each(node.results[0].type)
        return cost + elements * (work(node.op) or 0.5) * self._weight(node)

    def _weight(self, node: Node) -> int:
        return _LOOP_WEIGHT**node.depth


def tile_bytes_each(type_: ir.Type) -> int:
    """Give the bytes of one element as it is moved between threads."""
    elements = 1
    for extent in shape_of(type_):
        elements *= extent
    return tile_bytes(type_) // elements
