from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlir import ir
from mlir.dialects import arith

from tests.targets.gpu.running import run, to_machine
from tests.transforms.arith_evaluator import DTYPES
from tests.transforms.tile_kernels import Kernel
from tiledsl.dialects import tile
from tiledsl.dialects.context import parse
from tiledsl.dialects.op import Symbol
from tiledsl.dialects.types import tile_type

# (f1, x1) then (f2, x2): the composition of x -> f x + c, which does not commute.
AFFINE = """
func.func private @affine(%f1: i32, %x1: i32, %f2: i32, %x2: i32) -> (i32, i32) {
  %f = arith.muli %f1, %f2 : i32
  %a = arith.muli %f2, %x1 : i32
  %x = arith.addi %a, %x2 : i32
  return %f, %x : i32, i32
}"""
# The same with a branch, which cannot be built on vectors.
BRANCHING = """
func.func private @affine(%f1: i32, %x1: i32, %f2: i32, %x2: i32) -> (i32, i32) {
  %f = arith.muli %f1, %f2 : i32
  %zero = arith.constant 0 : i32
  %none = arith.cmpi eq, %x1, %zero : i32
  %x = scf.if %none -> i32 {
    scf.yield %x2 : i32
  } else {
    %a = arith.muli %f2, %x1 : i32
    %s = arith.addi %a, %x2 : i32
    scf.yield %s : i32
  }
  return %f, %x : i32, i32
}"""
FIRST_MAXIMUM = """
func.func private @argmax(%v1: f32, %i1: i32, %v2: f32, %i2: i32) -> (f32, i32) {
  %more = arith.cmpf ogt, %v1, %v2 : f32
  %same = arith.cmpf oeq, %v1, %v2 : f32
  %before = arith.cmpi slt, %i1, %i2 : i32
  %tie = arith.andi %same, %before : i1
  %first = arith.ori %more, %tie : i1
  %v = arith.select %first, %v1, %v2 : f32
  %i = arith.select %first, %i1, %i2 : i32
  return %v, %i : f32, i32
}"""


def add_function(k: Kernel, text: str) -> None:
    module = parse(text)
    k.module.body.append(module.body.operations[0].detach_from_parent())


def broadcast_index(k: Kernel, shape: tuple[int, int], axis: int) -> ir.Value:
    index = k.expand(k.range(shape[axis]), 1 - axis)
    return k.broadcast(index, *shape)


@pytest.mark.parametrize("kind", ["add", "max"])
@pytest.mark.parametrize("axis", [0, 1])
@given(
    rows=st.sampled_from([1, 2, 16, 128]),
    columns=st.sampled_from([1, 4, 64]),
    warps=st.sampled_from([1, 2, 8]),
)
@settings(max_examples=10, deadline=None)
def test_rows_and_columns_are_reduced(
    kind: str, axis: int, rows: int, columns: int, warps: int
) -> None:
    k = Kernel("*i32", "*i32")
    value = k.load(k.pointers(k.args[0], rows, columns))
    result = k.reduce(value, axis, kind)
    k.store(k.pointers(k.args[1], (rows, columns)[1 - axis]), result)
    x = np.random.default_rng(rows).integers(-1000, 1000, (rows, columns)).astype(np.int32)
    y = np.zeros((rows, columns)[1 - axis], np.int32)
    run(to_machine(k.finish(), warps), x, y)
    assert np.array_equal(y, x.sum(axis) if kind == "add" else x.max(axis))


@pytest.mark.parametrize("element", ["i8", "f16", "f64", "bf16"])
def test_elements_of_any_width_are_reduced(element: str) -> None:
    k = Kernel(f"*{element}", f"*{element}")
    k.store(k.args[1], k.reduce(k.load(k.pointers(k.args[0], 512)), 0, "max"))
    x = (np.arange(512) % 101 - 50).astype(DTYPES[element])
    y = np.zeros(1, DTYPES[element])
    run(to_machine(k.finish()), x, y)
    assert float(y[0]) == 50


@pytest.mark.parametrize("element", ["f32", "f64"])  # sm_80 has an instruction for the former
@given(place=st.integers(-1, 63), axis=st.sampled_from([0, 1]), warps=st.sampled_from([1, 4]))
@settings(max_examples=6, deadline=None)
def test_a_maximum_is_nan_where_an_element_is(
    element: str, place: int, axis: int, warps: int
) -> None:
    k = Kernel(f"*{element}", f"*{element}")
    value = k.load(k.pointers(k.args[0], 64, 64))
    k.store(k.pointers(k.args[1], 64), k.reduce(value, axis, "max"))
    x = np.random.default_rng(1).standard_normal((64, 64)).astype(DTYPES[element])
    x[0], x[:, 0] = -np.inf, -np.inf
    if place >= 0:
        x[place, (place * 7) % 64] = np.nan
    y = np.zeros(64, DTYPES[element])
    module = to_machine(k.finish(), warps)
    assert ("arith.maxnumf" in str(module)) == (element == "f64")
    run(module, x, y)
    assert np.array_equal(y, x.max(axis), equal_nan=True)


