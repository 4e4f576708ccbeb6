"""What assertions say, as strings in the code object.

A trap on AMD carries no text. Each message, which begins with the assertion's file and line, is a
constant of the module that nothing refers to but that every tool can see; whoever meets a trap and
knows its line (the emulator, for one) finds here what it says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mlir import ir
from mlir.dialects import llvm

from tiledsl.targets.gpu.emit import module_block
from tiledsl.targets.gpu.source_lines import Source

_PREFIX = "tiledsl.assert."


def keep(message: str) -> None:
    """Add a message ("kernel.py:6: x is positive") to the module at the insertion point."""
    body = module_block()
    names = [op.operation.attributes["sym_name"] for op in body.operations if _is_message(op)]
    data = ir.StringAttr.get(message.encode() + b"\0")
    if any(_is_message(op) and op.operation.attributes["value"] == data for op in body.operations):
        return
    with ir.InsertionPoint.at_block_begin(body):
        llvm.mlir_global(
            ir.TypeAttr.get(ir.Type.parse(f"!llvm.array<{len(message.encode()) + 1} x i8>")),
            f"{_PREFIX}{len(names)}",
            ir.Attribute.parse("#llvm.linkage<external>"),  # LLVM drops internal ones without uses
            constant=True,
            addr_space=1,
            value=data,
        )


def _is_message(op: ir.OpView) -> bool:
    attributes = op.operation.attributes
    return "sym_name" in attributes and _PREFIX in str(attributes["sym_name"])


def messages(symbols: Iterable[tuple[str, bytes]]) -> list[str]:
    """Return the messages among a module's symbols and their bytes."""
    return [
        content.rstrip(b"\0").decode(errors="replace")
        for name, content in symbols
        if name.startswith(_PREFIX)
    ]


def said_at(source: Source | None, found: Sequence[str]) -> str:
    """Return what the assertions of a line say, without the line."""
    if source is None:
        return ""
    place = f"{source.file}:{source.line}: "
    return " or ".join(one.removeprefix(place) for one in found if one.startswith(place))
