"""Whether a trip exists, against Python's ranges, up to the ends of the type."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlir import ir

from tests.transforms.tile_interpreter import Machine, Memory
from tiledsl.dialects.context import parse
from tiledsl.transforms.axis_facts import AxisFacts
from tiledsl.transforms.lanes import Lanes
from tiledsl.transforms.trips import Trips

LEAST, MOST = -(2**31), 2**31 - 1
ends = st.one_of(st.integers(-9, 9), st.integers(LEAST, LEAST + 9), st.integers(MOST - 9, MOST))


def answers(step: int | None, what: str, ahead: int) -> ir.Module:
    """Return a function of lower, upper, step and i whose result says if the trip exists."""
    by = "%s" if step is None else "%step"
    constant = "" if step is None else f"%step = arith.constant {step} : i32"
    module = parse(
        f"""func.func @k(%l: i32, %u: i32, %s: i32, %at: i32) -> i1 {{
        {constant}
        scf.for %i = %l to %u step {by} : i32 {{ }}
        %never = arith.constant false
        return %never : i1
        }}"""
    )
    function = module.body.operations[0].operation
    block = function.regions[0].blocks[0]
    loop = next(op.operation for op in block.operations if op.operation.name == "scf.for")
    end = block.operations[len(block.operations) - 1].operation
    trips = Trips.of(loop, AxisFacts(module))
    with module.context, ir.Location.unknown(), ir.InsertionPoint(end):
        at = Lanes(block.arguments[3])
        found = trips.early(ahead) if what == "early" else trips.later(at, ahead)
        assert found is not None
        cast("Any", end).operands[0] = found.value
    loop.erase()
    return module


def ask(module: ir.Module, *numbers: int) -> bool:
    arguments = [np.array(number, np.int32) for number in numbers]
    return bool(Machine(Memory([])).run(module, *arguments)[0])


@settings(max_examples=100, deadline=None)
@given(ends, ends, st.sampled_from([1, 2, 3, 32, 2**30, MOST]), st.booleans(), st.integers(0, 4))
def test_an_early_trip_exists_as_in_python(
    lower: int, upper: int, step: int, known: bool, trip: int
):
    module = answers(step if known else None, "early", trip)
    assert ask(module, lower, upper, step, 0) == (trip < len(range(lower, upper, step)))


@settings(max_examples=100, deadline=None)
@given(
    ends,
    ends,
    st.sampled_from([1, 2, 3, 32, 2**30, MOST]),
    st.booleans(),
    st.integers(1, 4),
    st.integers(0, 5),
)
def test_a_later_trip_exists_as_in_python(
    lower: int, upper: int, step: int, known: bool, ahead: int, trip: int
):
    trips = range(lower, upper, step)
    if trip < len(trips):
        module = answers(step if known else None, "later", ahead)
        found = ask(module, lower, upper, step, trips[trip])
        assert found == (trip + ahead < len(trips))


@pytest.mark.parametrize(
    ("bounds", "surely", "most"),
    [
        ("%a = arith.constant 0 : i32\n%b = arith.constant 10 : i32", 4, 4),
        ("%a = arith.constant 4 : i32\n%b = arith.constant 4 : i32", 0, 0),
        ("%a = arith.constant 0 : i32\n%b = arith.maxsi %n, %c12 : i32", 4, 715827883),
        ("%a = arith.constant 0 : i32\n%b = arith.minsi %n, %c12 : i32", 0, 4),
    ],
)
def test_ranges_bound_the_number_of_trips(bounds: str, surely: int, most: int):
    module = parse(
        f"""func.func @k(%n: i32) {{
        %c12 = arith.constant 12 : i32
        %step = arith.constant 3 : i32
        {bounds}
        scf.for %i = %a to %b step %step : i32 {{ }}
        return
        }}"""
    )
    block = module.body.operations[0].operation.regions[0].blocks[0]
    loop = next(op.operation for op in block.operations if op.operation.name == "scf.for")
    trips = Trips.of(loop, AxisFacts(module))
    assert (trips.surely, trips.most, trips.step) == (surely, most, 3)
