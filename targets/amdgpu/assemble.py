"""From a module at the `llvm` level to a linked code object, with what its metadata says.

LLVM writes assembly text, which people and the emulator read, and a relocatable object, which
`link` turns into what HIP loads; no tool of ROCm takes part.
"""

from __future__ import annotations

from typing import Any

from mlir import ir
from mlir.dialects import llvm

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets import llvm_codegen
from tiledsl.targets.amdgpu.chips import Chip
from tiledsl.targets.amdgpu.code_object import kernels
from tiledsl.targets.amdgpu.link import link
from tiledsl.targets.target import Artifact

TRIPLE = "amdgcn-amd-amdhsa"


def assemble(module: ir.Module, chip: Chip) -> Artifact:
    """Return the code of the module's kernel.

    Its shared memory is part of the code object (`Artifact.resources`), so a launch asks for none.

    Raises:
        CompilerBug: LLVM does not take what we made.
    """
    entry = _entry(module)
    text = str(llvm.translate_module_to_llvmir(module.operation))
    emitted = emit(text, chip)
    assembly, relocatable = emitted.assembly, emitted.object
    assert assembly is not None  # both were asked for
    assert relocatable is not None
    code_object = link(relocatable)
    name = entry["sym_name"].value
    metadata = kernels(code_object)[name]
    if any(argument.hidden for argument in metadata.arguments):
        raise CompilerBug(f"expected no hidden arguments, found {metadata.arguments}")
    return Artifact(
        texts={"llvm": text, "amdgcn": assembly, "hsaco": code_object},
        binary=code_object,
        entry=name,
        kinds=tuple(kind.value for kind in entry["tile.kinds"]),
        shared_bytes=0,
        threads=entry["tile.threads"].value,
        resources=metadata.resources,
    )


def emit(text: str, chip: Chip) -> llvm_codegen.Emitted:
    """Return the assembly and the relocatable object of LLVM IR."""
    machine = llvm_codegen.Machine(TRIPLE, chip.name, chip.features)
    return llvm_codegen.optimize_and_emit(text, machine, output="both")


def _entry(module: ir.Module) -> Any:
    """Return the attributes of the module's kernel."""
    attributes = (op.operation.attributes for op in module.body.operations)
    return next(held for held in attributes if "tile.kinds" in held)
