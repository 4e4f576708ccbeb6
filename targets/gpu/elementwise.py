"""Elementwise ops and leaves: one op on a whole vector of registers.

Most `arith` and `math` ops stay what they are, on vectors; a machine may put an instruction of its
own in their place (`Machine.native`). fp8 is moved as i8, and computed with only by casts.
"""

from __future__ import annotations

from typing import Any, cast

import ml_dtypes
import numpy as np
from mlir import ir
from mlir.dialects import arith, llvm

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.dialects.types import element_of, is_pointer, is_tile, pointee
from tiledsl.targets.gpu import emit
from tiledsl.targets.gpu.lowering import Handler, Lowering
from tiledsl.targets.gpu.pointers import (
    Pointers,
    Term,
    is_pointer_tile,
    scalar_behind,
)
from tiledsl.targets.gpu.types import in_memory, in_register, is_fp8


def _same_op(lowering: Lowering, op: Any) -> None:
    operation = op.operation
    operands = [lowering.value(v) for v in operation.operands]
    result = operation.results[0]
    if any(is_fp8(element_of(v.type)) for v in (*operation.operands, result)):
        raise CompilerBug(f"expected no arithmetic on fp8, found {op}")
    made = lowering.machine.native(operation, operands)
    if made is None:
        made = (
            cast("Any", ir.Operation)
            .create(
                operation.name,
                results=[lowering.type_of(result)],
                operands=operands,
                attributes={name: operation.attributes[name] for name in operation.attributes},
            )
            .result
        )
    lowering.define(result, made)


def _compare(lowering: Lowering, op: Any) -> None:
    """Compare integers once for all registers that are known to get the same answer.

    A mask of a length that is a multiple of 16 is the same for 16 elements.
    """
    operation = op.operation
    result = operation.results[0]
    if not is_tile(result.type):
        _same_op(lowering, op)
        return
    layout, known = lowering.layout(result), lowering.facts.of(result)
    alike = sum((k - 1) << layout.axis_shift(axis) for axis, k in enumerate(known.constancy))
    _, first, number = np.unique(
        layout.register_offsets & ~alike, return_index=True, return_inverse=True
    )
    if len(first) == layout.registers:
        _same_op(lowering, op)
        return
    left, right = (emit.shuffle(lowering.value(v), first) for v in operation.operands)
    made = arith.CmpIOp(operation.attributes["predicate"], left, right).result
    lowering.remember(result, Term(made, number))
    lowering.define(result, emit.shuffle(made, number))


def _constant(lowering: Lowering, op: Any) -> None:
    operation = op.operation
    result = operation.results[0]
    value: ir.Attribute = operation.attributes["value"]
    if is_tile(result.type):
        if not isinstance(value, ir.DenseElementsAttr) or not value.is_splat:
            raise CompilerBug(f"expected a tile of one constant, found {op}")
        value = value.get_splat_value()
    type_ = lowering.type_of(result)
    element = element_of(result.type)
    if is_fp8(element):
        # The bits, as the element is held.
        lowering.define(result, emit.constant(type_, _fp8_bits(value)))
        return
    if isinstance(type_, ir.VectorType):
        value = ir.DenseElementsAttr.get_splat(type_, value)
    lowering.define(result, arith.constant(type_, value))


_FP8 = {"f8E4M3FN": ml_dtypes.float8_e4m3fn, "f8E5M2": ml_dtypes.float8_e5m2}


def _fp8_bits(value: ir.Attribute) -> int:
    """Return the bits of an fp8 number."""
    number = ir.FloatAttr(value)
    return int.from_bytes(_FP8[str(number.type)](number.value).tobytes(), "little")


def _select(lowering: Lowering, op: Any) -> None:
    condition, yes, no = op.operation.operands
    result = op.operation.results[0]
    chosen = lowering.value(condition)
    if is_pointer_tile(result.type) and not is_tile(condition.type):
        form = lowering.form(result)
        sides = [lowering.pointers(v).to(form).values() for v in (yes, no)]
        merged = (emit.select(chosen, a, b) for a, b in zip(*sides, strict=True))
        lowering.bind(result, iter(list(merged)))
        return
    lowering.define(result, emit.select(chosen, lowering.value(yes), lowering.value(no)))


