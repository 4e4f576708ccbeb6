"""Do a loop's second products one trip late, beside the next trip's first product.

While threads work element by element on what a trip's first product gave, the matrix units have the
second product of the trip before. `late_products` says which products may be late, and what moves
with them. The loop becomes

    first trip, without its late products
    loop, from the second trip:
        issue this trip's first product
        issue the late products of the trip before
        wait for the first product; work on it element by element
        wait for the late products; what needs their sums
    the last trip's late products

What late products need of their trip is carried into the next: operands, and numbers of slots. The
elementwise work is anchored before the second wait, else later passes would move it to its uses,
which are behind; but the last step that packs an operand of a late product stays behind, where the
registers of the operand before it are free again. A loop that may have no trip is put under a
condition. `tile.overlap_products = false` on a loop leaves it as it is.

Before: the `tgpu` level, after `pipeline_loops` and `copy_boxes`.
After: the same.

    scf.for %i = ... iter_args(%acc) {
      %s = "tgpu.warpgroup_wait"("tgpu.warpgroup_mma"(%q, %k, %zero)) {pending = 0}
      %p = math.exp2 %s
      %acc2 = "tgpu.warpgroup_wait"("tgpu.warpgroup_mma"(%p, %v, %acc)) {pending = 0}
becomes
    scf.for %i = ... iter_args(%acc, %p) {
      %s0 = "tgpu.warpgroup_mma"(%q, %k, %zero)
      %acc1 = "tgpu.warpgroup_mma"(%p, %v, %acc)
      %s = "tgpu.warpgroup_wait"(%s0) {pending = 1}
      %p2 = "tgpu.anchor"(math.exp2 %s)
      %acc2 = "tgpu.warpgroup_wait"(%acc1) {pending = 0}
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from mlir import ir

from tiledsl.dialects import tgpu, tile
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.types import is_tile
from tiledsl.transforms.axis_facts import AxisFacts
from tiledsl.transforms.fold import constant_int
from tiledsl.transforms.kernels import kernels
from tiledsl.transforms.lanes import Lanes, select
from tiledsl.transforms.late_products import (
    Trip,
    buffers_of,
    can_be_rebuilt,
    find_trip,
    narrows,
)
from tiledsl.transforms.rewrite import attributes_of, terminator
from tiledsl.transforms.simplify import tidy
from tiledsl.transforms.trips import Trips

OVERLAP = "tile.overlap_products"
Values = dict[ir.Value, ir.Value]
_SPREADS = (tile.SplatOp, tile.ExpandDimsOp, tile.BroadcastOp)


def delay_products(module: ir.Module) -> None:
    """Run the pass described above on `module`, in place."""
    changed = False
    for kernel in kernels(module):
        loops = [op for op in operations(kernel.operation) if op.operation.name == "scf.for"]
        for loop in loops:
            trip = None if _is_declined(loop.operation) else find_trip(loop.operation)
            if trip is not None:
                surely = Trips.of(loop.operation, AxisFacts(kernel)).surely
                _Delay(trip).build(surely > 0)
                changed = True
    if changed:
        tidy(module)


def _is_declined(loop: ir.Operation) -> bool:
    """Whether the author wants no late products in a loop."""
    return OVERLAP in loop.attributes and not ir.BoolAttr(loop.attributes[OVERLAP]).value


class _Delay:
    def __init__(self, trip: Trip) -> None:
        self._trip = trip
        self._loop = trip.loop
        self._lower, self._upper, self._step, *self._inits = list(trip.loop.operands)
        self._arguments = list(trip.body.arguments)
        self._yields = list(terminator(trip.body).operands)
        self._kept = [n for n in range(len(self._inits)) if n not in trip.late]
        self._late = [op for op in trip.ops if op.operation in trip.moved]
        self._early = [op for op in trip.ops if op.operation not in trip.moved]
        self._crossing = self._find_crossing()
        self._after = self._find_after()

    def build(self, surely: bool) -> None:
        """Build the new form, under a condition unless there is a trip for sure; erase the old."""
        types = [value.type for value in self._inits]
        loop = self._loop
        with ir.InsertionPoint(loop), loop.location:
            if surely:
                results = self._build_here()
            else:
                results = _if(Lanes(self._lower).lt(Lanes(self._upper)).value, types)
                made = results[0].owner.operation
                then, otherwise = (region.blocks[0] for region in made.regions)
                with ir.InsertionPoint(then):
                    _yield(self._build_here())
                with ir.InsertionPoint(otherwise):
                    _yield(self._inits)
        for old, new in zip(loop.results, results, strict=True):
            old.replace_all_uses_with(new)
        loop.erase()

    # What goes where.

    def _find_crossing(self) -> list[ir.Value]:
        """Return what late ops need of their trip, that they do not make or rebuild themselves."""
        found: dict[ir.Value, None] = {}
        stack = [value for op in self._late for value in self._trip.reads(op)]
        while stack:
            value = stack.pop()
            owner = value.owner
            if isinstance(owner, ir.Block):
                if owner == self._trip.body:
                    found[value] = None
            elif owner.operation.block == self._trip.body:
                if can_be_rebuilt(owner):
                    stack += list(owner.operation.operands)
                elif owner.operation not in self._trip.moved:
                    found[value] = None
        return list(found)

    def _find_after(self) -> set[ir.Operation]:
        """Return the early ops that stand behind the wait for late products."""
        sums = {self._arguments[1 + n] for n in self._trip.late}
        found: set[ir.Operation] = set()
        for op in self._early:
            needs = any(value in sums for value in self._trip.reads(op))
            if needs or narrows(op, self._trip):
                found.add(op.operation)
                sums.update(op.operation.results)
        # What spreads a tile over more registers stays with who needs it.
        for op in reversed(self._early):
            if isinstance(op, _SPREADS):
                users = {use.owner.operation for use in op.operation.results[0].uses}
                if users and users <= found:
                    found.add(op.operation)
        return found

    # Building.

    def _build_here(self) -> list[ir.Value]:
        """Build the three parts; give the loop's results."""
        inits: Values = {}
        inits.update(zip(self._arguments, [self._lower, *self._inits], strict=True))
        for op in self._early:
            _copy(op, inits)
        started = [inits.get(self._yields[n], self._yields[n]) for n in self._kept]
        carried = [*started, *(inits[value] for value in self._crossing)]
        made = self._new_loop(carried)
        block = made.regions[0].blocks[0]
        with ir.InsertionPoint(block):
            self._fill(list(block.arguments))
        ends = list(made.results)
        last: Values = {}
        last.update(zip(self._crossing, ends[len(self._kept) :], strict=True))
        issued, beside, landed = self._parts()
        count = len(self._trip.late)
        self._copy_late([*issued, *landed[:count], *beside, *landed[count:]], last)
        results: dict[int, ir.Value] = {}
        results.update(zip(self._kept, ends, strict=False))
        results.update((n, last[one.wait.output]) for n, one in self._trip.late.items())
        return [results[n] for n in range(len(self._inits))]

    def _new_loop(self, carried: Sequence[ir.Value]) -> ir.Operation:
        types = [self._lower.type, *(value.type for value in carried)]
        create: Any = cast("Any", ir.Operation).create
        made: ir.Operation = create(
            "scf.for",
            results=types[1:],
            operands=[self._second(), self._upper, self._step, *carried],
            attributes=attributes_of(self._loop),
            regions=1,
        )
        blocks: Any = made.regions[0].blocks
        blocks.append(*types, arg_locs=[self._loop.location] * len(types))
        return made

    def _second(self) -> ir.Value:
        """Build the second trip's value of the loop's variable, the upper bound if it has none."""
        lower, upper, step = Lanes(self._lower), Lanes(self._upper), Lanes(self._step)
        following = lower + step
        if None not in (constant_int(self._lower), constant_int(self._step)):
            return following.value
        return select(step.ult(upper - lower), following, upper).value

    def _fill(self, arguments: Sequence[ir.Value]) -> None:
        """Fill the new loop's body."""
        trip = self._trip
        count = len(self._kept)
        before: Values = {}
        before.update(zip(self._crossing, arguments[1 + count :], strict=True))
        now: Values = {self._arguments[0]: arguments[0]}
        now.update(zip((self._arguments[1 + n] for n in self._kept), arguments[1:], strict=False))
        place = self._early.index(trip.first.mma)
        head, rest = self._early[: place + 1], self._early[place + 1 :]
        issued, beside, landed = self._parts()

        for op in head:
            _copy(op, now)
        self._copy_late([*issued, *beside], before)
        middle = [op for op in rest if op.operation not in self._after]
        for op in middle:
            made = _copy(op, now)
            if op.operation == trip.first.wait.operation:
                _wait_for_all_but(made, len(trip.late))
        self._anchor(middle, now)
        first = self._copy_late(landed, before)
        first.attributes["held"] = ir.BoolAttr.get(True)
        for number, one in trip.late.items():
            now[self._arguments[1 + number]] = before[one.wait.output]
        for op in rest:
            if op.operation in self._after:
                _copy(op, now)
        nexts = [now.get(self._yields[n], self._yields[n]) for n in self._kept]
        _yield([*nexts, *(now[value] for value in self._crossing)])

    def _parts(self) -> tuple[list[ir.OpView], list[ir.OpView], list[ir.OpView]]:
        """Return late ops: products with what they wait for, what need not wait for them, and rest.

        The rest begins with the waits.
        """
        issued: list[ir.OpView] = []
        beside: list[ir.OpView] = []
        landed: list[ir.OpView] = []
        over: set[ir.Operation] = set()
        waits = {one.wait.operation: one for one in self._trip.late.values()}
        for op in self._late:
            if op.operation in waits:
                over |= buffers_of(waits[op.operation].mma)
            elif buffers_of(op) & over:
                landed.append(op)
            elif isinstance(op, tgpu.WarpgroupMmaOp) or _waits_for_boxes(op):
                issued.append(op)
            else:
                beside.append(op)
        return issued, beside, [*(one.wait for one in waits.values()), *landed]

    def _anchor(self, ops: Iterable[ir.OpView], values: Values) -> None:
        """Have tiles that are used behind the wait computed before it."""
        for op in ops:
            for result in op.operation.results:
                if is_tile(result.type) and self._is_used_after(result):
                    made = tgpu.AnchorOp.build(values[result], results=[result.type])
                    values[result] = made.output

    def _is_used_after(self, value: ir.Value) -> bool:
        last = terminator(self._trip.body)
        users = [use.owner.operation for use in value.uses]
        return any(
            user == last or user in self._after or user in self._trip.moved for user in users
        )

    def _copy_late(self, ops: Iterable[ir.OpView], values: Values) -> ir.Operation:
        """Copy late ops here, with what they rebuild; `values` has the rest. Gives the first."""
        made: list[ir.Operation] = []
        for op in ops:
            for value in self._trip.reads(op):
                self._rebuild(value, values)
            made.append(_copy(op, values))
        return made[0]

    def _rebuild(self, value: ir.Value, values: Values) -> None:
        owner = value.owner
        if value in values or isinstance(owner, ir.Block):
            return
        if owner.operation.block == self._trip.body and can_be_rebuilt(owner):
            for operand in owner.operation.operands:
                self._rebuild(operand, values)
            _copy(owner, values)


def _waits_for_boxes(op: ir.OpView) -> bool:
    """Whether an op waits until there is what a product reads."""
    return isinstance(op, tgpu.MbarrierWaitOp) and op.by == "all"


def _wait_for_all_but(wait: ir.Operation, products: int) -> None:
    """Let a wait leave so many products in flight."""
    wait.attributes["pending"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), products)


def _copy(op: ir.OpView, values: Values) -> ir.Operation:
    """Clone an op, and what is in it, with the values that its operands are here."""
    made = cast("Any", op.operation).clone().operation
    for inner in (made, *(one.operation for one in operations(made))):
        for place, operand in enumerate(inner.operands):
            if operand in values:
                inner.operands[place] = values[operand]
    values.update(zip(op.operation.results, made.results, strict=True))
    return made


def _if(condition: ir.Value, types: Sequence[ir.Type]) -> list[ir.Value]:
    """Build a branch of two empty sides; give its results."""
    create: Any = cast("Any", ir.Operation).create
    made = create("scf.if", results=list(types), operands=[condition], regions=2)
    for region in made.regions:
        region.blocks.append()
    return list(made.results)


def _yield(values: Sequence[ir.Value]) -> None:
    cast("Any", ir.Operation).create("scf.yield", results=[], operands=list(values))
