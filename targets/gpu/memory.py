"""Loads and stores of global memory: as wide as layout, pointer and mask allow, once an element.

An access is cut into groups of consecutive registers that hold consecutive, aligned elements and
share one mask. What that takes is proved: by the layout's matrix, and by axis facts on the runs and
alignment of addresses and the granularity of masks. A load is done by every thread that wants its
elements, a store by the first holder alone.
"""

from __future__ import annotations

from typing import Any

from mlir import ir
from mlir.dialects import arith

from tiledsl.dialects import tgpu
from tiledsl.dialects.types import is_tile
from tiledsl.targets.gpu import emit
from tiledsl.targets.gpu.emit import integer, vector_of
from tiledsl.targets.gpu.lowering import Handler, Lowering, element_type
from tiledsl.targets.gpu.machine import Hints
from tiledsl.targets.gpu.place import first_registers
from tiledsl.targets.gpu.pointers import Addresses
from tiledsl.targets.gpu.types import in_register
from tiledsl.transforms.axis_facts import vector_elements


def access_width(
    lowering: Lowering, pointer: ir.Value, mask: ir.Value | None, most_bytes: int | None = None
) -> int:
    """Return how many consecutive registers each access of a tile of pointers moves.

    Args:
        lowering: The kernel.
        pointer: The tile of pointers.
        mask: The lanes that take part; None for all.
        most_bytes: The widest access; by default the machine's.
    """
    layout = lowering.layout(pointer)
    most = most_bytes or lowering.machine.max_access_bytes
    return max(
        min(
            layout.contiguous_run(axis),
            vector_elements(lowering.facts, pointer, mask, axis, most),
        )
        for axis in range(layout.rank)
    )


def stored(value: ir.Value) -> ir.Value:
    """Return a vector in registers as it is in memory: bools as bytes."""
    if emit.width_of(value.type) > 1:
        return value
    return arith.extui(emit.resized(value.type, integer(8)), value)


def loaded(value: ir.Value, element: ir.Type) -> ir.Value:
    """Return a vector in memory as it is in registers; any byte but zero is true."""
    if in_register(element) != integer(1):
        return value
    return emit.compare("ne", value, emit.zero(value.type))


def hints_of(op: Any) -> Hints:
    """Return the hints on a load or store."""
    return Hints(op.cache, op.eviction, bool(getattr(op, "volatile", False)))


def _load(lowering: Lowering, op: Any) -> None:
    if not is_tile(op.result.type):
        _load_scalar(lowering, op)
    elif tgpu.IN_PLACE in op.operation.attributes:
        with lowering.machine.in_place():
            _load_tile(lowering, op)
    else:
        _load_tile(lowering, op)


def _load_tile(lowering: Lowering, op: Any) -> None:
    pointers = lowering.pointers(op.ptr)
    addresses = Addresses(pointers)
    width = access_width(lowering, op.ptr, op.mask)
    layout = lowering.layout(op.ptr)
    element = element_type(op.result)
    mask = None if op.mask is None else lowering.value(op.mask)
    other = None if op.other is None else stored(lowering.value(op.other))
    type_ = vector_of(width, pointers.element)
    copies = sum(1 << i for i, column in enumerate(layout.flat("register")) if not column)
    groups: list[ir.Value] = []
    for start in range(0, layout.registers, width):
        first = start & ~copies
        if first != start:
            groups.append(groups[first // width])
            continue
        predicate = None if mask is None else emit.extract(mask, start)
        otherwise = None
        if predicate is not None:
            otherwise = emit.zero(type_) if other is None else emit.part(other, start, width)
        groups.append(
            lowering.machine.load(
                type_,
                addresses.at(start),
                width * emit.width_of(type_) // 8,
                hints_of(op),
                predicate,
                otherwise,
            )
        )
        if tgpu.LATE in op.operation.attributes:
            groups[-1].owner.attributes[tgpu.LATE] = ir.UnitAttr.get()
    lowering.define(op.result, loaded(emit.concatenate(groups), element))


def _load_scalar(lowering: Lowering, op: Any) -> None:
    address = Addresses(lowering.pointers(op.ptr)).at(0)
    type_ = vector_of(1, address.element)
    predicate = None if op.mask is None else lowering.value(op.mask)
    other = None
    if op.other is not None:
        other = emit.splat(stored(lowering.value(op.other)), 1)
    elif predicate is not None:
        other = emit.zero(type_)
    alignment = emit.width_of(type_) // 8
    made = lowering.machine.load(type_, address, alignment, hints_of(op), predicate, other)
    lowering.define(op.result, emit.extract(loaded(made, element_type(op.result)), 0))


def _store(lowering: Lowering, op: Any) -> None:
    acting = lowering.acting(op.ptr)
    mask = None if op.mask is None else lowering.value(op.mask)
    value = stored(lowering.value(op.value))
    if not is_tile(op.ptr.type):
        address = Addresses(lowering.pointers(op.ptr)).at(0)
        alignment = emit.width_of(value.type) // 8
        predicate = emit.both(mask, acting)
        lowering.machine.store(emit.splat(value, 1), address, alignment, hints_of(op), predicate)
        return
    pointers = lowering.pointers(op.ptr)
    addresses = Addresses(pointers)
    width = access_width(lowering, op.ptr, op.mask)
    alignment = width * emit.width_of(value.type) // 8
    for start in first_registers(lowering.layout(op.ptr))[::width]:
        predicate = emit.both(None if mask is None else emit.extract(mask, start), acting)
        lowering.machine.store(
            emit.part(value, start, width),
            addresses.at(start),
            alignment,
            hints_of(op),
            predicate,
        )


HANDLERS: dict[str, Handler] = {"tile.load": _load, "tile.store": _store}
