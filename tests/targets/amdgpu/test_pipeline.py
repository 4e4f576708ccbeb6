"""Kernels through all of AMD's passes: their results, run at the machine level, and their code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlir import ir
from mlir.dialects import arith

from tests.targets.amdgpu.wave_interpreter import run, set_options, to_machine
from tests.targets.gpu.test_atomics import rmw
from tests.targets.gpu.test_dot import CASES, numbers, product
from tests.transforms.arith_evaluator import DTYPES
from tests.transforms.tile_kernels import Kernel, attention, matmul, softmax
from tiledsl.dialects import tile
from tiledsl.dialects.contracts import LLVM, MACHINE, TGPU, TILE
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.targets.amdgpu import pipeline
from tiledsl.targets.amdgpu.assemble import assemble
from tiledsl.targets.amdgpu.chips import CHIPS
from tiledsl.targets.target import Artifact, Options
from tiledsl.transforms import run as runner

ONE_OF_EACH = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")


def code(module: ir.Module, chip: str, warps: int, stages: int = 2) -> tuple[str, Artifact]:
    """Return the assembly of a kernel, and the artifact."""
    options = Options(num_warps=warps, num_stages=stages)
    set_options(module, options)
    runner.run(module, pipeline.passes(CHIPS[chip], options))
    artifact = assemble(module, CHIPS[chip])
    return str(artifact.texts["amdgcn"]), artifact


def waves(chip: str) -> int:
    """Give how many waves hold 256 threads: a wave of RDNA is half as wide."""
    return 256 // CHIPS[chip].wave_size


# Results.


@pytest.mark.parametrize("chip", ONE_OF_EACH)
@pytest.mark.parametrize("element", CASES)
def test_every_type_multiplies_exactly_on_every_chip(element: str, chip: str) -> None:
    acc = CASES[element]
    module = to_machine(product(32, 32, 64, element, acc), chip)
    has_instruction = CHIPS[chip].matrix == "mfma" or element not in ("f32", "f64")
    assert bool(re.search(r"llvm\.amdgcn\.(mfma|wmma)", str(module))) == has_instruction
    a, b, c = numbers(element, 32, 64), numbers(element, 64, 32, seed=1), numbers(acc, 32, 32)
    expected = c.astype(np.float64) + a.astype(np.float64) @ b.astype(np.float64)
    run(module, chip, a, b, c)
    np.testing.assert_array_equal(c.astype(np.float64), expected)


@given(
    chip=st.sampled_from(ONE_OF_EACH),
    m=st.sampled_from([1, 16, 32, 64]),
    n=st.sampled_from([8, 16, 64]),
    depth=st.sampled_from([4, 16, 64]),
    warps=st.sampled_from([1, 2, 8]),
    element=st.sampled_from(["f16", "f32", "i8", "f8E5M2"]),
)
@settings(max_examples=12, deadline=None)
def test_every_shape_multiplies(
    chip: str, m: int, n: int, depth: int, warps: int, element: str
) -> None:
    acc = CASES[element]
    module = to_machine(product(m, n, depth, element, acc), chip, warps)
    a, b, c = numbers(element, m, depth), numbers(element, depth, n, seed=1), numbers(acc, m, n)
    expected = c.astype(np.float64) + a.astype(np.float64) @ b.astype(np.float64)
    run(module, chip, a, b, c)
    np.testing.assert_array_equal(c.astype(np.float64), expected)


@pytest.mark.parametrize("chip", ["gfx942", "gfx1100", "gfx1201"])
def test_unsigned_bytes_multiply_as_unsigned(chip: str) -> None:
    module = to_machine(product(16, 16, 32, "i8", "i32", a_unsigned=True), chip)
    random = np.random.default_rng(0)
    a, b = (random.integers(-128, 128, shape).astype(np.int8) for shape in ((16, 32), (32, 16)))
    c = np.zeros((16, 16), np.int32)
    run(module, chip, a, b, c)
    np.testing.assert_array_equal(c, a.view(np.uint8).astype(int) @ b.astype(int))


@pytest.mark.parametrize("chip", ["gfx942", "gfx1201"])
def test_a_loop_of_products_reads_ragged_strides(chip: str) -> None:
    module = to_machine(matmul(32, 32, 16), chip)
    a, b = numbers("f16", 32, 48), numbers("f16", 48, 64, seed=1)
    c = np.full((32, 64), 7, np.float16)
    run(module, chip, a, b, c, 3, 48, 64)
    np.testing.assert_array_equal(c[:, :32], (a.astype(float) @ b.astype(float))[:, :32])
    np.testing.assert_array_equal(c[:, 32:], 7)


@pytest.mark.parametrize("chip", ["gfx950", "gfx1100"])
def test_chained_products_and_reductions_compute_attention(chip: str) -> None:
    module = to_machine(attention(32, 32, 32), chip, 2)
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((64, 32)).astype(np.float16) for _ in range(3))
    out = np.zeros((64, 32), np.float16)
    run(module, chip, q, k, v, out, 2, 32)
    scores = np.exp2(q[:32].astype(float) @ k.T.astype(float))
    expected = scores / scores.sum(1, keepdims=True) @ v.astype(float)
    np.testing.assert_allclose(out[:32], expected, atol=5e-3)


@pytest.mark.parametrize("warps", [1, 8])
@pytest.mark.parametrize("chip", ONE_OF_EACH)
def test_softmax_reduces_over_lanes_and_waves(chip: str, warps: int) -> None:
    x = np.random.default_rng(0).standard_normal((4, 256)).astype(np.float32)
    y = np.zeros_like(x)
    run(to_machine(softmax(4, 256), chip, warps), chip, x, y, 256)
    e = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=1e-5)


@given(
    chip=st.sampled_from(ONE_OF_EACH),
    axis=st.sampled_from([0, 1]),
    rows=st.sampled_from([1, 16, 128]),
    columns=st.sampled_from([4, 64]),
    warps=st.sampled_from([1, 4]),
)
@settings(max_examples=15, deadline=None)
def test_rows_and_columns_are_summed(
    chip: str, axis: int, rows: int, columns: int, warps: int
) -> None:
    k = Kernel("*i32", "*i32")
    total = k.reduce(k.load(k.pointers(k.args[0], rows, columns)), axis)
    k.store(k.pointers(k.args[1], (rows, columns)[1 - axis]), total)
    x = np.random.default_rng(rows).integers(-1000, 1000, (rows, columns)).astype(np.int32)
    y = np.zeros((rows, columns)[1 - axis], np.int32)
    run(to_machine(k.finish(), chip, warps), chip, x, y)
    np.testing.assert_array_equal(y, x.sum(axis))


@pytest.mark.parametrize("chip", ["gfx942", "gfx1100"])
def test_tiles_change_layout_by_lanes_and_by_lds(chip: str) -> None:
    k = Kernel("*i16", "*i16")
    value = k.load(k.pointers(k.args[0], 32, 64))
    turned = k.reshape(k.trans(value, 1, 0), 128, 16)
    k.store(k.pointers(k.args[1], 128, 16), turned)
    x = np.arange(32 * 64, dtype=np.int16).reshape(32, 64)
    y = np.zeros((128, 16), np.int16)
    run(to_machine(k.finish(), chip), chip, x, y)
    np.testing.assert_array_equal(y, x.T.reshape(128, 16))


@pytest.mark.parametrize("other", [None, 0.0, 7.0])
@pytest.mark.parametrize("size", [1, 7, 255, 256])
def test_masked_lanes_read_nothing_and_give_the_other_value(size: int, other: float | None) -> None:
    k = Kernel("*f32", "*f32", "i32")
    source, destination, count = k.args
    mask = k.cmp(k.range(256), k.splat(count, 256))
    pointers = k.pointers(source, 256)
    with k.here():
        type_ = k.constant(0, ir.RankedTensorType.get([256], k.type("f32"))).type
    otherwise = None if other is None else k.constant(other, type_)
    with k.here():
        loaded = tile.LoadOp.build(pointers, mask, otherwise, results=[type_]).result
    k.store(k.pointers(destination, 256), loaded)
    x, y = np.arange(1, size + 1, dtype=np.float32), np.full(256, np.nan, np.float32)
    run(to_machine(k.finish(), "gfx942"), "gfx942", x, y, size)
    np.testing.assert_array_equal(y, np.r_[x, np.full(256 - size, other or 0)])


@pytest.mark.parametrize("chip", ONE_OF_EACH)
def test_an_atomic_with_more_threads_than_elements_acts_once(chip: str) -> None:
    k = Kernel("*i32", "*i32")
    ones = k.constant(1, k.range(8).type)
    old = rmw(k, "add", k.pointers(k.args[0], 8), ones)
    k.store(k.pointers(k.args[1], 8), old)
    x, y = np.arange(8, dtype=np.int32), np.zeros(8, np.int32)
    run(to_machine(k.finish(), chip), chip, x, y)
    np.testing.assert_array_equal(x, np.arange(1, 9))
    np.testing.assert_array_equal(y, np.arange(8))


@pytest.mark.parametrize("chip", ["gfx90a", "gfx1200"])
def test_programs_know_their_place_and_number(chip: str) -> None:
    k = Kernel("*i32")
    total = k.constant(0, k.type("i32"))
    with k.here():
        for axis in range(3):
            count = tile.NumProgramsOp.build(results=[k.type("i32")], axis=axis).count
            ten = arith.constant(k.type("i32"), 10)
            total = arith.addi(arith.muli(total, ten), count)
    place = k.pid(0)
    with k.here():
        for axis in (1, 2):
            size = tile.NumProgramsOp.build(results=[k.type("i32")], axis=axis).count
            index = tile.ProgramIdOp.build(results=[k.type("i32")], axis=axis).id
            place = arith.addi(arith.muli(place, size), index)
    k.store(k.addptr(k.args[0], place), total)
    x = np.zeros(24, np.int32)
    run(to_machine(k.finish(), chip), chip, x, grid=(2, 3, 4))
    np.testing.assert_array_equal(x, 234)


VALUES: Sequence[float] = (
    *(0.0, -0.0, 1.0, -1.5, 3.14159, 447.0, 449.0, 465.0, 1e9, -1e9, 57344.0, 6e4, 7e-3, 1.2e-3),
    *(2**-9, 2**-10, -(2**-16), 2**-17, float("inf"), float("-inf"), float("nan"), 2.5e-5),
)


@pytest.mark.parametrize("chip", ["gfx942", "gfx1201"])
@pytest.mark.parametrize(
    ("source", "result"),
    [
        *(("f32", x) for x in ("f8E4M3FN", "f8E5M2", "f16", "bf16", "i32", "i8")),
        *(("f64", x) for x in ("f8E4M3FN", "f8E5M2", "f16", "i32", "i64")),
        *((x, "f32") for x in ("f8E4M3FN", "f8E5M2", "bf16")),
        *(("f8E4M3FN", "f16"), ("f16", "f8E5M2"), ("f8E5M2", "f8E4M3FN")),
    ],
)
def test_casts_round_and_saturate_alike_everywhere(source: str, result: str, chip: str) -> None:
    k = Kernel(f"*{source}", f"*{result}")
    k.store(k.pointers(k.args[1], 32), k.cast(k.load(k.pointers(k.args[0], 32)), result))
    with np.errstate(all="ignore"):
        x = np.resize(np.array(VALUES), 32).astype(DTYPES[source])
    y = np.zeros(32, DTYPES[result])
    run(to_machine(k.finish(), chip, 1), chip, x, y)
    expected = converted(x, result)
    both_nan = np.isnan(y.astype(float)) & np.isnan(expected.astype(float))
    np.testing.assert_array_equal(y[~both_nan], expected[~both_nan])


@pytest.mark.parametrize("chip", ["gfx90a", "gfx950", "gfx1100", "gfx1201"])
def test_bf16_is_rounded_to_nearest_even_from_all_kinds_of_numbers(chip: str) -> None:
    k = Kernel("*f32", "*bf16")
    k.store(k.pointers(k.args[1], 4096), k.cast(k.load(k.pointers(k.args[0], 4096)), "bf16"))
    bits = np.random.default_rng(0).integers(0, 1 << 32, 4096, dtype=np.uint32)
    bits[:1024] &= 0xFFFF8000  # halves between two results
    ends = (0x7F80, 0xFF80, 0x7FC0, 0xFFC0, 0x7FFF, 0xFFFF, 0x7F7F, 0xFF7F, 0, 0x8000, 0x80, 0x7F)
    low = (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)  # NaNs, infinities and what rounds to them
    bits[-72:] = [end << 16 | rest for end in ends for rest in low]
    x = bits.view(np.float32)
    y = np.zeros(4096, DTYPES["bf16"])
    module = to_machine(k.finish(), chip)
    assert ("llvm.amdgcn.perm" in str(module)) == (not CHIPS[chip].bf16_convert)
    run(module, chip, x, y)
    with np.errstate(all="ignore"):
        expected = x.astype(DTYPES["bf16"])
    nan = np.isnan(x)
    np.testing.assert_array_equal(y.view(np.uint16)[~nan], expected.view(np.uint16)[~nan])
    np.testing.assert_array_equal(np.isnan(y.astype(np.float32)), nan)


def converted(x: Any, result: str) -> Any:
    """Cast as `tile.cast` says, by NumPy."""
    to, wide = DTYPES[result], x.astype(np.float64)
    with np.errstate(all="ignore"):
        if result.startswith("i"):
            limits = np.iinfo(to)
            inside = np.clip(np.nan_to_num(wide, nan=0.0), limits.min, limits.max)
            made = np.where(inside >= 2.0**63, limits.max, inside.astype(np.int64))
            return made.astype(to)
        if result.startswith("f8"):
            most = 448.0 if result == "f8E4M3FN" else 57344.0
            return np.clip(x, x.dtype.type(-most), x.dtype.type(most)).astype(to)
        return x.astype(to)


# Code.


@pytest.mark.parametrize("chip", CHIPS)
def test_a_product_is_fed_by_16_byte_reads_and_spills_nothing(chip: str) -> None:
    text, artifact = code(matmul(128, 128, 32), chip, waves(chip))
    assert re.search("v_mfma_f32_32x32x(8|16)|v_wmma_f32_16x16x16", text)
    reads = re.findall(r"ds_(?:read|load)\w*_b\d+", text)
    wide = [read for read in reads if read.endswith("b128")]
    assert len(wide) >= len(reads) / 2
    assert re.search("global_load_(dwordx4|b128)", text)
    if CHIPS[chip].number not in (0x1100, 0x1151):  # their accumulators hold every other row
        assert re.search("global_store_(dwordx[24]|b(64|128))", text)
    assert artifact.resources is not None
    assert artifact.resources.local_bytes == 0
    assert not re.search(r"^\t(scratch|buffer)_(load|store)", text, re.MULTILINE)


@pytest.mark.parametrize("chip", ["gfx942", "gfx1201"])
def test_a_maximum_that_keeps_nan_takes_no_comparison_for_each_element(chip: str) -> None:
    k = Kernel("*f32", "*f32")
    value = k.load(k.pointers(k.args[0], 64, 64))
    k.store(k.pointers(k.args[1], 64), k.reduce(value, 0, "max"))
    text, _ = code(k.finish(), chip, 1)
    each = 64 * 64 // CHIPS[chip].wave_size
    if CHIPS[chip].maximum_bits:
        assert len(re.findall("v_maximum", text)) > each // 4
    # Two elements each, and what crosses lanes.
    assert len(re.findall("v_cmp_(u|o)_f32", text)) <= each * 3 // 4
    assert len(re.findall("v_cndmask", text)) <= each // 2


@pytest.mark.parametrize(
    ("element", "chip"),
    [*(("f16", c) for c in ONE_OF_EACH), ("f8E5M2", "gfx950"), ("f8E5M2", "gfx1201")],
)
def test_a_right_operand_is_turned_by_permutations_of_bytes(element: str, chip: str) -> None:
    text, _ = code(matmul(128, 128, 64, element), chip, waves(chip))
    (loop,) = re.findall(
        r"^\.LBB\w+:(?:(?!^\.LBB).)*v_(?:mfma|wmma).*?s_cbranch", text, re.M | re.S
    )
    words = 128 * 64 * (2 if element == "f16" else 1) // 4 // (waves(chip) * CHIPS[chip].wave_size)
    assert 0 < len(re.findall("v_perm_b32", loop)) <= 2 * words
    assert not re.search("v_(bfi|lshl_or|lshlrev_b16|mov_b16|bitop3_b16)", loop)


@pytest.mark.parametrize("chip", CHIPS)
def test_every_barrier_stands_behind_a_wait_for_lds(chip: str) -> None:
    """Else, at a loop's head, LLVM drops the wait for what the loop's end wrote."""
    text, _ = code(attention(128, 64, 64), chip, waves(chip))
    found = re.findall(r"^\t(ds_|s_barrier_signal|s_barrier\b|s_wait.*)", text, re.MULTILINE)
    barriers = [i for i, name in enumerate(found) if name.startswith("s_barrier")]
    assert barriers
    for i in barriers:
        assert re.search(r"lgkmcnt\(0\)|dscnt 0x0", found[i - 1]), found[i - 1]


@pytest.mark.parametrize("chip", CHIPS)
def test_attention_spills_nothing(chip: str) -> None:
    text, artifact = code(attention(64, 64, 64), chip, waves(chip))
    assert artifact.resources is not None
    assert artifact.resources.local_bytes == 0
    assert "v_mfma" in text or "v_wmma" in text


def test_passes_go_through_the_levels_in_order() -> None:
    steps = pipeline.passes(CHIPS["gfx942"], Options())
    levels = [step.level for step in steps]
    order = [TILE, TGPU, MACHINE, LLVM]
    assert sorted(levels, key=order.index) == levels
    assert set(levels) == set(order)


def test_a_workgroup_has_at_most_1024_threads() -> None:
    with pytest.raises(KernelError) as raised:
        pipeline.passes(CHIPS["gfx942"], Options(num_warps=32))
    assert str(raised.value) == (
        "num_warps: expected at most 16 on gfx942, whose waves have 64 lanes, found 32"
    )
    assert pipeline.passes(CHIPS["gfx1100"], Options(num_warps=32))


def test_a_tile_that_lds_cannot_hold_is_refused_before_llvm_sees_it() -> None:
    with pytest.raises(KernelError, match="bytes wanted, 65536 available"):
        code(matmul(256, 256, 128, "f32"), "gfx1201", 8)
