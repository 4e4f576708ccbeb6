"""Operands as closures: what reads one typed value for all threads, and what writes one.

A register is one array over the cohort's threads, of the unsigned type of its width (`pred`: bool);
a reader views it as the type that the instruction names, so that NumPy's arithmetic is that type's.
Packed types (`f16x2`, `u16x2`, `f32x2`, ...) read as (threads, 2), element 0 in the low bits.
Constants become NumPy scalars when the instruction is decoded.

Contract:
- A reader returns an array over all threads, or a scalar (of packed types, one row) where
  every thread reads the same. It is a view: never change it.
- A writer (`Context.write`) takes an array over all threads, which *nothing else holds*, because it
  becomes the register where all threads are active. A step that could hand on what it read (a move,
  a flush that found nothing to flush) copies. `Context.compute` builds the common step out of both.
- `Context.scatter` writes to some threads and keeps nothing: what memory and collectives use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.gpu.emulator.cohort import Lanes
from tiledsl.targets.gpu.emulator.program import Instruction, Step
from tiledsl.targets.nvptx.chips import Chip
from tiledsl.targets.nvptx.emulator import text as ptx

if TYPE_CHECKING:
    from tiledsl.targets.nvptx.emulator.machine import Machine

Values = Any
"""An array over all threads, or a scalar."""
select: Callable[[Values, Values, Values], Values] = np.where
"""`np.where`, of values that NumPy's types do not know."""
Reader = Callable[["Machine"], Values]
Writer = Callable[["Machine", Values], None]
Scatter = Callable[["Machine", Lanes, Values], None]


@dataclass(frozen=True)
class Type:
    """A PTX type.

    Attributes:
        name: As PTX spells it.
        element: The NumPy type of one element.
        bits: Width in all.
        count: Elements.
    """

    name: str
    element: np.dtype[Any]
    bits: int
    count: int = 1

    @property
    def signed(self) -> bool:
        """Whether it extends by its sign."""
        return self.element.kind == "i"


def _types() -> dict[str, Type]:
    found = {"pred": Type("pred", np.dtype(np.bool_), 1)}
    for bits in (8, 16, 32, 64):
        for letter, kind in (("b", "u"), ("u", "u"), ("s", "i"), ("f", "f")):
            if letter != "f" or bits > 8:
                name = f"{letter}{bits}"
                found[name] = Type(name, np.dtype(f"{kind}{bits // 8}"), bits)
    found["bf16"] = Type("bf16", np.dtype(ml_dtypes.bfloat16), 16)
    for name, count in (
        ("f16", 2),
        ("bf16", 2),
        ("u16", 2),
        ("s16", 2),
        ("f32", 2),
        ("u8", 4),
        ("s8", 4),
    ):
        one = found[name]
        packed = f"{name}x{count}"
        found[packed] = Type(packed, one.element, one.bits * count, count)
    return found


TYPES = _types()
"""Every type that a register can be read as."""

