"""Folding, merging, hoisting and removing, each with a twin that must be left alone."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlir import ir

from tests.transforms.golden import golden
from tests.transforms.tile_interpreter import Machine, Memory
from tiledsl.dialects.context import parse
from tiledsl.transforms.simplify import simplify

LOAD = "{operandSegmentSizes = array<i32: 1, 0, 0>}"
STORE = "{operandSegmentSizes = array<i32: 1, 1, 0>}"


def kernel(body: str, arguments: str = "%n: i32, %p: !tile.ptr<i32>") -> str:
    return f"func.func @k({arguments}) {{\n{body}\nreturn\n}}"


def simplified(text: str) -> str:
    module = parse(text)
    with module.context, ir.Location.unknown():
        simplify(module)
    return str(module)


def keep(values: str, types: str) -> str:
    """Return ops that need `values` and are never removed."""
    pairs = zip(values.split(", "), types.split(", "), strict=True)
    return "\n".join(f'"tile.print"({v}) {{prefix = ""}} : ({t}) -> ()' for v, t in pairs)


def test_arithmetic_on_filled_tiles_is_done_on_the_scalar():
    golden(
        kernel(
            f"""
    // CHECK: arith.addi %arg0, %{{{{.*}}}} : i32
    // CHECK-NEXT: "tile.splat"
    // CHECK-NEXT: "tile.print"
    %a = "tile.splat"(%n) : (i32) -> tensor<8xi32>
    %c = arith.constant dense<5> : tensor<8xi32>
    %b = arith.addi %a, %c : tensor<8xi32>
    {keep("%b", "tensor<8xi32>")}"""
        ),
        simplify,
    )


def test_arithmetic_on_tiles_that_vary_stays():
    golden(
        kernel(
            f"""
    // CHECK: arith.addi {{{{.*}}}} : tensor<8xi32>
    %a = "tile.splat"(%n) : (i32) -> tensor<8xi32>
    %r = "tile.make_range"() {{start = 0, end = 8}} : () -> tensor<8xi32>
    %b = arith.addi %a, %r : tensor<8xi32>
    {keep("%b", "tensor<8xi32>")}"""
        ),
        simplify,
    )


def test_arithmetic_is_done_before_broadcasting():
    golden(
        kernel(
            f"""
    // CHECK: arith.cmpi slt, {{{{.*}}}} : tensor<1x8xi32>
    // CHECK-NEXT: "tile.broadcast"{{{{.*}}}} -> tensor<4x8xi1>
    %r = "tile.make_range"() {{start = 0, end = 8}} : () -> tensor<8xi32>
    %e = "tile.expand_dims"(%r) {{axis = 0}} : (tensor<8xi32>) -> tensor<1x8xi32>
    %b = "tile.broadcast"(%e) : (tensor<1x8xi32>) -> tensor<4x8xi32>
    %s = "tile.splat"(%n) : (i32) -> tensor<4x8xi32>
    %m = arith.cmpi slt, %b, %s : tensor<4x8xi32>
    {keep("%m", "tensor<4x8xi1>")}"""
        ),
        simplify,
    )


FOLDS = [
    ('%a = "tile.splat"(%c3) : (i32) -> tensor<4xi32>', "tensor<4xi32>", "dense<3>"),
    (
        '%x = "tile.splat"(%n) : (i32) -> tensor<4x2xi32>\n'
        '%a = "tile.trans"(%x) {order = array<i64: 1, 0>} : (tensor<4x2xi32>) -> tensor<2x4xi32>',
        "tensor<2x4xi32>",
        '"tile.splat"(%arg0) : (i32) -> tensor<2x4xi32>',
    ),
    ('%a = "tile.floordiv"(%cm7, %c3) {signed = true} : (i32, i32) -> i32', "i32", "constant -3"),
    ('%a = "tile.floormod"(%cm7, %c3) {signed = true} : (i32, i32) -> i32', "i32", "constant 2"),
    ('%a = "tile.floordiv"(%cm7, %c3) {signed = false} : (i32, i32) -> i32', "i32", "1431655763"),
    ('%a = "tile.floordiv"(%n, %c0) {signed = true} : (i32, i32) -> i32', "i32", "constant 0"),
    ('%a = "tile.floormod"(%n, %c1) {signed = true} : (i32, i32) -> i32', "i32", "constant 0"),
    ('%a = "tile.cast"(%f) {signed = true} : (f32) -> i8', "i8", "constant 127"),
    ('%a = "tile.cast"(%f) {signed = false} : (f32) -> i8', "i8", "constant -1"),
    ('%a = "tile.cast"(%nan) {signed = true} : (f32) -> i32', "i32", "constant 0"),
    ('%a = "tile.cast"(%f) : (f32) -> f8E4M3FN', "f8E4M3FN", "4.480000e+02"),
    ('%a = "tile.cast"(%big) : (f64) -> f16', "f16", "0x7C00"),
    ('%a = "tile.cast"(%tie) : (f32) -> bf16', "bf16", "2.560000e+02"),
]


@pytest.mark.parametrize(("text", "type_", "expected"), FOLDS)
def test_an_op_folds_to_what_it_computes(text: str, type_: str, expected: str):
    constants = """
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %c3 = arith.constant 3 : i32
    %cm7 = arith.constant -7 : i32
    %f = arith.constant 1.0e6 : f32
    %nan = arith.constant 0x7FC00000 : f32
    %big = arith.constant 1.0e30 : f64
    %tie = arith.constant 257.0 : f32
    """
    found = simplified(kernel(f"{constants}\n{text}\n{keep('%a', type_)}"))
    assert expected in found
    assert not any(name in found for name in ("floordiv", "floormod", "tile.cast", "tile.trans"))


@pytest.mark.parametrize(
    ("inner", "outer", "folds"), [(32, 8, True), (32, 5, False), (24, 7, False), (8, -4, True)]
)
def test_a_modulo_of_a_modulo_folds_only_for_a_multiple(inner: int, outer: int, folds: bool):
    found = simplified(
        kernel(
            f"""
    %a = arith.constant {inner} : i32
    %b = arith.constant {outer} : i32
    %x = "tile.floormod"(%n, %a) {{signed = true}} : (i32, i32) -> i32
    %y = "tile.floormod"(%x, %b) {{signed = true}} : (i32, i32) -> i32
    {keep("%y", "i32")}"""
        )
    )
    assert found.count("floormod") == (1 if folds else 2)


def test_equal_ops_are_merged_and_ops_on_other_attributes_are_not():
    golden(
        kernel(
            f"""
    // CHECK: "tile.program_id"() {{axis = 0
    // CHECK-NEXT: "tile.program_id"() {{axis = 1
    // CHECK-NEXT: "tile.print"(%0)
    // CHECK-NEXT: "tile.print"(%0)
    // CHECK-NEXT: "tile.print"(%1)
    %a = "tile.program_id"() {{axis = 0}} : () -> i32
    %b = "tile.program_id"() {{axis = 0}} : () -> i32
    %c = "tile.program_id"() {{axis = 1}} : () -> i32
    {keep("%a, %b, %c", "i32, i32, i32")}"""
        ),
        simplify,
    )


def _two_loads(between: str) -> str:
    return kernel(
        f"""
    %a = "tile.load"(%p) {LOAD} : (!tile.ptr<i32>) -> i32
    {between}
    %b = "tile.load"(%p) {LOAD} : (!tile.ptr<i32>) -> i32
    {keep("%a, %b", "i32, i32")}"""
    )


def test_a_load_is_read_once_while_nothing_writes():
    assert simplified(_two_loads("")).count("tile.load") == 1


def test_a_load_is_read_anew_after_a_store():
    store = f'"tile.store"(%p, %n) {STORE} : (!tile.ptr<i32>, i32) -> ()'
    assert simplified(_two_loads(store)).count("tile.load") == 2


def test_a_load_is_read_anew_after_a_branch_that_stores():
    branch = f"""%z = arith.constant 0 : i32
    %c = arith.cmpi sgt, %n, %z : i32
    scf.if %c {{ "tile.store"(%p, %n) {STORE} : (!tile.ptr<i32>, i32) -> () }}"""
    assert simplified(_two_loads(branch)).count("tile.load") == 2


def test_a_loop_that_waits_for_memory_reads_it_each_trip():
    text = kernel(
        f"""
    %z = arith.constant 0 : i32
    %a = "tile.load"(%p) {LOAD} : (!tile.ptr<i32>) -> i32
    scf.while : () -> () {{
      %b = "tile.load"(%p) {LOAD} : (!tile.ptr<i32>) -> i32
      %more = arith.cmpi eq, %b, %z : i32
      scf.condition(%more)
    }} do {{
      scf.yield
    }}
    {keep("%a", "i32")}"""
    )
    assert simplified(text).count("tile.load") == 2


def test_what_a_loop_does_not_change_leaves_all_loops_around():
    golden(
        kernel(
            f"""
    // CHECK: "tile.splat"
    // CHECK: scf.for
    // CHECK: scf.for
    // CHECK-NOT: "tile.splat"
    %z = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    scf.for %i = %z to %n step %one : i32 {{
      scf.for %j = %z to %n step %one : i32 {{
        %s = "tile.splat"(%n) : (i32) -> tensor<8xi32>
        {keep("%s", "tensor<8xi32>")}
      }}
    }}"""
        ),
        simplify,
    )


def test_a_division_that_may_be_undefined_stays_in_its_loop():
    golden(
        kernel(
            f"""
    // CHECK: scf.for
    // CHECK-NEXT: arith.divsi
    %z = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    scf.for %i = %z to %n step %one : i32 {{
      %s = arith.divsi %one, %n : i32
      {keep("%s", "i32")}
    }}"""
        ),
        simplify,
    )


def test_a_carried_value_that_only_feeds_itself_is_removed():
    golden(
        kernel(
            f"""
    // CHECK: scf.for {{{{.*}}}} : i32 {{
    // CHECK-NOT: addptr
    %z = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %r = scf.for %i = %z to %n step %one iter_args(%q = %p) -> (!tile.ptr<i32>) : i32 {{
      {keep("%i", "i32")}
      %next = "tile.addptr"(%q, %one) : (!tile.ptr<i32>, i32) -> !tile.ptr<i32>
      scf.yield %next : !tile.ptr<i32>
    }}"""
        ),
        simplify,
    )


def test_a_carried_value_that_another_needs_stays():
    text = kernel(
        f"""
    %z = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %r:2 = scf.for %i = %z to %n step %one iter_args(%a = %z, %b = %one) -> (i32, i32) : i32 {{
      %next = arith.addi %b, %n : i32
      scf.yield %b, %next : i32, i32
    }}
    {keep("%r#0", "i32")}"""
    )
    assert "iter_args(%arg3 = %c0_i32, %arg4 = %c1_i32)" in simplified(text)


def test_loops_and_branches_without_effects_vanish():
    text = kernel(
        f"""
    %z = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %r = scf.for %i = %z to %n step %one iter_args(%a = %z) -> (i32) : i32 {{
      %v = "tile.load"(%p) {LOAD} : (!tile.ptr<i32>) -> i32
      %c = arith.cmpi sgt, %v, %z : i32
      %x = scf.if %c -> (i32) {{ scf.yield %a : i32 }} else {{ scf.yield %v : i32 }}
      scf.yield %x : i32
    }}"""
    )
    assert "scf" not in simplified(text)


def test_halves_that_are_joined_again_are_the_whole():
    golden(
        kernel(
            """
    // CHECK: "tile.print"(%arg0)
    %a, %b = "tile.split"(%t) : (tensor<8x2xf32>) -> (tensor<8xf32>, tensor<8xf32>)
    %j = "tile.join"(%a, %b) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8x2xf32>
    """
            + keep("%j", "tensor<8x2xf32>"),
            "%t: tensor<8x2xf32>",
        ),
        simplify,
    )


def test_floats_keep_signs_and_nans():
    text = kernel(
        """
    %z = arith.constant 0.0 : f32
    %a = arith.mulf %x, %z : f32
    %b = arith.subf %x, %x : f32
    %c = arith.addf %x, %z : f32
    %d = arith.cmpf une, %x, %x : f32
    """
        + keep("%a, %b, %c, %d", "f32, f32, f32, i1"),
        "%x: f32",
    )
    found = simplified(text)
    assert all(name in found for name in ("mulf", "subf", "addf", "cmpf"))


@st.composite
def programs(draw: st.DrawFn) -> str:
    """Straight-line integer programs on tiles, scalars and shapes, all results printed."""
    tiles = ["%r", "%s"]
    lines = [
        '%r = "tile.make_range"() {start = 0, end = 8} : () -> tensor<8xi32>',
        '%s = "tile.splat"(%n) : (i32) -> tensor<8xi32>',
    ]
    for i in range(draw(st.integers(1, 10))):
        a, b = draw(st.sampled_from(tiles)), draw(st.sampled_from(tiles))
        match draw(st.sampled_from(["constant", "arith", "divide", "select", "shape"])):
            case "constant":
                value = draw(st.sampled_from([0, 1, 2, 3, 8, -1, -4, 2**31 - 1, -(2**31)]))
                lines.append(f"%v{i} = arith.constant dense<{value}> : tensor<8xi32>")
            case "arith":
                name = draw(st.sampled_from(["addi", "subi", "muli", "andi", "ori", "xori"]))
                lines.append(f"%v{i} = arith.{name} {a}, {b} : tensor<8xi32>")
            case "divide":
                name = draw(st.sampled_from(["floordiv", "floormod"]))
                signed = draw(st.sampled_from(["true", "false"]))
                lines.append(
                    f'%v{i} = "tile.{name}"({a}, {b}) {{signed = {signed}}} : '
                    "(tensor<8xi32>, tensor<8xi32>) -> tensor<8xi32>"
                )
            case "select":
                lines += [
                    f"%c{i} = arith.cmpi slt, {a}, {b} : tensor<8xi32>",
                    f"%v{i} = arith.select %c{i}, {b}, {a} : tensor<8xi1>, tensor<8xi32>",
                ]
            case _:
                lines += [
                    f'%x{i} = "tile.reshape"({a}) : (tensor<8xi32>) -> tensor<2x4xi32>',
                    f'%y{i} = "tile.trans"(%x{i}) {{order = array<i64: 1, 0>}} : '
                    "(tensor<2x4xi32>) -> tensor<4x2xi32>",
                    f'%h{i}, %g{i} = "tile.split"(%y{i}) : '
                    "(tensor<4x2xi32>) -> (tensor<4xi32>, tensor<4xi32>)",
                    f'%v{i} = "tile.cat"(%h{i}, %g{i}) {{axis = 0}} : '
                    "(tensor<4xi32>, tensor<4xi32>) -> tensor<8xi32>",
                ]
        tiles.append(f"%v{i}")
    listed = ", ".join(tiles)
    types = ", ".join(["tensor<8xi32>"] * len(tiles))
    body = "\n".join(lines)
    return f"func.func @k(%n: i32) -> ({types}) {{\n{body}\nreturn {listed} : {types}\n}}"


@settings(max_examples=60, deadline=None)
@given(programs(), st.sampled_from([0, 5, -9, 2**31 - 1]))
def test_a_program_computes_what_it_did(text: str, n: int):
    expected = Machine(Memory([])).run(parse(text), np.array(n, np.int32))
    module = parse(text)
    with module.context, ir.Location.unknown():
        simplify(module)
    found = Machine(Memory([])).run(module, np.array(n, np.int32))
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_three_hundred_ops_take_little_time():
    lines = ['%v0 = "tile.splat"(%n) : (i32) -> tensor<64xi32>']
    lines.append('%r = "tile.make_range"() {start = 0, end = 64} : () -> tensor<64xi32>')
    for i in range(300):
        lines.append(f"%v{i + 1} = arith.addi %v{i}, %r : tensor<64xi32>")
    text = kernel("\n".join([*lines, keep("%v300", "tensor<64xi32>")]))
    simplified(text)
    module = parse(text)
    with module.context, ir.Location.unknown():
        start = time.perf_counter()
        simplify(module)
        assert time.perf_counter() - start < 0.1  # 8 ms where nothing else runs
