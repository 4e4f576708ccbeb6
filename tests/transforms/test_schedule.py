"""Plans against the definition of running ahead, rotations by simulation, for any number of trips."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledsl.transforms.schedule import (
    Copies,
    Loop,
    LoopOp,
    Registers,
    Role,
    Slice,
    plan,
    slice_of,
)

CHEAP, LOAD, FIXED = Role.CHEAP, Role.LOAD, Role.FIXED


@pytest.mark.parametrize("ahead", range(1, 5))
@pytest.mark.parametrize("trips", range(8))
def test_every_trip_reads_what_was_copied_for_it_and_waited_for(ahead: int, trips: int):
    copies = Copies(ahead)
    slots: dict[int, int] = {}
    flying: list[tuple[int, int]] = []
    read: list[int] = []
    for event in copies.events(trips):
        match event.kind:
            case "issue":
                assert event.slot < copies.slots
                assert event.real == (event.trip < trips)
                # What the slot held was read, or never was to be.
                assert slots.get(event.slot, -1) < len(read) or slots[event.slot] >= trips
                slots.pop(event.slot, None)
                flying.append((event.slot, event.trip))
            case "wait":
                while len(flying) > event.pending:
                    slot, trip = flying.pop(0)
                    slots[slot] = trip
            case _:
                assert slots[event.slot] == event.trip
                read.append(event.trip)
    assert read == list(range(trips))
    assert not flying


@pytest.mark.parametrize("ahead", range(1, 5))
@pytest.mark.parametrize("trips", range(8))
@pytest.mark.parametrize("exchanged", [True, False])
def test_every_trip_has_what_was_loaded_for_it(ahead: int, trips: int, exchanged: bool):
    registers = Registers(ahead, exchanged)
    slots: dict[int, int] = {}
    queue: list[int] = []
    had: list[int] = []
    issued: list[int] = []
    for event in registers.events(trips):
        match event.kind:
            case "issue":
                assert event.real == (event.trip < trips)
                issued.append(event.trip)
                queue.append(event.trip)
            case "store":
                assert slots.get(event.slot, -1) < len(had)
                slots[event.slot] = queue.pop(0)
                assert slots[event.slot] == event.trip
            case "read":
                assert slots[event.slot] == event.trip
                had.append(event.trip)
            case _:
                had.append(queue.pop(0))
                assert had[-1] == event.trip
        assert len(queue) <= registers.held + 1
    assert had == list(range(trips))
    assert issued == list(range(trips + ahead))


@st.composite
def loops(draw: st.DrawFn) -> Loop:
    count, carried = draw(st.integers(1, 8)), draw(st.integers(0, 3))
    ops = [
        LoopOp(
            draw(st.sampled_from([CHEAP, CHEAP, LOAD, FIXED])),
            tuple(draw(st.sets(st.integers(0, i - 1), max_size=2))) if i else (),
            tuple(draw(st.sets(st.integers(0, carried - 1), max_size=2))) if carried else (),
        )
        for i in range(count)
    ]
    sources = [None, *(("op", i) for i in range(count)), *(("carried", i) for i in range(carried))]
    yields = tuple(draw(st.sampled_from(sources)) for _ in range(carried))
    return Loop(tuple(ops), yields)


@settings(max_examples=200, deadline=None)
@given(loops(), st.data())
def test_a_slice_is_all_that_its_op_needs_and_no_more(loop: Loop, data: st.DataObject):
    op = data.draw(st.integers(0, len(loop.ops) - 1))
    found = slice_of(loop, op)
    # Every value that the op's result can depend on, over any number of trips back.
    reached: set[tuple[str, int]] = set()
    work = [("op", op)]
    while work:
        kind, number = work.pop()
        sources: list[tuple[str, int] | None] = []
        if kind == "carried":
            sources.append(loop.yields[number])
        else:
            sources += [("op", n) for n in loop.ops[number].reads]
            sources += [("carried", n) for n in loop.ops[number].carried]
        for source in sources:
            if source is not None and source not in reached:
                reached.add(source)
                work.append(source)
    ops = {n for kind, n in reached if kind == "op"}
    if any(loop.ops[n].role is FIXED for n in {op, *ops}):
        assert found is None
    else:
        carried = {n for kind, n in reached if kind == "carried"}
        assert found == Slice(tuple(sorted(ops)), tuple(sorted(carried)))


@settings(max_examples=100, deadline=None)
@given(loops())
def test_a_plan_holds_the_slice_of_each_of_its_loads(loop: Loop):
    found = plan(loop, range(len(loop.ops)))
    able = [i for i, op in enumerate(loop.ops) if op.role is LOAD and slice_of(loop, i)]
    if found is None:
        assert not able
        return
    assert list(found.loads) == able
    for load in able:
        needed = slice_of(loop, load)
        assert needed is not None
        assert set(needed.ops) <= set(found.slice.ops)
        assert set(needed.carried) <= set(found.slice.carried)


def test_a_pointer_that_advances_runs_ahead_and_the_sum_does_not():
    # 0: load(p)  1: sum + load  2: p + step
    loop = Loop(
        (LoopOp(LOAD, carried=(0,)), LoopOp(FIXED, (0,), (1,)), LoopOp(CHEAP, carried=(0,))),
        (("op", 2), ("op", 1)),
    )
    assert plan(loop, [0]) == plan(loop, [0, 1])
    found = plan(loop, [0])
    assert found is not None
    assert found.slice == Slice((2,), (0,))


def test_a_load_whose_address_is_computed_by_the_trip_before_stays():
    # 0: load(p)  1: a product of it, which is the next address
    loop = Loop((LoopOp(LOAD, carried=(0,)), LoopOp(FIXED, (0,))), (("op", 1),))
    assert plan(loop, [0]) is None


def test_a_list_that_is_walked_needs_its_own_loads_ahead():
    loop = Loop((LoopOp(LOAD, carried=(0,)),), (("op", 0),))
    found = plan(loop, [0])
    assert found is not None
    assert found.slice == Slice((0,), (0,))
