"""Read a tile from shared memory where it is used, not long before.

A pipelined loop reads all its operands first, and a tile that then waits for its product lies in
registers meanwhile, through other products and whatever barriers they need, over which no later
compiler moves it. In attention that is half of the registers a thread has. A read may wait as long
as nobody writes the buffer, whose contents stay for as long as somebody reads them.

Before: the `tgpu` level, shared buffers not placed, no barriers yet.
After: the same; each `local_load` stands before the first op of its block that needs it, or before
one that may write its buffer.

    %v = "tgpu.local_load"(%slot) : ...
    "tgpu.local_store"(%p, %other) : ...
    %o = "tgpu.mma"(%q, %v, %acc) : ...
becomes
    "tgpu.local_store"(%p, %other) : ...
    %v = "tgpu.local_load"(%slot) : ...
    %o = "tgpu.mma"(%q, %v, %acc) : ...
"""

from __future__ import annotations

from mlir import ir

from tiledsl.dialects import tgpu
from tiledsl.dialects.contracts import operations
from tiledsl.transforms.kernels import kernels
from tiledsl.transforms.rewrite import ancestor, in_order
from tiledsl.transforms.shared_uses import buffer_uses, whole_buffer


def sink_local_loads(module: ir.Module) -> None:
    """Run the pass described above on `module`, in place."""
    for kernel in kernels(module):
        loads = [op for op in operations(kernel) if isinstance(op, tgpu.LocalLoadOp)]
        # The last first: what one waits behind may itself move down.
        for load in reversed(loads):
            _sink(load)


def _sink(load: tgpu.LocalLoadOp) -> None:
    block = load.operation.block
    writers = {
        ancestor(user.operation, block)
        for user in buffer_uses(whole_buffer(load.buffer)).users
        if not isinstance(user, tgpu.LocalLoadOp)
    }
    users = {ancestor(use.owner.operation, block) for use in load.tile.uses}
    stops = [op for op in (writers | users) if op is not None]
    behind = [op for op in stops if load.operation.is_before_in_block(op)]
    if behind:
        load.operation.move_before(in_order(behind)[0])
