"""Compile kernels for NVIDIA as far as the `machine` level and run them there."""

from __future__ import annotations

from typing import Any

import numpy as np
from mlir import ir

from tests.targets.gpu.thread_interpreter import Threads
from tests.targets.gpu.thread_memory import Global
from tiledsl.dialects.context import context
from tiledsl.targets.nvptx.chips import chip as find_chip
from tiledsl.targets.nvptx.pipeline import machine_steps, tgpu_steps, tile_steps
from tiledsl.targets.target import Options
from tiledsl.transforms.kernels import kernels
from tiledsl.transforms.run import run as run_passes


def set_warps(module: ir.Module, warps: int) -> None:
    """Write the number of warps where the front end would."""
    with context():
        number = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), warps)
        for kernel in kernels(module):
            kernel.operation.attributes["tile.num_warps"] = number


def to_machine(module: ir.Module, warps: int = 4, chip: str = "sm_80") -> ir.Module:
    """Take a `tile` module to the `machine` level, in place."""
    set_warps(module, warps)
    options, found = Options(num_warps=warps), find_chip(chip)
    last = machine_steps(found, options)[:1]
    run_passes(module, [*tile_steps(found, options), *tgpu_steps(found, options), *last])
    return module


def lower(module: ir.Module, warps: int = 4, chip: str = "sm_80") -> ir.Module:
    """Take a `tgpu` module with shared memory placed to the `machine` level, in place."""
    set_warps(module, warps)
    run_passes(module, machine_steps(find_chip(chip), Options(num_warps=warps))[:1])
    return module


def _is_array(argument: Any) -> bool:
    return isinstance(argument, np.ndarray)


def run(module: ir.Module, *arguments: Any, grid: tuple[int, int, int] = (1, 1, 1)) -> None:
    """Run a `machine` module over a grid; arrays are changed in place."""
    memory = Global()
    given = [memory.add(a) if _is_array(a) else a for a in arguments]
    for z in range(grid[2]):
        for y in range(grid[1]):
            for x in range(grid[0]):
                Threads(module, memory, (x, y, z), grid).run(*given)
    memory.copy_back()
