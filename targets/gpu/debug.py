"""Printing and assertions: each element once, by the thread that holds it first.

A printed line is `pid (x, y, z) idx (i, j) prefix value`; of a scalar the index is left out, of
nothing the value too.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir
from mlir.dialects import arith

from tiledsl.dialects import tile
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.types import is_tile
from tiledsl.targets.gpu import emit
from tiledsl.targets.gpu.emit import i32, integer
from tiledsl.targets.gpu.fp8 import to_f32
from tiledsl.targets.gpu.lowering import Handler, Lowering, element_type
from tiledsl.targets.gpu.place import first_registers
from tiledsl.targets.gpu.shared import when
from tiledsl.targets.gpu.types import is_fp8


def _print(lowering: Lowering, op: tile.PrintOp) -> None:
    pid = [lowering.machine.program_id(axis) for axis in range(3)]
    start = "pid (%d, %d, %d) "
    prefix = _escaped(op.prefix)
    value: ir.Value | None = op.value
    if value is None:
        when(
            lowering.place.is_first(lowering.kernel.threads),
            lambda: lowering.machine.print_line(f"{start}{prefix}\n", pid),
        )
        return
    acting = lowering.acting(value)
    when(acting, lambda: _print_value(lowering, op, start, prefix, pid))


def _print_value(
    lowering: Lowering, op: tile.PrintOp, start: str, prefix: str, pid: Sequence[ir.Value]
) -> None:
    value = lowering.value(op.value)
    scalars, specifier = _printable(value, element_type(op.value), op.signed, op.hex)
    if not is_tile(op.value.type):
        line = f"{start}{prefix} {specifier}\n"
        lowering.machine.print_line(line, [*pid, scalars[0]])
        return
    layout = lowering.layout(op.value)
    index = ", ".join(["%d"] * layout.rank)
    line = f"{start}idx ({index}) {prefix} {specifier}\n"
    for register in first_registers(layout):
        place = _coordinates(lowering, layout, register)
        lowering.machine.print_line(line, [*pid, *place, scalars[register]])


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


def _coordinates(lowering: Lowering, layout: LinearLayout, register: int) -> list[ir.Value]:
    """Return the tensor index of what this thread holds in a register."""
    own = layout.unflatten(int(layout.register_offsets[register]))
    bases = [*layout.bases["lane"], *layout.bases["warp"]]
    found: list[ir.Value] = []
    for axis, constant in enumerate(own):
        moved = lowering.place.linear([basis[axis] for basis in bases])
        number = i32(constant)
        found.append(number if moved is None else arith.xori(moved, number))
    return found


def _printable(
    value: ir.Value, element: ir.Type, signed: bool, hexadecimal: bool
) -> tuple[list[ir.Value], str]:
    """Return each register as an i32, i64 or f64, and how to format it."""
    whole = value if emit.is_vector(value.type) else emit.splat(value, 1)
    if emit.is_pointer_type(whole.type):
        return emit.elements(emit.bitcast(whole, integer(64))), "0x%llx"
    if is_fp8(element):
        whole = to_f32(whole, element)
    if isinstance(emit.scalar_of(whole.type), ir.FloatType):
        wide = emit.resized(whole.type, ir.F64Type.get())
        return emit.elements(whole if whole.type == wide else arith.extf(wide, whole)), "%f"
    bits = emit.width_of(whole.type)
    if bits < 32:
        wide = emit.resized(whole.type, integer(32))
        signed = signed and bits > 1
        whole = arith.extsi(wide, whole) if signed else arith.extui(wide, whole)
    length = "ll" if bits == 64 else ""
    letter = "x" if hexadecimal else "d" if signed else "u"
    return emit.elements(whole), ("0x" if hexadecimal else "") + f"%{length}{letter}"


def _assert(lowering: Lowering, op: tile.AssertOp) -> None:
    """Stop if a thread holds an element that is false and not masked off."""
    fails = _inverted(lowering.value(op.condition))
    if op.mask is not None:
        fails = arith.andi(fails, lowering.value(op.mask))
    parts = emit.elements(fails)
    while len(parts) > 1:
        rest = parts[len(parts) // 2 * 2 :]
        parts = [arith.ori(a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)] + rest
    message: str = op.message
    when(parts[0], lambda: lowering.machine.stop(message))


def _inverted(value: ir.Value) -> ir.Value:
    return arith.xori(value, emit.constant(value.type, 1))


HANDLERS: dict[str, Handler] = {"tile.print": _print, "tile.assert": _assert}
