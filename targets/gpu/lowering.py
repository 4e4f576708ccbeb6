"""The state of lowering one kernel, and the few operations that every topic's handlers share.

A *handler* lowers one op: it reads lowered operands (`value`, `pointers`), builds the thread's code
and defines what the op's results are now (`define`). Handlers are found by the op's name in the
table that the `Lowering` is made with; the modules by topic (`elementwise`, `memory`) hold them.

A lowered value is a scalar, a vector of registers, or `Pointers`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

from mlir import ir

from tiledsl.dialects.diagnostics import CompilerBug, KernelError, Span
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.types import element_of, is_tile, pointee
from tiledsl.targets.gpu import emit
from tiledsl.targets.gpu.line_locations import line_location
from tiledsl.targets.gpu.machine import Kernel, Machine
from tiledsl.targets.gpu.place import Place
from tiledsl.targets.gpu.pointers import (
    Form,
    Pointers,
    Term,
    forms,
    is_pointer_tile,
    is_pointers,
    plain,
)
from tiledsl.targets.gpu.types import Types, in_memory
from tiledsl.transforms.axis_facts import AxisFacts

Handler = Callable[["Lowering", Any], None]


class Role(Enum):
    """What warps execute the ops that are being lowered."""

    ALL = "all"
    PRODUCER = "those that copy boxes for the others"
    CONSUMER = "those that hold tiles"


class Lowering:
    """One kernel on its way to a thread's code.

    Args:
        machine: What it is lowered for.
        kernel: Its name and sizes.
        op: The `func.func` at the `tgpu` level.
        types: The module's types.
        combines: The module's functions over scalars, by name.
        handlers: How each op is lowered, by its name or, failing that, its dialect's.
    """

    def __init__(
        self,
        machine: Machine,
        kernel: Kernel,
        op: ir.OpView,
        types: Types,
        combines: Mapping[str, ir.OpView],
        handlers: Mapping[str, Handler],
    ) -> None:
        self.machine = machine
        self.kernel = kernel
        self.types = types
        self.combines = combines
        self.facts = AxisFacts(op)
        self.place = Place(machine, kernel.threads + kernel.more_threads)
        self._handlers = handlers
        self._forms = forms(op)
        self._values: dict[ir.Value, ir.Value | Pointers] = {}
        self._terms: dict[ir.Value, Term] = {}
        self._at_entry: dict[str, ir.Value] = {}
        self._width: int | None = None
        self.function = op
        self.role = Role.ALL
        self._apart = False

    # Values.

    def value(self, old: ir.Value) -> ir.Value:
        """Return what a scalar or tile is now; a tile of pointers as full addresses."""
        found = self._values[old]
        if is_pointers(found):
            (addresses,) = found.to(Form.SEPARATE).terms
            return addresses.whole()
        return plain(found)

    def pointers(self, old: ir.Value) -> Pointers:
        """Return what a tile of pointers, or a scalar pointer as a tile of one, is now."""
        found = self._values[old]
        if is_pointers(found):
            return found
        return Pointers(Form.UNIFORM, plain(found), [], in_memory(pointee(old.type)), 1)

    def lowered(self, old: ir.Value) -> ir.Value | Pointers:
        """Return what a value is now, in whatever form."""
        return self._values[old]

    def define(self, old: ir.Value, new: ir.Value | Pointers) -> None:
        """Say what a value is now; vectors of addresses and pointers come to the form decided."""
        if is_pointer_tile(old.type):
            if not is_pointers(new):
                addresses = plain(new)
                count = emit.registers_of(addresses)
                element = in_memory(pointee(old.type))
                new = Pointers(Form.SEPARATE, None, [Term(addresses)], element, count)
            new = new.to(self._forms[old])
        self._values[old] = new

    def term(self, old: ir.Value) -> Term:
        """Return a tile's registers, those known to be alike as one."""
        return self._terms.get(old) or Term(self.value(old))

    def remember(self, old: ir.Value, term: Term) -> None:
        """Say which registers of a tile are alike."""
        self._terms[old] = term

    def form(self, old: ir.Value) -> Form:
        """Return the form decided for a tile of pointers."""
        return self._forms[old]

    def layout(self, old: ir.Value) -> LinearLayout:
        """Return a tile's layout."""
        return self.types.layout(old.type)

    def type_of(self, old: ir.Value) -> ir.Type:
        """Return what type an op's result has now; within `on_vectors` scalars are vectors."""
        type_ = self.types.of(old.type)
        if self._width is None or isinstance(type_, ir.VectorType):
            return type_
        return emit.vector_of(self._width, type_)

    @contextmanager
    def on_vectors(self, registers: int) -> Generator[None]:
        """Lower scalar ops as ops on vectors of so many registers."""
        self._width = registers
        yield
        self._width = None

    @contextmanager
    def apart(self) -> Generator[None]:
        """Lower control flow in which each thread goes its own way."""
        before, self._apart = self._apart, True
        yield
        self._apart = before

    def decision(self, old: ir.Value) -> ir.Value:
        """Return what a loop or branch depends on, known to be the same in all threads if it is."""
        value = self.value(old)
        return value if self._apart else self.machine.uniform(value)

    # Values that control flow carries.

    def parts(self, old: ir.Value, like: ir.Value | None = None) -> list[ir.Value]:
        """Return the values that make up `old`, in the form of `like` where it has one."""
        found = self._values[old]
        if is_pointers(found):
            return found.to(self._forms[old if like is None else like]).values()
        return [plain(found)]

    def bind(self, old: ir.Value, values: Iterator[ir.Value]) -> None:
        """Define `old` by as many of `values` as make it up."""
        if not is_pointer_tile(old.type):
            self._values[old] = next(values)
            return
        element = in_memory(pointee(old.type))
        self._values[old] = Pointers.of_values(
            self._forms[old], values, element, self.types.registers(old.type)
        )

    def part_types(self, old: ir.Value) -> list[ir.Type]:
        """Return the types of the values that make up `old`."""
        if not is_pointer_tile(old.type):
            return [self.types.of(old.type)]
        form = self._forms[old]
        term = emit.vector_of(self.types.registers(old.type), form.term_type)
        base = [emit.pointer_type(1)] if form.has_base else []
        return base + [term] * form.terms

    # Ops.

    def run(self, block: ir.Block) -> None:
        """Lower the ops of a block at the current insertion point."""
        for op in block.operations:
            self.lower(op)

    def lower(self, op: ir.OpView) -> None:
        """Lower one op.

        Raises:
            KernelError: The machine cannot do what the op says; it points at the op's expression.
        """
        name = op.operation.name
        handler = self._handlers.get(name) or self._handlers.get(name.partition(".")[0])
        if handler is None:
            raise CompilerBug(f"expected an op that GPUs lower, found {op}")
        try:
            with line_location(op.operation.location):
                handler(self, op)
        except KernelError as error:
            raise error.at(Span.of(op.operation.location)) from None

    def once(self, name: str, make: Callable[[], ir.Value]) -> ir.Value:
        """Return a value built once, at the kernel's entry."""
        if name not in self._at_entry:
            with self.place.at_entry():
                self._at_entry[name] = make()
        return self._at_entry[name]

    # Kinds of warps.

    @contextmanager
    def playing(self, role: Role) -> Generator[None]:
        """Lower what only some warps execute."""
        before, self.role = self.role, role
        yield
        self.role = before

    def meet(self, memory: str, *, proxy: bool, cluster: bool = False) -> None:
        """Build a barrier of all threads that execute this: see `Machine.barrier`."""
        if self.role is Role.PRODUCER:
            raise CompilerBug("expected no barrier in warps that copy boxes")
        if self.role is Role.CONSUMER and cluster:
            raise CompilerBug("expected no barrier of several blocks where not all threads come")
        threads = self.kernel.threads if self.role is Role.CONSUMER else None
        self.machine.barrier(memory, proxy=proxy, threads=threads, cluster=cluster)

    # Predicates.

    def acting(self, old: ir.Value) -> ir.Value | None:
        """Return whether this thread acts for its elements: one thread does for each element."""
        if is_tile(old.type):
            return self.place.holds_first(self.layout(old))
        return self.place.is_first(self.kernel.threads)


def element_type(old: ir.Value) -> ir.Type:
    """Return the element type of a tile or scalar, at the `tgpu` level."""
    return element_of(old.type)


def elements_of(lowered: Sequence[ir.Value]) -> list[list[ir.Value]]:
    """Return the registers of several vectors."""
    return [emit.elements(value) for value in lowered]
