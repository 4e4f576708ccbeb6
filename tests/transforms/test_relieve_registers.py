"""Loops that are short of registers read again and take turns; others stay as they are."""

from __future__ import annotations

import re

import pytest
from mlir import ir

from tests.transforms import staged_loops as loops
from tiledsl.dialects.context import parse
from tiledsl.dialects.contracts import TGPU, check
from tiledsl.transforms.relieve_registers import relieve_registers
from tiledsl.transforms.tile_registers import OTHERS

ENOUGH = 5 * 32 + OTHERS + 1
"""Registers that do for `loops.ATTENTION`."""
BUFFER = 4 << 10
"""Bytes of a buffer."""
_NAMES = {"tile.load": "load", "tgpu.local_load": "read", "tgpu.local_store": "write"}


def relieved(text: str, registers: int = ENOUGH - 1, room: int = 3 * BUFFER) -> str:
    """Give the ops that move or multiply tiles in the loop's body, and before it, in order."""
    module = parse(text)
    with module.context, ir.Location.unknown():
        relieve_registers(module, max_registers=registers, shared_bytes=room)
    check(module, TGPU)
    found = re.findall(r'"(tile\.load|tgpu\.mma|tgpu\.local_\w+)"|(scf\.for)', str(module))
    return " ".join(_NAMES.get(op, op.removeprefix("tgpu.")) or loop for op, loop in found)


def test_a_loop_with_registers_left_stays_as_it_is() -> None:
    assert relieved(loops.kernel(loops.ATTENTION), ENOUGH) == (
        "write read scf.for load load read mma read mma write write"
    )


def test_what_every_trip_multiplies_is_read_again_and_loads_take_turns() -> None:
    assert relieved(loops.kernel(loops.ATTENTION)) == (
        "write scf.for load read read mma write load read mma write"
    )


def test_what_is_loaded_in_turn_is_loaded_where_it_stands() -> None:
    module = parse(loops.kernel(loops.ATTENTION))
    with module.context, ir.Location.unknown():
        relieve_registers(module, max_registers=ENOUGH - 1, shared_bytes=3 * BUFFER)
    assert str(module).count("tgpu.in_place") == 2


@pytest.mark.parametrize(
    ("text", "room"),
    [
        # There is no room for its bytes beside the others'.
        (loops.kernel(loops.ATTENTION), 2 * BUFFER),
        # The loop writes over it.
        (loops.kernel(loops.ATTENTION + loops.FILL), 3 * BUFFER),
        # Somebody writes over it before the loop.
        (loops.kernel(loops.ATTENTION, loops.FILL + loops.READ + loops.FILL), 3 * BUFFER),
        # Others want it in registers.
        (loops.kernel(loops.ATTENTION, after=loops.FILL.replace("%x", "%q")), 3 * BUFFER),
    ],
)
def test_what_cannot_be_read_again_stays_in_registers(text: str, room: int) -> None:
    assert "write read" in relieved(text, room=room).split("scf.for")[0]


@pytest.mark.parametrize(
    "body",
    [
        # The store may write what the second load reads.
        loops.ATTENTION.replace(loops.LOADS, loops.LOADS + loops.WRITE),
        # One product reads both: there are no turns to take.
        loops.LOADS
        + loops.product("s", "q", "ks", "none").splitlines(keepends=True)[0]
        + loops.product("o", "sr", "vs", "acc")
        + loops.STORES,
    ],
)
def test_loads_stay_together_where_they_must_or_may_as_well(body: str) -> None:
    order = relieved(loops.kernel(body), registers=OTHERS).split("scf.for ")[1]
    assert order.startswith("load load")
    assert order.endswith("mma write write")
