"""Which slot of a buffer an index names, as far as two of them can be told apart.

A pipelined loop keeps several tiles in the slots of one buffer and goes round. Whether it needs a
barrier between reading one slot and filling another depends on their being different ones, so
indices are brought to the form `(base + offset) mod slots`:

- a constant has no base;
- what a loop counts round (a carried value that goes to the next slot each trip, one that follows
  such a value a trip later, or the loop's own variable modulo the slots) has the loop's trip number
  for base, if it starts from a constant;
- another carried value is its own base, in its trip;
- anything else is unknown, and may equal anything.

Two indices of one base name different slots if their offsets differ modulo the slots. Trip numbers
move on: `next_trip` restates a slot that was named in the last trip.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mlir import ir

from tiledsl.transforms.rewrite import terminator

_UNKNOWN, _CONSTANT, _COUNTER = "unknown", "constant", "counter"
Base = str | tuple[str, ir.Operation, int | ir.Value]


@dataclass(frozen=True)
class Slot:
    """A slot: `(base + offset) mod slots`."""

    base: Base
    offset: int = 0
    slots: int = 1

    @staticmethod
    def constant(index: int, slots: int) -> Slot:
        """Return the slot of a constant index."""
        return Slot(_CONSTANT, index % slots, slots)

    def plus(self, steps: int) -> Slot:
        """Return the slot `steps` further on."""
        if self.base == _UNKNOWN:
            return self
        return replace(self, offset=(self.offset + steps) % self.slots)

    def differs(self, other: Slot) -> bool:
        """Whether the two are certainly different slots of one buffer."""
        known = self.base == other.base != _UNKNOWN and self.slots == other.slots
        return known and self.offset != other.offset

    def of_loop(self, loop: ir.Operation) -> bool:
        """Whether the slot is counted by `loop`."""
        return isinstance(self.base, tuple) and self.base[1] == loop

    def on_entry(self, loop: ir.Operation) -> Slot:
        """Restate a constant in trips of `loop`, which is about to begin its trip 0."""
        if self.base != _CONSTANT:
            return self
        return replace(self, base=("trip", loop, 0))

    def next_trip(self, loop: ir.Operation) -> Slot:
        """Restate a slot named in the last trip of `loop`."""
        if not self.of_loop(loop):
            return self
        return UNKNOWN if self.base[0] == "value" else self.plus(-1)

    def on_exit(self, loop: ir.Operation) -> Slot:
        """Forget what `loop`, which ended after some trips, counted."""
        return UNKNOWN if self.of_loop(loop) else self


UNKNOWN = Slot(_UNKNOWN)
"""A slot that may be any."""


def slot_of(index: ir.Value, slots: int) -> Slot:
    """Return the slot that `index` names in a buffer of `slots`.

    By the contract of `tgpu.slot` the index is in range, so it is its own remainder, and it is
    enough to know it modulo the slots.
    """
    return _modulo(index, slots, None)


def constant_of(value: ir.Value) -> int | None:
    """Return the value of an integer constant, None if it is none."""
    op = _maker(value)
    if op is None or op.name != "arith.constant":
        return None
    attribute = op.attributes["value"]
    return attribute.value if isinstance(attribute, ir.IntegerAttr) else None


def _maker(value: ir.Value) -> ir.Operation | None:
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


def _modulo(value: ir.Value, slots: int, counter: ir.Value | None) -> Slot:
    """Bring a value to the form `(base + offset) mod slots`, with `counter` itself for a base."""
    if counter is not None and value == counter:
        return Slot(_COUNTER, 0, slots)
    known = constant_of(value)
    if known is not None:
        return Slot.constant(known, slots)
    op = _maker(value)
    if op is None:
        return UNKNOWN if counter else _carried(ir.BlockArgument(value), slots)
    match op.name:
        case "arith.addi" | "arith.subi":
            left, right = op.operands
            step = constant_of(right)
            if step is None:
                return UNKNOWN
            return _modulo(left, slots, counter).plus(-step if op.name == "arith.subi" else step)
        case "arith.remsi" | "arith.remui":
            divisor = constant_of(op.operands[1])
            whole = divisor is not None and divisor > 0 and divisor % slots == 0
            return _modulo(op.operands[0], slots, counter) if whole else UNKNOWN
        case "arith.select":
            return _wrapped(op, slots, counter)
        case "arith.divsi" | "arith.divui" if counter is None:
            return _trip(op.operands[0], constant_of(op.operands[1]), slots)
        case _:
            return UNKNOWN


_EQ, _NE, _SLT, _SGE, _ULT, _UGE = 0, 1, 2, 5, 6, 9
"""Predicates of `arith.cmpi`."""


def _wrapped(op: ir.Operation, slots: int, counter: ir.Value | None) -> Slot:
    """Read `x == slots ? 0 : x` and its variants: x modulo the slots, as x is at most the slots.

    Where both sides are the same modulo the slots, as in `x >= slots ? x - slots : x`, so is the
    result. They may be so for the one x that is asked for, as in `x == 0 ? slots - 1 : x - 1`.
    """
    condition, then, otherwise = op.operands
    sides = _modulo(then, slots, counter), _modulo(otherwise, slots, counter)
    if sides[0] == sides[1]:
        return sides[0]
    compare = _maker(condition)
    if compare is None or compare.name != "arith.cmpi":
        return UNKNOWN
    compared, bound = compare.operands
    predicate = ir.IntegerAttr(compare.attributes["predicate"]).value
    asked, given = constant_of(bound), constant_of(then)
    if predicate == _EQ and asked is not None and given is not None:
        further = Slot(_COUNTER, (given - asked) % slots, slots)
        if _modulo(otherwise, slots, compared) == further:
            return sides[1]
    zero, other = (then, otherwise) if predicate in (_EQ, _SGE, _UGE) else (otherwise, then)
    reads = predicate in (_EQ, _NE, _SLT, _SGE, _ULT, _UGE)
    if reads and other == compared and constant_of(zero) == 0 and constant_of(bound) == slots:
        return _modulo(other, slots, counter)
    return UNKNOWN


def _carried(argument: ir.BlockArgument, slots: int) -> Slot:
    """Read a loop's variable, or a carried value that goes to the next slot each trip."""
    loop = argument.owner.owner.operation
    if loop.name != "scf.for":
        return UNKNOWN
    if argument.arg_number == 0:
        return _trip(argument, 1, slots)
    counted = _counted(argument, slots) or _delayed(argument, slots)
    return counted or Slot(("value", loop, argument), 0, slots)


