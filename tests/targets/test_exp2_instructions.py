"""Both GPUs take the bare instruction for 2^x where subnormal numbers may be zero, and only there."""

from __future__ import annotations

import pytest
from mlir import ir

from tests.transforms.tile_kernels import Kernel
from tiledsl.dialects.contracts import operations
from tiledsl.targets.amdgpu import pipeline as amdgpu
from tiledsl.targets.amdgpu.chips import chip as amd_chip
from tiledsl.targets.nvptx import pipeline as nvptx
from tiledsl.targets.nvptx.chips import chip as nvidia_chip
from tiledsl.targets.target import Options
from tiledsl.transforms.run import run

BARE = {"sm_90a": '"llvm.nvvm.ex2.approx.ftz"', "gfx942": '"llvm.amdgcn.exp2"'}
EXACT = {"sm_90a": '"llvm.nvvm.ex2.approx"', "gfx942": "math.exp2"}


def machine(chip: str, name: str) -> list[str]:
    """Return the ops of a kernel that applies a function to a tile."""
    k = Kernel("*f32", "*f32")
    y = k.op(name, k.load(k.pointers(k.args[0], 256)))
    k.store(k.pointers(k.args[1], 256), y)
    module: ir.Module = k.finish()
    options = Options()
    if chip.startswith("sm"):
        steps = nvptx.passes(nvidia_chip(chip), options)[:-1]
    else:
        steps = amdgpu.passes(amd_chip(chip), options)[:-1]
    run(module, steps)
    return [str(op).partition("\n")[0] for op in operations(module.operation)]


@pytest.mark.parametrize("chip", ["sm_90a", "gfx942"])
def test_exp_takes_the_bare_instruction(chip: str) -> None:
    ops = machine(chip, "math.exp")
    assert any(BARE[chip] in op for op in ops)
    assert not any(EXACT[chip] in op for op in ops)


@pytest.mark.parametrize("chip", ["sm_90a", "gfx942"])
def test_exp2_keeps_subnormal_numbers(chip: str) -> None:
    ops = machine(chip, "math.exp2")
    assert any(EXACT[chip] in op for op in ops)
    assert not any(BARE[chip] in op for op in ops)
