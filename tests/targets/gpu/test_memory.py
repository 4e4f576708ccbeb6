from __future__ import annotations

from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlir import ir

from tests.targets.gpu.running import run, to_machine
from tests.transforms.tile_kernels import Kernel
from tiledsl.dialects import tile
from tiledsl.dialects.contracts import operations
from tiledsl.dialects.types import tile_type

DTYPES = {
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "f16": np.float16,
    "f64": np.float64,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn,
}


def masked_copy(element: str, size: int, other: float | None = None) -> ir.Module:
    k = Kernel(f"*{element}", f"*{element}", "i32")
    index = k.range(size)
    mask = k.cmp(index, k.splat(k.args[2], size))
    value = _load(k, k.pointers(k.args[0], size), mask, other)
    k.store(k.pointers(k.args[1], size), value, None if other is not None else mask)
    module = k.finish()
    _forget_divisibility(module, 2)
    return module


def _load(k: Kernel, pointers: ir.Value, mask: ir.Value, other: float | None) -> ir.Value:
    loaded = k.load(pointers, mask)
    if other is None:
        return loaded
    op: Any = loaded.owner
    with k.here():
        filler = k.constant(other, loaded.type)
        made = tile.LoadOp.build(pointers, mask, filler, results=[loaded.type]).result
    op.operation.erase()
    return made


def sample(dtype: Any, size: int) -> Any:
    return (np.arange(size) % 100 + 1).astype(dtype)


@pytest.mark.parametrize("element", DTYPES)
def test_a_mask_over_a_ragged_edge_is_kept_to_the_element(element: str) -> None:
    module = to_machine(masked_copy(element, 256), warps=2)
    for n in (1, 7, 16, 255, 256):
        x, y = sample(DTYPES[element], 256), sample(DTYPES[element], 272)[::-1].copy()
        before = y.copy()
        run(module, x[:n].copy(), y, n)
        assert np.array_equal(y[:n].view(np.uint8), x[:n].view(np.uint8))
        assert np.array_equal(y[n:].view(np.uint8), before[n:].view(np.uint8))


@pytest.mark.parametrize("other", [0, -3, 5.5])
def test_lanes_masked_off_give_the_filler(other: float) -> None:
    module = to_machine(masked_copy("f16", 256, other))
    x, y = sample(np.float16, 100), np.zeros(256, np.float16)
    run(module, x, y, 100)
    assert np.array_equal(y, np.concatenate([x, np.full(156, other, np.float16)]))


@pytest.mark.parametrize("warps", [1, 2, 8])
@pytest.mark.parametrize("size", [1, 2, 16, 128])
def test_a_tile_smaller_than_the_program_is_written_once(warps: int, size: int) -> None:
    k = Kernel("*f32", "*i32")
    pointers = k.pointers(k.args[0], size)
    k.store(pointers, k.op("arith.addf", k.load(pointers), k.constant(1, _of(k, size, "f32"))))
    module = to_machine(k.finish(), warps)
    x = np.zeros(size, np.float32)
    run(module, x, np.zeros(1, np.int32))
    # A second writer would have read the first one's result or raced with it.
    assert np.array_equal(x, np.ones(size))


def _of(k: Kernel, size: int, element: str) -> ir.Type:
    return tile_type((size,), k.type(element))


def test_unmasked_consecutive_elements_move_in_vectors_of_16_bytes() -> None:
    k = Kernel("*f16", "*f16")
    k.store(k.pointers(k.args[1], 2048), k.load(k.pointers(k.args[0], 2048)))
    text = str(to_machine(k.finish()))
    assert text.count("-> vector<8xf16>") == 2
    assert "ptx.load" not in text


def test_descending_runs_are_not_taken_for_ascending_ones() -> None:
    size = 1024
    k = Kernel("*i8", "*i8")
    last = k.constant(size - 1, _of(k, size, "i32"))
    flipped = k.op("arith.subi", last, k.range(size))
    reversed_ = k.addptr(k.splat(k.args[0], size), flipped)
    k.store(k.pointers(k.args[1], size), k.load(reversed_))
    x, y = sample(np.int8, size), np.zeros(size, np.int8)
    run(to_machine(k.finish()), x, y)
    assert np.array_equal(y, x[::-1])


