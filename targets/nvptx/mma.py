"""NVIDIA's matrix instructions, as a table, and how a row of it becomes an intrinsic.

`mma.sync` m16n8 (m8n8 for f64): every chip from sm_80 on has those on f16, bf16, tf32, f64 and
8-bit integers, later ones fp8. The deeper of two shapes of one type comes first.

Source: PTX ISA 8.7, "Warp-level matrix instructions".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from mlir import ir
from mlir.dialects import llvm

from tiledsl.dialects.layout_mma import mma_sync, wgmma
from tiledsl.targets.gpu import emit
from tiledsl.targets.gpu.emit import integer
from tiledsl.targets.nvptx.chips import Chip
from tiledsl.transforms.mma_table import Instruction, Table


@dataclass(frozen=True, eq=False)
class MmaSync(Instruction):
    """A row of the table.

    Attributes:
        intrinsic: LLVM's name, behind "llvm.nvvm.mma."; of integers without the types.
        rounded: Whether f32 operands must first be rounded to tf32.
    """

    intrinsic: str = ""
    rounded: bool = False


@dataclass(frozen=True, eq=False)
class Wgmma(Instruction):
    """A row of the table: a warpgroup's instruction on shared memory.

    Attributes:
        types: PTX's types of the accumulator, a and b, as "f32.f16.f16"; for integers with the
            types of a and b to be filled in, as "s32.{}.{}".
    """

    types: str = ""


_WGMMA_COLUMNS = (256, 128, 64, 32, 16, 8)


def _wgmma_rows(chip: Chip) -> Iterator[Wgmma]:
    """Yield the warpgroups' instructions, widest first."""
    if not chip.wgmma:
        return
    for n in _WGMMA_COLUMNS:
        for half in ("f16", "bf16"):
            yield Wgmma(
                f"wgmma.m64n{n}k16.{half}.f32", half, half, "f32", wgmma(n, 16, 16), turns=True,
                types=f"f32.{half}.{half}",
            )  # fmt: skip
        yield Wgmma(
            f"wgmma.m64n{n}k8.tf32.f32", "f32", "f32", "f32", wgmma(n, 8, 32), "tf32",
            types="f32.tf32.tf32",
        )  # fmt: skip
        yield Wgmma(
            f"wgmma.m64n{n}k32.i8.i32", "i8", "i8", "i32", wgmma(n, 32, 8), unsigned=True,
            types="s32.{}.{}",
        )  # fmt: skip
        for a, short_a in _FP8:
            for b, short_b in _FP8:
                yield Wgmma(
                    f"wgmma.m64n{n}k32.{short_a}.{short_b}.f32", a, b, "f32", wgmma(n, 32, 8),
                    types=f"f32.{short_a}.{short_b}",
                )  # fmt: skip


_FP8 = (("f8E4M3FN", "e4m3"), ("f8E5M2", "e5m2"))


