"""Matrix products of a warpgroup: wgmma.mma_async, fence, commit_group and wait_group.

Each warp of the group computes 16 of the 64 rows, so the instruction is executed by warps like any
other; the matrices in shared memory that several warps name are read once.

    wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {d}, a-desc, b-desc, p, 1, 1, 0, 0;
    wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {d}, {a}, b-desc, p, 1, 1, 0;

The product is computed at the issue. What "asynchronous" forbids is looked after until the wait:
the registers are in flight (`in_flight`), shared memory counts as being read, plain writes to it
must have been fenced for the asynchronous proxy (`async_proxy`), and a `wgmma.fence` must come
before the first product after registers may have been touched.

Source: PTX ISA 9.7.15, "Asynchronous Warpgroup Level Matrix Instructions".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.findings import Kind
from tiledsl.targets.gpu.emulator.pending import Pending
from tiledsl.targets.gpu.emulator.program import Instruction, InstructionClass
from tiledsl.targets.nvptx.chips import WARP_SIZE
from tiledsl.targets.nvptx.emulator import text as ptx
from tiledsl.targets.nvptx.emulator.async_proxy import AsyncProxy
from tiledsl.targets.nvptx.emulator.convergence import collective
from tiledsl.targets.nvptx.emulator.fragments import accumulator, join, row_operand, split
from tiledsl.targets.nvptx.emulator.in_flight import InFlight
from tiledsl.targets.nvptx.emulator.matrix import (
    INTEGERS,
    Signature,
    product_of,
    product_of_integers,
)
from tiledsl.targets.nvptx.emulator.matrix_descriptors import UNIT, read_descriptors
from tiledsl.targets.nvptx.emulator.opcodes import Ending, Opcode, Options, Table, unknown
from tiledsl.targets.nvptx.emulator.operands import Context, Reader
from tiledsl.targets.nvptx.emulator.tensor_core import FP8, OPERANDS
from tiledsl.targets.nvptx.emulator.warps import Outputs, Warps, inputs

if TYPE_CHECKING:
    from tiledsl.targets.nvptx.emulator.machine import Machine

Array = NDArray[Any]
_WARPS = 4
_ROWS = 16
_K_BYTES = 32
_SHAPE = re.compile(r"m64n(\d+)k(\d+)")
_TYPES = frozenset({"f32", "f16", "s32", *INTEGERS, *OPERANDS}) - {"s4", "u4"}


class Warpgroups:
    """The products under way of a machine's warps: a part of it."""

    def __init__(self, machine: Machine) -> None:
        warps = machine.threads // WARP_SIZE
        self.pending = Pending(warps)
        self.fenced: NDArray[np.bool_] = np.zeros(warps, np.bool_)
        """Which warps have executed a fence since they may have touched registers."""


# --- operands in shared memory -------------------------------------------------------------------


