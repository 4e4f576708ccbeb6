"""The AMD target: what `tiledsl.targets.target.Target` asks for, each part loaded when used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tiledsl.targets.amdgpu.chips import CHIPS, MAX_GRID
from tiledsl.targets.amdgpu.chips import chip as find_chip

if TYPE_CHECKING:
    from mlir import ir

    from tiledsl.targets.driver import Driver
    from tiledsl.targets.target import Artifact, Options
    from tiledsl.transforms.run import Step

NAME: str = "amdgpu"


def chips() -> Sequence[str]:
    """Return the names of the chips that it compiles for."""
    return tuple(CHIPS)


def pipeline(chip: str, options: Options) -> Sequence[Step]:
    """Return the passes from the `tile` level to the `llvm` level."""
    from tiledsl.targets.amdgpu.pipeline import passes

    return passes(find_chip(chip), options)


def assemble(module: ir.Module, chip: str, options: Options) -> Artifact:
    """Turn a module at the `llvm` level into a linked code object."""
    from tiledsl.targets.amdgpu.assemble import assemble

    return assemble(module, find_chip(chip))


def driver() -> Driver:
    """Return the driver, without touching hardware."""
    from tiledsl.targets.amdgpu.driver import driver

    return driver()


def grid_limits(chip: str) -> tuple[int, int, int]:
    """Return the most programs along each axis."""
    return MAX_GRID


def warp_size(chip: str) -> int:
    """Return the threads of a wave."""
    return find_chip(chip).wave_size


def occupancy(chip: str, artifact: Artifact) -> float | None:
    """Return the share of a compute unit's threads that workgroups of this kernel can fill."""
    if artifact.resources is None:
        return None
    found = find_chip(chip)
    lds_bytes = artifact.resources.shared_bytes + artifact.shared_bytes
    groups = found.resident_workgroups(artifact.threads, artifact.resources.registers, lds_bytes)
    most = found.waves_per_simd * found.simds * found.wave_size
    return groups * artifact.threads / most
