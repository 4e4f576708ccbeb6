"""The passes from `tile` to `llvm` for an NVIDIA chip, in order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tiledsl.dialects.contracts import LLVM, MACHINE
from tiledsl.targets.gpu.lower_to_machine import lower_to_machine
from tiledsl.targets.nvptx.chips import chip as find_chip
from tiledsl.targets.nvptx.emit_asm import emit_asm
from tiledsl.targets.nvptx.lower import NvptxMachine
from tiledsl.targets.target import Options
from tiledsl.transforms.run import Step, upstream

_TO_LLVM = (
    "convert-scf-to-cf,convert-vector-to-llvm,convert-math-to-llvm,convert-arith-to-llvm,"
    "convert-cf-to-llvm,reconcile-unrealized-casts"
)


def machine_steps(chip: str, options: Options) -> Sequence[Step]:
    """Return the passes from `tgpu` with shared memory placed to `llvm`."""
    machine = NvptxMachine(find_chip(chip), options.max_registers)
    return [
        Step(partial(lower_to_machine, machine=machine), MACHINE),
        # Assembly last: until here every instruction has a name.
        Step(emit_asm, MACHINE),
        Step(upstream(_TO_LLVM, "convert_to_llvm"), LLVM),
    ]
