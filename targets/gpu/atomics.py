"""Atomics: once an element, by the machine's instructions or by loops of compare-and-swap.

The first holder of each element acts. What a machine lacks is made of what it has:

- Float max and min of 32 and 64 bits: floats order like signed integers where the sign bit is clear
  and like descending unsigned ones where it is set, so the new value's sign bit chooses between a
  signed and an unsigned integer atomic. A NaN that is brought gets the sign with which it wins. (A
  NaN already in memory wins too if its sign bit is clear for max, set for min, as all NaNs are that
  these atomics write.)
- Everything else: a loop around a compare-and-swap of the 32 or 64 bits that hold the element.

An atomic whose result nobody uses need not acquire.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlir import ir
from mlir.dialects import arith, llvm, scf

from tiledsl.dialects import tile
from tiledsl.dialects.diagnostics import CompilerBug, KernelError
from tiledsl.dialects.layout_shape import distinct_registers, register_map
from tiledsl.dialects.types import is_tile
from tiledsl.targets.gpu import emit
from tiledsl.targets.gpu.emit import constant, integer
from tiledsl.targets.gpu.lowering import Handler, Lowering, element_type
from tiledsl.targets.gpu.machine import Address, Hints, Machine
from tiledsl.targets.gpu.memory import loaded, stored
from tiledsl.targets.gpu.pointers import Addresses
from tiledsl.targets.gpu.types import in_register, is_fp8

_WITHOUT_RESULT = {"acquire": "relaxed", "acq_rel": "release"}
_WORD_BYTES = 4
Update = Callable[[ir.Value], ir.Value]


class _Act:
    """One atomic op: its order, and how to do it to one element.

    Args:
        machine: The machine.
        op: A `tile.atomic_rmw` or `tile.atomic_cas`.
    """

    def __init__(self, machine: Machine, op: Any) -> None:
        self.machine = machine
        self.used = any(True for _ in op.old.uses)
        sem: str = op.sem
        self.sem = sem if self.used else _WITHOUT_RESULT.get(sem, sem)
        self.scope: str = op.scope

    def rmw(
        self, kind: str, address: Address, value: ir.Value, predicate: ir.Value | None
    ) -> ir.Value:
        """Do a read-modify-write that the machine has."""
        return self.machine.atomic_rmw(
            kind, address, value, self.sem, self.scope, predicate, used=self.used
        )

    def update(
        self, kind: str, address: Address, value: ir.Value, predicate: ir.Value | None
    ) -> ir.Value:
        """Do any read-modify-write of a value in memory's type; return the old value."""
        type_ = value.type
        wide = isinstance(type_, ir.IntegerType) and type_.width >= 32
        if (kind in _INTEGER and wide) or self.machine.has_atomic(kind, type_):
            return self.rmw(kind, address, value, predicate)
        bits = emit.width_of(type_)
        if kind == "xchg" and bits >= 32:
            number = emit.bitcast(value, integer(bits))
            return emit.bitcast(self.rmw(kind, address, number, predicate), type_)
        if kind in ("fmax", "fmin") and bits >= 32:
            return self._extreme(kind, address, value, predicate)
        return self.loop(address, type_, lambda old: _combined(kind, old, value), predicate)

    def _extreme(
        self, kind: str, address: Address, value: ir.Value, predicate: ir.Value | None
    ) -> ir.Value:
        """Do a float max or min by integer ones; see the module's docstring."""
        bits = emit.width_of(value.type)
        is_max = kind == "fmax"
        sign = 1 << (bits - 1)
        quiet = {32: 0x7FC00000, 64: 0x7FF8 << 48}[bits] | (0 if is_max else sign)
        number = emit.bitcast(value, integer(bits))
        is_nan = arith.cmpf(arith.CmpFPredicate.UNO, value, value)
        number = emit.select(is_nan, constant(number.type, quiet), number)
        positive = emit.compare("sge", number, emit.zero(number.type))
        negative = emit.compare("slt", number, emit.zero(number.type))
        first = self.rmw(
            "max" if is_max else "min", address, number, emit.both(predicate, positive)
        )
        second = self.rmw(
            "umin" if is_max else "umax", address, number, emit.both(predicate, negative)
        )
        # One of the two acted; the other gave 0.
        return emit.bitcast(arith.ori(first, second), value.type)

    # Compare and swap.

    def swap(
        self, address: Address, compare: ir.Value, value: ir.Value, predicate: ir.Value | None
    ) -> ir.Value:
        """Compare and swap an element of any width; return the old value."""
        type_ = value.type
        bits = emit.width_of(type_)
        expected, wanted = (emit.bitcast(v, integer(bits)) for v in (compare, value))
        if bits >= 32:
            old = self._cas(address, expected, wanted, predicate)
            return emit.bitcast(old, type_)

        # Swap the whole word while the element's own bits are as expected.
        def swapped(old: ir.Value) -> ir.Value:
            same = emit.compare("eq", emit.bitcast(old, integer(bits)), expected)
            return emit.bitcast(emit.select(same, wanted, emit.bitcast(old, integer(bits))), type_)

        return self.loop(address, type_, swapped, predicate)

    def _cas(
        self, address: Address, compare: ir.Value, value: ir.Value, predicate: ir.Value | None
    ) -> ir.Value:
        return self.machine.atomic_cas(address, compare, value, self.sem, self.scope, predicate)

    def loop(
        self, address: Address, type_: ir.Type, update: Update, predicate: ir.Value | None
    ) -> ir.Value:
        """Replace an element by `update` of it, trying until nobody else wrote in between."""
        word = _Word.of(address, type_)
        vector = emit.vector_of(1, word.type)
        volatile = Hints(volatile=True)
        zero = None if predicate is None else emit.zero(vector)
        size = emit.width_of(word.type) // 8
        first = self.machine.load(vector, word.address, size, volatile, predicate, zero)
        made = scf.WhileOp([word.type], [emit.extract(first, 0)])
        location = ir.Location.current
        before, after = (
            region.blocks.append(word.type, arg_locs=[location])
            for region in made.operation.regions
        )
        with ir.InsertionPoint(before):
            guess: ir.Value = before.arguments[0]
            new = word.put(guess, update(word.get(guess)))
            found = self._cas(word.address, guess, new, predicate)
            again = emit.both(emit.compare("ne", found, guess), predicate)
            assert again is not None  # both() of a value is one
            scf.ConditionOp(again, [found])
        with ir.InsertionPoint(after):
            scf.YieldOp([after.arguments[0]])
        return word.get(made.operation.results[0])


