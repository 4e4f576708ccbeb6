"""Decide which tiles get a buffer and which are computed where they are used.

A tile of a thousand elements cannot sit in registers on a CPU, so an op on tiles is no loop by
itself. Some ops are *roots*: stores, atomics, reductions, scans, products and the ends of regions
visit their operands element by element in a loop nest. Whatever is elementwise or only rearranges
elements is computed inside the nests of the roots that need it, unless it is *kept*: then it
becomes a root of its own that fills a buffer in scratch memory. A tile is kept where

- a reduction, scan, product, atomic or control flow made it, as there is no other way;
- it is a load, and it is not read in exactly one nest before the next write to memory: each element
  is loaded once, and as it was where the load stands;
- it is costly, and several nests, a loop inside, or a broadcast would compute it again;
- it is what a store writes and loads take part in it. Its nest may then not touch other memory
  than it reads: the destination may overlap a source.

A loop-carried tile has one buffer. The tile that a trip yields is written into it in place where
nothing reads the old value any more (`in_place`); elsewhere it is copied at the end of the trip.
"""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass, field

from mlir import ir

from tiledsl.dialects import tile
from tiledsl.dialects.types import is_tile

CHEAP = 24
"""The most operations an element that are worth doing again rather than keeping the result."""
_COSTLY = 20
_LOAD = 1 << 20
"""Cost of a load: never cheap."""

SHAPE_OPS = (
    tile.SplatOp,
    tile.ExpandDimsOp,
    tile.BroadcastOp,
    tile.ReshapeOp,
    tile.TransOp,
    tile.JoinOp,
    tile.SplitOp,
    tile.CatOp,
)
_FREE = (*SHAPE_OPS, tile.MakeRangeOp, tile.HintOp, tile.BitcastOp)
_COSTLY_ARITH = ("div", "rem")
_WRITES = (tile.StoreOp, tile.AtomicRmwOp, tile.AtomicCasOp)
_ROOTS = (*_WRITES, tile.ReduceOp, tile.ScanOp, tile.DotOp, tile.PrintOp, tile.AssertOp)


@dataclass
class Plan:
    """What was decided.

    Attributes:
        kept: The tiles that have a buffer.
        in_place: For a kept tile that a loop yields: the loop-carried block argument whose buffer
            it is written into.
        definitions: The op that makes each result.
    """

    kept: set[ir.Value] = field(default_factory=set[ir.Value])
    in_place: dict[ir.Value, ir.Value] = field(default_factory=dict[ir.Value, ir.Value])
    definitions: dict[ir.Value, ir.OpView] = field(default_factory=dict[ir.Value, ir.OpView])

    def computed(self, value: ir.Value) -> ir.OpView | None:
        """Return the op to compute a tile with where it is used, or None if it has a buffer."""
        return None if value in self.kept else self.definitions.get(value)

    def reached(self, value: ir.Value) -> dict[ir.Value, bool]:
        """Return the tiles that computing `value` in a nest computes or reads, itself included.

        A tile maps to whether an element of `value` needs only its element of the same index.
        """
        return self._reached([(value, True)])

    def reached_from(self, op: ir.OpView) -> dict[ir.Value, bool]:
        """Return the same for the results of an op, kept or not, themselves left out."""
        return self._reached(self._operands(op, True))

    def _reached(self, left: list[tuple[ir.Value, bool]]) -> dict[ir.Value, bool]:
        found: dict[ir.Value, bool] = {}
        while left:
            current, same = left.pop()
            if not is_tile(current.type) or found.get(current) in (False, same):
                continue
            found[current] = same
            op = self.computed(current)
            if op is not None:
                left += self._operands(op, same)
        return found

    def _operands(self, op: ir.OpView, same: bool) -> list[tuple[ir.Value, bool]]:
        same = same and not isinstance(op, SHAPE_OPS)
        return [(operand, same) for operand in op.operation.operands]


@dataclass(frozen=True)
class Site:
    """Where a nest stands: its op's place in the order of the text, block and depth of loops."""

    position: int
    block: int
    depth: int


