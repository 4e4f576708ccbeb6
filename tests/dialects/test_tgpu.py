"""Every op of the `tgpu` dialect: it round-trips through text, and its rules are broken."""

from typing import Any

import pytest

from tests.dialects.one_op import Types, built, fault
from tiledsl.dialects import contracts, tgpu
from tiledsl.dialects.context import parse
from tiledsl.dialects.op import SLOTS, Op

V = "tensor<8xf32, @row>"
C = "tensor<8xf32, @copies>"
S = "!tgpu.shared<tensor<8xf32, @held>>"
SS = "!tgpu.shared<tensor<2x8xf32, @held>>"
B = "!tgpu.shared<tensor<1xi64, @one>>"
BB = "!tgpu.shared<tensor<2x1xi64, @one>>"
A = "tensor<8x8xf16, @square>"
SUM = "tensor<8x8xf32, @square>"
PARTS = "!tile.ptr<f32>, i32, i32, i32"


def segments(of: str, used: int, slots: int = SLOTS) -> str:
    return f"{of}SegmentSizes = array<i32: {', '.join('1' * used + '0' * (slots - used))}>"


GOOD = f"""
"tgpu.layout"() {{sym_name = "row", map = "register=[] lane=[[1],[2],[4]] warp=[] shape=[8]"}} : () -> ()
"tgpu.layout"() {{sym_name = "copies", map = "register=[[1],[2],[4]] lane=[[0],[0],[0]] warp=[] shape=[8]"}} : () -> ()
"tgpu.layout"() {{sym_name = "part", map = "register=[] lane=[[1],[2],[0]] warp=[] shape=[4]"}} : () -> ()
"tgpu.layout"() {{sym_name = "held", map = "offset=[[1],[2],[4]] shape=[8]"}} : () -> ()
"tgpu.layout"() {{sym_name = "one", map = "shape=[1]"}} : () -> ()
"tgpu.layout"() {{sym_name = "square", map = "register=[[0,1],[0,2],[0,4]] lane=[[1,0],[2,0],[4,0]] warp=[] shape=[8,8]"}} : () -> ()
"tgpu.layout"() {{sym_name = "partials", map = "register=[] lane=[[0],[0],[0]] warp=[] shape=[1]"}} : () -> ()
func.func private @add(%a: f32, %b: f32) -> f32 {{
  return %a : f32
}}
func.func @k(%ptr: !tile.ptr<f32>, %s: f32, %n: i32) attributes {{tgpu.producer_warps = 1 : i64}} {{
  %v = "tile.splat"(%s) : (f32) -> {V}
  %ptrs = "tile.splat"(%ptr) : (!tile.ptr<f32>) -> tensor<8x!tile.ptr<f32>, @row>
  %c = "tgpu.convert_layout"(%v) : ({V}) -> {C}
  %part = "tgpu.slice"(%v) {{starts = array<i64: 4>}} : ({V}) -> tensor<4xf32, @part>
  %slots = "tgpu.alloc"() {{alignment = 128 : i64}} : () -> {SS}
  %slot = "tgpu.slot"(%slots, %n) : ({SS}, i32) -> {S}
  %barriers = "tgpu.alloc"() {{offset = 64 : i64}} : () -> {BB}
  %barrier = "tgpu.slot"(%barriers, %n) : ({BB}, i32) -> {B}
  "tgpu.mbarrier_init"(%barriers) {{arrivals = "warps", blocks = 2 : i64}} : ({BB}) -> ()
  "tgpu.let_next_begin"() : () -> ()
  "tgpu.await_launches"() : () -> ()
  %copies = "tgpu.producer"() : () -> i1
  "tgpu.set_registers"() {{count = 40 : i64, fewer = true}} : () -> ()
  "tgpu.mbarrier_expect"(%barrier, %copies) {{bytes = 32 : i64}} : ({B}, i1) -> ()
  "tgpu.box_copy"(%slot, %barrier, %copies, %ptr, %n, %n, %n) {{guarded = true, {segments("operand", 7, 19)}}} : ({S}, {B}, i1, {PARTS}) -> ()
  "tgpu.mbarrier_wait"(%barrier, %n) {{by = "issuer"}} : ({B}, i32) -> ()
  %loaded = "tgpu.local_load"(%slot) : ({S}) -> {V}
  "tgpu.mbarrier_arrive"(%barrier, %slot) {{proxy = true, {segments("operand", 2, 9)}}} : ({B}, {S}) -> ()
  "tgpu.mbarrier_end"(%barriers) : ({BB}) -> ()
  "tgpu.local_store"(%loaded, %slot) : ({V}, {S}) -> ()
  "tgpu.async_copy"(%ptrs, %slot) {{cache = "cg"}} : (tensor<8x!tile.ptr<f32>, @row>, {S}) -> ()
  "tgpu.async_commit"() : () -> ()
  "tgpu.async_wait"() {{pending = 1 : i64}} : () -> ()
  "tgpu.proxy_fence"() {{memory = "all"}} : () -> ()
  "tgpu.warpgroup_barrier"() {{proxy = true}} : () -> ()
  "tgpu.box_store"(%slot, %ptr, %n, %n, %n) {{extents = array<i64: 8>, starts = array<i64: 0>, copied = array<i64: 1, 8>, groups = array<i64>, {segments("operand", 5, 17)}}} : ({S}, {PARTS}) -> ()
  "tgpu.store_wait"() {{pending = 0 : i64, read = true}} : () -> ()
  "tgpu.barrier"() {{memory = "all", cluster = true}} : () -> ()
  %a = arith.constant dense<1.0> : {A}
  %sum = arith.constant dense<0.0> : {SUM}
  %first = "tgpu.mma"(%a, %a, %sum) {{instruction = "any"}} : ({A}, {A}, {SUM}) -> {SUM}
  %second = "tgpu.fma_dot"(%a, %a, %first) : ({A}, {A}, {SUM}) -> {SUM}
  %third = "tgpu.warpgroup_mma"(%a, %a, %second) {{instruction = "any"}} : ({A}, {A}, {SUM}) -> {SUM}
  %over = "tgpu.warpgroup_wait"(%third) {{pending = 0 : i64}} : ({SUM}) -> {SUM}
  %kept = "tgpu.anchor"(%over) : ({SUM}) -> {SUM}
  %partial = "tgpu.partial_reduce"(%v) {{axis = 0, combine = @add, {segments("operand", 1)}, {segments("result", 1)}}} : ({V}) -> tensor<1xf32, @partials>
  %shared = "tgpu.share_result"(%c, %slot) : ({C}, {S}) -> {C}
  return
}}
"""


