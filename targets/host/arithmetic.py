"""Compute on lanes: integer arithmetic stays symbolic where it can, all else becomes vectors.

`Arithmetic.apply` takes any elementwise op by name. The integer rules below keep `Uniform` and
`Stepped` operands in those forms; every other case builds the op on scalars if all operands are
uniform, else on vectors. See `lanes` for what makes a rule exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from mlir import ir

from tiledsl.targets.host.code import SGE, SLE, Code
from tiledsl.targets.host.index import LANE, Bits, Picks, lane_offsets, loop_runs
from tiledsl.targets.host.lanes import (
    Lanes,
    Offsets,
    Spread,
    Stepped,
    Uniform,
    disjoint,
    ones_of_difference,
    ones_of_product,
    ones_of_sum,
)
from tiledsl.targets.host.machine_types import integer, vector_type, width_of, wrap
from tiledsl.targets.host.nest import Nest

Simple: TypeAlias = Uniform | Stepped
Rule: TypeAlias = "Callable[[Arithmetic, Simple, Simple, ir.Type], Simple | None]"

_I64 = 64


def _wrapped(offsets: Offsets, width: int) -> Offsets:
    """Wrap offsets to a signed integer of `width` bits."""
    spare = 64 - width
    return offsets << spare >> spare


def mask_of(width: int) -> int:
    """Return `width` ones."""
    return (1 << width) - 1


class Arithmetic:
    """Computes on lanes at the levels of one nest.

    Args:
        code: Builds the ops.
        nest: The loops around.
    """

    def __init__(self, code: Code, nest: Nest) -> None:
        self.code = code
        self.nest = nest
        self._vectors: dict[tuple[ir.Value, int], tuple[int, ir.Value]] = {}
        self._coordinates: dict[tuple[Bits, int], Simple] = {}

    def forget_above(self, level: int) -> None:
        """Forget vectors made at levels deeper than `level`: their loops have been closed."""
        self._vectors = {k: v for k, v in self._vectors.items() if v[0] <= level}
        self._coordinates = {k: v for k, v in self._coordinates.items() if v.level <= level}

    def constant(self, type_: ir.Type, value: int) -> Uniform:
        """Return an integer constant."""
        width = width_of(type_)
        wrapped = wrap(value, width)
        return Uniform(self.code.constant(type_, wrapped), 0, wrapped & mask_of(width), wrapped)

    def level(self, operands: Sequence[Lanes]) -> int:
        """Return where a result of these operands is known."""
        return max((operand.level for operand in operands), default=0)

    def vector(self, lanes: Lanes, count: int) -> ir.Value:
        """Return the vector of `count` lanes, right in any case; a scalar for one."""
        if isinstance(lanes, Spread):
            return lanes.value
        if isinstance(lanes, Stepped) and lanes.exact is not None:
            return lanes.exact()
        scalar = lanes.value if isinstance(lanes, Uniform) else lanes.base
        splat = self._splat(scalar, count, lanes.level)
        if isinstance(lanes, Uniform):
            return splat
        table = self.code.table(scalar.type, lanes.offsets)
        return self.code.binary("addi", splat, table, self.nest.at(lanes.level))

    def _splat(self, scalar: ir.Value, count: int, level: int) -> ir.Value:
        key = (scalar, count)
        if key not in self._vectors:
            self._vectors[key] = (level, self.code.splat(scalar, count, self.nest.at(level)))
        return self._vectors[key][1]

    def expand(self, lanes: Lanes, picks: Picks | None) -> Lanes:
        """Return the lanes that `picks` names."""
        if picks is None or isinstance(lanes, Uniform):
            return lanes
        level = lanes.level
        if isinstance(lanes, Spread):
            at = self.nest.at(level)
            return Spread(self.code.shuffle(lanes.value, list(picks), at), level)
        offsets, exact = lanes.offsets[picks], lanes.exact
        wider = None
        if exact is not None:
            wider = _once(lambda: self.code.shuffle(exact(), list(picks), self.nest.at(level)))
        return Stepped(lanes.base, offsets, level, lanes.ones, lanes.guard, wider)

    def coordinate(self, bits: Bits, lanes: int) -> Simple:
        """Return the number that these index bits make, as i64.

        Args:
            bits: Its sources.
            lanes: Number of lane bits around.
        """
        key = (bits, lanes)
        if key not in self._coordinates:
            self._coordinates[key] = self._coordinate(bits, lanes)
        return self._coordinates[key]

    def _coordinate(self, bits: Bits, lanes: int) -> Simple:
        i64 = integer(_I64)
        base: Simple = self.constant(i64, 0)
        for level, low, count, place in loop_runs(bits):
            base = self.add(base, self._run(level, low, count, place), i64)
        offsets = lane_offsets(bits, lanes)
        if not any(source == LANE for source, _ in bits):
            return self.add(base, self.constant(i64, int(offsets[0])), i64)
        assert isinstance(base, Uniform)
        return Stepped(base.value, offsets, base.level, base.ones)

    def _run(self, level: int, low: int, count: int, place: int) -> Uniform:
        """Return some bits of a loop's counter, moved to `place`."""
        at, i64 = self.nest.at(level), integer(_I64)
        value = self.nest.counters[level - 1]
        if low:
            value = self.code.binary("shrui", value, self.code.constant(i64, low), at)
        # Only the run's own bits; LLVM sees from the loop's bounds where this is no change.
        value = self.code.binary("andi", value, self.code.constant(i64, mask_of(count)), at)
        if place:
            value = self.code.binary("shli", value, self.code.constant(i64, place), at)
        return Uniform(value, level, mask_of(count) << place)

    def add(self, a: Simple, b: Simple, type_: ir.Type) -> Simple:
        """Return a + b."""
        if isinstance(a, Uniform) and a.constant == 0:
            return b
        if isinstance(b, Uniform) and b.constant == 0:
            return a
        result = self.apply("arith.addi", [a, b], type_, 1)
        assert not isinstance(result, Spread)
        return result

    def apply(
        self,
        name: str,
        operands: Sequence[Lanes],
        element: ir.Type,
        lanes: int,
        attributes: Mapping[str, ir.Attribute] | None = None,
    ) -> Lanes:
        """Apply an elementwise op.

        Args:
            name: Its full name.
            operands: Its operands.
            element: The element type of its result.
            lanes: The number of lanes.
            attributes: Its attributes.
        """
        simple = self._apply_rule(name, operands, element)
        if simple is not None:
            return simple
        level = self.level(operands)
        at = self.nest.at(level)
        if all(isinstance(operand, Uniform) for operand in operands):
            values = [operand.value for operand in operands if isinstance(operand, Uniform)]
            return Uniform(self.code.op(name, values, element, at, attributes), level)
        # A select may choose whole vectors by a scalar.
        keeps_scalar = name == "arith.select" and isinstance(operands[0], Uniform)
        values = [
            operand.value
            if i == 0 and keeps_scalar and isinstance(operand, Uniform)
            else self.vector(operand, lanes)
            for i, operand in enumerate(operands)
        ]
        made = self.code.op(name, values, vector_type(element, lanes), at, attributes)
        return Spread(made, level)

    def _apply_rule(self, name: str, operands: Sequence[Lanes], element: ir.Type) -> Simple | None:
        rule = _RULES.get(name)
        if rule is None or not isinstance(element, ir.IntegerType):
            return None
        simple = [x for x in operands if not isinstance(x, Spread)]
        if len(simple) != len(operands):
            return None
        first = simple[0]
        return rule(self, first, simple[-1], element)

    def scalar_op(self, name: str, a: Uniform, b: Uniform, ones: int, element: ir.Type) -> Uniform:
        """Build an integer op on two scalars."""
        level = max(a.level, b.level)
        value = self.code.op(f"arith.{name}", [a.value, b.value], element, self.nest.at(level))
        return Uniform(value, level, ones)

    def widen(self, name: str, a: Simple, element: ir.Type) -> Simple:
        """Sign- or zero-extend."""
        narrow = width_of(_type_of(a))
        ones = known_ones(a)
        sign = ones >> (narrow - 1) & 1 and name == "extsi"
        wide_ones = ones | (mask_of(width_of(element)) & ~mask_of(narrow)) if sign else ones
        base = a.value if isinstance(a, Uniform) else a.base
        if isinstance(a, Uniform) and a.constant is not None:
            value = a.constant if name == "extsi" else a.constant & mask_of(narrow)
            return self.constant(element, value)
        at = self.nest.at(a.level)
        wide = self.code.op(f"arith.{name}", [base], element, at)
        if isinstance(a, Uniform):
            return Uniform(wide, a.level, wide_ones)
        lanes = len(a.offsets)
        if a.guard is None and disjoint(ones, a.offsets, narrow):
            return Stepped(wide, a.offsets, a.level, wide_ones)
        exact = _once(
            lambda: self.code.op(
                f"arith.{name}",
                [self.vector(a, lanes)],
                vector_type(element, lanes),
                self.nest.at(a.level),
            )
        )
        guard = self._no_wrap(a) if name == "extsi" else None
        if guard is None:
            return Stepped(wide, a.offsets, a.level, wide_ones, self._false(), exact)
        if a.guard is not None:
            guard = self.code.binary("andi", guard, a.guard, at)
        return Stepped(wide, a.offsets, a.level, wide_ones, guard, exact)

    def _false(self) -> ir.Value:
        return self.code.constant(integer(1), 0)

    def _no_wrap(self, a: Stepped) -> ir.Value:
        """Return whether base + offset stays in the signed range in every lane."""
        type_ = a.base.type
        width = width_of(type_)
        at = self.nest.at(a.level)
        low, high = int(a.offsets.min()), int(a.offsets.max())
        most = self.code.constant(type_, mask_of(width - 1) - max(high, 0))
        guard = self.code.compare(SLE, a.base, most, at)
        if low < 0:
            least = self.code.constant(type_, -(1 << (width - 1)) - low)
            enough = self.code.compare(SGE, a.base, least, at)
            guard = self.code.binary("andi", guard, enough, at)
        return guard


