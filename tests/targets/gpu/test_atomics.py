from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mlir import ir

from tests.targets.gpu.running import run, to_machine
from tests.transforms.arith_evaluator import DTYPES
from tests.transforms.tile_kernels import Kernel
from tiledsl.dialects import tile
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dialects.types import like, tile_type


def rmw(k: Kernel, kind: str, ptr: ir.Value, value: ir.Value, mask: ir.Value | None = None) -> Any:
    with k.here():
        return tile.AtomicRmwOp.build(
            ptr, value, mask, results=[value.type], kind=kind, sem="acq_rel", scope="gpu"
        ).old


def kernel(kind: str, element: str, size: int, used: bool = True) -> ir.Module:
    """Build old[i] = atomic(x[i], v[i])."""
    k = Kernel(f"*{element}", f"*{element}", f"*{element}")
    old = rmw(k, kind, k.pointers(k.args[0], size), k.load(k.pointers(k.args[1], size)))
    if used:
        k.store(k.pointers(k.args[2], size), old)
    return k.finish()


INTEGER: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "max": np.maximum,
    "min": np.minimum,
    "umax": lambda a, b: np.maximum(_unsigned(a), _unsigned(b)).view(a.dtype),
    "umin": lambda a, b: np.minimum(_unsigned(a), _unsigned(b)).view(a.dtype),
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "xchg": lambda a, b: b,
}
FLOAT: dict[str, Callable[[Any, Any], Any]] = {
    "fadd": lambda a, b: a + b,
    "fmax": np.maximum,
    "fmin": np.minimum,
    "xchg": lambda a, b: b,
}


def _unsigned(x: Any) -> Any:
    return x.view(f"u{x.dtype.itemsize}")


@pytest.mark.parametrize("element", ["i8", "i16", "i32", "i64"])
@pytest.mark.parametrize("kind", INTEGER)
def test_integers_are_updated_and_give_the_old_value(kind: str, element: str) -> None:
    dtype = DTYPES[element]
    random = np.random.default_rng(0)
    x, v = (random.integers(-100, 100, 64).astype(dtype) for _ in range(2))
    before, old = x.copy(), np.zeros_like(x)
    run(to_machine(kernel(kind, element, 64)), x, v, old)
    assert np.array_equal(old, before)
    assert np.array_equal(x, INTEGER[kind](before, v))


@pytest.mark.parametrize("chip", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("element", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("kind", FLOAT)
def test_floats_are_updated_and_give_the_old_value(kind: str, element: str, chip: str) -> None:
    dtype = DTYPES[element]
    x = np.array([-3.5, -1, -0.0, 0.0, 1, 2.5, 1e4, -np.inf] * 8).astype(dtype)
    v = np.repeat(np.array([-0.0, 0.0, -1, -4, np.inf, -np.inf, 1, 3]), 8).astype(dtype)
    before, old = x.copy(), np.zeros_like(x)
    run(to_machine(kernel(kind, element, 64), 1, chip), x, v, old)
    assert np.array_equal(old, before, equal_nan=True)
    with np.errstate(invalid="ignore"):  # the sum of two infinities
        expected = FLOAT[kind](before, v).astype(dtype)
    assert np.array_equal(x, expected, equal_nan=True)


@pytest.mark.parametrize("element", ["f32", "f64"])
@pytest.mark.parametrize("kind", ["fmax", "fmin"])
def test_a_nan_that_is_brought_wins(kind: str, element: str) -> None:
    dtype = DTYPES[element]
    x = np.array([-np.finfo(dtype).max, -1, -0.0, 0.0, 1, np.inf, -np.inf, 2]).astype(dtype)
    v = np.array([np.nan, -np.nan] * 4).astype(dtype)
    run(to_machine(kernel(kind, element, 8, used=False), 1), x, v, np.zeros_like(x))
    assert np.isnan(x).all()


@pytest.mark.parametrize("warps", [1, 4])
@pytest.mark.parametrize("size", [1, 16, 256])
def test_each_element_acts_once_however_many_threads_hold_it(size: int, warps: int) -> None:
    k = Kernel("*i32", "*i32")
    with k.here():
        type_ = tile_type((size,), k.type("i32"))
    ones = k.constant(1, type_)
    counter = k.splat(k.args[0], size)
    old = rmw(k, "add", counter, ones)
    k.store(k.pointers(k.args[1], size), old)
    x, old_values = np.zeros(1, np.int32), np.zeros(size, np.int32)
    run(to_machine(k.finish(), warps), x, old_values)
    assert x[0] == size
    assert sorted(old_values) == list(range(size))


def test_a_scalar_acts_once_and_all_threads_know_the_old_value() -> None:
    k = Kernel("*i32", "*i32")
    old = rmw(k, "add", k.args[0], k.constant(5, k.type("i32")))
    k.store(k.pointers(k.args[1], 128), k.splat(old, 128))
    x, y = np.array([7], np.int32), np.zeros(128, np.int32)
    run(to_machine(k.finish()), x, y)
    assert x[0] == 12
    assert np.array_equal(y, np.full(128, 7))


def test_lanes_masked_off_leave_memory_alone_and_give_zero() -> None:
    k = Kernel("*i32", "*i32", "i32")
    with k.here():
        type_ = tile_type((64,), k.type("i32"))
    mask = k.cmp(k.range(64), k.constant(10, type_))
    old = rmw(k, "add", k.pointers(k.args[0], 64), k.constant(1, type_), mask)
    k.store(k.pointers(k.args[1], 64), old)
    x, y = np.arange(100, 164, dtype=np.int32), np.full(64, -1, np.int32)
    before = x.copy()
    run(to_machine(k.finish()), x, y, 0)
    assert np.array_equal(x, before + (np.arange(64) < 10))
    assert np.array_equal(y, np.where(np.arange(64) < 10, before, 0))


@pytest.mark.parametrize("element", ["i8", "i16", "i32", "i64", "f32", "f16"])
def test_compare_and_swap_swaps_what_is_equal(element: str) -> None:
    dtype = DTYPES[element]
    k = Kernel(f"*{element}", f"*{element}", f"*{element}")
    pointers = k.pointers(k.args[0], 64)
    compare = k.load(k.pointers(k.args[1], 64))
    with k.here():
        value = k.constant(9, like(compare.type, k.type(element)))
        old = tile.AtomicCasOp.build(pointers, compare, value, results=[compare.type]).old
    k.store(k.pointers(k.args[2], 64), old)
    x, c = (np.arange(64) % 7).astype(dtype), (np.arange(64) % 5).astype(dtype)
    before, y = x.copy(), np.zeros_like(x)
    run(to_machine(k.finish()), x, c, y)
    assert np.array_equal(y, before)
    assert np.array_equal(x, np.where(before == c, np.array(9, dtype), before))


def test_an_atomic_whose_result_is_not_used_need_not_return_it() -> None:
    text = str(to_machine(kernel("add", "i32", 128, used=False)))
    assert "ptx.red" in text
    assert "ptx.atom" not in text


def test_arithmetic_on_fp8_is_refused() -> None:
    with pytest.raises(KernelError, match="atomics compute with"):
        to_machine(kernel("fadd", "f8E5M2", 64))
