"""AMD's matrix instructions as tables, one a chip: MFMA on CDNA, WMMA on RDNA.

`table(chip)` lists what `select_mma` may choose from, best first. Each row of the data below is one
hardware instruction; it becomes several entries that differ in how many elements along k a lane
holds side by side (`kwidth`): as many as one 16-byte LDS read brings, as many as one instruction
takes, and as many as a lane of an accumulator holds, so that one product's result can be the next
one's left operand without moving. Larger instructions come first, as they read less for each
multiplication.

Entries of MFMA and of RDNA 4 are written for the transposed product (`swapped`): a lane then holds
neighbouring columns of the accumulator's row, which one wide store takes.

Numbers: products of f16, bf16, fp8 and i8 are exact before they are summed in f32 or i32; f32 and
f64 multiply and add as FMA does. xf32 (gfx942), which `input_precision="tf32"` asks for, rounds its
operands to tf32's precision. What nobody can turn off: gfx90a takes subnormal f16 and bf16 operands
as zero (PyTorch's "Numerical accuracy" notes; CDNA3 and later do not). The fp8 instructions of
gfx942 take the fnuz encodings, which are not those of our tiles: they are not in its table, and
`select_mma` converts such operands to f16, which holds every one of their values, instead.

Sources: LLVM's IntrinsicsAMDGPU.td (names, operand types); AMD's MI200, MI300, CDNA4, RDNA3 and
RDNA4 instruction set manuals.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, NamedTuple

from tiledsl.dialects.layout_mma import Fragments, mfma, wmma_gfx11, wmma_gfx12
from tiledsl.targets.amdgpu.chips import Chip
from tiledsl.transforms.mma_table import Instruction, Precision, Table

_READ_BYTES = 16
"""The widest LDS read of a lane."""
_ACCUMULATOR_RUN = 4
"""Neighbouring elements of an MFMA accumulator that a lane holds."""

_BYTES = {"i8": 1, "f8E4M3FN": 1, "f8E5M2": 1, "f16": 2, "bf16": 2, "f32": 4, "f64": 8}
_E4M3, _E5M2 = "f8E4M3FN", "f8E5M2"


@dataclass(frozen=True, eq=False, kw_only=True)
class MatrixInstruction(Instruction):
    """An entry of a table, and what the intrinsic wants.

    Attributes:
        intrinsic: LLVM's name, without "llvm.amdgcn.".
        carrier: MLIR's type in which a lane passes its elements of a (and the same of b).
        form: The operands around a, b and the accumulator: "mfma" appends three immediates, "iu"
            (WMMA on integers) says of each operand whether it is signed, and appends one.
    """

    intrinsic: str
    carrier: str
    form: Literal["mfma", "wmma", "iu"]


class _Row(NamedTuple):
    """One hardware instruction.

    Attributes:
        intrinsic: Without "llvm.amdgcn.mfma." or "llvm.amdgcn.wmma.".
        size: m and n.
        k: Depth.
        types: Elements of a, b and the accumulator.
        carrier: As of `MatrixInstruction`.
        precision: As of `Instruction`.
    """

    intrinsic: str
    size: int
    k: int
    types: tuple[str, str, str]
    carrier: str
    precision: Precision = "ieee"


_F16, _BF16 = ("f16", "f16", "f32"), ("bf16", "bf16", "f32")
_F32, _F64, _I8 = ("f32", "f32", "f32"), ("f64", "f64", "f64"), ("i8", "i8", "i32")
_FP8_PAIRS = [
    (f"{a[0]}.{b[0]}", (a[1], b[1], "f32"))
    for a in (("fp8", _E4M3), ("bf8", _E5M2))
    for b in (("fp8", _E4M3), ("bf8", _E5M2))
]

_CDNA = [
    _Row("f32.32x32x8f16", 32, 8, _F16, "vector<4xf16>"),
    _Row("f32.16x16x16f16", 16, 16, _F16, "vector<4xf16>"),
    _Row("f32.32x32x8bf16.1k", 32, 8, _BF16, "vector<4xi16>"),
    _Row("f32.16x16x16bf16.1k", 16, 16, _BF16, "vector<4xi16>"),
    _Row("f32.32x32x2f32", 32, 2, _F32, "f32"),
    _Row("f32.16x16x4f32", 16, 4, _F32, "f32"),
    _Row("f64.16x16x4f64", 16, 4, _F64, "f64"),
]
"""On gfx90a, gfx942 and gfx950."""

_GFX90A = [
    _Row("i32.32x32x8i8", 32, 8, _I8, "i32"),
    _Row("i32.16x16x16i8", 16, 16, _I8, "i32"),
]

_CDNA3 = [
    _Row("i32.32x32x16.i8", 32, 16, _I8, "i64"),
    _Row("i32.16x16x32.i8", 16, 32, _I8, "i64"),
]
"""On gfx942 and gfx950."""

_GFX942 = [
    _Row("f32.32x32x4.xf32", 32, 4, _F32, "vector<2xf32>", "tf32"),
    _Row("f32.16x16x8.xf32", 16, 8, _F32, "vector<2xf32>", "tf32"),
]

_GFX950 = [
    _Row("f32.32x32x16.f16", 32, 16, _F16, "vector<8xf16>"),
    _Row("f32.16x16x32.f16", 16, 32, _F16, "vector<8xf16>"),
    _Row("f32.32x32x16.bf16", 32, 16, _BF16, "vector<8xbf16>"),
    _Row("f32.16x16x32.bf16", 16, 32, _BF16, "vector<8xbf16>"),
    *(_Row(f"f32.32x32x16.{pair}", 32, 16, types, "i64") for pair, types in _FP8_PAIRS),
    *(_Row(f"f32.16x16x32.{pair}", 16, 32, types, "i64") for pair, types in _FP8_PAIRS),
    _Row("i32.32x32x32.i8", 32, 32, _I8, "vector<4xi32>"),
    _Row("i32.16x16x64.i8", 16, 64, _I8, "vector<4xi32>"),
]

_GFX11 = [
    _Row("f32.16x16x16.f16.v8f32.v16f16", 16, 16, _F16, "vector<16xf16>"),
    _Row("f32.16x16x16.bf16.v8f32.v16i16", 16, 16, _BF16, "vector<16xi16>"),
    _Row("i32.16x16x16.iu8.v8i32.v4i32", 16, 16, _I8, "vector<4xi32>"),
]

_GFX12 = [
    _Row("f32.16x16x16.f16.v8f32.v8f16", 16, 16, _F16, "vector<8xf16>"),
    _Row("f32.16x16x16.bf16.v8f32.v8i16", 16, 16, _BF16, "vector<8xi16>"),
    *(
        _Row(f"f32.16x16x16.{pair}.v8f32.v2i32", 16, 16, types, "vector<2xi32>")
        for pair, types in _FP8_PAIRS
    ),
    _Row("i32.16x16x16.iu8.v8i32.v2i32", 16, 16, _I8, "vector<2xi32>"),
]

# Deeper instructions do more at once, so a chip's own rows come before those that it inherited.
_ROWS = {
    0x90A: [*_GFX90A, *_CDNA],
    0x942: [*_GFX942, *_CDNA3, *_CDNA],
    0x950: [*_GFX950, *_CDNA3, *_CDNA],
    0x1100: _GFX11,
    0x1151: _GFX11,
    0x1200: _GFX12,
    0x1201: _GFX12,
}


@cache
def table(chip: Chip) -> Table[Instruction]:
    """Return the matrix instructions of `chip`, best first."""
    entries = _mfma_entries if chip.matrix == "mfma" else _wmma_entries
    rows = _ROWS[chip.number]
    return Table[Instruction]([entry for row in rows for entry in entries(row, chip)])


def _mfma_entries(row: _Row, chip: Chip) -> Iterator[MatrixInstruction]:
    """Give a row's entries, the one with the widest reads first."""
    per_lane = row.size * row.k // 64
    wide = max(per_lane, _READ_BYTES // _BYTES[row.types[0]])
    widths = {wide, per_lane, min(wide, _ACCUMULATOR_RUN)}
    for kwidth in sorted(widths, reverse=True):
        f64 = row.types[0] == "f64"
        entry = _entry(row, "mfma", mfma(row.size, row.k, kwidth, f64), f"k{kwidth}")
        # An f64 accumulator's lanes hold every fourth row, so neither way allows wide stores.
        yield entry if f64 else _transposed(entry)


def _wmma_entries(row: _Row, chip: Chip) -> Iterator[MatrixInstruction]:
    """Give a row's entries; RDNA 3's lanes hold all of k, so there is one way only."""
    form = "iu" if row.types == _I8 else "wmma"
    if chip.number < 0x1200:
        yield _entry(row, form, wmma_gfx11(), "k16")
        return
    for kwidth in sorted({_READ_BYTES // _BYTES[row.types[0]], row.k // 2}, reverse=True):
        yield _transposed(_entry(row, form, wmma_gfx12(row.k, kwidth), f"k{kwidth}"))


def _entry(
    row: _Row, form: Literal["mfma", "wmma", "iu"], fragments: Fragments, suffix: str
) -> MatrixInstruction:
    a, b, acc = row.types
    intrinsic = f"{'mfma' if form == 'mfma' else 'wmma'}.{row.intrinsic}"
    return MatrixInstruction(
        f"{intrinsic}.{suffix}", a, b, acc, fragments, row.precision, unsigned=form == "iu",
        intrinsic=intrinsic, carrier=row.carrier, form=form,
    )  # fmt: skip


def _transposed(entry: MatrixInstruction) -> MatrixInstruction:
    """Return the entry for the transposed product under its own name."""
    return replace(entry, a=entry.b, b=entry.a, fragments=entry.fragments.swap())
