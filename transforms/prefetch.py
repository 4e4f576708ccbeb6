"""Which loads of a loop are worth running ahead, and which way their data goes until it is used.

A load is wanted if its tile feeds a matrix product of the loop, or, where the author asked for
stages on the loop itself, if it loads a tile at all. It may run ahead if nothing in the loop may
write what it reads, and if its address can be computed ahead (`schedule`).

Its data goes one of three ways:

- `COPIES`: asynchronous copies to shared memory, where the target has them, each thread's pieces
  are wide enough, and lanes that are masked off are zero.
- `EXCHANGED`: through registers, then through shared memory, as threads need other elements than
  they loaded.
- `HELD`: in the registers that it is used from.
- `BOXES`: loads through tensor descriptors are copied to shared memory by the unit for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import prod

from mlir import ir

from tiledsl.dialects import tgpu, tile
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.layout_shape import register_map
from tiledsl.dialects.layouts import Layouts
from tiledsl.dialects.types import (
    bit_width,
    element_of,
    is_pointer,
    is_tile,
    shape_of,
    storage_bits,
)
from tiledsl.transforms.axis_facts import AxisFacts, vector_elements
from tiledsl.transforms.effects import is_speculatable
from tiledsl.transforms.fold import is_zero
from tiledsl.transforms.memory_accesses import Accesses
from tiledsl.transforms.rewrite import terminator
from tiledsl.transforms.schedule import Loop, LoopOp, Plan, Role, plan

_CHEAP = (
    tile.ProgramIdOp, tile.NumProgramsOp, tile.BlockIdOp, tile.MakeRangeOp, tile.SplatOp,
    tile.ExpandDimsOp, tile.BroadcastOp, tile.ReshapeOp, tile.TransOp, tile.JoinOp, tile.SplitOp,
    tile.CatOp, tile.AddPtrOp, tile.HintOp, tile.FloorDivOp, tile.FloorModOp, tile.CastOp,
    tile.BitcastOp,
)  # fmt: skip
_PRODUCTS = (tgpu.MmaOp, tgpu.WarpgroupMmaOp, tgpu.FmaDotOp)
_MOST_HELD_BITS = 8 * 32
"""What a thread holds of a tile in registers, from one trip to the next, rather than copies it."""
_LEAST_COPY_BYTES = 4
"""The smallest asynchronous copy of a thread."""


class Way(Enum):
    """Where data is between its load and its use; see the module's docstring."""

    COPIES = "copies"
    EXCHANGED = "exchanged"
    HELD = "held"
    BOXES = "boxes"


@dataclass(frozen=True, eq=False)
class Prefetch:
    """A load that runs ahead."""

    load: tile.LoadOp | tile.DescriptorLoadOp
    way: Way


@dataclass(frozen=True)
class Ahead:
    """What of a loop runs ahead.

    Attributes:
        ops: The ops of the body, without its end, by the numbers that `plan` uses.
        plan: Which of them run ahead.
        prefetches: By number of a load, how its data goes.
    """

    ops: Sequence[ir.OpView]
    plan: Plan
    prefetches: dict[int, Prefetch]


def find_ahead(
    loop: ir.Operation,
    accesses: Accesses,
    facts: AxisFacts,
    *,
    ahead: int,
    copies: bool,
    every: bool,
) -> Ahead | None:
    """Return what of `loop` should run ahead, None if nothing.

    Args:
        loop: An `scf.for`.
        accesses: Of the kernel.
        facts: Of the kernel, as it is.
        ahead: Trips between a load and its use.
        copies: Whether the target has asynchronous copies.
        every: Whether all loads of tiles are wanted, not only those that feed matrix products.
    """
    body = loop.regions[0].blocks[0]
    ops = list(body.operations)[:-1]
    wanted = [i for i, op in enumerate(ops) if _is_wanted(op, every)]
    if not wanted:
        return None
    inside = list(operations(loop))
    writes = Writes.of(inside, accesses)
    found = plan(read_loop(loop, ops, Roles(writes, accesses, facts)), wanted)
    if found is None:
        return None
    nested = any(isinstance(op, tgpu.AsyncCommitOp | tgpu.AsyncWaitOp) for op in inside)
    chooser = _Chooser(accesses.layouts, facts, ahead, copies and not nested)
    prefetches = {number: chooser.prefetch(ops[number]) for number in found.loads}
    return Ahead(ops, found, prefetches)


def copied_bytes(what: Ahead) -> int:
    """Give the bytes that a trip copies of tiles that no product reads."""
    tiles = [one.load.result for one in what.prefetches.values() if one.way is Way.COPIES]
    return sum(
        prod(shape_of(value.type)) * storage_bits(value.type) // 8
        for value in tiles
        if not _feeds_product(value)
    )


def _is_wanted(op: ir.OpView, every: bool) -> bool:
    if not isinstance(op, tile.LoadOp | tile.DescriptorLoadOp) or not is_tile(op.result.type):
        return False
    element = element_of(op.result.type)
    if is_pointer(element) or bit_width(element) < 8:
        return False
    return every or _feeds_product(op.result)


def _feeds_product(value: ir.Value) -> bool:
    """Whether a tile reaches an operand of a matrix product through cheap ops alone."""
    stack, seen = [value], {value}
    while stack:
        for use in stack.pop().uses:
            user = use.owner
            if isinstance(user, _PRODUCTS) and use.operand_number < 2:
                return True
            if is_cheap(user) or isinstance(user, tgpu.ConvertLayoutOp):
                fresh = [result for result in user.operation.results if result not in seen]
                seen.update(fresh)
                stack += fresh
    return False


