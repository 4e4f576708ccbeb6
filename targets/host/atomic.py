"""Lower atomic operations: element by element, with the machine's own instructions.

What the machine lacks (every float, 8 and 16 bits on some) is a loop around compare-and-swap on the
element's bits. max and min of floats propagate NaN and order -0.0 below 0.0, as the language's own
do.
"""

from __future__ import annotations

from collections.abc import Callable

from mlir import ir

from tiledsl.dialects import tile
from tiledsl.dialects.types import pointee, shape_of
from tiledsl.targets.host.body import Body, usual_order
from tiledsl.targets.host.build import If, add_block, create
from tiledsl.targets.host.code import Code
from tiledsl.targets.host.evaluate import Evaluator
from tiledsl.targets.host.index import Index
from tiledsl.targets.host.lanes import Lanes, Uniform
from tiledsl.targets.host.machine_types import integer, size_of, stored_type, value_type, width_of
from tiledsl.targets.host.nest import cover

_BINARY = {
    "xchg": 0,
    "add": 1,
    "and": 3,
    "or": 5,
    "xor": 6,
    "max": 7,
    "min": 8,
    "umax": 9,
    "umin": 10,
}
"""LLVM dialect's numbers of `atomicrmw` operations on integers."""
_FLOATS = {"fadd": "addf", "fmax": "maximumf", "fmin": "minimumf"}
_ORDER = {"relaxed": 2, "acquire": 4, "release": 5, "acq_rel": 6}
_FAILURE = {"relaxed": 2, "acquire": 4, "release": 2, "acq_rel": 4}
"""The order of a compare-and-swap that finds another value: a load, which cannot release."""


def lower_atomic_rmw(body: Body, op: tile.AtomicRmwOp) -> None:
    """Lower a read-modify-write."""

    def act(evaluator: Evaluator, index: Index, at: ir.InsertionPoint) -> ir.Value:
        value = evaluator.arithmetic.vector(evaluator.at(op.value, index), 1)
        address = evaluator.arithmetic.vector(evaluator.at(op.ptr, index), 1)
        mask = None
        if op.mask is not None:
            mask = evaluator.arithmetic.vector(evaluator.at(op.mask, index), 1)
        held = value_type(pointee(op.ptr.type))
        if mask is None:
            return _modify(body.code, op, address, value, held, at)
        branch = If(mask, [held], at)
        old = _modify(body.code, op, address, value, held, branch.then)
        return branch.finish([old], [body.code.constant(held, 0)])[0]

    _each_element(body, op, op.old, act)


def lower_atomic_cas(body: Body, op: tile.AtomicCasOp) -> None:
    """Lower a compare-and-swap."""

    def act(evaluator: Evaluator, index: Index, at: ir.InsertionPoint) -> ir.Value:
        operands = [
            evaluator.arithmetic.vector(evaluator.at(value, index), 1)
            for value in (op.ptr, op.compare, op.value)
        ]
        held = value_type(pointee(op.ptr.type))
        bits = integer(8 * size_of(stored_type(held)))
        compare, new = (_to_bits(body.code, v, held, at) for v in operands[1:])
        pointer = body.code.pointer(operands[0], at)
        found, _ = _swap(body.code, pointer, compare, new, op.sem, at)
        return _from_bits(body.code, found, held, bits, at)

    _each_element(body, op, op.old, act)


def _each_element(
    body: Body,
    op: ir.OpView,
    result: ir.Value,
    act: Callable[[Evaluator, Index, ir.InsertionPoint], ir.Value],
) -> None:
    """Emit a nest of single elements; keep the old values."""
    shape = shape_of(result.type)
    buffer = body.destination(result) if shape else None
    nest, evaluator = body.nest()
    covered = cover(shape, 0, usual_order(shape))
    for count in covered.loops:
        nest.open(count)
    old: Lanes = Uniform(act(evaluator, covered.index, nest.at(nest.depth)), nest.depth)
    if buffer is None:
        assert isinstance(old, Uniform)
        body.set_scalar(result, old)
        return
    evaluator.write(buffer, covered.index, old)
    nest.close_all()
    body.arena.touch(buffer.slot)
    body.set_buffer(result, buffer)


def _modify(
    code: Code, op: tile.AtomicRmwOp, address: ir.Value, value: ir.Value, held: ir.Type,
    at: ir.InsertionPoint,
) -> ir.Value:  # fmt: skip
    """Emit one read-modify-write; return the old value."""
    pointer = code.pointer(address, at)
    bits = integer(8 * size_of(stored_type(held)))
    if op.kind in _FLOATS:
        return _modify_float(code, op, pointer, value, at)
    operands = [pointer, _to_bits(code, value, held, at)]
    attributes = {"bin_op": _number(_BINARY[op.kind]), "ordering": _number(_ORDER[op.sem])}
    old = code.op("llvm.atomicrmw", operands, bits, at, attributes)
    return _from_bits(code, old, held, bits, at)


