"""Where a kernel's variables lie: global ones are allocated and filled, others get offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.gpu.emulator.memory import GlobalMemory
from tiledsl.targets.nvptx.emulator import text as ptx
from tiledsl.targets.nvptx.emulator.operands import Variable


@dataclass
class Frame:
    """What a kernel's variables take.

    Attributes:
        variables: Where each of them lies.
        shared_bytes: Of static shared memory; dynamic begins there.
        local_bytes: Of each thread's local memory.
        argument_bytes: Of its arguments.
    """

    variables: dict[str, Variable] = field(default_factory=dict[str, Variable])
    shared_bytes: int = 0
    local_bytes: int = 0
    argument_bytes: int = 0


def place_variables(module: ptx.Module, kernel: ptx.Function, memory: GlobalMemory) -> Frame:
    """Place the variables that a kernel can name; the global ones in `memory`."""
    frame = Frame()
    for parameter in kernel.parameters:
        start = _aligned(frame.argument_bytes, parameter)
        frame.variables[parameter.name] = Variable("argument", start)
        frame.argument_bytes = start + parameter.size
    dynamic: list[ptx.Variable] = []
    every = [*module.variables, *kernel.variables]
    for variable in every:
        if variable.space == "shared" and variable.size == 0:
            dynamic.append(variable)
        elif variable.space == "shared":
            start = _aligned(frame.shared_bytes, variable)
            frame.variables[variable.name] = Variable("shared", start)
            frame.shared_bytes = start + variable.size
        elif variable.space in ("local", "param"):  # the parameters of a call are locals, too
            start = _aligned(frame.local_bytes, variable)
            frame.variables[variable.name] = Variable("local", start)
            frame.local_bytes = start + variable.size
        else:
            address = memory.allocate(variable.size, written=True)
            frame.variables[variable.name] = Variable("global", address)
    for variable in dynamic:
        frame.shared_bytes = _aligned(frame.shared_bytes, variable)
    for variable in dynamic:
        frame.variables[variable.name] = Variable("shared", frame.shared_bytes)
    _fill(every, frame, memory)
    return frame


def _aligned(offset: int, variable: ptx.Variable) -> int:
    return -(-offset // variable.alignment) * variable.alignment


def _fill(variables: Sequence[ptx.Variable], frame: Frame, memory: GlobalMemory) -> None:
    """Write the initial values of global variables."""
    for variable in variables:
        if not variable.initial:
            continue
        if variable.space not in ("global", "const"):
            raise CompilerBug(f"`{variable.name}` has initial values but is .{variable.space}")
        address = frame.variables[variable.name].address
        size = variable.element
        for i, value in enumerate(variable.initial):
            if isinstance(value, tuple):
                name, offset = value
                if name not in frame.variables or size != 8:
                    raise CompilerBug(f"`{variable.name}` holds the address of `{name}`")
                value = frame.variables[name].address + offset
            data = (value & (1 << 8 * size) - 1).to_bytes(size, "little")
            memory.bytes_at(address + i * size, size)[:] = np.frombuffer(data, np.uint8)
