"""Tiles of pointers in one thread: a base that all threads share, and offsets, 32-bit if possible.

Most tiles of pointers are an argument plus offsets. Kept apart, the base lives in one register, the
offsets are 32 bits wide and are only added where an access needs the address. Which *form* a tile
takes has to be decided before lowering, because a loop carries it:

- UNIFORM: the base alone, the same pointer everywhere.
- NARROW: base and i32 offsets, counted in elements and sign-extended.
- WIDE: base and i64 offsets: a sum of two i32 offsets need not fit 32 bits.
- SEPARATE: a full address in each register.

Forms are ordered, and a value can be brought to any later form. The base is the same in all threads
because control flow is.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any, TypeGuard, cast, final

from mlir import ir
from mlir.dialects import arith

from tiledsl.dialects import tgpu, tile
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.types import bit_width, is_pointer, is_tile, pointee, storage_bits
from tiledsl.targets.gpu import emit
from tiledsl.targets.gpu.machine import Address


class Form(IntEnum):
    """How a thread holds a tile of pointers; see the module's docstring."""

    UNIFORM = 0
    NARROW = 1
    WIDE = 2
    SEPARATE = 3

    @property
    def has_base(self) -> bool:
        """Whether there is a base."""
        return self is not Form.SEPARATE

    @property
    def has_offsets(self) -> bool:
        """Whether there is something in each register: offsets or addresses."""
        return self is not Form.UNIFORM


@final
class Pointers:
    """A tile of pointers, one thread's part; immutable.

    Args:
        form: What the other arguments hold.
        base: `!llvm.ptr<1>`; None if SEPARATE.
        offsets: A vector of i32, of i64, or if SEPARATE of `!llvm.ptr<1>`; None if UNIFORM.
        element: The pointee's type in memory.
        registers: Elements that the thread holds.
    """

    def __init__(
        self,
        form: Form,
        base: ir.Value | None,
        offsets: ir.Value | None,
        element: ir.Type,
        registers: int,
    ) -> None:
        self.form = form
        self.base = base
        self.offsets = offsets
        self.element = element
        self.registers = registers

    def to(self, form: Form) -> Pointers:
        """Return the same pointers in a later form."""
        if form == self.form:
            return self
        if form is Form.SEPARATE:
            return self._separate()
        if self.form is Form.UNIFORM:
            width = 32 if form is Form.NARROW else 64
            offsets = emit.zero(emit.vector_of(self.registers, emit.integer(width)))
        else:
            assert self.offsets is not None  # NARROW has them
            offsets = widened(self.offsets)
        return Pointers(form, self.base, offsets, self.element, self.registers)

    def _separate(self) -> Pointers:
        assert self.base is not None  # all other forms have one
        if self.offsets is None:
            addresses = emit.splat(self.base, self.registers)
        else:
            addresses = emit.gep(self.base, self.offsets, self.element)
        return Pointers(Form.SEPARATE, None, addresses, self.element, self.registers)

    def moved(self, by: ir.Value | int) -> Pointers:
        """Return the pointers moved by the same number of elements everywhere."""
        if self.base is None:
            amount = emit.i32(by) if isinstance(by, int) else by
            return self.spread(emit.splat(amount, self.registers), Form.SEPARATE)
        base = emit.gep(self.base, by, self.element)
        return Pointers(self.form, base, self.offsets, self.element, self.registers)

    def spread(self, by: ir.Value, form: Form) -> Pointers:
        """Return the pointers moved by a vector of integers, in a form that allows it."""
        if form is Form.SEPARATE:
            addresses = self.to(form).offsets
            assert addresses is not None  # SEPARATE has them
            moved = emit.gep(addresses, by, self.element)
            return Pointers(form, None, moved, self.element, self.registers)
        offsets = by if form is Form.NARROW else widened(by)
        if self.offsets is not None:
            offsets = arith.addi(widened(self.offsets), offsets)
        return Pointers(form, self.base, offsets, self.element, self.registers)

    def arranged(self, indices: emit.Indices) -> Pointers:
        """Return the pointers with register r copied from register `indices[r]`."""
        offsets = None if self.offsets is None else emit.shuffle(self.offsets, indices)
        return Pointers(self.form, self.base, offsets, self.element, len(indices))

    def address(self, register: int) -> Address:
        """Return the address in one register."""
        if self.base is None:
            assert self.offsets is not None  # SEPARATE has them
            return Address(emit.extract(self.offsets, register), None, self.element, False)
        offset = None if self.offsets is None else emit.extract(self.offsets, register)
        return Address(self.base, offset, self.element, True)

    def values(self) -> list[ir.Value]:
        """Return the values that make it up, as control flow carries them."""
        return [value for value in (self.base, self.offsets) if value is not None]


def is_pointers(value: ir.Value | Pointers) -> TypeGuard[Pointers]:
    """Return whether a lowered value is a tile of pointers; the other kind is `plain`."""
    return isinstance(value, Pointers)


def plain(value: ir.Value | Pointers) -> ir.Value:
    """Return a lowered value that is no tile of pointers."""
    return cast("ir.Value", value)


def widened(offsets: ir.Value) -> ir.Value:
    """Return offsets as i64."""
    if emit.width_of(offsets.type) == 64:
        return offsets
    return arith.extsi(emit.resized(offsets.type, emit.integer(64)), offsets)


