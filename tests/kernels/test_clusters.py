"""Programs that a cluster of blocks runs: the results of one block, in both modes, on any chip."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tiledsl as tile
from examples.ex05_attention import reference
from tests.kernels.both_modes import launch_in_both_modes
from tests.kernels.oracle import ordinary
from tests.kernels.test_attention_pipelines import attention_over_tiles
from tests.kernels.test_descriptors import product
from tiledsl.dialects import tgpu
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.targets.nvptx import ptxas
from tiledsl.transforms import box_ring, pipelined_loop

ELSEWHERE = ("host", "emulate:sm_80", "emulate:gfx942")
"""Where one block runs a program, whatever is asked for."""


@pytest.fixture(autouse=True)
def _without_ptxas(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "gpu" not in request.keywords:
        monkeypatch.setattr(ptxas, "find_ptxas", lambda: None)


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def hopper(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Generator[str]:
    """A chip with clusters; if emulated, in both modes."""
    launch_in_both_modes(monkeypatch)
    where = "cuda" if request.param == "cuda" else "emulate:sm_90a"
    with tile.device(where):
        yield where


def integers(*shape: int, seed: int = 0) -> NDArray[np.float16]:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float16)


def multiplied(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float32]:
    return a.astype(np.float32) @ b.astype(np.float32)


# --- products ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("turned", "stages"), [(False, 1), (False, 4), (True, 4)])
def test_a_product_through_descriptors_is_right_at_edges_and_for_any_depth(
    hopper: str, turned: bool, stages: int
) -> None:
    """One warp copies boxes: half of the right operand's rows, to both blocks."""
    for m, n, k in ((128, 64, 256), (160, 96, 208), (128, 64, 16), (64, 64, 0)):
        a, b = integers(m, k), integers(k, n, seed=1)
        right = np.ascontiguousarray(b.T) if turned else b
        c = np.full((m, n), np.nan, np.float32)
        steps = (max(k, 16), max(right.shape[1], 16), n)
        product[tile.cdiv(m, 128), tile.cdiv(n, 64)](
            a, right, c, m, n, k, *steps,
            BM=128, BN=64, BK=64, TURNED=turned, num_stages=stages, num_ctas=2,
        )  # fmt: skip
        np.testing.assert_array_equal(c, multiplied(a, b))


@tile.jit
def tiles(
    a, b, c, bias, M, N, K, sa, sb, sc,
    BM: tile.constexpr, BN: tile.constexpr, ROLES: tile.constexpr, BOXES: tile.constexpr,
):  # fmt: skip
    """Compute tile after tile of a @ b.T + bias; store boxes, or by pointers."""
    left = tile.make_tensor_descriptor(a, [M, K], [sa, 1], [BM, 64])
    right = tile.make_tensor_descriptor(b, [N, K], [sb, 1], [BN, 64])
    out = tile.make_tensor_descriptor(c, [M, N], [sc, 1], [BM, BN])
    columns = tile.cdiv(N, BN)
    for number in range(tile.program_id(0), tile.cdiv(M, BM) * columns, tile.num_programs(0)):
        m, n = number // columns * BM, number % columns * BN
        acc = tile.zeros((BM, BN), tile.float32)
        for k in tile.range(0, K, 64, warp_specialize=ROLES):
            acc = tile.dot(left.load([m, k]), tile.trans(right.load([n, k])), acc)
        rows, across = m + tile.arange(0, BM), n + tile.arange(0, BN)
        acc += tile.load(bias + across, mask=across < N, other=0)[None, :]
        if BOXES:
            out.store([m, n], acc)
        else:
            inside = (rows[:, None] < M) & (across[None, :] < N)
            tile.store(c + rows[:, None] * sc + across[None, :], acc, mask=inside)


