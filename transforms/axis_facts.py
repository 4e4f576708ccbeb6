"""Axis facts: what is known of every integer and pointer of a function, at any tile-level IR.

Coalescing, vector widths, dropped masks and strength-reduced divisions all rest on the same facts:
how far a tile of addresses runs on, from which alignment, where a mask is constant, what bounds a
value has. `Facts` (module `facts`) defines them; this analysis walks a function once and gives each
value its facts. It reads `tile` and `tgpu` IR alike, since layouts change nothing about values.

Sources of facts are constants, ranges, program ids, the attributes `tile.divisibility`, `tile.min`
and `tile.max` of arguments, hints, bounds of loops, `tile.assume`, and the conditions of `scf.if`
and `scf.while` inside their regions. Loop-carried values start at what is known of their first
value and are weakened until a trip around the loop changes nothing.

An analysis stands for the IR as it was when it was first asked. It finds the facts of ops that were
built since, from their operands; after ops were erased, make a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from mlir import ir
from mlir.dialects import arith

from tiledsl.dialects import tile
from tiledsl.dialects.types import is_pointer
from tiledsl.transforms import facts_arithmetic as numbers
from tiledsl.transforms.axis_rules import apply, integer_width, predicate_of, unknown
from tiledsl.transforms.facts import Facts, join, power_of_two_in
from tiledsl.transforms.interval import Interval
from tiledsl.transforms.rewrite import terminator

_TRIPS = 64
"""Trips after which a loop's values are given up: more than runs of any tile can shrink."""


@dataclass(frozen=True)
class _Said:
    """Something known to hold in a block: `value predicate bound`, or a divisor of `value`."""

    values: tuple[ir.Value, ...]
    """Of what it is said, and the bound where there is one."""
    predicate: str = ""
    divisor: int = 1

    @property
    def value(self) -> ir.Value:
        """Of what it is said."""
        return self.values[0]

    @property
    def bound(self) -> ir.Value | None:
        """What the value is compared with."""
        return self.values[1] if len(self.values) > 1 else None


class AxisFacts:
    """The facts of every value of a function, or of all functions of a module.

    Args:
        root: A `func.func` or a module. It is read when facts are first asked for.
    """

    def __init__(self, root: ir.Operation | ir.OpView | ir.Module) -> None:
        self._root = root.operation
        self._facts: dict[ir.Value, Facts] | None = None

    def of(self, value: ir.Value) -> Facts:
        """Return the facts of `value`."""
        if self._facts is None:
            self._facts = {}
            _Walk(self._facts).root(self._root)
        found = self._facts.get(value)
        return found if found is not None else self._compute(value)

    def _compute(self, value: ir.Value) -> Facts:
        """Give facts of a value built since, or that control flow hides."""
        assert self._facts is not None
        owner = value.owner
        if isinstance(owner, ir.Block) or len(owner.operation.regions):
            return self._facts.setdefault(value, unknown(value.type))
        op = owner.operation
        found = apply(op, [self.of(operand) for operand in op.operands])
        self._facts.update(zip(op.results, found, strict=True))
        return self._facts[value]


