"""Layouts: random kernels mean the same afterwards and keep the lowering's rules; golden tests."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlir import ir

from tiledsl.dialects import contracts
from tiledsl.dialects.context import parse
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.types import tile_type
from tiledsl.transforms.assign_layouts import assign_layouts
from tiledsl.transforms.select_mma import select_mma
from tiledsl.transforms.share_conversions import share_conversions

from . import random_kernels
from .layout_oracle import fault
from .mma_tables import AMPERE
from .tile_kernels import Kernel, attention, matmul, softmax, vector_add
from .tile_values import execute


def assign(module: ir.Module, num_warps: int = 4, warp_size: int = 32) -> None:
    with module.context, ir.Location.unknown():
        assign_layouts(module, num_warps=num_warps, warp_size=warp_size)
    contracts.check(module, contracts.TGPU)
    assert fault(module) is None


def select(module: ir.Module, num_warps: int = 4) -> ir.Module:
    with module.context, ir.Location.unknown():
        select_mma(module, table=AMPERE, num_warps=num_warps)
    contracts.check(module, contracts.TILE)
    return module


def share(module: ir.Module) -> None:
    with module.context, ir.Location.unknown():
        share_conversions(module)
    contracts.check(module, contracts.TGPU)
    assert fault(module, shared=True) is None


def count(module: ir.Module, name: str) -> int:
    return str(module).count(f'"{name}"(')


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(random_kernels.modules(), st.sampled_from([(1, 32), (4, 32), (8, 32), (2, 64)]))
def test_a_random_kernel_means_the_same_with_layouts(module: ir.Module, threads: tuple[int, int]):
    arrays = np.arange(random_kernels.ELEMENTS, dtype=np.int32) * 7 % 31, np.zeros(8192, np.int32)
    wanted = execute(module, [*arrays, 3])[1]
    assign(module, *threads)
    np.testing.assert_array_equal(execute(module, [*arrays, 3])[1], wanted)
    share(module)
    np.testing.assert_array_equal(execute(module, [*arrays, 3])[1], wanted)


# What the usual kernels cost.


def converted(module: ir.Module) -> list[str]:
    """Give the shapes and elements of the tiles that change layout, in program order."""
    lines = [line for line in str(module).splitlines() if "tgpu.convert_layout" in line]
    return [line.rpartition("tensor<")[2].partition(",")[0] for line in lines]


@pytest.mark.parametrize("element", ["f32", "f16", "f64"])
@pytest.mark.parametrize("size", [1, 64, 1024, 4096])
def test_adding_vectors_moves_nothing_between_threads(element: str, size: int):
    module = vector_add(size, element)
    assign(module)
    assert converted(module) == []


def test_a_softmax_moves_nothing_but_its_sums():
    module = softmax(4, 256)
    assign(module)
    assert converted(module) == []
    share(module)
    assert count(module, "tgpu.alloc") == 0  # each warp has whole rows


def test_a_row_wider_than_a_warp_is_reduced_through_shared_memory():
    module = softmax(1, 1024)
    assign(module)
    share(module)
    assert converted(module) == []
    assert count(module, "tgpu.partial_reduce") == count(module, "tgpu.alloc") == 2


def test_a_matmul_converts_its_operands_once_and_its_result_when_it_is_small():
    module = select(matmul())
    assign(module)
    assert sorted(converted(module)) == ["128x128xf16", "128x32xf16", "32x128xf16"]


def test_attention_moves_neither_scores_nor_accumulators():
    module = select(attention())
    assign(module)
    # The query, the result; a key and a value tile each trip.
    assert converted(module) == ["64x64xf16"] * 4
    text = str(module)
    before, loop = text.split("scf.for", 1)
    assert before.count("tgpu.convert_layout") == 1
    assert loop.split("scf.yield")[0].count("tgpu.convert_layout") == 2


def test_small_elements_are_moved_before_they_grow():
    k = Kernel("*f8E4M3FN", "*f16", "*f32")
    a, b = (k.load(k.pointers(p, 64, 64)) for p in k.args[:2])
    with k.here():
        wide = k.op("arith.extf", a, result=b.type)
    k.store(
        k.pointers(k.args[2], 64, 64),
        k.dot(wide, b, k.constant(0, tile_type((64, 64), k.type("f32")))),
    )
    module = select(k.finish())
    assign(module)
    assert "64x64xf8E4M3FN" in converted(module)
    assert converted(module).count("64x64xf16") == 1


def with_bias(columns: int) -> ir.Module:
    """Build a 64 by `columns` product with a row added to it."""
    k = Kernel("*f16", "*f32", "*f32", "*f16")
    a = k.load(k.pointers(k.args[0], 64, 64))
    b = k.load(k.pointers(k.args[3], 64, columns))
    zero = k.constant(0, tile_type((64, columns), k.type("f32")))
    bias = k.broadcast(k.expand(k.load(k.pointers(k.args[1], columns)), 0), 64, columns)
    k.store(k.pointers(k.args[2], 64, columns), k.op("arith.addf", k.dot(a, b, zero), bias))
    module = select(k.finish())
    assign(module)
    return module


def test_a_row_is_moved_before_it_is_broadcast():
    assert converted(with_bias(256))[0] == "256xf32"


def test_a_row_of_no_more_elements_than_threads_is_read_where_it_is_needed():
    module = with_bias(128)
    assert "128xf32" not in converted(module)
    assert sum(op.operation.name == "tile.load" for op in operations(module.operation)) == 3


def test_what_a_loop_does_not_change_is_converted_before_it():
    k = Kernel("*f16", "*f32", "i32")
    a = k.load(k.pointers(k.args[0], 64, 64))
    zero = k.constant(0, tile_type((64, 64), k.type("f32")))
    total = k.loop(k.args[2], [zero], lambda _, carried: [k.dot(a, a, carried[0])])
    k.store(k.pointers(k.args[1], 64, 64), total[0])
    module = select(k.finish())
    assign(module)
    before, loop = str(module).split("scf.for", 1)
    assert before.count("tgpu.convert_layout") == 2
    assert loop.split("scf.yield")[0].count("tgpu.convert_layout") == 0


def test_a_kernel_without_tiles_is_left_as_it_is():
    k = Kernel("*f32", "f32")
    k.store(k.args[0], k.args[1])
    module = k.finish()
    text = str(module)
    assign(module)
    assert str(module) == text


def test_parts_of_one_tile_that_are_wanted_elsewhere_are_computed_there():
    module = select(matmul(64, 64, 32, "f32", "f32", "tf32x3"))
    assign(module)
    # Each operand once, not its three parts.
    assert sorted(converted(module)) == ["32x64xf32", "64x32xf32"]


def test_a_result_whose_rows_fill_sectors_is_stored_as_it_lies():
    def kernel(element: str, n: int = 64) -> ir.Module:
        k = Kernel("*f16", "*f16", f"*{element}")
        a, b = k.load(k.pointers(k.args[0], 64, 64)), k.load(k.pointers(k.args[1], 64, n))
        total = k.dot(a, b, k.constant(0, tile_type((64, n), k.type("f32"))))
        result = total if element == "f32" else k.cast(total, element)
        k.store(k.pointers(k.args[2], 64, n), result)
        return k.finish()

    wide, narrow, large = select(kernel("f32")), select(kernel("f16")), select(kernel("f16", 512))
    for module in (wide, narrow, large):
        assign(module)
    assert "64x64xf32" not in converted(wide)
    assert converted(narrow).count("64x64xf16") == 3
    assert converted(large).count("64x512xf16") == 1  # the operand; the result is too large


WHILE = """func.func @kernel(%p: !tile.ptr<f32> {tile.divisibility = 16 : i64}, %n: i32) {
  %i = "tile.make_range"() {start = 0 : i64, end = 1024 : i64} : () -> tensor<1024xi32>
  %q = "tile.splat"(%p) : (!tile.ptr<f32>) -> tensor<1024x!tile.ptr<f32>>
  %a = "tile.addptr"(%q, %i)
    : (tensor<1024x!tile.ptr<f32>>, tensor<1024xi32>) -> tensor<1024x!tile.ptr<f32>>
  %zero = arith.constant dense<0.0> : tensor<1024xf32>
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %r:2 = scf.while (%k = %c0, %t = %zero) : (i32, tensor<1024xf32>) -> (i32, tensor<1024xf32>) {
    %c = arith.cmpi slt, %k, %n : i32
    scf.condition(%c) %k, %t : i32, tensor<1024xf32>
  } do {
  ^bb0(%k: i32, %t: tensor<1024xf32>):
    %v = "tile.load"(%a) {operandSegmentSizes = array<i32: 1, 0, 0>}
      : (tensor<1024x!tile.ptr<f32>>) -> tensor<1024xf32>
    %s = arith.addf %t, %v : tensor<1024xf32>
    %k1 = arith.addi %k, %c1 : i32
    scf.yield %k1, %s : i32, tensor<1024xf32>
  }
  "tile.store"(%a, %r#1) : (tensor<1024x!tile.ptr<f32>>, tensor<1024xf32>) -> ()
  return
}"""


def test_a_tile_that_a_while_carries_has_one_layout_throughout():
    module = parse(WHILE)
    contracts.check(module, contracts.TILE)
    assign(module)
    assert converted(module) == []
    assert count(module, "tgpu.layout") == 1
