"""Lower `scf.for`, `scf.while` and `scf.if` that carry tiles.

A carried scalar stays a value of the op. A carried tile has one buffer for the whole loop, which
the initial value fills, each trip overwrites and the result names; the same buffer serves both
branches of an `if`. What a region yields replaces all carried tiles at once: a yielded tile is
computed straight into its place as soon as no other one reads what is there, and aside where they
wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from mlir import ir

from tiledsl.dialects.types import is_tile, shape_of
from tiledsl.targets.host.body import Body
from tiledsl.targets.host.build import For, add_block, create, yielded
from tiledsl.targets.host.evaluate import Buffer
from tiledsl.targets.host.lanes import Uniform, known_ones, mask_of, trailing_zeros
from tiledsl.targets.host.machine_types import value_type, width_of


def lower_for(body: Body, op: ir.OpView) -> None:
    """Lower a counted loop."""
    operands = list(op.operation.operands)
    bounds = [body.scalar(value) for value in operands[:3]]
    inits, results = operands[3:], list(op.operation.results)
    block = op.operation.regions[0].blocks[0]
    counter, *carried = block.arguments
    buffers = _enter(body, inits, carried, results)
    starts = _scalars(body, inits)
    low, high, step = (bound.value for bound in bounds)
    loop = For((low, high, step), starts, body.at)
    body.set_scalar(counter, _counter(loop.counter, bounds[0], bounds[2]))
    _set_scalars(body, carried, loop.carried)
    with body.arena.loop(), body.inside(loop.body):
        body.lower_block(body, block)
        yields = yielded(block)
        _replace(body, yields, buffers)
        ends = _scalars(body, yields)
        finals = loop.finish(ends)
    _leave(body, results, finals, buffers)


def lower_while(body: Body, op: ir.OpView) -> None:
    """Lower a loop with a test."""
    inits, results = list(op.operation.operands), list(op.operation.results)
    before, after = (region.blocks[0] for region in op.operation.regions)
    buffers = _enter(body, inits, before.arguments, None)
    starts = _scalars(body, inits)
    scalars = [value_type(result.type) for result in results if not is_tile(result.type)]
    loop = create("scf.while", starts, scalars, regions=2, at=body.at)
    with body.arena.loop():
        test = add_block(loop, 0, [start.type for start in starts])
        _set_scalars(body, before.arguments, list(test.arguments))
        with body.inside(ir.InsertionPoint(test)):
            body.lower_block(body, before)
            condition, *passed = yielded(before)
            handed = _hand_over(body, passed)
            values = _scalars(body, passed)
            flags = [body.scalar(condition).value, *values]
            create("scf.condition", flags, at=body.at)
        trip = add_block(loop, 1, scalars)
        _leave(body, list(after.arguments), list(trip.arguments), handed)
        with body.inside(ir.InsertionPoint(trip)):
            body.lower_block(body, after)
            yields = yielded(after)
            _replace(body, yields, buffers)
            ends = _scalars(body, yields)
            create("scf.yield", ends, at=body.at)
    _leave(body, results, list(loop.results), handed)


def lower_if(body: Body, op: ir.OpView) -> None:
    """Lower a branch."""
    results = list(op.operation.results)
    buffers = [body.destination(r) if is_tile(r.type) else None for r in results]
    for result, buffer in zip(results, buffers, strict=True):
        if buffer is not None:
            body.set_buffer(result, buffer)
    scalars = [value_type(result.type) for result in results if not is_tile(result.type)]
    condition = body.scalar(op.operation.operands[0]).value
    made = create("scf.if", [condition], scalars, regions=2, at=body.at)
    for number, old in enumerate(op.operation.regions):
        if not len(old.blocks):
            continue
        block = old.blocks[0]
        with body.inside(ir.InsertionPoint(add_block(made, number))):
            body.lower_block(body, block)
            yields = yielded(block)
            _replace(body, yields, buffers)
            ends = _scalars(body, yields)
            create("scf.yield", ends, at=body.at)
    _leave(body, results, list(made.results), buffers)


def _counter(value: ir.Value, low: Uniform, step: Uniform) -> Uniform:
    """Return a loop's counter: it keeps the zeros that start and step have in common."""
    width = width_of(value.type)
    start = known_ones(low)
    zeros = min(trailing_zeros(start, width), trailing_zeros(known_ones(step), width))
    # From a start that is not negative it only grows.
    top = width if start >> (width - 1) else width - 1
    return Uniform(value, 0, mask_of(top) & -(1 << zeros))


