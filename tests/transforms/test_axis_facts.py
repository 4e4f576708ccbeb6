"""The walk over the IR: each op finds its rule, loops settle, conditions refine, nothing leaks."""

from __future__ import annotations

import textwrap

import pytest
from mlir import ir

from tiledsl.dialects import tile
from tiledsl.dialects.context import parse
from tiledsl.dialects.contracts import operations
from tiledsl.transforms.axis_facts import AxisFacts, vector_elements
from tiledsl.transforms.facts import Facts
from tiledsl.transforms.interval import Interval

I32 = Interval.of_width(32)


class Program:
    """A parsed function whose ops are marked, as in `{at = "x"}`, to ask for their facts.

    Args:
        body: The function's body, without its return.
        arguments: Its arguments.
    """

    def __init__(self, body: str, arguments: str = "%n: i32") -> None:
        text = f"func.func @k({arguments}) {{\n{textwrap.dedent(body)}\nreturn\n}}"
        self.module = parse(text)
        self.facts = AxisFacts(self.module)

    def value(self, mark: str) -> ir.Value:
        """Return the first result of the op marked `mark`."""
        for op in operations(self.module.operation):
            attributes = op.operation.attributes
            if "at" in attributes and ir.StringAttr(attributes["at"]).value == mark:
                return op.operation.results[0]
        raise KeyError(mark)

    def of(self, mark: str) -> Facts:
        """Return the facts of the op marked `mark`."""
        return self.facts.of(self.value(mark))


def test_arguments_bring_their_attributes():
    program = Program(
        """
        %a = "tile.addptr"(%p, %n) {at = "p"} : (!tile.ptr<f32>, i32) -> !tile.ptr<f32>
        %c0 = arith.constant 0 : i32
        %b = arith.addi %n, %c0 {at = "n"} : i32
        """,
        "%p: !tile.ptr<f32> {tile.divisibility = 16 : i64}, "
        "%n: i32 {tile.divisibility = 48 : i64, tile.min = 0 : i64, tile.max = 4096 : i64}",
    )
    assert program.of("n").divisor == 16
    assert program.of("n").range == Interval(0, 4096)
    assert program.of("p").divisor == 16
    assert program.of("p").step == 4


def test_an_argument_without_attributes_is_unknown():
    found = Program('%a = arith.addi %n, %n {at = "a"} : i32').of("a")
    assert (found.divisor, found.range) == (1, I32)


TILED = """
    %c32 = arith.constant 32 : i32
    %pid = "tile.program_id"() {axis = 0} : () -> i32
    %first = arith.muli %pid, %c32 : i32
    %firsts = "tile.splat"(%first) : (i32) -> tensor<32xi32>
    %r = "tile.make_range"() {start = 0, end = 32} : () -> tensor<32xi32>
    %i = arith.addi %firsts, %r {at = "i"} : tensor<32xi32>
    %base = "tile.splat"(%p) : (!tile.ptr<f16>) -> tensor<32x!tile.ptr<f16>>
    %ptr = "tile.addptr"(%base, %i) {at = "ptr"} : (tensor<32x!tile.ptr<f16>>, tensor<32xi32>) -> tensor<32x!tile.ptr<f16>>
    %ns = "tile.splat"(%n) : (i32) -> tensor<32xi32>
    %m = arith.cmpi slt, %i, %ns {at = "mask"} : tensor<32xi32>
"""


@pytest.mark.parametrize(
    ("pointer", "size", "masked", "plain"),
    [(16, 16, 8, 8), (16, 1, 1, 8), (4, 16, 2, 2), (2, 16, 1, 1), (16, 4, 4, 8)],
)
def test_a_vector_is_as_wide_as_run_alignment_and_mask_allow(
    pointer: int, size: int, masked: int, plain: int
):
    program = Program(
        TILED,
        f"%p: !tile.ptr<f16> {{tile.divisibility = {pointer} : i64}}, "
        f"%n: i32 {{tile.divisibility = {size} : i64}}",
    )
    ptr, mask = program.value("ptr"), program.value("mask")
    assert vector_elements(program.facts, ptr, mask, 0) == masked
    assert vector_elements(program.facts, ptr, None, 0) == plain
    assert vector_elements(program.facts, ptr, None, 0, max_bytes=4) == min(plain, 2)


