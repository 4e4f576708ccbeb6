"""Flatten control flow and name everything as LLVM does; `ptx` ops become inline assembly.

Before: the `machine` level.
After: the `llvm` level.

    scf.if %c { "ptx.store"(%p, %v, %m) : ... }
becomes
    llvm.cond_br %c, ^bb1, ^bb2
  ^bb1:
    llvm.inline_asm has_side_effects "@$2 st.global.b32 [ $1 ], $0;", "r,l,b" %w, %p, %m : ...
"""

from __future__ import annotations

from mlir import ir

from tiledsl.targets.gpu.line_locations import debug_scopes, locate_unpacking
from tiledsl.targets.nvptx.emit_asm import emit_asm
from tiledsl.transforms.run import upstream

_upstream = upstream(
    "convert-scf-to-cf,convert-vector-to-llvm,convert-math-to-llvm,convert-arith-to-llvm,"
    f"convert-cf-to-llvm,reconcile-unrealized-casts,{debug_scopes(tables=False)}",
    "convert_to_llvm",
)


def convert_to_llvm(module: ir.Module) -> None:
    """Run the pass described above on `module`, in place."""
    emit_asm(module)
    _upstream(module)
    locate_unpacking(module)
