"""Which products of a loop's trip may be done in the next trip, beside that trip's first product.

A trip that multiplies, works on the result element by element and multiplies that again (attention
is such a loop) leaves the matrix units idle during the elementwise work, and the other way round.
Its second products are *late*: nothing in the trip reads their sums, which the loop only carries.
They may be issued in the next trip, right behind that trip's first product, and run while threads
work on what that one gave.

With a late product goes its *stream*: whatever touches the shared memory that it reads, and the
barriers that count what is copied there. All of the stream moves to the next trip as it is, so who
waits for whom within it stays as it was. A loop qualifies if

- exactly one product, the first, depends on no other of the trip, and on no late sum;
- every product that depends on the first is late, and depends on no other late one;
- what a late product takes from registers lies there as the trip computes it: threads that exchange
  it first would overwrite, a trip on, what the product still reads;
- streams share neither memory nor barriers with what stays in the trip;
- there are no other effects in the loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mlir import ir

from tiledsl.dialects import tgpu, tile
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.types import is_shared, is_tile, shape_of
from tiledsl.transforms.effects import TERMINATORS, is_control, is_pure
from tiledsl.transforms.rewrite import terminator

_STREAMED = (
    tgpu.WarpgroupMmaOp
    | tgpu.WarpgroupWaitOp
    | tgpu.MbarrierExpectOp
    | tgpu.MbarrierArriveOp
    | tgpu.MbarrierWaitOp
    | tgpu.BoxCopyOp
)
_READS = tile.DescriptorLoadOp | tile.LoadOp | tgpu.LocalLoadOp


@dataclass(frozen=True, eq=False)
class Product:
    """A product of warpgroups and the wait for it.

    Attributes:
        mma: The product.
        wait: The wait.
    """

    mma: tgpu.WarpgroupMmaOp
    wait: tgpu.WarpgroupWaitOp


@dataclass(frozen=True, eq=False)
class Trip:
    """A trip of a loop whose later products may be late.

    Attributes:
        loop: The loop.
        ops: The ops of its body, without its end.
        first: The product that begins a trip.
        late: By number of the carried value that is its sum, a late product.
        moved: The late products, their waits and their streams.
    """

    loop: ir.Operation
    ops: list[ir.OpView]
    first: Product
    late: dict[int, Product]
    moved: set[ir.Operation]

    @property
    def body(self) -> ir.Block:
        """The loop's body."""
        return self.loop.regions[0].blocks[0]

    @property
    def waits(self) -> dict[ir.Operation, ir.Operation]:
        """The wait for each product."""
        products = (self.first, *self.late.values())
        return {one.mma.operation: one.wait.operation for one in products}

    def reads(self, op: ir.OpView) -> Iterator[ir.Value]:
        """Yield what an op, or an op inside it, reads of the loop."""
        for inner in (op, *operations(op)):
            yield from inner.operation.operands


def find_trip(loop: ir.Operation) -> Trip | None:
    """Return what of a loop may be late, None if nothing.

    Args:
        loop: An `scf.for`; before `pipeline_loops` too, where streams still are loads.
    """
    body = loop.regions[0].blocks[0]
    ops = list(body.operations)[:-1]
    if "unsignedCmp" in loop.attributes or not all(map(_is_known, ops)):
        return None
    products = [_product(op) for op in ops if isinstance(op, tgpu.WarpgroupMmaOp)]
    if len(products) < 2 or None in products:
        return None
    needs = _Needs(ops)
    known = [one for one in products if one is not None]
    first = [one for one in known if not needs.products(one.mma)]
    late = _sums(loop, [one for one in known if needs.products(one.mma)])
    if len(first) != 1 or late is None:
        return None
    others = {one.mma.operation for one in late.values()}
    sums = {body.arguments[1 + number] for number in late}
    if any(needs.products(one.mma) & others for one in late.values()):
        return None
    if needs.values(first[0].mma.operation) & sums:
        return None
    if any(_is_exchanged(one.mma.a) for one in late.values() if not one.mma.a_shared):
        return None
    moved = _streams(ops, late, first[0])
    return None if moved is None else Trip(loop, ops, first[0], late, moved)


def _is_known(op: ir.OpView) -> bool:
    """Whether an op's effects, if it has any, are ones that this analysis follows."""
    if isinstance(op, _STREAMED | _READS) or is_pure(op):
        return True
    return is_control(op) and all(
        is_pure(inner) or is_control(inner) or inner.operation.name in TERMINATORS
        for inner in operations(op)
    )


