"""Matrices between shared memory and the lanes of a warp: ldmatrix, stmatrix, movmatrix.

A matrix has 8 rows of 16 bytes in shared memory, each at an address that one lane gives: lanes 0
to 7 for the first matrix, 8 to 15 for the second, and so on (m16n16 has 16 rows, so half as many
matrices). In registers a lane holds 4 bytes of row lane / 4; with `.trans`, of that column. All
forms:

    m8n8 .b16                 8 rows of 8 elements
    m8n16 .b8x16.FORMAT       8 rows of 16 packed elements, each unpacked to a byte
    m16n16 .trans .b8         16 rows of 16 bytes, transposed; two registers a matrix
    m16n16 .trans .b8x16.FORMAT
    stmatrix m16n8 .trans .b8 a lane's bytes are those that it holds of an accumulator: two columns
                              of row lane / 4 and of the row 8 below; memory has a row a column

The formats `b4x16_p64` and `b6x16_p32` are 16 elements of 4 (6) bits in the low bytes of a row,
each put into the low bits of a byte.

Source: PTX ISA 9.7.14.5.15 to 9.7.14.5.17.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.program import InstructionClass
from tiledsl.targets.nvptx.emulator import text as ptx
from tiledsl.targets.nvptx.emulator.convergence import collective
from tiledsl.targets.nvptx.emulator.opcodes import Ending, Opcode, Options, Table, unknown
from tiledsl.targets.nvptx.emulator.operands import Context
from tiledsl.targets.nvptx.emulator.shared_access import is_generic, offsets
from tiledsl.targets.nvptx.emulator.warps import Outputs, Warps, inputs

if TYPE_CHECKING:
    from tiledsl.targets.nvptx.emulator.machine import Machine

Array = NDArray[Any]
_ROW_BYTES = 16


# --- between rows and registers ------------------------------------------------------------------
#
# Rows are (warps, matrices, rows, 16) bytes, registers are (registers, warps, 32) words.


def registers_of_rows(rows: Array) -> Array:
    """Give each lane 4 bytes of row lane / 4 of each matrix of 8 rows."""
    warps, matrices = rows.shape[:2]
    words = np.ascontiguousarray(rows).view(np.uint32)
    return words.reshape(warps, matrices, 32).transpose(1, 0, 2)


def rows_of_registers(registers: Array) -> Array:
    """Undo `registers_of_rows`."""
    matrices, warps, _ = registers.shape
    words = np.ascontiguousarray(registers.transpose(1, 0, 2))
    return words.view(np.uint8).reshape(warps, matrices, 8, _ROW_BYTES)


def transpose_halves(rows: Array) -> Array:
    """Transpose matrices of 8 x 8 elements of two bytes."""
    elements = np.ascontiguousarray(rows).view(np.uint16)
    turned = np.ascontiguousarray(elements.swapaxes(-1, -2))
    return turned.view(np.uint8)


def registers_of_square(rows: Array) -> Array:
    """Transpose matrices of 16 x 16 bytes; rows 0 to 7 go to one register, 8 to 15 to the next."""
    warps, matrices = rows.shape[:2]
    turned = np.ascontiguousarray(rows.swapaxes(-1, -2))
    return registers_of_rows(turned.reshape(warps, 2 * matrices, 8, _ROW_BYTES))


def rows_of_tall(registers: Array) -> Array:
    """Give rows of 16 bytes, one a column, of matrices of 16 x 8 bytes held as accumulators are."""
    matrices, warps, _ = registers.shape
    words = np.ascontiguousarray(registers)
    # (matrix, warp, group of lanes, lane in it, the row or 8 below, which column of two)
    bytes_ = words.view(np.uint8).reshape(matrices, warps, 8, 4, 2, 2)
    columns = bytes_.transpose(1, 0, 3, 5, 4, 2)
    return np.ascontiguousarray(columns).reshape(warps, matrices, 8, _ROW_BYTES)


def unpack(rows: Array, bits: int) -> Array:
    """Put each of a row's 16 elements of some bits into a byte of its own."""
    flat = np.unpackbits(rows, axis=-1, bitorder="little")[..., : 16 * bits]
    elements = flat.reshape(*rows.shape[:-1], 16, bits)
    return np.packbits(elements, axis=-1, bitorder="little")[..., 0]


# --- ldmatrix ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Form:
    """One shape of matrix.

    Attributes:
        rows: Rows of a matrix in memory.
        arrange: Rows, of bytes, to registers.
    """

    rows: int
    arrange: Callable[[Array], Array]


