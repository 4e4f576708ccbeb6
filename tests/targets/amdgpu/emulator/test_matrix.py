"""Matrix instructions, written by hand: spelling on each chip, modifiers, registers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.targets.amdgpu.emulator.fragments import Fragment, Result
from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.amdgpu.emulator import matrix_layout as layout
from tiledsl.targets.amdgpu.emulator.matrix_layout import Fragment as Where
from tiledsl.targets.amdgpu.emulator.matrix_layout import Shape
from tiledsl.targets.gpu.emulator.findings import Kind

Array = NDArray[Any]

_A, _B, _C, _D = 16, 32, 64, 96
"""First registers of the operands and the sums."""


def _registers(fragment: Where, matrix: Array, first: int) -> dict[int, Array]:
    """Return what registers hold of a (blocks, rows, columns) matrix, (lanes,) each."""
    held = np.ascontiguousarray(matrix.reshape(-1)[fragment.holds])
    words = held.view(np.uint32)
    return {first + i: words[None, :, i] for i in range(words.shape[1])}


def _sums(result: Result, fragment: Where, kind: Any, first: int = _D) -> Array:
    """Return the matrix that registers hold."""
    count = fragment.per_lane * np.dtype(kind).itemsize // 4
    words = result.machine.vgpr[first : first + count, 0].T
    return np.ascontiguousarray(words).view(kind).reshape(-1)[fragment.where]


def _whole(shape: tuple[int, ...], kind: Any, seed: int) -> Array:
    """Return small whole numbers, of which every sum is exact."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(kind)


def _span(first: int, count: int) -> str:
    return f"v[{first}:{first + count - 1}]" if count > 1 else f"v{first}"


_MFMA: list[tuple[str, str, Shape, Any, Any]] = [
    ("gfx90a", "v_mfma_f32_32x32x8f16", Shape(32, 8), np.float16, np.float32),
    ("gfx90a", "v_mfma_f32_16x16x16bf16_1k", Shape(16, 16), ml_dtypes.bfloat16, np.float32),
    ("gfx90a", "v_mfma_f32_32x32x4bf16", Shape(32, 4), ml_dtypes.bfloat16, np.float32),
    ("gfx90a", "v_mfma_i32_16x16x16i8", Shape(16, 16), np.int8, np.int32),
    ("gfx90a", "v_mfma_f32_16x16x4f16", Shape(16, 4, 4), np.float16, np.float32),
    ("gfx90a", "v_mfma_f64_4x4x4f64", Shape(4, 4, 4), np.float64, np.float64),
    ("gfx942", "v_mfma_f32_32x32x8_f16", Shape(32, 8), np.float16, np.float32),
    ("gfx942", "v_mfma_f32_16x16x16_bf16", Shape(16, 16), ml_dtypes.bfloat16, np.float32),
    ("gfx942", "v_mfma_f32_32x32x4_xf32", Shape(32, 4), np.float32, np.float32),
    ("gfx942", "v_mfma_f32_32x32x2_f32", Shape(32, 2), np.float32, np.float32),
    ("gfx942", "v_mfma_f32_32x32x1_2b_f32", Shape(32, 1, 2), np.float32, np.float32),
    ("gfx942", "v_mfma_f32_4x4x4_16b_f16", Shape(4, 4, 16), np.float16, np.float32),
    ("gfx942", "v_mfma_i32_32x32x16_i8", Shape(32, 16), np.int8, np.int32),
    ("gfx942", "v_mfma_f64_16x16x4_f64", Shape(16, 4), np.float64, np.float64),
    ("gfx942", "v_mfma_f32_16x16x32_fp8_fp8", Shape(16, 32), ml_dtypes.float8_e4m3fnuz,
     np.float32),
    ("gfx950", "v_mfma_f32_16x16x32_f16", Shape(16, 32), np.float16, np.float32),
    ("gfx950", "v_mfma_f32_32x32x16_bf8_bf8", Shape(32, 16), ml_dtypes.float8_e5m2, np.float32),
    ("gfx950", "v_mfma_i32_16x16x64_i8", Shape(16, 64), np.int8, np.int32),
]  # fmt: skip


