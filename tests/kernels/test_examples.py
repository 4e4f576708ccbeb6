"""The examples' functions over ragged shapes and types against float64, and their code for every chip."""

import math
from typing import Any

import numpy as np
import pytest

import tiledsl as tile
from examples import ex01_vector_add as ex01
from examples import ex02_softmax as ex02
from examples import ex03_layer_norm as ex03
from examples import ex04_matmul as ex04
from examples import ex05_attention as ex05
from examples import ex06_fast_matmul as ex06
from examples import ex07_fp8_matmul as ex07
from tests.kernels.oracle import Array, cast, check_equal, ordinary

HALF, BRAIN, SINGLE = tile.float16, tile.bfloat16, tile.float32
TOLERANCE = {HALF: 2e-3, BRAIN: 2e-2, SINGLE: 2e-5}
"""A few units in the last place of results about 1."""


def wide(array: Array) -> Array:
    return array.astype(np.float64)


@pytest.mark.parametrize("dtype", [HALF, BRAIN, SINGLE, tile.float64, tile.int32], ids=str)
def test_vector_add_is_numpys(place: str, dtype: tile.DType) -> None:
    for n in (1, 7, 1024, 98_765):
        x, y = ordinary(dtype, n, 1, 10), ordinary(dtype, n, 2, 10)
        check_equal(ex01.vector_add(x, y), (x + y).astype(dtype.numpy), f"{n}")


@pytest.mark.parametrize("dtype", [HALF, BRAIN, SINGLE], ids=str)
def test_softmax_of_ragged_rows(place: str, dtype: tile.DType) -> None:
    for rows, columns in ((1, 1), (3, 7), (5, 256), (4, 781), (2, 5000), (3, 16_392), (2, 32_776)):
        x = ordinary(dtype, rows * columns, 3, 5).reshape(rows, columns)
        e = np.exp(wide(x) - wide(x).max(1, keepdims=True))
        result = wide(ex02.softmax(x))
        np.testing.assert_allclose(result, e / e.sum(1, keepdims=True), atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [HALF, BRAIN, SINGLE], ids=str)
