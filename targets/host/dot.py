"""Lower `tile.dot` to a register-blocked loop nest over scratch memory.

Both operands are packed row-major (they are computed while they are packed: loads, masks and
conversions cost no pass of their own). A block of rows times a few vectors of columns of the
accumulator then stays in registers while the inner loop runs over K: for each k it loads the
vectors of B, and each row's element of A goes to all lanes. The accumulator is updated where it
lies.

The block's size follows from the register file: with 32 registers, 8 rows by 2 vectors are 16 sums,
which covers the latency of two multiply-add units (Goto and van de Geijn, "Anatomy of
high-performance matrix multiplication", 2008, without its outer blocking: a tile fits the cache).
"""

from __future__ import annotations

from dataclasses import dataclass

from mlir import ir

from tiledsl.dialects import tile
from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.dialects.types import shape_of
from tiledsl.targets.host.body import Body
from tiledsl.targets.host.build import For
from tiledsl.targets.host.evaluate import Buffer
from tiledsl.targets.host.machine_types import integer, size_of, value_type, vector_type
from tiledsl.targets.host.memory import offset_pointer


def lower_dot(body: Body, op: tile.DotOp) -> None:
    """Lower one product; its operands and result have one element type."""
    held = value_type(op.result.type)
    if any(value_type(v.type) != held for v in (op.a, op.b)):
        raise CompilerBug(f"expected operands of {held}, found {op.a.type} and {op.b.type}")
    a, b = (_packed(body, value) for value in (op.a, op.b))
    total = body.destination(op.result)
    body.copy(op.acc, total)
    *batch, rows, depth = shape_of(op.a.type)
    columns = shape_of(op.b.type)[-1]
    blocks = _Blocks.choose(body, rows, columns, size_of(held))
    kernel = _Product(body, (a, b, total), (rows, columns, depth), blocks)
    kernel.emit(batch[0] if batch else 1)
    for buffer in (a, b, total):
        body.arena.touch(buffer.slot)
    body.set_buffer(op.result, total)


def _packed(body: Body, value: ir.Value) -> Buffer:
    """Return the buffer of an operand, kept already or filled here."""
    if body.definition(value) is None and body.buffer(value).is_row_major:
        return body.buffer(value)
    buffer = body.allocate(shape_of(value.type), value_type(value.type))
    body.copy(value, buffer)
    return buffer


@dataclass(frozen=True)
class _Blocks:
    """The part of the accumulator that is held in registers.

    Attributes:
        rows: Rows of it.
        vectors: Vectors a row.
        lanes: Elements a vector.
    """

    rows: int
    vectors: int
    lanes: int

    @staticmethod
    def choose(body: Body, rows: int, columns: int, element_bytes: int) -> _Blocks:
        lanes = min(body.cpu.vector_bytes // element_bytes, columns)
        vectors = min(2, columns // lanes)
        sums = 16 if body.cpu.vector_registers >= 32 else 8
        return _Blocks(min(sums // vectors, rows), vectors, lanes)


class _Product:
    """Emits the loops of one product.

    Args:
        body: Where to.
        buffers: A, B and the accumulator.
        sizes: Rows, columns and depth.
        blocks: What is held in registers.
    """

    def __init__(
        self,
        body: Body,
        buffers: tuple[Buffer, Buffer, Buffer],
        sizes: tuple[int, int, int],
        blocks: _Blocks,
    ) -> None:
        self._body = body
        self._code = body.code
        self._buffers = buffers
        self._rows, self._columns, self._depth = sizes
        self._blocks = blocks
        self._element = buffers[2].held
        self._bytes = size_of(self._element)
        self._vector = vector_type(self._element, blocks.lanes)

    def emit(self, batch: int) -> None:
        """Emit all loops."""
        rows, columns, depth = self._rows, self._columns, self._depth
        blocks = self._blocks
        wide = blocks.vectors * blocks.lanes
        outer = self._loop(batch, self._body.at)
        a, b, c = (
            self._moved(buffer.pointer, outer.counter, size, outer.body)
            for buffer, size in zip(
                self._buffers, (rows * depth, depth * columns, rows * columns), strict=True
            )
        )
        across = self._loop(columns // wide, outer.body)
        b = self._moved(b, across.counter, wide, across.body)
        c = self._moved(c, across.counter, wide, across.body)
        down = self._loop(rows // blocks.rows, across.body)
        a = self._moved(a, down.counter, blocks.rows * depth, down.body)
        c = self._moved(c, down.counter, blocks.rows * columns, down.body)
        self._block(a, b, c, down.body)
        for loop in (down, across, outer):
            loop.finish()

    def _block(self, a: ir.Value, b: ir.Value, c: ir.Value, at: ir.InsertionPoint) -> None:
        """Add the product of some rows of A and some columns of B to a block of the accumulator."""
        blocks = self._blocks
        places = [
            self._at(c, row * self._columns + vector * blocks.lanes, at)
            for row in range(blocks.rows)
            for vector in range(blocks.vectors)
        ]
        inner = self._loop(self._depth, at, [self._load(p, self._vector, at) for p in places])
        k, body = inner.counter, inner.body
        b = self._moved(b, k, self._columns, body)
        a = self._moved(a, k, 1, body)
        right = [
            self._load(self._at(b, vector * blocks.lanes, body), self._vector, body)
            for vector in range(blocks.vectors)
        ]
        sums: list[ir.Value] = []
        for row in range(blocks.rows):
            single = self._load(self._at(a, row * self._depth, body), self._element, body)
            left = self._code.splat(single, blocks.lanes, body)
            for vector in range(blocks.vectors):
                total = inner.carried[row * blocks.vectors + vector]
                sums.append(self._multiply_add(left, right[vector], total, body))
        for place, total in zip(places, inner.finish(sums), strict=True):
            self._code.op("llvm.store", [total, place], None, at, self._alignment())

    def _multiply_add(
        self, a: ir.Value, b: ir.Value, c: ir.Value, at: ir.InsertionPoint
    ) -> ir.Value:
        code = self._code
        if isinstance(self._element, ir.IntegerType):
            return code.binary("addi", code.binary("muli", a, b, at), c, at)
        if self._body.cpu.fma:
            return code.op("math.fma", [a, b, c], c.type, at)
        return code.binary("addf", code.binary("mulf", a, b, at), c, at)

    def _loop(
        self, count: int, at: ir.InsertionPoint, carried: list[ir.Value] | None = None
    ) -> For:
        i64, constant = integer(64), self._code.constant
        bounds = (constant(i64, 0), constant(i64, count), constant(i64, 1))
        return For(bounds, carried or [], at)

    def _moved(
        self, pointer: ir.Value, times: ir.Value, elements: int, at: ir.InsertionPoint
    ) -> ir.Value:
        """Return a pointer moved by `times` times a number of elements."""
        step = self._code.constant(integer(64), elements * self._bytes)
        return offset_pointer(self._code, pointer, self._code.binary("muli", times, step, at), at)

    def _at(self, pointer: ir.Value, elements: int, at: ir.InsertionPoint) -> ir.Value:
        offset = self._code.constant(integer(64), elements * self._bytes)
        return offset_pointer(self._code, pointer, offset, at)

    def _load(self, pointer: ir.Value, type_: ir.Type, at: ir.InsertionPoint) -> ir.Value:
        return self._code.op("llvm.load", [pointer], type_, at, self._alignment())

    def _alignment(self) -> dict[str, ir.Attribute]:
        return {"alignment": ir.IntegerAttr.get(integer(64), self._bytes)}
