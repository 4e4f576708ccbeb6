"""The function that a thread of the driver calls: it runs programs of a launch until none is left.

    void kernel(Job* job, void* scratch)

Every thread that takes part calls it once with the same job and scratch memory of its own. It
claims `chunk` programs at a time by an atomic addition to `next`, so that threads share the grid
out evenly whatever the programs cost. Linear indices count x fastest. A program whose assertion
fails ends there, and the job with it: nothing more is claimed.
"""

from __future__ import annotations

from typing import Any

from mlir import ir

from tiledsl.dialects.types import bit_width, is_pointer
from tiledsl.targets.arguments import ArgumentLayout
from tiledsl.targets.host.build import For, If, Value, add_block, body_of, create, symbol_name
from tiledsl.targets.host.code import NE, SLT, Code
from tiledsl.targets.host.job import Job
from tiledsl.targets.host.machine_types import integer, pointer_type, stored_type, value_type
from tiledsl.targets.host.memory import offset_pointer

KINDS = "tile.kinds"
SCRATCH_BYTES = "tile.scratch_bytes"
"""Attributes of the launched function, for the assembler: arguments' kinds, scratch memory."""
_ADD, _RELAXED = 1, 2
"""LLVM dialect's numbers of `atomicrmw add` and of `monotonic`."""


def kind_of(type_: ir.Type) -> str:
    """Return the kind of an argument, as `targets.arguments` names it."""
    if is_pointer(type_):
        return "ptr"
    return "bool" if bit_width(type_) == 1 else str(type_)


def add_launcher(module: ir.Module, kernel: ir.OpView, scratch_bytes: int) -> None:
    """Add the function described above, under the name of `kernel`, which it replaces."""
    name = symbol_name(kernel)
    parameters = [argument.type for argument in body_of(kernel).arguments]
    kinds = [kind_of(type_) for type_ in parameters]
    types = [pointer_type()] * 2
    kernel.operation.attributes["sym_name"] = ir.StringAttr.get(f"{name}.tiles")
    arrays: Any = ir.ArrayAttr
    attributes: dict[str, ir.Attribute] = {
        "sym_name": ir.StringAttr.get(name),
        "function_type": ir.TypeAttr.get(ir.FunctionType.get(types, [])),
        KINDS: arrays.get([ir.StringAttr.get(kind) for kind in kinds]),
        SCRATCH_BYTES: ir.IntegerAttr.get(integer(64), scratch_bytes),
    }
    at = ir.InsertionPoint(module.body)
    made = create("func.func", attributes=attributes, regions=1, at=at)
    block = add_block(made, 0, types)
    _Launcher(block, f"{name}.program").build(parameters, kinds)


class _Launcher:
    def __init__(self, block: ir.Block, program: str) -> None:
        self._job: Value
        self._scratch: Value
        self._job, self._scratch = block.arguments
        self._code = Code(block)
        self._at = ir.InsertionPoint(block)
        self._program = program

    def build(self, parameters: list[ir.Type], kinds: list[str]) -> None:
        """Build the body."""
        code, at = self._code, self._at
        packed = self._field("arguments", pointer_type())
        offsets = ArgumentLayout(tuple(kinds)).offsets
        values = [
            self._argument(packed, offset, type_)
            for offset, type_ in zip(offsets, parameters, strict=True)
        ]
        counts = [self._field(name, integer(32)) for name in ("nx", "ny", "nz")]
        end, chunk = (self._field(name, integer(64)) for name in ("end", "chunk"))
        loop = create("scf.while", results=[integer(64)], regions=2, at=at)
        test = ir.InsertionPoint(add_block(loop, 0))
        start = self._claim(chunk, test)
        more = code.compare(SLT, start, end, test)
        code.op("scf.condition", [more, start], None, test)
        trip = add_block(loop, 1, [integer(64)])
        self._run(trip, values, counts, (chunk, end))
        code.op("func.return", [], None, at)

    def _run(
        self,
        trip: ir.Block,
        values: list[ir.Value],
        counts: list[ir.Value],
        extent: tuple[ir.Value, ir.Value],
    ) -> None:
        """Run a chunk of programs; close the job if one fails."""
        code, at = self._code, ir.InsertionPoint(trip)
        start, (chunk, end) = trip.arguments[0], extent
        limit = code.binary("addi", start, chunk, at)
        limit = code.binary("minsi", limit, end, at)
        loop = For((start, limit, code.constant(integer(64), 1)), [], at)
        ids = self._split(loop.counter, counts, loop.body)
        callee = {"callee": ir.FlatSymbolRefAttr.get(self._program)}
        operands = [*values, *ids, *counts, self._scratch, self._job]
        failed = code.op("func.call", operands, integer(1), loop.body, callee)
        close = If(failed, [], loop.body, with_else=False)
        natural = {"alignment": ir.IntegerAttr.get(integer(64), 8)}
        place = self._address("next", close.then)
        order = {**natural, "ordering": ir.IntegerAttr.get(integer(64), _RELAXED)}
        code.op("llvm.store", [end, place], None, close.then, order)
        close.finish()
        loop.finish()
        code.op("scf.yield", [], None, at)

    def _claim(self, chunk: ir.Value, at: ir.InsertionPoint) -> ir.Value:
        """Take the next chunk of programs."""
        attributes = {
            "bin_op": ir.IntegerAttr.get(integer(64), _ADD),
            "ordering": ir.IntegerAttr.get(integer(64), _RELAXED),
        }
        operands = [self._address("next", at), chunk]
        return self._code.op("llvm.atomicrmw", operands, integer(64), at, attributes)

    def _address(self, name: str, at: ir.InsertionPoint) -> ir.Value:
        offset = self._code.constant(integer(64), Job.offset(name))
        return offset_pointer(self._code, self._job, offset, at)

    def _field(self, name: str, type_: ir.Type) -> ir.Value:
        """Read a field of the job that does not change."""
        return self._code.op("llvm.load", [self._address(name, self._at)], type_, self._at)

    def _argument(self, packed: ir.Value, offset: int, type_: ir.Type) -> ir.Value:
        """Read one packed argument."""
        code, at = self._code, self._at
        pointer = offset_pointer(code, packed, code.constant(integer(64), offset), at)
        one = {"alignment": ir.IntegerAttr.get(integer(64), 1)}
        read = code.op("llvm.load", [pointer], stored_type(type_), at, one)
        if value_type(type_) != integer(1):
            return read
        return code.compare(NE, read, code.constant(integer(8), 0), at)

    def _split(
        self, number: ir.Value, counts: list[ir.Value], at: ir.InsertionPoint
    ) -> list[ir.Value]:
        """Return a program's index along x, y and z, as i32."""
        code = self._code
        nx, ny = (code.op("arith.extui", [n], integer(64), at) for n in counts[:2])
        row = code.binary("divui", number, nx, at)
        x = code.binary("subi", number, code.binary("muli", row, nx, at), at)
        z = code.binary("divui", row, ny, at)
        y = code.binary("subi", row, code.binary("muli", z, ny, at), at)
        return [code.op("arith.trunci", [i], integer(32), at) for i in (x, y, z)]