def test_layer_norm_of_long_and_short_rows(place: str, dtype: tile.DType) -> None:
    for rows, columns in ((1, 1), (3, 255), (4, 1024), (2, 3000), (3, 5000), (2, 16_392)):
        x = cast(wide(ordinary(dtype, rows * columns, 4)) + 2, dtype).reshape(rows, columns)
        weight, bias = ordinary(dtype, columns, 5), ordinary(dtype, columns, 6)
        out, mean, rstd = ex03.layer_norm(x, weight, bias)
        centered = wide(x) - wide(x).mean(1, keepdims=True)
        deviation = np.sqrt((centered**2).mean(1, keepdims=True) + 1e-5)
        np.testing.assert_allclose(mean, wide(x).mean(1), atol=1e-5)
        np.testing.assert_allclose(rstd, 1 / deviation[:, 0], rtol=1e-4)
        expected = centered / deviation * wide(weight) + wide(bias)
        tolerance = 8 * TOLERANCE[dtype]
        np.testing.assert_allclose(wide(out), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("dtype", [HALF, BRAIN, SINGLE], ids=str)
def test_matmul_of_ragged_matrices(
    place: str, emulated: bool, dtype: tile.DType, fused: bool
) -> None:
    large = ((64, 128, 64), (70, 66, 50)) if emulated else ((128, 128, 64), (130, 70, 100))
    for m, n, k in ((1, 1, 1), *large):
        a, b = ordinary(dtype, m * k, 7).reshape(m, k), ordinary(dtype, k * n, 8).reshape(k, n)
        bias = ordinary(dtype, n, 9) if fused else None
        expected = wide(a) @ wide(b)
        if bias is not None:
            shifted = expected + wide(bias)
            expected = 0.5 * shifted * (1 + np.vectorize(math.erf)(shifted / math.sqrt(2)))
        size = np.abs(wide(a)) @ np.abs(wide(b)) + 1
        error = np.abs(wide(ex04.multiply(a, b, bias, block=(64, 64, 32))) - expected) / size
        assert error.max() < TOLERANCE[dtype]
        transposed = ex04.multiply(
            np.asfortranarray(a), np.asfortranarray(b), bias, block=(64, 64, 32)
        )
        assert (np.abs(wide(transposed) - expected) / size).max() < TOLERANCE[dtype]


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("dtype", [HALF, BRAIN, SINGLE], ids=str)
def test_attention_of_ragged_lengths(
    place: str, emulated: bool, dtype: tile.DType, causal: bool
) -> None:
    # In single precision the example itself is of that length, which takes an emulator long.
    large = () if emulated and dtype == SINGLE else ((1, 200, 64),)
    for heads, length, d in ((1, 1, 16), (2, 64, 32), *large):
        q, k, v = (
            ordinary(dtype, heads * length * d, s).reshape(heads, length, d) for s in (1, 2, 3)
        )
        result = ex05.attention(q, k, v, causal)
        np.testing.assert_allclose(
            wide(result), ex05.reference(q, k, v, causal), atol=5 * TOLERANCE[dtype]
        )


FORMS = {
    "one warpgroup": ((1, 1, 200, 64), ex05.Form(64, 128, 4)),
    "two": ((2, 1, 300, 64), ex05.Form(128, 128, 8)),
    "two, large": ((1, 1, 130, 128), ex05.Form(128, 64, 8)),
    "no overlap": ((2, 1, 300, 64), ex05.Form(128, 128, 8, overlap=False, max_registers=128)),
    "many": ((3, 3, 300, 64), ex05.Form(128, 128, 8, many=True, apart=True)),
    "apart": ((1, 1, 300, 128), ex05.Form(128, 128, 8, apart=True)),
}


@pytest.mark.parametrize("mode", ["eager", "lazy"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("name", FORMS)
def test_attention_on_hopper(
    name: str, causal: bool, mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products in flight beside the softmax, heads that share keys, several blocks a program."""
    (heads, kv_heads, length, d), form = FORMS[name]
    monkeypatch.setattr(ex05, "PROCESSORS", 2)
    dtype = HALF if name == "apart" else BRAIN
    q = ordinary(dtype, heads * length * d, 1).reshape(heads, length, d)
    k, v = (ordinary(dtype, kv_heads * length * d, s).reshape(-1, length, d) for s in (2, 3))
    with tile.device("emulate:sm_90a", mode=mode):
        result = ex05.attention(q, k, v, causal, form)
    want = ex05.reference(q, k, v, causal)
    assert np.linalg.norm(wide(result) - want) < 1e-2 * np.linalg.norm(want)


def test_attentions_form_is_chosen_by_shape() -> None:
    def chosen(heads: int, length: int, d: int, causal: bool = False) -> Any:
        form = ex05.choose_form(heads, length, d, causal)
        return form.block_q, form.num_warps, form.many, form.apart, form.overlap

    # Few trips: many blocks a program.
    assert chosen(256, 1024, 128) == chosen(128, 4096, 128, True) == (128, 8, True, True, True)
    assert chosen(128, 4096, 128) == chosen(32, 16384, 128, True) == (128, 8, False, True, True)
    # Two programs a processor, without overlap.
    assert chosen(256, 1024, 64) == chosen(128, 4096, 64) == (128, 8, False, False, False)
    # Blocks of another head for the second of a pair.
    assert chosen(255, 1024, 128, True) == (128, 8, False, True, True)
    # Not enough for every processor.
    assert chosen(8, 1024, 128) == chosen(8, 1024, 64) == (64, 4, False, False, True)


@pytest.mark.parametrize("shape", [(256, 1024, 128), (128, 4096, 128), (256, 1024, 64)], ids=str)
def test_attentions_forms_fit_the_registers(shape: tuple[int, int, int]) -> None:
    heads, length, d = shape
    form = ex05.choose_form(heads, length, d, causal=True)
    kernel, signature, _ = KERNELS["attention"]
    constants = {
        "CAUSAL": True, "BLOCK_Q": form.block_q, "BLOCK_K": form.block_k, "D": d,
        "MANY": form.many, "APART": form.apart, "OVERLAP": form.overlap,
    }  # fmt: skip
    options = {"num_warps": form.num_warps, "max_registers": form.max_registers}
    made = tile.compile(
        kernel, signature, constants, target="sm_90a", num_stages=2, fast_math=True, **options
    )
    assert made.resources.spills == 0


@pytest.mark.parametrize("turned", [False, True], ids=["plain", "turned"])
@pytest.mark.parametrize("dtype", [HALF, BRAIN, SINGLE], ids=str)
def test_fast_matmul_of_ragged_matrices(
    place: str, emulated: bool, dtype: tile.DType, turned: bool
) -> None:
    """Of rows that end at multiples of 16 bytes, and of others, which are copied first."""
    whole_tiles = () if emulated else ((64, 64, 64),)
    many = () if emulated and dtype == SINGLE else ((130, 72, 104),)
    for m, n, k in ((1, 1, 1), *whole_tiles, *many, (67, 71, 73)):
        a, b = ordinary(dtype, m * k, 7).reshape(m, k), ordinary(dtype, k * n, 8)
        b = b.reshape((n, k) if turned else (k, n))
        expected = wide(a) @ wide(b.T if turned else b)
        size = np.abs(wide(a)) @ np.abs(wide(b.T if turned else b)) + 1
        found = ex06.multiply(a, b, turned=turned, block=(64, 64), num_stages=2)
        assert (np.abs(wide(found) - expected) / size).max() < TOLERANCE[dtype]
        bias = ordinary(dtype, n, 9)
        shifted = expected + wide(bias)
        expected = 0.5 * shifted * (1 + np.vectorize(math.erf)(shifted / math.sqrt(2)))
        found = ex06.multiply(a, b, bias, turned, block=(64, 64), num_stages=2)
        assert (np.abs(wide(found) - expected) / size).max() < TOLERANCE[dtype]


@pytest.mark.parametrize("turned", [False, True], ids=["plain", "turned"])
def test_fast_matmul_in_tf32(place: str, turned: bool) -> None:
    for m, n, k in ((130, 72, 64), (67, 71, 73)):
        a, b = ordinary(SINGLE, m * k, 7).reshape(m, k), ordinary(SINGLE, k * n, 8)
        b, bias = b.reshape((n, k) if turned else (k, n)), ordinary(SINGLE, n, 9)
        shifted = wide(a) @ wide(b.T if turned else b) + wide(bias)
        size = np.abs(wide(a)) @ np.abs(wide(b.T if turned else b)) + 1
        expected = 0.5 * shifted * (1 + np.vectorize(math.erf)(shifted / math.sqrt(2)))
        found = ex06.multiply(a, b, bias, turned, block=(64, 64), num_stages=2, precision="tf32")
        assert (np.abs(wide(found) - expected) / size).max() < 2**-9


@pytest.mark.parametrize("turned", [False, True], ids=["plain", "turned"])
def test_fast_matmul_of_nothing(turned: bool) -> None:
    for m, n, k in ((0, 64, 32), (64, 0, 32), (0, 0, 0)):
        a, b = np.ones((m, k), np.float32), np.ones((n, k) if turned else (k, n), np.float32)
        for precision in ("ieee", "tf32", "tf32x3"):
            with tile.device("emulate:sm_90a"):
                assert ex06.multiply(a, b, turned=turned, precision=precision).shape == (m, n)


@pytest.mark.parametrize("block", [(128, 256), (128, 128), (64, 128)])
@pytest.mark.parametrize("turned", [False, True], ids=["plain", "turned"])
@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_every_tile_that_is_chosen_fits_in_three_products(
    block: tuple[int, int], turned: bool, many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ex06, "PROCESSORS", 1 if many else 132)
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((130, 32), (32, 36)))
    given = np.ascontiguousarray(b.T) if turned else b
    with tile.device("emulate:sm_90a"):
        found = ex06.multiply(a, given, turned=turned, precision="tf32x3", block=block)
    np.testing.assert_array_equal(found, a @ b)


@pytest.mark.parametrize("turned", [False, True], ids=["plain", "turned"])
def test_fast_matmul_of_arrays_that_begin_anywhere(place: str, turned: bool) -> None:
    a, b = (ordinary(HALF, 64 * 72 + 1, s)[1:].reshape(64, 72) for s in (1, 2))
    b = b if turned else b.reshape(72, 64)
    out = np.zeros(64 * 64 + 3, HALF.numpy)[3:].reshape(64, 64)
    assert ex06.multiply(a, b, turned=turned, out=out, block=(64, 64), num_stages=2) is out
    np.testing.assert_allclose(
        wide(out), wide(a) @ wide(b.T if turned else b), atol=5e-2, rtol=2e-3
    )


def test_fast_matmul_of_more_tiles_than_programs(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ex06, "PROCESSORS", 3)
    a, b = (ordinary(HALF, 64 * 300, s).reshape(300, 64) for s in (1, 2))
    found = ex06.multiply(a, b, turned=True, block=(64, 64), num_stages=2)
    np.testing.assert_allclose(wide(found), wide(a) @ wide(b).T, atol=5e-2, rtol=2e-3)


def test_fast_matmul_in_two_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven tiles for three processors: the last one would leave two of them idle."""
    monkeypatch.setattr(ex06, "PROCESSORS", 3)
    monkeypatch.setattr(ex06, "LAUNCH", 0)
    monkeypatch.setattr(ex06, "cut", ex06.cut.__wrapped__)
    m, n, k = 128, 7 * 256 - 3, 72
    assert [one.block[:2] for one in ex06.cut(m, n, k, 2)] == [(128, 256), (128, 128)]
    a, b = ordinary(HALF, m * k, 1).reshape(m, k), ordinary(HALF, k * n, 2).reshape(n, k)
    for turned, right in ((True, b), (False, np.ascontiguousarray(b.T))):
        found = ex06.multiply(a, right, turned=turned)
        np.testing.assert_allclose(wide(found), wide(a) @ wide(b).T, atol=5e-2, rtol=2e-3)


def test_tiles_are_chosen_by_how_they_fill_the_chip() -> None:
    assert ex06.choose_block(8192, 8192)[0] == (128, 256)
    assert ex06.choose_block(4096, 4096)[0] == (128, 256)
    assert ex06.choose_block(1024, 1024)[0] == (64, 128)
    assert ex06.choose_block(64, 64)[0] == (64, 128)


def test_a_product_is_cut_where_the_last_round_would_be_almost_empty() -> None:
    (whole,) = ex06.cut(8192, 8192, 8192, 2)
    assert (whole.first, whole.last, whole.programs) == (0, 8192, 132)
    assert whole.options["MANY"]
    first, rest = ex06.cut(2048, 11008, 4096, 2)  # 688 tiles, of which 28 are left over
    assert (first.first, first.last, first.block) == (0, 10496, (128, 256, 64))
    assert (rest.first, rest.last, rest.block[:2]) == (10496, 11008, (64, 128))
    assert not rest.options["MANY"]
    assert len(ex06.cut(2048, 11008, 1, 2)) == 1  # a launch would take longer


def test_fp8_matmul_with_scales(place: str) -> None:
    for m, n, k in ((1, 1, 16), (70, 130, 144)):
        x, y = (
            np.asarray(ordinary(SINGLE, rows * k, s)).reshape(rows, k) * 30
            for rows, s in ((m, 1), (n, 2))
        )
        (a, scale_a), (b, scale_b) = ex07.quantize(x), ex07.quantize(y)
        np.testing.assert_allclose(wide(a) * scale_a[:, None], x, atol=0.07 * np.abs(x).max())
        exact = (wide(a) * scale_a[:, None]) @ (wide(b) * scale_b[:, None]).T
        size = (np.abs(wide(a)) * scale_a[:, None]) @ (np.abs(wide(b)) * scale_b[:, None]).T
        found = ex07.multiply(a, b, scale_a, scale_b, block=(64, 64), num_stages=2)
        assert (np.abs(wide(found) - exact) / (size + 1e-6)).max() < 1e-2


# --- every chip ----------------------------------------------------------------------------------

NVIDIA = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120")
AMD = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1151", "gfx1200", "gfx1201")
_STRIDES = {
    "stride_am": "i32:16", "stride_ak": "1", "stride_bk": "i32:16", "stride_bn": "1",
    "stride_cm": "i32:16", "stride_cn": "1",
}  # fmt: skip
KERNELS: dict[str, tuple[Any, dict[str, str], dict[str, Any]]] = {
    "vector add": (
        ex01.add, {"x": "*fp32:16", "y": "*fp32:16", "out": "*fp32:16", "n": "i32"}, {"BLOCK": 1024},
    ),
    "softmax": (
        ex02.softmax_rows,
        {"x": "*fp16:16", "out": "*fp16:16", "rows": "i32"},
        {"COLUMNS": 1000, "ROWS": 2, "BLOCK": 1024},
    ),
    "softmax of long rows": (
        ex02.softmax_long_rows,
        {"x": "*bf16:16", "out": "*bf16:16"},
        {"COLUMNS": 50_000, "BLOCK": 1024},
    ),
    "layer norm": (
        ex03.layer_norm_rows,
        {
            **dict.fromkeys(("x", "weight", "bias", "out"), "*bf16:16"),
            "mean_out": "*fp32:16", "rstd_out": "*fp32:16", "rows": "i32", "eps": "fp32",
        },
        {"COLUMNS": 1000, "ROWS": 2, "BLOCK": 1024},
    ),
    "layer norm of long rows": (
        ex03.layer_norm_long_rows,
        {
            **dict.fromkeys(("x", "weight", "bias", "out"), "*bf16:16"),
            "mean_out": "*fp32:16", "rstd_out": "*fp32:16", "eps": "fp32",
        },
        {"COLUMNS": 20_000, "BLOCK": 1024},
    ),
    "matmul": (
        ex04.matmul,
        {
            **dict.fromkeys(("a", "b", "c", "bias"), "*fp16:16"),
            **dict.fromkeys("MNK", "i32"),
            **_STRIDES,
        },
        {"FUSED": True, "BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 32},
    ),
    "attention": (
        ex05.attention_forward,
        {
            **dict.fromkeys(("q", "k", "v", "out"), "*bf16:16"),
            **dict.fromkeys(("heads", "kv_heads", "length", "together"), "i32"),
            "stride_q": "i32:16", "stride_kv": "i32:16", "scale": "fp32",
        },
        {"CAUSAL": True, "BLOCK_Q": 64, "BLOCK_K": 64, "D": 64, "MANY": False, "APART": False,
         "OVERLAP": True},
    ),
    "fast matmul": (
        ex06.matmul,
        {
            "a": "tensor<bf16, 64x64>:16", "b": "tensor<bf16, 64x64>:16",
            "c": "tensor<bf16, 64x64>:16", "bias": "tensor<bf16, 64>:16",
        },
        {"GROUP": 8, "TURNED": True, "FLIPPED": False, "MANY": True, "PRECISION": "ieee"},
    ),
    "fp8 matmul": (
        ex07.scaled_matmul,
        {
            "a": "tensor<fp8e4m3, 64x64>:16", "b": "tensor<fp8e4m3, 64x64>:16",
            "c": "tensor<bf16, 64x64>:16",
            "scale_a": "tensor<fp32, 64>:16", "scale_b": "tensor<fp32, 64>:16",
        },
        {"GROUP": 8, "MANY": True},
    ),
}  # fmt: skip


@pytest.mark.parametrize("chip", ["host", *NVIDIA, *AMD])
@pytest.mark.parametrize("name", KERNELS)
def test_every_example_compiles_for_every_chip(name: str, chip: str) -> None:
    kernel, signature, constants = KERNELS[name]
    # The product's tiles are for 256 threads, as `ex04.multiply` launches them; RDNA's lanes hold
    # operands twice, so that attention's are too, and on RDNA 3 for fewer keys.
    if name == "attention" and chip.startswith("gfx11"):
        constants = {**constants, "BLOCK_K": 32}
    warps = 8 if name == "matmul" or chip.startswith("gfx1") else 4
    compiled = tile.compile(
        kernel, signature, constants, target=chip, num_warps=warps, num_stages=2
    )
    levels = list(compiled.asm)
    if chip == "host":
        assert levels[0] == "tile"
        return
    last = ["ptx"] if chip.startswith("sm_") else ["amdgcn", "hsaco"]
    assert [
        level for level in ["tile", "tgpu", "machine", "llvm", *last] if level not in levels
    ] == []
    if compiled.resources.spills is not None:
        assert compiled.resources.spills == 0
    if chip.startswith("gfx"):
        code = compiled.asm["hsaco"]
        assert isinstance(code, bytes)
        assert code.startswith(b"\x7fELF")
    if name == "matmul":
        check_matrix_code(chip, compiled.asm)


def check_matrix_code(chip: str, asm: Any) -> None:
    """Check that a product uses matrix instructions, fed by wide shared-memory reads."""
    if chip.startswith("sm_"):
        text = asm["ptx"]
        if chip == "sm_90a":  # which reads operands in shared memory by itself
            assert "wgmma.mma_async" in text
        else:
            assert "mma.sync" in text
            assert "ldmatrix" in text
    else:
        text = asm["amdgcn"]
        assert ("v_mfma" if chip.startswith("gfx9") else "v_wmma") in text
        assert "ds_read_b128" in text or "ds_load_b128" in text


@pytest.mark.parametrize(
    "module", [ex01, ex02, ex03, ex04, ex05, ex06, ex07], ids=lambda m: m.__name__
)
def test_the_examples_run_as_they_are(place: str, module: Any, capsys: Any) -> None:
    module.main()
    assert capsys.readouterr().out.strip()