def vector_elements(
    facts: AxisFacts, ptr: ir.Value, mask: ir.Value | None, axis: int, max_bytes: int = 16
) -> int:
    """Return how many elements along `axis` one access through `ptr` may cover, a power of two.

    Every naturally aligned group of that many elements of the tile is consecutive in memory, begins
    at an address that is a multiple of its size, and has one value of the mask.
    """
    known = facts.of(ptr)
    most = min(known.aligned_run(axis), max(1, max_bytes // known.step))
    return most if mask is None else min(most, facts.of(mask).constancy[axis])


class _Walk:
    """One walk over functions, filling a table of facts."""

    def __init__(self, facts: dict[ir.Value, Facts]) -> None:
        self._facts = facts
        self._said: dict[ir.Value, list[_Said]] = {}

    def root(self, op: ir.Operation) -> None:
        if op.name == "func.func":
            self._function(op)
            return
        for inner in op.regions[0].blocks[0].operations:
            if inner.operation.name == "func.func":
                self._function(inner.operation)

    def _function(self, op: ir.Operation) -> None:
        """Walk a function of one block."""
        blocks = op.regions[0].blocks
        if len(blocks):
            entry = blocks[0]
            said = _argument_attributes(op, len(entry.arguments))
            pairs = zip(entry.arguments, said, strict=True)
            self._block(entry, [_argument(value.type, attributes) for value, attributes in pairs])

    def _unknown(self, values: Iterable[ir.Value]) -> list[Facts]:
        return [unknown(value.type) for value in values]

    def _set(self, value: ir.Value, found: Facts) -> None:
        for said in self._said.get(value, ()):
            found = self._refined(found, said)
        self._facts[value] = found

    def _refined(self, found: Facts, said: _Said) -> Facts:
        if said.bound is None:
            return found.with_divisor(said.divisor)
        if _is_constant(said.bound):
            bound = apply(said.bound.owner.operation, [])[0]
        else:
            bound = self._facts.get(said.bound) or unknown(said.bound.type)
        return numbers.refine(found, said.predicate, bound, integer_width(said.value.type))

    def _block(
        self, block: ir.Block, arguments: Sequence[Facts], given: Sequence[_Said] = ()
    ) -> list[Facts]:
        """Walk a block where `given` holds; return the facts of its terminator's operands."""
        operations = list(block.operations)
        assumed = [
            said
            for op in operations
            if isinstance(op, tile.AssumeOp)
            for said in _conditions(op.condition, True)
            if _known_in_time(said, block)
        ]
        said = [*given, *assumed]
        before = self._begin_saying(said)
        self._facts.update(zip(block.arguments, arguments, strict=True))
        for value, found in zip(block.arguments, arguments, strict=True):
            self._set(value, found)
        for op in operations:
            self._operation(op)
        ends = [self._facts[value] for value in operations[-1].operation.operands]
        for one in said:
            self._said[one.value].remove(one)
        self._facts.update(before)
        return ends

    def _begin_saying(self, said: Sequence[_Said]) -> dict[ir.Value, Facts]:
        """Let `said` refine facts known before and those found from here on; return the former."""
        before = {one.value: self._facts[one.value] for one in said if one.value in self._facts}
        for one in said:
            self._said.setdefault(one.value, []).append(one)
            if one.value in before:
                self._facts[one.value] = self._refined(self._facts[one.value], one)
        return before

    def _operation(self, op: ir.OpView) -> None:
        operation = op.operation
        match operation.name:
            case "scf.for":
                self._for(operation)
            case "scf.if":
                self._if(operation)
            case "scf.while":
                self._while(operation)
            case _:
                for region in operation.regions:
                    for block in region.blocks:
                        self._block(block, self._unknown(block.arguments))
                results = operation.results
                if not len(results):
                    return
                known = self._facts
                found = apply(operation, [known[value] for value in operation.operands])
                for value, one in zip(results, found, strict=True):
                    self._set(value, one)

    def _if(self, op: ir.Operation) -> None:
        condition = op.operands[0]
        ends: list[list[Facts]] = []
        for region, holds in zip(op.regions, (True, False), strict=True):
            if len(region.blocks):
                ends.append(self._block(region.blocks[0], [], _conditions(condition, holds)))
        for i, value in enumerate(op.results):
            self._set(value, join(ends[0][i], ends[1][i]))

    def _for(self, op: ir.Operation) -> None:
        operands = [self._facts[value] for value in op.operands]
        unsigned = "unsignedCmp" in op.attributes
        body = op.regions[0].blocks[0]
        low, high, step = operands[:3]
        counter = _induction(low, high, step, integer_width(body.arguments[0].type), unsigned)
        carried = self._around(
            operands[3:],
            [value.type for value in op.results],
            lambda carried: self._block(body, [counter, *carried]),
        )
        for value, found in zip(op.results, carried, strict=True):
            self._set(value, found)

    def _while(self, op: ir.Operation) -> None:
        operands = [self._facts[value] for value in op.operands]
        before, after = (region.blocks[0] for region in op.regions)
        leaving: list[Facts] = []

        def around(carried: Sequence[Facts]) -> list[Facts]:
            leaving[:] = self._block(before, carried)[1:]
            return self._block(after, leaving, self._passed(before, after))

        types = [value.type for value in before.arguments]
        self._around(operands, types, around)
        for value, found in zip(op.results, leaving, strict=True):
            self._set(value, found)

    def _passed(self, before: ir.Block, after: ir.Block) -> list[_Said]:
        """Give what the condition of a while loop says of the arguments of its second region."""
        end = terminator(before).operands
        renamed = dict(zip(list(end)[1:], after.arguments, strict=True))
        found: list[_Said] = []
        for said in _conditions(end[0], True):
            values = tuple(renamed.get(value, value) for value in said.values)
            found.append(replace(said, values=values))
        return found

    def _around(
        self,
        first: Sequence[Facts],
        types: Sequence[ir.Type],
        trip: Callable[[Sequence[Facts]], list[Facts]],
    ) -> list[Facts]:
        """Give the facts that hold of carried values before the first trip and after each."""
        carried = list(first)
        for _ in range(_TRIPS):
            weaker = [
                _widened(a, join(a, b), type_)
                for a, b, type_ in zip(carried, trip(carried), types, strict=True)
            ]
            if weaker == carried:
                return carried
            carried = weaker
        carried = [unknown(type_) for type_ in types]
        trip(carried)
        return carried


def _widened(before: Facts, after: Facts, type_: ir.Type) -> Facts:
    """Take a bound that one trip moved to move for ever."""
    old, new = before.range, after.range
    if old is None or new is None or old == new:
        return after
    whole = Interval.of_width(integer_width(type_))
    lo = whole.lo if new.lo < old.lo else new.lo
    hi = whole.hi if new.hi > old.hi else new.hi
    return after.with_range(Interval(lo, hi))


def _block_of(value: ir.Value) -> ir.Block:
    owner = value.owner
    return owner if isinstance(owner, ir.Block) else owner.operation.block


def _known_in_time(said: _Said, block: ir.Block) -> bool:
    """Whether the bound's facts are found before those that they refine, in a walk of `block`."""
    bound, value = said.bound, said.value
    if bound is None or _is_constant(bound) or _block_of(bound) != block:
        return True
    if _block_of(value) != block:
        return False
    maker, user = bound.owner, value.owner
    if isinstance(maker, ir.Block) or isinstance(user, ir.Block):
        return isinstance(maker, ir.Block)
    return maker.operation.is_before_in_block(user.operation)


def _argument_attributes(op: ir.Operation, count: int) -> list[dict[str, int]]:
    """Give the integer attributes of a function's arguments by name."""
    attributes = op.attributes
    if "arg_attrs" not in attributes:
        return [{} for _ in range(count)]
    return [
        {
            named.name: named.attr.value
            for named in ir.DictAttr(given)
            if isinstance(named.attr, ir.IntegerAttr)
        }
        for given in ir.ArrayAttr(attributes["arg_attrs"])
    ]


def _argument(type_: ir.Type, said: Mapping[str, int]) -> Facts:
    """Give the facts of a kernel's argument from its attributes."""
    found = unknown(type_)
    if "tile.divisibility" in said and (is_pointer(type_) or integer_width(type_)):
        found = found.with_divisor(power_of_two_in(said["tile.divisibility"]))
    if found.range is not None:
        lo = said.get("tile.min", found.range.lo)
        hi = said.get("tile.max", found.range.hi)
        found = found.with_range(found.range.meet(Interval(lo, hi)))
    return found


def _induction(low: Facts, high: Facts, step: Facts, width: int, unsigned: bool) -> Facts:
    """Give the facts of a loop's induction variable, inside the loop."""
    divisor = min(low.divisor, step.divisor)
    lo, hi = numbers.range_of(low, width), numbers.range_of(high, width)
    if unsigned and (lo.lo < 0 or hi.lo < 0):
        return Facts.make((), divisor=divisor, range=Interval.of_width(width))
    last = hi.hi - 1
    by, start = step.value, low.value
    if by is not None and by > 0 and start is not None and last >= start:
        last = start + (last - start) // by * by
    return Facts.make((), divisor=divisor, range=Interval(lo.lo, max(lo.lo, last)))


def _conditions(condition: ir.Value, holds: bool) -> list[_Said]:
    """Give what follows from a condition that is known to hold, or not to."""
    owner = condition.owner
    if isinstance(owner, ir.Block):
        return []
    op = owner.operation
    if (op.name == "arith.andi" and holds) or (op.name == "arith.ori" and not holds):
        return [said for operand in op.operands for said in _conditions(operand, holds)]
    if op.name != "arith.cmpi":
        return []
    predicate = predicate_of(op)
    if not holds:
        predicate = numbers.negated(predicate)
    left, right = op.operands
    found = [_Said((left, right), predicate), _Said((right, left), numbers.swapped(predicate))]
    if predicate == "eq":
        found += _multiples(left, right)
    return found


_REMAINDERS = {"tile.floormod", "arith.remsi", "arith.remui"}


def _multiples(left: ir.Value, right: ir.Value) -> list[_Said]:
    """Give the divisor that `x % d == 0`, or `x & (d - 1) == 0`, shows of x."""
    if _constant(right) != 0 or isinstance(left.owner, ir.Block):
        return []
    op = left.owner.operation
    number = _constant(op.operands[1]) if len(op.operands) == 2 else None
    if number is None:
        return []
    if op.name in _REMAINDERS:
        return [_Said((op.operands[0],), divisor=power_of_two_in(number))]
    if op.name == "arith.andi":
        return [_Said((op.operands[0],), divisor=power_of_two_in(number + 1))]
    return []


def _is_constant(value: ir.Value) -> bool:
    return not isinstance(value.owner, ir.Block) and isinstance(
        value.owner.opview, arith.ConstantOp
    )


def _constant(value: ir.Value) -> int | None:
    if not _is_constant(value):
        return None
    attribute = value.owner.operation.attributes["value"]
    return attribute.value if isinstance(attribute, ir.IntegerAttr) else None
