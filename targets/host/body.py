"""The function being lowered: its scalars, buffers and scratch memory, and how a tile gets kept.

`Body` is the state that the lowerings of the single ops share. Code is emitted in the order of the
tile-level text; `at` is where it goes now, always the end of the innermost open block.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from mlir import ir

from tiledsl.dialects.types import is_tile, shape_of
from tiledsl.targets.host.build import Value, create
from tiledsl.targets.host.code import Code
from tiledsl.targets.host.cpu import Cpu
from tiledsl.targets.host.evaluate import Buffer, Evaluator
from tiledsl.targets.host.index import Index, lane_bits, log2
from tiledsl.targets.host.lanes import Lanes, Uniform
from tiledsl.targets.host.machine_types import (
    integer,
    pointer_type,
    size_of,
    stored_type,
    value_type,
    width_of,
)
from tiledsl.targets.host.memory import offset_pointer
from tiledsl.targets.host.nest import Nest, cover
from tiledsl.targets.host.order import Order, orders
from tiledsl.targets.host.plan import Plan
from tiledsl.targets.host.scratch import Arena
from tiledsl.targets.host.transpose import can_transpose, fill_transposed


@dataclass
class Program:
    """What all programs of a launch are given.

    Attributes:
        ids: This program's index along x, y, z, i32 each.
        counts: The grid's size along x, y, z, i32 each.
        scratch: LLVM pointer to this thread's scratch memory.
        job: LLVM pointer to the launch's `Job`.
    """

    ids: Sequence[ir.Value]
    counts: Sequence[ir.Value]
    scratch: Value
    job: Value


@dataclass
class Body:
    """See the module's docstring.

    Attributes:
        code: Builds ops.
        cpu: What the processor can do.
        plan: Which tiles are kept.
        program: What the program is given.
        at: Where code goes.
        combiners: The combine functions by name.
        order: Costs of the orders in which a nest may go over a tile.
        module: Where global constants go.
        needs_leave: Whether a call of `debug.LEAVE` was emitted.
        lower_block: Lowers all ops of a block at `at`, but for its terminator.
        arena: Scratch memory.
    """

    code: Code
    cpu: Cpu
    plan: Plan
    program: Program
    at: ir.InsertionPoint
    combiners: dict[str, ir.OpView]
    lower_block: Callable[[Body, ir.Block], None]
    module: ir.Module
    order: Order
    arena: Arena = field(default_factory=Arena)
    needs_leave: bool = False
    _scalars: dict[ir.Value, Uniform] = field(default_factory=dict[ir.Value, Uniform])
    _buffers: dict[ir.Value, Buffer] = field(default_factory=dict[ir.Value, Buffer])
    _texts: dict[str, str] = field(default_factory=dict[str, str])
    _offsets: list[ir.Operation] = field(default_factory=list[ir.Operation])

    def definition(self, value: ir.Value) -> ir.OpView | None:
        """Return the op to compute a tile with, or None for one with a buffer."""
        return self.plan.computed(value) if is_tile(value.type) else None

    def scalar(self, value: ir.Value) -> Uniform:
        """Return a scalar that has been computed."""
        return self._scalars[value]

    def set_scalar(self, value: ir.Value, scalar: Uniform) -> None:
        """Say what a scalar of the tile level is now."""
        self._scalars[value] = scalar

    def buffer(self, value: ir.Value) -> Buffer:
        """Return a kept tile's buffer, and note its use."""
        found = self._buffers[value]
        self.arena.touch(found.slot)
        return found

    def set_buffer(self, value: ir.Value, buffer: Buffer) -> None:
        """Say where a kept tile lies from now on."""
        self._buffers[value] = buffer
        if not buffer.is_row_major:
            self.order.kept[value] = buffer.order

    def allocate(
        self, shape: tuple[int, ...], held: ir.Type, order: Sequence[int] | None = None
    ) -> Buffer:
        """Return a new buffer; its place in scratch memory is known at the end (`place`).

        Args:
            shape: The tile's.
            held: The type of its elements.
            order: The dimensions, neighbours first; row-major by default.
        """
        total = size_of(stored_type(held))
        for size in shape:
            total *= size
        slot = self.arena.add(total)
        top = self.code.top()
        zero = {"value": ir.IntegerAttr.get(integer(64), 0)}
        offset = self.code.op("arith.constant", [], integer(64), top, zero)
        self._offsets.append(offset.owner.operation)
        pointer = offset_pointer(self.code, self.program.scratch, offset, top)
        return Buffer(slot, pointer, shape, held, tuple(order or usual_order(shape)))

    def destination(self, value: ir.Value) -> Buffer:
        """Return the buffer to write a kept tile into, in place where the plan says so."""
        target = self.plan.in_place.get(value)
        if target is not None:
            return self.buffer(target)
        return self.allocate(shape_of(value.type), value_type(value.type))

    def place(self) -> int:
        """Fix every buffer's offset; return the bytes of scratch memory in all."""
        total = self.arena.place()
        for slot, offset in zip(self.arena.slots, self._offsets, strict=True):
            offset.attributes["value"] = ir.IntegerAttr.get(integer(64), slot.offset)
        return total

    def text(self, text: str) -> tuple[ir.Value, int]:
        """Return the address of a text in UTF-8, and its length in bytes."""
        length = len(text.encode())
        i8, number = integer(8), len(self._texts)
        if text not in self._texts:
            self._texts[text] = f"tile.text.{number}"
            type_ = ir.Type.parse(f"!llvm.array<{length} x {i8}>", i8.context)
            attributes = {
                "sym_name": ir.StringAttr.get(self._texts[text]),
                "global_type": ir.TypeAttr.get(type_),
                "linkage": ir.Attribute.parse("#llvm.linkage<internal>"),
                "value": ir.StringAttr.get(text),
                "constant": ir.UnitAttr.get(),
                "addr_space": ir.IntegerAttr.get(integer(32), 0),
            }
            top = ir.InsertionPoint.at_block_begin(self.module.body)
            create("llvm.mlir.global", attributes=attributes, regions=1, at=top)
        name = {"global_name": ir.FlatSymbolRefAttr.get(self._texts[text])}
        top = self.code.top()
        pointer = self.code.op("llvm.mlir.addressof", [], pointer_type(), top, name)
        return self.code.op("llvm.ptrtoint", [pointer], integer(64), top), length

    @contextmanager
    def inside(self, at: ir.InsertionPoint) -> Generator[None]:
        """Emit at another place for a while."""
        outside, self.at = self.at, at
        yield
        self.at = outside

    def nest(self) -> tuple[Nest, Evaluator]:
        """Return a new nest at this place, without loops, and an evaluator for it."""
        nest = Nest(self.code, self.at)
        return nest, Evaluator(self, nest)

    def lane_bits(self, element: ir.Type) -> int:
        """Return how many lanes (log2) suit a nest whose elements are mostly of this type."""
        wide = self.cpu.vector_bytes // max(4, width_of(element) // 8)
        return log2(max(wide, 4))

    def each(
        self,
        shape: tuple[int, ...],
        lanes: int,
        visit: Callable[[Evaluator, Index], None],
        order: Sequence[int] | None = None,
    ) -> None:
        """Emit a nest over all elements of a shape.

        Args:
            shape: The shape.
            lanes: The most lane bits to use.
            visit: Emits the code for the lanes of an index.
            order: The dimensions, lanes first; the last dimension first by default.
        """
        nest, evaluator = self.nest()
        covered = cover(shape, lanes, usual_order(shape) if order is None else order)
        for count in covered.loops:
            nest.open(count)
        visit(evaluator, covered.index)
        nest.close_all()

    def best_order(
        self, shape: tuple[int, ...], lanes: int, cost: Callable[[Index], int]
    ) -> list[int]:
        """Return the order of dimensions, lanes first, of least cost; the usual one if equal."""
        if len(shape) < 2:
            return usual_order(shape)
        return min(orders(shape), key=lambda order: cost(cover(shape, lanes, order).index))

    def fill(self, buffer: Buffer, element: Callable[[Evaluator, Index], Lanes]) -> None:
        """Emit a nest that writes every element of a buffer."""
        self.arena.touch(buffer.slot)

        def visit(evaluator: Evaluator, index: Index) -> None:
            evaluator.write(buffer, index, element(evaluator, index))

        self.each(buffer.shape, self.lane_bits(buffer.held), visit, buffer.order)
        self.arena.touch(buffer.slot)

    def is_at(self, value: ir.Value, buffer: Buffer) -> bool:
        """Return whether a tile is kept in this buffer."""
        return self._buffers.get(value) == buffer

    def reads(self, value: ir.Value) -> dict[int, bool]:
        """Return the buffers (slots) that computing a tile reads.

        A buffer maps to whether each element needs only the element of the same index.
        """
        return {
            self._buffers[found].slot: same
            for found, same in self.plan.reached(value).items()
            if self.plan.computed(found) is None and found in self._buffers
        }

    def move(self, source: Buffer, target: Buffer) -> None:
        """Copy a buffer to another of the same shape."""
        self.arena.touch(source.slot)
        self.fill(target, lambda evaluator, index: evaluator.read(source, index))
        self.arena.touch(source.slot)

    def copy(self, value: ir.Value, buffer: Buffer) -> None:
        """Write a tile, kept or not, into a buffer that may be its own.

        A tile that runs along another dimension than the buffer is transposed on the way.
        """
        if self.is_at(value, buffer):
            return

        def element(evaluator: Evaluator, index: Index) -> Lanes:
            return evaluator.at(value, index)

        lanes = self.lane_bits(buffer.held)
        order = self.best_order(
            buffer.shape, lanes, lambda index: self.order.cost([(value, index)])
        )
        if not can_transpose(buffer, order[0], lanes):
            self.fill(buffer, element)
            return
        self.arena.touch(buffer.slot)
        nest, evaluator = self.nest()
        fill_transposed(nest, evaluator, buffer, order[0], lanes, element)
        self.arena.touch(buffer.slot)

    def keep(self, op: ir.OpView, result: ir.Value) -> None:
        """Compute a kept tile that is elementwise or a load into its buffer.

        A new buffer runs along the dimension along which the tile is best computed.
        """
        shape, held = shape_of(result.type), value_type(result.type)
        if result in self.plan.in_place:
            buffer = self.destination(result)
        else:
            order = self.best_order(
                shape,
                self.lane_bits(held),
                lambda index: self.order.cost_of_making(op, result, index),
            )
            buffer = self.allocate(shape, held, order)
        self.fill(buffer, lambda evaluator, index: evaluator.computed(op, result, index))
        self.set_buffer(result, buffer)


def usual_order(shape: Sequence[int]) -> list[int]:
    """Return the dimensions from the last to the first."""
    return list(range(len(shape) - 1, -1, -1))


def lanes_in(index: Index) -> int:
    """Return the number of lanes that an index covers."""
    return 1 << lane_bits(index)
