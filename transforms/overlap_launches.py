"""Let a launch begin while the one before it ends, and wait for it before anything can be noticed.

Between two launches of a stream the machine stands still: the last programs of one end, the next
ones are set up, make their barriers, compute where they are. A kernel that says so lets the next
launch be set up as soon as all of its own programs have begun and there is room. In return each
kernel that is launched so waits, before its first access of global memory, until the launch before
has ended and what it wrote is visible. It waits in any case, even if it accesses nothing: the
launch behind it knows of no other that it would have to wait for.

Before: the `tgpu` level, barriers inserted; everything up to the first access may overlap.
After: the same; the function carries `tgpu.overlaps`, which tells the launcher that it may.

    barriers are made; tile.load ...
becomes
    tgpu.let_next_begin ; barriers are made; tgpu.await_launches ; tile.load ...
"""

from __future__ import annotations

from mlir import ir

from tiledsl.dialects import tgpu
from tiledsl.dialects.contracts import operations
from tiledsl.transforms.effects import is_pure
from tiledsl.transforms.kernels import body, kernels
from tiledsl.transforms.rewrite import terminator

_LOCAL = (
    tgpu.AllocOp, tgpu.MbarrierInitOp, tgpu.BarrierOp, tgpu.ProxyFenceOp, tgpu.LocalStoreOp,
    tgpu.LocalLoadOp,
)  # fmt: skip
"""Ops with effects that stay within the program."""


def overlap_launches(module: ir.Module) -> None:
    """Run the pass described above on `module`, in place."""
    for kernel in kernels(module):
        if not any(isinstance(op, tgpu.MbarrierInitOp) for op in operations(kernel.operation)):
            continue
        block = body(kernel)
        location = kernel.operation.location
        first = next((op.operation for op in block.operations if not _is_local(op)), None)
        place = ir.InsertionPoint(terminator(block) if first is None else first)
        tgpu.AwaitLaunchesOp.build(loc=location, ip=place)
        start = ir.InsertionPoint.at_block_begin(block)
        tgpu.LetNextBeginOp.build(loc=location, ip=start)
        kernel.operation.attributes[tgpu.OVERLAPS] = ir.UnitAttr.get(module.context)


def _is_local(op: ir.OpView) -> bool:
    """Whether an op, and all in its regions, leaves the world outside of the program alone."""
    return all(
        is_pure(one) or isinstance(one, _LOCAL) or one.operation.name in ("scf.yield", "scf.if")
        for one in (op, *operations(op.operation))
    )
