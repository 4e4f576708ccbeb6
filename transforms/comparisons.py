"""Prove comparisons of a kernel true or false, where bounds of the two sides alone cannot.

Inside a loop `for i in range(lo, hi, step)` there is more to know than the bounds of i: i is less
than hi itself, and by how much, since their difference is a multiple of what divides both. Both
sides are brought to linear forms over scalars (`linear`); the loops' variables of their difference
are replaced by what bounds them, innermost first, and what is left is bounded by ranges.
"""

from __future__ import annotations

from collections.abc import Hashable
from fractions import Fraction
from typing import cast

from mlir import ir

from tiledsl.dialects.types import is_tile
from tiledsl.transforms.axis_facts import AxisFacts
from tiledsl.transforms.axis_rules import integer_width, predicate_of
from tiledsl.transforms.facts_arithmetic import negated, range_of
from tiledsl.transforms.interval import Interval
from tiledsl.transforms.linear import Linear

_SAME_VALUES = frozenset({
    "tile.splat", "tile.broadcast", "tile.expand_dims", "tile.reshape", "tile.trans", "tile.hint",
    "tgpu.convert_layout",
})  # fmt: skip
_FLOOR = frozenset({"tile.floordiv", "arith.shrsi"})
_WHOLE = frozenset({"arith.divsi", "arith.divui", "arith.shrui"})
"""Divisions that round down for operands that are not negative."""


class Comparisons:
    """Decides comparisons of a function whose facts are known.

    Args:
        facts: The facts of the module as it is.
    """

    def __init__(self, facts: AxisFacts) -> None:
        self._facts = facts
        self._forms: dict[ir.Value, Linear] = {}

    def decide(self, op: ir.Operation) -> bool | None:
        """Return whether an `arith.cmpi` holds in every element, or in none; None if unknown."""
        known = self._facts.of(op.results[0]).value
        if known is not None:
            return bool(known)
        left, right = op.operands
        if integer_width(left.type) == 1:
            return None
        predicate = predicate_of(op)
        for sign, holds in ((predicate, True), (negated(predicate), False)):
            if self._holds(sign, left, right):
                return holds
        return None

    def _holds(self, predicate: str, left: ir.Value, right: ir.Value) -> bool:
        if predicate in ("eq", "ne"):
            return False
        if predicate[-2] == "g":
            left, right = right, left
        if predicate[0] == "u" and not (self._at_least(left, 0) and self._at_least(right, 0)):
            return False
        least = self._least(self._form(right) - self._form(left))
        return least > 0 if predicate[-2:] in ("lt", "gt") else least >= 0

    def _at_least(self, value: ir.Value, bound: int) -> bool:
        return self._range(value).lo >= bound

    def _range(self, value: ir.Value) -> Interval:
        return range_of(self._facts.of(value), integer_width(value.type))

    def _divisor(self, name: Hashable) -> int:
        return self._facts.of(cast("ir.Value", name)).divisor

    def _least(self, form: Linear) -> Fraction:
        """Give a lower bound, using what bounds loops' variables."""
        while True:
            counters = [value for value in form.terms if _loop_of(cast("ir.Value", value))]
            if not counters:
                return form.least(lambda name: self._range(cast("ir.Value", name)))
            innermost = max(counters, key=lambda value: _depth(cast("ir.Value", value)))
            form = form.replaced(innermost, self._bound(innermost, form.terms[innermost] > 0))

    def _bound(self, name: Hashable, below: bool) -> Linear:
        """Give the form of the least, or the greatest, value of a loop's variable."""
        value = cast("ir.Value", name)
        loop = _loop_of(value)
        assert loop is not None
        if below:
            return self._form(loop.operands[0])
        high = loop.operands[1]
        gap = min(self._facts.of(value).divisor, self._facts.of(high).divisor)
        return self._form(high) - Linear.within(Interval.exactly(gap))

    def _form(self, value: ir.Value) -> Linear:
        if value not in self._forms:
            self._forms[value] = self._made(value)
        return self._forms[value]

    def _made(self, value: ir.Value) -> Linear:
        known = self._facts.of(value)
        if known.value is not None:
            return Linear.within(Interval.exactly(known.value))
        owner = value.owner
        found = None if isinstance(owner, ir.Block) else self._computed(owner.operation)
        if found is not None:
            return found
        # Elements differ, so a tile has no name that could cancel.
        return Linear.within(self._range(value)) if is_tile(value.type) else Linear.named(value)

    def _computed(self, op: ir.Operation) -> Linear | None:
        """Give the form of an op's result where the op neither wraps nor is opaque."""
        operands = op.operands
        width = integer_width(op.results[0].type)
        if op.name in _SAME_VALUES:
            return self._form(operands[0])
        if op.name in ("arith.extsi", "arith.extui", "arith.trunci"):
            source = self._range(operands[0])
            signed = op.name == "arith.extsi" or source.lo >= 0
            kept = signed and Interval.of_width(width).covers(source)
            return self._form(operands[0]) if kept and integer_width(operands[0].type) > 1 else None
        if len(operands) != 2 or not all(integer_width(v.type) for v in (*operands, *op.results)):
            return None
        a, b = (self._range(operand) for operand in operands)
        whole = Interval.of_width(width)
        if op.name == "arith.addi" and whole.covers(a + b):
            return self._form(operands[0]) + self._form(operands[1])
        if op.name == "arith.subi" and whole.covers(a - b):
            return self._form(operands[0]) - self._form(operands[1])
        if b.value is None:
            return None
        if op.name == "arith.muli" and whole.covers(a * b):
            return self._form(operands[0]).times(Fraction(b.value))
        if op.name == "arith.shli" and whole.covers(a.left_shift(b)):
            return self._form(operands[0]).times(Fraction(1 << b.value))
        if op.name in _FLOOR or (op.name in _WHOLE and a.lo >= 0):
            by = 1 << b.value if op.name.startswith("arith.sh") else b.value
            return self._form(operands[0]).floordiv(by, self._divisor) if by > 0 else None
        return None


def _loop_of(value: ir.Value) -> ir.Operation | None:
    """Return the loop whose variable `value` is, None for other values."""
    owner = value.owner
    if not isinstance(owner, ir.Block) or ir.BlockArgument(value).arg_number:
        return None
    loop = owner.owner.operation
    plain = loop.name == "scf.for" and "unsignedCmp" not in loop.attributes
    return loop if plain else None


def _depth(value: ir.Value) -> int:
    owner = value.owner
    op = owner.owner.operation if isinstance(owner, ir.Block) else owner.operation
    depth = 0
    while op.parent is not None:
        op = op.parent.operation
        depth += 1
    return depth