def _modify_float(
    code: Code, op: tile.AtomicRmwOp, pointer: ir.Value, value: ir.Value, at: ir.InsertionPoint
) -> ir.Value:
    """Combine in a loop that ends when nobody has written in between."""
    type_ = pointee(op.ptr.type)
    bits = integer(width_of(type_))
    natural = {"alignment": _number(size_of(bits)), "ordering": _number(_ORDER["relaxed"])}
    start = code.op("llvm.load", [pointer], bits, at, natural)
    loop = create("scf.while", [start], [bits], regions=2, at=at)
    attempt = add_block(loop, 0, [bits])
    inner = ir.InsertionPoint(attempt)
    seen = attempt.arguments[0]
    a, b = (_to_float(code, x, type_, inner) for x in (seen, value))
    new = _from_float(code, code.binary(_FLOATS[op.kind], a, b, inner), type_, inner)
    found, swapped = _swap(code, pointer, seen, new, op.sem, inner)
    again = code.binary("xori", swapped, code.constant(integer(1), 1), inner)
    code.op("scf.condition", [again, found], None, inner)
    trip = add_block(loop, 1, [bits])
    code.op("scf.yield", [trip.arguments[0]], None, ir.InsertionPoint(trip))
    return _from_bits(code, loop.results[0], value.type, bits, at)


def _to_float(code: Code, value: ir.Value, type_: ir.Type, at: ir.InsertionPoint) -> ir.Value:
    """Return a float of `type_`, given as it is held or as its bits, to compute with."""
    if value.type == type_:
        return value
    if isinstance(type_, ir.BF16Type):
        i32 = integer(32)
        wide = code.op("arith.extui", [value], i32, at)
        upper = code.binary("shli", wide, code.constant(i32, 16), at)
        return code.op("arith.bitcast", [upper], ir.F32Type.get(type_.context), at)
    float_ = code.op("arith.bitcast", [value], type_, at)
    if isinstance(type_, ir.F16Type):
        return code.op("arith.extf", [float_], ir.F32Type.get(type_.context), at)
    return float_


def _from_float(code: Code, value: ir.Value, type_: ir.Type, at: ir.InsertionPoint) -> ir.Value:
    """Return the bits of a computed value rounded to `type_`."""
    bits = integer(width_of(type_))
    if isinstance(type_, ir.BF16Type):
        return _round_to_bf16(code, value, at)
    if isinstance(type_, ir.F16Type):
        value = code.op("arith.truncf", [value], type_, at)
    return code.op("arith.bitcast", [value], bits, at)


def _round_to_bf16(code: Code, value: ir.Value, at: ir.InsertionPoint) -> ir.Value:
    """Round an f32 to nearest even; x86's instruction would take subnormal numbers for zero."""
    i32 = integer(32)
    bits = code.op("arith.bitcast", [value], i32, at)
    upper = code.binary("shrui", bits, code.constant(i32, 16), at)
    odd = code.binary("andi", upper, code.constant(i32, 1), at)
    bump = code.binary("addi", odd, code.constant(i32, 0x7FFF), at)
    rounded = code.binary("addi", bits, bump, at)
    rounded = code.binary("shrui", rounded, code.constant(i32, 16), at)
    unordered = {"predicate": ir.IntegerAttr.get(integer(64), 14)}
    is_nan = code.op("arith.cmpf", [value, value], integer(1), at, unordered)
    quiet = code.binary("ori", upper, code.constant(i32, 0x40), at)
    chosen = code.select(is_nan, quiet, rounded, at)
    return code.op("arith.trunci", [chosen], integer(16), at)


def _swap(
    code: Code, pointer: ir.Value, compare: ir.Value, new: ir.Value, sem: str,
    at: ir.InsertionPoint,
) -> tuple[ir.Value, ir.Value]:  # fmt: skip
    """Emit one compare-and-swap of bits; return what was found and whether it was replaced."""
    pair = ir.Type.parse(f"!llvm.struct<({compare.type}, i1)>", compare.type.context)
    attributes = {
        "success_ordering": _number(_ORDER[sem]),
        "failure_ordering": _number(_FAILURE[sem]),
    }
    both = code.op("llvm.cmpxchg", [pointer, compare, new], pair, at, attributes)
    parts = [
        code.op("llvm.extractvalue", [both], type_, at, {"position": ir.DenseI64ArrayAttr.get([i])})
        for i, type_ in enumerate((compare.type, integer(1)))
    ]
    return parts[0], parts[1]


def _to_bits(code: Code, value: ir.Value, held: ir.Type, at: ir.InsertionPoint) -> ir.Value:
    if isinstance(held, ir.FloatType):
        return code.op("arith.bitcast", [value], integer(width_of(held)), at)
    if held == integer(1):
        return code.op("arith.extui", [value], integer(8), at)
    return value


def _from_bits(
    code: Code, bits: ir.Value, held: ir.Type, type_: ir.Type, at: ir.InsertionPoint
) -> ir.Value:
    if isinstance(held, ir.FloatType):
        return code.op("arith.bitcast", [bits], held, at)
    if held == integer(1):
        return code.compare(1, bits, code.constant(type_, 0), at)
    return bits


def _number(value: int) -> ir.Attribute:
    return ir.IntegerAttr.get(integer(64), value)
