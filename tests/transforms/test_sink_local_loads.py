"""Reads of shared memory move down to their users, and never over a write of their buffer."""

from __future__ import annotations

import re

from mlir import ir

from tiledsl.dialects.context import parse
from tiledsl.dialects.contracts import TGPU, check
from tiledsl.transforms.sink_local_loads import sink_local_loads

HEAD = """
"tgpu.layout"() {sym_name = "l", map = "register=[] lane=[[1],[2],[4],[8],[16]] warp=[] shape=[32]"} : () -> ()
"tgpu.layout"() {sym_name = "s", map = "offset=[[1],[2],[4],[8],[16]] shape=[32]"} : () -> ()
func.func @kernel(%x: tensor<32xf32, @l>, %c: i1, %i: i32) {
  %a = "tgpu.alloc"() {alignment = 16 : i64} : () -> !tgpu.shared<tensor<2x32xf32, @s>>
  %b = "tgpu.alloc"() {alignment = 16 : i64} : () -> !tgpu.shared<tensor<32xf32, @s>>
  %slot = "tgpu.slot"(%a, %i) : (!tgpu.shared<tensor<2x32xf32, @s>>, i32) -> !tgpu.shared<tensor<32xf32, @s>>
"""
LOAD = '%r = "tgpu.local_load"(%slot) : (!tgpu.shared<tensor<32xf32, @s>>) -> tensor<32xf32, @l>\n'
STORE_A = (
    '"tgpu.local_store"(%x, %slot) : (tensor<32xf32, @l>, !tgpu.shared<tensor<32xf32, @s>>) -> ()\n'
)
STORE_B = STORE_A.replace("%slot", "%b")
USE = "%sum = arith.addf %r, %x : tensor<32xf32, @l>\n"


def order(body: str) -> list[str]:
    """Return what is left of the ops after the pass, in order."""
    module = parse(HEAD + body + "return\n}")
    with module.context, ir.Location.unknown():
        sink_local_loads(module)
    check(module, TGPU)
    text = str(module)
    return re.findall(r"local_load|local_store|addf|scf\.if|scf\.for", text)


def test_a_read_waits_for_its_user_behind_other_buffers_stores() -> None:
    assert order(LOAD + STORE_B + USE) == ["local_store", "local_load", "addf"]


def test_a_read_stays_before_a_write_of_its_buffer_through_any_slot() -> None:
    assert order(LOAD + STORE_A + USE) == ["local_load", "local_store", "addf"]
    assert order(LOAD + STORE_B + STORE_A + USE) == [
        "local_store",
        "local_load",
        "local_store",
        "addf",
    ]


def test_a_read_stays_before_a_branch_that_writes_its_buffer() -> None:
    branch = f"scf.if %c {{\n{STORE_A}}}\n"
    assert order(LOAD + branch + USE) == ["local_load", "scf.if", "local_store", "addf"]


def test_a_read_stays_outside_of_the_branch_that_uses_it() -> None:
    branch = f"scf.if %c {{\n{USE}}}\n"
    assert order(LOAD + STORE_B + branch) == ["local_store", "local_load", "scf.if", "addf"]


def test_a_read_that_may_wait_passes_one_that_may_not() -> None:
    second = LOAD.replace("%r", "%q").replace("%slot", "%b")
    use = "%sum = arith.addf %r, %q : tensor<32xf32, @l>\n"
    module = parse(HEAD + LOAD + second + STORE_B + use + "return\n}")
    with module.context, ir.Location.unknown():
        sink_local_loads(module)
    kept = re.findall(r'(local_load|local_store)"\((%\w+)', str(module))
    assert [name for name, _ in kept] == ["local_load", "local_store", "local_load"]
