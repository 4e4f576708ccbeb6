"""Compute any tile at an index inside a nest, from buffers, scalars and the ops between.

`Evaluator.at` is the heart of the lowering: "this value, for these lanes". It follows the
definitions back to kept tiles, loads and scalars; what has been computed for the same index is
reused. It works through a stack of its own, since a kernel's chain of ops may be longer than
Python's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from mlir import ir

from tiledsl.dialects import tile
from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.dialects.types import element_of, is_float, is_tile, pointee
from tiledsl.targets.host import index as indexing
from tiledsl.targets.host.arithmetic import Arithmetic
from tiledsl.targets.host.build import Value
from tiledsl.targets.host.code import NE, Code
from tiledsl.targets.host.cpu import Cpu
from tiledsl.targets.host.index import CONSTANT, LANE, Index
from tiledsl.targets.host.lanes import Lanes, Spread, Stepped, Uniform
from tiledsl.targets.host.machine_types import (
    element_of_vector,
    integer,
    size_of,
    stored_type,
    value_type,
)
from tiledsl.targets.host.memory import Memory, Place
from tiledsl.targets.host.nest import Nest
from tiledsl.targets.host.order import source_indices
from tiledsl.transforms.rewrite import attributes_of


@dataclass(frozen=True)
class Buffer:
    """A kept tile in scratch memory.

    Attributes:
        slot: Its number in the arena.
        pointer: Its first byte.
        shape: The tile's.
        held: The type of an element in registers.
        order: The dimensions, the one whose elements are neighbours first.
    """

    slot: int
    pointer: Value
    shape: tuple[int, ...]
    held: ir.Type
    order: tuple[int, ...]

    @property
    def is_row_major(self) -> bool:
        """Whether the elements of the last dimension are neighbours, and so on."""
        return self.order == tuple(range(len(self.shape) - 1, -1, -1))

    @property
    def stored(self) -> ir.Type:
        """The type of an element in memory."""
        return stored_type(self.held)


class Surroundings(Protocol):
    """What an evaluator asks of the function around it."""

    @property
    def code(self) -> Code:
        """Builds ops."""
        ...

    @property
    def cpu(self) -> Cpu:
        """What the processor can do."""
        ...

    def definition(self, value: ir.Value) -> ir.OpView | None:
        """Return the op to compute a tile with, or None for one with a buffer."""
        ...

    def buffer(self, value: ir.Value) -> Buffer:
        """Return a tile's buffer, and note its use."""
        ...

    def scalar(self, value: ir.Value) -> Uniform:
        """Return a scalar."""
        ...


Key = tuple[ir.Value, Index]


