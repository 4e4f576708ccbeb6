"""LLVM knows every intrinsic that a target names: the translator ends the process where it does not."""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TRANSLATE = """
import sys
from mlir import ir
from mlir.dialects import llvm
with ir.Context():
    module = ir.Module.parse(
        'llvm.func @f() { llvm.call_intrinsic "' + sys.argv[1] + '"() : () -> () llvm.return }'
    )
    llvm.translate_module_to_llvmir(module.operation)
"""


def named_intrinsics() -> set[str]:
    """Return the whole names among the targets' string literals; parts of f-strings are none."""
    names: set[str] = set()
    for path in (ROOT / "targets").rglob("*.py"):
        tree = ast.parse(path.read_text())
        parts = {
            id(part)
            for node in ast.walk(tree)
            if isinstance(node, ast.JoinedStr)
            for part in node.values
        }
        for node in ast.walk(tree):
            if id(node) in parts:
                continue
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
                whole = " " not in text and not text.endswith(".")  # else it is a beginning
                if text.startswith(("llvm.nvvm.", "llvm.amdgcn.")) and whole:
                    names.add(text)
    return names


def is_known(name: str) -> bool:
    done = subprocess.run([sys.executable, "-c", TRANSLATE, name], capture_output=True, text=True)
    return "could not find LLVM intrinsic" not in done.stderr


def test_llvm_knows_every_intrinsic_that_a_target_names() -> None:
    names = named_intrinsics()
    assert len(names) > 10
    assert [name for name in sorted(names) if not is_known(name)] == []
    assert not is_known("llvm.nvvm.tanh.approx.f")
