"""Small tables of matrix instructions, of each kind that selection tells apart."""

from tiledsl.dialects.layout_mma import mfma, mma_sync
from tiledsl.transforms.mma_table import Instruction, Table

AMPERE: Table[Instruction] = Table(
    (
        Instruction("m16n8k16.f16", "f16", "f16", "f32", mma_sync(16, 8, 16, 16)),
        Instruction("m16n8k8.f16", "f16", "f16", "f32", mma_sync(16, 8, 8, 16)),
        Instruction("m16n8k16.f16.f16", "f16", "f16", "f16", mma_sync(16, 8, 16, 16)),
        Instruction("m16n8k16.bf16", "bf16", "bf16", "f32", mma_sync(16, 8, 16, 16)),
        Instruction("m16n8k8.tf32", "f32", "f32", "f32", mma_sync(16, 8, 8, 32), "tf32"),
        Instruction("m8n8k4.f64", "f64", "f64", "f64", mma_sync(8, 8, 4, 64)),
        Instruction("m16n8k32.i8", "i8", "i8", "i32", mma_sync(16, 8, 32, 8), unsigned=True),
    )
)

CDNA: Table[Instruction] = Table(
    (
        Instruction("32x32x8.f16.wide", "f16", "f16", "f32", mfma(32, 8, 8).swap()),
        Instruction("32x32x8.f16", "f16", "f16", "f32", mfma(32, 8).swap()),
        Instruction("16x16x16.f16", "f16", "f16", "f32", mfma(16, 16).swap()),
        Instruction("16x16x4.f32", "f32", "f32", "f32", mfma(16, 4).swap()),
        Instruction("16x16x16.i8", "i8", "i8", "i32", mfma(16, 16).swap()),
    )
)

NONE: Table[Instruction] = Table(())
