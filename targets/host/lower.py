"""Turn a kernel over tiles into loops over scratch memory: the `machine` level of the host.

The usual road would be linalg, bufferization and LLVM's vectorizer. Here every shape is static and
a power of two, so the loops are written directly, with vectors of a few lanes inside: one pass
decides which tiles are kept in memory (`plan`), the rest is computed in the nests that use it
(`evaluate`). That gives code whose vectorization does not depend on what an alias analysis can
prove, and costs milliseconds.

Before: a `tile` module after the expansions: no `tile.cast`, `tile.floordiv`, `tile.floormod`.
After: `machine` level. One function `<kernel>.program` runs one program and returns whether it
failed; `<kernel>` runs many of them (`launch`). The kernel's private functions are gone.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir

from tiledsl.dialects import tile
from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.dialects.types import pointee, shape_of
from tiledsl.targets.host.atomic import lower_atomic_cas, lower_atomic_rmw
from tiledsl.targets.host.body import Body, Program, lanes_in
from tiledsl.targets.host.build import add_block, attribute, body_of, create, symbol_name
from tiledsl.targets.host.code import Code
from tiledsl.targets.host.control import lower_for, lower_if, lower_while
from tiledsl.targets.host.cpu import Cpu
from tiledsl.targets.host.debug import LEAVE, lower_assert, lower_print
from tiledsl.targets.host.dot import lower_dot
from tiledsl.targets.host.evaluate import Buffer, Evaluator
from tiledsl.targets.host.in_place import assign_in_place
from tiledsl.targets.host.index import Index
from tiledsl.targets.host.lanes import Uniform, mask_of
from tiledsl.targets.host.launch import add_launcher
from tiledsl.targets.host.machine_types import (
    integer,
    pointer_type,
    stored_type,
    value_type,
    width_of,
)
from tiledsl.targets.host.memory import Place
from tiledsl.targets.host.order import Order
from tiledsl.targets.host.plan import Planner, is_computable
from tiledsl.targets.host.reduce import lower_reduce
from tiledsl.targets.host.scan import lower_scan
from tiledsl.targets.host.transpose import can_transpose


def lower_programs(module: ir.Module, cpu: Cpu) -> None:
    """Run the pass described above on `module`, in place."""
    functions = [op for op in module.body.operations if op.operation.name == "func.func"]
    kernels = [f for f in functions if "sym_visibility" not in f.operation.attributes]
    if len(kernels) != 1:
        raise CompilerBug(f"expected one public function, found {len(kernels)}")
    combiners = {symbol_name(f): f for f in functions}
    scratch_bytes = _lower_kernel(module, kernels[0], combiners, cpu)
    add_launcher(module, kernels[0], scratch_bytes)
    for function in functions:
        function.operation.erase()


def _lower_kernel(
    module: ir.Module, kernel: ir.OpView, combiners: dict[str, ir.OpView], cpu: Cpu
) -> int:
    """Build the function that runs one program; return the bytes of scratch memory it wants."""
    old = body_of(kernel)
    i32 = integer(32)
    own = [value_type(argument.type) for argument in old.arguments]
    types = [*own, *[i32] * 6, pointer_type(), pointer_type()]
    name = symbol_name(kernel)
    attributes: dict[str, ir.Attribute] = {
        "sym_name": ir.StringAttr.get(f"{name}.program"),
        "function_type": ir.TypeAttr.get(ir.FunctionType.get(types, [integer(1)])),
        "sym_visibility": ir.StringAttr.get("private"),
        "llvm.linkage": ir.Attribute.parse("#llvm.linkage<internal>"),
        # Inlined into the loop over programs it would be unrolled, and save nothing.
        "no_inline": ir.UnitAttr.get(),
    }
    at = ir.InsertionPoint(module.body)
    made = create("func.func", attributes=attributes, regions=1, at=at)
    block = add_block(made, 0, types)
    arguments = list[ir.Value](block.arguments)
    program = Program(arguments[-8:-5], arguments[-5:-2], arguments[-2], arguments[-1])
    planner = Planner(kernel)
    planner.run()
    assign_in_place(planner)
    body = Body(
        Code(block),
        cpu,
        planner.plan,
        program,
        ir.InsertionPoint(block),
        combiners,
        lower_block,
        module,
        Order(planner.plan, kernel),
    )
    _set_arguments(body, kernel, old, arguments)
    lower_block(body, old)
    if body.needs_leave:
        _declare(module, LEAVE)
    went_well = body.code.constant(integer(1), 0)
    create("func.return", [went_well], at=body.at)
    return body.place()


def _declare(module: ir.Module, name: str) -> None:
    """Declare a function without arguments."""
    attributes = {
        "sym_name": ir.StringAttr.get(name),
        "function_type": ir.TypeAttr.get(ir.FunctionType.get([], [])),
        "sym_visibility": ir.StringAttr.get("private"),
    }
    at = ir.InsertionPoint(module.body)
    create("func.func", attributes=attributes, regions=1, at=at)


def _set_arguments(body: Body, kernel: ir.OpView, old: ir.Block, arguments: list[ir.Value]) -> None:
    described = attribute(kernel, "arg_attrs")
    for i, argument in enumerate(old.arguments):
        ones = -1
        if described is not None and "tile.divisibility" in described[i]:
            divisor = int(described[i]["tile.divisibility"].value)
            ones = mask_of(width_of(arguments[i].type)) & -(divisor & -divisor)
        body.set_scalar(argument, Uniform(arguments[i], 0, ones))


def lower_block(body: Body, block: ir.Block) -> None:
    """Lower all ops of a block but for its terminator, which belongs to the op around."""
    operations = list(block.operations)
    for op in operations[:-1]:
        _lower(body, op)


def _lower(body: Body, op: ir.OpView) -> None:
    name = op.operation.name
    if is_computable(op):
        for result in op.operation.results:
            if result in body.plan.kept:
                body.keep(op, result)
        return
    match name:
        case "scf.for":
            lower_for(body, op)
        case "scf.while":
            lower_while(body, op)
        case "scf.if":
            lower_if(body, op)
        case _:
            _lower_plain(body, op)


def _lower_plain(body: Body, op: ir.OpView) -> None:
    """Lower an op without regions that is not computed inside other nests."""
    match op:
        case tile.StoreOp():
            _lower_store(body, op)
        case tile.DotOp():
            lower_dot(body, op)
        case tile.AtomicRmwOp():
            lower_atomic_rmw(body, op)
        case tile.AtomicCasOp():
            lower_atomic_cas(body, op)
        case tile.ReduceOp():
            lower_reduce(body, op)
        case tile.ScanOp():
            lower_scan(body, op)
        case tile.ProgramIdOp():
            _set_count(body, op, body.program.ids)
        case tile.NumProgramsOp():
            _set_count(body, op, body.program.counts)
        case tile.PrintOp():
            lower_print(body, op)
        case tile.AssertOp():
            lower_assert(body, op)
        case tile.AssumeOp() | tile.BarrierOp():
            pass  # the host runs a program in its order
        case _:
            _lower_scalar(body, op)


def _set_count(
    body: Body, op: tile.ProgramIdOp | tile.NumProgramsOp, values: Sequence[ir.Value]
) -> None:
    """Set an i32 of the grid, which is never negative."""
    axis: int = op.axis
    body.set_scalar(op.operation.results[0], Uniform(values[axis], 0, mask_of(31)))


def _lower_scalar(body: Body, op: ir.OpView) -> None:
    operands = [body.scalar(operand) for operand in op.operation.operands]
    _, evaluator = body.nest()
    for result in op.operation.results:
        lanes = evaluator.scalar_op(op, result, operands)
        body.set_scalar(result, lanes)


def _lower_store(body: Body, op: tile.StoreOp) -> None:
    held = value_type(pointee(op.ptr.type))
    shape, lanes = shape_of(op.ptr.type), body.lane_bits(held)
    turned = _turned(body, op, lanes)

    def visit(evaluator: Evaluator, index: Index) -> None:
        count = lanes_in(index)
        stored = evaluator.read(turned, index) if turned else evaluator.at(op.value, index)
        mask = None if op.mask is None else evaluator.at(op.mask, index)
        place = Place(evaluator.at(op.ptr, index), stored_type(held))
        evaluator.memory.store(place, evaluator.to_memory(stored, held, count), mask, count)

    def cost(index: Index) -> int:
        operands = [operand for operand in (op.ptr, op.value, op.mask) if operand is not None]
        return body.order.cost([(operand, index) for operand in operands], [(op.ptr, index)])

    order = turned.order if turned else body.best_order(shape, lanes, cost)
    body.each(shape, lanes, visit, order)


def _turned(body: Body, op: tile.StoreOp, lanes: int) -> Buffer | None:
    """Return a transposed copy of a stored buffer that runs across the memory written."""
    value: ir.Value = op.value
    if not shape_of(value.type) or body.definition(value) is not None:
        return None
    kept = body.buffer(value)
    order = body.best_order(kept.shape, lanes, lambda index: body.order.cost([], [(op.ptr, index)]))
    if not can_transpose(kept, order[0], lanes):
        return None
    turned = body.allocate(kept.shape, kept.held, order)
    body.copy(value, turned)
    body.arena.touch(turned.slot)
    return turned
