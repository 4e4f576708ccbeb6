"""Reject tiles of which one thread would hold too many elements.

A thread keeps its part of a tile in registers, and a chip has 255 to 512 of them a thread: what
exceeds them is spilled to memory and read back at every use. Long before that hurts the kernel it
hurts its author, because the time that LLVM and ptxas take grows faster than the code. Measured for
`exp`, and for a masked multiply-add, over fp32 at one warp on sm_90a, gfx942 and gfx1100: 256
elements a thread compile in 1 to 4 seconds, 512 in 4 to 9, 1024 in 12 to 31, and more in minutes.
int8 takes at 1024 what fp32 takes at 512. Such a tile is nearly always one that was meant for more
warps. What only products read is not counted: of an operand that many threads need each has a large
part, and no code goes over it element by element.

Before: the `tgpu` level, right after `assign_layouts`.
After: the same module; no thread has more of a tile than `most` says. Nothing changes.

    "tile.load"(...) : ... -> tensor<1024x64xf32, @layout0>    // layout0: 11 bits of registers
is
    KernelError: expected at most 512 elements of 32 bits in each thread, found 2048, of a tile ...
"""

from __future__ import annotations

from mlir import ir

from tiledsl.dialects import tgpu, tile
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.diagnostics import KernelError, Span
from tiledsl.dialects.layout import LinearLayout
from tiledsl.dialects.layouts import Layouts
from tiledsl.dialects.types import bit_width, element_of, is_pointer, layout_name, shape_of

WIDE, NARROW = 512, 1024
"""Elements in each thread of one tile of 32 bits and more, and of 16 bits and fewer."""


def most(element: ir.Type) -> int:
    """Return how many elements of a type one thread may have of a tile."""
    return WIDE if is_pointer(element) or bit_width(element) > 16 else NARROW


def limit_tiles(module: ir.Module) -> None:
    """Run the check described above on `module`.

    Raises:
        KernelError: A thread has more of a tile; names the worst tile, where it is made.
    """
    layouts = Layouts(module)
    excess, worst = 1.0, None
    for op in operations(module.operation):
        for result in op.operation.results:
            if layout_name(result.type) and not _is_operand(result):
                share = layouts.of(result.type).registers / most(element_of(result.type))
                if share > excess:
                    excess, worst = share, result
    if worst is not None:
        raise _too_large(worst, layouts.of(worst.type))


def _is_operand(value: ir.Value) -> bool:
    """Return whether only products read `value`, perhaps turned; accumulators are like others."""

    def reads_as_operand(use: ir.OpOperand) -> bool:
        if isinstance(use.owner, tile.TransOp):
            return _is_operand(use.owner.tile)
        products = (tgpu.MmaOp, tgpu.WarpgroupMmaOp, tgpu.FmaDotOp)
        return isinstance(use.owner, products) and use.operand_number < 2

    uses = list(value.uses)
    return bool(uses) and all(map(reads_as_operand, uses))


def _too_large(value: ir.Value, layout: LinearLayout) -> KernelError:
    element = element_of(value.type)
    bits = "pointers" if is_pointer(element) else f"{bit_width(element)} bits"
    warps = "1 warp" if layout.warps == 1 else f"{layout.warps} warps"
    return KernelError(
        f"expected at most {most(element)} elements of {bits} in each thread, found "
        f"{layout.registers}, of a tile of shape {shape_of(value.type)} over {warps}",
        Span.of(value.location),
        hint="use more warps (num_warps) or a smaller tile",
    )
