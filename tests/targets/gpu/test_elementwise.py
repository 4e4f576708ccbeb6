from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

from tests.targets.gpu.running import run, to_machine
from tests.transforms.arith_evaluator import DTYPES, cast
from tests.transforms.tile_kernels import Kernel
from tiledsl.dialects import tile
from tiledsl.dialects.types import like, tile_type

INTERESTING = [0.0, -0.0, 1.0, -1.5, 3.14, 257.0, 65519.0, 1e6, -1e30, 1e-7, np.inf, -np.inf,
               np.nan, 448.0, 464.0, 57344.0]  # fmt: skip


@pytest.mark.parametrize("chip", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("result", ["f16", "bf16", "f32", "f8E4M3FN", "f8E5M2", "i8", "i32", "i64"])
@pytest.mark.parametrize("source", ["f16", "bf16", "f32", "f64", "f8E4M3FN"])
def test_casts_do_as_numpy_does_but_saturate(source: str, result: str, chip: str) -> None:
    if source == result:
        return
    k = Kernel(f"*{source}", f"*{result}")
    value = k.load(k.pointers(k.args[0], 64))
    k.store(k.pointers(k.args[1], 64), k.cast(value, result))
    with np.errstate(over="ignore", invalid="ignore"):
        x = np.resize(np.array(INTERESTING), 64).astype(DTYPES[source])
        expected = cast(x, DTYPES[result])
    y = np.zeros(64, DTYPES[result])
    run(to_machine(k.finish(), 1, chip), x, y)
    same = np.array_equal(y.view(f"u{y.itemsize}"), expected.view(f"u{y.itemsize}"))
    # NaNs may differ in sign and payload.
    assert same or np.array_equal(y.astype(np.float64), expected.astype(np.float64), equal_nan=True)


@pytest.mark.parametrize("value", [1.5, -0.0, 448.0])
def test_a_constant_of_fp8_is_its_bits(value: float) -> None:
    k = Kernel("*f8E4M3FN")
    with k.here():
        type_ = tile_type((64,), k.type("f8E4M3FN"))
    k.store(k.pointers(k.args[0], 64), k.constant(value, type_))
    x = np.zeros(64, ml_dtypes.float8_e4m3fn)
    run(to_machine(k.finish(), 1), x)
    assert np.array_equal(x.view(np.uint8), np.full(64, value, x.dtype).view(np.uint8))


def test_fp8_moves_as_bytes_through_select() -> None:
    k = Kernel("*f8E5M2", "*f8E5M2")
    value = k.load(k.pointers(k.args[0], 64))
    with k.here():
        index = tile_type((64,), k.type("i32"))
    low = k.cmp(k.range(64), k.constant(32, index))
    other = k.constant(2.0, like(value.type, k.type("f8E5M2")))
    k.store(k.pointers(k.args[1], 64), k.op("arith.select", low, value, other, result=value.type))
    x = np.full(64, 3.0, ml_dtypes.float8_e5m2)
    y = np.zeros_like(x)
    run(to_machine(k.finish(), 1), x, y)
    assert np.array_equal(y.astype(np.float32), np.where(np.arange(64) < 32, 3.0, 2.0))


def test_bits_are_read_as_another_type() -> None:
    k = Kernel("*f32", "*i32")
    value = k.load(k.pointers(k.args[0], 64))
    with k.here():
        type_ = like(value.type, k.type("i32"))
        bits = tile.BitcastOp.build(value, results=[type_]).result
    k.store(k.pointers(k.args[1], 64), bits)
    x, y = np.linspace(-9, 9, 64, dtype=np.float32), np.zeros(64, np.int32)
    run(to_machine(k.finish(), 1), x, y)
    assert np.array_equal(y, x.view(np.int32))


def test_a_pointer_seen_as_another_type_steps_by_that_type() -> None:
    k = Kernel("*i32", "*i16")
    pointers = k.pointers(k.args[0], 64)
    with k.here():
        type_ = like(pointers.type, Kernel.type("*i16"))
        narrow = tile.BitcastOp.build(pointers, results=[type_]).result
        index = tile_type((64,), k.type("i32"))
    upper = k.addptr(narrow, k.constant(1, index))
    k.store(k.pointers(k.args[1], 64), k.load(upper))
    x, y = (np.arange(64) << 16).astype(np.int32), np.zeros(64, np.int16)
    run(to_machine(k.finish(), 1), x, y)
    assert np.array_equal(y, np.arange(64))


@pytest.mark.parametrize("grid", [(3, 1, 1), (1, 2, 2)])
def test_programs_know_their_place_in_the_grid(grid: tuple[int, int, int]) -> None:
    k = Kernel("*i32")
    with k.here():
        i32 = k.type("i32")
        counts = [tile.NumProgramsOp.build(results=[i32], axis=axis).count for axis in range(3)]
    number = k.pid(2)
    for axis in (1, 0):
        number = k.op("arith.addi", k.op("arith.muli", number, counts[axis]), k.pid(axis))
    k.store(k.addptr(k.args[0], number), number)
    x = np.full(np.prod(grid), -1, np.int32)
    run(to_machine(k.finish(), 1), x, grid=grid)
    assert np.array_equal(x, np.arange(len(x)))


def test_one_op_on_a_tile_stays_one_op() -> None:
    k = Kernel("*f32", "*f32")
    value = k.load(k.pointers(k.args[0], 4096))
    k.store(k.pointers(k.args[1], 4096), k.op("arith.addf", value, value))
    assert len(re.findall(r"arith\.addf .* : vector<32xf32>", str(to_machine(k.finish())))) == 1


@pytest.mark.parametrize("more", [0, 1])
def test_a_mask_is_compared_once_for_elements_that_are_known_to_share_it(more: int) -> None:
    k = Kernel("*i32", "i32")
    # The argument is a multiple of 16.
    length = k.op("arith.addi", k.args[1], k.constant(more, k.type("i32")))
    inside = k.cmp(k.range(1024), k.splat(length, 1024))
    k.store(k.pointers(k.args[0], 1024), k.range(1024), inside)
    module = to_machine(k.finish(), 1)
    (compared,) = re.findall(r"arith.cmpi slt, .*: vector<(\d+)xi32>", str(module))
    assert compared == ("32" if more else "8")  # four side by side in a thread
    for length in (0, 96, 624, 1024):
        x = np.full(1024, -1, np.int32)
        run(module, x, length)
        index = np.arange(1024)
        assert np.array_equal(x, np.where(index < length + more, index, -1))