def _make_range(lowering: Lowering, op: Any) -> None:
    layout = lowering.layout(op.tile)
    columns = (*layout.flat("lane"), *layout.flat("warp"))
    lowering.define(op.tile, lowering.place.index(columns, layout.register_offsets, op.start))


def _splat(lowering: Lowering, op: Any) -> None:
    registers = lowering.types.registers(op.tile.type)
    scalar = lowering.value(op.scalar)
    if is_pointer_tile(op.tile.type):
        uniform = lowering.pointers(op.scalar)
        made = Pointers(uniform.form, uniform.base, [], uniform.element, registers)
        lowering.define(op.tile, made)
        return
    lowering.define(op.tile, emit.splat(scalar, registers))


def _addptr(lowering: Lowering, op: Any) -> None:
    result = op.result
    if not is_tile(result.type):
        element = lowering.pointers(op.ptr).element
        lowering.define(
            result, emit.gep(lowering.value(op.ptr), lowering.value(op.offset), element)
        )
        return
    pointers = lowering.pointers(op.ptr)
    scalar = scalar_behind(op.offset)
    if scalar is not None:
        by = scalar if isinstance(scalar, int) else lowering.value(scalar)
        lowering.define(result, pointers.moved(by))
    else:
        form = lowering.form(result)
        lowering.define(result, pointers.spread(lowering.term(op.offset), form))


def _hint(lowering: Lowering, op: Any) -> None:
    lowering.define(op.result, lowering.lowered(op.source))


def _cast(lowering: Lowering, op: Any) -> None:
    source, result = op.operation.operands[0], op.operation.results[0]
    signed = bool(getattr(op, "signed", True))
    made = lowering.machine.cast(
        lowering.value(source), element_of(source.type), element_of(result.type), signed
    )
    lowering.define(result, made)


def _extf(lowering: Lowering, op: Any) -> None:
    """Leave extensions of fp8 to the machine."""
    if is_fp8(element_of(op.operation.operands[0].type)):
        _cast(lowering, op)
    else:
        _same_op(lowering, op)


def _bitcast(lowering: Lowering, op: Any) -> None:
    source, result = op.operation.operands[0], op.operation.results[0]
    if is_pointer(source.type) and is_pointer(result.type):
        _bitcast_pointers(lowering, source, result)
        return
    value = lowering.value(source)
    lowering.define(result, emit.bitcast(value, in_register(element_of(result.type))))


def _bitcast_pointers(lowering: Lowering, source: ir.Value, result: ir.Value) -> None:
    if not is_tile(result.type):
        lowering.define(result, lowering.value(source))
        return
    held = lowering.pointers(source).to(lowering.form(result))
    lowering.define(result, held.as_type(in_memory(pointee(result.type))))


def _program_id(lowering: Lowering, op: Any) -> None:
    axis: int = op.axis
    lowering.define(op.id, lowering.once(f"id{axis}", lambda: lowering.machine.program_id(axis)))


def _num_programs(lowering: Lowering, op: Any) -> None:
    axis: int = op.axis
    made = lowering.once(f"count{axis}", lambda: lowering.machine.num_programs(axis))
    lowering.define(op.count, made)


def _assume(lowering: Lowering, op: Any) -> None:
    llvm.intr_assume(lowering.value(op.condition), [], [])


HANDLERS: dict[str, Handler] = {
    "arith": _same_op,
    "math": _same_op,
    "arith.cmpi": _compare,
    "arith.constant": _constant,
    "arith.select": _select,
    "arith.extf": _extf,
    "arith.bitcast": _bitcast,
    "tile.make_range": _make_range,
    "tile.splat": _splat,
    "tile.addptr": _addptr,
    "tile.hint": _hint,
    "tile.cast": _cast,
    "tile.bitcast": _bitcast,
    "tile.program_id": _program_id,
    "tile.num_programs": _num_programs,
    "tile.assume": _assume,
}