def test_every_tgpu_op_satisfies_its_contract_and_round_trips() -> None:
    module = parse(GOOD)
    contracts.check(module, contracts.TGPU)
    used = {op.operation.name for op in contracts.operations(module.operation)}
    assert {op.OPERATION_NAME for op in tgpu.OPS} <= used
    assert str(parse(str(module))) == str(module)


HALF = V.replace("f32", "f16")
FOUR = "tensor<4xf32, @part>"
RANK = "expected an axis from 0 to 0, found 1"


@pytest.mark.parametrize(
    ("op", "operands", "results", "attributes", "message"),
    [
        (tgpu.ConvertLayoutOp, [V], [HALF], {}, f"expected the same shape and elements, found {V} and {HALF}"),
        (tgpu.ConvertLayoutOp, [V], [FOUR], {}, f"expected the same shape and elements, found {V} and {FOUR}"),
        (tgpu.SlotOp, [SS, "i32"], [SS], {}, "expected a slot of tensor<2x8xf32, @held>, found tensor<2x8xf32, @held>"),
        (tgpu.SlotOp, [SS, "i32"], [S.replace("held", "other")], {}, "expected a slot of tensor<2x8xf32, @held>, found tensor<8xf32, @other>"),
        (tgpu.SlotOp, [SS, "i32"], [S.replace("f32", "f16")], {}, "expected a slot of tensor<2x8xf32, @held>, found tensor<8xf16, @held>"),
        (tgpu.LocalStoreOp, [FOUR, S], [], {}, f"expected a tile of shape (8,), found {FOUR}"),
        (tgpu.LocalStoreOp, [HALF, S], [], {}, f"expected a tile of f32, found {HALF}"),
        (tgpu.LocalLoadOp, [SS], [V], {}, f"expected a tile of shape (2, 8), found {V}"),
        (tgpu.LocalLoadOp, [S], [HALF], {}, f"expected a tile of f32, found {HALF}"),
        (tgpu.PartialReduceOp, [["tensor<4x8xf32>"]], ["tensor<2x8xf32>"], {"axis": 1, "combine": "add"}, "expected (partials, *(4,)), found tensor<2x8xf32>"),
        (tgpu.PartialReduceOp, [[V]], [V], {"axis": 1, "combine": "add"}, RANK),
        (tgpu.PartialReduceOp, [[V, V]], [V], {"axis": 0, "combine": "add"}, "expected 2 results, found 1"),
        (tgpu.MmaOp, [A, A, SUM], [A], {"instruction": "any"}, f"expected {SUM}, found {A}"),
        (tgpu.WarpgroupMmaOp, [A, A, SUM], [A], {"instruction": "any"}, f"expected {SUM}, found {A}"),
    ],
)  # fmt: skip
def test_what_an_op_says_of_types_that_do_not_fit(
    op: type[Op],
    operands: list[Types],
    results: list[str],
    attributes: dict[str, object],
    message: str,
) -> None:
    assert fault(op, operands, results, **attributes) == message


