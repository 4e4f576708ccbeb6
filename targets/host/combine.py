"""Apply the combine function of a reduction or scan to many lanes at once.

A combine function is written over scalars. If it is straight-line arithmetic it is computed on
vectors as it stands; one with control flow is inlined for a single lane.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mlir import ir

from tiledsl.targets.host.body import Body
from tiledsl.targets.host.code import Code
from tiledsl.targets.host.evaluate import Evaluator
from tiledsl.targets.host.lanes import Lanes, Spread, Uniform, mask_of
from tiledsl.targets.host.machine_types import value_type, width_of

_COMMUTATIVE = frozenset(
    f"arith.{name}"
    for name in (
        *(
            "addf",
            "addi",
            "mulf",
            "muli",
            "andi",
            "ori",
            "xori",
            "maxsi",
            "maxui",
            "minsi",
            "minui",
        ),
        *("maximumf", "minimumf", "maxnumf", "minnumf"),
    )
)


class Combiner:
    """A combine function.

    Attributes:
        elementwise: Whether it can be applied to vectors.
        commutes: Whether arguments may change places, so that parts may be combined in any order.
        identity: What combines with anything to that, where the order is free.
    """

    def __init__(self, body: Body, name: str) -> None:
        function = body.combiners[name]
        self._body = body
        self._block = function.operation.regions[0].blocks[0]
        operations = list(self._block.operations)
        self._steps, self._results = operations[:-1], list(operations[-1].operation.operands)
        self.elementwise = not any(
            len(op.operation.regions) or op.operation.name == "func.call" for op in self._steps
        )
        single = self._single()
        self.commutes = single is not None
        self.identity = None if single is None else _identity(body.code, single)

    def _single(self) -> ir.OpView | None:
        """Return the one commutative op that the function consists of, if so."""
        if len(self._steps) != 1 or self._steps[0].operation.name not in _COMMUTATIVE:
            return None
        operands = set(self._steps[0].operation.operands)
        whole = operands == set(self._block.arguments)
        return self._steps[0] if whole and len(self._results) == 1 else None

    def apply(
        self, evaluator: Evaluator, a: Sequence[Lanes], b: Sequence[Lanes], lanes: int
    ) -> list[Lanes]:
        """Combine two tuples of values; the a's come first along the axis.

        Args:
            evaluator: Where to.
            a: One a source.
            b: One a source.
            lanes: Number of lanes.
        """
        given = [*a, *b]
        if not self.elementwise:
            return self._inline(evaluator, given)
        known: dict[ir.Value, Lanes] = dict(zip(self._block.arguments, given, strict=True))
        for op in self._steps:
            operands = [known[operand] for operand in op.operation.operands]
            for result in op.operation.results:
                known[result] = evaluator.apply(op, result, operands, lanes)
        return [known[result] for result in self._results]

    def _inline(self, evaluator: Evaluator, given: Sequence[Lanes]) -> list[Lanes]:
        """Lower the function's body, for one lane, at the innermost level."""
        body, depth = self._body, evaluator.nest.depth
        for argument, value in zip(self._block.arguments, given, strict=True):
            body.set_scalar(argument, Uniform(evaluator.arithmetic.vector(value, 1)))
        with body.inside(evaluator.nest.at(depth)):
            body.lower_block(body, self._block)
        return [Uniform(body.scalar(result).value, depth) for result in self._results]

    def fold(
        self, evaluator: Evaluator, values: Sequence[Lanes], lanes: int, bits: int
    ) -> list[Lanes]:
        """Combine lanes with each other: the lowest `bits` lane bits disappear.

        Lanes that differ only in those bits are combined in order.
        """
        arithmetic = evaluator.arithmetic
        current: list[Lanes] = list(values)
        for left in range(bits, 0, -1):
            # In order: neighbours. In any order: halves, whose shuffles are cheaper.
            bit = left - 1 if self.commutes else 0
            low = [lane for lane in range(lanes) if not lane >> bit & 1]
            halves: tuple[list[Lanes], list[Lanes]] = ([], [])
            for value in current:
                vector = arithmetic.vector(value, lanes)
                at = evaluator.nest.at(value.level)
                for which, part in enumerate(halves):
                    picks = [lane | which << bit for lane in low]
                    picked = arithmetic.code.shuffle(vector, picks, at)
                    made = Uniform if len(low) == 1 else Spread
                    part.append(made(picked, value.level))
            lanes //= 2
            current = self.apply(evaluator, halves[0], halves[1], lanes)
        return current


def _identity(code: Code, op: ir.OpView) -> ir.Value:
    """Return what an op on scalars combines with anything to that."""
    type_ = value_type(op.operation.results[0].type)
    name = op.operation.name.removeprefix("arith.")
    if isinstance(type_, ir.FloatType):
        floats = {
            "addf": -0.0,
            "mulf": 1.0,
            "maximumf": -math.inf,
            "minimumf": math.inf,
            "maxnumf": math.nan,
            "minnumf": math.nan,
        }
        return code.constant(type_, floats[name])
    ones = mask_of(width_of(type_))
    most = ones >> 1
    integers = {
        "addi": 0,
        "ori": 0,
        "xori": 0,
        "maxui": 0,
        "muli": 1,
        "andi": ones,
        "minui": ones,
        "maxsi": most + 1,
        "minsi": most,
    }
    return code.constant(type_, integers[name])