def test_program_ids_have_the_bounds_of_any_grid():
    program = Program(
        """
        %a = "tile.program_id"() {axis = 0, at = "id"} : () -> i32
        %b = "tile.num_programs"() {axis = 0, at = "count"} : () -> i32
        """
    )
    assert program.of("id").range == Interval(0, 2**31 - 2)
    assert program.of("count").range == Interval(1, 2**31 - 1)


def test_an_induction_variable_lies_between_its_bounds():
    program = Program(
        """
        %c0 = arith.constant 0 : i32
        %c3 = arith.constant 3 : i32
        %c10 = arith.constant 10 : i32
        %c32 = arith.constant 32 : i32
        scf.for %i = %c0 to %c10 step %c3 : i32 {
          %a = arith.addi %i, %c0 {at = "short"} : i32
        }
        scf.for %i = %c0 to %n step %c32 : i32 {
          %a = arith.addi %i, %c0 {at = "long"} : i32
        }
        """
    )
    assert program.of("short").range == Interval(0, 9)
    assert program.of("long").range == Interval(0, 2**31 - 32)
    assert program.of("long").divisor == 32


def test_a_carried_pointer_keeps_what_every_step_keeps():
    program = Program(
        """
        %c0 = arith.constant 0 : i32
        %c1 = arith.constant 1 : i32
        %c8 = arith.constant 8 : i32
        %r = scf.for %i = %c0 to %n step %c1 iter_args(%q = %p) -> (!tile.ptr<f16>) : i32 {
          %next = "tile.addptr"(%q, %c8) {at = "next"} : (!tile.ptr<f16>, i32) -> !tile.ptr<f16>
          scf.yield %next : !tile.ptr<f16>
        } {at = "after"}
        """,
        "%p: !tile.ptr<f16> {tile.divisibility = 64 : i64}, %n: i32",
    )
    assert program.of("next").divisor == 16
    assert program.of("after").divisor == 16


def test_a_counter_that_only_grows_keeps_its_lower_bound_while_it_is_tested():
    program = Program(
        """
        %c0 = arith.constant 0 : i32
        %c1 = arith.constant 1 : i32
        %c100 = arith.constant 100 : i32
        %r = scf.while (%i = %c0) : (i32) -> i32 {
          %more = arith.cmpi slt, %i, %c100 : i32
          scf.condition(%more) %i : i32
        } do {
        ^bb0(%j: i32):
          %next = arith.addi %j, %c1 {at = "next"} : i32
          scf.yield %next : i32
        } attributes {at = "after"}
        """
    )
    assert program.of("next").range == Interval(1, 100)
    assert program.of("after").range == Interval(0, 2**31 - 1)


def test_a_counter_without_a_bound_is_unknown():
    program = Program(
        """
        %c0 = arith.constant 0 : i32
        %c1 = arith.constant 1 : i32
        %r = scf.for %i = %c0 to %n step %c1 iter_args(%a = %c0) -> (i32) : i32 {
          %next = arith.addi %a, %c1 : i32
          scf.yield %next : i32
        } {at = "after"}
        """
    )
    assert program.of("after").range == I32


def test_swapped_carried_values_settle_on_what_both_have():
    program = Program(
        """
        %c0 = arith.constant 0 : i32
        %c1 = arith.constant 1 : i32
        %c16 = arith.constant 16 : i32
        %c24 = arith.constant 24 : i32
        %r:2 = scf.for %i = %c0 to %n step %c1 iter_args(%a = %c16, %b = %c24) -> (i32, i32) : i32 {
          scf.yield %b, %a : i32, i32
        } {at = "after"}
        """
    )
    assert program.of("after").divisor == 8


def test_conditions_refine_inside_their_branch_alone():
    program = Program(
        """
        %c0 = arith.constant 0 : i32
        %c64 = arith.constant 64 : i32
        %low = arith.cmpi sge, %n, %c0 : i32
        %high = arith.cmpi slt, %n, %c64 : i32
        %both = arith.andi %low, %high : i1
        scf.if %both {
          %a = arith.addi %n, %c0 {at = "then"} : i32
        } else {
          %a = arith.addi %n, %c0 {at = "else"} : i32
        }
        scf.if %low {
        } else {
          %a = arith.addi %n, %c0 {at = "negative"} : i32
        }
        %b = arith.addi %n, %c0 {at = "behind"} : i32
        """
    )
    assert program.of("then").range == Interval(0, 63)
    assert program.of("else").range == I32
    assert program.of("negative").range == Interval(-(2**31), -1)
    assert program.of("behind").range == I32


