"""Decide the layout of every tile of a function, without touching the IR.

Some ops fix layouts: memory accesses want coalesced ones, matrix products want their instruction's
fragments, scans want order. These *anchors* spread in three ways, until every tile has a layout:

1. Forward: a transparent op takes the layout of the operand with the highest rank (a matrix
   fragment beats an access's layout, which beats anything weaker), free tiles never decide, and a
   join takes the best of what flows into it, so that what a loop computes decides over what it
   begins with.
2. Backward: a tile that nothing decided (a carried pointer, a broadcast row) takes the layout that
   its heaviest use asks for, weighted by bytes and by loops.
3. What is left has no wish and gets the default layout.

A free tile gets no layout at all: it is made anew for each use. Where a decision and a use differ
`assign_layouts` converts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from mlir import ir

from tiledsl.dialects import tile
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_blocked import default
from tiledsl.dialects.layout_shape import splittable
from tiledsl.dialects.types import is_tile, shape_of
from tiledsl.transforms.layout_rules import backward, forward, nearest, tile_bytes
from tiledsl.transforms.ordered import is_ordered, ordered
from tiledsl.transforms.tile_graph import Join, Node, TileGraph


class Rank(IntEnum):
    """How strongly a tile wants to keep its layout."""

    WEAK = 1
    ACCESS = 2
    MATRIX = 3


@dataclass(frozen=True)
class Access:
    """What a memory access wants.

    Attributes:
        layout: The layout that coalesces.
        firm: False where the access gains nothing from its layout (a gather, say): it then follows
            the layout of what it is given.
        serves: For stores, whether another layout of the tile is stored from well enough to spare
            the conversion.
    """

    layout: LinearLayout
    firm: bool = True
    serves: Callable[[LinearLayout], bool] | None = None

    def choose(self, given: LinearLayout | None) -> LinearLayout:
        """Give the layout to access in, the tile being given in a layout or in none yet."""
        if given is None or (self.firm and not (self.serves and self.serves(given))):
            return self.layout
        return given


@dataclass(frozen=True)
class Product:
    """The layouts that a dot needs, of a, b and the accumulator; None where any layout will do."""

    a: LinearLayout | None
    b: LinearLayout | None
    acc: LinearLayout

    @property
    def all(self) -> tuple[LinearLayout | None, LinearLayout | None, LinearLayout]:
        """The layouts of a, b and the accumulator."""
        return self.a, self.b, self.acc


Anchors = Mapping[Node, Access | Product]
_LOOP_WEIGHT = 8
"""How many times a loop's body is taken to run."""


