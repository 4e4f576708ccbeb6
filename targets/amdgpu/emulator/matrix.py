"""Matrix instructions: `v_mfma_*` of CDNA and `v_wmma_*` of RDNA.

A mnemonic says all there is: what the sums are, the shape, blocks where there are several, and what
the operands are. From it follow the fragments (`matrix_layout`) and the arithmetic of the chip
(`matrix_arithmetic`); a step gathers both operands and the accumulator of all waves, multiplies
them at once, and scatters the sums.

    v_mfma_f32_32x32x8f16       a[0:15], v[0:1], v[2:3], a[0:15]            gfx90a
    v_mfma_f32_16x16x4_4b_f16   v[0:15], v[0:1], v[2:3], 0 cbsz:1 abid:1    gfx942, four blocks
    v_wmma_i32_16x16x16_iu8     v[0:7], v[8:9], v[10:11], v[0:7] neg_lo:[1,1,0] clamp

Modifiers: `cbsz`, `abid` and `blgp` let blocks share operands; `neg` (f64) and `neg_lo`, `neg_hi`
(WMMA) change signs, or say of integers that they are signed. EXEC has no part in any of them. The
wait states that some sequences need are not checked. Sparse instructions and gfx950's `f8f6f4` are
not known, as our tables have none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.amdgpu.emulator import matrix_arithmetic as arithmetic
from tiledsl.targets.amdgpu.emulator import matrix_layout as layout
from tiledsl.targets.amdgpu.emulator.constants import constant_bits
from tiledsl.targets.amdgpu.emulator.decode import Context, Entry
from tiledsl.targets.amdgpu.emulator.matrix_arithmetic import Product
from tiledsl.targets.amdgpu.emulator.matrix_layout import Fragment, Index, Shape
from tiledsl.targets.amdgpu.emulator.text import Constant, Operand, Parsed, Register
from tiledsl.targets.amdgpu.emulator.transfers import vector
from tiledsl.targets.gpu.emulator import formats
from tiledsl.targets.gpu.emulator.findings import Kind
from tiledsl.targets.gpu.emulator.formats import Format
from tiledsl.targets.gpu.emulator.program import InstructionClass, Step

if TYPE_CHECKING:
    from tiledsl.targets.amdgpu.emulator.machine import Machine

Bits = NDArray[Any]
Waves = NDArray[np.intp] | None
"""Flat waves that take part; None for all."""

_MFMA = re.compile(
    r"v_mfma_(?P<sum>f32|f64|i32)_(?P<size>\d+)x(?P=size)x(?P<k>\d+)_?(?:(?P<blocks>\d+)b_)?"
    r"(?P<a>f64|f32|xf32|f16|bf16|i8|fp8|bf8)(?:_(?P<b>fp8|bf8))?(?P<long>_1k)?$"
)
_WMMA = re.compile(
    r"v_wmma_(?P<sum>f32|i32|f16|bf16)_16x16x(?P<k>\d+)_"
    r"(?P<a>f16|bf16|iu8|iu4|fp8|bf8)(?:_(?P<b>fp8|bf8))?$"
)
_OCP = {"fp8": formats.E4M3, "bf8": formats.E5M2}
_FNUZ = {"fp8": formats.E4M3_FNUZ, "bf8": formats.E5M2_FNUZ}
_FORMATS = {
    "f64": formats.F64, "f32": formats.F32, "xf32": formats.TF32, "f16": formats.F16,
    "bf16": formats.BF16,
}  # fmt: skip
_BITS = {"f64": 64, "f32": 32, "xf32": 32, "f16": 16, "bf16": 16, "i8": 8, "iu8": 8, "iu4": 4,
         "fp8": 8, "bf8": 8, "i32": 32}  # fmt: skip
_GFX90A_BLOCKS = {
    ("f32", 32, 1): 2, ("f32", 16, 1): 4, ("f32", 4, 1): 16,
    ("f16", 32, 4): 2, ("f16", 16, 4): 4, ("f16", 4, 4): 16,
    ("i8", 32, 4): 2, ("i8", 16, 4): 4, ("i8", 4, 4): 16,
    ("bf16_1k", 32, 4): 2, ("bf16_1k", 16, 4): 4, ("bf16_1k", 4, 4): 16,
    ("bf16", 32, 2): 2, ("bf16", 16, 2): 4, ("bf16", 4, 2): 16, ("f64", 4, 4): 4,
}  # fmt: skip
"""How many products the mnemonics of gfx90a mean, which do not say so, by type, size and k."""
_CDNA3 = 0x942


@dataclass(frozen=True, eq=False)
class Source:
    """One operand of a matrix instruction.

    Attributes:
        register: The first register; None for a constant.
        words: Registers.
        bits: Bits of an element.
        where: For each element of (blocks, rows, columns), where it is among a wave's elements.
        constant: The bits of every element, for a constant.
        flip: Bits that are flipped in every word before anything else: signs.
        absolute: Bits that are cleared first.
        half: For accumulators of one 16-bit element a register: which half; None otherwise.
    """

    register: int | None
    words: int
    bits: int
    where: Index
    constant: int = 0
    flip: int = 0
    absolute: int = 0
    half: int | None = None

    def gather(self, machine: Machine, waves: Waves) -> Bits:
        """Return the bits of the matrix of each wave, (waves, blocks, rows, columns)."""
        kind = np.dtype(f"u{max(self.bits, 8) // 8}")
        if self.register is None:
            count = machine.waves if waves is None else len(waves)
            return np.full((count, *self.where.shape), self.constant, kind)
        rows = machine.vgpr[self.register : self.register + self.words]
        if waves is not None:
            rows = rows[:, waves]
        words = np.ascontiguousarray(rows.transpose(1, 2, 0))
        if self.absolute:
            words &= np.uint32(~self.absolute & 0xFFFFFFFF)
        if self.flip:
            words ^= np.uint32(self.flip)
        elements = _elements(words, self.bits, self.half).reshape(len(words), -1)
        found = elements.take(self.where.ravel(), axis=1)
        return found.reshape(len(words), *self.where.shape)


def _elements(words: NDArray[np.uint32], bits: int, half: int | None) -> Bits:
    """Return the elements in words, (waves, lanes, elements)."""
    if half is not None:
        return words.view(np.uint16)[..., half::2]
    if bits == 4:
        pairs = words.view(np.uint8)
        return np.stack((pairs & 15, pairs >> 4), axis=-1).reshape(*words.shape[:2], -1)
    return words.view(np.dtype(f"u{bits // 8}"))


@dataclass(frozen=True, eq=False)
class MatrixOperation:
    """A decoded matrix instruction.

    Attributes:
        shape: What it multiplies.
        a: The left operand.
        b: The right operand, (blocks, k, columns).
        c: The accumulator that it starts from.
        result: The first register of the sums.
        holds: For each lane and element, which of the sums it is.
        product: The arithmetic.
        replicated: Both halves of a wave must hold the same a and b (gfx11).
    """

    shape: Shape
    a: Source
    b: Source
    c: Source
    result: int
    holds: Index
    product: Product
    replicated: bool = False

    def run(self, machine: Machine) -> None:
        """Execute it for the machine's current group."""
        waves = None if machine.full else np.flatnonzero(machine.active)
        a, b, c = (one.gather(machine, waves) for one in (self.a, self.b, self.c))
        sums = self.product(a, b, c)
        found = sums.reshape(len(sums), -1).take(self.holds.ravel(), axis=1)
        self._scatter(machine, waves, found.reshape(len(sums), *self.holds.shape))

    def _scatter(self, machine: Machine, waves: Waves, sums: Bits) -> None:
        """Write the sums, (waves, lanes, elements)."""
        rows = slice(None) if waves is None else waves
        if self.c.half is not None:
            for element in range(sums.shape[2]):
                view = machine.v_u16[2 * (self.result + element) + self.c.half]
                view[rows] = sums[..., element]
            return
        words = np.ascontiguousarray(sums).view(np.uint32)
        count = words.shape[2]
        machine.vgpr[self.result : self.result + count, rows] = words.transpose(2, 0, 1)


