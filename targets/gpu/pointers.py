"""Tiles of pointers in one thread: a base that all threads share, and offsets, 32-bit if possible.

Most tiles of pointers are an argument plus offsets along a dimension or two. Kept apart, the base
lives in one register, offsets are 32 bits wide and few (as many as there are rows, or columns), and
they are only added where an access needs the address. Which *form* a tile takes has to be decided
before lowering, because a loop carries it:

- UNIFORM: the base alone, the same pointer everywhere.
- NARROW: base and i32 offsets, counted in elements and sign-extended.
- DOUBLE: base and the sum of two such offsets, which need not fit 32 bits.
- WIDE: base and i64 offsets.
- SEPARATE: a full address in each register.

Forms are ordered, and a value can be brought to any later form. The base is the same in all threads
because control flow is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Any, TypeGuard, cast, final

import numpy as np
from mlir import ir
from mlir.dialects import arith

from tiledsl.dialects import tgpu, tile
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.layout_f2 import IntArray
from tiledsl.dialects.types import bit_width, is_pointer, is_tile, pointee, storage_bits
from tiledsl.targets.gpu import emit
from tiledsl.targets.gpu.machine import Address
from tiledsl.targets.gpu.share_bounds import summands


class Form(IntEnum):
    """How a thread holds a tile of pointers; see the module's docstring."""

    UNIFORM = 0
    NARROW = 1
    DOUBLE = 2
    WIDE = 3
    SEPARATE = 4

    @property
    def has_base(self) -> bool:
        """Whether there is a base."""
        return self is not Form.SEPARATE

    @property
    def terms(self) -> int:
        """How many offsets (or addresses) each register has."""
        return {Form.UNIFORM: 0, Form.DOUBLE: 2}.get(self, 1)

    @property
    def term_type(self) -> ir.Type:
        """The type of an offset, or of an address."""
        if self is Form.SEPARATE:
            return emit.pointer_type(1)
        return emit.integer(64 if self is Form.WIDE else 32)


class Term:
    """Something in each register, many of which may be alike: register r has `values[indices[r]]`.

    Args:
        values: A vector.
        indices: One index a register; by default each register has its own value.
    """

    def __init__(self, values: ir.Value, indices: IntArray | None = None) -> None:
        self.values = values
        self.indices = np.arange(emit.registers_of(values)) if indices is None else indices

    @property
    def distinct(self) -> int:
        """How many values there are."""
        return emit.registers_of(self.values)

    def arranged(self, indices: IntArray) -> Term:
        """Return it with register r copied from register `indices[r]`."""
        return Term(self.values, self.indices[indices])

    def whole(self) -> ir.Value:
        """Return one value a register."""
        return emit.shuffle(self.values, self.indices)

    def widened(self) -> Term:
        """Return integers as i64."""
        return Term(_widened(self.values), self.indices)


