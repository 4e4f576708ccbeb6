"""A function's tiles as a graph: which op makes which tile from which, loops and branches included.

Passes about layouts ask the same few questions of every op, many times. The graph answers them from
Python objects, read from the IR once:

- A `Node` is an op with tile operands or results, other than control flow.
- A `Join` is a tile that control flow makes of several: a loop-carried tile, or the result of an
  `scf.if`. Its `targets` (the values that are the tile: region argument and result, say) must have
  one type; its `sources` flow into it.
- A tile is *free* if it is made of scalars and numbers alone, through transparent ops: it can be
  made anew in any layout, in any place, without moving data or reading memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mlir import ir

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.dialects.types import is_tile
from tiledsl.transforms.layout_rules import is_transparent
from tiledsl.transforms.rewrite import terminator


@dataclass(eq=False)
class Node:
    """An op on tiles.

    Attributes:
        op: The op.
        operands: Its tile operands, in order.
        places: Which operand of the op each of them is.
        results: Its tile results.
        depth: Loops around it.
        transparent: Whether layouts pass through it (`layout_rules`).
        free: Whether its results are free.
    """

    op: ir.OpView
    operands: list[ir.Value]
    places: list[int]
    results: list[ir.Value]
    depth: int
    transparent: bool
    free: bool


@dataclass(eq=False)
class Join:
    """A tile made by control flow; see the module's docstring.

    `edges` are the op and operand number through which each of the sources flows in.
    """

    targets: list[ir.Value]
    sources: list[ir.Value]
    edges: list[tuple[ir.Operation, int]]
    depth: int


@dataclass(eq=False)
class TileGraph:
    """The nodes of a function in program order, its joins, and who makes what."""

    nodes: list[Node] = field(default_factory=list[Node])
    joins: list[Join] = field(default_factory=list[Join])
    maker: dict[ir.Value, Node] = field(default_factory=dict[ir.Value, Node])
    join_of: dict[ir.Value, Join] = field(default_factory=dict[ir.Value, Join])

    @staticmethod
    def of(func: ir.OpView) -> TileGraph:
        """Read the graph of a function."""
        graph = TileGraph()
        for block in func.regions[0].blocks:
            graph._read(block, 0)
        return graph

    def is_free(self, value: ir.Value) -> bool:
        """Whether `value` is a free tile."""
        node = self.maker.get(value)
        return node is not None and node.free

    def behind(self, value: ir.Value) -> Iterator[Node]:
        """Yield the nodes that `value` is computed by, up to and with the first opaque ones."""
        seen: set[ir.Value] = set()
        stack = [value]
        while stack:
            value = stack.pop()
            maker = self.maker.get(value)
            if maker is None or value in seen:
                continue
            seen.add(value)
            yield maker
            if maker.transparent:
                stack += maker.operands

    def _read(self, block: ir.Block, depth: int) -> None:
        for op in block.operations:
            match op.operation.name:
                case "scf.for":
                    self._read(op.regions[0].blocks[0], depth + 1)
                    self._read_for(op.operation, depth + 1)
                case "scf.while":
                    self._read(op.regions[0].blocks[0], depth + 1)
                    self._read(op.regions[1].blocks[0], depth + 1)
                    self._read_while(op.operation, depth + 1)
                case "scf.if":
                    for region in op.regions:
                        for inner in region.blocks:
                            self._read(inner, depth)
                    self._read_if(op.operation, depth)
                case "scf.yield" | "scf.condition":
                    pass
                case _:
                    self._read_op(op, depth)

    def _read_op(self, op: ir.OpView, depth: int) -> None:
        results: list[ir.Value] = [v for v in op.operation.results if is_tile(v.type)]
        found = [(i, v) for i, v in enumerate(op.operation.operands) if is_tile(v.type)]
        if not found and not results:
            return
        if len(op.operation.regions):
            raise CompilerBug(f"expected no tile in {op.operation.name}, an op with regions")
        operands = [value for _, value in found]
        transparent = is_transparent(op)
        free = transparent and all(self.is_free(value) for value in operands)
        places = [i for i, _ in found]
        node = Node(op, operands, places, results, depth, transparent, free)
        self.nodes.append(node)
        for value in results:
            self.maker[value] = node

    def _join(
        self, targets: Sequence[ir.Value], edges: Sequence[tuple[ir.Operation, int]], depth: int
    ) -> None:
        if not is_tile(targets[0].type):
            return
        join = Join(list(targets), [op.operands[i] for op, i in edges], list(edges), depth)
        self.joins.append(join)
        for value in join.targets:
            self.join_of[value] = join

    def _read_for(self, op: ir.Operation, depth: int) -> None:
        body = op.regions[0].blocks[0]
        last = terminator(body)
        for i, result in enumerate(op.results):
            self._join([body.arguments[i + 1], result], [(op, i + 3), (last, i)], depth)

    def _read_while(self, op: ir.Operation, depth: int) -> None:
        before, after = (region.blocks[0] for region in op.regions)
        condition, last = terminator(before), terminator(after)
        for i, argument in enumerate(before.arguments):
            self._join([argument], [(op, i), (last, i)], depth)
        for i, result in enumerate(op.results):
            self._join([after.arguments[i], result], [(condition, i + 1)], depth)

    def _read_if(self, op: ir.Operation, depth: int) -> None:
        if not len(op.results):
            return
        ends = [terminator(region.blocks[0]) for region in op.regions]
        for i, result in enumerate(op.results):
            self._join([result], [(end, i) for end in ends], depth)