def run_tiles(
    m: int, n: int, k: int, programs: int = 2, kernel: Any = tiles, **constants: Any
) -> None:
    a, b, bias = integers(m, k), integers(n, k, seed=1), np.arange(n, dtype=np.float32)
    c = np.full((m, n), np.nan, np.float32)
    every: dict[str, Any] = {"BM": 128, "BN": 64, "ROLES": True, "BOXES": True, "num_ctas": 2}
    steps = max(k, 64), max(k, 64), n
    kernel[programs](a, b, c, bias, m, n, k, *steps, **every | constants)
    np.testing.assert_array_equal(c, multiplied(a, b.T) + bias)


@pytest.mark.parametrize("boxes", [False, True])
@pytest.mark.parametrize("roles", [False, True])
def test_tile_after_tile_is_right_whoever_copies_boxes(
    hopper: str, roles: bool, boxes: bool
) -> None:
    run_tiles(300, 136, 192, ROLES=roles, BOXES=boxes)
    run_tiles(300, 136, 0, ROLES=roles, BOXES=boxes)


def test_four_blocks_run_a_program(hopper: str) -> None:
    run_tiles(300, 64, 192, programs=1, BM=256, num_ctas=4)


def _ptx(**constants: Any) -> str:
    types = {"a": "*fp16:16", "b": "*fp16:16", "c": "*fp32:16", "bias": "*fp32:16"}
    sizes = dict.fromkeys(("M", "N", "K", "sa", "sb", "sc"), "i32:16")
    options = {"num_ctas": 2, "num_warps": 4} | {
        name: constants.pop(name) for name in ("num_ctas", "num_warps") if name in constants
    }
    every = {"BM": 128, "BN": 64, "ROLES": True, "BOXES": True} | constants
    return str(tile.compile(tiles, types | sizes, every, "sm_90a", **options).asm["ptx"])


def test_who_copies_a_box_that_both_blocks_read_copies_half_of_it_to_both() -> None:
    text = _ptx()
    assert ".reqnctapercluster 2, 1, 1" in text
    copies = re.findall(r"cp\.async\.bulk\.tensor\.2d\.shared::cluster\S*", text)
    assert sum(one.endswith(".multicast::cluster") for one in copies) * 2 == len(copies)
    assert len(re.findall(r"mbarrier\.arrive\.shared::cluster\.b64 _", text)) == 1
    assert len(re.findall(r"barrier\.cluster\.arrive\.aligned", text)) == 2
    # ptxas makes fences of the whole chip of these.
    assert ".release.cluster.shared" not in text
    assert ".acquire.cluster" not in text


