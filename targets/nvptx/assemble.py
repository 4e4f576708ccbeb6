"""From a module at the `llvm` level to PTX and, where ptxas is found, a cubin."""

from __future__ import annotations

import re
from typing import Any

from mlir import ir
from mlir.dialects import llvm

from tiledsl.targets import llvm_codegen
from tiledsl.targets.nvptx import ptxas
from tiledsl.targets.nvptx.chips import MAX_REGISTERS_PER_THREAD, Chip
from tiledsl.targets.nvptx.chips import chip as find_chip
from tiledsl.targets.nvptx.driver_options import driver_options
from tiledsl.targets.nvptx.ptxas import Assembled
from tiledsl.targets.target import Artifact, Options
from tiledsl.transforms.map_spec import MapSpec

TRIPLE = "nvptx64-nvidia-cuda"
_MAPS = "tile.tensor_maps"
_OVERLAPS = "tile.overlaps"


def assemble(module: ir.Module, chip: str, options: Options) -> Artifact:
    """Return the code of the module's kernel.

    Raises:
        CompilerBug: LLVM or ptxas does not take what we made.
        KernelError: ptxas is too old for the chip, or does not take the user's options.
    """
    entry = _entry(module)
    attributes: Any = entry.operation.attributes
    text = _with_warps_together(str(llvm.translate_module_to_llvmir(module.operation)))
    found = find_chip(chip)
    ptx = emit_ptx(text, found)
    texts: dict[str, str | bytes] = {"llvm": text, "ptx": ptx}
    name = attributes["sym_name"].value
    binary, resources = ptx.encode(), None
    if ptxas.find_ptxas() is None:
        driver_options(options.ptxas_options)  # those it cannot have are told now
    else:
        threads = attributes["tile.threads"].value
        texts["ptx"], made = _machine_code(ptx, name, found, threads, options)
        texts["cubin"] = binary = made.cubin
        resources = made.resources.get(name)
    return Artifact(
        texts,
        binary,
        name,
        tuple(kind.value for kind in attributes["tile.kinds"]),
        attributes["tile.shared_bytes"].value,
        attributes["tile.threads"].value,
        resources,
        tuple(MapSpec.parse(attributes[_MAPS].value)) if _MAPS in attributes else (),
        overlaps=_OVERLAPS in attributes,
    )


_ALIGNED = re.compile(r'^(.* asm sideeffect "[^"]*wgmma\..*\))(, !dbg .*)?$', re.MULTILINE)


def _with_warps_together(text: str) -> str:
    """Mark the assembly that a warpgroup executes as one as `convergent`.

    LLVM then makes no copies of it for some of the warps, as it does of loops with a branch that
    warps take by their number. MLIR's dialect has no way to say so.
    """
    return _ALIGNED.sub(r"\1 convergent\2", text)


def _machine_code(
    ptx: str, name: str, chip: Chip, threads: int, options: Options
) -> tuple[str, Assembled]:
    """Return what ptxas makes of the text, and the text: if it spills, perhaps a better one.

    Left alone, ptxas weighs registers against resident blocks, and now and then settles for far
    fewer than there are and spills kilobytes. Told that one block is enough it takes all there are,
    which is not what kernels want that do not spill. One that has taken them all would only take
    many times longer to spill as much.
    """
    made = _assembled(ptx, chip, options)
    if not _spills(made, name) or _registers(made, name) >= _most_registers(chip, threads):
        return ptx, made
    greedy = re.sub(r"^(\.reqntid .*)$", r"\1\n.minnctapersm 1", ptx, count=1, flags=re.MULTILINE)
    other = _assembled(greedy, chip, options)
    return (greedy, other) if _spills(other, name) < _spills(made, name) else (ptx, made)


def _assembled(ptx: str, chip: Chip, options: Options) -> Assembled:
    return ptxas.assemble(
        ptx, chip, options=options.ptxas_options, max_registers=options.max_registers
    )


def _spills(made: Assembled, name: str) -> int:
    resources = made.resources.get(name)
    return 0 if resources is None else resources.spill_bytes or 0


def _registers(made: Assembled, name: str) -> int:
    resources = made.resources.get(name)
    return 0 if resources is None else resources.registers or 0


def _most_registers(chip: Chip, threads: int) -> int:
    """Give what a thread can have of the registers; they are dealt out to warps by 8 a thread."""
    each = chip.registers_per_sm // max(threads, chip.warp_size) // 8 * 8
    return min(each, MAX_REGISTERS_PER_THREAD)


def emit_ptx(text: str, chip: Chip) -> str:
    """Return the PTX of LLVM IR."""
    machine = llvm_codegen.Machine(TRIPLE, chip.name, chip.features)
    return llvm_codegen.optimize_and_emit(text, machine).assembly or ""


def _entry(module: ir.Module) -> ir.OpView:
    """Return the module's kernel."""
    return next(op for op in module.body.operations if "tile.kinds" in op.operation.attributes)
