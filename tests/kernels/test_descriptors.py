"""Tensors through descriptors: boxes anywhere, at ragged edges, in loops, by TMA where there is one."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import tiledsl as tile
from tests.kernels.ptx_text import loop_of
from tiledsl.dialects.diagnostics import KernelError


@tile.jit
def move(x, y, M, N, sx, sy, i, j, BM: tile.constexpr, BN: tile.constexpr):
    source = tile.make_tensor_descriptor(x, [M, N], [sx, 1], [BM, BN])
    target = tile.make_tensor_descriptor(y, [M, N], [sy, 1], [BM, BN])
    m, n = tile.program_id(0) * BM, tile.program_id(1) * BN
    target.store([m, n], source.load([m + i, n + j]) * 2)


def moved(x: NDArray[np.float32], i: int, j: int) -> NDArray[np.float32]:
    """Return `2 * x[i:, j:]` in place of x, zero where x has nothing."""
    want = np.zeros_like(x)
    rows, columns = x.shape
    for row in range(rows):
        for column in range(columns):
            if 0 <= row + i < rows and 0 <= column + j < columns:
                want[row, column] = 2 * x[row + i, column + j]
    return want


@pytest.mark.parametrize("shift", [(0, 0), (-3, 5), (7, -2), (100, 0)])
@pytest.mark.parametrize("size", [(50, 70), (48, 64)])
def test_a_box_is_zero_outside_and_written_inside_only(
    place: str, size: tuple[int, int], shift: tuple[int, int]
) -> None:
    rows, columns = size
    whole = np.arange(rows * 96, dtype=np.float32).reshape(rows, 96) + 1
    x, y = whole[:, :columns], np.full((rows, 96), -1, np.float32)
    grid = (tile.cdiv(rows, 16), tile.cdiv(columns, 32))
    move[grid](whole, y, rows, columns, 96, 96, *shift, BM=16, BN=32)
    np.testing.assert_array_equal(y[:, :columns], moved(x, *shift))
    assert (y[:, columns:] == -1).all()


IEEE, FLOAT32 = tile.constexpr("ieee"), tile.constexpr(tile.float32)


@tile.jit
def product(
    a, b, c, M, N, K, sa, sb, sc,
    BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr, TURNED: tile.constexpr,
    PRECISION: tile.constexpr = IEEE, ACC: tile.constexpr = FLOAT32,
):  # fmt: skip
    left = tile.make_tensor_descriptor(a, [M, K], [sa, 1], [BM, BK])
    out = tile.make_tensor_descriptor(c, [M, N], [sc, 1], [BM, BN])
    m, n = tile.program_id(0) * BM, tile.program_id(1) * BN
    if TURNED:
        right = tile.make_tensor_descriptor(b, [N, K], [sb, 1], [BN, BK])
    else:
        right = tile.make_tensor_descriptor(b, [K, N], [sb, 1], [BK, BN])
    acc = tile.zeros((BM, BN), ACC)
    for k in range(0, K, BK):
        y = tile.trans(right.load([n, k])) if TURNED else right.load([k, n])
        acc = tile.dot(left.load([m, k]), y, acc, input_precision=PRECISION)
    out.store([m, n], acc)


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("turned", [False, True])
def test_a_product_reads_its_operands_through_descriptors(
    place: str, turned: bool, stages: int
) -> None:
    rng = np.random.default_rng(3)
    for m, n, k in ((64, 64, 256), (80, 96, 208), (64, 64, 16), (64, 64, 0)):
        a = rng.integers(-4, 5, (m, k)).astype(np.float16)
        b = rng.integers(-4, 5, (n, k) if turned else (k, n)).astype(np.float16)
        c = np.full((m, n), np.nan, np.float32)
        grid = (tile.cdiv(m, 64), tile.cdiv(n, 64))
        steps = (max(k, 16), max(b.shape[1], 16), n)
        product[grid](
            a, b, c, m, n, k, *steps, BM=64, BN=64, BK=64, TURNED=turned, num_stages=stages
        )
        want = a.astype(np.float32) @ (b.T if turned else b).astype(np.float32)
        np.testing.assert_array_equal(c, want)


@tile.jit
def products(
    a, b, c, BATCH, M, N, K, ta, tb, tc,
    BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr,
):  # fmt: skip
    left = tile.make_tensor_descriptor(a, [BATCH, M, K], [ta, K, 1], [1, BM, BK])
    right = tile.make_tensor_descriptor(b, [BATCH, K, N], [tb, N, 1], [1, BK, BN])
    out = tile.make_tensor_descriptor(c, [BATCH, M, N], [tc, N, 1], [1, BM, BN])
    batch, m, n = tile.program_id(2), tile.program_id(0) * BM, tile.program_id(1) * BN
    for k in range(0, K, BK):
        x = left.load([batch, m, k]).reshape((BM, BK))
        y = right.load([batch, k, n]).reshape((BK, BN))
        part = tile.dot(x, y)
        if k > 0:
            part += out.load([batch, m, n]).reshape((BM, BN))
        out.store([batch, m, n], part.reshape((1, BM, BN)))


def test_boxes_of_a_batch_end_where_its_matrix_ends(place: str) -> None:
    rng = np.random.default_rng(4)
    batch, m, n, k = 2, 72, 80, 96
    a = rng.integers(-4, 5, (batch, m, k)).astype(np.float16)
    b = rng.integers(-4, 5, (batch, k, n)).astype(np.float16)
    c = np.full((batch, m, n), np.nan, np.float32)
    products[tile.cdiv(m, 64), tile.cdiv(n, 64), batch](
        a, b, c, batch, m, n, k, m * k, k * n, m * n, BM=64, BN=64, BK=32
    )
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32))


def test_tma_copies_boxes_of_a_batch_and_a_product_from_zero_needs_no_zeros() -> None:
    types = dict.fromkeys("ab", "*fp16:16") | {"c": "*fp32:16"}
    sizes = dict.fromkeys(("BATCH", "M", "N", "K", "ta", "tb", "tc"), "i32:16")
    made = tile.compile(products, types | sizes, {"BM": 64, "BN": 64, "BK": 32}, target="sm_90a")
    ptx = str(made.asm["ptx"])
    assert "cp.async.bulk.tensor.3d" in ptx
    assert ptx.count("setp.ne.b32 on, 0, 0;") == ptx.count("setp.ne.b32 on, 1, 0;") == 1


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.float8_e4m3fn, np.int8])
def test_products_of_words_and_bytes_read_boxes_that_lie_either_way(
    place: str, dtype: type, turned: bool
) -> None:
    rng = np.random.default_rng(4)
    for m, n, k in ((64, 64, 256), (48, 80, 160)):
        a = rng.integers(-4, 5, (m, k)).astype(dtype)
        b = rng.integers(-4, 5, (n, k) if turned else (k, n)).astype(dtype)
        c = np.full((m, n), 99, np.int32 if dtype is np.int8 else np.float32)
        grid = (tile.cdiv(m, 64), tile.cdiv(n, 64))
        steps = (k, b.shape[1], n)
        options = {np.float32: {"PRECISION": "tf32"}, np.int8: {"ACC": tile.int32}}.get(dtype, {})
        product[grid](a, b, c, m, n, k, *steps, BM=64, BN=64, BK=32, TURNED=turned, **options)
        wide = (b.T if turned else b).astype(np.float32)
        np.testing.assert_array_equal(c, a.astype(np.float32) @ wide)


@pytest.mark.parametrize("chip", ["sm_80", "sm_90a"])
def test_tf32_is_rounded_to_nearest_also_by_copies_of_boxes(chip: str) -> None:
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal((64, 64), dtype=np.float32) for _ in range(2))
    for x in (a, b):
        x.view(np.uint32)[:] |= np.uint32(1)  # no ties
    half, kept = np.uint32(1 << 12), np.uint32(0xFFFFE000)
    near = [(x.view(np.uint32) + half & kept).view(np.float32).astype(np.float64) for x in (a, b)]
    for turned in (False, True):
        c = np.zeros((64, 64), np.float32)
        sizes, blocks = (64,) * 6, {"BM": 64, "BN": 64, "BK": 32}
        with tile.device(f"emulate:{chip}"):
            made = product[1, 1](a, b, c, *sizes, **blocks, TURNED=turned, PRECISION="tf32")
        assert made is not None
        assert ("wgmma" in str(made.asm["ptx"])) == (chip == "sm_90a")
        np.testing.assert_allclose(c, near[0] @ (near[1].T if turned else near[1]), atol=2e-5)


@pytest.mark.parametrize("where", ["emulate:sm_90a", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_where_tma_rounds_to_tf32_ties_go_to_even(where: str) -> None:
    bits = np.random.default_rng(6).integers(100 << 23, 150 << 23, (64, 64)).astype(np.uint32)
    bits[:, ::2] = bits[:, ::2] & np.uint32(0xFFFFE000) | np.uint32(0x1000)
    odd = bits >> np.uint32(13) & np.uint32(1)
    even = (bits + np.uint32(0xFFF) + odd & np.uint32(0xFFFFE000)).view(np.float32)
    c = np.zeros((64, 64), np.float32)
    one, sizes, blocks = np.eye(64, dtype=np.float32), (64,) * 6, {"BM": 64, "BN": 64, "BK": 32}
    with tile.device(where):
        made = product[1, 1](
            bits.view(np.float32), one, c, *sizes, **blocks, TURNED=True, PRECISION="tf32"
        )
    assert made is not None
    if "cp.async.bulk.tensor" in str(made.asm["ptx"]):  # of a GPU that has it
        np.testing.assert_array_equal(c, even)


@tile.jit
def total(x, y, N, BLOCK: tile.constexpr):
    source = tile.make_tensor_descriptor(x, [N], [1], [BLOCK], padding_option="nan")
    target = tile.make_tensor_descriptor(y, [BLOCK], [1], [BLOCK])
    tile_ = source.load([tile.program_id(0) * BLOCK])
    target.atomic_add([0], tile.where(tile_ == tile_, tile_, 100.0))


def test_nan_may_stand_for_what_is_outside_and_boxes_add_up(place: str) -> None:
    x, y = np.arange(20, dtype=np.float32), np.zeros(16, np.float32)
    total[2,](x, y, 20, BLOCK=16)
    want = x[:16].copy()
    want[:4] += x[16:]
    want[4:] += 100
    np.testing.assert_array_equal(y, want)


@tile.jit
def gather(x, y, sums, lifted):
    BM, BN = x.block_shape
    m, n = tile.program_id(0) * BM, tile.program_id(1) * BN
    found = x.load([m, n])
    y.store([m, n], found)
    y.store([m + x.shape[0] + 3, n], found)  # outside
    sums.atomic_add([0], tile.sum(tile.where(found == found, found, 1.0), axis=0))
    lifted.store([1, m, n], found[None, :, :])


@pytest.mark.parametrize("flip", [1, -1])
def test_arrays_are_described_on_the_way_to_a_kernel(place: str, flip: int) -> None:
    for rows, columns in ((40, 40), (37, 50), (32, 36)):
        x = np.arange(rows * 64, dtype=np.float32).reshape(rows, 64)[::flip, 8 : 8 + columns]
        y, sums = np.zeros((rows, columns), np.float32), np.zeros(64, np.float32)
        lifted = np.zeros((2, rows, columns), np.float32)
        described = (
            tile.TensorDescriptor(x, (16, 64), "nan"),
            tile.TensorDescriptor(y, (16, 64)),
            tile.TensorDescriptor(sums, (64,)),
            tile.TensorDescriptor(lifted, (1, 16, 64)),
        )
        programs = tile.cdiv(rows, 16)
        gather[programs,](*described)
        np.testing.assert_array_equal(y, x)
        want = np.full(64, 16 * programs, np.float32)
        want[:columns] = x.sum(0) + 16 * programs - rows
        np.testing.assert_array_equal(sums, want)
        np.testing.assert_array_equal(lifted[1], x)
        assert not lifted[0].any()


@tile.jit
def wrong_offsets(x, N):
    tile.make_tensor_descriptor(x, [N, N], [N, 1], [16, 16]).load([0])


@tile.jit
def wrong_rank(x, N):
    tile.make_tensor_descriptor(x, [N], [N, 1], [16, 16])


def test_wrong_descriptors_say_what_was_expected() -> None:
    x = np.zeros((16, 16), np.float32)
    with pytest.raises(KernelError, match="expected 2 offsets for `load`"):
        wrong_offsets[1,](x, 16)
    with pytest.raises(KernelError, match="expected 2 numbers as `shape`, found 1"):
        wrong_rank[1,](x, 16)


def test_what_a_descriptor_stores_to_counts_as_written() -> None:
    x = np.zeros((16, 32), np.float32)
    fixed = x.copy()
    fixed.setflags(write=False)
    with tile.device("host"), pytest.raises(KernelError, match=r"argument `y`.*read-only"):
        move[1, 1](x, fixed, 16, 32, 32, 32, 0, 0, BM=16, BN=32)


@tile.jit
def in_place(x, N, BM: tile.constexpr, BN: tile.constexpr):
    tensor = tile.make_tensor_descriptor(x, [N, N], [N, 1], [BM, BN])
    for i in range(0, N, BM):
        tensor.store([i, 0], tensor.load([0, 0]) + 1)


def test_a_tensor_that_the_kernel_stores_to_is_not_read_by_tma(place: str) -> None:
    made = tile.compile(
        in_place, {"x": "*fp32:16", "N": "i32:16"}, {"BM": 16, "BN": 32}, target="sm_90a"
    )
    ptx = str(made.asm["ptx"])
    assert ".shared::cluster.global" not in ptx
    assert ".global.shared::cta" in ptx
    x = np.arange(48 * 48, dtype=np.float32).reshape(48, 48)
    want = x.copy()
    for row in range(0, 48, 16):
        want[row : row + 16, :32] = want[:16, :32] + 1
    in_place[1,](x, 48, BM=16, BN=32)
    np.testing.assert_array_equal(x, want)


def test_tma_copies_boxes_on_hopper_and_products_read_them_where_they_land() -> None:
    types = dict.fromkeys("ab", "*fp16:16") | {"c": "*fp32:16"}
    sizes = dict.fromkeys(("M", "N", "K", "sa", "sb", "sc"), "i32:16")
    constants = {"BM": 128, "BN": 256, "BK": 64, "TURNED": False}
    made = tile.compile(product, types | sizes, constants, target="sm_90a", num_warps=8)
    ptx = str(made.asm["ptx"])
    loop = loop_of(ptx)
    assert loop.count("cp.async.bulk.tensor.2d") == 5  # a is 64 wide, b 4 x 64
    assert loop.count("mbarrier.try_wait.parity") == 2
    assert "bar.sync" not in loop
    assert "fence.proxy" not in loop
    assert "ld.shared" not in loop
    assert "wgmma.wait_group.sync.aligned \t1" in loop.replace(" 1", " \t1")
