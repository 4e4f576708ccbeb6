"""Who uses a shared buffer is found through its slots; products say what they read there, and how."""

from __future__ import annotations

from typing import Any

import pytest
from mlir import ir

import tiledsl as tile
from tiledsl.dialects import tgpu
from tiledsl.dialects.context import parse
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.types import held_by, shape_of
from tiledsl.transforms.shared_uses import (
    buffer_bytes,
    buffer_uses,
    k_axis,
    reads_shared,
    whole_buffer,
)

_TILE, _SLOT, _SLOTS = (
    "tensor<4x8xf16, @l>", "!tgpu.shared<tensor<4x8xf16, @s>>", "!tgpu.shared<tensor<3x4x8xf16, @s>>"
)  # fmt: skip
TEXT = f"""
"tgpu.layout"() {{sym_name = "l", map = "register=[] lane=[[1,0],[2,0],[0,1],[0,2],[0,4]] warp=[] shape=[4,8]"}} : () -> ()
"tgpu.layout"() {{sym_name = "s", map = "offset=[[0,1],[0,2],[0,4],[1,0],[2,0]] shape=[4,8]"}} : () -> ()
func.func @kernel(%x: {_TILE}, %n: i32, %c: i1) {{
  %other = "tgpu.alloc"() {{alignment = 16 : i64}} : () -> {_SLOT}
  %all = "tgpu.alloc"() {{alignment = 16 : i64}} : () -> {_SLOTS}
  %one = "tgpu.slot"(%all, %n) : ({_SLOTS}, i32) -> {_SLOT}
  "tgpu.local_store"(%x, %one) : ({_TILE}, {_SLOT}) -> ()
  "tgpu.local_store"(%x, %other) : ({_TILE}, {_SLOT}) -> ()
  scf.if %c {{
    %two = "tgpu.slot"(%all, %n) : ({_SLOTS}, i32) -> {_SLOT}
    %y = "tgpu.local_load"(%two) : ({_SLOT}) -> {_TILE}
  }}
  return
}}
"""


@pytest.fixture(scope="module")
def module() -> ir.Module:
    return parse(TEXT)


def found(module: ir.Module, kind: type) -> list[Any]:
    return [op for op in operations(module.operation) if isinstance(op, kind)]


def test_a_buffers_users_are_those_of_its_slots_in_inner_blocks_too(module: ir.Module) -> None:
    other, every = (alloc.buffer for alloc in found(module, tgpu.AllocOp))
    uses = buffer_uses(every)
    assert {op.operation.name for op in uses.users} == {"tgpu.local_store", "tgpu.local_load"}
    assert len(uses.users) == 2
    assert len(uses.values) == 3
    assert [op.operation.name for op in buffer_uses(other).users] == ["tgpu.local_store"]


def test_behind_a_slot_is_the_whole_buffer(module: ir.Module) -> None:
    other, every = (alloc.buffer for alloc in found(module, tgpu.AllocOp))
    assert [whole_buffer(slot.slot) for slot in found(module, tgpu.SlotOp)] == [every, every]
    assert whole_buffer(other) == other


def test_bytes_are_those_of_all_slots(module: ir.Module) -> None:
    sizes = [buffer_bytes(alloc.buffer.type) for alloc in found(module, tgpu.AllocOp)]
    assert sizes == [4 * 8 * 2, 3 * 4 * 8 * 2]


M, N, K = 64, 128, 32


@tile.jit
def product(a: Any, b: Any, c: Any, A_TURNED: tile.constexpr, B_TURNED: tile.constexpr) -> None:
    x = tile.trans(a.load([0, 0])) if A_TURNED else a.load([0, 0])
    y = tile.trans(b.load([0, 0])) if B_TURNED else b.load([0, 0])
    c.store([0, 0], tile.dot(x, y, input_precision="tf32"))


@pytest.mark.parametrize(
    ("element", "a_turned", "b_turned", "in_memory"),
    [
        ("bf16", False, False, True),
        ("bf16", True, False, True),
        ("bf16", False, True, True),
        ("bf16", True, True, True),
        ("fp32", False, True, True),
        # wgmma reads tf32 with k contiguous only: the first operand comes from registers then.
        ("fp32", True, True, False),
    ],
)
def test_a_product_tells_which_axis_is_k_and_what_it_reads_in_memory(
    element: str, a_turned: bool, b_turned: bool, in_memory: bool
) -> None:
    left, right = (K, M) if a_turned else (M, K), (N, K) if b_turned else (K, N)
    shapes = {"a": left, "b": right, "c": (M, N)}
    types = {
        name: f"tensor<{'fp32' if name == 'c' else element}, {rows}x{columns}>:16"
        for name, (rows, columns) in shapes.items()
    }
    constants = {"A_TURNED": a_turned, "B_TURNED": b_turned}
    made = tile.compile(product, types, constants, target="sm_90a", num_warps=4)
    module = parse(str(made.asm["tgpu"]))
    (op,) = found(module, tgpu.WarpgroupMmaOp)
    assert [reads_shared(op, operand) for operand in (0, 1)] == [in_memory, True]
    for operand, value in enumerate((op.a, op.b)):
        if reads_shared(op, operand):
            assert shape_of(held_by(value.type))[k_axis(op, operand)] == K