class _Word:
    """The 32 or 64 bits of memory that hold an element, and where in them it is."""

    def __init__(self, address: Address, element: ir.Type, shift: ir.Value | None) -> None:
        self.address = address
        self.type = address.element
        self._element = element
        self._shift = shift

    @staticmethod
    def of(address: Address, element: ir.Type) -> _Word:
        """Return the word around an element."""
        bits = emit.width_of(element)
        if bits >= 32:
            whole = Address(address.pointer(), None, integer(bits), uniform=False)
            return _Word(whole, element, None)
        pointer = address.pointer()
        number = llvm.ptrtoint(integer(64), pointer)
        place = arith.andi(number, constant(integer(64), _WORD_BYTES - 1))
        start = emit.gep(pointer, arith.subi(constant(integer(64), 0), place), integer(8))
        shift = arith.trunci(integer(32), arith.muli(place, constant(integer(64), 8)))
        return _Word(Address(start, None, integer(32), uniform=False), element, shift)

    def get(self, word: ir.Value) -> ir.Value:
        """Return the element in a word."""
        if self._shift is None:
            return emit.bitcast(word, self._element)
        moved = arith.shrui(word, self._shift)
        bits = integer(emit.width_of(self._element))
        return emit.bitcast(arith.trunci(bits, moved), self._element)

    def put(self, word: ir.Value, element: ir.Value) -> ir.Value:
        """Return the word with another element."""
        bits = emit.width_of(self._element)
        number = emit.bitcast(element, integer(bits))
        if self._shift is None:
            return number
        mask = arith.shli(constant(integer(32), (1 << bits) - 1), self._shift)
        others = arith.andi(word, arith.xori(mask, constant(integer(32), -1)))
        return arith.ori(others, arith.shli(arith.extui(integer(32), number), self._shift))


