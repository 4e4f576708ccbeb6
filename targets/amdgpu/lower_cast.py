"""Conversions that an instruction of the chip does exactly as `tile.cast` says.

`conversions(chip)` names them; `expand_casts` does all others in integer arithmetic, before
lowering.

- f16 and bf16 from and to f32: rounded once, to nearest even, on every chip. Where there is no
  `v_cvt_pk_bf16_f32`, `round_to_bf16` takes fewer instructions than LLVM, which keeps NaNs apart.
- f32 and f64 to 32-bit integers: `v_cvt` truncates, saturates and gives 0 for NaN.
- fp8 from and to f32 where the chip has the OCP encodings. What is too large gives NaN or infinity
  there and must give the largest finite value, so it is clamped first; a NaN passes the clamp.
  gfx942 converts the fnuz encodings, which are not our tiles', so it is not asked.

Source: LLVM's IntrinsicsAMDGPU.td; AMD's CDNA4 and RDNA4 instruction set manuals, "CVT_PK".
"""

from __future__ import annotations

from mlir import ir
from mlir.dialects import arith, llvm, rocdl

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.amdgpu.chips import Chip
from tiledsl.targets.gpu import emit

_EVERYWHERE = frozenset(
    {("f16", "f32"), ("f32", "f16"), ("bf16", "f32"), ("f32", "bf16")}
    | {(source, result) for source in ("f32", "f64") for result in ("i32", "u32")}
)
_LARGEST = {"f8E4M3FN": 448.0, "f8E5M2": 57344.0}
_FP8 = frozenset({*((fp8, "f32") for fp8 in _LARGEST), *(("f32", fp8) for fp8 in _LARGEST)})
_PER_WORD = 4
_UPPER_HALVES = 0x07060302
"""The upper halves of two words: bytes 2 and 3 of the second, below those of the first."""


def conversions(chip: Chip) -> frozenset[tuple[str, str]]:
    """Return the pairs (source, result) that the chip converts as `expand_casts` describes."""
    return _EVERYWHERE | _FP8 if chip.fp8 == "ocp" else _EVERYWHERE


def cast(chip: Chip, value: ir.Value, source: ir.Type, result: ir.Type, signed: bool) -> ir.Value:
    """Return a scalar or vector converted; see `Machine.cast`.

    Raises:
        CompilerBug: The pair is not among `conversions`.
    """
    names = str(source), str(result)
    if names[0] in _LARGEST and names[1] == "f32":
        return _from_fp8(chip, value, names[0])
    if names[0] == "f32" and names[1] in _LARGEST:
        return _to_fp8(value, names[1])
    if isinstance(result, ir.IntegerType) and isinstance(source, ir.FloatType):
        name = "llvm.fptosi.sat" if signed else "llvm.fptoui.sat"
        return emit.intrinsic(name, [value], emit.resized(value.type, result))
    raise CompilerBug(f"expected a conversion that the chip has, found {source} to {result}")


def round_to_bf16(value: ir.Value) -> ir.Value:
    """Return a vector of f32 as bf16, by integers: NaN becomes one NaN, halves go to even.

    To add 0x7fff and the last bit that stays carries into what stays where rounding goes up, from
    the mantissa into the exponent and from there to infinity too. Two results are packed by one
    `v_perm_b32`.
    """
    bits = emit.bitcast(value, emit.integer(32))

    def everywhere(number: int) -> ir.Value:
        return emit.constant(bits.type, number)

    last = arith.andi(arith.shrui(bits, everywhere(16)), everywhere(1))
    rounded = arith.addi(arith.addi(bits, everywhere(0x7FFF)), last)
    is_nan = arith.cmpf(arith.CmpFPredicate.UNO, value, value)
    kept = arith.select(is_nan, everywhere(0x7FC00000), rounded)
    halves = emit.elements(kept)
    words = [
        emit.intrinsic("llvm.amdgcn.perm", [high, low, emit.i32(_UPPER_HALVES)], low.type)
        for low, high in zip(halves[::2], halves[1::2], strict=True)
    ]
    return emit.bitcast(emit.from_elements(words), ir.BF16Type.get())


def _from_fp8(chip: Chip, value: ir.Value, format_: str) -> ir.Value:
    """Convert words of four fp8, half a word an instruction."""
    pair = emit.vector_of(2, ir.F32Type.get())
    convert = rocdl.cvt_pk_f32_fp8 if format_ == "f8E4M3FN" else rocdl.cvt_pk_f32_bf8
    words = emit.to_words(value)
    if chip.matrix == "wmma":
        words = [_not_by_dpp(word) for word in words]
    halves = [convert(pair, word, upper) for word in words for upper in (False, True)]
    return _cut([f32 for half in halves for f32 in emit.elements(half)], value)


def _not_by_dpp(word: ir.Value) -> ir.Value:
    """Return the word through an empty piece of assembly, which is no instruction.

    LLVM 22.1 dies on RDNA (in GCNDPPCombine) where such a conversion could read its word permuted.
    """
    return llvm.inline_asm(word.type, [word], "", "=v,0")


def _to_fp8(value: ir.Value, format_: str) -> ir.Value:
    """Convert to words of four fp8, half a word an instruction."""
    most = _LARGEST[format_]
    low, high = (emit.constant(value.type, bound) for bound in (-most, most))
    clamped = arith.minimumf(arith.maximumf(value, low), high)
    floats = emit.elements(clamped)
    floats += [floats[-1]] * (-len(floats) % _PER_WORD)
    convert = rocdl.cvt_pk_fp8_f32 if format_ == "f8E4M3FN" else rocdl.cvt_pk_bf8_f32
    word_type, words = emit.integer(32), list[ir.Value]()
    for first in range(0, len(floats), _PER_WORD):
        a, b, c, d = floats[first : first + _PER_WORD]
        lower = convert(word_type, a, b, emit.i32(0), False)
        words.append(convert(word_type, c, d, lower, True))
    return emit.from_words(words, emit.resized(value.type, emit.integer(8)))


def _cut(scalars: list[ir.Value], like: ir.Value) -> ir.Value:
    """Return as many scalars as `like` has elements, as a vector if it is one."""
    if not emit.is_vector(like.type):
        return scalars[0]
    return emit.from_elements(scalars[: emit.registers_of(like)])
