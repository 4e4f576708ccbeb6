"""Every op: its IRDL loads, it round-trips through text, and each rule is broken once."""

import pytest
from mlir import ir

from tiledsl.dialects import contracts, tgpu, tile
from tiledsl.dialects.context import context, parse
from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.dialects.op import Op, Symbol, from_attribute, to_attribute

V = "tensor<8xf32>"
P = "tensor<8x!tile.ptr<f32>>"
M = "tensor<8xi1>"
I = "tensor<8xi32>"  # noqa: E741
ONE = ", ".join(
    f"{s}SegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>" for s in ("operand", "result")
)
TWO = ONE.replace("1, 0", "1, 1")
BOX, WRITTEN = (
    f"operandSegmentSizes = array<i32: {', '.join('1' * n + '0' * (17 - n))}>" for n in (4, 5)
)
GOOD = f"""
func.func private @pick(%a: f32, %i: i32, %b: f32, %j: i32) -> (f32, i32) {{
  return %a, %i : f32, i32
}}
func.func private @add(%a: f32, %b: f32) -> f32 {{
  %c = arith.addf %a, %b : f32
  return %c : f32
}}
func.func @k(%ptr: !tile.ptr<f32>, %ptrs: {P}, %mask: {M}, %v: {V}, %i: {I}, %s: f32, %n: i32, %c: i1) {{
  %0 = "tile.program_id"() {{axis = 0}} : () -> i32
  %1 = "tile.num_programs"() {{axis = 2}} : () -> i32
  %block = "tile.block_id"() {{blocks = 2}} : () -> i32
  %2 = "tile.make_range"() {{start = 0, end = 8}} : () -> {I}
  %3 = "tile.splat"(%ptr) : (!tile.ptr<f32>) -> {P}
  %4 = "tile.addptr"(%3, %2) : ({P}, {I}) -> {P}
  %5 = "tile.load"(%4, %mask, %v) {{cache = "cg", operandSegmentSizes = array<i32: 1, 1, 1>}} : ({P}, {M}, {V}) -> {V}
  "tile.store"(%4, %5, %mask) {{eviction = "evict_first"}} : ({P}, {V}, {M}) -> ()
  %6 = "tile.expand_dims"(%5) {{axis = 0}} : ({V}) -> tensor<1x8xf32>
  %7 = "tile.broadcast"(%6) : (tensor<1x8xf32>) -> tensor<4x8xf32>
  %8 = "tile.trans"(%7) {{order = array<i64: 1, 0>}} : (tensor<4x8xf32>) -> tensor<8x4xf32>
  %9 = "tile.reshape"(%8) : (tensor<8x4xf32>) -> tensor<32xf32>
  %10 = "tile.join"(%v, %5) : ({V}, {V}) -> tensor<8x2xf32>
  %11, %12 = "tile.split"(%10) : (tensor<8x2xf32>) -> ({V}, {V})
  %13 = "tile.cat"(%v, %5) {{axis = 0}} : ({V}, {V}) -> tensor<16xf32>
  %14 = "tile.reduce"(%v) {{axis = 0, combine = @add, kind = "add", {ONE}}} : ({V}) -> f32
  %15 = "tile.scan"(%v) {{axis = 0, combine = @add, reverse = true, {ONE}}} : ({V}) -> {V}
  %25, %26 = "tile.reduce"(%v, %i) {{axis = 0, combine = @pick, {TWO}}} : ({V}, {I}) -> (f32, i32)
  %16 = "tile.floordiv"(%i, %2) {{signed = true}} : ({I}, {I}) -> {I}
  %17 = "tile.floormod"(%i, %2) {{signed = false}} : ({I}, {I}) -> {I}
  %18 = "tile.cast"(%v) {{signed = true}} : ({V}) -> tensor<8xi8>
  %19 = "tile.bitcast"(%v) : ({V}) -> {I}
  %20 = "tile.atomic_rmw"(%4, %v, %mask) {{kind = "fadd"}} : ({P}, {V}, {M}) -> {V}
  %21 = "tile.atomic_cas"(%ptr, %s, %s) {{sem = "acquire"}} : (!tile.ptr<f32>, f32, f32) -> f32
  %27 = "tile.descriptor_load"(%ptr, %n, %n, %n) {{{BOX}}} : (!tile.ptr<f32>, i32, i32, i32) -> {V}
  "tile.descriptor_store"(%ptr, %n, %n, %n, %27) {{{WRITTEN}}} : (!tile.ptr<f32>, i32, i32, i32, {V}) -> ()
  %22 = "tile.hint"(%n) {{divisibility = array<i64: 16>}} : (i32) -> i32
  "tile.assume"(%c) : (i1) -> ()
  "tile.barrier"() : () -> ()
  %23 = "tile.dot"(%8, %7, %24) : (tensor<8x4xf32>, tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %24 = arith.constant dense<0.0> : tensor<8x8xf32>
  "tile.print"(%v) {{prefix = "x"}} : ({V}) -> ()
  "tile.assert"(%mask) {{message = "no"}} : ({M}) -> ()
  return
}}
"""


