"""What a loop computes that its inner loop's loads need, to compute it for a later trip.

A loop over tiles computes where a tile lies before the loop over its pieces begins. To load pieces
of the next tile early, that part of the next trip is computed early: its *slice*, a clone of cheap
ops and of loads of what the loop does not write. It runs only for trips that exist, so it may
divide by what is zero in others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mlir import ir

from tiledsl.dialects import tile
from tiledsl.dialects.contracts import operations
from tiledsl.transforms.axis_facts import AxisFacts
from tiledsl.transforms.growing_loop import GrowingLoop
from tiledsl.transforms.memory_accesses import Accesses
from tiledsl.transforms.pipelined_loop import clone_op
from tiledsl.transforms.prefetch import Roles, Writes, read_loop
from tiledsl.transforms.schedule import Loop, LoopOp, Role, slice_of


@dataclass(frozen=True, eq=False)
class LoopSlice:
    """Part of a loop's body.

    Attributes:
        loop: The loop.
        ops: The ops, in order.
        carried: Numbers of the carried values that they, or who asked, read.
        wanted: The values of the body that were asked for.
        loads: Ops that read what the slice computes, but are not part of it.
    """

    loop: GrowingLoop
    ops: Sequence[ir.OpView]
    carried: tuple[int, ...]
    wanted: tuple[ir.Value, ...] = ()
    loads: Sequence[ir.OpView] = ()

    @property
    def inits(self) -> list[ir.Value]:
        """What the slice's carried values are at first."""
        return [self.loop.op.operands[3 + n] for n in self.carried]

    @property
    def reads(self) -> list[ir.Value]:
        """All that running the slice, and the loads, in a loop of its own reads."""
        bounds = list(self.loop.op.operands)[:3]
        every = [*self.ops, *self.loads]
        operands = [value for op in every for value in op.operation.operands]
        yields = self.loop.yields
        return [*bounds, *self.inits, *operands, *(yields[n] for n in self.carried)]

    def evaluate(
        self,
        counter: ir.Value,
        carried: Sequence[ir.Value],
        around: Mapping[ir.Value, ir.Value] | None = None,
    ) -> tuple[dict[ir.Value, ir.Value], list[ir.Value]]:
        """Clone the slice for another trip, here.

        Args:
            counter: The loop's variable in that trip.
            carried: The slice's carried values at its beginning.
            around: What values of loops around this one are, where they are not themselves.

        Returns:
            What the body's values (and those `around`) are in that trip, and the carried values in
            the next.
        """
        values = {**(around or {}), self.loop.counter: counter}
        mine = self.loop.carried
        values.update((mine[n], value) for n, value in zip(self.carried, carried, strict=True))
        for op in self.ops:
            clone_op(op, values, None)
        yields = self.loop.yields
        return values, [values.get(yields[n], yields[n]) for n in self.carried]


def slice_loop(
    loop: GrowingLoop, values: Iterable[ir.Value], accesses: Accesses, facts: AxisFacts
) -> LoopSlice | None:
    """Return how to compute `values` for a later trip of a loop, None if that cannot be.

    Values from outside of the loop are not asked for.
    """
    body = loop.block
    ops = list(body.operations)[:-1]
    roles = Roles(Writes.of(list(operations(loop.op)), accesses), accesses, facts, exists=True)
    whole = read_loop(loop.op, ops, roles)
    made = {result: n for n, op in enumerate(ops) for result in op.operation.results}
    wanted = tuple(
        dict.fromkeys(value for value in values if value in made or _argument(value, body))
    )
    reads = tuple(made[value] for value in wanted if value in made)
    carried = tuple(n for n, value in enumerate(loop.carried) if value in wanted)
    asking = Loop((*whole.ops, LoopOp(Role.CHEAP, reads, carried)), whole.yields)
    found = slice_of(asking, len(ops))
    if found is None or any(isinstance(ops[n], tile.DescriptorLoadOp) for n in found.ops):
        return None
    kept = [*wanted, *(loop.carried[n] for n in found.carried)]
    if not all(isinstance(value.type, ir.IntegerType | ir.FloatType) for value in kept):
        return None
    return LoopSlice(loop, [ops[n] for n in found.ops], found.carried, wanted)


def _argument(value: ir.Value, block: ir.Block) -> bool:
    return isinstance(value.owner, ir.Block) and value.owner == block


def may_run_ahead(
    loop: ir.Operation, loads: Iterable[ir.OpView], accesses: Accesses, facts: AxisFacts
) -> bool:
    """Whether nothing in a loop may write what loads of an inner one read."""
    roles = Roles(Writes.of(list(operations(loop)), accesses), accesses, facts)
    return all(roles.of(load) is Role.LOAD for load in loads)
