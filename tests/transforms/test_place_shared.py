"""Placement in the IR: lifetimes through loops, asynchronous copies, and what does not fit."""

from __future__ import annotations

import re

import pytest
from mlir import ir

from tiledsl.dialects import contracts, tgpu
from tiledsl.dialects.context import parse
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.transforms.kernels import kernels
from tiledsl.transforms.place_shared import fits, place_shared

LAYOUTS = """
  "tgpu.layout"() {sym_name = "x", map = "register=[[64],[128],[256],[512]] lane=[[1],[2],[4],[8],[16]] warp=[[32]] shape=[1024]"} : () -> ()
  "tgpu.layout"() {sym_name = "s", map = "offset=[[1],[2],[4],[8],[16],[32],[64],[128],[256],[512]] shape=[1024]"} : () -> ()
"""
TILE, HELD = "tensor<1024xf32, @x>", "!tgpu.shared<tensor<1024xf32, @s>>"
BYTES = 4096


def alloc(name: str, slots: str = "") -> str:
    return f'%{name} = "tgpu.alloc"() : () -> !tgpu.shared<tensor<{slots}1024xf32, @s>>\n'


def store(name: str) -> str:
    return f'"tgpu.local_store"(%v, %{name}) : ({TILE}, {HELD}) -> ()\n'


def load(name: str) -> str:
    return f'"tgpu.local_load"(%{name}) : ({HELD}) -> {TILE}\n'


def loop(body: str) -> str:
    return f"scf.for %i = %n to %n step %n : i32 {{ {body} }}\n"


def module_of(text: str) -> ir.Module:
    value = f"%v = arith.constant dense<0.0> : {TILE}\n"
    return parse(
        f"module {{ {LAYOUTS} func.func @kernel(%n: i32, %q: !tile.ptr<f32>) "
        f"{{ {value} {text} return }} }}"
    )


def place(text: str, limit: int = 1 << 20) -> tuple[list[int], int]:
    """Give the offsets of the buffers in program order, and the kernel's bytes."""
    module = module_of(text)
    with module.context, ir.Location.unknown():
        place_shared(module, limit=limit)
    contracts.check(module, contracts.TGPU)
    allocs = [op for op in operations(module.operation) if isinstance(op, tgpu.AllocOp)]
    kernel = module.body.operations[2]
    total = ir.IntegerAttr(kernel.operation.attributes["tgpu.shared_bytes"]).value
    return [op.offset for op in allocs], total


def test_buffers_of_different_times_share_bytes():
    text = alloc("a") + store("a") + load("a") + alloc("b") + store("b") + load("b")
    assert place(text) == ([0, 0], BYTES)


def test_buffers_of_one_time_do_not():
    text = alloc("a") + alloc("b") + store("a") + store("b") + load("a") + load("b")
    assert sorted(place(text)[0]) == [0, BYTES]


def test_a_kernel_without_buffers_needs_nothing():
    assert place("") == ([], 0)


def test_a_loop_carries_a_buffer_from_outside_through_all_its_trips():
    # %a is read at the beginning of each trip only, but the next trip reads it again.
    text = alloc("a") + store("a") + loop(load("a") + alloc("b") + store("b") + load("b"))
    assert sorted(place(text)[0]) == [0, BYTES]


def test_buffers_of_a_loops_body_keep_apart_while_there_is_room():
    body = alloc("a") + store("a") + load("a") + alloc("b") + store("b") + load("b")
    assert sorted(place(loop(body))[0]) == [0, BYTES]
    assert place(loop(body), limit=BYTES) == ([0, 0], BYTES)


def test_an_epilogue_reuses_the_bytes_of_the_loop():
    text = alloc("a") + loop(store("a") + load("a")) + alloc("b") + store("b") + load("b")
    assert place(text) == ([0, 0], BYTES)


COPY = (
    '%p = "tile.splat"(%q) : (!tile.ptr<f32>) -> tensor<1024x!tile.ptr<f32>, @x>\n'
    '"tgpu.async_copy"(%p, %a) {operandSegmentSizes = array<i32: 1, 1, 0>} : '
    f"(tensor<1024x!tile.ptr<f32>, @x>, {HELD}) -> ()\n"
)
AFTER = alloc("b") + store("b") + load("b")


def wait(pending: int) -> str:
    return f'"tgpu.async_wait"() {{pending = {pending} : i64}} : () -> ()\n'


def test_a_buffer_that_may_still_be_copied_to_keeps_its_bytes():
    assert sorted(place(alloc("a") + COPY + wait(1) + load("a") + AFTER)[0]) == [0, BYTES]
    assert place(alloc("a") + COPY + wait(0) + load("a") + wait(0) + AFTER)[0] == [0, 0]


def test_slots_count():
    assert place(alloc("a", "3x"))[1] == 3 * BYTES


def test_a_limit_that_is_met_exactly_is_enough():
    text = alloc("a") + alloc("b") + store("a") + store("b") + load("a") + load("b")
    assert place(text, limit=2 * BYTES)[1] == 2 * BYTES


def test_what_does_not_fit_is_the_authors_mistake():
    text = alloc("a") + alloc("b") + store("a") + store("b") + load("a") + load("b")
    with pytest.raises(KernelError) as error:
        place(text, limit=2 * BYTES - 1)
    assert re.sub(r"-:\d+:\d+", "-:L:C", str(error.value)) == (
        "expected tiles that fit into shared memory: 8192 bytes wanted, 8191 available\n"
        "  --> -:L:C\n"
        "  hint: use smaller tiles or fewer stages"
    )


def test_whether_buffers_fit_can_be_asked_before_they_are_placed():
    text = alloc("a") + store("a") + load("a") + alloc("b") + store("b") + load("b")
    module = module_of(text)
    (kernel,) = kernels(module)
    assert fits(kernel, BYTES)
    assert not fits(kernel, BYTES - 1)
