"""Read and write memory a few lanes at a time.

An access is a vector instruction where the lanes' addresses are neighbours (in any order: the
vector is then shuffled), under a mask where there is one; otherwise a gather or scatter. No lane
that is masked off is ever touched. Where the processor lacks the masked instruction, a test for
"all lanes" takes the plain one and a loop over the lanes does the rest.

Nothing is assumed of alignment but the machine's permission to ignore it: views may start anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from mlir import ir

from tiledsl.targets.host.arithmetic import Arithmetic
from tiledsl.targets.host.build import For, If, Value
from tiledsl.targets.host.code import Code
from tiledsl.targets.host.cpu import Cpu
from tiledsl.targets.host.lanes import Lanes, Spread, Stepped, Uniform
from tiledsl.targets.host.machine_types import (
    integer,
    lanes_of,
    pointer_type,
    size_of,
    vector_type,
    width_of,
)


@dataclass(frozen=True)
class Place:
    """Where an access goes.

    Attributes:
        address: Bytes, an i64 a lane: absolute, or from `origin`.
        element: The type of an element in memory.
        origin: An LLVM pointer, or None.
        volatile: Whether each execution must access memory.
    """

    address: Lanes
    element: ir.Type
    origin: Value | None = None
    volatile: bool = False


class Memory:
    """Accesses memory at the levels of one nest.

    Args:
        arithmetic: Computes on lanes.
        cpu: What the processor can do.
    """

    def __init__(self, arithmetic: Arithmetic, cpu: Cpu) -> None:
        self._arithmetic = arithmetic
        self._code: Code = arithmetic.code
        self._cpu = cpu

    def load(self, place: Place, mask: Lanes | None, other: Lanes | None, lanes: int) -> Lanes:
        """Read each lane; those masked off give `other`, or 0.

        Args:
            place: Where.
            mask: Bools.
            other: Of the element's type.
            lanes: Number of lanes.
        """
        arithmetic = self._arithmetic
        parts = [part for part in (place.address, mask, other) if part is not None]
        level = arithmetic.level(parts)
        at = arithmetic.nest.at(level)
        if all(isinstance(part, Uniform) for part in parts):
            return Uniform(self._load_scalar(place, mask, other, at), level)
        flags = None if mask is None else arithmetic.vector(mask, lanes)
        filler = self._filler(other, place.element, lanes)
        return Spread(self._load_vector(place, flags, filler, lanes, at), level)

    def store(self, place: Place, value: Lanes, mask: Lanes | None, lanes: int) -> None:
        """Write each lane that is not masked off, at the innermost level.

        Args:
            place: Where; among lanes with one address the highest wins.
            value: Of the element's type.
            mask: Bools.
            lanes: Number of lanes.
        """
        arithmetic = self._arithmetic
        at = arithmetic.nest.at(arithmetic.nest.depth)
        vector = arithmetic.vector(value, lanes)
        flags = None if mask is None else arithmetic.vector(mask, lanes)
        if lanes == 1:
            self._store_scalar(place, vector, flags, at)
            return
        run = _neighbours(place)
        if run is None:
            addresses = self._pointers(place, arithmetic.vector(place.address, lanes), at)
            self._scatter(vector, addresses, flags, at)
            return
        if run.guard is None:
            self._store_run(place, run, vector, flags, at)
            return
        exact = arithmetic.vector(place.address, lanes)
        branch = If(run.guard, [], at)
        self._store_run(place, run, vector, flags, branch.then)
        pointers = self._pointers(place, exact, branch.otherwise)
        self._scatter(vector, pointers, flags, branch.otherwise)
        branch.finish()

    def _filler(self, other: Lanes | None, element: ir.Type, lanes: int) -> ir.Value:
        if other is not None:
            return self._arithmetic.vector(other, lanes)
        zero = Uniform(self._code.constant(element, 0))
        return self._arithmetic.vector(zero, lanes)

    def _load_scalar(
        self, place: Place, mask: Lanes | None, other: Lanes | None, at: ir.InsertionPoint
    ) -> ir.Value:
        arithmetic, address = self._arithmetic, place.address
        assert isinstance(address, Uniform)
        if mask is None:
            pointer = self._pointers(place, address.value, at)
            return self._plain_load(pointer, place.element, place.volatile, at)
        filler = self._filler(other, place.element, 1)
        branch = If(arithmetic.vector(mask, 1), [place.element], at)
        pointer = self._pointers(place, address.value, branch.then)
        read = self._plain_load(pointer, place.element, place.volatile, branch.then)
        return branch.finish([read], [filler])[0]

    def _store_scalar(
        self, place: Place, value: ir.Value, flag: ir.Value | None, at: ir.InsertionPoint
    ) -> None:
        address = self._arithmetic.vector(place.address, 1)
        if flag is None:
            self._plain_store(value, self._pointers(place, address, at), at)
            return
        branch = If(flag, [], at, with_else=False)
        self._plain_store(value, self._pointers(place, address, branch.then), branch.then)
        branch.finish()

    def _load_vector(
        self, place: Place, flags: ir.Value | None, filler: ir.Value, lanes: int,
        at: ir.InsertionPoint,
    ) -> ir.Value:  # fmt: skip
        run = _neighbours(place)
        if run is None:
            addresses = self._arithmetic.vector(place.address, lanes)
            return self._gather(self._pointers(place, addresses, at), flags, filler, at)
        if run.guard is None:
            return self._load_run(place, run, flags, filler, at)
        exact = self._arithmetic.vector(place.address, lanes)
        branch = If(run.guard, [filler.type], at)
        straight = self._load_run(place, run, flags, filler, branch.then)
        pointers = self._pointers(place, exact, branch.otherwise)
        other = self._gather(pointers, flags, filler, branch.otherwise)
        return branch.finish([straight], [other])[0]

    def _load_run(
        self, place: Place, run: _Run, flags: ir.Value | None, filler: ir.Value,
        at: ir.InsertionPoint,
    ) -> ir.Value:  # fmt: skip
        """Load neighbours, in the order of their addresses, and put them in their lanes."""
        pointer = self._first(place, run, at)
        if run.order is None:
            return self._masked_load(pointer, flags, filler, place.volatile, at)
        if flags is not None:
            flags = self._code.shuffle(flags, run.order, at)
            filler = self._code.shuffle(filler, run.order, at)
        loaded = self._masked_load(pointer, flags, filler, place.volatile, at)
        back = [int(lane) for lane in np.argsort(run.order)]
        return self._code.shuffle(loaded, back, at)

    def _store_run(
        self, place: Place, run: _Run, vector: ir.Value, flags: ir.Value | None,
        at: ir.InsertionPoint,
    ) -> None:  # fmt: skip
        pointer = self._first(place, run, at)
        if run.order is not None:
            vector = self._code.shuffle(vector, run.order, at)
            flags = None if flags is None else self._code.shuffle(flags, run.order, at)
        self._masked_store(vector, pointer, flags, at)

    def _first(self, place: Place, run: _Run, at: ir.InsertionPoint) -> ir.Value:
        """Return the pointer to the lowest address of a run."""
        address = run.base
        if run.low:
            constant = self._code.constant(integer(64), run.low)
            address = self._code.binary("addi", address, constant, at)
        return self._pointers(place, address, at)

    def _pointers(self, place: Place, address: ir.Value, at: ir.InsertionPoint) -> ir.Value:
        if place.origin is None:
            return self._code.pointer(address, at)
        return offset_pointer(self._code, place.origin, address, at)

    def _plain_load(
        self, pointer: ir.Value, type_: ir.Type, volatile: bool, at: ir.InsertionPoint
    ) -> ir.Value:
        attributes = dict(_unaligned(64))
        if volatile:
            attributes["volatile_"] = ir.UnitAttr.get()
        return self._code.op("llvm.load", [pointer], type_, at, attributes)

    def _plain_store(self, value: ir.Value, pointer: ir.Value, at: ir.InsertionPoint) -> None:
        self._code.op("llvm.store", [value, pointer], None, at, _unaligned(64))

    def _masked_load(
        self, pointer: ir.Value, flags: ir.Value | None, filler: ir.Value, volatile: bool,
        at: ir.InsertionPoint,
    ) -> ir.Value:  # fmt: skip
        if flags is None:
            return self._plain_load(pointer, filler.type, volatile, at)
        if width_of(ir.VectorType(filler.type).element_type) in self._cpu.masked_bits:
            operands = [pointer, flags, filler]
            return self._code.op("llvm.intr.masked.load", operands, filler.type, at, _unaligned(32))
        branch = If(self._code.all_lanes(flags, at), [filler.type], at)
        whole = self._plain_load(pointer, filler.type, volatile, branch.then)
        some = self._load_by_lane(
            self._run_pointer(pointer, filler), flags, filler, branch.otherwise
        )
        return branch.finish([whole], [some])[0]

    def _masked_store(
        self, vector: ir.Value, pointer: ir.Value, flags: ir.Value | None, at: ir.InsertionPoint
    ) -> None:
        if flags is None:
            self._plain_store(vector, pointer, at)
        elif width_of(ir.VectorType(vector.type).element_type) in self._cpu.masked_bits:
            operands = [vector, pointer, flags]
            self._code.op("llvm.intr.masked.store", operands, None, at, _unaligned(32))
        else:
            branch = If(self._code.all_lanes(flags, at), [], at)
            self._plain_store(vector, pointer, branch.then)
            locate = self._run_pointer(pointer, vector)
            self._store_by_lane(locate, vector, flags, branch.otherwise)
            branch.finish()

    def _gather(
        self, pointers: ir.Value, flags: ir.Value | None, filler: ir.Value, at: ir.InsertionPoint
    ) -> ir.Value:
        native = width_of(ir.VectorType(filler.type).element_type) in self._cpu.gather_bits
        if flags is not None and not native:
            return self._load_by_lane(self._lane_pointer(pointers), flags, filler, at)
        operands = [pointers, self._flags(flags, filler), filler]
        return self._code.op("llvm.intr.masked.gather", operands, filler.type, at, _unaligned(32))

    def _scatter(
        self, vector: ir.Value, pointers: ir.Value, flags: ir.Value | None, at: ir.InsertionPoint
    ) -> None:
        native = width_of(ir.VectorType(vector.type).element_type) in self._cpu.scatter_bits
        if flags is not None and not native:
            self._store_by_lane(self._lane_pointer(pointers), vector, flags, at)
            return
        operands = [vector, pointers, self._flags(flags, vector)]
        self._code.op("llvm.intr.masked.scatter", operands, None, at, _unaligned(32))

    def _flags(self, flags: ir.Value | None, like: ir.Value) -> ir.Value:
        """Return the mask; where there is none, LLVM makes plain accesses of a constant one."""
        if flags is not None:
            return flags
        return self._code.table(integer(1), np.ones(lanes_of(like.type), np.int64))

    def _run_pointer(self, pointer: ir.Value, like: ir.Value) -> _Locate:
        size = size_of(ir.VectorType(like.type).element_type)

        def locate(lane: ir.Value, at: ir.InsertionPoint) -> ir.Value:
            bytes_ = self._code.binary("muli", lane, self._code.constant(integer(64), size), at)
            return offset_pointer(self._code, pointer, bytes_, at)

        return locate

    def _lane_pointer(self, pointers: ir.Value) -> _Locate:
        def locate(lane: ir.Value, at: ir.InsertionPoint) -> ir.Value:
            return self._code.op("llvm.extractelement", [pointers, lane], pointer_type(), at)

        return locate

    def _load_by_lane(
        self, locate: _Locate, flags: ir.Value, filler: ir.Value, at: ir.InsertionPoint
    ) -> ir.Value:
        element = ir.VectorType(filler.type).element_type
        loop, flag = self._lane_loop(flags, [filler], at)
        current = loop.carried[0]
        branch = If(flag, [filler.type], loop.body)
        pointer = locate(loop.counter, branch.then)
        read = self._plain_load(pointer, element, False, branch.then)
        operands = [current, read, loop.counter]
        changed = self._code.op("llvm.insertelement", operands, filler.type, branch.then)
        return loop.finish(branch.finish([changed], [current]))[0]

    def _store_by_lane(
        self, locate: _Locate, vector: ir.Value, flags: ir.Value, at: ir.InsertionPoint
    ) -> None:
        element = ir.VectorType(vector.type).element_type
        loop, flag = self._lane_loop(flags, [], at)
        branch = If(flag, [], loop.body, with_else=False)
        operands = [vector, loop.counter]
        value = self._code.op("llvm.extractelement", operands, element, branch.then)
        self._plain_store(value, locate(loop.counter, branch.then), branch.then)
        branch.finish()
        loop.finish()

    def _lane_loop(
        self, flags: ir.Value, carried: list[ir.Value], at: ir.InsertionPoint
    ) -> tuple[For, ir.Value]:
        """Open a loop over the lanes; return it and whether its lane is on."""
        lanes, i8, i64 = lanes_of(flags.type), integer(8), integer(64)
        wide = self._code.op("arith.extui", [flags], vector_type(i8, lanes), at)
        constant = self._code.constant
        loop = For((constant(i64, 0), constant(i64, lanes), constant(i64, 1)), carried, at)
        flag = self._code.op("llvm.extractelement", [wide, loop.counter], i8, loop.body)
        return loop, self._code.op("arith.trunci", [flag], integer(1), loop.body)


_Locate = Callable[[ir.Value, ir.InsertionPoint], ir.Value]
"""Gives the pointer of a lane by its number."""


@dataclass(frozen=True)
class _Run:
    """Lanes whose addresses are neighbours.

    Attributes:
        base: An i64; the lowest address is `base` + `low`.
        low: Bytes.
        order: The lanes by address, or None where they are in order.
        guard: The condition under which this holds.
    """

    base: Value
    low: int
    order: list[int] | None
    guard: Value | None


def _neighbours(place: Place) -> _Run | None:
    """Return the run that a place's addresses make, if they do."""
    address = place.address
    if not isinstance(address, Stepped):
        return None
    order = np.argsort(address.offsets, kind="stable")
    ascending = address.offsets[order]
    if np.any(np.diff(ascending) != size_of(place.element)):
        return None
    in_order = bool(np.all(order == np.arange(len(order))))
    lanes = None if in_order else [int(lane) for lane in order]
    return _Run(address.base, int(ascending[0]), lanes, address.guard)


def offset_pointer(
    code: Code, pointer: ir.Value, bytes_: ir.Value, at: ir.InsertionPoint
) -> ir.Value:
    """Return a pointer moved by a number of bytes, or one a lane."""
    type_ = vector_type(pointer_type(), lanes_of(bytes_.type))
    dynamic = ir.DenseI32ArrayAttr.get([-(2**31)])  # the index is an operand
    attributes = {"elem_type": ir.TypeAttr.get(integer(8)), "rawConstantIndices": dynamic}
    return code.op("llvm.getelementptr", [pointer, bytes_], type_, at, attributes)


@cache
def _unaligned(bits: int) -> dict[str, ir.Attribute]:
    """Return an alignment of 1, in the integer type that the op wants it."""
    return {"alignment": ir.IntegerAttr.get(integer(bits), 1)}
