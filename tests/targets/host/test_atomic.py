"""Atomic operations, from many programs at once."""

# Kernels are built by small lambdas, whose parameters nothing types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from .kernels import Kernel, Tile

INTEGERS = {
    "add": np.add,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "max": np.maximum,
    "min": np.minimum,
}


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("name", ["i32", "i64"])
def test_integer_atomics_combine_what_all_programs_give(kind: str, name: str) -> None:
    dtype = np.dtype(f"i{name[1:]}"[0] + str(int(name[1:]) // 8))
    k = Kernel(f"*{name}", f"*{name}")
    x, total = k.args
    i = k.range(16)
    k.atomic(kind, total + i, k.load(x + (k.pid() * 16 + i)))
    data = np.random.default_rng(0).integers(-99, 99, (200, 16)).astype(dtype)
    found = np.full(16, 5, dtype)
    k.run(200, data, found)
    start = np.full((1, 16), 5, dtype)
    assert (found == INTEGERS[kind].reduce(np.concatenate([start, data]), 0)).all()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("shift", [0, 3])
def test_float_additions_from_all_programs_arrive(dtype: Any, shift: int) -> None:
    name = {"float16": "f16", "bfloat16": "bf16"}.get(np.dtype(dtype).name)
    name = name or f"f{np.dtype(dtype).itemsize * 8}"
    k = Kernel(f"*{name}", "i32")
    total, n = k.args
    i = k.range(32)
    k.atomic("fadd", total + (i + shift), k.full((32,), 1.5, name), i < n)
    found = np.zeros(64, dtype)
    k.run(10, found, 29)
    wanted = np.zeros(64, dtype)
    wanted[shift : shift + 29] = 15
    assert (found == wanted).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_float_extremes_are_the_languages(dtype: Any) -> None:
    name = f"f{np.dtype(dtype).itemsize * 8}"
    least = float(np.finfo(dtype).min)
    old = np.array([least, -1, -0.0, 0.0, 1, np.nan], dtype)
    for kind, function in (("fmax", np.maximum), ("fmin", np.minimum)):
        k = Kernel(f"*{name}", name)
        target, value = k.args
        i = k.range(8)
        k.atomic(kind, target + i, k.broadcast(value, (8,)), i < 6)
        for number in (-0.0, 0.0, -1.0, -4.0, np.inf, -np.inf, np.nan):
            found = old.copy()
            k.run(1, found, number)
            np.testing.assert_array_equal(found, function(old, dtype(number)))


def test_old_values_come_back_once_an_element() -> None:
    k = Kernel("*i32", "*i32", "*i32")
    counter, seen, scalar = k.args
    i = k.range(64)
    old = k.atomic("add", counter + (i & 0), 1)
    k.store(seen + old, i)
    one = k.atomic("xchg", scalar, k.pid())
    k.store(scalar + 1, one)
    found, tickets, last = np.zeros(1, np.int32), np.full(64, -1, np.int32), np.full(2, 9, np.int32)
    k.run(1, found, tickets, last)
    assert found[0] == 64
    assert sorted(tickets) == list(range(64))
    assert list(last) == [0, 9]


def test_lanes_masked_off_give_zero_and_do_nothing() -> None:
    k = Kernel("*i32", "*i32")
    x, out = k.args
    i = k.range(16)
    k.store(out + i, k.atomic("max", x + i, 50, i < 5))
    data = np.arange(16, dtype=np.int32) + 1
    found = np.zeros(16, np.int32)
    k.run(1, data, found)
    assert list(found) == [1, 2, 3, 4, 5, *[0] * 11]
    assert list(data) == [50] * 5 + list(range(6, 17))


def test_compare_and_swap_compares_bits() -> None:
    k = Kernel("*f32", "*f32")
    x, out = k.args
    i = k.range(4)
    k.store(out + i, k.cas(x + i, k.full((4,), 0.0, "f32"), k.full((4,), 3.0, "f32")))
    data, found = np.array([0.0, -0.0, 1.0, np.nan], np.float32), np.zeros(4, np.float32)
    given = data.copy()
    k.run(1, data, found)
    assert data.tobytes() == np.array([3.0, -0.0, 1.0, np.nan], np.float32).tobytes()
    assert found.tobytes() == given.tobytes()


def test_locks_protect_plain_updates() -> None:
    k = Kernel("*i32", "*i32", "i32")
    locks, data, count = k.args
    lock = locks + k.op("arith.remui", k.pid(), count)
    i = k.range(64)
    cells = data + (k.op("arith.remui", k.pid(), count) * 64 + i)
    one = k.constant(1, "i32")

    def taken(held: Tile) -> Tile:
        return held.ne(0)

    k.while_([k.cas(lock, 0, one)], taken, lambda _: k.cas(lock, 0, one))
    k.store(cells, k.load(cells) + 1)
    k.atomic("xchg", lock, 0)
    held, counted = np.zeros(40, np.int32), np.zeros((40, 64), np.int32)
    k.run(1600, held, counted, 40)
    assert (counted == 40).all()
    assert not held.any()
