"""Lower `tile.print` and `tile.assert` to calls back into the driver.

The job holds the address of one function for each. Both take a record, an array of i64: the address
of the job, the address and length of a text, the program's x, y, z, and for a print the element's
index and bits. The text of an assertion is its message; that of a print is JSON (`PrintFormat`).

A failed assertion ends its program at once, since what follows may rely on it. Structured control
flow cannot say so; a call of `LEAVE` marks the place, and `convert_to_llvm` turns it into a return.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir

from tiledsl.dialects import tile
from tiledsl.dialects.types import element_of, is_pointer, shape_of
from tiledsl.targets.host.body import Body, lanes_in
from tiledsl.targets.host.build import If
from tiledsl.targets.host.evaluate import Evaluator
from tiledsl.targets.host.index import Index
from tiledsl.targets.host.job import Job, PrintFormat
from tiledsl.targets.host.lanes import Spread, Uniform
from tiledsl.targets.host.machine_types import integer, pointer_type, width_of
from tiledsl.targets.host.memory import offset_pointer

LEAVE = "tile.leave"
"""The function whose call marks where a program ends."""


def lower_print(body: Body, op: tile.PrintOp) -> None:
    """Print every element in order, or the prefix alone."""
    value = op.value
    shape = () if value is None else shape_of(value.type)
    type_ = "" if value is None else _type_name(value.type)
    text = PrintFormat(op.prefix, type_, len(shape), op.signed, op.hex).to_text()

    def visit(evaluator: Evaluator, index: Index) -> None:
        level = evaluator.nest.depth
        at = evaluator.nest.at(level)
        places = [evaluator.arithmetic.coordinate(bits, 0) for bits in index]
        fields = [evaluator.arithmetic.vector(place, 1) for place in places]
        if value is not None:
            element = evaluator.arithmetic.vector(evaluator.at(value, index), 1)
            fields.append(_bits(body, element, at))
        _call(body, "print", text, fields, at)

    body.each(shape, 0, visit)


def lower_assert(body: Body, op: tile.AssertOp) -> None:
    """Check every element; one that fails ends the program."""
    shape = shape_of(op.condition.type)

    def visit(evaluator: Evaluator, index: Index) -> None:
        arithmetic, lanes = evaluator.arithmetic, lanes_in(index)
        bool_ = integer(1)
        wrong = arithmetic.apply(
            "arith.xori",
            [evaluator.at(op.condition, index), arithmetic.constant(bool_, 1)],
            bool_,
            lanes,
        )
        if op.mask is not None:
            operands = [wrong, evaluator.at(op.mask, index)]
            wrong = arithmetic.apply("arith.andi", operands, bool_, lanes)
        at = evaluator.nest.at(evaluator.nest.depth)
        assert isinstance(wrong, Spread | Uniform)
        branch = If(body.code.any_lane(wrong.value, at), [], at, with_else=False)
        _call(body, "fail", op.message, [], branch.then)
        leave = {"callee": ir.FlatSymbolRefAttr.get(LEAVE)}
        body.code.op("func.call", [], None, branch.then, leave)
        body.needs_leave = True
        branch.finish()

    body.each(shape, body.lane_bits(integer(32)), visit)


def _type_name(type_: ir.Type) -> str:
    return "i64" if is_pointer(type_) else str(element_of(type_))


def _bits(body: Body, value: ir.Value, at: ir.InsertionPoint) -> ir.Value:
    """Return an element's bits as an i64."""
    type_ = value.type
    if isinstance(type_, ir.FloatType):
        type_ = integer(width_of(type_))
        value = body.code.op("arith.bitcast", [value], type_, at)
    if width_of(type_) == 64:
        return value
    return body.code.op("arith.extui", [value], integer(64), at)


def _call(
    body: Body, function: str, text: str, fields: Sequence[ir.Value], at: ir.InsertionPoint
) -> None:
    """Call one of the job's functions with a record."""
    code, i64 = body.code, integer(64)
    address, length = body.text(text)
    ids = [code.op("arith.extui", [number], i64, at) for number in body.program.ids]
    job = code.op("llvm.ptrtoint", [body.program.job], i64, at)
    values = [job, address, code.constant(i64, length), *ids, *fields]
    record = body.allocate((len(values),), i64)
    for number, value in enumerate(values):
        place = offset_pointer(code, record.pointer, code.constant(i64, 8 * number), at)
        code.op("llvm.store", [value, place], None, at)
    offset = code.constant(i64, Job.offset(function))
    slot = offset_pointer(code, body.program.job, offset, at)
    callee = code.op("llvm.load", [slot], pointer_type(), at)
    segments = {
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([2, 0]),
        "op_bundle_sizes": ir.DenseI32ArrayAttr.get([]),
    }
    code.op("llvm.call", [callee, record.pointer], None, at, segments)