# Which form.


def is_pointer_tile(type_: ir.Type) -> bool:
    """Return whether it is a tile of pointers."""
    return is_tile(type_) and is_pointer(type_)


_PASS_THROUGH = (
    tile.HintOp,
    tile.ExpandDimsOp,
    tile.BroadcastOp,
    tile.ReshapeOp,
    tile.TransOp,
    tile.SplitOp,
    tgpu.ConvertLayoutOp,
)
_SAME_SCALAR = (
    tile.ExpandDimsOp,
    tile.BroadcastOp,
    tile.ReshapeOp,
    tile.TransOp,
    tile.HintOp,
    tgpu.ConvertLayoutOp,
)


def scalar_behind(value: ir.Value) -> ir.Value | int | None:
    """Return the scalar, or the integer, that every element of a tile is by construction."""
    while not isinstance(owner := _owner(value), ir.Block):
        op = owner.opview
        if isinstance(op, tile.SplatOp):
            return op.scalar
        if op.operation.name == "arith.constant":
            number: Any = op.operation.attributes["value"]
            is_splat = isinstance(number, ir.DenseIntElementsAttr) and number.is_splat
            splat: Any = number
            return int(splat.get_splat_value().value) if is_splat else None
        if not isinstance(op, _SAME_SCALAR):
            return None
        value = op.operation.operands[0]
    return None


def _owner(value: ir.Value) -> Any:
    """Return the op or block that a value comes from; the bindings' stubs know only ops."""
    return value.owner


def forms(kernel: ir.OpView) -> dict[ir.Value, Form]:
    """Return the form of every tile of pointers in a kernel: the least that serves all its uses."""
    edges: list[tuple[ir.Value, ir.Value]] = []
    found: dict[ir.Value, Form] = {}
    makers: list[ir.OpView] = []
    for op in operations(kernel):
        edges += [edge for edge in _carried(op) if is_pointer_tile(edge[0].type)]
        if any(is_pointer_tile(result.type) for result in op.operation.results):
            makers.append(op)
    changed = True
    while changed:
        changed = False
        for op in makers:
            for result in op.operation.results:
                if is_pointer_tile(result.type):
                    changed |= _raise(found, result, _made(op, found))
        for source, target in edges:
            changed |= _raise(found, target, found.get(source, Form.UNIFORM))
    return found


def _raise(found: dict[ir.Value, Form], value: ir.Value, form: Form) -> bool:
    before = found.get(value)
    found[value] = form if before is None else max(before, form)
    return before != found[value]


def _made(op: Any, found: dict[ir.Value, Form]) -> Form:
    """Return the form of what an op makes of its operands' forms."""

    def of(value: ir.Value) -> Form:
        return found.get(value, Form.UNIFORM)

    if isinstance(op, tile.SplatOp):
        return Form.UNIFORM
    if isinstance(op, tile.AddPtrOp):
        return _added(of(op.ptr), op.offset)
    if isinstance(op, _PASS_THROUGH):
        return of(op.operation.operands[0])
    if isinstance(op, tile.BitcastOp) and is_pointer(op.source.type):
        source, result = (storage_bits(pointee(v.type)) for v in (op.source, op.result))
        held = of(op.source)
        return held if source == result or held is Form.UNIFORM else Form.SEPARATE
    if op.operation.name == "arith.select" and not is_tile(op.operation.operands[0].type):
        return max(of(op.operation.operands[1]), of(op.operation.operands[2]))
    if op.operation.name.startswith("scf."):
        return Form.UNIFORM  # what is yielded decides
    return Form.SEPARATE


def _added(form: Form, offset: ir.Value) -> Form:
    if form is Form.SEPARATE or scalar_behind(offset) is not None:
        return form
    if form is Form.UNIFORM and bit_width(offset.type) == 32:
        return Form.NARROW
    return Form.WIDE


def _carried(op: ir.OpView) -> Iterable[tuple[ir.Value, ir.Value]]:
    """Yield (from, to) for every value that control flow hands on."""
    operation = op.operation
    match operation.name:
        case "scf.for":
            arguments = list(operation.regions[0].blocks[0].arguments)[1:]
            inits = list(operation.operands)[3:]
            yields = list(_terminator(operation, 0).operands)
            for sources in (inits, yields):
                yield from zip(sources, arguments, strict=True)
                yield from zip(sources, operation.results, strict=True)
        case "scf.if":
            for region in range(len(operation.regions)):
                if operation.regions[region].blocks:
                    yields = list(_terminator(operation, region).operands)
                    yield from zip(yields, operation.results, strict=True)
        case "scf.while":
            before, after = (list(r.blocks[0].arguments) for r in operation.regions)
            yield from zip(operation.operands, before, strict=True)
            passed = list(_terminator(operation, 0).operands)[1:]
            yield from zip(passed, after, strict=True)
            yield from zip(passed, operation.results, strict=True)
            yield from zip(_terminator(operation, 1).operands, before, strict=True)
        case _:
            pass


def _terminator(operation: ir.Operation, region: int) -> ir.Operation:
    return list(operation.regions[region].blocks[0].operations)[-1].operation
