"""Find the tiles that can be written straight into the buffer of the loop that carries them.

A product accumulates in place only if its result has the accumulator's buffer, and through a loop
that is the buffer of the loop-carried tile. It may be so if nothing reads the tile of this trip at
the moment of the overwriting or later. What a trip yields may itself come out of an inner loop or a
branch, which then pass the buffer on to what they yield.

Tiles that are computed only where they are yielded need no entry here: `control` writes those.
"""

from __future__ import annotations

from mlir import ir

from tiledsl.dialects import tile
from tiledsl.dialects.types import is_tile
from tiledsl.targets.host.build import yielded
from tiledsl.targets.host.plan import Planner, Site, is_computable


def assign_in_place(planner: Planner) -> None:
    """Fill in `planner.plan.in_place`, once it is known what is kept."""
    for op, _ in planner.ops:
        name = op.operation.name
        if name == "scf.for":
            block = op.operation.regions[0].blocks[0]
            carried = list[ir.Value](block.arguments)[1:]
            _Chains(planner).link(carried, block)
        elif name == "scf.while":
            _link_while(planner, op)
        elif name == "scf.if":
            _link_branches(planner, op)


def _link_while(planner: Planner, op: ir.OpView) -> None:
    """Treat as a counted loop what hands its carried tiles on as they are."""
    before, after = (region.blocks[0] for region in op.operation.regions)
    passed = yielded(before)[1:]
    if passed == list[ir.Value](before.arguments):
        _Chains(planner).link(list[ir.Value](after.arguments), after)


def _link_branches(planner: Planner, op: ir.OpView) -> None:
    """Let each branch write the results of an `if`, which nobody reads before."""
    for region in op.operation.regions:
        for block in region.blocks:
            yields = yielded(block)
            for value, result in zip(yields, op.operation.results, strict=True):
                if _is_made_in(planner, value, block) and yields.count(value) == 1:
                    planner.plan.in_place.setdefault(value, result)


def _is_made_in(planner: Planner, value: ir.Value, block: ir.Block) -> bool:
    """Return whether a kept tile is the result of an op of this very block."""
    op = planner.plan.definitions.get(value)
    if op is None or value not in planner.plan.kept:
        return False
    return op.operation.block == block


class _Chains:
    """Decides for the tiles that one loop carries."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._plan = planner.plan

    def link(self, carried: list[ir.Value], block: ir.Block) -> None:
        """Let each tile that a loop's body yields have the buffer of the carried one, if it may."""
        yields = yielded(block)
        for old, new in zip(carried, yields, strict=True):
            if new in self._plan.in_place or yields.count(new) > 1:
                continue
            if not is_tile(old.type) or not _is_made_in(self._planner, new, block):
                continue
            if self._may_overwrite(new, old, None):
                self._plan.in_place[new] = old

    def _may_overwrite(self, new: ir.Value, old: ir.Value, within: range | None) -> bool:
        """Return whether making `new` may overwrite `old`.

        Args:
            new: What is yielded.
            old: The carried tile.
            within: The positions whose reads count: a branch's own, or all.
        """
        op = self._plan.definitions.get(new)
        if op is None or new not in self._plan.kept:
            return False
        made = self._planner.site_of[op.operation]
        reads = [
            site.position
            for site in self._planner.sites.get(old, set[Site]())
            if within is None or site.position in within
        ]
        if op.operation.name == "scf.if":
            return self._may_branch(op, new, old, made.position, reads)
        if any(position > made.position for position in reads):
            return False
        return made.position not in reads or self._reads_same_element(op, new, old)

    def _may_branch(
        self, op: ir.OpView, new: ir.Value, old: ir.Value, start: int, reads: list[int]
    ) -> bool:
        """Return whether a branch may write its result into `old`: each side must be able to."""
        number = list(op.operation.results).index(new)
        sides = [block for region in op.operation.regions for block in region.blocks]
        end = start
        for block in sides:
            last = self._planner.site_of[block.operations[len(block.operations) - 1].operation]
            inside = range(end + 1, last.position + 1)
            end = last.position
            value = yielded(block)[number]
            if value == old:
                # Left as it is; but it counts as read by the yield, which is no harm.
                continue
            if not _is_made_in(self._planner, value, block):
                return False
            if not self._may_overwrite(value, old, inside):
                return False
        return not any(position > end for position in reads)

    def _reads_same_element(self, op: ir.OpView, new: ir.Value, old: ir.Value) -> bool:
        """Return whether an op that reads `old` does so only at the element that it writes."""
        if isinstance(op, tile.DotOp):
            same = [op.acc]
        elif op.operation.name == "scf.for":
            number = list(op.operation.results).index(new)
            same = [op.operation.operands[3 + number]]
        elif is_computable(op):
            return self._plan.reached_from(op).get(old, True)
        else:
            return False
        others = [v for v in op.operation.operands if v not in same]
        if any(old in self._plan.reached(value) for value in others):
            return False
        return all(self._plan.reached(value).get(old, True) for value in same)
