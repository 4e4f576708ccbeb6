"""Carry a number through a loop instead of a tile that moves by it.

Kernels often step tiles of pointers or indices: `a_ptrs += BLOCK_K * stride`. Carried as a tile
that is a buffer read and written in every trip, and addresses that nobody sees to be neighbours. As
the first tile plus a carried scalar it costs one scalar addition, and the tile is computed where
used.

Before: any `tile` module.
After: no `scf.for` carries a tile whose next value is itself plus the same number in every element.

    %r = scf.for ... iter_args(%p = %p0) -> (tensor<64x!tile.ptr<f32>>) {
      ...
      %q = "tile.addptr"(%p, %splat_of_s)
      scf.yield %q
    }
becomes
    %n = scf.for ... iter_args(%m = %zero) -> (i64) {
      %p = "tile.addptr"(%p0, %splat_of_m)
      ...
      %m2 = arith.addi %m, %s
      scf.yield %m2
    }
"""

from __future__ import annotations

from dataclasses import dataclass

from mlir import ir

from tiledsl.dialects import tile
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.types import element_of, is_pointer, is_tile, like
from tiledsl.targets.host.build import Value, add_block, create
from tiledsl.targets.host.machine_types import integer
from tiledsl.transforms.rewrite import build, terminator


def carry_scalars(module: ir.Module) -> None:
    """Run the pass described above on `module`, in place."""
    loops = [op for op in operations(module.operation) if op.operation.name == "scf.for"]
    for loop in reversed(loops):  # inner loops first: an outer one may then step their result
        _rewrite(loop.operation)


@dataclass(frozen=True)
class _Step:
    """A carried tile that moves by a number.

    Attributes:
        position: Its place among the carried values.
        first: The tile at the first trip.
        scalar: The type that the sum of the numbers has.
        amount: The number, a scalar or the attribute of a constant.
    """

    position: int
    first: Value
    scalar: ir.Type
    amount: Value | ir.Attribute


def _rewrite(loop: ir.Operation) -> None:
    block = loop.regions[0].blocks[0]
    end = terminator(block)
    steps = {
        step.position: step
        for position, next_ in enumerate(end.operands)
        if (step := _step(position, loop, block, next_)) is not None
    }
    if not steps:
        return
    inits = list(loop.operands)[3:]
    with ir.InsertionPoint(loop), loop.location:
        for step in steps.values():
            inits[step.position] = _constant(step.scalar, ir.IntegerAttr.get(step.scalar, 0))
        bounds = list(loop.operands)[:3]
        types = [init.type for init in inits]
        made = create("scf.for", [*bounds, *inits], types, regions=1)
    new = add_block(made, 0, [block.arguments[0].type, *types])
    _enter(block, new, steps, loop.location)
    for op in list(block.operations):
        new.append(op)
    _advance(end, new, steps)
    _leave(loop, made, steps)
    loop.erase()


def _step(position: int, loop: ir.Operation, block: ir.Block, next_: ir.Value) -> _Step | None:
    """Return how a carried tile moves, if it moves by a number."""
    carried = block.arguments[1 + position]
    owner = next_.owner
    if not is_tile(carried.type) or isinstance(owner, ir.Block):
        return None
    op = owner.operation
    if op.name not in ("tile.addptr", "arith.addi") or op.block != block:
        return None
    operands = list(op.operands)
    if op.name == "arith.addi" and operands[1] == carried:
        operands.reverse()
    if operands[0] != carried:
        return None
    amount = _uniform(operands[1])
    if amount is None:
        return None
    scalar = integer(64) if is_pointer(carried.type) else element_of(carried.type)
    return _Step(position, loop.operands[3 + position], scalar, amount)


def _uniform(value: ir.Value) -> ir.Value | ir.Attribute | None:
    """Return the number in every element of a tile, if it is one."""
    owner = value.owner
    if isinstance(owner, tile.SplatOp):
        return owner.scalar
    if not isinstance(owner, ir.Block) and owner.operation.name == "arith.constant":
        number = owner.operation.attributes["value"]
        if isinstance(number, ir.DenseElementsAttr) and number.is_splat:
            return number.get_splat_value()
    return None


def _constant(type_: ir.Type, value: ir.Attribute) -> ir.Value:
    return create("arith.constant", results=[type_], attributes={"value": value}).results[0]


def _moved(step: _Step, by: ir.Value) -> ir.Value:
    """Build the first tile plus a number."""
    type_ = step.first.type
    splat = tile.SplatOp.build(by, results=[like(type_, step.scalar)]).tile
    if is_pointer(type_):
        return tile.AddPtrOp.build(step.first, splat, results=[type_]).result
    return create("arith.addi", [step.first, splat], [type_]).results[0]


def _enter(block: ir.Block, new: ir.Block, steps: dict[int, _Step], where: ir.Location) -> None:
    """Give the old block's uses their values in the new one."""
    for number, (old, argument) in enumerate(zip(block.arguments, new.arguments, strict=True)):
        step = steps.get(number - 1)
        if step is None:
            old.replace_all_uses_with(argument)
            continue
        with ir.InsertionPoint(new), where:
            old.replace_all_uses_with(_moved(step, argument))


def _advance(end: ir.Operation, new: ir.Block, steps: dict[int, _Step]) -> None:
    """Yield the sums of the numbers."""
    with ir.InsertionPoint(end), end.location:
        for step in steps.values():
            amount = step.amount
            if isinstance(amount, ir.Attribute):
                number = ir.IntegerAttr(amount)
                amount = _constant(number.type, number)
            if amount.type != step.scalar:
                at = ir.InsertionPoint(end)
                amount = build("arith.extsi", [amount], step.scalar, at, end.location)
            carried = new.arguments[1 + step.position]
            made = create("arith.addi", [carried, amount], [step.scalar])
            end.operands[step.position] = made.results[0]


def _leave(loop: ir.Operation, made: ir.Operation, steps: dict[int, _Step]) -> None:
    """Give the loop's results their values in the new one's."""
    for number, (old, result) in enumerate(zip(loop.results, made.results, strict=True)):
        step = steps.get(number)
        if step is None:
            old.replace_all_uses_with(result)
            continue
        with ir.InsertionPoint(loop), loop.location:
            old.replace_all_uses_with(_moved(step, result))