@pytest.mark.parametrize("warps", [1, 2, 8])
@pytest.mark.parametrize("function", [AFFINE, BRANCHING], ids=["straight", "branching"])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_function_that_does_not_commute_keeps_its_order(
    axis: int, function: str, warps: int
) -> None:
    shape = (64, 8) if axis == 0 else (4, 128)
    k = Kernel("*i32", "*i32", "*i32")
    add_function(k, function)
    values = [k.load(k.pointers(p, *shape)) for p in k.args[:2]]
    kept = shape[1 - axis]
    with k.here():
        type_ = tile_type((kept,), k.type("i32"))
        made = tile.ReduceOp.build(
            values, results=[type_, type_], axis=axis, combine=Symbol("affine"), kind=""
        )
    k.store(k.pointers(k.args[2], kept), made.results_[1])
    random = np.random.default_rng(1)
    f, x = (random.integers(-5, 6, shape).astype(np.int32) for _ in range(2))
    y = np.zeros(kept, np.int32)
    run(to_machine(k.finish(), warps), f, x, y)
    expected = np.zeros(kept, np.int32)
    for i in range(shape[axis]):
        expected = f.take(i, axis) * expected + x.take(i, axis)
    assert np.array_equal(y, expected)


@pytest.mark.parametrize("warps", [1, 2, 4, 8])
def test_every_thread_gets_the_same_index_of_a_maximum(warps: int) -> None:
    size = 64
    k = Kernel("*f32", "*i32")
    add_function(k, FIRST_MAXIMUM)
    value, index = k.load(k.pointers(k.args[0], size)), k.range(size)
    with k.here():
        made = tile.ReduceOp.build(
            [value, index],
            results=[k.type("f32"), k.type("i32")],
            axis=0,
            combine=Symbol("argmax"),
            kind="argmax",
        )
    # Where threads disagreed, the sum would not be one.
    equal = _equal(k, k.range(size), k.splat(made.results_[1], size))
    with k.here():
        ones = arith.extui(index.type, equal)
    k.store(k.args[1], k.reduce(ones, 0, "add"))
    module = to_machine(k.finish(), warps)
    for x in (np.ones(size, np.float32), np.r_[np.zeros(62), 1, 1].astype(np.float32)):
        y = np.zeros(1, np.int32)
        run(module, x, y)
        assert y[0] == 1


def _equal(k: Kernel, a: ir.Value, b: ir.Value) -> ir.Value:
    with k.here():
        return arith.CmpIOp(arith.CmpIPredicate.eq, a, b).result


def scan(k: Kernel, values: list[ir.Value], axis: int, combine: str, reverse: bool) -> Any:
    with k.here():
        return tile.ScanOp.build(
            values,
            results=[v.type for v in values],
            axis=axis,
            combine=Symbol(combine),
            kind="",
            reverse=reverse,
        ).results_


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
@given(
    rows=st.sampled_from([1, 4, 64]),
    columns=st.sampled_from([2, 32, 128]),
    warps=st.sampled_from([1, 2, 8]),
)
@settings(max_examples=10, deadline=None)
def test_scans_run_along_their_axis_from_either_end(
    axis: int, reverse: bool, rows: int, columns: int, warps: int
) -> None:
    k = Kernel("*i32", "*i32", "*i32", "*i32")
    add_function(k, AFFINE)
    shape = rows, columns
    values = [k.load(k.pointers(p, *shape)) for p in k.args[:2]]
    for pointer, result in zip(k.args[2:], scan(k, values, axis, "affine", reverse), strict=True):
        k.store(k.pointers(pointer, *shape), result)
    random = np.random.default_rng(2)
    f, x = (random.integers(-5, 6, shape).astype(np.int32) for _ in range(2))
    products, sums = np.zeros_like(f), np.zeros_like(x)
    run(to_machine(k.finish(), warps), f, x, products, sums)
    along = np.flip(f, axis) if reverse else f, np.flip(x, axis) if reverse else x
    p, s = np.ones(shape[1 - axis], np.int32), np.zeros(shape[1 - axis], np.int32)
    expected: list[tuple[Any, Any]] = []
    for i in range(shape[axis]):
        p, s = p * along[0].take(i, axis), along[0].take(i, axis) * s + along[1].take(i, axis)
        expected.append((p, s))
    for found, number in ((products, 0), (sums, 1)):
        wanted = np.stack([pair[number] for pair in expected], axis)
        assert np.array_equal(np.flip(found, axis) if reverse else found, wanted)