def _run_mfma(
    chip: str, name: str, shape: Shape, kind: Any, total: Any, modifiers: str = "", c: str = ""
) -> tuple[Array, Array, Array, Array]:
    """Return a, b, c and what an MFMA makes of them."""
    operand, sums = layout.mfma_operand(shape), layout.mfma_accumulator(shape, total is np.float64)
    a = _whole((shape.blocks, shape.size, shape.k), kind, 1)
    b = _whole((shape.blocks, shape.size, shape.k), kind, 2)
    start = _whole((shape.blocks, shape.size, shape.size), total, 3)
    words = operand.per_lane * np.dtype(kind).itemsize // 4
    totals = sums.per_lane * np.dtype(total).itemsize // 4
    text = (
        f"{name} {_span(_D, totals)}, {_span(_A, words)}, {_span(_B, words)}, "
        f"{c or _span(_C, totals)} {modifiers}"
    )
    given = {**_registers(operand, a, _A), **_registers(operand, b, _B)}
    result = Fragment(text, chip).run({**given, **_registers(sums, start, _C)})
    assert not len(result.findings)
    assert result.counters.flops[0] == shape.flops
    return a, b, start, _sums(result, sums, total)


@pytest.mark.parametrize(("chip", "name", "shape", "kind", "total"), _MFMA, ids=str)
def test_an_mfma_multiplies(chip: str, name: str, shape: Shape, kind: Any, total: Any) -> None:
    a, b, c, found = _run_mfma(chip, name, shape, kind, total)
    exact = np.einsum("bik,bjk->bij", a.astype(np.float64), b.astype(np.float64)) + c
    assert np.array_equal(found, exact)


def test_accumulators_may_be_accumulation_registers_or_constants() -> None:
    shape = Shape(16, 16)
    _, _, _, found = _run_mfma(
        "gfx942", "v_mfma_f32_16x16x16_f16", shape, np.float16, np.float32, c="1.0"
    )
    a, b, _, zero = _run_mfma(
        "gfx942", "v_mfma_f32_16x16x16_f16", shape, np.float16, np.float32, c="0"
    )
    assert np.array_equal(found, zero + 1)
    assert np.array_equal(zero, np.einsum("bik,bjk->bij", a.astype(float), b.astype(float)))
    text = """
        v_mfma_f32_16x16x16_f16 a[0:3], v[16:17], v[32:33], 2.0
        v_mfma_f32_16x16x16_f16 a[0:3], v[16:17], v[32:33], a[0:3]
    """
    operand, sums = layout.mfma_operand(shape), layout.mfma_accumulator(shape)
    given = {**_registers(operand, a, _A), **_registers(operand, b, _B)}
    result = Fragment(text, "gfx942").run(given)
    assert np.array_equal(_sums(result, sums, np.float32, first=256), 2 * zero + 2)


