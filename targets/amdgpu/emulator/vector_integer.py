"""Vector integer instructions: arithmetic, bits, shifts, selection and moves, one line each."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.amdgpu.emulator.decode import Context, Entry
from tiledsl.targets.amdgpu.emulator.operands import mask_reader, mask_writer, writer
from tiledsl.targets.amdgpu.emulator.scalar import RELATIONS, shift_left, shift_right
from tiledsl.targets.amdgpu.emulator.text import Parsed
from tiledsl.targets.amdgpu.emulator.vector import Comparison, operation, source_readers
from tiledsl.targets.gpu.emulator.program import InstructionClass, Step

Array = NDArray[Any]

_U, _UU, _UUU = "u32", "u32 u32", "u32 u32 u32"

TABLE: dict[str, Entry] = {
    "v_mov_b32": operation("u32", _U, lambda a: a, InstructionClass.MOVE),
    "v_add_u32": operation("u32", _UU, np.add),
    "v_add_nc_u32": operation("u32", _UU, np.add),
    "v_and_b32": operation("u32", _UU, np.bitwise_and),
    "v_or_b32": operation("u32", _UU, np.bitwise_or),
    "v_lshlrev_b32": operation("u32", _UU, lambda a, b: shift_left(32)(b, a)),
    "v_lshrrev_b32": operation("u32", _UU, lambda a, b: shift_right(32)(b, a)),
}