_INTEGER = frozenset({"add", "max", "umax", "min", "umin", "and", "or", "xor", "xchg"})
_OF_BOOLS = {"add": "or", "max": "or", "umax": "or", "min": "and", "umin": "and"}
_UPDATES: dict[str, Callable[[ir.Value, ir.Value], ir.Value]] = {
    "add": arith.addi,
    "max": arith.maxsi,
    "umax": arith.maxui,
    "min": arith.minsi,
    "umin": arith.minui,
    "and": arith.andi,
    "or": arith.ori,
    "xor": arith.xori,
    "fadd": arith.addf,
    "fmax": arith.maximumf,
    "fmin": arith.minimumf,
}


def _combined(kind: str, old: ir.Value, value: ir.Value) -> ir.Value:
    """Return what a read-modify-write writes; 16-bit floats are computed in f32."""
    if kind == "xchg":
        return value
    if not isinstance(old.type, ir.FloatType) or old.type.width >= 32:
        return _UPDATES[kind](old, value)
    f32 = ir.F32Type.get()
    made = _UPDATES[kind](arith.extf(f32, old), arith.extf(f32, value))
    return arith.truncf(old.type, made)


def _each(
    lowering: Lowering,
    op: Any,
    mask: ir.Value | None,
    act: Callable[[Address, int, ir.Value | None], ir.Value],
) -> None:
    """Do `act(address, register, predicate)` to each element once; define the op's result."""
    acting = lowering.acting(op.ptr)
    addresses = Addresses(lowering.pointers(op.ptr))
    if not is_tile(op.ptr.type):
        old = act(addresses.at(0), 0, emit.both(mask, acting))
        held = loaded(emit.splat(old, 1), element_type(op.old))
        lowering.define(op.old, emit.extract(held, 0))
        return
    layout = lowering.layout(op.ptr)
    distinct = distinct_registers(layout)
    free = layout.free_masks()["register"]
    olds: list[ir.Value] = []
    for register in (int(r) for r in distinct.source):
        if register & free:
            raise CompilerBug(f"expected the first holders among distinct registers in {op}")
        lane = None if mask is None else emit.extract(mask, register)
        olds.append(act(addresses.at(register), register, emit.both(lane, acting)))
    copied = register_map(distinct.layout, layout)
    assert copied is not None  # only copies were dropped
    lowering.define(
        op.old, emit.shuffle(loaded(emit.from_elements(olds), element_type(op.old)), copied)
    )


def _scalars(lowering: Lowering, old: ir.Value) -> list[ir.Value]:
    """Return each register of a value, in memory's type."""
    value = lowering.value(old)
    if not emit.is_vector(value.type):
        value = emit.splat(value, 1)
    return emit.elements(stored(value))


def _atomic_rmw(lowering: Lowering, op: tile.AtomicRmwOp) -> None:
    values = _scalars(lowering, op.value)
    mask = None if op.mask is None else lowering.value(op.mask)
    act = _Act(lowering.machine, op)
    kind: str = op.kind
    if is_fp8(element_type(op.value)) and kind != "xchg":
        raise KernelError(
            f"expected a type that atomics compute with, found {element_type(op.value)}"
        )
    if in_register(element_type(op.value)) == integer(1):
        kind = _OF_BOOLS.get(kind, kind)
    _each(
        lowering,
        op,
        mask,
        lambda address, register, predicate: act.update(kind, address, values[register], predicate),
    )


def _atomic_cas(lowering: Lowering, op: tile.AtomicCasOp) -> None:
    compares, values = _scalars(lowering, op.compare), _scalars(lowering, op.value)
    act = _Act(lowering.machine, op)
    _each(
        lowering,
        op,
        None,
        lambda address, register, predicate: act.swap(
            address, compares[register], values[register], predicate
        ),
    )


HANDLERS: dict[str, Handler] = {
    "tile.atomic_rmw": _atomic_rmw,
    "tile.atomic_cas": _atomic_cas,
}