@pytest.mark.parametrize("stride", [1184, 1185, 1186, 1188])
def test_the_alignment_of_rows_bounds_the_width(stride: int) -> None:
    k = Kernel("*f32", "*f32", "i32")
    k.store(k.pointers(k.args[1], 8, 128, stride=k.args[2]), k.load(k.pointers(k.args[0], 8, 128)))
    module = k.finish()
    _forget_divisibility(module, 2)
    x, y = (
        np.random.default_rng(0).standard_normal((8, 128)).astype(np.float32),
        np.zeros((8, stride), np.float32),
    )
    run(to_machine(module), x, y, stride)
    assert np.array_equal(y[:, :128], x)
    assert not y[:, 128:].any()


def _forget_divisibility(module: ir.Module, argument: int) -> None:
    """Take back the builder's promise that an argument is a multiple of 16."""
    op = module.body.operations[0].operation
    arrays: Any = ir.ArrayAttr
    dictionaries: Any = ir.DictAttr
    with module.context:
        given: list[Any] = list(cast("Any", op.attributes["arg_attrs"]))
        given[argument] = dictionaries.get({})
        op.attributes["arg_attrs"] = arrays.get(given)


def test_scalars_are_stored_by_one_thread_and_loaded_by_all() -> None:
    k = Kernel("*i32", "*i32")
    one = k.constant(1, k.type("i32"))
    k.store(k.args[1], k.op("arith.addi", k.load(k.args[0]), one))
    x, y = np.array([41], np.int32), np.array([0], np.int32)
    run(to_machine(k.finish()), x, y)
    assert y[0] == 42


def test_bools_are_bytes_and_any_but_zero_is_true() -> None:
    k = Kernel("*i1", "*i1")
    true = k.constant(1, _of(k, 256, "i1"))
    value = k.op("arith.xori", k.load(k.pointers(k.args[0], 256)), true)
    k.store(k.pointers(k.args[1], 256), value)
    x = (np.arange(256) % 3).astype(np.uint8)
    y = np.full(256, 7, np.uint8)
    run(to_machine(k.finish()), x, y)
    assert np.array_equal(y, x == 0)


@given(
    size=st.sampled_from([16, 64, 512]),
    warps=st.sampled_from([1, 4]),
    scale=st.integers(-3, 3),
    start=st.integers(-4, 4),
)
@settings(max_examples=20, deadline=None)
def test_any_affine_address_reads_its_own_element(
    size: int, warps: int, scale: int, start: int
) -> None:
    k = Kernel("*i32", "*i32")
    index = k.op("arith.muli", k.range(size), k.constant(scale, _of(k, size, "i32")))
    index = k.op("arith.addi", index, k.constant(start, _of(k, size, "i32")))
    half = k.addptr(k.splat(k.args[0], size), k.constant(4 * size, _of(k, size, "i32")))
    k.store(k.pointers(k.args[1], size), k.load(k.addptr(half, index)))
    x, y = np.arange(8 * size, dtype=np.int32), np.zeros(size, np.int32)
    run(to_machine(k.finish(), warps), x, y)
    assert np.array_equal(y, 4 * size + start + scale * np.arange(size))


@pytest.mark.parametrize("element", ["f16", "f32"])
@pytest.mark.parametrize("cache", ["cg", "cs"])
def test_hints_reach_the_instruction(element: str, cache: str) -> None:
    k = Kernel(f"*{element}", f"*{element}")
    pointers = k.pointers(k.args[0], 512)
    with k.here():
        type_ = _of(k, 512, element)
        value = tile.LoadOp.build(pointers, None, None, results=[type_], cache=cache).result
    k.store(k.pointers(k.args[1], 512), value)
    text = str(to_machine(k.finish()))
    assert f'cache = "{cache}"' in text


def test_registers_at_constant_distances_share_an_address() -> None:
    """One offset a thread and pointer; the other registers are so many elements further."""
    module = to_machine(masked_copy("f32", 1024), warps=2)
    gep = "llvm.getelementptr"
    found = [op for op in operations(module.operation) if op.operation.name == gep]
    accesses = [op for op in operations(module.operation) if op.operation.name.startswith("ptx.")]
    assert len(accesses) == 2 * 1024 // 64
    assert sum(len(op.operation.operands) > 1 for op in found) == 2
    x, y = sample(np.float32, 1000), np.zeros(1024, np.float32)
    run(module, x, y, 1000)
    np.testing.assert_array_equal(y, np.concatenate([x, np.zeros(24, np.float32)]))
