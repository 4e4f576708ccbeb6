"""Build and read ops, typed: the bindings' own stubs leave much of this open.

A thin layer over the generic builder, which is several times faster than the op classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

from mlir import ir

Value: TypeAlias = Any
"""An `ir.Value`, as the type of a field: the stubs make a field of that type unknown."""


def create(
    name: str,
    operands: Sequence[ir.Value] = (),
    results: Sequence[ir.Type] = (),
    attributes: Mapping[str, ir.Attribute] | None = None,
    regions: int = 0,
    at: ir.InsertionPoint | None = None,
) -> ir.Operation:
    """Build an op, at the current place unless told."""
    made = cast("Any", ir.Operation).create(
        name,
        results=list(results),
        operands=list(operands),
        attributes=dict(attributes) if attributes else None,
        regions=regions,
        ip=at,
    )
    return cast("ir.Operation", made)


def add_block(owner: ir.Operation, region: int, types: Sequence[ir.Type] = ()) -> ir.Block:
    """Add a block with arguments of these types to a region of an op."""
    blocks: Any = owner.regions[region].blocks
    locations = [owner.location] * len(types)
    return cast("ir.Block", blocks.append(*types, arg_locs=locations))


def attribute(op: ir.Operation | ir.OpView, name: str) -> Any:
    """Return an attribute of an op, or None."""
    attributes: Any = op.operation.attributes
    return attributes.get(name)


def symbol_name(op: ir.Operation | ir.OpView) -> str:
    """Return the name of a function or global; "" where it is neither."""
    name = attribute(op, "sym_name")
    return "" if name is None else str(name.value)


def body_of(op: ir.Operation | ir.OpView, region: int = 0) -> ir.Block:
    """Return the only block of a region."""
    return op.operation.regions[region].blocks[0]


def yielded(block: ir.Block) -> list[ir.Value]:
    """Return the operands of a block's terminator."""
    return list(block.operations[len(block.operations) - 1].operation.operands)


class If:
    """An `scf.if` under construction: build at `then` and `otherwise`, then `finish`."""

    def __init__(
        self,
        condition: ir.Value,
        results: Sequence[ir.Type],
        at: ir.InsertionPoint,
        with_else: bool = True,
    ) -> None:
        self._made = create("scf.if", [condition], results, regions=2, at=at)
        self.then = ir.InsertionPoint(add_block(self._made, 0))
        self._with_else = with_else
        if with_else:
            self.otherwise = ir.InsertionPoint(add_block(self._made, 1))

    def finish(
        self, then: Sequence[ir.Value] = (), otherwise: Sequence[ir.Value] = ()
    ) -> list[ir.Value]:
        """End both blocks with these values; return the results."""
        create("scf.yield", then, at=self.then)
        if self._with_else:
            create("scf.yield", otherwise, at=self.otherwise)
        return list(self._made.results)


class For:
    """An `scf.for` under construction: build at `body`, then `finish`."""

    def __init__(
        self,
        bounds: tuple[ir.Value, ir.Value, ir.Value],
        carried: Sequence[ir.Value],
        at: ir.InsertionPoint,
    ) -> None:
        types = [value.type for value in carried]
        self.op = create("scf.for", [*bounds, *carried], types, regions=1, at=at)
        block = add_block(self.op, 0, [bounds[0].type, *types])
        self.body = ir.InsertionPoint(block)
        self.counter: Value = block.arguments[0]
        self.carried = list[ir.Value](block.arguments)[1:]

    def finish(self, yields: Sequence[ir.Value] = ()) -> list[ir.Value]:
        """End the body with the next trip's values; return the results."""
        create("scf.yield", yields, at=self.body)
        return list(self.op.results)
