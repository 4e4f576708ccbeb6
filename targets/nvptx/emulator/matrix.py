"""Matrix products of a warp: `mma.sync` of every type.

Registers become matrices by the PTX ISA's fragments (`fragments`), are multiplied for all warps of
the cohort at once as the chip's matrix unit does it (`tensor_core`), and become registers again.
What is fixed by the opcode is worked out when it is decoded.

    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {d}, {a}, {b}, {c};
             shape             layouts d   a   b   c types

Source: PTX ISA 9.7.14.5, "Warp-level matrix instructions using mma instruction".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator import formats
from tiledsl.targets.gpu.emulator.program import InstructionClass
from tiledsl.targets.nvptx.emulator import text as ptx
from tiledsl.targets.nvptx.emulator.convergence import collective
from tiledsl.targets.nvptx.emulator.fragments import (
    QUAD_LANES,
    QUADS,
    Fragment,
    accumulator,
    column_operand,
    join,
    quad_accumulator,
    quad_operand,
    row_operand,
    split,
)
from tiledsl.targets.nvptx.emulator.opcodes import Ending, Opcode, Options, Table, unknown
from tiledsl.targets.nvptx.emulator.operands import Context
from tiledsl.targets.nvptx.emulator.tensor_core import (
    FP8,
    OPERANDS,
    accumulation,
    encode,
    multiply_add,
    multiply_add_as_f16,
    multiply_add_f64,
    multiply_add_in_f32,
    multiply_integers,
    runs_as_f16,
)
from tiledsl.targets.nvptx.emulator.warps import Outputs, Warps, inputs

if TYPE_CHECKING:
    from tiledsl.targets.nvptx.emulator.machine import Machine

Array = NDArray[Any]
Product = Callable[[Array, Array, Array], Array]
"""(bits of a, bits of b, bits of c), all (rows, columns, warps), to the bits of d."""

INTEGERS = {"s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1}
"""Widths of the integer types."""
_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")


@dataclass(frozen=True)
class Signature:
    """What an opcode says.

    Attributes:
        shape: m, n and k.
        types: Of d, a, b and c.
        layouts: Of a and of b: "row" or "col".
        saturate: Whether integers saturate.
        bitwise: "and" or "xor" of single bits.
    """

    shape: tuple[int, int, int]
    types: tuple[str, str, str, str]
    layouts: tuple[str, str] = ("row", "col")
    saturate: bool = False
    bitwise: str = ""

    @property
    def quads(self) -> bool:
        """Whether it is the f16 form that multiplies four times a warp."""
        return self.shape == (8, 8, 4) and self.types[1] == "f16"

    @property
    def operand_bits(self) -> int:
        """Width of an element of a and b in registers."""
        name = self.types[1]
        return 64 if name == "f64" else INTEGERS.get(name) or OPERANDS[name].bits

    @property
    def flops(self) -> int:
        """Floating-point (or integer) operations of one warp."""
        m, n, k = self.shape
        return 2 * m * n * k * (QUADS if self.quads else 1)


# Depths of each operand type, by rows.
_DEPTHS = {
    (16, "f16"): (8, 16), (16, "bf16"): (8, 16), (16, "tf32"): (4, 8), (16, "f64"): (4, 8, 16),
    **{(16, name): (16, 32) for name in ("e4m3", "e5m2")},
    **{(16, name): (32,) for name in ("e3m2", "e2m3", "e2m1")},
    **{(16, name): (16, 32) for name in ("s8", "u8")},
    **{(16, name): (32, 64) for name in ("s4", "u4")},
    (16, "b1"): (128, 256), (8, "f16"): (4,), (8, "f64"): (4,), (8, "s8"): (16,), (8, "u8"): (16,),
    (8, "s4"): (32,), (8, "u4"): (32,), (8, "b1"): (128,),
}  # fmt: skip


def _results(operand: str) -> tuple[str, ...]:
    if operand in INTEGERS:
        return ("s32",)
    if operand == "f64":
        return ("f64",)
    return ("f32", "f16") if operand == "f16" or operand in FP8 else ("f32",)


def _alike(a: str, b: str) -> bool:
    """Say whether the types of a and b may differ as they do."""
    both = {a, b}
    return a == b or both <= FP8 or both == {"s8", "u8"} or both == {"s4", "u4"}


def signature(instruction: ptx.Parsed) -> Signature:
    """Read an `mma` opcode.

    Raises:
        CompilerBug: There is no such instruction.
    """
    options = Options(instruction)
    options.ignore("sync", "aligned", "kind::f8f6f4")
    shape = next((m for m in map(_SHAPE.fullmatch, instruction.modifiers) if m), None)
    if shape is None:
        raise unknown(instruction, "no shape")
    options.flag(shape[0])
    m, n, k = (int(one) for one in shape.groups())
    layouts = options.choice({"row", "col"}), options.choice({"row", "col"})
    saturate = options.flag("satfinite")
    options.flag("popc")
    bitwise = options.choice({"and", "xor"}, "")
    c, b, a, d = (options.last(_TYPES) for _ in range(4))
    options.done()
    found = Signature((m, n, k), (d, a, b, c), layouts, saturate, bitwise)
    known = (
        n == 8
        and k in _DEPTHS.get((m, a), ())
        and _alike(a, b)
        and d in _results(a)
        and (c == d or (found.quads and (d, c) == ("f32", "f16")))
        and (layouts == ("row", "col") or found.quads)
        and (not saturate or (a in INTEGERS and a != "b1"))
        and (a == "b1") == bool(bitwise)
    )
    if not known:
        raise unknown(instruction)
    return found


_TYPES = frozenset({"f64", "f32", "s32", *INTEGERS, *OPERANDS})


@dataclass(frozen=True)
class _Fragments:
    a: Fragment
    b: Fragment
    c: Fragment
    d: Fragment


def fragments_of(what: Signature) -> _Fragments:
    """Return where a signature's matrices lie."""
    m, n, k = what.shape
    pair = {"f16": 2}
    d, c = (pair.get(what.types[i], 1) for i in (0, 3))
    if what.quads:
        a = quad_operand(what.layouts[0] == "row", False)
        b = quad_operand(what.layouts[1] == "col", True)
        return _Fragments(a, b, quad_accumulator(c), quad_accumulator(d))
    per = max(1, 32 // what.operand_bits)
    return _Fragments(
        row_operand(m, k, per), column_operand(k, per), accumulator(m, n, c), accumulator(m, n, d)
    )


# --- products ------------------------------------------------------------------------------------


def product_of(
    types: tuple[str, str, str, str], chip: int, *, warpgroup: bool = False, quads: bool = False
) -> Product:
    """Return the product of floating-point types other than f64, on bits.

    Args:
        types: Of d, a, b and c.
        chip: Major times ten plus minor.
        warpgroup: Whether it is `wgmma`'s.
        quads: Whether it is the f16 form that multiplies four times a warp.
    """
    left, right = OPERANDS[types[1]], OPERANDS[types[2]]
    how = accumulation(chip, types[1], warpgroup=warpgroup)
    half = types[0] == "f16"
    addend = formats.F16 if types[3] == "f16" else formats.F32
    least = left.least, right.least

    def product(a: Array, b: Array, c: Array) -> Array:
        operands = left.decode(a), right.decode(b), addend.decode(c)
        if quads:
            return encode(multiply_add_in_f32(*operands, half), half)
        if not warpgroup and runs_as_f16(chip, types[1]):
            return encode(multiply_add_as_f16(*operands, half), half)
        return encode(multiply_add(*operands, least, how, half), half)

    return product


def _product_f64(a: Array, b: Array, c: Array) -> Array:
    views = (np.ascontiguousarray(one).view(np.float64) for one in (a, b, c))
    return multiply_add_f64(*views).view(np.uint64)


def integers(bits: Array, name: str) -> Array:
    """Return the values of integer elements."""
    if name == "s8":
        return np.ascontiguousarray(bits).view(np.int8)
    if name == "s4":
        return ((bits ^ 8).astype(np.int8) - np.int8(8)).astype(np.int8)
    return bits


def product_of_integers(what: Signature) -> Product:
    """Return the product of integer types, on bits."""

    def product(a: Array, b: Array, c: Array) -> Array:
        left, right = integers(a, what.types[1]), integers(b, what.types[2])
        addend = np.ascontiguousarray(c).view(np.int32)
        if what.bitwise == "xor":  # ones(a ^ b) = ones(a) + ones(b) - 2 ones(a & b)
            ones = left.sum(1, dtype=np.int64)[:, None] + right.sum(0, dtype=np.int64)
            both = multiply_integers(left, right, np.zeros_like(addend), False)
            return (ones - 2 * both + addend).astype(np.int32).view(np.uint32)
        return multiply_integers(left, right, addend, what.saturate).view(np.uint32)

    return product


def _product(what: Signature, chip: int) -> Product:
    if what.types[1] in INTEGERS:
        return product_of_integers(what)
    if what.types[1] == "f64":
        return _product_f64
    return product_of(what.types, chip, quads=what.quads)


# --- decoding ------------------------------------------------------------------------------------


def _apart(words: list[Array], quads: bool) -> list[Array]:
    """Take the lanes of the four products of a warp apart, as warps of their own."""
    if not quads:
        return words
    return [word[:, QUAD_LANES].reshape(-1, 8) for word in words]


def _together(registers: Array, quads: bool) -> Array:
    """Undo `_apart` on (registers, products, 8)."""
    if not quads:
        return registers
    count, products, _ = registers.shape
    warps = np.empty((count, products // QUADS, 32), registers.dtype)
    warps[:, :, QUAD_LANES] = registers.reshape(count, -1, QUADS, 8)
    return warps


def _decode(instruction: ptx.Parsed, context: Context) -> Ending:
    what = signature(instruction)
    place = fragments_of(what)
    d, a, b, c = instruction.operands
    word = "b64" if what.types[0] == "f64" else "b32"
    output = Outputs(context, d, word)
    readers = [context.read_all(operand, word) for operand in (a, b, c)]
    wanted = [one.registers for one in (place.a, place.b, place.c)]
    if [len(one) for one in readers] != wanted or len(output) != place.d.registers:
        raise unknown(instruction, "a wrong number of registers")
    widths = (what.operand_bits, what.operand_bits, _result_bits(what.types[3]))
    fragments = (place.a, place.b, place.c)
    product = _product(what, context.chip.number)
    held = np.uint64 if word == "b64" else np.uint32
    here, quads = context.instruction, what.quads

    def step(machine: Machine) -> None:
        warps = Warps(machine).whole(here)
        matrices = (
            fragment.gather(split(_apart(inputs(warps, registers), quads), bits))
            for fragment, registers, bits in zip(fragments, readers, widths, strict=True)
        )
        registers = join(place.d.scatter(product(*matrices)), held)
        output.put(warps, _together(registers, quads))
        counters = machine.cohort.counters
        if counters is not None:
            counters.matrix(here.index, len(warps), what.flops)

    return collective(step)


def _result_bits(type_: str) -> int:
    return {"f16": 16, "f64": 64}.get(type_, 32)


TABLE: Table = {"mma.sync": Opcode(_decode, InstructionClass.MATRIX)}
