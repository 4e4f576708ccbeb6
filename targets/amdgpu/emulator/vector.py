"""The frame of vector instructions: decode operands and modifiers around a NumPy function.

An instruction is an `Operation`: the kinds of its result and its sources, and a function of arrays.
All encodings share it: op_sel and true16 halves, neg and abs, DPP, SDWA, clamp and omod are applied
around the function when the instruction is decoded. `Comparison` is the same with a lane mask for a
result. Tables of them are in `vector_integer`, `vector_float`, `vector_convert` and so on.

The result of an operation is computed by `parts(...)[0]` and written by `parts(...)[1]`, so that
both halves of a VOPD pair can read before either writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.amdgpu.emulator.constants import plain, width
from tiledsl.targets.amdgpu.emulator.decode import Context, Entry
from tiledsl.targets.amdgpu.emulator.functions import Function, composed
from tiledsl.targets.amdgpu.emulator.modifiers import dpp, is_dpp, sdwa_reader, sdwa_writer
from tiledsl.targets.amdgpu.emulator.operands import (
    Read,
    Write,
    flushed,
    flushes,
    mask_reader,
    mask_writer,
    reader,
    writer,
)
from tiledsl.targets.amdgpu.emulator.text import EXEC, VCC, Operand, Parsed, Register
from tiledsl.targets.gpu.emulator.program import InstructionClass, Step

Array = NDArray[Any]

_PRESERVING = frozenset(
    {"v_mad_f16", "v_fma_f16", "v_div_fixup_f16", "v_mad_u16", "v_mad_i16", "v_fma_mixlo_f16",
     "v_fma_mixhi_f16", "v_mad_mixlo_f16", "v_mad_mixhi_f16"}
)  # fmt: skip
"""CDNA's instructions with 16-bit results that keep the other half; later chips' all do."""


def zeroes_high(parsed: Parsed, context: Context) -> bool:
    """Say whether a 16-bit result makes the upper half of its register 0."""
    return context.generation == 9 and parsed.stem not in _PRESERVING


def source_readers(
    parsed: Parsed, operands: tuple[Operand, ...], kinds: tuple[str, ...], context: Context
) -> list[Read]:
    """Return readers of an instruction's sources, with op_sel and SDWA's selectors.

    The kind "mask" is a lane mask in scalar registers, "carry" that as 0 and 1; where the text
    leaves out such a last operand it is VCC.
    """
    if len(operands) == len(kinds) - 1 and kinds[-1] in ("mask", "carry"):
        operands = (*operands, Register("s", VCC, 2))
    if kinds[-1] in ("mask", "carry"):
        reads = source_readers(parsed, operands[:-1], kinds[:-1], context)
        mask = mask_reader(operands[-1], context)
        reads.append(mask if kinds[-1] == "mask" else lambda m: mask(m).view(np.uint8))
        return reads
    reads = _plain_readers(parsed, operands, kinds, context)
    return [
        flushed(read, kind, output=False) if flushes(kind, context, output=False) else read
        for read, kind in zip(reads, kinds, strict=True)
    ]


def _plain_readers(
    parsed: Parsed, operands: tuple[Operand, ...], kinds: tuple[str, ...], context: Context
) -> list[Read]:
    if len(operands) != len(kinds):
        raise CompilerBug(f"{parsed.text}: expected {len(kinds)} sources, found {len(operands)}")
    if parsed.encoding == "sdwa":
        return [
            sdwa_reader(parsed, one, kind, context, f"src{i}_sel")
            if i < 2
            else reader(one, kind, context)
            for i, (one, kind) in enumerate(zip(operands, kinds, strict=True))
        ]
    halves = parsed.bits("op_sel") or (0,) * len(kinds)
    halves += (0,) * (len(kinds) - len(halves))
    return [
        reader(one, kind, context, half)
        for one, kind, half in zip(operands, kinds, halves, strict=False)
    ]


_FACTORS = {"": 1.0, "2": 2.0, "4": 4.0}


def _scaled(compute: Read, factor: float) -> Read:
    def scaled(m: Any) -> Array:
        value = compute(m)
        return value * value.dtype.type(factor)

    return scaled


def _output_modifiers(parsed: Parsed, compute: Read) -> Read:
    """Apply omod, then clamp to 0 and 1 (of NaN: 0), to a float result."""
    factor = _FACTORS[parsed.modifiers.get("mul", "")] / _FACTORS[parsed.modifiers.get("div", "")]
    unclamped = compute if factor == 1 else _scaled(compute, factor)
    if "clamp" not in parsed:
        return unclamped

    def clamped(m: Any) -> Array:
        value = unclamped(m)
        one = value.dtype.type(1)
        return np.where(value > 0, np.minimum(value, one), value.dtype.type(0))

    return clamped


@dataclass(frozen=True)
class Operation:
    """A vector instruction with one result.

    Attributes:
        result: The kind of the result.
        sources: The kinds of the sources.
        function: Of their values.
        accumulates: The destination is the last source too.
        clamped: The function under `clamp`, for integers (which saturate).
    """

    result: str
    sources: tuple[str, ...]
    function: Function
    accumulates: bool = False
    clamped: Function | None = None

    def parts(self, parsed: Parsed, context: Context) -> tuple[Read, Write]:
        """Return what computes the result, and what writes it."""
        operands = parsed.operands[1:]
        if self.accumulates:
            operands = (*operands, parsed.operands[0])
        reads = source_readers(parsed, operands, self.sources, context)
        write = self._writer(parsed, context)
        if is_dpp(parsed):
            reads[0], write = dpp(parsed, context, reads[0], write)
        function = self.function
        real = self.result[0] == "f" or self.result == "bf16"
        if "clamp" in parsed and not real:
            if self.clamped is None:
                raise CompilerBug(f"the AMDGPU emulator does not know this clamp: {parsed.text}")
            function = self.clamped
        compute = composed(function, reads)
        if flushes(self.result, context, output=True):
            compute = flushed(compute, self.result, output=True)
        return (_output_modifiers(parsed, compute) if real else compute), write

    def _writer(self, parsed: Parsed, context: Context) -> Write:
        if parsed.encoding == "sdwa":
            return sdwa_writer(parsed, self.result, context)
        half = 0
        zero = False
        if width(plain(self.result)) == 16:
            halves = parsed.bits("op_sel")
            given = halves is not None and len(halves) > len(self.sources) - self.accumulates
            half = halves[-1] if halves is not None and given else 0
            zero = zeroes_high(parsed, context)
        return writer(parsed.operands[0], self.result, context, half, zero)

    def __call__(self, parsed: Parsed, context: Context) -> Step:
        """Decode one instruction."""
        compute, write = self.parts(parsed, context)
        return lambda m: write(m, compute(m))


def operation(
    result: str,
    sources: str,
    function: Function,
    kind: InstructionClass = InstructionClass.INTEGER,
    *,
    accumulates: bool = False,
    clamped: Function | None = None,
) -> Entry:
    """Return the entry of an `Operation`, with the kinds of sources between blanks."""
    decode = Operation(result, tuple(sources.split()), function, accumulates, clamped)
    return Entry(decode, kind)


@dataclass(frozen=True)
class Comparison:
    """A vector instruction whose result is a lane mask: in scalar registers, EXEC or (CDNA) both.

    Attributes:
        sources: The kinds of the sources.
        function: Of their values, returning booleans.
        to_exec: It is a `v_cmpx`.
    """

    sources: tuple[str, ...]
    function: Function
    to_exec: bool = False

    def __call__(self, parsed: Parsed, context: Context) -> Step:
        """Decode one instruction."""
        count = len(self.sources)
        operands = parsed.operands[-count:]
        writes = [mask_writer(one, context) for one in parsed.operands[:-count]]
        if self.to_exec:
            writes.append(mask_writer(Register("s", EXEC, 2), context))
        reads = source_readers(parsed, operands, self.sources, context)
        compute = composed(self.function, reads)
        if is_dpp(parsed):
            reads[0], writes[0] = dpp(parsed, context, reads[0], writes[0])
            compute = composed(self.function, reads)
        if len(writes) == 1:
            (write,) = writes
            return lambda m: write(m, compute(m))

        def step(m: Any) -> None:
            value = compute(m)
            for write in writes:
                write(m, value)

        return step


@dataclass(frozen=True)
class Carrying:
    """A vector instruction with a result and, second, a lane mask of carries (or borrows).

    Attributes:
        result: The kind of the result.
        sources: The kinds of the sources.
        function: Of their values; returns the result and the carries.
        end: What the result is under `clamp` where it carries.
    """

    result: str
    sources: tuple[str, ...]
    function: Function
    end: Any = None

    def __call__(self, parsed: Parsed, context: Context) -> Step:
        """Decode one instruction."""
        destination, carry, *operands = parsed.operands
        reads = source_readers(parsed, tuple(operands), self.sources, context)
        write = writer(destination, self.result, context)
        if parsed.encoding == "sdwa":
            write = sdwa_writer(parsed, self.result, context)
        write_carry = mask_writer(carry, context)
        if is_dpp(parsed):
            reads[0], write = dpp(parsed, context, reads[0], write)
        compute = composed(self.function, reads)
        end = self.end if "clamp" in parsed else None

        def step(m: Any) -> None:
            value, carries = compute(m)
            write(m, value if end is None else np.where(carries, end, value))
            write_carry(m, np.broadcast_to(carries, m.lanes.shape))

        return step
