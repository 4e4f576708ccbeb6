"""Release memory again at the end of a loop that meets at barriers, where LLVM forgets to wait.

A release fence makes LLVM wait for the wave's stores before the barrier that follows. LLVM 22.1
puts the wait there and deletes it again if nothing can be outstanding, but decides that the first
time it looks at a block (SIInsertWaitcnts): of a loop's head it then knows only what comes in from
above, not what the loop's own end left outstanding. A store at the end of an iteration, and a load
of another wave after the barrier at the start of the next, so lose their order. A fence at the end
of the body is in sight of the store; where nothing is outstanding it costs nothing.

Barriers of LDS alone want no such fence: `AmdMachine.barrier` waits for LDS by an instruction.

Before: the `machine` level.
After: the same; a loop with a release of all memory in it ends with one.

    scf.for ... {
      llvm.fence syncscope("workgroup") release
      rocdl.s.barrier
      ...
      llvm.store %v, %p
    }
becomes
    scf.for ... {
      llvm.fence syncscope("workgroup") release
      rocdl.s.barrier
      ...
      llvm.store %v, %p
      llvm.fence syncscope("workgroup") release
    }
"""

from __future__ import annotations

from typing import Any

from mlir import ir
from mlir.dialects import llvm

from tiledsl.dialects.contracts import operations

_LOOPS = ("scf.for", "scf.while")


def release_in_loops(module: ir.Module) -> None:
    """Run the pass described above on `module`, in place."""
    loops = [op for op in operations(module.operation) if op.operation.name in _LOOPS]
    for loop in loops:
        scope = _released(loop.operation)
        if scope is None:
            continue
        body = loop.operation.regions[len(loop.operation.regions) - 1].blocks[0]
        last = body.operations[len(body.operations) - 1]
        with ir.InsertionPoint(last), last.operation.location:
            llvm.fence(llvm.AtomicOrdering.release, syncscope=scope)


def _released(loop: ir.Operation) -> str | None:
    """Return the scope of a release of all memory in a loop; None without any."""
    for op in operations(loop):
        attributes: Any = op.operation.attributes
        if op.operation.name != "llvm.fence" or "llvm.mmra" in attributes:
            continue
        if attributes["ordering"].value == int(llvm.AtomicOrdering.release):
            scope: str = attributes["syncscope"].value
            return scope
    return None