def _rows(chip: Chip) -> Iterator[MmaSync]:
    """Yield the chip's instructions, best first."""
    half = mma_sync(16, 8, 16, 16)
    # f32 accumulators: of the two types that give them f16 has an f16 form besides.
    yield MmaSync(
        "mma.m16n8k16.f16.f32", "f16", "f16", "f32", half,
        intrinsic="m16n8k16.row.col.f32.f32",
    )  # fmt: skip
    yield MmaSync(
        "mma.m16n8k16.bf16.f32", "bf16", "bf16", "f32", half, intrinsic="m16n8k16.row.col.bf16"
    )
    yield MmaSync(
        "mma.m16n8k8.f16.f32", "f16", "f16", "f32", mma_sync(16, 8, 8, 16),
        intrinsic="m16n8k8.row.col.f32.f32",
    )  # fmt: skip
    yield MmaSync(
        "mma.m16n8k8.bf16.f32", "bf16", "bf16", "f32", mma_sync(16, 8, 8, 16),
        intrinsic="m16n8k8.row.col.bf16",
    )  # fmt: skip
    yield MmaSync(
        "mma.m16n8k16.f16.f16", "f16", "f16", "f16", half,
        intrinsic="m16n8k16.row.col.f16.f16",
    )  # fmt: skip
    for k in (8, 4):
        yield MmaSync(
            f"mma.m16n8k{k}.tf32.f32", "f32", "f32", "f32", mma_sync(16, 8, k, 32), "tf32",
            intrinsic=f"m16n8k{k}.row.col.tf32", rounded=True,
        )  # fmt: skip
    yield MmaSync(
        "mma.m8n8k4.f64.f64", "f64", "f64", "f64", mma_sync(8, 8, 4, 64),
        intrinsic="m8n8k4.row.col.f64",
    )  # fmt: skip
    for k in (32, 16):
        yield MmaSync(
            f"mma.m16n8k{k}.i8.i32", "i8", "i8", "i32", mma_sync(16, 8, k, 8), unsigned=True,
            intrinsic=f"m16n8k{k}.row.col",
        )  # fmt: skip
    if chip.fp8_mma:
        for a, short_a in _FP8:
            for b, short_b in _FP8:
                yield MmaSync(
                    f"mma.m16n8k32.{short_a}.{short_b}.f32", a, b, "f32", mma_sync(16, 8, 32, 8),
                    intrinsic=f"m16n8k32.row.col.f32.{short_a}.{short_b}.f32",
                )  # fmt: skip


@cache
def table(chip: Chip) -> Table[MmaSync | Wgmma]:
    """Return the chip's instructions."""
    return Table((*_wgmma_rows(chip), *_rows(chip)))


def call(name: str, arguments: Sequence[ir.Value], result: ir.Type, count: int) -> list[ir.Value]:
    """Call an intrinsic that returns `count` values of one type: a struct if more than one."""
    if count == 1:
        return [emit.intrinsic(name, arguments, result)]
    struct = ir.Type.parse(f"!llvm.struct<({', '.join([str(result)] * count)})>")
    made = emit.intrinsic(name, arguments, struct)
    return [llvm.extractvalue(result, made, ir.DenseI64ArrayAttr.get([i])) for i in range(count)]


def registers(row: MmaSync, value: ir.Value) -> list[ir.Value]:
    """Return an operand or accumulator as the registers that the instruction names."""
    element = emit.scalar_of(value.type)
    if element == ir.F16Type.get():
        return [emit.part(value, i, 2) for i in range(0, emit.registers_of(value), 2)]
    if emit.width_of(element) < 32:
        return emit.elements(emit.bitcast(value, integer(32)))
    return emit.elements(value)


def multiply(
    row: MmaSync,
    a: Sequence[ir.Value],
    b: Sequence[ir.Value],
    acc: Sequence[ir.Value],
    unsigned: tuple[bool, bool],
) -> list[ir.Value]:
    """Return acc + a @ b of one instruction; see `Machine.mma`."""
    name = f"llvm.nvvm.mma.{row.intrinsic}"
    if row.unsigned:
        types = ["u8" if u else "s8" for u in unsigned]
        name += "." + ".".join(types if types[0] != types[1] else types[:1])
    if row.rounded:
        a, b = _tf32(a), _tf32(b)
    return call(name, [*a, *b, *acc], acc[0].type, len(acc))


def together(registers: Sequence[ir.Value]) -> ir.Value:
    """Return registers, scalars or pairs, as one vector."""
    if emit.is_vector(registers[0].type):
        return emit.concatenate(registers)
    return emit.from_elements(registers)


def _tf32(values: Sequence[ir.Value]) -> list[ir.Value]:
    """Round f32 to tf32, to nearest with ties away from zero, kept as i32."""
    return [emit.intrinsic("llvm.nvvm.f2tf32.rna", [x], integer(32)) for x in values]
