"""Scalar float instructions, which RDNA3.5 and RDNA4 have, and the scalar forms of `v_rcp` and kin.

They compute as the vector unit does; a result of 16 bits makes the upper half of its register 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.amdgpu.emulator import floats
from tiledsl.targets.amdgpu.emulator.decode import Context, Entry
from tiledsl.targets.amdgpu.emulator.functions import Binary, Ternary, Unary
from tiledsl.targets.amdgpu.emulator.operands import scalar_reader, scalar_writer
from tiledsl.targets.amdgpu.emulator.scalar import comparison, operation
from tiledsl.targets.amdgpu.emulator.text import Parsed
from tiledsl.targets.amdgpu.emulator.vector_compare import FLOAT_RELATIONS
from tiledsl.targets.amdgpu.emulator.vector_convert import (
    TO_INTEGER,
    packed,
    to_half,
    to_single,
    toward_zero,
)
from tiledsl.targets.amdgpu.emulator.vector_float import FUSED
from tiledsl.targets.gpu.emulator.program import InstructionClass, Step

Array = NDArray[Any]

_BINARY: dict[str, Binary] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "min": floats.minimum_number,
    "max": floats.maximum_number,
    "min_num": floats.minimum_number,
    "max_num": floats.maximum_number,
    "minimum": floats.minimum,
    "maximum": floats.maximum,
}
_UNARY: dict[str, Unary] = {
    "ceil": np.ceil, "floor": np.floor, "trunc": np.trunc, "rndne": np.rint,
}  # fmt: skip
_APPROXIMATE = ("exp", "log", "rcp", "rsq", "sqrt")


def _accumulating(kind: str, function: Ternary) -> Entry:
    """Return the entry of s_fmac: the destination is the addend."""

    def decode(parsed: Parsed, context: Context) -> Step:
        write = scalar_writer(parsed.operands[0], kind, context)
        a, b, c = (
            scalar_reader(one, kind, context) for one in (*parsed.operands[1:], parsed.operands[0])
        )
        return lambda m: write(m, function(a(m), b(m), c(m)))

    return Entry(decode, InstructionClass.SCALAR)


def _to_single(value: Array) -> Array:
    return value.astype(np.float32)


def _high_half(value: Array) -> Array:
    return to_single((value >> np.uint32(16)).astype(np.uint16).view(np.float16))


def _arithmetic_table() -> dict[str, Entry]:
    table: dict[str, Entry] = {}
    for kind in ("f32", "f16"):
        for name, binary in _BINARY.items():
            table[f"s_{name}_{kind}"] = operation(kind, f"{kind} {kind}", binary)
        for name, unary in _UNARY.items():
            table[f"s_{name}_{kind}"] = operation(kind, kind, unary)
        for name, relation in FLOAT_RELATIONS.items():
            if name not in ("f", "t", "tru"):
                table[f"s_cmp_{name}_{kind}"] = comparison(kind, relation)
        table[f"s_fmac_{kind}"] = _accumulating(kind, FUSED[kind])
        for name in _APPROXIMATE:
            table[f"v_s_{name}_{kind}"] = operation(kind, kind, floats.unit_function(name, kind))
    table["s_fmaak_f32"] = table["s_fmamk_f32"] = operation("f32", "f32 f32 f32", floats.fma)
    return table


TABLE: dict[str, Entry] = {
    **_arithmetic_table(),
    "s_cvt_f32_i32": operation("f32", "i32", _to_single),
    "s_cvt_f32_u32": operation("f32", "u32", _to_single),
    "s_cvt_i32_f32": operation("i32", "f32", TO_INTEGER["i32"]),
    "s_cvt_u32_f32": operation("u32", "f32", TO_INTEGER["u32"]),
    "s_cvt_f16_f32": operation("f16", "f32", to_half),
    "s_cvt_f32_f16": operation("f32", "f16", to_single),
    "s_cvt_hi_f32_f16": operation("f32", "u32", _high_half),
    "s_cvt_pk_rtz_f16_f32": operation("u32", "f32 f32", packed(toward_zero)),
}