def test_blocks_share_operands() -> None:
    shape = Shape(4, 4, 16)
    name = "v_mfma_f32_4x4x4_16b_f16"
    a, b, c, found = _run_mfma(
        "gfx942", name, shape, np.float16, np.float32, "cbsz:2 abid:1 blgp:3"
    )
    block = np.arange(16)
    # BLGP 3 moves lanes by 16, which is four blocks.
    left, right = a[block // 4 * 4 + 1].astype(float), b[(block + 4) % 16].astype(float)
    assert np.array_equal(found, np.einsum("bik,bjk->bij", left, right) + c)


def test_f64_operands_have_signs() -> None:
    for signs in ("neg:[1,0,1]", "blgp:5"):
        a, b, c, found = _run_mfma(
            "gfx942", "v_mfma_f64_16x16x4_f64", Shape(16, 4), np.float64, np.float64, signs
        )
        assert np.array_equal(found, -np.einsum("bik,bjk->bij", a, b) - c)


def test_waves_of_another_group_keep_their_sums() -> None:
    """An MFMA of one wave, as `s_cbranch` lets it be, leaves the other's registers alone."""
    text = """
        v_readfirstlane_b32 s4, v0
        s_cmp_eq_u32 s4, 0
        s_cbranch_scc0 other
        v_mfma_f32_16x16x16_f16 v[96:99], v[16:17], v[32:33], 1.0
        other:
        s_nop 0
    """
    result = Fragment(text, "gfx942", threads=128).run()
    assert (result.vector(96, np.float32)[0] == 1).all()
    assert (result.vector(96)[1] == 0).all()


_WMMA: list[tuple[str, str, int, Any, Any]] = [
    ("gfx1100", "v_wmma_f32_16x16x16_f16", 16, np.float16, np.float32),
    ("gfx1100", "v_wmma_f32_16x16x16_bf16", 16, ml_dtypes.bfloat16, np.float32),
    ("gfx1151", "v_wmma_i32_16x16x16_iu8", 16, np.int8, np.int32),
    ("gfx1201", "v_wmma_f32_16x16x16_f16", 16, np.float16, np.float32),
    ("gfx1201", "v_wmma_f32_16x16x16_bf16", 16, ml_dtypes.bfloat16, np.float32),
    ("gfx1201", "v_wmma_f16_16x16x16_f16", 16, np.float16, np.float16),
    ("gfx1201", "v_wmma_bf16_16x16x16_bf16", 16, ml_dtypes.bfloat16, ml_dtypes.bfloat16),
    ("gfx1201", "v_wmma_f32_16x16x16_fp8_fp8", 16, ml_dtypes.float8_e4m3fn, np.float32),
    ("gfx1200", "v_wmma_f32_16x16x16_bf8_bf8", 16, ml_dtypes.float8_e5m2, np.float32),
    ("gfx1201", "v_wmma_i32_16x16x16_iu8", 16, np.int8, np.int32),
]


def _wmma_fragments(chip: str, k: int, kind: Any) -> tuple[Where, Where]:
    if chip in ("gfx1100", "gfx1151"):
        return layout.wmma_operand_gfx11(k), layout.wmma_accumulator_gfx11()
    bits = 8 * np.dtype(kind).itemsize
    return layout.wmma_operand_gfx12(k, bits), layout.wmma_accumulator_gfx12()


def _run_wmma(
    chip: str, name: str, k: int, kind: Any, total: Any, modifiers: str = "", seed: int = 1
) -> tuple[Array, Array, Array, Array]:
    operand, sums = _wmma_fragments(chip, k, kind)
    a, b = (_whole((1, 16, k), kind, seed + i) for i in range(2))
    c = _whole((1, 16, 16), total, seed + 2)
    words = operand.per_lane * np.dtype(kind).itemsize // 4
    totals = sums.per_lane * np.dtype(total).itemsize // 4
    text = (
        f"{name} {_span(_D, totals)}, {_span(_A, words)}, {_span(_B, words)}, "
        f"{_span(_C, totals)} {modifiers}"
    )
    given = {**_registers(operand, a, _A), **_registers(operand, b, _B)}
    result = Fragment(text, chip).run({**given, **_registers(sums, c, _C)})
    assert not len(result.findings)
    return a, b, c, _sums(result, sums, total)


@pytest.mark.parametrize(("chip", "name", "k", "kind", "total"), _WMMA, ids=str)
def test_a_wmma_multiplies(chip: str, name: str, k: int, kind: Any, total: Any) -> None:
    signed = "neg_lo:[1,1,0]" if "iu" in name else ""
    a, b, c, found = _run_wmma(chip, name, k, kind, total, signed)
    exact = np.einsum("bik,bjk->bij", a.astype(float), b.astype(float)) + c.astype(float)
    assert np.array_equal(found.astype(float), exact)


def test_integers_of_a_wmma_are_unsigned_unless_told_otherwise() -> None:
    name = "v_wmma_i32_16x16x16_iu8"
    a, b, c, found = _run_wmma("gfx1201", name, 16, np.int8, np.int32, "neg_lo:[0,1,0]")
    left = a.view(np.uint8).astype(np.int64)
    assert np.array_equal(found, np.einsum("bik,bjk->bij", left, b.astype(np.int64)) + c)


def test_nibbles_of_a_wmma() -> None:
    a, b = (np.random.default_rng(i).integers(0, 16, (1, 16, 32)).astype(np.uint8) for i in (1, 2))
    operand, sums = layout.wmma_operand_gfx12(32, 4), layout.wmma_accumulator_gfx12()

    def packed(matrix: Array, first: int) -> dict[int, Array]:
        held = matrix.reshape(-1)[operand.holds]
        words = np.ascontiguousarray(held[:, 0::2] | held[:, 1::2] << 4).view(np.uint32)
        return {first + i: words[None, :, i] for i in range(2)}

    text = "v_wmma_i32_16x16x32_iu4 v[96:103], v[16:17], v[32:33], v[64:71]"
    result = Fragment(text, "gfx1201").run({**packed(a, _A), **packed(b, _B)})
    exact = np.einsum("bik,bjk->bij", a.astype(np.int64), b.astype(np.int64))
    assert np.array_equal(_sums(result, sums, np.int32), exact)


def test_signs_of_a_wmma() -> None:
    a, b, c, found = _run_wmma(
        "gfx1201", "v_wmma_f32_16x16x16_f16", 16, np.float16, np.float32,
        "neg_lo:[1,0,1] neg_hi:[1,0,1]",
    )  # fmt: skip
    exact = -np.einsum("bik,bjk->bij", a.astype(float), b.astype(float)) - np.abs(c)
    assert np.array_equal(found, exact)
    a, b, c, found = _run_wmma(
        "gfx1201", "v_wmma_f32_16x16x16_f16", 16, np.float16, np.float32, "neg_hi:[0,1,0]"
    )
    odd = np.where(np.arange(16) % 2, -1.0, 1.0)
    assert np.array_equal(found, np.einsum("bik,bjk->bij", a * odd, b.astype(float)) + c)


@pytest.mark.parametrize("half", [0, 1])
def test_gfx11_keeps_f16_sums_in_one_half_of_each_register(half: int) -> None:
    operand, sums = layout.wmma_operand_gfx11(16), layout.wmma_accumulator_gfx11()
    a, b = (_whole((1, 16, 16), np.float16, i) for i in (1, 2))
    given = {**_registers(operand, a, _A), **_registers(operand, b, _B)}
    given |= {_D + i: np.full((1, 32), 0x11112222, np.uint32) for i in range(8)}
    select = f"op_sel:[0,0,{half}]" if half else ""
    text = f"v_wmma_f16_16x16x16_f16 v[96:103], v[16:23], v[32:39], v[64:71] {select}"
    result = Fragment(text, "gfx1100").run(given)
    words = np.ascontiguousarray(result.machine.vgpr[96:104, 0].T)
    found = words.view(np.float16)[:, half::2].reshape(-1)[sums.where]
    assert np.array_equal(found, np.einsum("bik,bjk->bij", a, b))
    assert (words.view(np.uint16)[:, 1 - half :: 2] == (0x1111 if half == 0 else 0x2222)).all()


def test_gfx11_wants_the_same_operands_in_both_halves_of_a_wave() -> None:
    text = "v_wmma_f32_16x16x16_f16 v[96:103], v[16:23], v[32:39], v[64:71]"
    given = {16: np.where(np.arange(32) == 20, np.uint32(1), np.uint32(0))[None]}
    result = Fragment(text, "gfx1100").run(given)
    assert result.kinds == [Kind.UNDEFINED]
    assert "different operands" in str(result.findings.all()[0])


def test_a_wmma_saturates_under_clamp() -> None:
    operand, sums = layout.wmma_operand_gfx12(16, 8), layout.wmma_accumulator_gfx12()
    a, c = np.full((1, 16, 16), 127, np.int8), np.full((1, 16, 16), 2**31 - 10, np.int32)
    given = {**_registers(operand, a, _A), **_registers(operand, a, _B), **_registers(sums, c, _C)}
    text = "v_wmma_i32_16x16x16_iu8 v[96:103], v[16:17], v[32:33], v[64:71]"
    result = Fragment(f"{text} clamp", "gfx1201").run(given)
    assert (_sums(result, sums, np.int32) == 2**31 - 1).all()


@pytest.mark.parametrize(
    ("chip", "text"),
    [
        ("gfx942", "v_smfmac_f32_16x16x32_f16 v[0:3], v[4:5], v[6:9], v10"),
        ("gfx950", "v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[4:11], v[12:19], v[0:3]"),
        ("gfx1201", "v_swmmac_f32_16x16x32_f16 v[0:7], v[8:11], v[12:19], v20"),
    ],
)
def test_an_unknown_matrix_instruction_is_named(chip: str, text: str) -> None:
    with pytest.raises(CompilerBug, match=text.split()[0]):
        Fragment(text, chip)


def test_a_matrix_operand_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(CompilerBug, match="expected 2 registers an operand"):
        Fragment("v_mfma_f32_32x32x8_f16 v[0:15], v[16:19], v[20:21], v[0:15]", "gfx942")