def _scalars(body: Body, values: Sequence[ir.Value]) -> list[ir.Value]:
    """Return the scalars among some values, as they are now."""
    return [body.scalar(value).value for value in values if not is_tile(value.type)]


def _set_scalars(body: Body, old: Sequence[ir.Value], new: Sequence[ir.Value]) -> None:
    values = iter(new)
    for value in old:
        if not is_tile(value.type):
            body.set_scalar(value, Uniform(next(values)))


def _enter(
    body: Body, inits: Sequence[ir.Value], carried: Sequence[ir.Value],
    results: Sequence[ir.Value] | None,
) -> list[Buffer | None]:  # fmt: skip
    """Put the initial tiles into the carried tiles' buffers; return those, None for scalars."""
    buffers: list[Buffer | None] = []
    for i, (init, value) in enumerate(zip(inits, carried, strict=True)):
        if not is_tile(value.type):
            buffers.append(None)
            continue
        buffer = body.destination(value if results is None else results[i])
        body.copy(init, buffer)
        buffers.append(buffer)
    for value, buffer in zip(carried, buffers, strict=True):
        if buffer is not None:
            body.set_buffer(value, buffer)
    return buffers


def _hand_over(body: Body, passed: Sequence[ir.Value]) -> list[Buffer | None]:
    """Return where the tiles that a test passes on lie: where they are, if they have a place."""
    buffers: list[Buffer | None] = []
    for value in passed:
        if not is_tile(value.type):
            buffers.append(None)
        elif body.definition(value) is None:
            buffers.append(body.buffer(value))
        else:
            buffer = body.allocate(shape_of(value.type), value_type(value.type))
            body.copy(value, buffer)
            buffers.append(buffer)
    return buffers


@dataclass
class _Move:
    """A yielded tile on its way.

    Attributes:
        put: Writes it into the target.
        target: Where it goes.
        reads: The buffers (slots) that it is computed from; False where an element of the result
            needs other elements than its own.
    """

    put: Callable[[Buffer], None]
    target: Buffer
    reads: dict[int, bool]

    def may_go(self, waiting: Sequence[_Move]) -> bool:
        """Return whether nothing still needs what the target holds."""
        slot = self.target.slot
        others = any(slot in move.reads for move in waiting if move is not self)
        return not others and self.reads.get(slot, True)


def _replace(body: Body, yields: Sequence[ir.Value], buffers: Sequence[Buffer | None]) -> None:
    """Write the yielded tiles into the buffers, as if all at once."""
    waiting = [
        _Move(partial(body.copy, value), buffer, body.reads(value))
        for value, buffer in zip(yields, buffers, strict=True)
        if buffer is not None and not body.is_at(value, buffer)
    ]
    while waiting:
        move = next((move for move in waiting if move.may_go(waiting)), None)
        if move is not None:
            move.put(move.target)
            waiting.remove(move)
            continue
        # A cycle: set one tile aside, which frees what it was computed from.
        stuck = waiting[0]
        spare = body.allocate(stuck.target.shape, stuck.target.held)
        stuck.put(spare)
        stuck.put, stuck.reads = partial(body.move, spare), {}


def _leave(
    body: Body, results: Sequence[ir.Value], finals: Sequence[ir.Value],
    buffers: Sequence[Buffer | None],
) -> None:  # fmt: skip
    """Name what a region op leaves behind."""
    _set_scalars(body, results, finals)
    for result, buffer in zip(results, buffers, strict=True):
        if buffer is not None:
            body.set_buffer(result, buffer)
