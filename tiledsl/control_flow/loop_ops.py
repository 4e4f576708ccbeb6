"""The `scf` ops of traced loops.

A `for` is an `scf.for`; one that may break at run time is an `scf.while` that counts itself and
tests the flag, so that it ends at once. A `while` is an `scf.while`.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir

from tiledsl.control_flow.carry import Carry, Leaf
from tiledsl.dialects.context import context
from tiledsl.language import elementwise
from tiledsl.language.builder import Region, current
from tiledsl.language.ranges import range as run_time_range
from tiledsl.language.trips import Trips
from tiledsl.language.types import tile_of, to_ir
from tiledsl.language.value import Value


def _types(leaves: Sequence[Leaf]) -> list[ir.Type]:
    return [tile_of(leaf.type.dtype, leaf.type.shape) for leaf in leaves]


def make_for(
    carry: Carry, body: Region, trips: Trips, counted: run_time_range, stop: str | None
) -> None:
    """Make the op of a `for`.

    Args:
        carry: What its body carries.
        body: The body, closed; its first argument counts.
        trips: The bounds.
        counted: The range, for its hints.
        stop: The variable that ends the loop when it is true, if there is one.
    """
    builder = current()
    kept = carry.settle([body], 1)
    flag = next((i for i, leaf in enumerate(kept) if leaf.path == (stop,)), None)
    handed_on = [leaf.handed_on(0, body) for leaf in kept]
    if flag is not None:
        carry.give_results(kept, _counting_while(kept, handed_on, flag, body, trips))
        return
    builder.create("scf.yield", handed_on, [], region=body)
    bounds = [bound.handle for bound in trips.bounds]
    operands = [*bounds, *(leaf.start() for leaf in kept)]
    op = builder.structured("scf.for", operands, _types(kept), [body], counted.attributes())
    carry.give_results(kept, list(op.results))


def _counting_while(
    kept: Sequence[Leaf], handed_on: Sequence[ir.Value], flag: int, body: Region, trips: Trips
) -> list[ir.Value]:
    """Make a loop that goes on while it is below the bound and the flag is false."""
    builder = current()
    first, last, step = trips.bounds
    types = [to_ir(trips.counter), *_types(kept)]
    test = builder.open("a run-time loop", types)
    arguments = [test.block.arguments[i] for i in range(len(types))]
    below = elementwise.less(Value(arguments[0], trips.counter, (), test), last)
    true = ir.BoolAttr.get(True, context())
    one = builder.create("arith.constant", [], [true.type], {"value": true}).results[0]
    running = builder.create("arith.xori", [arguments[1 + flag], one], [true.type]).results[0]
    both = builder.create("arith.andi", [below.handle, running], [true.type]).results[0]
    builder.create("scf.condition", [both, *arguments], [])
    builder.close()
    count = body.block.arguments[0]
    following = builder.create("arith.addi", [count, step.handle], [count.type], region=body)
    builder.create("scf.yield", [following.results[0], *handed_on], [], region=body)
    initial = [first.handle, *(leaf.start() for leaf in kept)]
    op = builder.structured("scf.while", initial, types, [test, body])
    results: list[ir.Value] = [*op.results]
    return results[1:]


def make_while(carry: Carry, regions: Sequence[Region], condition: Value) -> None:
    """Make the op of a `while`.

    Args:
        carry: What it carries.
        regions: The test and the body, closed.
        condition: The bool scalar that the test gives.
    """
    builder = current()
    test, body = regions
    kept = carry.settle(regions, 0)
    forwarded = [leaf.handed_on(0, test) for leaf in kept]
    builder.create("scf.condition", [condition.held_at(test), *forwarded], [], region=test)
    builder.create("scf.yield", [leaf.handed_on(1, body) for leaf in kept], [], region=body)
    initial = [leaf.start() for leaf in kept]
    op = builder.structured("scf.while", initial, _types(kept), regions)
    carry.give_results(kept, list(op.results))
