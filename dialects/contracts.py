"""The four levels of IR, and the checker that runs after every pass.

- `tile`: tiles without encodings; `tile`, `arith`, `math`, `scf`, `func` ops.
- `tgpu`: every tile's encoding names a layout of the module; `tile` ops without their own threads'
  meaning, and `tgpu` ops.
- `machine`: no tiles. A GPU thread holds a tile as one vector of its registers; the host loops over
  buffers). `llvm`, `nvvm`, `rocdl`, `ptx`, `vector`, `arith`, `math`, control flow still `scf`.
- `llvm`: what translates to LLVM IR.

A level is data: the dialects allowed and a rule for types. A break of contract is a `CompilerBug`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mlir import ir

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.dialects.layouts import Layouts
from tiledsl.dialects.op import Op
from tiledsl.dialects.tgpu import LayoutOp
from tiledsl.dialects.types import is_shared, is_tile, layout_name, shape_of


@dataclass(frozen=True)
class Level:
    """One level: its name, the dialects whose ops may appear, and what tiles must look like."""

    name: str
    dialects: frozenset[str]
    tiles: str
    """"plain" (no encoding), "laid out" (an encoding that the module defines), or "none"."""


_STRUCTURED = {"builtin", "func", "scf", "arith", "math"}
_LOW = {"llvm", "nvvm", "rocdl"}
_MACHINE = _STRUCTURED | _LOW | {"vector", "memref", "index", "ptx"}
TILE = Level("tile", frozenset(_STRUCTURED | {"tile"}), "plain")
TGPU = Level("tgpu", frozenset(_STRUCTURED | {"tile", "tgpu"}), "laid out")
MACHINE = Level("machine", frozenset(_MACHINE), "none")
LLVM = Level("llvm", frozenset({"builtin"} | _LOW), "none")
LEVELS = {level.name: level for level in (TILE, TGPU, MACHINE, LLVM)}


def operations(root: ir.Operation | ir.OpView) -> Iterator[ir.OpView]:
    """Yield every op below `root`, parents before children."""
    for region in root.operation.regions:
        for block in region.blocks:
            for op in block.operations:
                yield op
                if _has_regions(op):
                    yield from operations(op)


def _has_regions(op: ir.OpView) -> bool:
    """Return whether the op has regions: most have none, and to iterate over none is slow."""
    return len(op.operation.regions) > 0


def check(module: ir.Module, level: Level) -> None:
    """Verify `module`: MLIR's verifier, each op's own rule, and the level's contract.

    Raises:
        CompilerBug: The first break, with the op's text.
    """
    try:
        module.operation.verify()
    except Exception as error:  # MLIR's own class is not in the bindings' stubs
        raise CompilerBug(str(error)) from None
    layouts = Layouts(module) if level.tiles == "laid out" else None
    sound: set[ir.Type] = set()
    for op in operations(module.operation):
        wrong = _dialect_fault(op, level) or _type_fault(op, level, layouts, sound)
        if wrong is None and isinstance(op, Op):
            wrong = op.verify_attributes() or op.verify()
        if wrong is not None:
            raise CompilerBug(f"{op.operation.name}: {wrong}\n{_shortened(op)}")


def _shortened(op: ir.OpView) -> str:
    text = str(op)
    return text if len(text) < 2000 else text[:2000] + " ..."


def _dialect_fault(op: ir.OpView, level: Level) -> str | None:
    dialect = op.operation.name.partition(".")[0]
    if dialect not in level.dialects:
        return f"expected no `{dialect}` op at the {level.name} level"
    return None


def _type_fault(
    op: ir.OpView, level: Level, layouts: Layouts | None, sound: set[ir.Type]
) -> str | None:
    """Return what is wrong with the types of the values; `sound` gathers those that are not."""
    if isinstance(op, LayoutOp):
        return None
    types = op.operation.results.types
    if _has_regions(op):
        blocks = (block for region in op.operation.regions for block in region.blocks)
        types = [*types, *(type_ for block in blocks for type_ in block.arguments.types)]
    for type_ in types:
        if type_ not in sound:
            fault = _tile_fault(type_, level, layouts)
            if fault is not None:
                return fault
            sound.add(type_)
    return None


def _tile_fault(type_: ir.Type, level: Level, layouts: Layouts | None) -> str | None:
    if is_shared(type_) and level.tiles != "laid out":
        return f"expected no shared buffer at the {level.name} level, found {type_}"
    if not is_tile(type_):
        return None
    if level.tiles == "none":
        return f"expected no tile at the {level.name} level, found {type_}"
    name = layout_name(type_)
    if layouts is None:
        return None if name is None else f"expected a tile without layout, found {type_}"
    if name is None:
        return f"expected a tile with a layout, found {type_}"
    try:
        layout = layouts[name]
    except KeyError:
        return f"expected a layout that the module defines, found {type_}"
    if layout.shape != shape_of(type_):
        return f"expected a layout of shape {shape_of(type_)}, found one of {layout.shape}"
    return None
