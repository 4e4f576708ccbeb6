"""Run a kernel's PTX on the CPU with NumPy: see `gpu.emulator` for how, and `decode` for what.

In the order of the work: `parse` takes the PTX apart, `variables` places what it declares, `decode`
turns instructions into steps by way of the families' tables (`moves`, `integer`, `floats`, ...),
and `machine` executes them.
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.gpu.emulator.cohort import Cohort
from tiledsl.targets.gpu.emulator.counters import Rules
from tiledsl.targets.gpu.emulator.memory import GlobalMemory
from tiledsl.targets.gpu.emulator.program import BasicBlock, Instruction
from tiledsl.targets.nvptx.chips import WARP_SIZE
from tiledsl.targets.nvptx.chips import chip as find_chip
from tiledsl.targets.nvptx.emulator.decode import decode
from tiledsl.targets.nvptx.emulator.in_flight import registers_of
from tiledsl.targets.nvptx.emulator.machine import Layout, Machine
from tiledsl.targets.nvptx.emulator.operands import Context
from tiledsl.targets.nvptx.emulator.parse import parse
from tiledsl.targets.nvptx.emulator.variables import place_variables

__all__ = ["Program", "load"]


@dataclass(frozen=True)
class Program:
    """A decoded kernel; a `gpu.emulator.launch.Program`."""

    blocks: Sequence[BasicBlock]
    instructions: Sequence[Instruction]
    layout: Layout
    rules: Rules
    atomic: bool
    warp_size: int = WARP_SIZE

    @property
    def cluster(self) -> tuple[int, int, int]:
        """Blocks of a cluster along each axis."""
        return self.layout.cluster

    @property
    def static_shared_bytes(self) -> int:
        """Shared memory a block that the code itself has."""
        return self.layout.static_shared

    def machine(self, cohort: Cohort) -> Machine:
        """Return what runs one cohort; it is used once."""
        return Machine(cohort, self.blocks, self.layout)


def load(text: str, entry: str, chip: str, memory: GlobalMemory) -> Program:
    """Decode one kernel of a PTX text.

    Args:
        text: The PTX.
        entry: The kernel's name.
        chip: What it was compiled for, as "sm_90a".
        memory: Where the module's variables are allocated.

    Raises:
        CompilerBug: It holds an instruction that the emulator does not know, which the error names.
    """
    with _no_collection():
        return _load(text, entry, chip, memory)


@contextmanager
def _no_collection() -> Generator[None]:
    """Hold the garbage collector: decoding makes many objects and none of them is garbage.

    It would look through all of them again and again, which takes longer than to decode.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _load(text: str, entry: str, chip: str, memory: GlobalMemory) -> Program:
    module = parse(text)
    if entry not in module.kernels:
        raise CompilerBug(f"the PTX has no kernel `{entry}`, only {sorted(module.kernels)}")
    function = module.kernels[entry]
    frame = place_variables(module, function, memory)
    context = Context(find_chip(chip), frame.variables)
    blocks = decode(function, text, context)
    x, y, z = (*function.directives.get("reqnctapercluster", ()), 1, 1, 1)[:3]
    layout = Layout(
        context.chip,
        context.registers,
        frame.shared_bytes,
        frame.local_bytes,
        context.granule,
        (x, y, z),
        tuple(context.parts),
        registers_of(function, context),
        (*function.directives.get("maxnreg", ()), 0)[0],
    )
    instructions = [one for block in blocks for one in block.instructions]
    return Program(blocks, instructions, layout, Rules(merges=True), context.atomic)
