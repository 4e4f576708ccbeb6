"""Turn tiles with layouts into the code of one thread.

Every value of a kernel is rewritten: a tile becomes one vector of the thread's registers, so an
elementwise op on a tile stays one op; what threads do together becomes the machine's own ops.
Control flow stays `scf`. The modules beside this one do the work by topic.

Before: the `tgpu` level; shared buffers have offsets, barriers stand, no conversion or reduction
leaves a warp.
After: the `machine` level; each kernel is an `llvm.func` of the same name and arguments (pointers
`!llvm.ptr<1>`; bools and fp8 as i8). Layouts and combine functions are gone.

    %c = arith.addf %a, %b : tensor<512xf32, @blocked0>
becomes
    %c = arith.addf %a, %b : vector<4xf32>
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from mlir import ir
from mlir.dialects import arith, llvm

from tiledsl.dialects import tgpu
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.layouts import Layouts
from tiledsl.dialects.types import bit_width, element_of, is_tensor_map
from tiledsl.targets.gpu import (
    atomics,
    control_flow,
    debug,
    dot,
    elementwise,
    emit,
    memory,
    reduce,
    scan,
    shape,
    shared,
)
from tiledsl.targets.gpu.line_locations import line_location
from tiledsl.targets.gpu.lowering import Handler, Lowering
from tiledsl.targets.gpu.machine import Kernel, Machine
from tiledsl.targets.gpu.types import Types, in_memory, in_register
from tiledsl.transforms.kernels import kernels
from tiledsl.transforms.place_tensor_maps import MAPS

HANDLERS: dict[str, Handler] = {
    **elementwise.HANDLERS,
    **shape.HANDLERS,
    **memory.HANDLERS,
    **shared.HANDLERS,
    **reduce.HANDLERS,
    **scan.HANDLERS,
    **dot.HANDLERS,
    **atomics.HANDLERS,
    **control_flow.HANDLERS,
    **debug.HANDLERS,
}


def lower_to_machine(module: ir.Module, *, machine: Machine) -> None:
    """Run the pass described above on `module`, in place."""
    types = Types(Layouts(module))
    found = list(kernels(module))
    functions = [op for op in module.body.operations if op.operation.name == "func.func"]
    combines = {
        cast("ir.StringAttr", op.operation.attributes["sym_name"]).value: op
        for op in functions
        if op not in found
    }
    for op in found:
        _lower_kernel(module, op, machine, types, combines)
    definitions = [op for op in module.body.operations if isinstance(op, tgpu.LayoutOp)]
    for op in [*functions, *definitions]:
        op.operation.erase()


def kernel_of(op: ir.OpView, warp_size: int, types: Types) -> Kernel:
    """Read a kernel's name and sizes off its `func.func`."""
    attributes: Any = op.operation.attributes
    num_warps = int(attributes["tile.num_warps"].value)
    shared = attributes["tgpu.shared_bytes"].value if "tgpu.shared_bytes" in attributes else 0
    more = int(attributes[tgpu.PRODUCERS].value) if tgpu.PRODUCERS in attributes else 0
    return Kernel(
        attributes["sym_name"].value,
        num_warps,
        num_warps * warp_size,
        int(shared),
        _sums(op, types),
        more * warp_size,
    )


