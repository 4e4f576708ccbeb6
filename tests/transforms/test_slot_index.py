"""Slot indices: which are told apart, which are not, and how trips of a loop restate them."""

from __future__ import annotations

import pytest
from mlir import ir

from tiledsl.dialects.context import parse
from tiledsl.dialects.contracts import operations
from tiledsl.transforms.slot_index import UNKNOWN, Slot, slot_of

LOOP = """func.func @kernel(%n: i32, %m: i32) {{
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c2 = arith.constant 2 : i32
  %c3 = arith.constant 3 : i32
  %c4 = arith.constant 4 : i32
  %c32 = arith.constant 32 : i32
  scf.for %i = {bounds} iter_args(%x = {first}, %y = {second}) -> (i32, i32) : i32 {{
    %x1 = arith.addi %x, %c1 : i32
    {body}
    %both = arith.xori %a, %b : i32
    scf.yield {next} : i32, i32
  }}
  return
}}"""
ROUND = "%y1 = arith.addi %y, %c1 : i32  %y3 = arith.remsi %y1, %c3 : i32\n"
WRAPS = {
    "%e = arith.cmpi eq, %x1, %c3 : i32  %x3 = arith.select %e, %c0, %x1 : i32": True,
    "%e = arith.cmpi ne, %x1, %c3 : i32  %x3 = arith.select %e, %x1, %c0 : i32": True,
    "%e = arith.cmpi slt, %x1, %c3 : i32  %x3 = arith.select %e, %x1, %c0 : i32": True,
    "%e = arith.cmpi uge, %x1, %c3 : i32  %x3 = arith.select %e, %c0, %x1 : i32": True,
    "%d = arith.subi %x1, %c3 : i32  %e = arith.cmpi sge, %x1, %c3 : i32"
    "  %x3 = arith.select %e, %d, %x1 : i32": True,
    "%x3 = arith.remui %x1, %c3 : i32": True,
    # Not the next slot of three:
    "%e = arith.cmpi slt, %x1, %c3 : i32  %x3 = arith.select %e, %c0, %x1 : i32": False,
    "%e = arith.cmpi eq, %x1, %c4 : i32  %x3 = arith.select %e, %c0, %x1 : i32": False,
    "%x2 = arith.addi %x, %c2 : i32  %x3 = arith.remui %x2, %c3 : i32": False,
    "%x3 = arith.remui %x1, %c4 : i32": False,
    "%x3 = arith.remui %x1, %n : i32": False,
}


def slots(
    body: str,
    next_: str = "%x, %y",
    first: str = "%c0",
    second: str = "%c2",
    bounds: str = "%c0 to %n step %c1",
) -> tuple[Slot, Slot, ir.Operation]:
    """Give the slots of %a and %b among three, and the loop."""
    text = LOOP.format(body=body, next=next_, first=first, second=second, bounds=bounds)
    module = parse(text)
    named = {op.operation.name: op.operation for op in operations(module.operation)}
    a, b = named["arith.xori"].operands
    return slot_of(a, 3), slot_of(b, 3), named["scf.for"]


USE = "%a = arith.addi %x, %c0 : i32  %b = arith.addi %y, %c0 : i32\n"


@pytest.mark.parametrize("wrap", WRAPS)
def test_a_counter_that_goes_round_is_told_from_one_ahead_of_it(wrap: str):
    a, b, _ = slots(USE + ROUND + wrap, "%x3, %y3")
    assert a.differs(b) is b.differs(a) is WRAPS[wrap]


@pytest.mark.parametrize(("asked", "given", "offset"), [(0, 2, 2), (1, 0, 2), (2, 0, 1), (0, 1, 1)])
def test_a_slot_before_or_after_is_told_wherever_it_goes_round(asked: int, given: int, offset: int):
    body = f"""%asked = arith.constant {asked} : i32  %given = arith.constant {given} : i32
      %e = arith.cmpi eq, %x, %asked : i32  %by = arith.constant {offset} : i32
      %o = arith.addi %x, %by : i32  %a = arith.select %e, %given, %o : i32
      %b = arith.addi %x, %c0 : i32 {ROUND}"""
    a, b, _ = slots(body, "%y3, %y3")
    assert a == b.plus(offset)


