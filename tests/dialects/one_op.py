"""Build one op on values of given types, and ask what its rule says of it."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mlir import ir

from tiledsl.dialects.context import parse
from tiledsl.dialects.op import Op

Types = str | Sequence[str] | None
"""The types of an operand: one's, those of a variadic one, or None for one that is not there."""


@contextmanager
def built(
    op: type[Op], operands: Sequence[Types], results: Sequence[str] = (), **attributes: Any
) -> Generator[Any]:
    """Build an op in a function whose arguments are its operands; both live as long as the context.

    Args:
        op: Its class.
        operands: The types of each operand.
        results: The types of the results.
        attributes: Its attributes.
    """
    types = [type_ for operand in operands for type_ in _each(operand)]
    listed = ", ".join(f"%{i}: {type_}" for i, type_ in enumerate(types))
    module = parse(f"func.func @k({listed}) {{ return }}")
    block = module.body.operations[0].operation.regions[0].blocks[0]
    values = iter(list(block.arguments))
    given = [_values(operand, values) for operand in operands]
    with module.context, ir.Location.unknown(), ir.InsertionPoint.at_block_begin(block):
        made = [ir.Type.parse(result) for result in results]
        yield op.build(*given, results=made, **attributes)


def _each(operand: Types) -> Sequence[str]:
    return [] if operand is None else [operand] if isinstance(operand, str) else operand


def _values(operand: Types, values: Iterator[ir.Value]) -> ir.Value | list[ir.Value] | None:
    if operand is None:
        return None
    return next(values) if isinstance(operand, str) else [next(values) for _ in operand]


def fault(
    op: type[Op], operands: Sequence[Types], results: Sequence[str] = (), **attributes: Any
) -> str | None:
    """Return what is wrong with such an op by its own rule, or None."""
    with built(op, operands, results, **attributes) as made:
        return made.verify_attributes() or made.verify()
