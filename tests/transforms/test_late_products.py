"""Which products of a trip may be done in the next, and what moves with them."""

from __future__ import annotations

from typing import Any

import pytest
from mlir import ir

import tiledsl as tile
from tests.transforms.chained_products import (
    TYPES_IN_TF32,
    TYPES_OF_CHAINED,
    chained,
    chained_in_tf32,
)
from tiledsl.dialects import tgpu
from tiledsl.dialects.context import parse
from tiledsl.dialects.contracts import operations
from tiledsl.transforms.late_products import Trip, buffers_of, can_be_rebuilt, find_trip, narrows


def module_of(mode: str, stage: str) -> ir.Module:
    """Give a loop of two products as it is behind a pass."""
    options: Any = {"target": "sm_90a", "num_warps": 4}
    if mode == "tf32":
        made = tile.compile(chained_in_tf32, TYPES_IN_TF32, {}, **options)
    else:
        made = tile.compile(chained, TYPES_OF_CHAINED, {"MODE": mode, "BLOCK": 64}, **options)
    return parse(dict(made.stages)[stage])


def trip_of(module: ir.Module) -> Trip | None:
    """Look at the loop that multiplies."""
    loops = [op.operation for op in operations(module.operation) if op.operation.name == "scf.for"]
    (loop,) = (
        one for one in loops if any(isinstance(op, tgpu.WarpgroupMmaOp) for op in operations(one))
    )
    return find_trip(loop)


@pytest.fixture(scope="module")
def early() -> ir.Module:
    """A loop that qualifies, whose streams still are loads."""
    return module_of("plain", "assign_layouts")


@pytest.fixture(scope="module")
def piped() -> ir.Module:
    """The same with boxes on their way."""
    return module_of("plain", "copy_boxes")


def test_the_second_product_is_late_and_is_the_sum_that_the_loop_carries(early: ir.Module) -> None:
    trip = trip_of(early)
    assert trip is not None
    (number,) = trip.late
    late = trip.late[number]
    assert late.mma.acc == trip.body.arguments[1 + number]
    assert trip.first.mma.operation.is_before_in_block(late.mma.operation)
    assert trip.waits[late.mma.operation] == late.wait.operation
    assert {late.mma.operation, late.wait.operation} <= trip.moved
    assert trip.first.mma.operation not in trip.moved


def test_what_touches_a_late_products_memory_moves_with_it_and_nothing_else(
    piped: ir.Module,
) -> None:
    trip = trip_of(piped)
    assert trip is not None
    (late,) = trip.late.values()
    own, first = buffers_of(late.mma), buffers_of(trip.first.mma)
    assert own
    assert not own & first
    kinds = {op.name for op in trip.moved}
    assert {"tgpu.box_copy", "tgpu.mbarrier_wait", "tgpu.mbarrier_expect"} <= kinds
    assert not any(buffers_of(op.opview) & first for op in trip.moved)


@pytest.mark.parametrize("mode", ["independent", "used", "stores", "tf32"])
@pytest.mark.parametrize("stage", ["assign_layouts", "copy_boxes"])
def test_a_loop_that_does_not_qualify_has_no_such_trip(mode: str, stage: str) -> None:
    assert trip_of(module_of(mode, stage)) is None


def test_only_what_packs_a_late_operand_narrows(early: ir.Module) -> None:
    trip = trip_of(early)
    assert trip is not None
    (late,) = trip.late.values()
    narrowing = [op for op in trip.ops if narrows(op, trip)]
    packed: Any = late.mma.a.owner
    assert [op.operation for op in narrowing] == [packed.operation]


def test_slots_and_constants_are_rebuilt(piped: ir.Module) -> None:
    names = {op.operation.name for op in operations(piped.operation) if can_be_rebuilt(op)}
    assert names == {"tgpu.slot", "arith.constant"}
