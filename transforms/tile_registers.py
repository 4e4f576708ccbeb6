"""How many registers the tiles take that a thread holds at once in a trip of a loop.

An estimate, made before addresses, masks and single instructions are there. Counted is what a trip
carries, what it takes from outside, and what waits in it for a later op. Not counted is what costs
next to nothing: pointers, masks and what is computed of numbers that tell elements apart, since
each register's is made where it is needed; and operands that a product reads in shared memory
just before, a step along k at a time.
"""

from __future__ import annotations

from mlir import ir

from tiledsl.dialects import tgpu, tile
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.layout_shape import distinct_registers
from tiledsl.dialects.layouts import Layouts
from tiledsl.dialects.types import bit_width, is_pointer, is_tile, storage_bits
from tiledsl.transforms.effects import is_pure
from tiledsl.transforms.rewrite import is_inside

OTHERS = 80
"""Registers of a thread that no tile should take: addresses, masks, operands of one step."""

_REGISTER_BITS = 32
_CHEAP = (tile.MakeRangeOp, tile.SplatOp, tile.ExpandDimsOp, tile.BroadcastOp, tile.AddPtrOp)


def most_alive(loop: ir.Operation, layouts: Layouts) -> int:
    """Return the registers of the tiles that are alive at the worst place of an `scf.for`."""
    body = loop.regions[0].blocks[0]
    counts = _Counts(layouts, body)
    outer = {
        operand
        for op in operations(loop)
        for operand in op.operation.operands
        if not is_inside(operand, loop)
    }
    alive: set[ir.Value] = set()
    most = 0
    for op in reversed(list(body.operations)):
        alive -= set(op.operation.results)
        inner = operations(op.operation) if op.operation.regions else ()
        taken = [value for one in (op, *inner) for value in one.operation.operands]
        alive |= {value for value in taken if _belongs(value, body) and counts.of(value)}
        most = max(most, sum(map(counts.of, alive)))
    return sum(map(counts.of, outer)) + most


def _belongs(value: ir.Value, body: ir.Block) -> bool:
    """Whether a value is an argument of a block or made by one of its own ops."""
    owner = value.owner
    return owner == body if isinstance(owner, ir.Block) else owner.operation.block == body


class _Counts:
    """Registers of single tiles, as a loop's body sees them."""

    def __init__(self, layouts: Layouts, body: ir.Block) -> None:
        self._layouts = layouts
        self._body = body
        self._cheap: dict[ir.Value, bool] = {}

    def of(self, value: ir.Value) -> int:
        """Return how many registers a value takes from where it is made to its last use."""
        if not is_tile(value.type) or self._is_cheap(value) or self._is_read_by_steps(value):
            return 0
        layout = distinct_registers(self._layouts.of(value.type)).layout
        return max(1, layout.registers * storage_bits(value.type) // _REGISTER_BITS)

    def _is_cheap(self, value: ir.Value) -> bool:
        """Whether each register's part is made where it is needed."""
        if value not in self._cheap:
            self._cheap[value] = self._made_of_numbers(value)
        return self._cheap[value]

    def _made_of_numbers(self, value: ir.Value) -> bool:
        if is_pointer(value.type) or bit_width(value.type) == 1:
            return True
        owner = value.owner
        if isinstance(owner, ir.Block):
            return False
        op = owner.operation.opview
        if isinstance(op, _CHEAP) or op.operation.name == "arith.constant":
            return True
        tiles = [one for one in op.operation.operands if is_tile(one.type)]
        return is_pure(op) and bool(tiles) and all(map(self._is_cheap, tiles))

    def _is_read_by_steps(self, value: ir.Value) -> bool:
        """Whether products of the body read it in shared memory as they go."""
        owner = value.owner
        if isinstance(owner, ir.Block) or not isinstance(owner.operation.opview, tgpu.LocalLoadOp):
            return False
        users = [use.owner for use in value.uses]
        return owner.operation.block == self._body and all(
            isinstance(user, tgpu.MmaOp) for user in users
        )