class Planner:
    """Makes the plan of one function; what it found out on the way serves `in_place`.

    Attributes:
        plan: The decisions so far.
        ops: Every op, parents before children, with its site.
        sites: For each tile, the nests that read it.
    """

    def __init__(self, function: ir.OpView) -> None:
        self.plan = Plan()
        self.ops: list[tuple[ir.OpView, Site]] = []
        self.site_of: dict[ir.Operation, Site] = {}
        self.sites: dict[ir.Value, set[Site]] = {}
        self._blocks = 0
        self._costs: dict[ir.Value, int] = {}
        self._forced: set[ir.Value] = set()
        self._number(function.operation, 0)
        self._writes = [site.position for op, site in self.ops if isinstance(op, _WRITES)]

    def run(self) -> Plan:
        """Decide what is kept."""
        for op, _ in self.ops:
            self._set_costs(op)
        for op, site in reversed(self.ops):
            self._decide(op, site)
        for op, _ in self.ops:
            if isinstance(op, _WRITES):
                self._stage(op)
        return self.plan

    def _number(self, parent: ir.Operation, depth: int) -> None:
        for region in parent.regions:
            for block in region.blocks:
                self._blocks += 1
                number = self._blocks
                for op in block.operations:
                    operation = op.operation
                    site = Site(len(self.ops), number, depth)
                    self.ops.append((op, site))
                    self.site_of[operation] = site
                    for result in operation.results:
                        self.plan.definitions[result] = op
                        if is_tile(result.type) and not is_computable(op):
                            self.plan.kept.add(result)
                    if operation.regions:
                        loops = operation.name in ("scf.for", "scf.while")
                        self._number(operation, depth + loops)

    def _set_costs(self, op: ir.OpView) -> None:
        """Set what computing each result would cost an element, if nothing below it is kept."""
        if not is_computable(op):
            return
        cost = own_cost(op)
        for operand in op.operation.operands:
            if is_tile(operand.type) and operand not in self.plan.kept:
                cost += self._costs.get(operand, 0)
        for result in op.operation.results:
            self._costs[result] = min(cost, _LOAD)

    def _is_cheap(self, value: ir.Value) -> bool:
        return self._costs.get(value, 0) <= CHEAP

    def _decide(self, op: ir.OpView, site: Site) -> None:
        """Decide about an op's results, all of whose uses have been seen."""
        tiles = [operand for operand in op.operation.operands if is_tile(operand.type)]
        if not is_computable(op):
            for operand in tiles:
                self.sites.setdefault(operand, set()).add(site)
            return
        readers: set[Site] = set()
        for result in op.operation.results:
            sites = self.sites.get(result, set())
            if sites and (result in self._forced or self._must_keep(op, result, site, sites)):
                self.plan.kept.add(result)
                readers.add(site)
            else:
                readers |= sites
        if isinstance(op, tile.BroadcastOp) and not self._is_cheap(op.source):
            self._forced.add(op.source)
        for operand in tiles:
            self.sites.setdefault(operand, set()).update(readers)

    def _must_keep(self, op: ir.OpView, result: ir.Value, site: Site, sites: set[Site]) -> bool:
        if isinstance(op, tile.LoadOp):
            (only, *more) = sites
            return bool(more) or only.block != site.block or self._is_written_between(site, only)
        if self._is_cheap(result):
            return False
        return len(sites) > 1 or any(reader.depth > site.depth for reader in sites)

    def _is_written_between(self, start: Site, end: Site) -> bool:
        at = bisect(self._writes, start.position)
        return at < len(self._writes) and self._writes[at] < end.position

    def _stage(self, write: ir.OpView) -> None:
        """Keep what a write takes from loads, so that its nest only writes."""
        for operand in write.operation.operands:
            reached = self.plan.reached(operand)
            loads = [v for v in reached if isinstance(self.plan.computed(v), tile.LoadOp)]
            if not loads:
                continue
            whole = isinstance(write, tile.StoreOp) and operand == write.value
            self.plan.kept.update([operand] if whole else loads)


def own_cost(op: ir.OpView) -> int:
    """Return about how many instructions one element of an op takes."""
    if isinstance(op, tile.LoadOp):
        return _LOAD
    name = op.operation.name
    if isinstance(op, _FREE) or name == "arith.constant":
        return 0
    if name.startswith("math.") or any(part in name for part in _COSTLY_ARITH):
        return _COSTLY
    return 1


def is_computable(op: ir.OpView) -> bool:
    """Return whether an op can be computed element by element inside another's nest."""
    operation = op.operation
    if isinstance(op, _ROOTS) or len(operation.regions):
        return False
    return any(is_tile(result.type) for result in operation.results)
