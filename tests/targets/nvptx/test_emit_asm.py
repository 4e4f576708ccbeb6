from __future__ import annotations

import pytest

from tests.transforms.golden import golden
from tiledsl.dialects.contracts import MACHINE
from tiledsl.targets.nvptx.emit_asm import emit_asm


def check(arguments: str, body: str, checks: str) -> None:
    text = f"llvm.func @f({arguments}) {{\n{body}\nllvm.return\n}}"
    golden(text, emit_asm, MACHINE, checks)


def test_a_masked_load_begins_as_its_filler_and_needs_no_branch() -> None:
    check(
        "%p: !llvm.ptr<1>, %m: i1, %o: vector<4xf32>",
        '%v = "ptx.load"(%p, %m, %o) {operandSegmentSizes = array<i32: 1, 1, 1>}'
        " : (!llvm.ptr<1>, i1, vector<4xf32>) -> vector<4xf32>",
        """
// CHECK: llvm.inline_asm has_side_effects
// CHECK-SAME: "@$9 ld.global.v4.b32 { $0, $1, $2, $3 }, [ $8 ];"
// CHECK-SAME: "=r,=r,=r,=r,0,1,2,3,l,b"
// CHECK-NOT: ptx.
""",
    )


@pytest.mark.parametrize(
    ("type_", "suffix"),
    [
        ("vector<1xi8>", "b8 $0"),
        ("vector<2xi8>", "b16 $0"),
        ("vector<2xf16>", "b32 $0"),
        ("vector<8xf16>", "v4.b32 { $0, $1, $2, $3 }"),
        ("vector<2xf64>", "v2.b64 { $0, $1 }"),
        ("vector<1x!llvm.ptr<1>>", "b64 $0"),
    ],
)
def test_a_value_travels_in_as_few_registers_as_can_be(type_: str, suffix: str) -> None:
    check(
        "%p: !llvm.ptr<1>",
        '%v = "ptx.load"(%p) {operandSegmentSizes = array<i32: 1, 0, 0>, cache = "cg"}'
        f" : (!llvm.ptr<1>) -> {type_}",
        f"// CHECK: ld.global.cg.{suffix}, [ $",
    )


@pytest.mark.parametrize(
    ("attributes", "instruction"),
    [
        ('cache = "ca"', "st.global.ca.b32"),
        ('eviction = "evict_first"', "st.global.L1::evict_first.b32"),
        ('cache = "cs", eviction = "evict_last"', "st.global.cs.b32"),
    ],
)
def test_a_store_says_its_hints(attributes: str, instruction: str) -> None:
    check(
        "%p: !llvm.ptr<1>, %v: vector<1xf32>",
        f'"ptx.store"(%p, %v) {{{attributes}}} : (!llvm.ptr<1>, vector<1xf32>) -> ()',
        f'// CHECK: "{instruction} [ $1 ], $0;", "r,l"',
    )


@pytest.mark.parametrize(
    ("kind", "type_", "instruction"),
    [
        ("add", "i32", "add.u32"),
        ("fadd", "f16", "add.noftz.f16"),
        ("fadd", "f64", "add.f64"),
        ("max", "i64", "max.s64"),
        ("umin", "i32", "min.u32"),
        ("xchg", "i32", "exch.b32"),
    ],
)
def test_an_atomic_says_its_order_and_type(kind: str, type_: str, instruction: str) -> None:
    check(
        f"%p: !llvm.ptr<1>, %v: {type_}, %m: i1",
        f'%o = "ptx.atom"(%p, %v, %m) {{kind = "{kind}", sem = "acq_rel", scope = "gpu"}}'
        f" : (!llvm.ptr<1>, {type_}, i1) -> {type_}",
        f'// CHECK: "@$4 atom.acq_rel.gpu.global.{instruction} $0, [ $2 ], $3;"',
    )


def test_a_reduction_and_a_swap_are_written_likewise() -> None:
    check(
        "%p: !llvm.ptr<1>, %v: i32",
        '"ptx.red"(%p, %v) {kind = "or", sem = "release", scope = "sys"}'
        " : (!llvm.ptr<1>, i32) -> ()\n"
        '%o = "ptx.cas"(%p, %v, %v) {sem = "relaxed", scope = "cta"}'
        " : (!llvm.ptr<1>, i32, i32) -> i32",
        """
// CHECK: "red.release.sys.global.or.b32 [ $0 ], $1;"
// CHECK: "atom.relaxed.cta.global.cas.b32 $0, [ $2 ], $3, $4;"
""",
    )


def test_other_ops_stay() -> None:
    check("%p: !llvm.ptr<1>", "%v = llvm.load %p : !llvm.ptr<1> -> f32", "// CHECK: llvm.load")