@final
class Pointers:
    """A tile of pointers, one thread's part; immutable.

    Args:
        form: What the other arguments hold.
        base: `!llvm.ptr<1>`; None if SEPARATE.
        terms: What is added to it; if SEPARATE the addresses themselves.
        element: The pointee's type in memory.
        registers: Elements that the thread holds.
    """

    def __init__(
        self,
        form: Form,
        base: ir.Value | None,
        terms: Sequence[Term],
        element: ir.Type,
        registers: int,
    ) -> None:
        self.form = form
        self.base = base
        self.terms = tuple(terms)
        self.element = element
        self.registers = registers

    def with_terms(self, form: Form, terms: Sequence[Term]) -> Pointers:
        """Return pointers with the same base and other offsets."""
        return Pointers(form, self.base, terms, self.element, self.registers)

    def to(self, form: Form) -> Pointers:
        """Return the same pointers in a later form."""
        if form == self.form:
            return self
        if form is Form.SEPARATE:
            return self._separate()
        terms = list(self.terms)
        if form is Form.WIDE and len(terms) == 2:
            total = arith.addi(*(term.widened().whole() for term in terms))
            return self.with_terms(form, [Term(total)])
        if form is Form.WIDE:
            terms = [term.widened() for term in terms]
        while len(terms) < form.terms:
            zero = emit.zero(emit.vector_of(1, form.term_type))
            terms.append(Term(zero, np.zeros(self.registers, np.int64)))
        return self.with_terms(form, terms)

    def _separate(self) -> Pointers:
        assert self.base is not None  # all other forms have one
        addresses = Term(emit.splat(self.base, 1), np.zeros(self.registers, np.int64))
        for term in self.terms:
            moved = emit.gep(addresses.whole(), term.whole(), self.element)
            addresses = Term(moved)
        return Pointers(Form.SEPARATE, None, [addresses], self.element, self.registers)

    def moved(self, by: ir.Value | int) -> Pointers:
        """Return the pointers moved by the same number of elements everywhere."""
        if self.base is None:
            amount = emit.i32(by) if isinstance(by, int) else by
            same = np.zeros(self.registers, np.int64)
            return self.spread(Term(emit.splat(amount, 1), same), Form.SEPARATE)
        base = emit.gep(self.base, by, self.element)
        return Pointers(self.form, base, self.terms, self.element, self.registers)

    def spread(self, by: Term, form: Form) -> Pointers:
        """Return the pointers moved by different integers, in a form that allows it."""
        if form is Form.SEPARATE:
            (addresses,) = self.to(form).terms
            moved = emit.gep(addresses.whole(), by.whole(), self.element)
            return Pointers(form, None, [Term(moved)], self.element, self.registers)
        if form is Form.WIDE:
            if self.form is Form.UNIFORM:
                return self.with_terms(form, [by.widened()])
            (offsets,) = self.to(form).terms
            return self.with_terms(form, [Term(arith.addi(offsets.whole(), by.widened().whole()))])
        made = self.with_terms(Form(self.form + 1), [*self.terms, by])
        return made.to(form)

    def arranged(self, indices: IntArray) -> Pointers:
        """Return the pointers with register r copied from register `indices[r]`."""
        terms = [term.arranged(indices) for term in self.terms]
        return Pointers(self.form, self.base, terms, self.element, len(indices))

    def as_type(self, element: ir.Type) -> Pointers:
        """Return the same addresses as pointers to another type."""
        return Pointers(self.form, self.base, self.terms, element, self.registers)

    def values(self) -> list[ir.Value]:
        """Return the values that make it up, as control flow carries them."""
        base = [] if self.base is None else [self.base]
        return base + [term.whole() for term in self.terms]

    @staticmethod
    def of_values(
        form: Form, values: Iterator[ir.Value], element: ir.Type, registers: int
    ) -> Pointers:
        """Return what `values` took apart."""
        base = next(values) if form.has_base else None
        terms = [Term(next(values)) for _ in range(form.terms)]
        return Pointers(form, base, terms, element, registers)


class Addresses:
    """The addresses of one access, register by register.

    The offset that has fewer values is added to the base first, once for each of them, so that the
    other one takes a single instruction a register. And none where registers lie at constant
    distances: these are left for the accesses themselves, which have room for them. Use it where it
    is made, in one block.
    """

    def __init__(self, pointers: Pointers) -> None:
        self._pointers = pointers
        self._terms = sorted(pointers.terms, key=lambda term: term.distinct)
        self._starts: dict[int | None, ir.Value] = {}
        together = pointers.form.has_base and self._terms
        self._distances = _distances(self._terms[-1].values) if together else None
        self._nearby: dict[int | None, ir.Value] = {}

    def at(self, register: int) -> Address:
        """Return the address in one register."""
        base, element = self._pointers.base, self._pointers.element
        offsets = [(term.values, int(term.indices[register])) for term in self._terms]
        if base is None:
            return Address(emit.extract(*offsets[0]), None, element, uniform=False)
        if not offsets:
            return Address(base, None, element, uniform=True)
        place = offsets[0][1] if len(offsets) > 1 else None
        if place not in self._starts:
            moved = None if place is None else emit.extract(*offsets[0])
            self._starts[place] = base if moved is None else emit.gep(base, moved, element)
        start = self._starts[place]
        values, index = offsets[-1]
        if self._distances is None:
            return Address(start, emit.extract(values, index), element, uniform=place is None)
        variable, constants = self._distances
        if place not in self._nearby:
            self._nearby[place] = emit.gep(start, variable, element)
        pointer = emit.gep(self._nearby[place], constants[index], element)
        return Address(pointer, None, element, uniform=False)


def _distances(values: ir.Value) -> tuple[ir.Value, list[int]] | None:
    """Return a vector's registers as one scalar and what is added to it in each, or None."""
    parts = summands(values)
    if parts is None:
        return None
    variable, constants = parts
    return variable, [int(number) for number in _owner(constants).attributes["value"]]


def is_pointers(value: ir.Value | Pointers) -> TypeGuard[Pointers]:
    """Return whether a lowered value is a tile of pointers; the other kind is `plain`."""
    return isinstance(value, Pointers)


def plain(value: ir.Value | Pointers) -> ir.Value:
    """Return a lowered value that is no tile of pointers."""
    return cast("ir.Value", value)


def _widened(offsets: ir.Value) -> ir.Value:
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
    if form < Form.DOUBLE and bit_width(offset.type) == 32:
        return Form(form + 1)
    return max(form, Form.WIDE)


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
