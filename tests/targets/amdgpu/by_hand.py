"""Kernels built by hand at the machine level, for tests of what `AmdMachine` makes of each request.

A test writes a function that builds the body from the kernel's arguments, and reads the assembly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlir import ir
from mlir.dialects import llvm

from tiledsl.dialects.context import context
from tiledsl.targets.amdgpu.assemble import assemble
from tiledsl.targets.amdgpu.chips import CHIPS
from tiledsl.targets.amdgpu.lower import AmdMachine
from tiledsl.targets.amdgpu.pipeline import TO_LLVM
from tiledsl.targets.gpu import emit
from tiledsl.targets.gpu.machine import Address, Kernel
from tiledsl.targets.target import Artifact
from tiledsl.transforms import run

Body = Callable[[AmdMachine, Sequence[ir.Value]], None]
POINTER = "!llvm.ptr<1>"


def build(
    chip: str, types: Sequence[str], body: Body, num_warps: int = 1, shared_bytes: int = 0
) -> ir.Module:
    """Return a module with one kernel, `k`, at the machine level."""
    machine = AmdMachine(CHIPS[chip], num_warps)
    kernel = Kernel("k", num_warps, machine.threads, shared_bytes)
    with context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            machine.declare(kernel)
            signature = ir.Type.parse(f"!llvm.func<void ({', '.join(types)})>")
            function = llvm.LLVMFuncOp("k", ir.TypeAttr.get(signature))
        attributes = function.operation.attributes
        for name, value in machine.function_attributes(kernel).items():
            attributes[name] = value
        attributes["tile.kinds"] = ir.Attribute.parse(str(["ptr"] * len(types)).replace("'", '"'))
        attributes["tile.threads"] = ir.Attribute.parse(f"{machine.threads} : i64")
        parsed = [ir.Type.parse(type_) for type_ in types]
        block = function.operation.regions[0].blocks.append(*parsed)
        with ir.InsertionPoint(block):
            body(machine, list(block.arguments))
            llvm.ReturnOp()
    return module


def compiled(
    chip: str, types: Sequence[str], body: Body, num_warps: int = 1, shared_bytes: int = 0
) -> Artifact:
    """Return the code of such a kernel."""
    module = build(chip, types, body, num_warps, shared_bytes)
    run.run(module, [TO_LLVM])
    return assemble(module, CHIPS[chip])


def assembly(
    chip: str, types: Sequence[str], body: Body, num_warps: int = 1, shared_bytes: int = 0
) -> str:
    """Return the instructions of such a kernel, one a line, without directives and labels."""
    text = compiled(chip, types, body, num_warps, shared_bytes).texts["amdgcn"]
    assert isinstance(text, str)
    code = text[text.index("\nk:") : text.index(".rodata")]
    return "\n".join(line.strip() for line in code.splitlines() if line.startswith("\t"))


def element(pointer: ir.Value, index: ir.Value | int, type_: ir.Type) -> Address:
    """Return the address of an element counted from a pointer."""
    return Address(emit.gep(pointer, index, type_), None, type_, uniform=False)
