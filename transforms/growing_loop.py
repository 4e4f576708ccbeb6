"""Make a loop anew that carries more values, around the same ops.

MLIR fixes what an `scf.for` carries when it is made. The ops move into the new loop's body, where
they read the new loop's arguments; results are replaced when the body has its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from mlir import ir

from tiledsl.transforms.rewrite import attributes_of, terminator


def loop_like(
    old: ir.Operation, extra: Sequence[ir.Value], dropped: Sequence[str] = ()
) -> ir.Operation:
    """Make an `scf.for` before `old` that carries `extra` too, with an empty body.

    Args:
        old: The loop whose bounds, initial values and attributes it has.
        extra: What it carries more, at first.
        dropped: Attributes that it does not take over.
    """
    inits = [*list(old.operands)[3:], *extra]
    made: ir.Operation = cast("Any", ir.Operation).create(
        "scf.for",
        results=[value.type for value in inits],
        operands=[*list(old.operands)[:3], *inits],
        attributes={n: a for n, a in attributes_of(old).items() if n not in dropped},
        regions=1,
        loc=old.location,
        ip=ir.InsertionPoint(old),
    )
    types = [old.operands[0].type, *(value.type for value in inits)]
    cast("Any", made.regions[0].blocks).append(*types, arg_locs=[old.location] * len(types))
    return made


class GrowingLoop:
    """An `scf.for` before and after it is made anew.

    Attributes:
        op: The loop; the old one until `grow`.
        block: Its body, whose arguments the ops read.
    """

    def __init__(self, op: ir.Operation) -> None:
        self.op = op
        self.block: ir.Block = op.regions[0].blocks[0]
        self._old = op
        self._count = len(op.results)

    @property
    def counter(self) -> ir.Value:
        """The loop's variable."""
        return self.block.arguments[0]

    @property
    def carried(self) -> Sequence[ir.Value]:
        """What the loop carried from the beginning, in a trip."""
        return list(self.block.arguments)[1 : 1 + self._count]

    @property
    def yields(self) -> list[ir.Value]:
        """What of that it hands to the next trip; until `finish`."""
        return list(terminator(self._old.regions[0].blocks[0]).operands)

    def grow(self, extra: Sequence[ir.Value], dropped: Sequence[str] = ()) -> Sequence[ir.Value]:
        """Make the new loop where the old one is; gives what it carries more, in a trip.

        Args:
            extra: What that is at first.
            dropped: Attributes that the new loop does not take over.
        """
        self.op = loop_like(self._old, extra, dropped)
        self.block = self.op.regions[0].blocks[0]
        source: ir.Block = self._old.regions[0].blocks[0]
        for before, after in zip(source.arguments, self.block.arguments, strict=False):
            before.replace_all_uses_with(after)
        for op in list(source.operations)[:-1]:
            cast("Any", self.block).append(op.operation)
        return list(self.block.arguments)[1 + self._count :]

    def finish(self, extra: Sequence[ir.Value]) -> Sequence[ir.Value]:
        """End the new loop's body and erase the old loop; gives the further results."""
        with ir.InsertionPoint(self.block), self._old.location:
            operands = [*self.yields, *extra]
            cast("Any", ir.Operation).create("scf.yield", results=[], operands=operands)
        for before, after in zip(self._old.results, self.op.results, strict=False):
            before.replace_all_uses_with(after)
        self._old.erase()
        return list(self.op.results)[self._count :]