class Evaluator:
    """Computes tiles within one nest.

    Args:
        around: The function.
        nest: The loops.
    """

    def __init__(self, around: Surroundings, nest: Nest) -> None:
        self.arithmetic = Arithmetic(around.code, nest)
        self.memory = Memory(self.arithmetic, around.cpu)
        self._around = around
        self.nest = nest
        self._memo: dict[Key, Lanes] = {}

    def forget_above(self, level: int) -> None:
        """Forget what was computed in loops that have been closed."""
        self._memo = {key: lanes for key, lanes in self._memo.items() if lanes.level <= level}
        self.arithmetic.forget_above(level)

    def at(self, value: ir.Value, index: Index) -> Lanes:
        """Return the elements of a tile, or a scalar, for each lane.

        Args:
            value: A tile, kept or not, or a scalar.
            index: Which element; covers all its lanes.
        """
        return self._run((value, index), None)

    def computed(self, op: ir.OpView, result: ir.Value, index: Index) -> Lanes:
        """Return what `at` would if `result`, which `op` defines, were not kept."""
        return self._run((result, index), op)

    def _run(self, wanted: Key, op: ir.OpView | None) -> Lanes:
        memo = self._memo
        stack = [wanted]
        while stack:
            key = stack[-1]
            if key in memo:
                stack.pop()
                continue
            made_by = op if key == wanted and op is not None else self._around.definition(key[0])
            needs = [] if made_by is None else self._needs(made_by, key)
            missing = [need for need, _ in needs if need not in memo]
            if missing:
                stack += missing
                continue
            stack.pop()
            lanes = indexing.lane_bits(key[1])
            if made_by is None:
                memo[key] = self._leaf(key)
                continue
            operands = [self.arithmetic.expand(memo[need], picks) for need, picks in needs]
            memo[key] = self._make(made_by, key, operands, 1 << lanes)
        return memo[wanted]

    def _leaf(self, key: Key) -> Lanes:
        value, index = key
        if not is_tile(value.type):
            return self._around.scalar(value)
        return self.read(self._around.buffer(value), index)

    def read(self, buffer: Buffer, index: Index) -> Lanes:
        """Return elements of a buffer."""
        lanes = 1 << indexing.lane_bits(index)
        loaded = self.memory.load(self.place(buffer, index), None, None, lanes)
        return self._from_memory(loaded, buffer.held, lanes, trusted=True)

    def write(self, buffer: Buffer, index: Index, value: Lanes) -> None:
        """Write elements of a buffer."""
        lanes = 1 << indexing.lane_bits(index)
        self.memory.store(
            self.place(buffer, index), self._to_memory(value, buffer.held, lanes), None, lanes
        )

    def place(self, buffer: Buffer, index: Index) -> Place:
        """Return where elements of a buffer lie."""
        lanes, i64 = indexing.lane_bits(index), integer(64)
        arithmetic = self.arithmetic
        element = arithmetic.coordinate(indexing.linear(index, buffer.order), lanes)
        size = arithmetic.constant(i64, size_of(buffer.stored))
        address = arithmetic.apply("arith.muli", [element, size], i64, 1 << lanes)
        return Place(address, buffer.stored, buffer.pointer)

    def _needs(self, op: ir.OpView, key: Key) -> list[tuple[Key, indexing.Picks | None]]:
        """Return what computing an op at an index needs, and how its lanes follow from that."""
        index = key[1]
        lanes = indexing.lane_bits(index)
        operands = list(op.operation.operands)
        sources = source_indices(op, *key)
        needs: list[tuple[Key, indexing.Picks | None]] = []
        for operand, source in zip(operands, sources, strict=True):
            if not is_tile(operand.type):
                needs.append(((operand, ()), None))
            elif source is index:
                needs.append(((operand, index), None))
            else:
                compacted, picks = indexing.compact(source, lanes)
                needs.append(((operand, compacted), picks))
        return needs

    def _make(self, op: ir.OpView, key: Key, operands: list[Lanes], lanes: int) -> Lanes:
        value, index = key
        match op:
            case tile.MakeRangeOp():
                return self._range(op, index)
            case tile.LoadOp():
                return self._load(op, operands, lanes)
            case tile.AddPtrOp():
                return self.add_pointer(op, operands, lanes)
            case tile.JoinOp():
                return self._choose(index[-1][0], operands, lanes)
            case tile.CatOp():
                axis: int = op.axis
                return self._choose(index[axis][-1], operands, lanes)
            case (
                tile.SplatOp()
                | tile.ExpandDimsOp()
                | tile.BroadcastOp()
                | tile.ReshapeOp()
                | tile.TransOp()
                | tile.SplitOp()
                | tile.HintOp()
            ):
                return operands[0]
            case _:
                return self.elementwise(op, value, operands, lanes)

    def apply(self, op: ir.OpView, result: ir.Value, operands: list[Lanes], lanes: int) -> Lanes:
        """Apply an elementwise op to operands that are at hand."""
        return self._make(op, (result, ()), operands, lanes)

    def scalar_op(self, op: ir.OpView, result: ir.Value, operands: list[Uniform]) -> Uniform:
        """Compute an op on scalars outside of all loops."""
        made = self._make(op, (result, ()), list(operands), 1)
        assert isinstance(made, Uniform)
        return made

    def elementwise(
        self, op: ir.OpView, result: ir.Value, operands: list[Lanes], lanes: int
    ) -> Lanes:
        """Apply an elementwise op of `arith` or `math`, a constant or a bitcast."""
        name = op.operation.name
        element = value_type(result.type)
        if name == "arith.constant":
            return constant(self.arithmetic, op, element)
        if isinstance(op, tile.BitcastOp):
            return self._bitcast(operands[0], element, lanes)
        if name.partition(".")[0] not in ("arith", "math"):
            raise CompilerBug(f"{name} cannot be computed on the host; expected it to be expanded")
        attributes = attributes_of(op.operation)
        if name != "arith.select":
            operands = [
                self._computable(value, operand.type, lanes)
                for value, operand in zip(operands, op.operation.operands, strict=True)
            ]
            element = element_of(result.type)
        made = self.arithmetic.apply(name, operands, element, lanes, attributes)
        held = value_type(result.type)
        return made if held == element else self._bitcast(made, held, lanes)

    def _computable(self, value: Lanes, type_: ir.Type, lanes: int) -> Lanes:
        """Return a value as its own type, where it is held as the bits of a small float."""
        return self._bitcast(value, element_of(type_), lanes) if is_float(type_) else value

    def _bitcast(self, source: Lanes, element: ir.Type, lanes: int) -> Lanes:
        # Pointers and integers have one type here; only a change of type is an op.
        if _element_type(source) == element:
            return source
        return self.arithmetic.apply("arith.bitcast", [source], element, lanes)

    def _range(self, op: tile.MakeRangeOp, index: Index) -> Lanes:
        lanes = indexing.lane_bits(index)
        i32 = integer(32)
        position = self.arithmetic.coordinate(index[0], lanes)
        narrow = self.arithmetic.apply("arith.trunci", [position], i32, 1 << lanes)
        start = self.arithmetic.constant(i32, op.start)
        return self.arithmetic.apply("arith.addi", [narrow, start], i32, 1 << lanes)

    def add_pointer(self, op: tile.AddPtrOp, operands: list[Lanes], lanes: int) -> Lanes:
        """Move pointers by elements."""
        i64 = integer(64)
        pointer, offset = operands
        if _element_type(offset) != i64:
            offset = self.arithmetic.apply("arith.extsi", [offset], i64, lanes)
        size = self.arithmetic.constant(i64, size_of(stored_type(pointee(op.ptr.type))))
        bytes_ = self.arithmetic.apply("arith.muli", [offset, size], i64, lanes)
        return self.arithmetic.apply("arith.addi", [pointer, bytes_], i64, lanes)

    def _load(self, op: tile.LoadOp, operands: list[Lanes], lanes: int) -> Lanes:
        pointer, mask, other = (*operands, None, None)[:3]
        assert pointer is not None
        return self.load(op, pointer, mask, other, lanes)

    def load(
        self, op: tile.LoadOp, pointer: Lanes, mask: Lanes | None, other: Lanes | None, lanes: int
    ) -> Lanes:
        """Read memory as a load does."""
        held = value_type(pointee(op.ptr.type))
        place = Place(pointer, stored_type(held), volatile=op.volatile)
        if other is not None:
            other = self._to_memory(other, held, lanes)
        return self._from_memory(self.memory.load(place, mask, other, lanes), held, lanes)

    def _from_memory(
        self, loaded: Lanes, held: ir.Type, lanes: int, trusted: bool = False
    ) -> Lanes:
        """Turn a byte into a bool; a byte of our own (`trusted`) is 0 or 1."""
        if held != integer(1):
            return loaded
        if trusted:
            return self.arithmetic.apply("arith.trunci", [loaded], held, lanes)
        zero = self.arithmetic.constant(integer(8), 0)
        predicate = {"predicate": ir.IntegerAttr.get(integer(64), NE)}
        return self.arithmetic.apply("arith.cmpi", [loaded, zero], held, lanes, predicate)

    def _to_memory(self, value: Lanes, held: ir.Type, lanes: int) -> Lanes:
        if held != integer(1):
            return value
        return self.arithmetic.apply("arith.extui", [value], integer(8), lanes)

    def to_memory(self, value: Lanes, held: ir.Type, lanes: int) -> Lanes:
        """Return a value as it is stored."""
        return self._to_memory(value, held, lanes)

    def _choose(self, atom: indexing.Atom, operands: list[Lanes], lanes: int) -> Lanes:
        """Take the second operand where an index bit is 1, else the first."""
        source, bit = atom
        if source == CONSTANT:
            return operands[bit]
        arithmetic = self.arithmetic
        element = _element_type(operands[0])
        if source == LANE:
            lane = np.arange(lanes)
            flags = Spread(arithmetic.code.table(integer(1), lane >> bit & 1), 0)
        else:
            number = arithmetic.coordinate((atom,), 0)
            flags = arithmetic.apply("arith.trunci", [number], integer(1), 1)
        return arithmetic.apply("arith.select", [flags, operands[1], operands[0]], element, lanes)


def _element_type(lanes: Lanes) -> ir.Type:
    value = lanes.base if isinstance(lanes, Stepped) else lanes.value
    return element_of_vector(value.type)


def constant(arithmetic: Arithmetic, op: ir.OpView, element: ir.Type) -> Uniform:
    """Return a constant, scalar or the same in every element."""
    value = op.operation.attributes["value"]
    if isinstance(value, ir.DenseElementsAttr):
        if not value.is_splat:
            raise CompilerBug("expected a constant tile to have one value throughout")
        value = value.get_splat_value()
    if isinstance(value, ir.IntegerAttr | ir.BoolAttr):
        return arithmetic.constant(element, int(value.value))
    assert isinstance(value, ir.FloatAttr)
    return Uniform(arithmetic.code.float_constant(element, value))