@dataclass(eq=False)
class Inference:
    """The decision, and the state of reaching it.

    Attributes:
        graph: The function's tiles.
        anchors: What each memory access on tiles and each dot wants.
        lanes: Threads of a warp.
        warps: Warps of a program.
        layouts: The layout of every tile that is not free, once `run` has returned.
    """

    graph: TileGraph
    anchors: Anchors
    lanes: int
    warps: int
    layouts: dict[ir.Value, LinearLayout] = field(default_factory=dict[ir.Value, LinearLayout])
    _ranks: dict[ir.Value, Rank] = field(default_factory=dict[ir.Value, Rank])

    def run(self) -> None:
        """Decide every layout."""
        self._spread()
        while missing := self._undecided():
            wishes = self._wishes()
            asked = [value for value in missing if value in wishes]
            for value in asked:
                self._settle(value, wishes[value], Rank.WEAK)
            if not asked:
                self._settle(missing[0], self.default(missing[0].type), Rank.WEAK)
            self._spread()

    def default(self, type_: ir.Type) -> LinearLayout:
        """Give the layout of a tile that nothing has a wish for."""
        return default(shape_of(type_), self.lanes, self.warps)

    def needs(self, node: Node) -> list[LinearLayout]:
        """Give the layouts that the tile operands of an op must have, once all is decided."""
        known = self._known_needs(node) or [None] * len(node.operands)
        return [
            need or self.layouts.get(value) or self.default(value.type)
            for need, value in zip(known, node.operands, strict=True)
        ]

    def _known_needs(self, node: Node) -> list[LinearLayout | None] | None:
        """Give what an op needs as far as is decided, None if nothing says."""
        anchor = self.anchors.get(node)
        if isinstance(anchor, Product):
            return list(anchor.all)
        found = self._common(node)
        if node.transparent:
            result = self.layouts.get(node.results[0])
            if result is not None and (found is None or forward(node.op, found) != result):
                found = backward(node.op, result)
        if found is None:
            return None
        return [found for _ in node.operands]

    # Forward.

    def _spread(self) -> None:
        """Spread layouts forward until nothing changes."""
        while True:
            for node in self.graph.nodes:
                if not node.free:
                    self._visit(node)
            changed = [join for join in self.graph.joins if self._merge(join)]
            if not changed:
                return

    def _visit(self, node: Node) -> None:
        anchor = self.anchors.get(node)
        if isinstance(anchor, Product):
            self._settle(node.results[0], anchor.acc, Rank.MATRIX)
            return
        found = self._common(node)
        if found is None or not node.results or self._follows_a_wish(node):
            return
        layout = found if anchor else forward(node.op, found)
        rank = Rank.ACCESS if anchor else self._rank(node, found)
        for result in node.results:
            self._settle(result, layout, rank)

    def _follows_a_wish(self, node: Node) -> bool:
        """Whether a result waits for a wish, or was decided by one that nothing stronger overrides.

        A broadcast always does: what it would inherit has all its new elements in each thread.
        """
        if isinstance(node.op, tile.BroadcastOp):
            return True
        decided = node.transparent and node.results[0] in self.layouts
        return decided and self._best(node)[1] <= self._ranks[node.results[0]]

    def _rank(self, node: Node, layout: LinearLayout) -> Rank:
        """Give the rank of a result: the operand's, unless the operand had to be converted."""
        best, rank = self._best(node)
        return rank if best == layout else Rank.WEAK

    def _best(self, node: Node) -> tuple[LinearLayout | None, Rank]:
        """Give the decided layout of the operand of highest rank; the first of equals."""
        best: LinearLayout | None = None
        best_rank = Rank.WEAK
        for value in node.operands:
            layout = self.layouts.get(value)
            if layout is not None and (best is None or self._ranks[value] > best_rank):
                best, best_rank = layout, self._ranks[value]
        return best, best_rank

    def _common(self, node: Node) -> LinearLayout | None:
        """Give the layout that an op wants all its tile operands in, None if nothing says."""
        op, (best, _) = node.op, self._best(node)
        anchor = self.anchors.get(node)
        if isinstance(anchor, Access):
            return anchor.choose(best)
        if best is None and all(map(self.graph.is_free, node.operands)):
            best = self.default(node.operands[0].type)
        if isinstance(op, tile.ScanOp):
            return self._in_order(node, op.axis, best, across_warps=False)
        if isinstance(op, tile.ReduceOp) and not op.kind:
            return self._in_order(node, op.axis, best, across_warps=True)
        if isinstance(op, tile.SplitOp) and best is not None:
            return splittable(best)
        return best

    def _in_order(
        self, node: Node, axis: int, best: LinearLayout | None, across_warps: bool
    ) -> LinearLayout:
        if best is not None and is_ordered(best, axis, across_warps):
            return best
        shape = shape_of(node.operands[0].type)
        return ordered(shape, axis, self.lanes, self.warps, across_warps)

    def _merge(self, join: Join) -> bool:
        """Let the strongest source decide, the last of equals; say whether anything changed."""
        known = [value for value in join.sources if value in self.layouts]
        if not known:
            return False
        best = max(reversed(known), key=lambda value: self._ranks[value])
        target = join.targets[0]
        if target in self.layouts and self._ranks[target] >= self._ranks[best]:
            return False
        self._settle(target, self.layouts[best], self._ranks[best])
        return True

    def _settle(self, value: ir.Value, layout: LinearLayout, rank: Rank) -> None:
        """Decide a tile, and what is bound to have the same layout."""
        for target in self._bound(value):
            self.layouts[target] = layout
            self._ranks[target] = rank

    def _bound(self, value: ir.Value) -> list[ir.Value]:
        """Give the values that share a layout with `value`: of one join, or results of one op."""
        join = self.graph.join_of.get(value)
        return join.targets if join else self.graph.maker[value].results

    # Backward.

    def _undecided(self) -> list[ir.Value]:
        """Give the tiles without a layout that may have any, in program order, joins first.

        Others follow from these.
        """
        nodes = (node for node in self.graph.nodes if node.transparent and not node.free)
        made = (value for node in nodes for value in node.results)
        carried = (join.targets[0] for join in self.graph.joins)
        return [value for some in (carried, made) for value in some if value not in self.layouts]

    def _wishes(self) -> dict[ir.Value, LinearLayout]:
        """Give, for each undecided tile that something asks for, the heaviest request."""
        heaviest: dict[ir.Value, tuple[int, LinearLayout]] = {}
        stack: list[tuple[ir.Value, LinearLayout, int]] = []
        for node in reversed(self.graph.nodes):
            if node.free or all(value in self.layouts for value in node.operands):
                continue
            weight = _LOOP_WEIGHT**node.depth
            for value, layout in zip(node.operands, self._known_needs(node) or (), strict=False):
                if layout is not None:
                    stack.append((value, layout, weight * tile_bytes(value.type)))
        for join in self.graph.joins:
            layout = self.layouts.get(join.targets[0])
            if layout is not None:
                weight = _LOOP_WEIGHT**join.depth * tile_bytes(join.targets[0].type)
                stack += [(value, layout, weight) for value in join.sources]
        while stack:
            value, layout, weight = stack.pop()
            if value in self.layouts or heaviest.get(value, (0, layout))[0] >= weight:
                continue
            join = self.graph.join_of.get(value)
            maker = self.graph.maker.get(value)
            if maker is not None:
                layout = nearest(maker.op, layout)
            for target in self._bound(value):
                heaviest[target] = (weight, layout)
            if join is not None:
                stack += [(source, layout, weight) for source in join.sources]
            else:
                stack += self._behind(value, layout, weight)
        return {value: layout for value, (_, layout) in heaviest.items()}

    def _behind(
        self, value: ir.Value, layout: LinearLayout, weight: int
    ) -> list[tuple[ir.Value, LinearLayout, int]]:
        """Give what a request for `value` asks of the tiles that it is made of."""
        node = self.graph.maker[value]
        wanted = backward(node.op, layout) if node.transparent else None
        if wanted is None:
            return []
        return [(operand, wanted, weight) for operand in node.operands if is_tile(operand.type)]