@dataclass(frozen=True)
class _Shared:
    """A matrix operand that a descriptor names.

    Attributes:
        read: Reads the descriptor.
        bits: Width of an element.
        major: Whether k is contiguous.
        rows: Rows of one warp's part: 16 of A; of B its columns.
        by_warp: Whether each warp reads a part of its own.
    """

    read: Reader
    bits: int
    major: bool
    rows: int
    by_warp: bool

    def load(self, warps: Warps, here: Instruction, begun: list[_Reading]) -> Array:
        """Return the elements' bits, (rows, k, warps), and note in `begun` what is being read."""
        machine = warps.machine
        bits = _uniform(warps, warps.rows(self.read(machine)), here)
        block = machine.cohort.block_of[warps.index * WARP_SIZE]
        inside = warps.index % machine.cohort.warps  # warpgroups are counted in each block
        part = inside % _WARPS if self.by_warp else np.zeros_like(warps.index)
        keys = np.stack((block.astype(np.uint64), bits, part.astype(np.uint64)))
        _, first, which = np.unique(keys, axis=1, return_index=True, return_inverse=True)
        offsets = self._units(bits[first], part[first])
        lanes = self._readers(warps, which, offsets.shape)
        values = _begin_read(machine, here, lanes, offsets.reshape(-1), begun)
        elements = values.reshape(*offsets.shape, 4).view(self._element)
        return np.ascontiguousarray(self._matrix(elements, offsets.shape).take(which, axis=2))

    @property
    def _element(self) -> Any:
        return np.dtype(f"u{max(self.bits // 8, 1)}")

    def _units(self, bits: NDArray[np.uint64], part: NDArray[np.intp]) -> NDArray[np.int64]:
        descriptors = read_descriptors(bits)
        first = part * self.rows
        if self.major:
            return descriptors.rows(first, self.rows)
        per = UNIT * 8 // self.bits
        depth = _K_BYTES * 8 // self.bits
        return descriptors.columns(depth, first // per, self.rows // per)

    def _matrix(self, elements: Array, shape: tuple[int, ...]) -> Array:
        """Return (rows, k, matrices) of units, (matrices, outer, inner, elements a unit)."""
        matrices, outer = shape[:2]
        flat = elements.reshape(matrices, outer, -1)
        if self.bits < 8:
            flat = (flat[..., None] >> np.arange(8, dtype=np.uint8) & 1).reshape(
                matrices, outer, -1
            )
        return flat.transpose(1, 2, 0) if self.major else flat.transpose(2, 1, 0)

    def _readers(
        self, warps: Warps, which: NDArray[np.intp], shape: tuple[int, ...]
    ) -> NDArray[np.intp]:
        """Return a thread for each unit: of a warp that reads it, taking turns by 8 rows."""
        lanes = np.empty(shape, np.intp)
        turn = np.arange(shape[1]) // 8
        for matrix in range(shape[0]):
            members = warps.index[which == matrix]
            lanes[matrix] = (members[turn % len(members)] * WARP_SIZE)[:, None]
        return lanes.reshape(-1)


def _uniform(warps: Warps, bits: Array, here: Instruction) -> NDArray[np.uint64]:
    """Return each warp's descriptor, which all its lanes must agree on."""
    first = bits[:, 0]
    different = bits != first[:, None]
    if different.any():
        access = warps.machine.access(here, warps.threads.reshape(-1))
        access.report(
            Kind.UNDEFINED, different.reshape(-1), lambda at: "lanes give different descriptors"
        )
    return first


@dataclass(frozen=True)
class _Reading:
    """Shared memory that is being read, by what and by which warp each part."""

    here: Instruction
    granules: Array
    warp: NDArray[np.intp]

    def end(self, machine: Machine, warps: NDArray[np.intp]) -> None:
        """End the reading of some warps."""
        done = np.isin(self.warp, warps)
        machine.shared.end_read(self.here, self.warp[done], self.granules[done])


def _begin_read(
    machine: Machine,
    here: Instruction,
    lanes: NDArray[np.intp],
    offsets: NDArray[np.int64],
    begun: list[_Reading],
) -> Array:
    """Begin reading units; returns their words, (units, 4)."""
    access = machine.access(here, lanes)
    inside = (offsets >= 0) & (offsets <= machine.shared.size - UNIT)
    granules = machine.shared.begin_read(access, offsets, UNIT)
    machine.part(AsyncProxy).check(access, granules)
    begun.append(_Reading(here, granules, lanes // WARP_SIZE))
    words = machine.shared.peek(lanes, np.where(inside, offsets, 0), 4, 4)
    words[~inside] = 0
    return words


# --- decoding ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Form:
    """What an opcode and its operands say.

    Attributes:
        what: Types and shape, of the 16 rows of one warp.
        signs: Whether A and B are negated.
        columns: Whether A and B are MN-major.
    """

    what: Signature
    signs: tuple[bool, bool]
    columns: tuple[bool, bool]


def _immediate(instruction: ptx.Parsed, operand: ptx.Operand, allowed: set[int]) -> int:
    if not isinstance(operand, ptx.Immediate) or operand.value not in allowed:
        raise unknown(instruction, f"expected one of {sorted(allowed)}")
    return operand.value


def _signature(instruction: ptx.Parsed) -> Signature:
    options = Options(instruction)
    options.ignore("mma_async", "sync", "aligned", "popc")
    shape = next((m for m in map(_SHAPE.fullmatch, instruction.modifiers) if m), None)
    if shape is None:
        raise unknown(instruction, "no shape")
    options.flag(shape[0])
    n, k = int(shape[1]), int(shape[2])
    saturate, bitwise = options.flag("satfinite"), options.choice({"and"}, "")
    b, a, d = (options.last(_TYPES) for _ in range(3))
    options.done()
    what = Signature((_ROWS, n, k), (d, a, b, d), ("row", "col"), saturate, bitwise)
    floats = {"f16": {"f16", "f32"}, "bf16": {"f32"}, "tf32": {"f32"}}
    results = {"s32"} if a in INTEGERS else floats.get(a, {"f16", "f32"})
    alike = a == b or {a, b} <= FP8 or {a, b} == {"s8", "u8"}
    fits = k * what.operand_bits == _K_BYTES * 8 and n % 8 == 0 and 8 <= n <= 256
    if not (fits and alike and d in results and (a == "b1") == bool(bitwise)):
        raise unknown(instruction)
    return what


def _form(instruction: ptx.Parsed, from_registers: bool) -> _Form:
    what = _signature(instruction)
    rest = instruction.operands[4:]
    if what.types[1] in INTEGERS:
        if rest:
            raise unknown(instruction)
        return _Form(what, (False, False), (False, False))
    signs = [_immediate(instruction, one, {1, -1}) == -1 for one in rest[:2]]
    turns = [_immediate(instruction, one, {0, 1}) == 1 for one in rest[2:]]
    if from_registers and turns:
        turns = [False, *turns]
    if len(signs) != 2 or len(turns) not in (0, 2):
        raise unknown(instruction)
    if any(turns) and what.operand_bits != 16:
        raise unknown(instruction, "only operands of 16 bits can be transposed")
    turns = turns or [False, False]
    return _Form(what, (signs[0], signs[1]), (turns[0], turns[1]))


_Load = Callable[[Warps, Instruction, list[_Reading]], Array]


def _from_registers(readers: Sequence[Reader], what: Signature) -> _Load:
    bits = what.operand_bits
    place = row_operand(_ROWS, what.shape[2], max(1, 32 // bits))
    return lambda warps, here, begun: place.gather(split(inputs(warps, readers), bits))


def _slots(context: Context, operand: ptx.Operand) -> list[int]:
    items = operand.items if isinstance(operand, ptx.Vector) else ()
    return [context.slot(one) for one in items if isinstance(one, ptx.Register)]


def _decode_multiply(instruction: ptx.Parsed, context: Context) -> Ending:
    d, a, b, scale = instruction.operands[:4]
    in_registers = isinstance(a, ptx.Vector)
    form = _form(instruction, in_registers)
    what = form.what
    bits, n = what.operand_bits, what.shape[1]
    half = what.types[0] == "f16"
    place = accumulator(_ROWS, n, 2 if half else 1)
    output, addends = Outputs(context, d, "b32"), context.read_all(d, "b32")
    if len(output) != place.registers:
        raise unknown(instruction, f"expected {place.registers} registers of the accumulator")
    if in_registers:
        load_a = _from_registers(context.read_all(a, "b32"), what)
    else:
        load_a = _Shared(context.read(a, "b64"), bits, not form.columns[0], _ROWS, True).load
    load_b = _Shared(context.read(b, "b64"), bits, not form.columns[1], n, False).load
    keeps = context.read(scale, "pred")
    product = _product(form, context.chip.number)
    slots = _slots(context, d), _slots(context, a)
    context.note_shared(UNIT)
    context.need(AsyncProxy, InFlight)
    here = context.instruction

    def step(machine: Machine) -> None:
        warps = Warps(machine).whole(here)
        begun: list[_Reading] = []
        left, right = load_a(warps, here, begun), load_b(warps, here, begun)
        addend = place.gather(split(inputs(warps, addends), 16 if half else 32))
        kept = warps.rows(keeps(machine))[:, 0]
        addend = np.where(kept, addend, addend.dtype.type(0))
        result = product(left, right.transpose(1, 0, 2), addend)
        output.put(warps, join(place.scatter(result)))
        _issue(warps, here, begun, slots)
        counters = machine.cohort.counters
        if counters is not None:
            counters.matrix(here.index, len(warps), what.flops)

    return collective(step)


def _product(form: _Form, chip: int) -> Callable[[Array, Array, Array], Array]:
    """Return the product of bits, with the signs that the instruction asks for."""
    what = form.what
    if what.types[1] in INTEGERS:
        return product_of_integers(what)
    product = product_of(what.types, chip, warpgroup=True)
    sign = 1 << what.operand_bits - 1

    def signed(a: Array, b: Array, c: Array) -> Array:
        a = a ^ a.dtype.type(sign) if form.signs[0] else a
        b = b ^ b.dtype.type(sign) if form.signs[1] else b
        return product(a, b, c)

    return signed


def _issue(
    warps: Warps, here: Instruction, begun: list[_Reading], slots: tuple[list[int], list[int]]
) -> None:
    """Keep what the product uses until it is waited for."""
    machine, index = warps.machine, warps.index
    groups = machine.part(Warpgroups)
    bare = ~groups.fenced[index]
    if bare.any():
        machine.cohort.report(
            Kind.MISSING_WAIT,
            here,
            "no wgmma.fence between the last use of registers and a product",
            int(index[np.flatnonzero(bare)[0]]) * WARP_SIZE,
            int(bare.sum()),
        )

    def complete(ready: NDArray[np.bool_]) -> None:
        for reading in begun:
            reading.end(machine, index[ready])

    machine.part(InFlight).begin(index, groups.pending.issued[index], *slots, here)
    groups.pending.issue(index, complete, advance=False)


# --- fence, commit, wait -------------------------------------------------------------------------


def _decode_fence(instruction: ptx.Parsed, context: Context) -> Ending:
    def step(machine: Machine) -> None:
        machine.part(Warpgroups).fenced[Warps(machine).index] = True

    return collective(step)


def _decode_commit(instruction: ptx.Parsed, context: Context) -> Ending:
    def step(machine: Machine) -> None:
        machine.part(Warpgroups).pending.commit(Warps(machine).index)

    return collective(step)


def _decode_wait(instruction: ptx.Parsed, context: Context) -> Ending:
    (count,) = instruction.operands
    if not isinstance(count, ptx.Immediate):
        raise unknown(instruction)
    keep = count.value

    def step(machine: Machine) -> None:
        groups = machine.part(Warpgroups)
        mask = np.zeros(machine.threads // WARP_SIZE, np.bool_)
        mask[Warps(machine).index] = True
        groups.pending.wait(mask, keep)
        groups.fenced[mask] = False
        machine.part(InFlight).finish(mask, groups.pending.issued - keep)

    return collective(step)


TABLE: Table = {
    "wgmma.mma_async.sync": Opcode(_decode_multiply, InstructionClass.MATRIX),
    "wgmma.fence": Opcode(_decode_fence, InstructionClass.SYNCHRONIZE),
    "wgmma.commit_group": Opcode(_decode_commit, InstructionClass.SYNCHRONIZE),
    "wgmma.wait_group": Opcode(_decode_wait, InstructionClass.SYNCHRONIZE),
}
