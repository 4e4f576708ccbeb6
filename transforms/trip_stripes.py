"""Which accesses of a loop touch other memory in each of its trips.

A loop that walks over an array, `out + (start + lanes)`, touches one piece after the other. Pieces
do not overlap if the pointer moves on, from trip to trip, by more than the distance between the
first and the last element of a tile. Then no thread has to wait in a trip for what others did in an
earlier one.

    scf.for %start = %0 to %n step %c8192 {
      %offset = arith.addi %start_everywhere, %lanes   // %lanes: 0 to 8191
      %p = "tile.addptr"(%out_everywhere, %offset)
      "tile.store"(%p, ...)
"""

from __future__ import annotations

from dataclasses import dataclass

from mlir import ir

from tiledsl.dialects import tile
from tiledsl.transforms.axis_facts import AxisFacts
from tiledsl.transforms.rewrite import is_inside
from tiledsl.transforms.slot_index import constant_of


@dataclass(frozen=True)
class Stripe:
    """Where an access touches memory: `base` + moved * trip + [low, high], in elements.

    Attributes:
        loop: The loop.
        base: Scalars that the addresses have in common; computed outside of the loop.
        moved: By how many elements the next trip's addresses are further on.
        low: The distance of the first element, and
        high: that of the last.
    """

    loop: ir.Operation
    base: frozenset[ir.Value]
    moved: int
    low: int
    high: int

    def passes(self, later: Stripe | None) -> bool:
        """Whether what this touches in a trip, the other one does not touch in later trips."""
        if later is None or (self.loop, self.base, self.moved) != (
            later.loop,
            later.base,
            later.moved,
        ):
            return False
        return self.high - later.low < self.moved


def stripe_of(ptr: ir.Value, facts: AxisFacts) -> Stripe | None:
    """Return where a tile of pointers points in each trip of the loop that moves it, if known."""
    terms = _Terms(facts)
    if not terms.add(ptr) or terms.loop is None:
        return None
    step = constant_of(terms.loop.operands[2])
    base = frozenset(terms.base)
    if step is None or step <= 0 or len(base) < len(terms.base):
        return None
    if any(is_inside(v, terms.loop) for v in base):
        return None
    return Stripe(terms.loop, base, step * terms.factor, terms.low, terms.high)


class _Terms:
    """The sum that addresses are: scalars, a loop's variable times a factor, and a range."""

    def __init__(self, facts: AxisFacts) -> None:
        self._facts = facts
        self.base: list[ir.Value] = []
        self.loop: ir.Operation | None = None
        self.factor = 1
        self.low = self.high = 0

    def add(self, value: ir.Value) -> bool:
        """Add a tile of pointers or offsets; return whether the sum is known."""
        owner = value.owner
        if not isinstance(owner, ir.Block):
            op = owner.operation
            if isinstance(op.opview, tile.AddPtrOp) or op.name == "arith.addi":
                return all(map(self.add, op.operands))
            if isinstance(op.opview, tile.SplatOp):
                return self._scalar(op.operands[0], 1)
        found = self._facts.of(value).range
        if found is None:
            return False
        self.low, self.high = self.low + found.lo, self.high + found.hi
        return True

    def _scalar(self, value: ir.Value, factor: int) -> bool:
        owner = value.owner
        if isinstance(owner, ir.Block):
            op = owner.owner.operation
            if op.name == "scf.for" and ir.BlockArgument(value).arg_number == 0:
                known = self.loop is None and factor > 0
                self.loop, self.factor = op, factor
                return known
        elif owner.operation.name == "arith.addi":
            return all(self._scalar(one, factor) for one in owner.operation.operands)
        elif owner.operation.name == "arith.muli":
            one, other = owner.operation.operands
            number = constant_of(other)
            if number is not None:
                return self._scalar(one, factor * number)
        if factor != 1:
            return False
        self.base.append(value)
        return True
