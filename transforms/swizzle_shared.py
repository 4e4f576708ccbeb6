"""Choose for every shared buffer the layout that meets no bank conflicts.

A buffer's layout is free until here: any bijection from offsets to elements is right. What it costs
depends on who writes and reads it: how wide their vectors can be, whether `ldmatrix` fits, how
often two lanes ask one bank. `swizzle.choose_for` finds a layout that is good for all of them at
once; this pass asks it for each `tgpu.alloc` and writes the answer into the buffer's type.

Before: the `tgpu` level.
After: the same, every buffer that only registers and asynchronous copies use with its best layout,
and every buffer that products of warpgroups read, or boxes are copied to or from, in one that
serves those.

    %s = "tgpu.alloc"() : () -> !tgpu.shared<tensor<2x64x64xf16, @shared0>>     // row-major
becomes
    %s = "tgpu.alloc"() : () -> !tgpu.shared<tensor<2x64x64xf16, @shared1>>     // swizzled
"""

from __future__ import annotations

from mlir import ir

from tiledsl.dialects import tgpu
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.dialects.layout import LinearLayout
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
from tiledsl.transforms.shared_uses import BufferUses, buffer_uses, k_axis
from tiledsl.transforms.swizzle import Access, choose_for
from tiledsl.transforms.warpgroup_operand import SharedOperand, shared_operand


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
            products = [user for user in uses.users if isinstance(user, tgpu.WarpgroupMmaOp)]
            if products or _takes_boxes(uses):
                operand = _choose_operand(op, uses, products, layouts)
                op.operation.attributes["alignment"] = ir.IntegerAttr.get(
                    ir.IntegerType.get_signless(64), operand.alignment
                )
                _retype(uses, operand.layout, layouts)
                continue
            accesses = [access(user) for user in uses.users]
            known = [one for one in accesses if one is not None]
            if not known or len(known) < len(accesses):
                continue
            held = held_by(op.buffer.type)
            shape = layouts.of(held).shape
            bits = storage_bits(held)
            choice = choose_for(shape, bits, tuple(dict.fromkeys(known)), memory)
            _retype(uses, choice.layout, layouts)


def _retype(uses: BufferUses, layout: LinearLayout, layouts: Layouts) -> None:
    """Give a buffer and its slots a layout."""
    name = layouts.name(layout, "shared")
    for value in uses.values:
        held = held_by(value.type)
        retype(value, shared_type(tile_type(shape_of(held), element_of(held), name)))


def _takes_boxes(uses: BufferUses) -> bool:
    """Whether boxes are copied to or from a buffer (it is not what counts their bytes)."""
    boxes = (user for user in uses.users if isinstance(user, tgpu.BoxCopyOp | tgpu.BoxStoreOp))
    return any(box.buffer in uses.values for box in boxes)


def _choose_operand(
    op: tgpu.AllocOp, uses: BufferUses, products: list[tgpu.WarpgroupMmaOp], layouts: Layouts
) -> SharedOperand:
    """Choose how a buffer holds an operand: as its writers have it, if instructions can read that.

    Elements of 16 bits may be contiguous along either side; of others k must be.
    """
    held = held_by(op.buffer.type)
    rows, columns = layouts.of(held).shape
    size = storage_bits(held) // 8
    axes = {
        k_axis(product, place)
        for product in products
        for place, value in enumerate(list(product.operation.operands)[:2])
        if value in uses.values
    }
    boxed = _takes_boxes(uses)
    # What nothing but copies of boxes and registers use may as well be read along its rows.
    (deep,) = axes or {1}
    written = [
        layouts.of(user.tile.type if isinstance(user, tgpu.LocalStoreOp) else user.ptr.type)
        for user in uses.users
        if isinstance(user, tgpu.LocalStoreOp | tgpu.AsyncCopyOp)
    ]
    runs = [max((one.contiguous_run(axis) for one in written), default=1) for axis in (0, 1)]
    turned = size == 2 and runs[1 - deep] > runs[deep]
    order = (1,) if boxed else (1 - deep, deep) if turned else (deep,)
    for axis in order:
        found = shared_operand((rows, columns), size, axis, deep)
        if found is not None:
            return found
    raise CompilerBug(f"expected an operand that warpgroup products can read, found {held}")
