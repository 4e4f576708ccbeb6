"""Every `ptx` op of its simplest form: its IRDL loads it, it round-trips, rules broken are told."""

from __future__ import annotations

import pytest

from tiledsl.dialects import contracts, ptx
from tiledsl.dialects.context import parse
from tiledsl.dialects.diagnostics import CompilerBug

_ORDER = 'sem = "relaxed", scope = "gpu"'
GOOD = f"""
llvm.func @k(%p: !llvm.ptr<1>, %s: !llvm.ptr<3>, %v: i32, %m: i1, %d: i64, %o: vector<4xf32>) {{
  %0 = "ptx.load"(%p, %m, %v) {{operandSegmentSizes = array<i32: 1, 1, 1>, cache = "cg"}}
    : (!llvm.ptr<1>, i1, i32) -> i32
  "ptx.store"(%p, %v, %m) {{eviction = "evict_last"}} : (!llvm.ptr<1>, i32, i1) -> ()
  %1 = "ptx.atom"(%p, %v, %m) {{kind = "add", {_ORDER}}} : (!llvm.ptr<1>, i32, i1) -> i32
  "ptx.red"(%p, %v) {{kind = "umax", {_ORDER}}} : (!llvm.ptr<1>, i32) -> ()
  %2 = "ptx.cas"(%p, %v, %v, %m) {{{_ORDER}}} : (!llvm.ptr<1>, i32, i32, i1) -> i32
  "ptx.proxy_fence"() {{memory = "all"}} : () -> ()
  "ptx.wgmma_fence"() : () -> ()
  %3 = "ptx.wgmma"(%o, %d, %d) {{shape = "m64n8k16", types = "f32.f16.f16",
    a_steps = array<i64: 0>, b_steps = array<i64: 0>, operandSegmentSizes = array<i32: 1, 1, 1>}}
    : (vector<4xf32>, i64, i64) -> vector<4xf32>
  "ptx.wgmma_commit"() : () -> ()
  %4 = "ptx.wgmma_wait"(%3) {{pending = 0}} : (vector<4xf32>) -> vector<4xf32>
  %5 = "ptx.anchor"(%4) : (vector<4xf32>) -> vector<4xf32>
  "ptx.launch_dependents"() : () -> ()
  "ptx.grid_wait"() : () -> ()
  "ptx.set_registers"() {{count = 40, fewer = true}} : () -> ()
  "ptx.mbarrier_init"(%s, %m) {{count = 1}} : (!llvm.ptr<3>, i1) -> ()
  "ptx.mbarrier_fence"() : () -> ()
  "ptx.mbarrier_expect"(%s, %m) {{bytes = 128}} : (!llvm.ptr<3>, i1) -> ()
  "ptx.mbarrier_arrive"(%s, %m) : (!llvm.ptr<3>, i1) -> ()
  "ptx.mbarrier_wait"(%s, %v) : (!llvm.ptr<3>, i32) -> ()
  "ptx.mbarrier_inval"(%s, %m) : (!llvm.ptr<3>, i1) -> ()
  "ptx.bulk_commit"(%m) : (i1) -> ()
  "ptx.bulk_wait"(%m) {{pending = 1, read = true}} : (i1) -> ()
  llvm.return
}}
"""
_OF_PARTS = {"ptx.tensor_load", "ptx.tensor_store"}
"""Those whose operands depend on a rank; tests of `box_copy` have them."""


def test_every_op_satisfies_its_contract_and_round_trips() -> None:
    module = parse(GOOD)
    contracts.check(module, contracts.MACHINE)
    used = {op.operation.name for op in contracts.operations(module.operation)}
    assert {op.OPERATION_NAME for op in ptx.OPS} - used == _OF_PARTS
    assert str(parse(str(module))) == str(module)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "(%p, %m, %v) {operandSegmentSizes = array<i32: 1, 1, 1>, cache",
            "(%p, %m) {operandSegmentSizes = array<i32: 1, 1, 0>, cache",
            "expected `other` exactly where there is a predicate",
        ),
        ("i1, i32) -> i32\n  \"ptx.store", "i1, i32) -> i64\n  \"ptx.store", "expected `other` of i64"),
        ('cache = "cg"', 'cache = "cx"', "expected `cache` in "),
        ('kind = "umax"', 'kind = "nand"', "expected `kind` in add, fadd"),
        ('memory = "all"', 'memory = "local"', "expected `memory` in shared, all"),
    ],
)  # fmt: skip
def test_a_broken_rule_is_reported(old: str, new: str, message: str) -> None:
    assert old in GOOD
    text = GOOD.replace(old, new, 1)
    if "exactly where" in message:
        text = text.replace("(!llvm.ptr<1>, i1, i32) -> i32", "(!llvm.ptr<1>, i1) -> i32", 1)
    with pytest.raises(CompilerBug) as raised:
        contracts.check(parse(text), contracts.MACHINE)
    assert message in str(raised.value)