def test_another_slot_in_one_case_is_not_told():
    body = f"""%e = arith.cmpi eq, %x, %c0 : i32  %o = arith.addi %x, %c2 : i32
      %a = arith.select %e, %c1, %o : i32  %b = arith.addi %x, %c0 : i32 {ROUND}"""
    assert slots(body, "%y3, %y3")[0] == UNKNOWN


def test_counters_that_meet_are_not_told_apart():
    wrap = "%x3 = arith.remui %x1, %c3 : i32\n"
    a, b, _ = slots(USE + ROUND + wrap, "%x3, %y3", second="%c0")
    assert not a.differs(b)
    assert not a.differs(a)


def test_a_counter_from_an_unknown_start_is_told_only_from_itself_moved():
    wrap = "%x3 = arith.remui %x1, %c3 : i32\n"
    a, b, _ = slots(
        "%a = arith.addi %x, %c0 : i32  %b = arith.addi %x, %c2 : i32\n" + ROUND + wrap,
        "%x3, %y3",
        first="%m",
    )
    assert a.differs(b)
    c, d, _ = slots(USE + ROUND + wrap, "%x3, %y3", first="%m")
    assert not c.differs(d)


def test_the_loops_variable_counts_too():
    body = (
        "%s = arith.addi %i, %c2 : i32  %a = arith.remsi %i, %c3 : i32\n"
        "%b = arith.remsi %s, %c3 : i32\n"
    )
    a, b, _ = slots(body)
    assert a.differs(b)
    body = (
        "%t = arith.divsi %i, %c32 : i32  %s = arith.addi %t, %c1 : i32\n"
        "%a = arith.remsi %t, %c3 : i32  %b = arith.remsi %s, %c3 : i32\n"
    )
    a, b, _ = slots(body, bounds="%c0 to %n step %c32")
    assert a.differs(b)
    a, b, _ = slots(body, bounds="%m to %n step %c32")
    assert (a, b) == (UNKNOWN, UNKNOWN)


def test_a_trip_later_a_slot_is_one_behind():
    wrap = "%x3 = arith.remui %x1, %c3 : i32\n"
    a, b, loop = slots(USE + ROUND + wrap, "%x3, %y3")
    # What %y names in one trip %x names two trips later.
    assert b.next_trip(loop).next_trip(loop) == a
    assert a.next_trip(loop).differs(a)


@pytest.mark.parametrize(("first", "known"), [("%c2", True), ("%c1", False), ("%m", False)])
def test_a_value_that_was_a_counter_a_trip_ago_is_one_behind_it(first: str, known: bool):
    wrap = "%x3 = arith.remui %x1, %c3 : i32\n"
    a, b, _ = slots(USE + wrap, "%x3, %x", second=first)
    assert (a.plus(-1) == b) is a.differs(b) is known


def test_what_is_not_counted_is_itself_for_a_trip():
    a, b, loop = slots("%a = arith.addi %x, %c0 : i32  %b = arith.addi %x, %c1 : i32\n", "%n, %y")
    assert a.differs(b)
    assert a.next_trip(loop) == a.on_exit(loop) == UNKNOWN


def test_constants_outside_are_trips_of_the_loop_that_begins():
    a, _, loop = slots(USE + ROUND + "%x3 = arith.remui %x1, %c3 : i32\n", "%x3, %y3")
    assert Slot.constant(0, 3).on_entry(loop) == a
    assert Slot.constant(1, 3).on_entry(loop).differs(a)
    assert a.on_exit(loop) == UNKNOWN
    assert not UNKNOWN.differs(a)


def test_slots_of_buffers_of_other_sizes_are_not_compared():
    assert not Slot.constant(0, 3).differs(Slot.constant(1, 4))
