"""Choose for every shared buffer the layout that meets no bank conflicts.

A buffer's layout is free until here: any bijection from offsets to elements is right. What it costs
depends on who writes and reads it: how wide their vectors can be, whether `ldmatrix` fits, how
often two lanes ask one bank. `swizzle.choose_for` finds a layout that is good for all of them at
once; this pass asks it for each `tgpu.alloc` and writes the answer into the buffer's type.

Before: the `tgpu` level.
After: the same, every buffer that only registers and asynchronous copies use with its best layout.

    %s = "tgpu.alloc"() : () -> !tgpu.shared<tensor<2x64x64xf16, @shared0>>     // row-major
becomes
    %s = "tgpu.alloc"() : () -> !tgpu.shared<tensor<2x64x64xf16, @shared1>>     // swizzled
"""

from __future__ import annotations

from mlir import ir

from tiledsl.dialects import tgpu
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.layout_shape import distinct_registers
from tiledsl.dialects.layouts import Layouts
from tiledsl.dialects.types import (
    element_of,
    held_by,
    shape_of,
    shared_type,
    storage_bits,
    tile_type,
)
from tiledsl.transforms.rewrite import retype
from tiledsl.transforms.shared_access import NVIDIA, SharedMemory
from tiledsl.transforms.shared_uses import buffer_uses
from tiledsl.transforms.swizzle import Access, choose_for


def swizzle_shared(
    module: ir.Module,
    *,
    memory: SharedMemory = NVIDIA,
    matrix_loads: bool = False,
    matrix_stores: bool = False,
) -> None:
    """Run the pass described above on `module`, in place.

    Args:
        module: The module.
        memory: The chip's banks.
        matrix_loads: Whether the chip has `ldmatrix`.
        matrix_stores: Whether the chip has `stmatrix`.
    """
    layouts = Layouts(module)

    def access(user: ir.OpView) -> Access | None:
        """Say how an op uses a buffer, None if its layout is not for us to choose."""
        match user:
            case tgpu.LocalStoreOp():
                stored = distinct_registers(layouts.of(user.tile.type)).layout
                return Access(stored, write=True, matrix=matrix_stores)
            case tgpu.LocalLoadOp():
                loaded = distinct_registers(layouts.of(user.tile.type)).layout
                return Access(loaded, matrix=matrix_loads)
            case tgpu.AsyncCopyOp():
                return Access.copy(layouts.of(user.ptr.type))
            case _:
                return None

    for op in list(operations(module.operation)):
        if isinstance(op, tgpu.AllocOp):
            uses = buffer_uses(op.buffer)
            accesses = [access(user) for user in uses.users]
            known = [one for one in accesses if one is not None]
            if not known or len(known) < len(accesses):
                continue
            held = held_by(op.buffer.type)
            shape = layouts.of(held).shape
            bits = storage_bits(held)
            choice = choose_for(shape, bits, tuple(dict.fromkeys(known)), memory)
            name = layouts.name(choice.layout, "shared")
            for value in uses.values:
                held = held_by(value.type)
                type_ = tile_type(shape_of(held), element_of(held), name)
                retype(value, shared_type(type_))