def test_a_kernel_from_disk_is_launched_in_clusters(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TILEDSL_CACHE", "1")
    monkeypatch.setenv("TILEDSL_CACHE_DIR", str(tmp_path))
    x = np.arange(200, dtype=np.int32) % 16
    times: list[int] = []
    for _ in range(2):
        histogram, totals, kernel = (
            np.zeros(16, np.int32),
            np.zeros(3, np.int32),
            tile.jit(count.fn),
        )
        with tile.device("emulate:sm_90a"):
            made: Any = kernel[2](x, histogram, totals, 200, BLOCK=128, num_ctas=2)
        assert made.artifact.cluster == 2
        assert totals.tolist() == [x.sum(), 2, 2]
        times.append(len(made.seconds))
    assert times[0] > 0 == times[1]


def test_one_block_needs_none_of_it() -> None:
    assert not re.search(r"multicast|mapa|%cluster|barrier\.cluster|reqncta", _ptx(num_ctas=1))


def test_roles_do_not_part_where_blocks_may_have_to_meet() -> None:
    assert "mbarrier.arrive.expect_tx" in _ptx(BOXES=False)
    assert ".reqntid 128" in _ptx(BOXES=False)
    assert ".reqntid 160" in _ptx()


@tile.jit
def by_pointers(a, b, c, M, N, K, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr):
    m, n = (
        tile.program_id(0) * BM + tile.arange(0, BM),
        tile.program_id(1) * BN + tile.arange(0, BN),
    )
    k = tile.arange(0, BK)
    left, right = a + m[:, None] * K + k, b + k[:, None] * N + n
    acc = tile.zeros((BM, BN), tile.float32)
    for start in range(0, K, BK):
        x = tile.load(left, mask=(m[:, None] < M) & (k < K - start), other=0)
        y = tile.load(right, mask=(n < N) & (k[:, None] < K - start), other=0)
        acc = tile.dot(x, y, acc)
        left += BK
        right += BK * N
    tile.store(c + m[:, None] * N + n, acc, mask=(m[:, None] < M) & (n < N))


def run_by_pointers(m: int, n: int, k: int) -> None:
    a, b, c = integers(m, k), integers(k, n, seed=1), np.full((m, n), np.nan, np.float32)
    grid = tile.cdiv(m, 64), tile.cdiv(n, 32)
    by_pointers[grid](a, b, c, m, n, k, BM=64, BN=32, BK=32, num_ctas=2)
    np.testing.assert_array_equal(c, multiplied(a, b))


def test_a_product_by_pointers_is_right(hopper: str) -> None:
    run_by_pointers(100, 40, 80)


@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
def test_attention_shares_keys_and_values_out(hopper: str, apart: bool) -> None:
    """Each block has half of the queries; keys and values have rings of their own."""
    heads, length, d = 2, 300, 64
    q, k, v = (
        ordinary(tile.bfloat16, heads * length * d, seed).reshape(heads, length, d)
        for seed in (1, 2, 3)
    )
    out = np.full_like(q, np.nan)
    attention_over_tiles[3](
        q, k, v, out, heads, heads, length, length * d, length * d, math.log2(math.e) / math.sqrt(d),
        CAUSAL=True, APART=apart, BLOCK_Q=256, BLOCK_K=64, D=d,
        num_warps=8, num_stages=2, num_ctas=2,
    )  # fmt: skip
    want = reference(q, k, v, True)
    assert np.linalg.norm(out.astype(np.float64) - want) < 1e-2 * np.linalg.norm(want)


# --- without products ----------------------------------------------------------------------------


@tile.jit
def softmax(x, y, columns, ROWS: tile.constexpr, BLOCK: tile.constexpr):
    """Of some rows a program; of one row if ROWS is 0, which both blocks then read."""
    i = tile.arange(0, BLOCK)
    if ROWS == 0:
        at, axis = tile.program_id(0) * columns + i, 0
        inside = i < columns
    else:
        rows = tile.program_id(0) * ROWS + tile.arange(0, ROWS)
        at, axis = rows[:, None] * columns + i, 1
        inside = (i < columns)[None, :] & (rows[:, None] >= 0)
    value = tile.load(x + at, mask=inside, other=float("-inf"))
    e = tile.exp(value - tile.max(value, axis, keep_dims=ROWS > 0))
    tile.store(y + at, e / tile.sum(e, axis, keep_dims=ROWS > 0), mask=inside)


def run_softmax(rows: int) -> None:
    x = np.random.default_rng(0).standard_normal((4, 100)).astype(np.float32)
    y = np.full_like(x, np.nan)
    softmax[4 // max(rows, 1)](x, y, 100, ROWS=rows, BLOCK=128, num_ctas=2)
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("rows", [0, 2])
def test_rows_are_reduced_by_who_has_them_or_by_both(hopper: str, rows: int) -> None:
    run_softmax(rows)


@tile.jit
def count(x, histogram, totals, n, BLOCK: tile.constexpr):
    i = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
    value = tile.load(x + i, mask=i < n, other=0)
    tile.atomic_add(histogram + value, 1, mask=i < n)
    tile.atomic_add(totals, tile.sum(value))
    tile.store(totals + 1 + tile.program_id(0), tile.num_programs(0))


def run_count() -> None:
    x = np.random.default_rng(0).integers(0, 16, 200).astype(np.int32)
    histogram, totals = np.zeros(16, np.int32), np.zeros(3, np.int32)
    count[2](x, histogram, totals, 200, BLOCK=128, num_ctas=2)
    np.testing.assert_array_equal(histogram, np.bincount(x, minlength=16))
    assert totals.tolist() == [x.sum(), 2, 2]


def test_atomics_and_scalars_are_one_programs(hopper: str) -> None:
    run_count()


@tile.jit
def turn(x, B: tile.constexpr):
    """Write rows, read columns of what was written, write those as rows; then sum what is there."""
    i = tile.arange(0, B)
    rows, columns = x + i[:, None] * B + i[None, :], x + i[None, :] * B + i[:, None]
    tile.store(rows, tile.load(rows) + 1)
    tile.store(rows, tile.load(columns) * 2)
    tile.store(x + B * B, tile.sum(tile.load(rows)))


def run_turn() -> None:
    x = np.arange(32 * 32 + 1, dtype=np.int32)
    want = (x[:-1].reshape(32, 32) + 1).T * 2
    turn[1](x, B=32, num_ctas=2)
    np.testing.assert_array_equal(x[:-1].reshape(32, 32), want)
    assert x[-1] == want.sum()


def test_blocks_follow_the_programs_order_of_global_memory(hopper: str) -> None:
    run_turn()


@pytest.mark.parametrize("where", ELSEWHERE)
@pytest.mark.parametrize("run", [lambda: run_by_pointers(100, 40, 80), run_turn, run_count])
def test_elsewhere_the_option_changes_nothing(where: str, run: Callable[[], None]) -> None:
    with tile.device(where):
        run()


def test_a_tile_that_only_several_blocks_have_room_for_is_refused_elsewhere() -> None:
    types = dict.fromkeys("abc", "*fp32:16") | dict.fromkeys("MNK", "i32:16")
    blocks = {"BM": 256, "BN": 128, "BK": 64}
    tile.compile(by_pointers, types, blocks, "sm_90a", num_stages=2, num_ctas=2)
    with pytest.raises(KernelError, match="expected tiles that fit into shared memory"):
        tile.compile(by_pointers, types, blocks, "sm_86", num_stages=2, num_ctas=2)


# --- without what keeps blocks together ----------------------------------------------------------


def _without_blocks(monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    build = kind.build.__func__

    def without(cls: Any, *operands: Any, **attributes: Any) -> Any:
        return build(cls, *operands, **attributes | {"blocks": None})

    monkeypatch.setattr(kind, "build", classmethod(without))


def _arrive_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    _without_blocks(monkeypatch, tgpu.MbarrierArriveOp)


def _expect_only_home(monkeypatch: pytest.MonkeyPatch) -> None:
    _arrive_at_home(monkeypatch)
    _without_blocks(monkeypatch, tgpu.MbarrierInitOp)


def _meet(monkeypatch: pytest.MonkeyPatch, which: int) -> None:
    """Let blocks meet only the first (0) or the last time (1)."""
    meet, times = box_ring.meet_blocks, [0]

    def sometimes(blocks: int) -> None:
        times[0] += 1
        if (times[0] - 1) % 2 == which:
            meet(blocks)
        elif which == 1:
            tgpu.BarrierOp.build(memory="shared", proxy=True)

    monkeypatch.setattr(box_ring, "meet_blocks", sometimes)
    monkeypatch.setattr(pipelined_loop, "meet_blocks", sometimes)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (_arrive_at_home, "deadlock"),
        (_expect_only_home, "data race: write of shared memory"),
        (lambda patch: _meet(patch, 1), "data race: read of shared memory .* mbarrier.init"),
        (lambda patch: _meet(patch, 0), "the block whose mbarrier this is may have ended"),
    ],
)  # fmt: skip
def test_the_emulator_notices_blocks_that_do_not_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[[pytest.MonkeyPatch], None], message: str
) -> None:
    fault(monkeypatch)
    with tile.device("emulate:sm_90a"), pytest.raises(KernelError, match=message):
        run_tiles(256, 64, 256, kernel=tile.jit(tiles.fn))  # compiled anew
