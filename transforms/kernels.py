"""The kernels of a module: its public functions; private ones combine scalars for reductions."""

from __future__ import annotations

from collections.abc import Iterator

from mlir import ir


def kernels(module: ir.Module) -> Iterator[ir.OpView]:
    """Yield the `func.func` of every kernel."""
    for op in list(module.body.operations):
        private = "sym_visibility" in op.operation.attributes
        if op.operation.name == "func.func" and not private:
            yield op


def body(kernel: ir.OpView) -> ir.Block:
    """Give a kernel's only block."""
    return kernel.operation.regions[0].blocks[0]