def _product(mma: tgpu.WarpgroupMmaOp) -> Product | None:
    """Return a product whose result only a wait that waits for it reads."""
    users = [use.owner for use in mma.output.uses]
    if len(users) != 1 or not isinstance(users[0], tgpu.WarpgroupWaitOp) or users[0].pending:
        return None
    return Product(mma, users[0]) if users[0].operation.block == mma.operation.block else None


def _sums(loop: ir.Operation, products: list[Product]) -> dict[int, Product] | None:
    """Return products by the carried value that their sum is; None if one is something else."""
    found: dict[int, Product] = {}
    for one in products:
        uses = list(one.wait.output.uses)
        if len(uses) != 1 or uses[0].owner.operation != terminator(loop.regions[0].blocks[0]):
            return None
        found[uses[0].operand_number] = one
    return found or None


def _is_exchanged(operand: ir.Value) -> bool:
    """Whether threads exchange an operand on the way from the product that it follows from."""
    shape, work = shape_of(operand.type), [operand]
    seen: set[ir.Value] = set()
    while work:
        value = work.pop()
        if value in seen or isinstance(value.owner, ir.Block):
            continue
        seen.add(value)
        if isinstance(value.owner, tgpu.ConvertLayoutOp):
            return True
        if not isinstance(value.owner, tgpu.WarpgroupWaitOp):
            operands = value.owner.operation.operands
            work += [one for one in operands if is_tile(one.type) and shape_of(one.type) == shape]
    return False


class _Needs:
    """What ops of a body need of it, directly or not."""

    def __init__(self, ops: list[ir.OpView]) -> None:
        self._values: dict[ir.Operation, frozenset[ir.Value]] = {}
        for op in ops:
            needed: set[ir.Value] = set()
            for inner in (op, *operations(op)):
                for value in inner.operation.operands:
                    needed.add(value)
                    owner = value.owner
                    if not isinstance(owner, ir.Block):
                        needed |= self._values.get(owner.operation, frozenset())
            self._values[op.operation] = frozenset(needed)

    def values(self, op: ir.Operation) -> frozenset[ir.Value]:
        """Return the values that an op needs."""
        return self._values[op]

    def products(self, op: tgpu.WarpgroupMmaOp) -> set[ir.Operation]:
        """Return the products that an op needs, itself aside."""
        makers = (value.owner for value in self._values[op.operation])
        return {
            maker.operation
            for maker in makers
            if isinstance(maker, tgpu.WarpgroupMmaOp) and maker.operation in self._values
        }


def _streams(
    ops: list[ir.OpView], late: dict[int, Product], first: Product
) -> set[ir.Operation] | None:
    """Return the ops that move with late products; None if they cannot move alone."""
    moved = {op.operation for one in late.values() for op in (one.mma, one.wait)}
    effects = [op for op in ops if isinstance(op, _STREAMED)]
    touched = {buffer for one in late.values() for buffer in buffers_of(one.mma)}
    grown = True
    while grown:
        grown = False
        for op in effects:
            buffers = buffers_of(op)
            if op.operation not in moved and buffers & touched:
                moved.add(op.operation)
                touched |= buffers
                grown = True
    kept = [first.mma, *(op for op in ops if isinstance(op, tgpu.LocalLoadOp))]
    if first.mma.operation in moved or any(buffers_of(op) & touched for op in kept):
        return None
    return moved


def buffers_of(op: ir.OpView) -> set[ir.Operation]:
    """Return the allocations of the shared buffers that an op touches."""
    found: set[ir.Operation] = set()
    for value in op.operation.operands:
        if is_shared(value.type):
            maker = value.owner
            while isinstance(maker, tgpu.SlotOp):
                maker = maker.buffer.owner
            assert isinstance(maker, tgpu.AllocOp)
            found.add(maker.operation)
    return found


def can_be_rebuilt(op: ir.OpView) -> bool:
    """Whether a trip rebuilds a value of the last one from what that was made of."""
    return isinstance(op, tgpu.SlotOp) or op.operation.name == "arith.constant"


def narrows(op: ir.OpView, trip: Trip) -> bool:
    """Whether an op only packs a late product's operand into fewer registers."""
    if op.operation.name != "arith.truncf" and not isinstance(op, tile.CastOp):
        return False
    users = [use.owner.operation for use in op.operation.results[0].uses]
    return len(users) == 1 and any(users[0] == one.mma.operation for one in trip.late.values())
