"""Every op of the `tile` dialect: it round-trips through text, and its rules are broken."""

import pytest

from tests.dialects.one_op import Types, built, fault
from tiledsl.dialects import contracts, tile
from tiledsl.dialects.context import parse
from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.dialects.op import Op

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
  %24 = arith.constant dense<0.0> : tensor<8x8xf32>
  %23 = "tile.dot"(%8, %7, %24) : (tensor<8x4xf32>, tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  "tile.print"(%v) {{prefix = "x"}} : ({V}) -> ()
  "tile.assert"(%mask) {{message = "no"}} : ({M}) -> ()
  return
}}
"""


def test_every_tile_op_satisfies_its_contract_and_round_trips() -> None:
    module = parse(GOOD)
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
    assert old in GOOD
    module = parse(GOOD.replace(old, new, 1))
    if message is None:
        contracts.check(module, contracts.TILE)
        return
    with pytest.raises(CompilerBug) as raised:
        contracts.check(module, contracts.TILE)
    assert message in str(raised.value)


H, W, PTR = "tensor<8xf16>", "tensor<4xf32>", "!tile.ptr<f32>"


@pytest.mark.parametrize(
    ("op", "operands", "results", "attributes", "message"),
    [
        (tile.ExpandDimsOp, [V], ["tensor<8x1xf32>"], {"axis": 2}, "expected an axis from 0 to 1, found 2"),
        (tile.BroadcastOp, ["tensor<2x8xf32>"], ["tensor<4x8xf32>"], {}, "expected (2, 8) to broadcast to (4, 8)"),
        (tile.BroadcastOp, ["tensor<1xf32>"], ["tensor<1x8xf32>"], {}, "expected (1,) to broadcast to (1, 8)"),
        (tile.ReshapeOp, [V], ["tensor<4x4xf32>"], {}, "expected as many elements in (8,) and (4, 4)"),
        (tile.TransOp, ["tensor<4x8xf32>"], ["tensor<4x8xf32>"], {"order": [1, 0]}, "expected (4, 8) permuted by [1, 0], found tensor<4x8xf32>"),
        (tile.JoinOp, [V, V], ["tensor<2x8xf32>"], {}, "expected a trailing dimension of size 2, found tensor<2x8xf32>"),
        (tile.JoinOp, [V, W], ["tensor<8x2xf32>"], {}, "expected one shape throughout, found (8,) and (4,)"),
        (tile.JoinOp, [V, H], ["tensor<8x2xf32>"], {}, f"expected tiles of one type, found {V} and {H}"),
        (tile.SplitOp, ["tensor<2x8xf32>"], [V, V], {}, "expected a trailing dimension of size 2, found tensor<2x8xf32>"),
        (tile.SplitOp, ["tensor<8x2xf32>"], [V, W], {}, "expected one shape throughout, found (8,) and (4,)"),
        (tile.CatOp, [V, W], ["tensor<16xf32>"], {"axis": 0}, "expected one shape throughout, found (8,) and (4,)"),
        (tile.CatOp, [V, V], ["tensor<16xf32>"], {"axis": 1}, "expected an axis from 0 to 0, found 1"),
        (tile.AddPtrOp, [V, I], [V], {}, f"expected pointers of one type, found {V} and {V}"),
        (tile.AddPtrOp, [PTR, "i32"], ["!tile.ptr<f16>"], {}, "expected pointers of one type, found !tile.ptr<f32> and !tile.ptr<f16>"),
        (tile.AddPtrOp, [P, "i32"], [P], {}, "expected one shape throughout, found (8,) and ()"),
        (tile.LoadOp, [V, None, None], [V], {}, f"expected pointers, found {V}"),
        (tile.LoadOp, [P, None, None], [H], {}, f"expected a result of f32, found {H}"),
        (tile.LoadOp, [P, None, V], [V], {}, "expected `mask` where there is `other`"),
        (tile.LoadOp, [P, "i1", None], [V], {}, "expected one shape throughout, found (8,) and () and (8,)"),
        (tile.StoreOp, [V, V, None], [], {}, f"expected pointers, found {V}"),
        (tile.StoreOp, [P, H, None], [], {}, f"expected a value of f32, found {H}"),
        (tile.StoreOp, [P, W, None], [], {}, "expected one shape throughout, found (8,) and (4,)"),
        (tile.AtomicRmwOp, [V, V, None], [V], {"kind": "fadd"}, f"expected pointers, found {V}"),
        (tile.AtomicRmwOp, [P, H, None], [H], {"kind": "fadd"}, f"expected a value of f32, found {H}"),
        (tile.AtomicRmwOp, [P, V, None], [W], {"kind": "fadd"}, "expected one shape throughout, found (8,) and (8,) and (4,)"),
        (tile.AtomicCasOp, [P, V, "f32"], [V], {}, "expected one shape throughout, found (8,) and (8,) and () and (8,)"),
        (tile.CastOp, [V], [H], {}, None),
        (tile.BitcastOp, [PTR], ["i64"], {}, None),
        (tile.BitcastOp, [V], ["f32"], {}, "expected one shape throughout, found (8,) and ()"),
        (tile.ScanOp, [[V, W]], [V, W], {"axis": 0, "combine": "add"}, "expected one shape throughout, found (8,) and (4,) and (8,) and (4,)"),
        (tile.ScanOp, [[V, V]], [V], {"axis": 0, "combine": "add"}, "expected 2 results, found 1"),
        (tile.ScanOp, [[V]], [V], {"axis": -1, "combine": "add"}, "expected an axis from 0 to 0, found -1"),
        (tile.ReduceOp, [["tensor<4x8xf32>"]], [V], {"axis": 1, "combine": "add"}, f"expected a result of shape (4,), found {V}"),
        (tile.ReduceOp, [[V]], ["f16"], {"axis": 0, "combine": "add"}, "expected elements of f32, found f16"),
        (tile.ReduceOp, [[V, W]], ["f32", "f32"], {"axis": 0, "combine": "add"}, "expected one shape throughout, found (8,) and (4,)"),
        (tile.ReduceOp, [[V, V]], ["f32"], {"axis": 0, "combine": "add"}, "expected 2 results, found 1"),
        (tile.ReduceOp, [[V]], ["f32"], {"axis": 1, "combine": "add"}, "expected an axis from 0 to 0, found 1"),
    ],
)  # fmt: skip
def test_what_an_op_says_of_types_that_do_not_fit(
    op: type[Op],
    operands: list[Types],
    results: list[str],
    attributes: dict[str, object],
    message: str | None,
) -> None:
    assert fault(op, operands, results, **attributes) == message


@pytest.mark.parametrize(
    ("a", "b", "acc", "output", "message"),
    [
        ("4x8", "8x16", "4x16", "4x16", None),
        ("2x4x8", "2x8x16", "2x4x16", "2x4x16", None),
        ("4x8", "8x16", "4x16", "16x4", "expected tensor<4x16xf32>, found tensor<16x4xf32>"),
        ("4x8", "16x8", "4x8", "4x8", "expected (M, K) @ (K, N) -> (M, N), found (4, 8) @ (16, 8) -> (4, 8)"),
        ("4x8", "8x16", "4x8", "4x8", "expected (M, K) @ (K, N) -> (M, N), found (4, 8) @ (8, 16) -> (4, 8)"),
        ("2x4x8", "1x8x16", "2x4x16", "2x4x16", "expected (M, K) @ (K, N) -> (M, N), found (2, 4, 8) @ (1, 8, 16) -> (2, 4, 16)"),
        ("2x4x8", "8x16", "2x4x16", "2x4x16", "expected operands of rank 2 or 3, found (2, 4, 8), (8, 16) and (2, 4, 16)"),
        ("8", "8", "8", "8", "expected operands of rank 2 or 3, found (8,), (8,) and (8,)"),
    ],
)  # fmt: skip
def test_a_product_takes_matrices_that_fit_or_as_many_of_each(
    a: str, b: str, acc: str, output: str, message: str | None
) -> None:
    tiles = [f"tensor<{shape}xf32>" for shape in (a, b, acc, output)]
    assert fault(tile.DotOp, tiles[:3], tiles[3:]) == message


def box(rank: int, base: str = PTR) -> list[str]:
    return [base, *["i32"] * rank, *["i64"] * rank, *["i32"] * rank]


@pytest.mark.parametrize(
    ("parts", "held", "message"),
    [
        (box(1), V, None),
        (box(3), V, None),
        (box(2)[:-1], V, "expected 1 + 3 * rank + {} parts, rank 1 or more, for a box of rank 1, found {}"),
        (box(1), "tensor<2x4xf32>", "expected 1 + 3 * rank + {} parts, rank 2 or more, for a box of rank 2, found {}"),
        (box(1, "!tile.ptr<f16>"), V, f"expected a box of f16, found {V}"),
        (box(1, "i64"), V, "expected a pointer, found i64"),
    ],
)  # fmt: skip
def test_a_box_has_as_many_parts_as_its_tensor_has_dimensions(
    parts: list[str], held: str, message: str | None
) -> None:
    loaded = fault(tile.DescriptorLoadOp, [parts], [held])
    assert loaded == (message and message.format(0, len(parts)))
    stored = fault(tile.DescriptorStoreOp, [[*parts, held]])
    assert stored == (message and message.format(1, len(parts) + 1))


@pytest.mark.parametrize("op", [tile.DescriptorLoadOp, tile.DescriptorStoreOp])
def test_the_parts_of_a_box_go_by_name_whatever_follows_them(op: type[Op]) -> None:
    held = "tensor<4x8xf32>"
    loads = op is tile.DescriptorLoadOp
    with built(op, [box(3) if loads else [*box(3), held]], [held] if loads else []) as made:
        base, *numbers = made.parts[:10]
        assert made.box.base == base
        assert made.box.sizes == tuple(numbers[:3])
        assert made.box.strides == tuple(numbers[3:6])
        assert made.box.indices == tuple(numbers[6:])
        if not loads:
            assert made.tile == made.parts[10]


@pytest.mark.parametrize(
    ("op", "operands", "results", "attributes", "choices"),
    [
        (tile.LoadOp, [P, None, None], [V], {"eviction": "last"}, tile.EVICTION),
        (tile.StoreOp, [P, V, None], [], {"cache": "last"}, tile.CACHE),
        (tile.StoreOp, [P, V, None], [], {"eviction": "last"}, tile.EVICTION),
        (tile.AtomicRmwOp, [P, V, None], [V], {"kind": "fadd", "sem": "last"}, tile.SEMANTICS),
        (tile.AtomicRmwOp, [P, V, None], [V], {"kind": "fadd", "scope": "last"}, tile.SCOPE),
        (tile.AtomicCasOp, [P, V, V], [V], {"sem": "last"}, tile.SEMANTICS),
        (tile.AtomicCasOp, [P, V, V], [V], {"scope": "last"}, tile.SCOPE),
        (tile.DescriptorLoadOp, [box(1)], [V], {"padding": "last"}, ("zero", "nan")),
        (tile.DescriptorLoadOp, [box(1)], [V], {"rounds": "last"}, ("", "tf32")),
        (tile.DotOp, ["tensor<8x8xf32>"] * 3, ["tensor<8x8xf32>"], {"precision": "last"}, tile.PRECISION),
    ],
)  # fmt: skip
def test_a_word_that_is_none_of_the_choices_is_reported(
    op: type[Op],
    operands: list[Types],
    results: list[str],
    attributes: dict[str, object],
    choices: tuple[str, ...],
) -> None:
    *_, name = attributes
    found = fault(op, operands, results, **attributes)
    assert found == f"expected `{name}` in {', '.join(choices)}, found last"


def test_what_acts_or_touches_memory_is_not_pure() -> None:
    assert {op.OPERATION_NAME.removeprefix("tile.") for op in tile.OPS if not op.pure} == {
        *("assume", "barrier", "load", "store", "descriptor_load", "descriptor_store"),
        *("atomic_rmw", "atomic_cas", "print", "assert"),
    }
