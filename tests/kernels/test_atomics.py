"""Atomic operations: once an element, old values returned, many programs at one address."""

import numpy as np
import pytest

import tiledsl as tile
from tests.kernels.oracle import (
    INTEGERS,
    check,
    check_equal,
    one_zero,
    poisoned,
    sample,
    whole,
    without_nan,
)
from tiledsl.dtypes import DType

WIDE = [t for t in INTEGERS if t.primitive_bitwidth >= 32]
ADDED = [*WIDE, tile.float16, tile.bfloat16, tile.float32, tile.float64]


@tile.jit
def update(memory, value, old, n, OP: tile.constexpr, BLOCK: tile.constexpr):
    i = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
    v = tile.load(value + i, mask=i < n)
    tile.store(old + i, OP(memory + i, v, mask=i < n), mask=i < n)


@pytest.mark.parametrize("dtype", ADDED, ids=str)
def test_each_element_is_added_once_and_gives_its_old_value(warps: int, dtype: DType) -> None:
    for n in (1, 7, 257, 1000):
        memory, value = whole(dtype, n, 1, 90), whole(dtype, n, 2, 90)
        before, old = memory.copy(), poisoned(n, dtype)
        update[tile.cdiv(n, 256),](
            memory, value, old, n, OP=tile.atomic_add, BLOCK=256, num_warps=warps
        )
        check(old, before, f"old of {dtype}")
        check_equal(memory, (before + value).astype(memory.dtype), f"add of {dtype}")


@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_bitwise_extremes_and_exchange(warps: int, dtype: DType) -> None:
    table = {
        "atomic_and": np.bitwise_and, "atomic_or": np.bitwise_or, "atomic_xor": np.bitwise_xor,
        "atomic_max": np.maximum, "atomic_min": np.minimum, "atomic_xchg": lambda old, new: new,
        "atomic_add": np.add,
    }  # fmt: skip
    for name, numpy in table.items():
        memory, value = sample(dtype, 1000, 3), sample(dtype, 1000, 4)
        before, old = memory.copy(), poisoned(1000, dtype)
        update[4,](memory, value, old, 1000, OP=getattr(tile, name), BLOCK=256, num_warps=warps)
        check(old, before, f"old of {name} of {dtype}")
        with np.errstate(over="ignore"):
            check_equal(memory, numpy(before, value), f"{name} of {dtype}")


@pytest.mark.parametrize("dtype", [tile.float32, tile.float64], ids=str)
@pytest.mark.parametrize("name", ["max", "min"])
def test_float_extremes_and_exchange(warps: int, name: str, dtype: DType) -> None:
    memory, value = sample(dtype, 1000, 5), sample(dtype, 1000, 6)
    memory, value = without_nan(one_zero(memory)), without_nan(one_zero(value))
    before, old = memory.copy(), poisoned(1000, dtype)
    op = getattr(tile, f"atomic_{name}")
    update[4,](memory, value, old, 1000, OP=op, BLOCK=256, num_warps=warps)
    check(old, before, "old")
    check_equal(memory, getattr(np, f"{name}imum")(before, value), f"{name} of {dtype}")
    update[4,](memory, value, old, 1000, OP=tile.atomic_xchg, BLOCK=256, num_warps=warps)
    check_equal(memory, value, f"xchg of {dtype}")


@pytest.mark.parametrize("dtype", ADDED, ids=str)
def test_many_programs_add_to_one_element(warps: int, dtype: DType) -> None:
    @tile.jit
    def kernel(memory, ones, N: tile.constexpr):
        tile.atomic_add(memory + tile.arange(0, N), tile.load(ones + tile.arange(0, N)))
        tile.atomic_add(memory + N, 1)

    memory = np.zeros(65, dtype.numpy)
    ones = np.arange(64).astype(dtype.numpy) % 4
    kernel[50,](memory, ones.astype(dtype.numpy), N=64, num_warps=warps)
    expected = np.append(50 * (np.arange(64) % 4), 50).astype(dtype.numpy)
    check_equal(memory, expected, f"{dtype}")


def test_elements_at_one_address_all_count(warps: int) -> None:
    @tile.jit
    def kernel(x, bins, n, BLOCK: tile.constexpr):
        i = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
        tile.atomic_add(bins + tile.load(x + i, mask=i < n), 1, mask=i < n)

    x = np.random.default_rng(7).integers(0, 10, 1000, dtype=np.int32)
    bins = np.zeros(10, np.int32)
    kernel[4,](x, bins, 1000, BLOCK=256, num_warps=warps)
    check_equal(bins, np.bincount(x, minlength=10).astype(np.int32), "histogram")


@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_compare_and_swap(warps: int, dtype: DType) -> None:
    @tile.jit
    def kernel(memory, expected, new, old, N: tile.constexpr):
        i = tile.arange(0, N)
        tile.store(
            old + i, tile.atomic_cas(memory + i, tile.load(expected + i), tile.load(new + i))
        )

    memory, new = sample(dtype, 256, 8), sample(dtype, 256, 9)
    expected = np.where(np.arange(256) % 3 == 0, memory, ~memory)
    before, old = memory.copy(), poisoned(256, dtype)
    kernel[1,](memory, expected, new, old, N=256, num_warps=warps)
    check(old, before, "old")
    check_equal(memory, np.where(expected == before, new, before), f"cas of {dtype}")


def test_scalar_atomics_act_once_a_program(warps: int) -> None:
    @tile.jit
    def kernel(counter, order, flags):
        ticket = tile.atomic_add(counter, 1)
        tile.store(order + ticket, tile.program_id(0))
        tile.atomic_max(counter + 1, ticket)
        tile.atomic_or(counter + 2, 1 << (ticket % 8))
        if tile.atomic_cas(counter + 3, 0, 7) == 0:
            tile.atomic_add(flags, 1)
        tile.atomic_add(flags + 1, 1, mask=ticket < 10)

    counter, order = np.zeros(4, np.int32), poisoned(40, tile.int32)
    flags = np.zeros(2, np.int32)
    kernel[40,](counter, order, flags, num_warps=warps)
    assert counter.tolist() == [40, 39, 255, 7]
    assert flags.tolist() == [1, 10]
    order[:40].sort()
    check(order, np.arange(40, dtype=np.int32), "tickets")


def test_memory_orders_and_scopes_are_accepted(place: str) -> None:
    @tile.jit
    def kernel(x, SEM: tile.constexpr, SCOPE: tile.constexpr):
        tile.atomic_add(x, 1, sem=SEM, scope=SCOPE)

    x = np.zeros(1, np.int32)
    for sem in ("relaxed", "acquire", "release", "acq_rel"):
        for scope in ("cta", "gpu", "sys"):
            kernel[2,](x, SEM=sem, SCOPE=scope)
    assert x[0] == 24


def test_a_loop_until_an_atomic_says_so_behind_another_atomic(warps: int) -> None:
    @tile.jit
    def kernel(count, out, TIMES: tile.constexpr):
        tile.atomic_add(count, 1)
        trips = 0
        while tile.atomic_add(count, 1) < TIMES:
            trips += 1
        tile.store(out + tile.arange(0, 64), trips)

    count, out = np.zeros(1, np.int32), poisoned(64, tile.int32)
    kernel[1,](count, out, TIMES=5, num_warps=warps)
    assert count[0] == 6
    check(out, np.full(64, 4, np.int32), "trips")
