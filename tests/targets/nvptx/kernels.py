"""Kernels from `tile` IR to PTX and machine code."""

from __future__ import annotations

from mlir import ir

from tests.targets.gpu.running import set_warps
from tiledsl.targets.nvptx.target import assemble, pipeline
from tiledsl.targets.target import Artifact, Options
from tiledsl.transforms.run import run


def compile_for(
    chip: str, module: ir.Module, warps: int = 4, options: Options | None = None
) -> Artifact:
    """Compile a `tile` module, in place, all the way."""
    chosen = options or Options(num_warps=warps)
    set_warps(module, chosen.num_warps)
    run(module, pipeline(chip, chosen))
    return assemble(module, chip, chosen)


def ptx_of(chip: str, module: ir.Module, warps: int = 4) -> str:
    """Compile a `tile` module to PTX; ptxas, where there is one, has taken it."""
    return str(compile_for(chip, module, warps).texts["ptx"])
