"""What a trip's tiles take at once is counted as threads will hold them."""

from __future__ import annotations

import pytest

from tests.transforms import staged_loops as loops
from tiledsl.dialects.context import parse
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.layouts import Layouts
from tiledsl.transforms.tile_registers import most_alive

TILE = 32


def alive(text: str) -> int:
    module = parse(text)
    with module.context:
        found = [op for op in operations(module.operation) if op.operation.name == "scf.for"]
        return most_alive(found[0].operation, Layouts(module))


@pytest.mark.parametrize(
    ("body", "tiles"),
    [
        # Sums, queries, and the scores with both operands of the next trip.
        (loops.ATTENTION, 5),
        # What is stored before the scores are made waits no more.
        (loops.LOADS + loops.STORES + loops.ATTENTION[len(loops.LOADS) : -len(loops.STORES)], 4),
        # Only the sums: what a product reads in shared memory is there a step at a time.
        (loops.product("o", "qr", "ks", "acc").replace("%qr,", "%or,"), 1),
    ],
)
def test_tiles_count_from_where_they_are_made_to_their_last_use(body: str, tiles: int) -> None:
    assert alive(loops.kernel(body)) == tiles * TILE


def test_what_is_made_of_constants_and_pointers_does_not_count() -> None:
    body = "%o = arith.addf %acc, %none : tensor<32x32xf32, @l>\n"
    assert alive(loops.kernel(body)) == TILE