def good() -> str:
    lines = list[str](GOOD.splitlines())
    constant = next(line for line in lines if "%24 =" in line)
    lines.remove(constant)
    lines.insert(next(i for i, line in enumerate(lines) if "%23 =" in line), constant)
    return "\n".join(lines)


def test_every_tile_op_satisfies_its_contract_and_round_trips() -> None:
    module = parse(good())
    contracts.check(module, contracts.TILE)
    used = {op.operation.name for op in contracts.operations(module.operation)}
    assert {op.OPERATION_NAME for op in tile.OPS} <= used
    assert str(parse(str(module))) == str(module)


BROKEN = [
    ("end = 8", "end = 9", "expected a result of shape (9,)"),
    ('"tile.splat"(%ptr) : (!tile.ptr<f32>)', '"tile.splat"(%s) : (f32)', "expected elements of type f32"),
    ("{axis = 0} : (tensor<8xf32>) -> tensor<1x8xf32>", "{axis = 1} : (tensor<8xf32>) -> tensor<1x8xf32>", "expected a result of shape (8, 1)"),
    ("array<i64: 1, 0>", "array<i64: 1, 1>", "expected a permutation of 2 dimensions"),
    ('{cache = "cg"', '{cache = "zz"', "expected `cache` in "),
    ('kind = "fadd"', 'kind = "mul"', "expected `kind` in add, fadd"),
    ('"tile.store"(%4, %5', '"tile.store"(%4, %v', None),
    ('-> tensor<8xi8>', '-> tensor<4xi8>', "expected one shape throughout"),
    ("%19 = \"tile.bitcast\"(%v) : (tensor<8xf32>) -> tensor<8xi32>", "%19 = \"tile.bitcast\"(%v) : (tensor<8xf32>) -> tensor<8xi16>", "expected equal widths"),
    ("(tensor<8xf32>, tensor<8xf32>) -> tensor<16xf32>", "(tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>", "expected a result of shape (16,)"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message"), BROKEN)
def test_a_broken_rule_is_reported(old: str, new: str, message: str | None) -> None:
    text = good()
    assert old in text
    module = parse(text.replace(old, new, 1))
    if message is None:
        contracts.check(module, contracts.TILE)
        return
    with pytest.raises(CompilerBug) as raised:
        contracts.check(module, contracts.TILE)
    assert message in str(raised.value)


def test_irdl_rejects_a_missing_attribute_and_a_wrong_result_type() -> None:
    for text in (
        'func.func @k() { %0 = "tile.program_id"() : () -> i32 return }',
        'func.func @k() { %0 = "tile.program_id"() {axis = 0} : () -> i64 return }',
    ):
        with pytest.raises(Exception, match="Unable to parse"):
            parse(text)


def test_optional_operands_read_as_none() -> None:
    module = parse(
        f'func.func @k(%p: {P}) {{ %0 = "tile.load"(%p) '
        f"{{operandSegmentSizes = array<i32: 1, 0, 0>}} : ({P}) -> {V} return }}"
    )
    (load,) = (op for op in contracts.operations(module.operation) if isinstance(op, tile.LoadOp))
    assert load.mask is None
    assert load.other is None
    assert load.cache == ""


@pytest.mark.parametrize("value", [True, 7, "text", [1, 2], Symbol("f")])
def test_attributes_round_trip(value: object) -> None:
    with context(), ir.Location.unknown():
        back = from_attribute(to_attribute(value))
    assert back == value
    assert type(back) is type(value)


def test_building_with_the_wrong_number_of_operands_is_an_error() -> None:
    with context(), ir.Location.unknown(), pytest.raises(TypeError, match="takes"):
        tile.SplatOp.build(results=[])


def test_every_op_class_has_documented_fields() -> None:
    for op in (*tile.OPS, *tgpu.OPS):
        assert op.__doc__
        assert op.__doc__ != Op.__doc__
        for field in (*op.operand_fields, *op.result_fields, *op.attr_fields):
            assert field.doc, f"{op.OPERATION_NAME}.{field.name}"