def _sums(kernel: ir.OpView, types: Types) -> int:
    """Give the 32-bit registers that a thread needs for the sums of the largest product."""
    sums = 0
    for op in operations(kernel.operation):
        if isinstance(op, (tgpu.MmaOp, tgpu.WarpgroupMmaOp, tgpu.FmaDotOp)):
            held = types.registers(op.acc.type) * bit_width(element_of(op.acc.type))
            sums = max(sums, held // 32)
    return sums


def _lower_kernel(
    module: ir.Module,
    op: ir.OpView,
    machine: Machine,
    types: Types,
    combines: Mapping[str, ir.OpView],
) -> None:
    kernel = kernel_of(op, machine.warp_size, types)
    old = op.operation.regions[0].blocks[0]
    with line_location(op.operation.location) as location:
        with ir.InsertionPoint.at_block_begin(module.body):
            machine.declare(kernel)
        with ir.InsertionPoint(op):
            made: Any = _function(op, kernel, machine)
        block: ir.Block = made.operation.regions[0].blocks.append(
            *[in_memory(a.type) for a in old.arguments],
            arg_locs=[location] * len(old.arguments),
        )
        with ir.InsertionPoint(block):
            handlers = {**HANDLERS, **machine.handlers}
            lowering = Lowering(machine, kernel, op, types, combines, handlers)
            with lowering.place.at_entry():
                _define_arguments(lowering, old, block)
            *ops, _ = old.operations
            for inner in ops:
                lowering.lower(inner)
            llvm.ReturnOp()
    # LLVM names the unit of compilation after the module's file.
    cast("Any", module.operation).location = location
    # The kernel's new function takes over its name.
    made.operation.attributes["sym_name"] = ir.StringAttr.get(kernel.name)


def _function(op: ir.OpView, kernel: Kernel, machine: Machine) -> Any:
    """Build the `llvm.func`, without a body, its arguments' alignment known to LLVM."""
    old = op.operation.regions[0].blocks[0]
    types = [in_memory(a.type) for a in old.arguments]
    signature = ir.Type.parse(f"!llvm.func<void ({', '.join(map(str, types))})>")
    made: Any = llvm.LLVMFuncOp(f"{kernel.name}.machine", ir.TypeAttr.get(signature))
    attributes = made.operation.attributes
    given: Any = op.operation.attributes
    attributes["arg_attrs"] = _array(
        [
            _argument_attributes(given["arg_attrs"][i] if "arg_attrs" in given else None, type_)
            for i, type_ in enumerate(types)
        ]
    )
    for name, value in machine.function_attributes(kernel).items():
        attributes[name] = value
    attributes["tile.kinds"] = _array([ir.StringAttr.get(_kind(a.type)) for a in old.arguments])
    attributes["tile.shared_bytes"] = ir.IntegerAttr.get(emit.integer(64), kernel.shared_bytes)
    if tgpu.PIECES in given:
        attributes[tgpu.PIECES] = given[tgpu.PIECES]
    if tgpu.OVERLAPS in given:
        attributes["tile.overlaps"] = ir.UnitAttr.get()
    if MAPS in given:
        attributes["tile.tensor_maps"] = given[MAPS]
    attributes["tile.threads"] = ir.IntegerAttr.get(
        emit.integer(64), kernel.threads + kernel.more_threads
    )
    return made


def _array(attributes: Sequence[ir.Attribute]) -> ir.Attribute:
    return cast("Any", ir.ArrayAttr).get(list(attributes))


def _argument_attributes(given: Any, type_: ir.Type) -> ir.Attribute:
    """Return LLVM's attributes of an argument: a pointer's alignment."""
    made: Any = ir.DictAttr
    if type_ == emit.pointer_type(0):
        return made.get(
            {
                "llvm.byval": ir.TypeAttr.get(ir.Type.parse("!llvm.array<128 x i8>")),
                "llvm.align": ir.IntegerAttr.get(emit.integer(64), 64),
                "nvvm.grid_constant": ir.UnitAttr.get(),
            }
        )
    if not emit.is_pointer_type(type_) or given is None or "tile.divisibility" not in given:
        return made.get({})
    alignment = int(given["tile.divisibility"].value)
    return made.get({"llvm.align": ir.IntegerAttr.get(emit.integer(64), alignment)})


def _kind(type_: ir.Type) -> str:
    """Return an argument's kind, as `tiledsl.targets.arguments` names it."""
    if is_tensor_map(type_):
        return "tensormap"
    if emit.is_pointer_type(in_memory(type_)):
        return "ptr"
    return "bool" if type_ == emit.integer(1) else str(type_)


def _define_arguments(lowering: Lowering, old: ir.Block, new: ir.Block) -> None:
    for before, after in zip(old.arguments, new.arguments, strict=True):
        value: ir.Value = after
        if in_register(before.type) == emit.integer(1):
            value = arith.cmpi(arith.CmpIPredicate.ne, value, emit.zero(value.type))
        lowering.define(before, value)
