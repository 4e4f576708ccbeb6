r"""PTX taken apart: what `parse` makes of a text and `decode` gives meaning to.

    @%p1 st.global.b32 [%rd1+8], %r1;
is
    Parsed(opcode="st.global.b32", guard=Guard(Register("%p1", "pred"), False), operands=(
        Address(Register("%rd1", "b64"), 8), Register("%r1", "b32")), ...)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

# --- operands ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Register:
    """A declared register: its unique name and the type it was declared with, as "b32"."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Special:
    """A special register, as "%tid.x"."""

    name: str


@dataclass(frozen=True, slots=True)
class Immediate:
    """A constant: an integer, or a float's bits where `type` is "f32" or "f64"."""

    value: int
    type: str = "int"


@dataclass(frozen=True, slots=True)
class Symbol:
    """The name of a variable, a parameter, a function or a label."""

    name: str


@dataclass(frozen=True, slots=True)
class Sink:
    """`_`: a result that nobody wants."""


@dataclass(frozen=True, slots=True)
class Vector:
    """`{a, b}`, or the `(a, b)` of a call."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """`a|b`: two results."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Negated:
    """`!p`."""

    operand: Operand


@dataclass(frozen=True, slots=True)
class Address:
    """`[base+offset]`; of a tensor copy `[base, {coordinates}]`."""

    base: Register | Symbol | Immediate
    offset: int = 0
    coordinates: Vector | None = None


Operand = Register | Special | Immediate | Symbol | Sink | Vector | Pair | Negated | Address


# --- statements ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Guard:
    """`@p` or `@!p` before an instruction."""

    register: Register
    negated: bool


@dataclass(frozen=True, slots=True)
class Parsed:
    """One instruction.

    Attributes:
        opcode: With all its modifiers, as "add.rn.ftz.f32".
        operands: In the order of the text.
        guard: The predicate that it is under.
        text: As it stands, on one line.
        line: Index of the text's line where it begins.
    """

    opcode: str
    operands: tuple[Operand, ...]
    guard: Guard | None
    text: str
    line: int

    @property
    def stem(self) -> str:
        """What comes before the first dot."""
        return self.opcode.split(".", 1)[0]

    @property
    def modifiers(self) -> list[str]:
        """What comes after it, apart."""
        return self.opcode.split(".")[1:]


@dataclass(frozen=True, slots=True)
class Label:
    """A place that branches name."""

    name: str


@dataclass(frozen=True)
class Variable:
    """A variable of the module or of a kernel.

    Attributes:
        name: Unique in its module.
        space: "global", "const", "shared", "local" or "param".
        size: Bytes; 0 for an array whose size the launch gives.
        alignment: Bytes.
        element: Bytes of one element.
        initial: Its elements: integers, or the (name, offset) of a variable whose address it holds.
    """

    name: str
    space: str
    size: int
    alignment: int
    element: int
    initial: tuple[int | tuple[str, int], ...] = ()


@dataclass
class Function:
    """One kernel.

    Attributes:
        name: Its symbol.
        parameters: In order; a `Variable` of space "param" each.
        body: Labels and instructions.
        variables: What it declares inside: "local", "shared" and the "param" of its calls.
        tables: What each `.branchtargets` label lists.
        directives: What stands between parameters and body, as "reqntid": (128,).
    """

    name: str
    parameters: Sequence[Variable]
    body: list[Label | Parsed] = field(default_factory=list["Label | Parsed"])
    variables: list[Variable] = field(default_factory=list[Variable])
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict[str, "tuple[str, ...]"])
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict[str, "tuple[int, ...]"])


@dataclass
class Module:
    """What a text holds: its variables, and its kernels by name."""

    variables: list[Variable] = field(default_factory=list[Variable])
    kernels: dict[str, Function] = field(default_factory=dict[str, Function])


WIDTHS = {
    "pred": 1,
    **{f"{kind}{bits}": bits for kind in "bus" for bits in (8, 16, 32, 64)},
    "b128": 128,
    "f16": 16,
    "f16x2": 32,
    "bf16": 16,
    "bf16x2": 32,
    "f32": 32,
    "f64": 64,
}
"""Bits of a register or a variable's element of each type."""
