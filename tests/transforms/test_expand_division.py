"""Every way to divide against NumPy's `//` and `%`, and the ops that each takes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlir import ir

from tests.transforms.golden import golden
from tests.transforms.tile_interpreter import Machine, Memory
from tiledsl.dialects import contracts
from tiledsl.dialects.context import parse
from tiledsl.dialects.contracts import TILE
from tiledsl.transforms.axis_facts import AxisFacts
from tiledsl.transforms.expand_division import expand_division

EDGES = {
    8: [0, 1, 2, 3, 5, 7, 32, 127, -1, -2, -3, -8, -127, -128],
    32: [0, 1, 2, 3, 36, 64, 2**31 - 1, -1, -2, -7, -36, -64, -(2**31)],
    64: [0, 1, 3, 64, 2**63 - 1, -1, -5, -64, -(2**63)],
}


def expanded(text: str) -> ir.Module:
    module = parse(text)
    with module.context, ir.Location.unknown():
        expand_division(module)
    contracts.check(module, TILE)
    return module


def both(width: int, signed: bool, dividend: str, divisor: str, setup: str = "") -> str:
    """Return a function of two integers that returns quotient and remainder."""
    attribute = "{signed = " + ("true" if signed else "false") + "}"
    t = f"i{width}"
    return f"""func.func @k(%x: {t}, %y: {t}) -> ({t}, {t}) {{
    {setup}
    %q = "tile.floordiv"({dividend}, {divisor}) {attribute} : ({t}, {t}) -> {t}
    %r = "tile.floormod"({dividend}, {divisor}) {attribute} : ({t}, {t}) -> {t}
    return %q, %r : {t}, {t}
    }}"""


def run(module: ir.Module, width: int, x: int, y: int) -> tuple[int, int]:
    dtype = np.dtype(f"i{width // 8}")
    found = Machine(Memory([])).run(module, np.array(x, dtype), np.array(y, dtype))
    return int(found[0]), int(found[1])


def expected(width: int, signed: bool, x: int, y: int) -> tuple[int, int]:
    half = 1 << (width - 1)
    if not signed:
        x, y = x % (2 * half), y % (2 * half)
    if y == 0:
        return 0, 0
    return (x // y + half) % (2 * half) - half, (x % y + half) % (2 * half) - half


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("width", EDGES)
def test_unknown_operands_divide_as_numpy_does(width: int, signed: bool):
    module = expanded(both(width, signed, "%x", "%y"))
    for x in EDGES[width]:
        for y in EDGES[width]:
            assert run(module, width, x, y) == expected(width, signed, x, y), (x, y)


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("divisor", EDGES[8])
def test_constant_divisors_divide_as_numpy_does(divisor: int, signed: bool):
    setup = f"%c = arith.constant {divisor} : i8"
    module = expanded(both(8, signed, "%x", "%c", setup))
    for x in range(-128, 128):
        assert run(module, 8, x, 0) == expected(8, signed, x, divisor), x


@settings(max_examples=60, deadline=None)
@given(st.integers(-128, 127), st.integers(-128, 127), st.integers(-128, 127), st.booleans())
def test_operands_of_known_range_divide_as_numpy_does(low: int, x: int, y: int, signed: bool):
    setup = f"""%low = arith.constant {low} : i8
    %a = arith.maxsi %x, %low : i8
    %b = arith.minsi %y, %low : i8"""
    module = expanded(both(8, signed, "%a", "%b", setup))
    a, b = max(x, low), min(y, low)
    assert run(module, 8, x, y) == expected(8, signed, a, b)
    module = expanded(both(8, signed, "%b", "%a", setup))
    assert run(module, 8, x, y) == expected(8, signed, b, a)


def _one(name: str, setup: str, checks: str, signed: str = "true") -> None:
    golden(
        f"""func.func @k(%x: i32, %y: i32) -> i32 {{
    {setup}
    %q = "tile.{name}"(%a, %b) {{signed = {signed}}} : (i32, i32) -> i32
    return %q : i32
    }}
    {checks}""",
        expand_division,
    )


ANY = "%z = arith.constant 0 : i32\n%a = arith.addi %x, %z : i32\n"
INDEX = '%a = "tile.program_id"() {axis = 0} : () -> i32\n'
COUNT = '%b = "tile.num_programs"() {axis = 0} : () -> i32\n'


def test_a_power_of_two_needs_no_proof():
    by = ANY + "%b = arith.constant 32 : i32"
    shift = "// CHECK: %[[C:.*]] = arith.constant 5\n// CHECK-NEXT: arith.shrsi %{{.*}}, %[[C]]"
    _one("floordiv", by, shift + "\n// CHECK-NEXT: return")
    _one("floormod", by, "// CHECK: arith.constant 31\n// CHECK-NEXT: arith.andi")


def test_an_index_by_a_count_is_one_unsigned_division():
    _one("floordiv", INDEX + COUNT, "// CHECK: arith.divui\n// CHECK-NEXT: return")
    _one("floormod", INDEX + COUNT, "// CHECK: arith.remui\n// CHECK-NEXT: return")


def test_a_divisor_that_may_be_zero_is_guarded():
    _one("floormod", INDEX + "%b = arith.maxsi %x, %a : i32", "// CHECK: arith.select")


def test_a_constant_divisor_has_no_guards():
    _one(
        "floordiv",
        ANY + "%b = arith.constant 7 : i32",
        """// CHECK: arith.divsi
        // CHECK-NOT: cmpi eq
        // CHECK: arith.cmpi slt
        // CHECK: return""",
    )


def test_runs_that_rounding_down_keeps_are_hinted():
    text = """func.func @k(%x: i32, %p: !tile.ptr<f32>) {
    %c64 = arith.constant 64 : i32
    %first = arith.muli %x, %c64 : i32
    %s = "tile.splat"(%first) : (i32) -> tensor<64xi32>
    %r = "tile.make_range"() {start = 0, end = 64} : () -> tensor<64xi32>
    %i = arith.addi %s, %r : tensor<64xi32>
    %b = arith.constant dense<96> : tensor<64xi32>
    %q = "tile.floormod"(%i, %b) {signed = true} : (tensor<64xi32>, tensor<64xi32>) -> tensor<64xi32>
    %base = "tile.splat"(%p) : (!tile.ptr<f32>) -> tensor<64x!tile.ptr<f32>>
    %a = "tile.addptr"(%base, %q) : (tensor<64x!tile.ptr<f32>>, tensor<64xi32>) -> tensor<64x!tile.ptr<f32>>
    "tile.print"(%a) {prefix = ""} : (tensor<64x!tile.ptr<f32>>) -> ()
    return
    }"""
    module = expanded(text)
    assert "tile.hint" in str(module)
    pointer = module.body.operations[0].regions[0].blocks[0].operations[-2].operands[0]
    assert AxisFacts(module).of(pointer).contiguity == (32,)


def test_nothing_that_rounding_hides_is_not_hinted():
    text = """func.func @k(%x: tensor<8xi32>, %y: tensor<8xi32>) -> tensor<8xi32> {
    %q = "tile.floordiv"(%x, %y) {signed = true} : (tensor<8xi32>, tensor<8xi32>) -> tensor<8xi32>
    return %q : tensor<8xi32>
    }"""
    assert "tile.hint" not in str(expanded(text))
