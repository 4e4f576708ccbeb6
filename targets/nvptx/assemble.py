"""From a module at the `llvm` level to PTX and, where ptxas is found, a cubin."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from mlir import ir
from mlir.dialects import llvm

from tiledsl.targets import llvm_codegen
from tiledsl.targets.nvptx import ptxas
from tiledsl.targets.nvptx.chips import MAX_REGISTERS_PER_THREAD, Chip
from tiledsl.targets.nvptx.chips import chip as find_chip
from tiledsl.targets.nvptx.driver_options import driver_options
from tiledsl.targets.nvptx.pipeline import blocks_of
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
        threads, shared = (attributes[f"tile.{what}"].value for what in ("threads", "shared_bytes"))
        assembler = _Assembler(name, found, threads, shared, options)
        texts["ptx"], made = assembler.machine_code(ptx)
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
        cluster=blocks_of(found, options),
    )


_ALIGNED = re.compile(r'^(.* asm sideeffect "[^"]*wgmma\..*\))(, !dbg .*)?$', re.MULTILINE)


def _with_warps_together(text: str) -> str:
    """Mark the assembly that a warpgroup executes as one as `convergent`.

    LLVM then makes no copies of it for some of the warps, as it does of loops with a branch that
    warps take by their number. MLIR's dialect has no way to say so.
    """
    return _ALIGNED.sub(r"\1 convergent\2", text)


@dataclass(frozen=True)
class _Assembler:
    """Has one kernel assembled, perhaps more than once.

    Attributes:
        name: The kernel.
        chip: For which chip.
        threads: Of a block.
        shared_bytes: Of a block.
        options: What the user asks for.
    """

    name: str
    chip: Chip
    threads: int
    shared_bytes: int
    options: Options

    def machine_code(self, ptx: str) -> tuple[str, Assembled]:
        """Return what ptxas makes of the text, and the text, perhaps a better one.

        Left alone, ptxas weighs registers against resident blocks, and now and then settles for far
        fewer than there are and spills kilobytes, or for some more than let another block in.
        """
        made = self._assembled(ptx)
        if _BLOCKS_WANTED.search(ptx):
            return ptx, made
        if self._spills(made):
            return self._with_all_registers(ptx, made)
        return self._with_more_blocks(ptx, made)

    def _with_all_registers(self, ptx: str, made: Assembled) -> tuple[str, Assembled]:
        """Try a kernel that spills with all the registers that there are for one block.

        They are not what kernels want that do not spill. One that has taken them all would only
        take many times longer to spill as much.
        """
        if self._registers(made) >= self._most_registers(blocks=1):
            return ptx, made
        greedy, other = self._wanting(1, ptx)
        return (greedy, other) if self._spills(other) < self._spills(made) else (ptx, made)

    def _with_more_blocks(self, ptx: str, made: Assembled) -> tuple[str, Assembled]:
        """Try a kernel with the somewhat fewer registers that let one more block in, and so on.

        What a multiprocessor has asked memory for grows with its blocks, and where one waits for
        its threads another goes on. Kernels with matrix products overlap their work by themselves,
        for which registers are what they need.
        """
        best = ptx, made
        while not _PRODUCT.search(ptx) and self.options.max_registers is None:
            registers = self._registers(best[1])
            more = self._blocks(registers) + 1
            fewer = self._most_registers(more)
            if fewer < _LEAST_SHARE * registers or self._blocks(fewer) < more:
                break
            asked, other = self._wanting(more, ptx)
            if self._spills(other) or self._blocks(self._registers(other)) < more:
                break
            best = asked, other
        return best

    def _wanting(self, blocks: int, ptx: str) -> tuple[str, Assembled]:
        wish = rf"\1\n.minnctapersm {blocks}"
        text = re.sub(r"^(\.reqntid .*)$", wish, ptx, count=1, flags=re.MULTILINE)
        return text, self._assembled(text)

    def _assembled(self, ptx: str) -> Assembled:
        extra, limit = self.options.ptxas_options, self.options.max_registers
        if limit is not None:
            limit = min(limit, self.chip.most_registers(self.threads))
        return ptxas.assemble(ptx, self.chip, options=extra, max_registers=limit)

    def _spills(self, made: Assembled) -> int:
        resources = made.resources.get(self.name)
        return 0 if resources is None else resources.spill_bytes or 0

    def _registers(self, made: Assembled) -> int:
        resources = made.resources.get(self.name)
        return 0 if resources is None else resources.registers or 0

    def _blocks(self, registers: int) -> int:
        return self.chip.resident_blocks(self.threads, registers, self.shared_bytes)

    def _most_registers(self, blocks: int) -> int:
        """Give what a thread can have; registers are dealt out to warps by 8 a thread."""
        threads = blocks * max(self.threads, self.chip.warp_size)
        each = self.chip.registers_per_sm // threads // 8 * 8
        return min(each, MAX_REGISTERS_PER_THREAD)


_BLOCKS_WANTED = re.compile(r"^\.minnctapersm ", re.MULTILINE)
_PRODUCT = re.compile(r"\b(wgmma|mma)\.", re.MULTILINE)
_LEAST_SHARE = 0.75
"""Fewer registers than this share of what a kernel takes by itself are not worth a try."""


def emit_ptx(text: str, chip: Chip) -> str:
    """Return the PTX of LLVM IR."""
    machine = llvm_codegen.Machine(TRIPLE, chip.name, chip.features)
    return llvm_codegen.optimize_and_emit(text, machine).assembly or ""


def _entry(module: ir.Module) -> ir.OpView:
    """Return the module's kernel."""
    return next(op for op in module.body.operations if "tile.kinds" in op.operation.attributes)
