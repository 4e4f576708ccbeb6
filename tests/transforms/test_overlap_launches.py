"""Where kernels let the next launch begin, and wait for the one before."""

from __future__ import annotations

import re

import pytest
from mlir import ir

from tests.kernels.nest_kernels import nest
from tiledsl import compile as compile_kernel
from tiledsl.dialects import contracts, tgpu
from tiledsl.dialects.context import parse
from tiledsl.dialects.contracts import operations
from tiledsl.targets.nvptx import ptxas
from tiledsl.transforms.overlap_launches import overlap_launches

POINTERS = "%p: !tile.ptr<f32>, %c: i1"
BARRIERS = "!tgpu.shared<tensor<1xi64, @words>>"
SET_UP = f'%m = "tgpu.alloc"() : () -> {BARRIERS} "tgpu.mbarrier_init"(%m) : ({BARRIERS}) -> ()'
WORDS = '"tgpu.layout"() {map = "offset=[] shape=[1]", sym_name = "words"} : () -> ()'
LOAD = '%x = "tile.load"(%p) {operandSegmentSizes = array<i32: 1, 0, 0>} : (!tile.ptr<f32>) -> f32'
STORE = '"tile.store"(%p, %y) : (!tile.ptr<f32>, f32) -> ()'

BEFORE = ("alloc", "mbarrier_init")


def run(text: str, sets_up: bool = True) -> list[str]:
    """Run the pass and give the names of the ops of the kernel's own block."""
    text = f"{SET_UP} {text}" if sets_up else text
    module = parse(f"module {{ {WORDS} func.func @kernel({POINTERS}) {{ {text} return }} }}")
    with module.context, ir.Location.unknown():
        overlap_launches(module)
    contracts.check(module, contracts.TGPU)
    (kernel,) = (op for op in operations(module.operation) if op.operation.name == "func.func")
    assert (tgpu.OVERLAPS in kernel.operation.attributes) == sets_up
    block = kernel.operation.regions[0].blocks[0]
    return [op.operation.name.partition(".")[2] for op in block.operations][:-1]


def test_the_wait_comes_before_the_first_access():
    text = f"%y = arith.constant 1.0 : f32 {LOAD} {STORE}"
    assert run(text) == ["let_next_begin", *BEFORE, "constant", "await_launches", "load", "store"]


def test_an_access_in_a_branch_counts():
    text = f"%y = arith.constant 1.0 : f32 scf.if %c {{ {STORE} }}"
    assert run(text) == ["let_next_begin", *BEFORE, "constant", "await_launches", "if"]


def test_barriers_of_the_program_do_not_wait():
    text = f'"tgpu.barrier"() : () -> () %y = arith.constant 1.0 : f32 {STORE}'
    assert run(text) == [
        "let_next_begin", *BEFORE, "barrier", "constant", "await_launches", "store",
    ]  # fmt: skip


def test_a_kernel_that_accesses_nothing_waits_all_the_same():
    assert run("") == ["let_next_begin", *BEFORE, "await_launches"]


def test_a_kernel_with_nothing_to_set_up_neither_lets_begin_nor_waits():
    text = f"%y = arith.constant 1.0 : f32 {STORE}"
    assert run(text, sets_up=False) == ["constant", "store"]


@pytest.mark.parametrize("specialized", [False, True])
def test_mbarriers_are_made_before_the_wait_and_boxes_copied_after_it(
    monkeypatch: pytest.MonkeyPatch, specialized: bool
):
    monkeypatch.setattr(ptxas, "find_ptxas", lambda: None)
    types = {"a": "*fp16:16", "b": "*fp16:16", "c": "*fp32:16", "table": "*i32:16"}
    constants = {"BM": 64, "BN": 64, "CASE": "", "LIST": True, "WS": specialized}
    made = compile_kernel(nest, types | dict.fromkeys("NK", "i32:16"), constants, target="sm_90a")
    ptx = str(made.asm["ptx"])
    assert made.artifact.overlaps
    assert ptx.count("griddepcontrol.wait") == ptx.count("griddepcontrol.launch_dependents") == 1
    wait = ptx.index("griddepcontrol.wait")
    assert ptx.rindex("mbarrier.init") < wait
    accesses = re.finditer(r"(ld|st|atom|red)\.global|cp\.async\.bulk", ptx)
    assert min(match.start() for match in accesses) > wait


def test_chips_that_cannot_overlap_launches_do_not():
    types = {"a": "*fp16:16", "b": "*fp16:16", "c": "*fp32:16", "table": "*i32:16"}
    constants = {"BM": 64, "BN": 64, "CASE": "", "LIST": True, "WS": None}
    made = compile_kernel(nest, types | dict.fromkeys("NK", "i32:16"), constants, target="sm_80")
    assert not made.artifact.overlaps
    assert "griddepcontrol" not in str(made.asm["ptx"])
