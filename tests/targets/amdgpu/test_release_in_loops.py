"""Loops that meet at barriers of all memory release it at their end, too."""

from __future__ import annotations

import pytest
from mlir import ir

from tiledsl.dialects.context import parse
from tiledsl.targets.amdgpu.release_in_loops import release_in_loops

_LOOP = """
llvm.func @kernel(%n: i32, %p: !llvm.ptr<1>) {{
  %zero = arith.constant 0 : i32
  %one = arith.constant 1 : i32
  scf.for %i = %zero to %n step %one : i32 {{
    {fence}
    rocdl.s.barrier
    llvm.store %i, %p : i32, !llvm.ptr<1>
    scf.yield
  }}
  {after}
  llvm.return
}}
"""
_WHILE = """
llvm.func @kernel(%n: i32, %p: !llvm.ptr<1>) {
  scf.while (%i = %n) : (i32) -> i32 {
    llvm.fence syncscope("workgroup") release
    %zero = arith.constant 0 : i32
    %more = arith.cmpi sgt, %i, %zero : i32
    scf.condition(%more) %i : i32
  } do {
  ^body(%i: i32):
    llvm.store %i, %p : i32, !llvm.ptr<1>
    scf.yield %i : i32
  }
  llvm.return
}
"""
_ALL = 'llvm.fence syncscope("workgroup") release'
_LOCAL = (
    'llvm.fence syncscope("workgroup") release '
    '{llvm.mmra = #llvm.mmra_tag<"amdgpu-synchronize-as":"local">}'
)


def _passed(text: str) -> str:
    module = parse(text)
    with module.context, ir.Location.unknown():
        release_in_loops(module)
    assert module.operation.verify()
    return str(module)


def test_a_loop_that_releases_all_memory_ends_with_a_release() -> None:
    body = _passed(_LOOP.format(fence=_ALL, after="")).split("scf.for")[1]
    assert body.count(_ALL) == 2
    assert body.index("llvm.store") < body.rindex(_ALL)


def test_so_does_a_loop_with_a_condition() -> None:
    body = _passed(_WHILE).split("} do {")[1]
    assert body.index("llvm.store") < body.index(_ALL)


@pytest.mark.parametrize(
    ("fence", "after"),
    [(_LOCAL, ""), ('llvm.fence syncscope("workgroup") acquire', ""), ("", _ALL)],
    ids=["LDS alone", "no release", "outside"],
)
def test_other_loops_stay_as_they_are(fence: str, after: str) -> None:
    text = _LOOP.format(fence=fence, after=after)
    assert _passed(text) == str(parse(text))
