"""What leaves the machine level is what translates to LLVM IR: no structure, no op of ours."""

from __future__ import annotations

from mlir import ir

from tiledsl.dialects import contracts
from tiledsl.dialects.context import parse
from tiledsl.targets.nvptx.convert_to_llvm import convert_to_llvm

_LOOP = """
func.func @k(%p: !llvm.ptr<1>, %v: f32, %n: i32, %c: i1) {
  %zero = arith.constant 0 : i32
  %one = arith.constant 1 : i32
  %sum = scf.for %i = %zero to %n step %one iter_args(%s = %v) -> (f32) : i32 {
    %next = arith.addf %s, %v : f32
    scf.yield %next : f32
  }
  scf.if %c {
    "ptx.store"(%p, %sum, %c) : (!llvm.ptr<1>, f32, i1) -> ()
  }
  return
}
"""


def _converted(text: str) -> tuple[ir.Module, str]:
    module = parse(text)
    contracts.check(module, contracts.MACHINE)
    with module.context, ir.Location.unknown():
        convert_to_llvm(module)
    contracts.check(module, contracts.LLVM)
    return module, str(module)


def test_structure_becomes_branches_and_our_ops_become_assembly() -> None:
    _, text = _converted(
        _LOOP.replace("func.func", "llvm.func").replace("  return", "  llvm.return")
    )
    assert text.count("llvm.cond_br") == 2
    assert '"@$2 st.global.b32 [ $1 ], $0;", "r,l,b"' in text
    assert "llvm.fadd" in text
    for dialect in ("scf.", "arith.", "cf.", "ptx."):
        assert dialect not in text


def test_vectors_and_functions_of_math_are_converted_too() -> None:
    _, text = _converted(
        """llvm.func @k(%p: !llvm.ptr<1>, %v: vector<2xf32>) {
  %w = math.fma %v, %v, %v : vector<2xf32>
  %a = vector.extract %w[0] : f32 from vector<2xf32>
  "ptx.store"(%p, %a) : (!llvm.ptr<1>, f32) -> ()
  llvm.return
}"""
    )
    assert "llvm.intr.fma" in text
    assert "llvm.extractelement" in text
