"""From a module at the `llvm` level to a linked code object, with what its metadata says.

LLVM writes assembly text, which people and the emulator read, and a relocatable object, which
`link` turns into what HIP loads; no tool of ROCm takes part. Both name the author's lines, the text
in directives, the object in DWARF's tables, which debuggers and profilers read.

LLVM's scheduler fills the registers to hide latency and may then spill a few where another order of
the same instructions needs none. So a kernel that spills a little to memory is scheduled again,
under other orders (`_ORDERS`), until one does not, and the code that takes least memory is kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from mlir import ir
from mlir.dialects import llvm

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets import llvm_codegen
from tiledsl.targets.amdgpu.chips import Chip
from tiledsl.targets.amdgpu.code_object import KernelMetadata, kernels
from tiledsl.targets.amdgpu.link import link
from tiledsl.targets.target import Artifact

TRIPLE = "amdgcn-amd-amdhsa"

_ORDERS = (
    # With a few registers less to plan with than there are, estimates may be wrong by as many.
    ("amdgpu-num-vgpr", "248"),
    ("amdgpu-num-vgpr", "240"),
    # Room for one wave a SIMD is enough: nothing waits so that more waves may fit.
    ("amdgpu-waves-per-eu", "1,1"),
    ("amdgpu-sched-strategy", "max-memory-clause"),
    ("amdgpu-sched-strategy", "max-ilp"),
)
"""LLVM's function attributes that change the order of instructions."""
_MOST_SPILLS = 32
"""Registers; a kernel that spills more needs them under any order."""
_TABLES = re.compile(
    r"^\t\.section\t\.debug_.*?(?=^\t\.(?:section|text|amdgpu)|\Z)", re.MULTILINE | re.DOTALL
)
"""DWARF's sections in assembly text: bytes that tell a reader nothing."""


def assemble(module: ir.Module, chip: Chip) -> Artifact:
    """Return the code of the module's kernel.

    Its shared memory is part of the code object (`Artifact.resources`), so a launch asks for none.

    Raises:
        CompilerBug: LLVM does not take what we made.
    """
    entry = _entry(module)
    built = _build(module, entry, chip, None)
    for order in _ORDERS:
        if not built.spills or built.metadata.vgpr_spills > _MOST_SPILLS:
            break
        again = _build(module, entry, chip, order)
        built = min(built, again, key=lambda one: one.metadata.scratch_bytes)
    metadata = built.metadata
    if any(argument.hidden for argument in metadata.arguments):
        raise CompilerBug(f"expected no hidden arguments, found {metadata.arguments}")
    return Artifact(
        texts={"llvm": built.text, "amdgcn": built.assembly, "hsaco": built.code_object},
        binary=built.code_object,
        entry=metadata.name,
        kinds=tuple(kind.value for kind in entry["tile.kinds"]),
        shared_bytes=0,
        threads=entry["tile.threads"].value,
        resources=metadata.resources,
    )


@dataclass(frozen=True)
class _Built:
    """One result of code generation."""

    text: str
    assembly: str
    code_object: bytes
    metadata: KernelMetadata

    @property
    def spills(self) -> bool:
        """Whether registers went to memory."""
        return bool(self.metadata.resources.spill_bytes)


def _build(module: ir.Module, entry: Any, chip: Chip, order: tuple[str, str] | None) -> _Built:
    """Generate code under one of `_ORDERS`; None is LLVM's own choice."""
    kept = entry["passthrough"]
    if order is not None:
        wish = '["{}", "{}"]'.format(*order)
        entry["passthrough"] = ir.Attribute.parse(f"{str(kept)[:-1]}, {wish}]", module.context)
    text = with_lines_of_loads(str(llvm.translate_module_to_llvmir(module.operation)))
    entry["passthrough"] = kept
    emitted = emit(text, chip)
    assert emitted.assembly is not None  # both were asked for
    assert emitted.object is not None
    code_object = link(emitted.object)
    metadata = kernels(code_object)[entry["sym_name"].value]
    assembly = _TABLES.sub("", emitted.assembly)
    return _Built(text, assembly, code_object, metadata)


_LOAD = re.compile(r"\s*(%[\w.]+) = load .*(, !dbg !\d+)$")
_WIDENED = re.compile(r"(\s*%[\w.]+ = (?:fpext|zext|sext) .* (%[\w.]+) to .*)(, !dbg !\d+)$")


def with_lines_of_loads(text: str) -> str:
    """Give what widens a loaded value the place of the load.

    LLVM makes one load of both where it can, and gives it the place of the second: the author would
    be sent from a faulty load to wherever its value is first used.
    """
    places: dict[str, str] = {}
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if line.startswith("define"):
            places = {}
        elif (load := _LOAD.match(line)) is not None:
            places[load[1]] = load[2]
        elif (widened := _WIDENED.match(line)) is not None and widened[2] in places:
            lines[number] = widened[1] + places[widened[2]]
    return "\n".join(lines)


def emit(text: str, chip: Chip) -> llvm_codegen.Emitted:
    """Return the assembly and the relocatable object of LLVM IR."""
    machine = llvm_codegen.Machine(TRIPLE, chip.name, chip.features)
    return llvm_codegen.optimize_and_emit(text, machine, output="both")


def _entry(module: ir.Module) -> Any:
    """Return the attributes of the module's kernel."""
    attributes = (op.operation.attributes for op in module.body.operations)
    return next(held for held in attributes if "tile.kinds" in held)
