"""The NVIDIA target: what `tiledsl.targets.target.Target` asks for, each part loaded when used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tiledsl.targets.nvptx.chips import CHIPS, MAX_GRID
from tiledsl.targets.nvptx.chips import chip as find_chip

if TYPE_CHECKING:
    from mlir import ir

    from tiledsl.targets.driver import Driver
    from tiledsl.targets.target import Artifact, Options
    from tiledsl.transforms.run import Step

NAME: str = "nvptx"


def chips() -> Sequence[str]:
    """Return the names of the chips that this target compiles for."""
    return tuple(CHIPS)


def pipeline(chip: str, options: Options) -> Sequence[Step]:
    """Return the passes from the `tile` level to the `llvm` level."""
    from tiledsl.targets.nvptx.pipeline import passes

    return passes(find_chip(chip), options)


def assemble(module: ir.Module, chip: str, options: Options) -> Artifact:
    """Turn a module at the `llvm` level into PTX and, where ptxas is found, machine code."""
    from tiledsl.targets.nvptx.assemble import assemble as assemble_module

    return assemble_module(module, chip, options)


def driver() -> Driver:
    """Return the CUDA driver, without touching hardware."""
    from tiledsl.targets.nvptx.driver import driver as cuda_driver

    return cuda_driver()


def grid_limits(chip: str) -> tuple[int, int, int]:
    """Return the most programs along each axis."""
    return MAX_GRID


def warp_size(chip: str) -> int:
    """Return the threads of a warp."""
    return find_chip(chip).warp_size


def occupancy(chip: str, artifact: Artifact) -> float | None:
    """Return the share of a multiprocessor's threads that blocks of this kernel can fill."""
    if artifact.resources is None:
        return None
    found = find_chip(chip)
    registers = artifact.resources.registers
    blocks = found.resident_blocks(artifact.threads, registers, artifact.shared_bytes)
    return blocks * artifact.threads / (found.warps_per_sm * found.warp_size)
