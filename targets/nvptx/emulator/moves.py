"""Moving values: mov with its packing, selections, permutations of bytes, and addresses' spaces."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.program import InstructionClass, Step
from tiledsl.targets.nvptx.emulator.machine import (
    LOCAL_WINDOW,
    SHARED_WINDOW,
    WINDOW_BYTES,
    Machine,
)
from tiledsl.targets.nvptx.emulator.opcodes import Opcode, Options, Table, unknown
from tiledsl.targets.nvptx.emulator.operands import REGISTER, TYPES, Context, Reader, Values, select
from tiledsl.targets.nvptx.emulator.text import Parsed, Symbol, Vector

_MOVED = ("pred", "b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64")


def _move(instruction: Parsed, context: Context) -> Step:
    options = Options(instruction)
    kind = TYPES[options.last(_MOVED)]
    options.done()
    to, source = instruction.operands
    bits = "pred" if kind.bits == 1 else f"b{kind.bits}"
    if isinstance(to, Vector):
        return _unpack(context, to, context.read(source, bits), kind.bits)
    if isinstance(source, Vector):
        return _pack(instruction, context, kind.bits)
    if isinstance(source, Symbol) and context.variable(source).space == "argument":
        address = context.variable(source).address
        held = REGISTER[kind.bits]
        write = context.write(to, bits)
        return lambda machine: write(machine, np.full(machine.threads, address, held))
    return context.compute(to, bits, _copied, [(source, bits)])


def _copied(values: Values) -> Values:
    return np.array(values)


def _unpack(context: Context, to: Vector, read: Reader, width: int) -> Step:
    """Return the step of `mov.b64 {%r1, %r2}, %rd1`."""
    part = width // len(to.items)
    writers = [context.write(item, f"b{part}") for item in to.items]
    held = np.dtype(REGISTER[part])
    count = len(writers)

    def step(machine: Machine) -> None:
        whole: Values = np.broadcast_to(read(machine), machine.threads)
        parts = np.ascontiguousarray(whole).view(held).reshape(-1, count)
        for i, write in enumerate(writers):
            write(machine, parts[:, i].copy())

    return step


def _pack(instruction: Parsed, context: Context, width: int) -> Step:
    """Return the step of `mov.b64 %rd1, {%r1, %r2}`."""
    to, source = instruction.operands
    if not isinstance(source, Vector):
        raise unknown(instruction)
    count = len(source.items)
    part = width // count
    readers = context.read_all(source, f"b{part}")
    write = context.write(to, f"b{width}")
    held, whole = REGISTER[part], REGISTER[width]

    def step(machine: Machine) -> None:
        parts = np.empty((machine.threads, count), held)
        for i, read in enumerate(readers):
            parts[:, i] = read(machine)
        write(machine, parts.view(whole).reshape(-1))

    return step


def _chosen(chosen: Values, first: Values, second: Values) -> Values:
    found: Values = select(chosen, first, second)
    return found


def _select(instruction: Parsed, context: Context) -> Step:
    options = Options(instruction)
    kind = options.last(tuple(TYPES))
    options.done()
    to, yes, no, predicate = instruction.operands
    bits = f"b{TYPES[kind].bits}"

    return context.compute(to, bits, _chosen, [(predicate, "pred"), (yes, bits), (no, bits)])


_SPACES = ("global", "shared", "local", "const", "param", "shared::cta", "shared::cluster")


def _convert_address(instruction: Parsed, context: Context) -> Step:
    """Decode `cvta`: from a space to generic addresses, or back with `.to`."""
    options = Options(instruction)
    kind = options.last(("u32", "u64"))
    back = options.flag("to")
    space = options.choice(_SPACES)
    options.done()
    to, source = instruction.operands
    window = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}.get(space.partition("::")[0], 0)
    if space == "param":
        return _argument_address(instruction, context, back)
    if window and kind == "u32":
        raise unknown(instruction, "generic addresses have 64 bits")
    change = np.uint64(-window & (1 << 64) - 1 if back else window)
    if not window:
        return context.compute(to, kind, _copied, [(source, kind)])
    return context.compute(to, kind, partial(np.add, change), [(source, kind)])


def _argument_address(instruction: Parsed, context: Context, back: bool) -> Step:
    to, source = instruction.operands
    read, write = context.read(source, "u64"), context.write(to, "u64")

    def step(machine: Machine) -> None:
        base = np.uint64(machine.arguments)
        value = read(machine) - base if back else read(machine) + base
        write(machine, np.array(np.broadcast_to(value, machine.threads)))

    return step


def in_window(address: NDArray[np.uint64], window: int) -> NDArray[np.bool_]:
    """Return which generic addresses lie in a window."""
    return (address >= np.uint64(window)) & (address < np.uint64(window + WINDOW_BYTES))


def _is_space(instruction: Parsed, context: Context) -> Step:
    """Decode `isspacep`."""
    options = Options(instruction)
    space = options.choice(_SPACES).partition("::")[0]
    options.done()
    to, source = instruction.operands

    def test(address: Values) -> Values:
        if space == "shared":
            return in_window(address, SHARED_WINDOW)
        if space == "local":
            return in_window(address, LOCAL_WINDOW)
        return address < np.uint64(SHARED_WINDOW)

    if space in ("const", "param"):
        raise unknown(instruction, "constants are global memory here")
    return context.compute(to, "pred", test, [(source, "u64")])


TABLE: Table = {
    "mov": Opcode(_move, InstructionClass.MOVE),
    "selp": Opcode(_select, InstructionClass.MOVE),
    "cvta": Opcode(_convert_address, InstructionClass.MOVE),
    "isspacep": Opcode(_is_space, InstructionClass.MOVE),
}
