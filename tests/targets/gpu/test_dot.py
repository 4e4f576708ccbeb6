from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlir import ir

from tests.targets.gpu.running import run, to_machine
from tests.transforms.arith_evaluator import DTYPES
from tests.transforms.tile_kernels import Kernel, matmul
from tiledsl.dialects import tile
from tiledsl.dialects.context import context
from tiledsl.dialects.types import tile_type
from tiledsl.targets.gpu import dot, emit

CASES = {
    "f16": "f32",
    "bf16": "f32",
    "f32": "f32",
    "f64": "f64",
    "i8": "i32",
    "f8E4M3FN": "f32",
    "f8E5M2": "f32",
}


def product(
    m: int, n: int, depth: int, element: str, acc: str, other: str = "", **flags: object
) -> ir.Module:
    """Build c += a @ b of one tile each, c in the accumulator's type."""
    k = Kernel(f"*{element}", f"*{other or element}", f"*{acc}")
    pa, pb, pc = k.args
    sums = k.load(k.pointers(pc, m, n))
    a, b = k.load(k.pointers(pa, m, depth)), k.load(k.pointers(pb, depth, n))
    k.store(k.pointers(pc, m, n), k.dot(a, b, sums, **flags))
    return k.finish()


def numbers(element: str, *shape: int, seed: int = 0) -> Any:
    """Give small integers, exact in every type."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(DTYPES[element])


def check(module: ir.Module, m: int, n: int, depth: int, element: str, acc: str) -> None:
    a, b = numbers(element, m, depth), numbers(element, depth, n, seed=1)
    c = numbers(acc, m, n, seed=2)
    wide = np.int64 if acc == "i32" else np.float64
    expected = c.astype(wide) + a.astype(wide) @ b.astype(wide)
    run(module, a, b, c)
    assert np.array_equal(c.astype(wide), expected)


@pytest.mark.parametrize("chip", ["sm_80", "sm_89", "sm_90a", "sm_120"])
@pytest.mark.parametrize("element", CASES)
def test_every_type_multiplies_exactly_on_every_chip(element: str, chip: str) -> None:
    module = to_machine(product(32, 32, 64, element, CASES[element]), 4, chip)
    if element != "f32":
        assert "llvm.nvvm.mma" in str(module)
    check(module, 32, 32, 64, element, CASES[element])


@given(
    m=st.sampled_from([1, 8, 16, 64]),
    n=st.sampled_from([1, 8, 32]),
    depth=st.sampled_from([1, 4, 16, 64]),
    warps=st.sampled_from([1, 2, 8]),
    element=st.sampled_from(["f16", "f32", "i8", "f8E4M3FN"]),
)
@settings(max_examples=25, deadline=None)
def test_every_shape_multiplies(m: int, n: int, depth: int, warps: int, element: str) -> None:
    acc = CASES[element]
    check(to_machine(product(m, n, depth, element, acc), warps), m, n, depth, element, acc)


@pytest.mark.parametrize("acc", ["f16", "bf16"])
@pytest.mark.parametrize("m", [4, 32])
def test_small_accumulators_are_summed_in_f32_or_by_the_instruction(acc: str, m: int) -> None:
    check(to_machine(product(m, 16, 16, acc, acc)), m, 16, 16, acc, acc)


@pytest.mark.parametrize("flags", [(False, True), (True, False), (True, True)])
@pytest.mark.parametrize("m", [2, 32])
def test_unsigned_bytes_multiply_as_such(flags: tuple[bool, bool], m: int) -> None:
    module = product(m, 16, 32, "i8", "i32", a_unsigned=flags[0], b_unsigned=flags[1])
    a = np.random.default_rng(0).integers(0, 256, (m, 32)).astype(np.uint8).view(np.int8)
    b = np.random.default_rng(1).integers(0, 256, (32, 16)).astype(np.uint8).view(np.int8)
    c = np.zeros((m, 16), np.int32)
    run(to_machine(module), a, b, c)
    left, right = (x.view(np.uint8) if u else x for x, u in zip((a, b), flags, strict=True))
    assert np.array_equal(c, left.astype(np.int32) @ right.astype(np.int32))


def test_the_two_forms_of_fp8_multiply_each_other() -> None:
    module = to_machine(product(16, 16, 32, "f8E4M3FN", "f32", "f8E5M2"), 1, "sm_89")
    a, b = numbers("f8E4M3FN", 16, 32), numbers("f8E5M2", 32, 16, seed=1)
    c = np.zeros((16, 16), np.float32)
    run(module, a, b, c)
    assert np.array_equal(c, a.astype(np.float32) @ b.astype(np.float32))


@pytest.mark.parametrize("shape", [(2, 4, 4, 8), (4, 16, 16, 32)])
def test_batches_multiply_one_by_one(shape: tuple[int, int, int, int]) -> None:
    batch, m, n, depth = shape
    k = Kernel("*f16", "*f16", "*f32")

    def tiles(pointer: ir.Value, rows: int, columns: int) -> ir.Value:
        flat = k.load(k.pointers(pointer, batch * rows, columns))
        return k.reshape(flat, batch, rows, columns)

    zero = k.constant(0, tile_type((batch, m, n), k.type("f32")))
    total = k.dot(tiles(k.args[0], m, depth), tiles(k.args[1], depth, n), zero)
    k.store(k.pointers(k.args[2], batch * m, n), k.reshape(total, batch * m, n))
    a, b = numbers("f16", batch, m, depth), numbers("f16", batch, depth, n, seed=1)
    c = np.zeros((batch, m, n), np.float32)
    run(to_machine(k.finish()), a, b, c)
    assert np.array_equal(c, a.astype(np.float32) @ b.astype(np.float32))


@pytest.mark.parametrize("precision", ["tf32", "tf32x3"])
def test_tf32_rounds_and_three_of_them_do_not(precision: str) -> None:
    module = to_machine(product(32, 32, 32, "f32", "f32", precision=precision))
    assert "f2tf32" in str(module)
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((32, 32)).astype(np.float32) for _ in range(2))
    c = np.zeros((32, 32), np.float32)
    run(module, a, b, c)
    error = np.abs(c - a.astype(np.float64) @ b.astype(np.float64)).max()
    assert error < (0.02 if precision == "tf32" else 2e-5)


def test_a_loop_carries_its_sums_and_pointers() -> None:
    module = to_machine(matmul(64, 64, 32), 4, "sm_89")
    a, b = numbers("f16", 64, 96), numbers("f16", 96, 64, seed=1)
    c = np.zeros((64, 64), np.float16)
    run(module, a, b, c, 3, 96, 64)
    assert np.array_equal(c, (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16))


def test_operands_come_by_matrix_loads() -> None:
    text = str(to_machine(matmul()))
    assert "ldmatrix.sync.aligned.m8n8.x4.trans.b16" in text
    assert "ldmatrix.sync.aligned.m8n8.x4.b16" in text


@pytest.mark.parametrize("element", ["f16", "i8"])
@pytest.mark.parametrize("turned", ["a", "b"])
def test_a_transposed_operand_multiplies_like_one_loaded_so(element: str, turned: str) -> None:
    acc = CASES[element]
    k = Kernel(f"*{element}", f"*{element}", f"*{acc}")
    shapes = {"a": (32, 64), "b": (64, 32)}
    values: dict[str, ir.Value] = {}
    for name, pointer in zip("ab", k.args[:2], strict=True):
        rows, columns = shapes[name]
        if name == turned:
            loaded = k.load(k.pointers(pointer, columns, rows))
            with k.here():
                type_ = tile_type((rows, columns), k.type(element))
                values[name] = tile.TransOp.build(loaded, results=[type_], order=[1, 0]).tile
        else:
            values[name] = k.load(k.pointers(pointer, rows, columns))
    zero = k.constant(0, tile_type((32, 32), k.type(acc)))
    k.store(k.pointers(k.args[2], 32, 32), k.dot(values["a"], values["b"], zero))
    a, b = numbers(element, 32, 64), numbers(element, 64, 32, seed=1)
    given = [np.ascontiguousarray(x.T) if n == turned else x for n, x in (("a", a), ("b", b))]
    c = np.zeros((32, 32), DTYPES[acc])
    run(to_machine(k.finish()), *given, c)
    assert np.array_equal(c, a.astype(DTYPES[acc]) @ b.astype(DTYPES[acc]))


@pytest.mark.parametrize(
    ("counts", "by_rows"),
    [
        ((4, 4), True),
        # Few rows are held, many columns pass; and the other way round.
        ((2, 8), False),
        ((8, 2), True),
    ],
)
def test_a_product_holds_the_operand_that_takes_fewer_registers(
    counts: tuple[int, int], by_rows: bool
) -> None:
    rows, columns = counts
    with context(), ir.Location.unknown(), ir.InsertionPoint(ir.Module.create().body):
        a, b = (emit.zero(emit.vector_of(8 * n, ir.F16Type.get())) for n in counts)
        shape = dot.Counts(1, rows, columns, 1)
        assert dot.goes_by_rows(a, b, shape) == by_rows
        places = list(dot.places(shape, by_rows))
    assert sorted(places) == [(i, j) for i in range(rows) for j in range(columns)]
    assert places[1] == ((0, 1) if by_rows else (1, 0))