def _matrix_step(operation: MatrixOperation, context: Context) -> Step:
    index, instruction = context.instruction.index, context.instruction

    def step(machine: Machine) -> None:
        counters = machine.cohort.counters
        if counters is not None:
            counters.matrix(index, machine.count, operation.shape.flops)
        if operation.replicated:
            for source in (operation.a, operation.b):
                _check_halves(machine, source, instruction)
        operation.run(machine)

    return step


def _check_halves(machine: Machine, source: Source, instruction: Any) -> None:
    """File a finding where the halves of a wave do not hold the same operand."""
    assert source.register is not None
    rows = machine.vgpr[source.register : source.register + source.words]
    differ = np.logical_or.reduce(rows[..., :16] != rows[..., 16:], (0, 2)) & machine.active
    if differ.any():
        wave = int(np.flatnonzero(differ)[0])
        machine.cohort.report(
            Kind.UNDEFINED,
            instruction,
            "lanes 0 to 15 and 16 to 31 hold different operands",
            int(machine.thread_of[wave, 0]),
            int(np.count_nonzero(differ)),
        )


def _source(
    operand: Operand, fragment: Fragment, where: Index, bits: int, kind: str, context: Context
) -> Source:
    """Return where the elements of an operand are."""
    words = -(-fragment.per_lane * bits // 32)
    if isinstance(operand, Constant):
        return Source(None, words, bits, where, constant_bits(operand, kind))
    register = vector(operand, context)
    assert isinstance(operand, Register)
    if operand.count != words:
        raise CompilerBug(f"expected {words} registers an operand in `{context.instruction.text}`")
    return Source(register, words, bits, where)


# --- MFMA ----------------------------------------------------------------------------------------


def _mfma(parsed: Parsed, context: Context) -> Step:
    """Decode `v_mfma_*`."""
    match = _MFMA.match(parsed.stem)
    if match is None:
        raise CompilerBug(f"the AMDGPU emulator does not know `{parsed.mnemonic}`: {parsed.text}")
    a_type, sum_type = match["a"], match["sum"]
    size, k = int(match["size"]), int(match["k"])
    kind = a_type + (match["long"] or "")
    blocks = int(match["blocks"] or _GFX90A_BLOCKS.get((kind, size, k), 1))
    shape = Shape(size, k, blocks)
    operand = layout.mfma_operand(shape)
    sums = layout.mfma_accumulator(shape, sum_type == "f64")
    bits, sum_bits = _BITS[a_type], _BITS[sum_type]
    left, right = operand.where, _swizzled(operand, parsed.integer("blgp"), a_type)
    if parsed.integer("cbsz"):
        shared = layout.broadcast_left(shape, parsed.integer("cbsz"), parsed.integer("abid"))
        left = left[shared]
    constant = "f32" if sum_type == "i32" and _is_real(parsed.operands[3]) else sum_type
    operation = MatrixOperation(
        shape,
        _source(parsed.operands[1], operand, left, bits, a_type, context),
        _source(parsed.operands[2], operand, right.transpose(0, 2, 1), bits, a_type, context),
        _source(parsed.operands[3], sums, sums.where, sum_bits, constant, context),
        vector(parsed.operands[0], context),
        sums.holds,
        _mfma_product(a_type, match["b"] or a_type, k, match["long"] is not None, context),
    )
    return _matrix_step(_negated_f64(operation, parsed, a_type), context)


def _is_real(operand: Operand) -> bool:
    return isinstance(operand, Constant) and operand.real is not None


def _swizzled(operand: Fragment, blgp: int, kind: str) -> Index:
    """Return where the right operand's elements are once BLGP has exchanged lanes."""
    if blgp == 0 or kind == "f64":
        return operand.where
    lane, element = np.divmod(operand.where, operand.per_lane)
    return layout.swizzled_right(blgp)[lane] * operand.per_lane + element


def _negated_f64(operation: MatrixOperation, parsed: Parsed, kind: str) -> MatrixOperation:
    """Apply the signs of f64's operands: `neg:[a,b,c]`, which is encoded as BLGP."""
    if kind != "f64":
        return operation
    blgp = parsed.integer("blgp")
    signs = parsed.bits("neg") or tuple(blgp >> place & 1 for place in range(3))
    if not any(signs):
        return operation
    inner = operation.product

    def product(a: Bits, b: Bits, c: Bits) -> Bits:
        top = np.uint64(1 << 63)
        a, b, c = (one ^ top if sign else one for one, sign in zip((a, b, c), signs, strict=True))
        return inner(a, b, c)

    return replace(operation, product=product)


def _mfma_product(a: str, b: str, k: int, long: bool, context: Context) -> Product:
    """Return the arithmetic of an MFMA on a chip."""
    number = context.chip.number
    if a == "i8":
        return arithmetic.integers(8)
    if a in ("f32", "f64"):
        return arithmetic.fma_chain(_FORMATS[a])
    if a in _OCP:
        of = _FNUZ if number == _CDNA3 else _OCP
        if number == _CDNA3:
            return arithmetic.truncated_sum(of[a], of[b], 16)
        return arithmetic.rounded_once(of[a], of[b], formats.F32)
    found = _FORMATS[a]
    if number < _CDNA3:
        return arithmetic.pairwise(found, 2 if a == "bf16" and not long else 4, flush=True)
    if number == _CDNA3:
        return arithmetic.truncated_sum(found, found, 4 if a == "xf32" else min(8, k))
    return arithmetic.rounded_once(found, found, formats.F32)


# --- WMMA ----------------------------------------------------------------------------------------


def _wmma(parsed: Parsed, context: Context) -> Step:
    """Decode `v_wmma_*`."""
    match = _WMMA.match(parsed.stem)
    if match is None or context.wave_size != layout.RDNA_LANES:
        raise CompilerBug(
            f"the AMDGPU emulator does not know `{parsed.mnemonic}` in waves of "
            f"{context.wave_size}: {parsed.text}"
        )
    old = context.generation < 12
    a_type, sum_type, k = match["a"], match["sum"], int(match["k"])
    bits, sum_bits = _BITS[a_type], _BITS[sum_type]
    operand = layout.wmma_operand_gfx11(k) if old else layout.wmma_operand_gfx12(k, bits)
    sums = layout.wmma_accumulator_gfx11() if old else layout.wmma_accumulator_gfx12()
    low, high = (parsed.bits(name) or (0, 0, 0) for name in ("neg_lo", "neg_hi"))
    right = operand.where.transpose(0, 2, 1)
    a = _source(parsed.operands[1], operand, operand.where, bits, a_type, context)
    b = _source(parsed.operands[2], operand, right, bits, a_type, context)
    if bits == 16:
        a, b = (replace(one, flip=low[at] << 15 | high[at] << 31) for at, one in enumerate((a, b)))
    half = (parsed.bits("op_sel") or (0, 0, 0))[2] if old and sum_bits == 16 else None
    c = _accumulator(parsed.operands[3], sums, sum_type, half, context)
    if sum_type != "i32":
        signs = 0x80000000 if sum_bits == 32 else 0x80008000
        c = replace(c, flip=signs * low[2], absolute=signs * high[2])
        if c.register is None and (low[2] or high[2]):
            raise CompilerBug(f"a constant accumulator with a sign: {parsed.text}")
    product = _wmma_product(a_type, match["b"] or a_type, sum_type, low, "clamp" in parsed)
    operation = MatrixOperation(
        Shape(16, k), a, b, c, vector(parsed.operands[0], context), sums.holds, product, old
    )
    return _matrix_step(operation, context)


def _accumulator(
    operand: Operand, sums: Fragment, kind: str, half: int | None, context: Context
) -> Source:
    """Return an accumulator; gfx11 keeps 16-bit ones in one half of a register each (`half`)."""
    bits = _BITS[kind]
    if half is None:
        constant = "f32" if kind == "i32" and _is_real(operand) else kind
        return _source(operand, sums, sums.where, bits, constant, context)
    found = _source(operand, sums, sums.where, 32, kind, context)
    return replace(found, bits=bits, half=half)


def _wmma_product(a: str, b: str, total: str, low: tuple[int, ...], clamp: bool) -> Product:
    """Return the arithmetic of a WMMA."""
    if total == "i32":
        return arithmetic.integers(_BITS[a], (bool(low[0]), bool(low[1])), clamp)
    of: dict[str, Format] = {**_FORMATS, **_OCP}
    return arithmetic.rounded_once(of[a], of[b], of[total])


TABLE = {
    "v_mfma_": Entry(_mfma, InstructionClass.MATRIX),
    "v_wmma_": Entry(_wmma, InstructionClass.MATRIX),
}