def _once(make: Callable[[], ir.Value]) -> Callable[[], ir.Value]:
    made: list[ir.Value] = []

    def get() -> ir.Value:
        if not made:
            made.append(make())
        return made[0]

    return get


def _exactly(me: Arithmetic, name: str, a: Simple, b: Simple, lanes: int) -> Callable[[], ir.Value]:
    """Return what makes the vector of an op on operands of which one is guarded."""
    level = max(a.level, b.level)
    return _once(
        lambda: me.code.binary(name, me.vector(a, lanes), me.vector(b, lanes), me.nest.at(level))
    )


def _type_of(a: Simple) -> ir.Type:
    return a.value.type if isinstance(a, Uniform) else a.base.type


def known_ones(a: Simple) -> int:
    """Return the bits of the scalar part that may be 1, within its width."""
    return a.ones & mask_of(width_of(_type_of(a)))


def _parts(a: Simple) -> tuple[Uniform, Offsets | None]:
    if isinstance(a, Uniform):
        return a, None
    return Uniform(a.base, a.level, a.ones), a.offsets


def _join(
    me: Arithmetic, base: Uniform, offsets: Offsets | None, whole: Callable[[], ir.Value] | None,
    guard: ir.Value | None, width: int, element: ir.Type,
) -> Simple:  # fmt: skip
    """Return base + offsets in the simplest form."""
    if offsets is None:
        return base
    offsets = _wrapped(offsets, width)
    if guard is None and not np.any(offsets != offsets[0]):
        return me.add(base, me.constant(element, int(offsets[0])), element)
    return Stepped(base.value, offsets, base.level, base.ones, guard, whole)


