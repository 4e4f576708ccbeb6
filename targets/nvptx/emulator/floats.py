"""Floating point arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tiledsl.targets.gpu.emulator.program import InstructionClass, Step
from tiledsl.targets.nvptx.emulator.opcodes import Opcode, Options, Table
from tiledsl.targets.nvptx.emulator.operands import Context, Values
from tiledsl.targets.nvptx.emulator.text import Parsed


def _exact(function: Callable[..., Values]) -> Callable[[Parsed, Context], Step]:
    def decode(instruction: Parsed, context: Context) -> Step:
        options = Options(instruction)
        kind = options.last(("f32", "f64"))
        options.ignore("rn")
        options.done()
        to, *sources = instruction.operands
        return context.compute(to, kind, function, [(source, kind) for source in sources])

    return decode


TABLE: Table = {
    f"{stem}.{kind}": Opcode(_exact(function), InstructionClass.FLOAT)
    for stem, function in {"add": np.add, "sub": np.subtract, "mul": np.multiply}.items()
    for kind in ("f32", "f64")
}