def is_cheap(op: ir.OpView) -> bool:
    """Whether an op has no effects and does little work."""
    return isinstance(op, _CHEAP) or op.operation.name.startswith(("arith.", "math."))


@dataclass(frozen=True)
class Writes:
    """What a loop may write.

    Attributes:
        bases: Numbers of the kernel's arguments that it writes through.
        anything: Whether it may write anywhere, or orders later reads after something.
    """

    bases: frozenset[int] = frozenset()
    anything: bool = False

    @staticmethod
    def of(ops: Sequence[ir.OpView], accesses: Accesses) -> Writes:
        """Read what `ops`, those of nested regions included, write."""
        found = Writes()
        for op in ops:
            match op:
                case tile.StoreOp():
                    found = found.through(accesses.bases(op.ptr))
                case tile.DescriptorStoreOp():
                    found = found.through(accesses.bases(op.box.base))
                case tile.AtomicRmwOp() | tile.AtomicCasOp():
                    orders = op.sem not in ("relaxed", "release")
                    found = found.through(None if orders else accesses.bases(op.ptr))
                case tile.AssertOp() | tile.BarrierOp():
                    found = replace(found, anything=True)  # what follows must not run before it
                case _:
                    pass
        return found

    def through(self, bases: frozenset[int] | None) -> Writes:
        """Add a write through pointers from `bases`."""
        if bases is None:
            return replace(self, anything=True)
        return replace(self, bases=self.bases | bases)

    def may_change(self, read: frozenset[int] | None) -> bool:
        """Whether what is read through pointers from `read` may be written."""
        if self.anything:
            return True
        return bool(self.bases) and (read is None or bool(self.bases & read))


def read_loop(loop: ir.Operation, ops: Sequence[ir.OpView], roles: Roles) -> Loop:
    """Give a loop to the schedule: what each op of its body reads and may do."""
    body = loop.regions[0].blocks[0]
    makers: dict[ir.Value, tuple[str, int]] = {
        argument: ("carried", i) for i, argument in enumerate(list(body.arguments)[1:])
    }
    read: list[LoopOp] = []
    for number, op in enumerate(ops):
        sources = [makers[value] for value in op.operation.operands if value in makers]
        read.append(
            LoopOp(
                roles.of(op),
                tuple(n for kind, n in sources if kind == "op"),
                tuple(n for kind, n in sources if kind == "carried"),
            )
        )
        makers.update((result, ("op", number)) for result in op.operation.results)
    yields = tuple(makers.get(value) for value in terminator(body).operands)
    return Loop(tuple(read), yields)


@dataclass(frozen=True)
class Roles:
    """Says what an op of a loop is to the schedule.

    Attributes:
        writes: What the loop may write.
        accesses: Of the kernel.
        facts: Of the kernel.
        exists: Whether ops run ahead only for trips that there are.
    """

    writes: Writes
    accesses: Accesses
    facts: AxisFacts
    exists: bool = False

    def of(self, op: ir.OpView) -> Role:
        """Return an op's role."""
        if isinstance(op, tile.DescriptorLoadOp):
            stays = self.writes.may_change(self.accesses.bases(op.box.base))
            return Role.FIXED if stays else Role.LOAD
        if isinstance(op, tile.LoadOp):
            stays = op.volatile or self.writes.may_change(self.accesses.bases(op.ptr))
            return Role.FIXED if stays else Role.LOAD
        # Running ahead is speculation if the trip may not exist.
        safe = self.exists or is_speculatable(op) or self._divides_safely(op.operation)
        return Role.CHEAP if is_cheap(op) and safe else Role.FIXED

    def _divides_safely(self, op: ir.Operation) -> bool:
        divisor = self.facts.of(op.operands[1]).range
        return divisor is not None and (divisor.lo > 0 or divisor.hi < -1)


@dataclass(frozen=True)
class _Chooser:
    """Chooses the way of a load's data."""

    layouts: Layouts
    facts: AxisFacts
    ahead: int
    copies: bool

    def prefetch(self, op: ir.OpView) -> Prefetch:
        """Choose for a load."""
        if isinstance(op, tile.DescriptorLoadOp):
            return Prefetch(op, Way.BOXES)
        assert isinstance(op, tile.LoadOp)
        exchanged = any(self._moves(use.owner) for use in op.result.uses)
        # Little data of one trip is held in registers more cheaply than it is copied and read.
        if (exchanged or self.ahead > 1 or self._is_much(op)) and self._can_copy(op):
            return Prefetch(op, Way.COPIES)
        return Prefetch(op, Way.EXCHANGED if exchanged else Way.HELD)

    def _is_much(self, op: tile.LoadOp) -> bool:
        bits = self.layouts.of(op.ptr.type).registers * storage_bits(op.result.type)
        return bits > _MOST_HELD_BITS

    def _moves(self, user: ir.OpView) -> bool:
        if isinstance(user, tgpu.WarpgroupMmaOp):
            return True
        if not isinstance(user, tgpu.ConvertLayoutOp):
            return False
        source, result = self.layouts.of(user.source.type), self.layouts.of(user.tile.type)
        return register_map(source, result) is None

    def _can_copy(self, op: tile.LoadOp) -> bool:
        if not self.copies or not (op.other is None or is_zero(op.other)):
            return False
        layout = self.layouts.of(op.ptr.type)
        elements = max(
            min(layout.contiguous_run(axis), vector_elements(self.facts, op.ptr, op.mask, axis))
            for axis in range(layout.rank)
        )
        return elements * storage_bits(op.result.type) // 8 >= _LEAST_COPY_BYTES