def _guards(me: Arithmetic, a: Simple, b: Simple, level: int) -> ir.Value | None:
    found = [x.guard for x in (a, b) if isinstance(x, Stepped) and x.guard is not None]
    if len(found) == 2:
        return me.code.binary("andi", found[0], found[1], me.nest.at(level))
    return found[0] if found else None


def _linear(name: str, sign: int) -> Rule:
    """Return the rule of `addi` or `subi`."""

    def rule(me: Arithmetic, a: Simple, b: Simple, element: ir.Type) -> Simple:
        width = width_of(element)
        (x, dx), (y, dy) = _parts(a), _parts(b)
        ones = (ones_of_sum if sign > 0 else ones_of_difference)(
            known_ones(a), known_ones(b), width
        )
        if x.constant is not None and y.constant is not None:
            base = me.constant(element, x.constant + sign * y.constant)
        elif y.constant == 0:
            base = x
        elif x.constant == 0 and sign > 0:
            base = y
        else:
            base = me.scalar_op(name, x, y, ones, element)
        if dx is None and dy is None:
            return base
        lanes = len(dx) if dx is not None else len(dy) if dy is not None else 1
        zeros = np.zeros(lanes, np.int64)
        offsets = (zeros if dx is None else dx) + sign * (zeros if dy is None else dy)
        guard = _guards(me, a, b, base.level)
        whole = None
        if guard is not None:
            whole = _exactly(me, name, a, b, lanes)
        return _join(me, base, offsets, whole, guard, width, element)

    return rule


