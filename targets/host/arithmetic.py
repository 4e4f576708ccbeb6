"""Compute on lanes: integer arithmetic stays symbolic where it can, all else becomes vectors.

`Arithmetic.apply` takes any elementwise op by name. The rules of `integer_rules` keep `Uniform` and
`Stepped` operands in those forms; every other case builds the op on scalars if all operands are
uniform, else on vectors. See `lanes` for what makes a rule exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlir import ir

from tiledsl.targets.host.code import Code
from tiledsl.targets.host.index import LANE, Bits, Picks, lane_offsets, loop_runs
from tiledsl.targets.host.integer_rules import RULES
from tiledsl.targets.host.lanes import (
    Lanes,
    Simple,
    Spread,
    Stepped,
    Uniform,
    mask_of,
    once,
)
from tiledsl.targets.host.machine_types import integer, vector_type, width_of, wrap
from tiledsl.targets.host.nest import Nest

_I64 = 64


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
            wider = once(lambda: self.code.shuffle(exact(), list(picks), self.nest.at(level)))
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
        rule = RULES.get(name)
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