def test_an_assumption_holds_wherever_its_block_runs():
    program = Program(
        """
        %c0 = arith.constant 0 : i32
        %c64 = arith.constant 64 : i32
        %before = arith.addi %n, %c0 {at = "before"} : i32
        %rest = "tile.floormod"(%n, %c64) {signed = true} : (i32, i32) -> i32
        %whole = arith.cmpi eq, %rest, %c0 : i32
        "tile.assume"(%whole) : (i1) -> ()
        %positive = arith.cmpi sgt, %n, %c0 : i32
        "tile.assume"(%positive) : (i1) -> ()
        """
    )
    assert program.of("before").divisor == 64
    assert program.of("before").range == Interval(64, 2**31 - 64)


def test_an_assumption_in_a_branch_says_nothing_outside():
    program = Program(
        """
        %c0 = arith.constant 0 : i32
        %odd = arith.cmpi ne, %n, %c0 : i32
        scf.if %odd {
          %positive = arith.cmpi sgt, %n, %c0 : i32
          "tile.assume"(%positive) : (i1) -> ()
          %a = arith.addi %n, %c0 {at = "inside"} : i32
        }
        %b = arith.addi %n, %c0 {at = "outside"} : i32
        """
    )
    assert program.of("inside").range == Interval(1, 2**31 - 1)
    assert program.of("outside").range == I32


def test_branches_join():
    program = Program(
        """
        %c0 = arith.constant 0 : i32
        %c16 = arith.constant 16 : i32
        %c24 = arith.constant 24 : i32
        %odd = arith.cmpi ne, %n, %c0 : i32
        %r = scf.if %odd -> (i32) {
          scf.yield %c16 : i32
        } else {
          scf.yield %c24 : i32
        } {at = "r"}
        """
    )
    assert program.of("r").divisor == 8
    assert program.of("r").range == Interval(16, 24)


def test_a_constant_bool_reads_as_one():
    assert Program('%t = arith.constant {at = "t"} true').of("t").value == 1


def test_bitcasts_keep_alignment_and_runs_of_elements_as_large():
    program = Program(
        TILED
        + """
        %same = "tile.bitcast"(%ptr) {at = "same"} : (tensor<32x!tile.ptr<f16>>) -> tensor<32x!tile.ptr<bf16>>
        %wide = "tile.bitcast"(%ptr) {at = "wide"} : (tensor<32x!tile.ptr<f16>>) -> tensor<32x!tile.ptr<f32>>
        """,
        "%p: !tile.ptr<f16> {tile.divisibility = 16 : i64}, %n: i32",
    )
    assert program.of("same").contiguity == (32,)
    assert program.of("wide").contiguity == (1,)
    assert program.of("wide").divisibility == (2,)


def test_loaded_values_are_equal_where_addresses_are():
    program = Program(
        """
        %base = "tile.splat"(%p) : (!tile.ptr<i32>) -> tensor<8x!tile.ptr<i32>>
        %v = "tile.load"(%base) {at = "v", operandSegmentSizes = array<i32: 1, 0, 0>} : (tensor<8x!tile.ptr<i32>>) -> tensor<8xi32>
        %w = "tile.load"(%base) {at = "w", volatile = true, operandSegmentSizes = array<i32: 1, 0, 0>} : (tensor<8x!tile.ptr<i32>>) -> tensor<8xi32>
        """,
        "%p: !tile.ptr<i32>",
    )
    assert program.of("v").constancy == (8,)
    assert program.of("w").constancy == (1,)


def test_ops_built_later_get_facts_too():
    program = Program(TILED, "%p: !tile.ptr<f16>, %n: i32")
    value = program.value("i")
    program.of("i")
    with program.module.context, ir.Location.unknown():
        made = tile.ExpandDimsOp.build(
            value,
            results=[ir.RankedTensorType.get([1, 32], ir.IntegerType.get_signless(32))],
            axis=0,
            ip=ir.InsertionPoint.after(value.owner.operation),
        )
    assert program.facts.of(made.tile).contiguity == (1, 32)
