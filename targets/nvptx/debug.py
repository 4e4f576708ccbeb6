"""Printing and stopping from the device: `vprintf` and `trap`.

The driver links `vprintf(format, arguments)` into every module that declares it; the arguments are
a struct in local memory, laid out as C lays out variadic ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir
from mlir.dialects import llvm

from tiledsl.targets.gpu import emit
from tiledsl.targets.gpu.emit import integer, module_block, pointer_type

_PRINT = "vprintf"


def has_symbol(name: str) -> bool:
    """Return whether the module has a symbol of that name."""
    return any(_symbol(op) == name for op in module_block().operations)


def _symbol(op: ir.OpView) -> str | None:
    attributes = op.operation.attributes
    return ir.StringAttr(attributes["sym_name"]).value if "sym_name" in attributes else None


def _string(text: str) -> ir.Value:
    """Return the generic address of a string, kept as a constant of the module."""
    data = text.encode() + b"\0"
    taken = {_symbol(op) for op in module_block().operations}
    name = next(n for n in (f"string{i}" for i in range(len(taken) + 1)) if n not in taken)
    with ir.InsertionPoint.at_block_begin(module_block()):
        llvm.mlir_global(
            ir.TypeAttr.get(ir.Type.parse(f"!llvm.array<{len(data)} x i8>")),
            name,
            ir.Attribute.parse("#llvm.linkage<internal>"),
            constant=True,
            addr_space=1,
            value=ir.StringAttr.get(data),
        )
    address = llvm.mlir_addressof(pointer_type(1), name)
    return llvm.addrspacecast(pointer_type(0), address)


def _declare_print() -> None:
    if has_symbol(_PRINT):
        return
    with ir.InsertionPoint.at_block_begin(module_block()):
        signature = ir.Type.parse("!llvm.func<i32 (ptr, ptr)>")
        llvm.LLVMFuncOp(_PRINT, ir.TypeAttr.get(signature))


def print_line(format: str, arguments: Sequence[ir.Value]) -> None:
    """Print by a C format string; the arguments are i32, i64 and f64."""
    _declare_print()
    packed = llvm.mlir_zero(pointer_type(0))
    if arguments:
        struct = ir.Type.parse(f"!llvm.struct<({', '.join(str(a.type) for a in arguments)})>")
        packed = llvm.alloca(pointer_type(0), emit.i32(1), struct, alignment=8)
        for i, argument in enumerate(arguments):
            place = llvm.getelementptr(
                packed.type, packed, [], ir.DenseI32ArrayAttr.get([0, i]), struct, None
            )
            llvm.store(argument, place)
    llvm.CallOp(
        integer(32),
        [_string(format), packed],
        [],
        ir.DenseI32ArrayAttr.get([]),
        callee=ir.FlatSymbolRefAttr.get(_PRINT),
    )


def stop(message: str) -> None:
    """Print the message and end the program; the next call of the driver reports a trap."""
    print_line(message.replace("%", "%%") + "\n", [])
    llvm.intr_trap()