REGISTER: dict[int, Any] = {1: np.bool_, 8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
"""What holds a value of each width."""


@dataclass(frozen=True)
class Variable:
    """Where a variable lies: its space, and its address there.

    The spaces are "global" (constants too), "shared", "local", and "argument" for kernel
    parameters.
    """

    space: str
    address: int


def constant(immediate: ptx.Immediate, type_: Type) -> Values:
    """Return a constant as a scalar of a type; of a packed type as one row of elements."""
    if type_.bits == 1:
        return np.bool_(immediate.value != 0)
    value = immediate.value
    if immediate.type == "f32" and type_.name == "f64":
        return np.float64(np.uint32(value).view(np.float32))
    if immediate.type == "f64" and type_.name == "f32":
        return np.float32(np.uint64(value).view(np.float64))
    bits = np.array(value & (1 << type_.bits) - 1, REGISTER[type_.bits])
    row = bits.reshape(1).view(type_.element)
    return row if type_.count > 1 else row[0]


class Context:
    """What decoders know beside the instruction: registers, variables, and what the kernel needs.

    Attributes:
        chip: What the text is for.
        instruction: The one that is being decoded, for findings and counters.
        variables: Where each variable lies.
        tables: What each `.branchtargets` label lists.
        registers: The type of each register's array, by slot.
        granule: The smallest shared access so far, in bytes.
        atomic: Whether two processes may not run blocks of it at once: it has atomics, or prints.
    """

    def __init__(self, chip: Chip, variables: dict[str, Variable]) -> None:
        self.chip = chip
        self.variables = variables
        self.tables: dict[str, tuple[str, ...]] = {}
        self.registers: list[Any] = []
        self.granule = 16
        self.atomic = False
        self.parts: list[Callable[[Machine], Any]] = []
        self.instruction: Instruction
        self._slots: dict[str, int] = {}

    def note_shared(self, size: int) -> None:
        """Say that the instruction may touch shared memory `size` bytes at a time."""
        self.granule = min(self.granule, size)

    def need(self, *parts: Callable[[Machine], Any]) -> None:
        """Say that parts of the machine must see the kernel from its first instruction on."""
        self.parts += [one for one in parts if one not in self.parts]

    # --- registers -------------------------------------------------------------------------------

    def slot(self, register: ptx.Register) -> int:
        """Return the index of a register in `Machine.regs`."""
        slot = self._slots.get(register.name)
        if slot is None:
            slot = self._slots[register.name] = len(self.registers)
            width = ptx.WIDTHS[register.type]
            if width not in REGISTER:
                raise CompilerBug(f"the PTX emulator has no registers of {width} bits")
            self.registers.append(REGISTER[width])
        return slot

    def read(self, operand: ptx.Operand, type_: str) -> Reader:
        """Return what reads an operand as a type."""
        kind = TYPES[type_]
        if isinstance(operand, ptx.Register):
            return self._read_register(operand, kind)
        if isinstance(operand, ptx.Immediate):
            value = constant(operand, kind)
            return lambda machine: value
        if isinstance(operand, ptx.Special):
            return _read_special(operand.name, kind)
        if isinstance(operand, ptx.Symbol):
            value = REGISTER[kind.bits](self.variable(operand).address)
            return lambda machine: value
        if isinstance(operand, ptx.Negated) and type_ == "pred":
            inner = self.read(operand.operand, type_)
            return lambda machine: ~inner(machine)
        raise self._bad(operand)

    def read_all(self, operand: ptx.Operand, type_: str) -> list[Reader]:
        """Return what reads each element of a vector; of what is no vector, that."""
        items = operand.items if isinstance(operand, ptx.Vector) else (operand,)
        return [self.read(item, type_) for item in items]

    def _read_register(self, register: ptx.Register, kind: Type) -> Reader:
        slot = self.slot(register)
        held = np.dtype(self.registers[slot])
        width = 1 if held == np.bool_ else held.itemsize * 8
        element, count = kind.element, kind.count
        if width == kind.bits and element == held:
            return lambda machine: machine.regs[slot]
        if width == kind.bits and count == 1:
            return lambda machine: machine.regs[slot].view(element)
        if width == kind.bits:
            return lambda machine: machine.regs[slot].view(element).reshape(-1, count)
        if width > kind.bits > 1 and count == 1:  # the low bits
            narrow = REGISTER[kind.bits]
            return lambda machine: machine.regs[slot].astype(narrow).view(element)
        if 1 < width < kind.bits and element.kind == "u":
            return lambda machine: machine.regs[slot].astype(element)
        raise self._bad(register)

    def write(self, operand: ptx.Operand, type_: str) -> Writer:
        """Return what writes whole arrays of a type to an operand; see the module's contract."""
        if isinstance(operand, ptx.Sink):
            return lambda machine, values: None
        if not isinstance(operand, ptx.Register):
            raise self._bad(operand)
        slot, bits = self.slot(operand), self._bits(operand, type_)

        def write(machine: Machine, values: Values) -> None:
            if machine.full:
                machine.regs[slot] = bits(values)
            else:
                np.copyto(machine.regs[slot], bits(values), where=machine.active)

        return write

    def scatter(self, operand: ptx.Operand, type_: str) -> Scatter:
        """Return what writes values of a type to some threads, one for each of them."""
        if isinstance(operand, ptx.Sink):
            return lambda machine, lanes, values: None
        if not isinstance(operand, ptx.Register):
            raise self._bad(operand)
        slot, bits = self.slot(operand), self._bits(operand, type_)

        def scatter(machine: Machine, lanes: Lanes, values: Values) -> None:
            machine.regs[slot][lanes] = bits(values)

        return scatter

    def scatter_all(self, operand: ptx.Operand, type_: str) -> list[Scatter]:
        """Return what writes each element of a vector; of what is no vector, that."""
        items = operand.items if isinstance(operand, ptx.Vector) else (operand,)
        return [self.scatter(item, type_) for item in items]

    def _bits(self, register: ptx.Register, type_: str) -> Callable[[Values], Values]:
        """Return what turns values of a type into what its register holds."""
        kind = TYPES[type_]
        held: Any = self.registers[self.slot(register)]
        width = ptx.WIDTHS[register.type]
        if width == kind.bits:
            if kind.element == np.dtype(held):
                return lambda values: values
            if kind.count == 1:
                return lambda values: values.view(held)
            return lambda values: np.ascontiguousarray(values).view(held).reshape(-1)
        if width > kind.bits > 1 and kind.count == 1 and kind.element.kind in "iu":
            signed = np.dtype(f"i{width // 8}")
            if kind.signed:
                return lambda values: values.astype(signed).view(held)
            return lambda values: values.astype(held)
        if width > kind.bits > 1:
            narrow = REGISTER[kind.bits]
            return lambda values: np.ascontiguousarray(values).view(narrow).astype(held).reshape(-1)
        raise self._bad(register)

    # --- the common step -------------------------------------------------------------------------

    def compute(
        self,
        destination: ptx.Operand,
        type_: str,
        function: Callable[..., Values],
        sources: Sequence[tuple[ptx.Operand, str]],
    ) -> Step:
        """Return the step that writes `function` of some operands.

        Args:
            destination: What is written.
            type_: The type that `function` returns values of: a new array, or a scalar where it
                is given nothing but scalars.
            function: Of one array (or scalar) a source.
            sources: The operands, each with the type to read it as.
        """
        write = self.write(destination, type_)
        readers = [self.read(operand, kind) for operand, kind in sources]
        if not any(isinstance(operand, (ptx.Register, ptx.Negated)) for operand, _ in sources):
            return self._compute_constant(write, TYPES[type_], function, readers)
        if len(readers) == 1:
            (only,) = readers
            return lambda machine: write(machine, function(only(machine)))
        if len(readers) == 2:
            first, second = readers
            return lambda machine: write(machine, function(first(machine), second(machine)))
        if len(readers) == 3:
            first, second, third = readers
            return lambda machine: write(
                machine, function(first(machine), second(machine), third(machine))
            )
        return lambda machine: write(machine, function(*(reader(machine) for reader in readers)))

    def _compute_constant(
        self,
        write: Writer,
        kind: Type,
        function: Callable[..., Values],
        readers: Sequence[Reader],
    ) -> Step:
        """Return the step for operands that may all be scalars."""

        def step(machine: Machine) -> None:
            value = function(*(reader(machine) for reader in readers))
            shape = (machine.threads,) if kind.count == 1 else (machine.threads, kind.count)
            write(machine, np.array(np.broadcast_to(value, shape)))

        return step

    # --- addresses -------------------------------------------------------------------------------

    def variable(self, symbol: ptx.Symbol) -> Variable:
        """Return where a variable lies."""
        found = self.variables.get(symbol.name)
        if found is None:
            raise CompilerBug(f"PTX names `{symbol.name}`, which it does not declare")
        return found

    def address(self, operand: ptx.Operand) -> Callable[[Machine], NDArray[np.uint64]]:
        """Return what reads the address `[base+offset]` for all threads, as uint64."""
        if not isinstance(operand, ptx.Address):
            raise self._bad(operand)
        base, offset = operand.base, np.uint64(operand.offset & (1 << 64) - 1)
        if not isinstance(base, ptx.Register):
            start = base.value if isinstance(base, ptx.Immediate) else self.variable(base).address
            fixed = np.uint64(start + operand.offset)
            return lambda machine: np.full(machine.threads, fixed)
        slot = self.slot(base)
        if self.registers[slot] != np.uint64:
            return lambda machine: machine.regs[slot].astype(np.uint64) + offset
        if operand.offset == 0:
            return lambda machine: machine.regs[slot]
        return lambda machine: machine.regs[slot] + offset

    def _bad(self, operand: ptx.Operand) -> CompilerBug:
        return CompilerBug(
            f"the PTX emulator does not know `{self.instruction.text}`: operand {operand}"
        )


def _read_special(name: str, kind: Type) -> Reader:
    """Return what reads a special register; `Machine.special` says which there are."""
    element = kind.element

    def read(machine: Machine) -> Values:
        values = machine.special(name)
        return values if values.dtype == element else values.astype(element)

    return read
