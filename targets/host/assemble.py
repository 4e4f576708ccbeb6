"""From the `llvm` level to a relocatable object for this machine's processor."""

from __future__ import annotations

from mlir import ir
from mlir.dialects import llvm

from tiledsl.targets.host.build import attribute, symbol_name
from tiledsl.targets.host.cpu import host_cpu
from tiledsl.targets.host.launch import KINDS, SCRATCH_BYTES
from tiledsl.targets.llvm_codegen import Machine, optimize_and_emit
from tiledsl.targets.target import Artifact


def assemble(module: ir.Module) -> Artifact:
    """Turn a module at the `llvm` level into an object."""
    cpu = host_cpu()
    launched = next(op for op in module.body.operations if attribute(op, KINDS) is not None)
    text = llvm.translate_module_to_llvmir(module.operation)
    machine = Machine(cpu.triple, cpu.name, cpu.features)
    # The vectors are written already: what level 3 adds takes half of the time and gains nothing.
    emitted = optimize_and_emit(text, machine, output="object", speed=1)
    assert emitted.object is not None
    return Artifact(
        texts={"llvm": text, "object": emitted.object},
        binary=emitted.object,
        entry=symbol_name(launched),
        kinds=tuple(str(kind.value) for kind in attribute(launched, KINDS)),
        shared_bytes=int(attribute(launched, SCRATCH_BYTES).value),
        threads=1,
    )