@pytest.mark.parametrize(
    ("part", "starts", "fits"),
    [
        ("4x2xf32", [4, 6], True),
        ("4x2xf32", [0, 0], True),
        ("4x2xf32", [8, 0], False),
        ("4x2xf32", [0, 3], False),
        ("4x2xf32", [-4, 0], False),
        ("4x2xf32", [4], False),
        ("4xf32", [4], False),
        ("4x2xf16", [4, 6], False),
    ],
)
def test_a_part_begins_within_its_tile_at_a_multiple_of_its_size(
    part: str, starts: list[int], fits: bool
) -> None:
    message = f"expected a part of tensor<8x8xf32> at {starts}, found tensor<{part}>"
    found = fault(tgpu.SliceOp, ["tensor<8x8xf32>"], [f"tensor<{part}>"], starts=starts)
    assert found == (None if fits else message)


@pytest.mark.parametrize(
    ("op", "operands", "attribute", "choices"),
    [
        (tgpu.MbarrierInitOp, [BB], "arrivals", "thread, warps"),
        (tgpu.MbarrierWaitOp, [B, "i32"], "by", "all, issuer"),
        (tgpu.ProxyFenceOp, [], "memory", "shared, all"),
        (tgpu.BarrierOp, [], "memory", "shared, all"),
        (tgpu.BoxCopyOp, [[S, B, "i1", *PARTS.split(", ")]], "rounds", ", tf32"),
    ],
)
def test_a_word_that_is_none_of_the_choices_is_reported(
    op: type[Op], operands: list[Types], attribute: str, choices: str
) -> None:
    found = fault(op, operands, **{attribute: "none"})
    assert found == f"expected `{attribute}` in {choices}, found none"


BOX = ["!tile.ptr<f32>", *["i32"] * 2, *["i64"] * 2, *["i32"] * 2]


def parts_of(box: Any) -> list[Any]:
    return [box.base, *box.sizes, *box.strides, *box.indices]


def test_a_copied_box_names_its_buffer_barrier_predicate_and_place() -> None:
    with built(tgpu.BoxCopyOp, [[S, B, "i1", *BOX]]) as op:
        parts = list(op.parts)
        assert [op.buffer, op.barrier, op.predicate, *parts_of(op.box)] == parts


@pytest.mark.parametrize("groups", [[], [64, 0]])
def test_a_stored_box_names_its_buffer_and_place_and_whether_warpgroups_store(
    groups: list[int],
) -> None:
    numbers: dict[str, Any] = {"extents": [8], "starts": [0], "copied": [1, 8], "groups": groups}
    with built(tgpu.BoxStoreOp, [[S, *BOX]], **numbers) as op:
        assert [op.buffer, *parts_of(op.box)] == list(op.parts)
        assert op.by_warpgroup is bool(groups)


def test_an_arrival_names_its_barrier_and_the_slots_that_were_read() -> None:
    with built(tgpu.MbarrierArriveOp, [[B, S, S]]) as op:
        parts = list(op.parts)
        assert op.barrier == parts[0]
        assert op.slots == parts[1:]


def test_only_what_its_operands_say_alone_is_pure() -> None:
    assert {op.OPERATION_NAME.removeprefix("tgpu.") for op in tgpu.OPS if op.pure} == {
        *("convert_layout", "slice", "slot", "producer", "mma", "fma_dot", "partial_reduce"),
    }