def _counted(argument: ir.BlockArgument, slots: int) -> Slot | None:
    """Read a carried value that goes to the next slot each trip."""
    loop = argument.owner.owner.operation
    place = argument.arg_number - 1
    last = terminator(argument.owner)
    if _modulo(last.operands[place], slots, argument) != Slot(_COUNTER, 1, slots):
        return None
    first = constant_of(loop.operands[3 + place])
    if first is None:
        return Slot(("counter", loop, place), 0, slots)
    return Slot(("trip", loop, 0), first % slots, slots)


def _delayed(argument: ir.BlockArgument, slots: int) -> Slot | None:
    """Read a carried value that a trip computes for the next one, from what that one counts."""
    loop = argument.owner.owner.operation
    place = argument.arg_number - 1
    following = terminator(argument.owner).operands[place]
    for number, counter in enumerate(list(argument.owner.arguments)[1:]):
        counted = _counted(ir.BlockArgument(counter), slots)
        if counter == argument or counted is None:
            continue
        ahead = _modulo(following, slots, counter)
        if ahead.base != _COUNTER:
            continue
        first, start = (_modulo(loop.operands[3 + n], slots, None) for n in (place, number))
        slot = ahead.plus(-1)
        if first.base != _UNKNOWN and first == start.plus(slot.offset):
            return counted.plus(slot.offset)
    return None


def _trip(variable: ir.Value, divisor: int | None, slots: int) -> Slot:
    """Read `variable / divisor`, the variable of a loop from a constant by steps of the divisor."""
    owner = variable.owner
    if not isinstance(owner, ir.Block) or not divisor or ir.BlockArgument(variable).arg_number:
        return UNKNOWN
    loop = owner.owner.operation
    if loop.name != "scf.for":
        return UNKNOWN
    lower, step = constant_of(loop.operands[0]), constant_of(loop.operands[2])
    if lower is None or step != divisor or lower % divisor:
        return UNKNOWN
    return Slot(("trip", loop, 0), lower // divisor % slots, slots)
