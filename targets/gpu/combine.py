"""Apply the combine function of a reduction or scan to vectors of registers.

The function is over scalars. Where its body is a straight line of elementwise ops it is built once,
on whole vectors; where it branches or loops it is built for each register.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlir import ir

from tiledsl.targets.gpu import emit
from tiledsl.targets.gpu.lowering import Lowering
from tiledsl.transforms.layout_rules import is_elementwise

Values = list[ir.Value]
"""One vector for each source of a reduction; all have as many registers."""


class Combine:
    """A function (a0, a1, ..., b0, b1, ...) -> (c0, c1, ...) on vectors.

    Args:
        lowering: The kernel that calls it.
        name: The function's symbol.
    """

    def __init__(self, lowering: Lowering, name: str) -> None:
        self._lowering = lowering
        function: Any = lowering.combines[name]
        self._block: ir.Block = function.operation.regions[0].blocks[0]
        *ops, self._last = self._block.operations
        self._ops: list[ir.OpView] = ops
        self._straight = all(
            is_elementwise(op) or op.operation.name == "arith.constant" for op in ops
        )

    @property
    def single(self) -> str | None:
        """The name of the op that it is on its two arguments; None if it is more than one op."""
        if len(self._ops) != 1 or len(self._block.arguments) != 2:
            return None
        (op,) = self._ops
        takes_both = list(op.operation.operands) == list(self._block.arguments)
        return op.operation.name if takes_both else None

    def __call__(self, a: Sequence[ir.Value], b: Sequence[ir.Value]) -> Values:
        """Return a combined with b; the a's come before the b's along the axis."""
        count = emit.registers_of(a[0])
        if self._straight:
            with self._lowering.on_vectors(count):
                return self._build([*a, *b])
        columns = zip(*(emit.elements(value) for value in (*a, *b)), strict=True)
        with self._lowering.apart():
            made = [self._build(list(column)) for column in columns]
        return [emit.from_elements(list(scalars)) for scalars in zip(*made, strict=True)]

    def _build(self, arguments: Sequence[ir.Value]) -> Values:
        lowering = self._lowering
        for old, new in zip(self._block.arguments, arguments, strict=True):
            lowering.define(old, new)
        for op in self._ops:
            lowering.lower(op)
        return [lowering.value(value) for value in self._last.operation.operands]
