"""Shape ops: a new order of each thread's registers, and nothing else.

`assign_layouts` made sure that no element changes its thread, so what is left is which register of
the operand each register of the result is a copy of: one `vector.shuffle`, often none.
"""

from __future__ import annotations

from typing import Any

from mlir import ir

from tiledsl.dialects import tgpu
from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layout_f2 import IntArray
from tiledsl.dialects.layout_shape import (
    broadcast_registers,
    concat,
    join,
    register_map,
    slice_of,
    split,
)
from tiledsl.dialects.types import shape_of
from tiledsl.targets.gpu import emit
from tiledsl.targets.gpu.lowering import Handler, Lowering, element_type
from tiledsl.targets.gpu.pointers import Pointers, Term, is_pointers, plain
from tiledsl.targets.gpu.shuffle import shuffle_lanes
from tiledsl.transforms.conversion_plan import (
    LaneShuffle,
    NoConversion,
    RegisterPermutation,
    plan_conversion,
)


def registers_between(source: LinearLayout, result: LinearLayout, op: object = "") -> IntArray:
    """Return the source register of each result register.

    Raises:
        CompilerBug: Some element would change its thread.
    """
    found = register_map(source, result)
    if found is None:
        raise CompilerBug(f"expected no element to change its thread, from {source} to {op}")
    return found


def _define(lowering: Lowering, result: ir.Value, source: ir.Value, indices: IntArray) -> None:
    """Define a tile whose register r is a copy of register `indices[r]` of another."""
    value = lowering.lowered(source)
    if is_pointers(value):
        lowering.define(result, value.arranged(indices))
        return
    lowering.define(result, emit.shuffle(plain(value), indices))
    if isinstance(element_type(source), ir.IntegerType):
        # It may be the offsets of pointers.
        lowering.remember(result, lowering.term(source).arranged(indices))


def _move(lowering: Lowering, source: ir.Value, result: ir.Value, natural: LinearLayout) -> None:
    """Define `result` from `source`, whose registers are in order for the layout `natural`."""
    indices = registers_between(natural, lowering.layout(result), result.owner)
    _define(lowering, result, source, indices)


def _expand_dims(lowering: Lowering, op: Any) -> None:
    _move(lowering, op.source, op.tile, lowering.layout(op.source).expand_dims(op.axis))


def _reshape(lowering: Lowering, op: Any) -> None:
    natural = lowering.layout(op.source).reshape(shape_of(op.tile.type))
    _move(lowering, op.source, op.tile, natural)


def _trans(lowering: Lowering, op: Any) -> None:
    _move(lowering, op.source, op.tile, lowering.layout(op.source).transpose(op.order))


def _broadcast(lowering: Lowering, op: Any) -> None:
    indices = broadcast_registers(lowering.layout(op.source), lowering.layout(op.tile))
    if indices is None:
        raise CompilerBug(f"expected no element to change its thread in {op}")
    _define(lowering, op.tile, op.source, indices)


def _merge(lowering: Lowering, op: Any, layout: LinearLayout, source: IntArray) -> None:
    """Lower an op with two operands, numbered on from the first to the second."""
    order = registers_between(layout, lowering.layout(op.tile), op)
    first, second = lowering.value(op.first), lowering.value(op.second)
    lowering.define(op.tile, emit.shuffle(first, source[order], second))


def _join(lowering: Lowering, op: Any) -> None:
    _same_layouts(lowering, op)
    _merge(lowering, op, *join(lowering.layout(op.first)))


def _cat(lowering: Lowering, op: Any) -> None:
    _same_layouts(lowering, op)
    _merge(lowering, op, *concat(lowering.layout(op.first), op.axis))


def _same_layouts(lowering: Lowering, op: Any) -> None:
    if lowering.layout(op.first) != lowering.layout(op.second):
        raise CompilerBug(f"expected operands of one layout in {op}")


def _split(lowering: Lowering, op: Any) -> None:
    halves = split(lowering.layout(op.source))
    for result, source in ((op.first, halves.first), (op.second, halves.second)):
        order = registers_between(halves.layout, lowering.layout(result), op)
        _define(lowering, result, op.source, source[order])


def _convert(lowering: Lowering, op: tgpu.ConvertLayoutOp) -> None:
    value = lowering.lowered(op.source)
    source, result = lowering.layout(op.source), lowering.layout(op.tile)
    bits = max(8, _held_bits(value))
    plan = plan_conversion(source, result, bits, memory=lowering.machine.memory)
    if isinstance(plan, NoConversion):
        lowering.define(op.tile, value)
    elif isinstance(plan, RegisterPermutation):
        _define(lowering, op.tile, op.source, plan.source)
    elif not isinstance(plan, LaneShuffle):
        raise CompilerBug(f"expected a conversion within a warp, found {op}")
    elif is_pointers(value):
        terms = [Term(shuffle_lanes(lowering.place, t.whole(), plan)) for t in value.terms]
        made = Pointers(value.form, value.base, terms, value.element, result.registers)
        lowering.define(op.tile, made)
    else:
        lowering.define(op.tile, shuffle_lanes(lowering.place, plain(value), plan))


def _slice(lowering: Lowering, op: tgpu.SliceOp) -> None:
    part = slice_of(lowering.layout(op.source), tuple(op.starts), shape_of(op.tile.type))
    if part is None:
        raise CompilerBug(f"expected no element to change its thread in {op}")
    order = registers_between(part.layout, lowering.layout(op.tile), op)
    _define(lowering, op.tile, op.source, part.source[order])


def _held_bits(value: ir.Value | Pointers) -> int:
    """Return the width of what each register of a tile holds."""
    if is_pointers(value):
        return emit.width_of(value.form.term_type)
    return emit.width_of(plain(value).type)


HANDLERS: dict[str, Handler] = {
    "tgpu.slice": _slice,
    "tile.expand_dims": _expand_dims,
    "tile.reshape": _reshape,
    "tile.trans": _trans,
    "tile.broadcast": _broadcast,
    "tile.join": _join,
    "tile.cat": _cat,
    "tile.split": _split,
    "tgpu.convert_layout": _convert,
}