_LOADS: Mapping[tuple[str, bool, str], _Form] = {
    ("m8n8", False, "b16"): _Form(8, registers_of_rows),
    ("m8n8", True, "b16"): _Form(8, lambda rows: registers_of_rows(transpose_halves(rows))),
    ("m8n16", False, "b4x16_p64"): _Form(8, lambda rows: registers_of_rows(unpack(rows, 4))),
    ("m8n16", False, "b6x16_p32"): _Form(8, lambda rows: registers_of_rows(unpack(rows, 6))),
    ("m16n16", True, "b8"): _Form(16, registers_of_square),
    ("m16n16", True, "b4x16_p64"): _Form(16, lambda rows: registers_of_square(unpack(rows, 4))),
    ("m16n16", True, "b6x16_p32"): _Form(16, lambda rows: registers_of_square(unpack(rows, 6))),
}
"""By shape, whether `.trans`, and the last modifier."""

_STORES: Mapping[tuple[str, bool, str], _Form] = {
    ("m8n8", False, "b16"): _Form(8, rows_of_registers),
    ("m8n8", True, "b16"): _Form(8, lambda words: transpose_halves(rows_of_registers(words))),
    ("m16n8", True, "b8"): _Form(8, rows_of_tall),
}
_COUNTS = {"x1": 1, "x2": 2, "x4": 4}


def _form(
    instruction: ptx.Parsed, forms: Mapping[tuple[str, bool, str], _Form]
) -> tuple[_Form, int]:
    """Return the form of an instruction and how many matrices it moves."""
    options = Options(instruction)
    options.ignore("sync", "aligned", "shared", "shared::cta", "b8x16")
    count = _COUNTS[options.choice(_COUNTS)]
    shape, trans = options.choice({"m8n8", "m8n16", "m16n16", "m16n8"}), options.flag("trans")
    last = options.choice({"b16", "b8", "b4x16_p64", "b6x16_p32"})
    options.done()
    form = forms.get((shape, trans, last))
    if form is None or form.rows * count > 32:
        raise unknown(instruction)
    return form, count


def _decode_load(instruction: ptx.Parsed, context: Context) -> Ending:
    form, count = _form(instruction, _LOADS)
    target, source = instruction.operands
    output = Outputs(context, target, "b32")
    address = offsets(context, source, generic=is_generic(instruction))
    context.note_shared(_ROW_BYTES)
    given, here = form.rows * count, context.instruction

    def step(machine: Machine) -> None:
        warps = Warps(machine).whole(here)
        lanes = warps.threads[:, :given].reshape(-1)
        access = machine.access(here, lanes)
        where = address(machine)[lanes]
        words = machine.shared.load(access, where, 4, 4, align=_ROW_BYTES)
        counters = machine.cohort.counters
        if counters is not None:
            counters.shared_access(here.index, where, _ROW_BYTES, lanes)
        rows = words.view(np.uint8).reshape(len(warps), count, form.rows, _ROW_BYTES)
        output.put(warps, form.arrange(rows))

    return collective(step)


def _decode_store(instruction: ptx.Parsed, context: Context) -> Ending:
    form, count = _form(instruction, _STORES)
    target, source = instruction.operands
    readers = context.read_all(source, "b32")
    address = offsets(context, target, generic=is_generic(instruction))
    context.note_shared(_ROW_BYTES)
    given, here = form.rows * count, context.instruction

    def step(machine: Machine) -> None:
        warps = Warps(machine).whole(here)
        lanes = warps.threads[:, :given].reshape(-1)
        where = address(machine)[lanes]
        rows = form.arrange(np.stack(inputs(warps, readers)))
        words = np.ascontiguousarray(rows).view(np.uint32).reshape(-1, 4)
        machine.shared.store(machine.access(here, lanes), where, words, 4, 4, align=_ROW_BYTES)
        counters = machine.cohort.counters
        if counters is not None:
            counters.shared_access(here.index, where, _ROW_BYTES, lanes, write=True)

    return collective(step)


def _decode_move(instruction: ptx.Parsed, context: Context) -> Ending:
    options = Options(instruction)
    options.ignore("sync", "aligned")
    if not (options.flag("m8n8") and options.flag("trans") and options.flag("b16")):
        raise unknown(instruction)
    options.done()
    target, source = instruction.operands
    output, reader = Outputs(context, target, "b32"), context.read(source, "b32")
    here = context.instruction

    def step(machine: Machine) -> None:
        warps = Warps(machine).whole(here)
        rows = rows_of_registers(warps.rows(reader(machine))[None])
        output.put(warps, registers_of_rows(transpose_halves(rows)))

    return collective(step)


TABLE: Table = {
    "ldmatrix.sync": Opcode(_decode_load, InstructionClass.SHARED),
    "stmatrix.sync": Opcode(_decode_store, InstructionClass.SHARED),
    "movmatrix.sync": Opcode(_decode_move, InstructionClass.EXCHANGE),
}