def _multiply(me: Arithmetic, a: Simple, b: Simple, element: ir.Type) -> Simple | None:
    if isinstance(a, Uniform) and a.constant is not None:
        a, b = b, a
    width = width_of(element)
    (x, dx), (y, dy) = _parts(a), _parts(b)
    if dy is not None or (dx is not None and y.constant is None):
        return None
    ones = ones_of_product(known_ones(a), known_ones(b), width)
    if x.constant is not None and y.constant is not None:
        base = me.constant(element, x.constant * y.constant)
    elif y.constant == 1:
        return a
    else:
        base = me.scalar_op("muli", x, y, ones, element)
    if dx is None or y.constant is None:
        return base
    guard = _guards(me, a, b, base.level)
    whole = None
    if guard is not None:
        whole = _exactly(me, "muli", a, b, len(dx))
    return _join(me, base, dx * y.constant, whole, guard, width, element)


def _shift_left(me: Arithmetic, a: Simple, b: Simple, element: ir.Type) -> Simple | None:
    width = width_of(element)
    if not isinstance(b, Uniform) or b.constant is None or not 0 <= b.constant < width:
        return None
    return _multiply(me, a, me.constant(element, 1 << b.constant), element)


def _shift_right(name: str) -> Rule:
    def rule(me: Arithmetic, a: Simple, b: Simple, element: ir.Type) -> Simple | None:
        width = width_of(element)
        if not isinstance(b, Uniform) or b.constant is None or not 0 <= b.constant < width:
            return None
        x, dx = _parts(a)
        if dx is not None and not _splittable(a, width):
            return None
        ones = known_ones(a)
        signed = name == "shrsi" and ones >> (width - 1) & 1
        ones = mask_of(width) if signed else ones >> b.constant
        base = me.scalar_op(name, x, b, ones, element)
        return _join(me, base, None if dx is None else dx >> b.constant, None, None, width, element)

    return rule


def _and(me: Arithmetic, a: Simple, b: Simple, element: ir.Type) -> Simple | None:
    if isinstance(a, Uniform) and a.constant is not None:
        a, b = b, a
    if not isinstance(b, Uniform):
        return None
    width = width_of(element)
    x, dx = _parts(a)
    if dx is not None and (b.constant is None or not _splittable(a, width)):
        return None
    base = me.scalar_op("andi", x, b, known_ones(a) & known_ones(b), element)
    offsets = None if dx is None or b.constant is None else dx & b.constant
    return _join(me, base, offsets, None, None, width, element)


def _splittable(a: Simple, width: int) -> bool:
    """Return whether `a` is base | offset in each lane, so that bit operations distribute."""
    return isinstance(a, Stepped) and a.guard is None and disjoint(known_ones(a), a.offsets, width)


def _widening(name: str) -> Rule:
    def rule(me: Arithmetic, a: Simple, b: Simple, element: ir.Type) -> Simple:
        return me.widen(name, a, element)

    return rule


def _narrow(me: Arithmetic, a: Simple, b: Simple, element: ir.Type) -> Simple | None:
    if isinstance(a, Stepped) and a.guard is not None:
        return None
    width = width_of(element)
    x, dx = _parts(a)
    if x.constant is not None:
        base = me.constant(element, x.constant)
    else:
        value = me.code.op("arith.trunci", [x.value], element, me.nest.at(x.level))
        base = Uniform(value, x.level, known_ones(a) & mask_of(width))
    return _join(me, base, dx, None, None, width, element)


_RULES: dict[str, Rule] = {
    "arith.addi": _linear("addi", 1),
    "arith.subi": _linear("subi", -1),
    "arith.muli": _multiply,
    "arith.shli": _shift_left,
    "arith.shrsi": _shift_right("shrsi"),
    "arith.shrui": _shift_right("shrui"),
    "arith.andi": _and,
    "arith.extsi": _widening("extsi"),
    "arith.extui": _widening("extui"),
    "arith.trunci": _narrow,
}
