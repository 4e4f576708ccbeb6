"""Fill a buffer from a tile that runs along another dimension than the buffer does.

A square of vectors along the tile's own dimension is computed, transposed in registers and written
as vectors along the buffer's dimension. Transposing 2**n vectors takes n rounds; round r
swaps, between vectors whose numbers differ in bit r, the lanes whose numbers differ in it (as in a
butterfly network).
"""

from __future__ import annotations

from collections.abc import Callable

from mlir import ir

from tiledsl.targets.host.code import Code
from tiledsl.targets.host.evaluate import Buffer, Evaluator
from tiledsl.targets.host.index import LANE, Bits, Index, log2, number
from tiledsl.targets.host.lanes import Lanes, Spread
from tiledsl.targets.host.nest import Nest


def can_transpose(buffer: Buffer, dimension: int, lanes: int) -> bool:
    """Return whether a buffer has whole squares of vectors along `dimension` and its own one."""
    own = buffer.order[0]
    return dimension != own and min(buffer.shape[dimension], buffer.shape[own]) >= 1 << lanes


def fill_transposed(
    nest: Nest,
    evaluator: Evaluator,
    buffer: Buffer,
    dimension: int,
    lanes: int,
    element: Callable[[Evaluator, Index], Lanes],
) -> None:
    """Emit the loops.

    Args:
        nest: A nest without loops.
        evaluator: Its evaluator.
        buffer: What to fill.
        dimension: Along which the tile is computed; not the one that the buffer runs along.
        lanes: Lane bits.
        element: Computes the tile at an index.
    """
    own = buffer.order[0]
    loops: dict[int, Bits] = {}
    for d in [*(d for d in reversed(buffer.order[1:]) if d != dimension), dimension, own]:
        bits = log2(buffer.shape[d]) - (lanes if d in (dimension, own) else 0)
        if bits:
            nest.open(1 << bits)
        loops[d] = tuple((nest.depth, bit) for bit in range(bits))

    def index(along: int, other: int, which: int) -> Index:
        """Return the index of lanes along a dimension, at number `which` of the other."""
        low: dict[int, Bits] = {
            along: tuple((LANE, bit) for bit in range(lanes)),
            other: number(which, lanes),
        }
        return tuple(low.get(d, ()) + loops[d] for d in range(len(buffer.shape)))

    count = 1 << lanes
    rows = [
        evaluator.arithmetic.vector(element(evaluator, index(dimension, own, which)), count)
        for which in range(count)
    ]
    columns = transposed(evaluator.arithmetic.code, rows, nest.at(nest.depth))
    for which, column in enumerate(columns):
        evaluator.write(buffer, index(own, dimension, which), Spread(column, nest.depth))
    nest.close_all()


def transposed(code: Code, rows: list[ir.Value], at: ir.InsertionPoint) -> list[ir.Value]:
    """Return the columns of a square of vectors."""
    current, count = list(rows), len(rows)
    for bit in (1 << r for r in range(log2(count))):
        for low in (i for i in range(count) if not i & bit):
            a, b = current[low], current[low | bit]
            first = [lane if not lane & bit else count + (lane ^ bit) for lane in range(count)]
            second = [lane ^ bit if not lane & bit else count + lane for lane in range(count)]
            current[low] = code.interleave(a, b, first, at)
            current[low | bit] = code.interleave(a, b, second, at)
    return current
