"""Stores of boxes by TMA: right at edges, in any order with what else the kernel does, none idle."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import tiledsl as tile
from tests.kernels.mutations import Recorded, record

HOPPER = "sm_90a"
STORE = "cp.async.bulk.tensor.2d.global.shared::cta"
both_modes = pytest.mark.parametrize("mode", ["eager", "lazy"])


@tile.jit
def move(x, y, M, N, sx, sy, BM: tile.constexpr, BN: tile.constexpr):
    """Copy boxes, the one read with plain loads, the other written by TMA."""
    m, n = tile.program_id(0) * BM, tile.program_id(1) * BN
    rows, columns = m + tile.arange(0, BM)[:, None], n + tile.arange(0, BN)[None, :]
    value = tile.load(x + rows * sx + columns, mask=(rows < M) & (columns < N))
    tile.make_tensor_descriptor(y, [M, N], [sy, 1], [BM, BN]).store([m, n], value)


def padded(rows: int, columns: int, dtype: Any) -> NDArray[Any]:
    """Make a matrix whose rows are a multiple of 64 elements apart, filled with 7."""
    return np.full((max(rows, 1), max(-(-columns // 64), 1) * 64), 7, dtype)


@both_modes
@pytest.mark.parametrize("dtype", ["float16", "float32", "int32", "int8", "float64", "bfloat16"])
def test_elements_of_any_type_are_written_inside_only(dtype: str, mode: Any) -> None:
    type_ = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    rows, columns = 40, 144
    x, y = padded(rows, columns, type_), padded(rows, columns, type_)
    x[:, :columns] = np.arange(rows * columns).reshape(rows, columns) % 100
    with tile.device(f"emulate:{HOPPER}", mode=mode):
        move[3, 3](x, y, rows, columns, x.shape[1], y.shape[1], BM=16, BN=64)
    np.testing.assert_array_equal(y[:, :columns], x[:rows, :columns])
    assert (y[:, columns:] == 7).all()


def test_rows_that_end_within_16_bytes_are_left_to_threads() -> None:
    """TMA writes whole pieces of 16 bytes: past the tensor, where a row of it ends within one."""
    x, y = padded(16, 150, np.float16), padded(16, 150, np.float16)
    x[:, :150] = np.arange(16 * 150).reshape(16, 150) % 100
    with tile.device(f"emulate:{HOPPER}"):
        move[1, 3](x, y, 16, 150, x.shape[1], y.shape[1], BM=16, BN=64)
    np.testing.assert_array_equal(y[:, :150], x[:, :150])
    assert (y[:, 150:] == 7).all()
    types = {"x": "*fp16:16", "y": "*fp16:16", "sx": "i32:16", "sy": "i32:16"}
    for multiple, count in ((16, 1), (8, 1), (1, 0)):
        sizes = {"M": "i32", "N": f"i32:{multiple}" if multiple > 1 else "i32"}
        ptx = _ptx(move, types | sizes, 4, BM=16, BN=64)
        assert ptx.count(STORE) == count


@pytest.mark.parametrize(
    ("box", "warps"),
    [
        ((8, 16), 1), ((8, 16), 8), ((16, 32), 2), ((64, 64), 1), ((64, 64), 4), ((64, 64), 16),
        ((32, 256), 2), ((32, 256), 8), ((512, 16), 4), ((128, 128), 8), ((16, 512), 16),
    ],
)  # fmt: skip
def test_boxes_of_any_shape_go_out_whatever_the_warps(box: tuple[int, int], warps: int) -> None:
    rows, columns = box[0] + 3, box[1] + 16
    x, y = padded(rows, columns, np.float16), padded(rows, columns, np.float16)
    x[:, :columns] = np.arange(rows * columns).reshape(rows, columns) % 2000
    with tile.device(f"emulate:{HOPPER}", mode="lazy"):
        strides = x.shape[1], y.shape[1]
        move[2, 2](x, y, rows, columns, *strides, BM=box[0], BN=box[1], num_warps=warps)
    np.testing.assert_array_equal(y[:, :columns], x[:, :columns])
    assert (y[:, columns:] == 7).all()


@tile.jit
def persistent(
    a, b, c, M, N, K, sa, sb, sc,
    BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr,
):  # fmt: skip
    """Multiply tile after tile in one program."""
    left = tile.make_tensor_descriptor(a, [M, K], [sa, 1], [BM, BK])
    right = tile.make_tensor_descriptor(b, [K, N], [sb, 1], [BK, BN])
    out = tile.make_tensor_descriptor(c, [M, N], [sc, 1], [BM, BN])
    across = tile.cdiv(N, BN)
    for number in range(tile.program_id(0), tile.cdiv(M, BM) * across, tile.num_programs(0)):
        m, n = number // across * BM, number % across * BN
        acc = tile.zeros((BM, BN), tile.float32)
        for k in range(0, K, BK):
            acc = tile.dot(left.load([m, k]), right.load([k, n]), acc)
        out.store([m, n], acc.to(c.dtype.element_ty))


def multiply(size: tuple[int, int, int], **options: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Run the persistent product on one program; returns what it gave and a @ b."""
    m, n, k = size
    rng = np.random.default_rng(m + n + k)
    a, b = padded(m, k, np.float16), padded(k, n, np.float16)
    a[:m, :k], b[:k, :n] = rng.integers(-4, 5, (m, k)), rng.integers(-4, 5, (k, n))
    c = padded(m, n, np.float16)
    persistent[1,](a, b, c, m, n, k, a.shape[1], b.shape[1], c.shape[1], **options)
    assert (c[:, n:] == 7).all()
    return c[:, :n], a[:, :k].astype(np.float32) @ b[:k, :n].astype(np.float32)


@both_modes
@pytest.mark.parametrize("warps", [4, 8])
def test_tiles_of_a_persistent_program_leave_while_the_next_is_made(warps: int, mode: Any) -> None:
    with tile.device(f"emulate:{HOPPER}", mode=mode):
        blocks = {"BM": 128, "BN": 256, "BK": 32}
        found, want = multiply((200, 304, 64), **blocks, num_warps=warps, num_stages=3)
    np.testing.assert_array_equal(found, want)


@tile.jit
def in_turn(x, y, N, step, COUNT: tile.constexpr, BM: tile.constexpr, BN: tile.constexpr):
    """Store boxes that may overlap, one after the other."""
    out = tile.make_tensor_descriptor(y, [N, BN], [BN, 1], [BM, BN])
    rows, columns = tile.arange(0, BM)[:, None], tile.arange(0, BN)[None, :]
    for i in range(COUNT):
        out.store([i * step, 0], tile.load(x + (i * BM + rows) * BN + columns))


@both_modes
@pytest.mark.parametrize("step", [0, 8, 16, 5])
def test_the_last_of_stores_that_overlap_is_the_one_that_counts(step: int, mode: Any) -> None:
    x = np.arange(4 * 16 * 64, dtype=np.float16).reshape(64, 64)
    y, want = np.full((70, 64), -1, np.float16), np.full((70, 64), -1, np.float16)
    for i in range(4):
        want[i * step : i * step + 16] = x[i * 16 : i * 16 + 16]
    with tile.device(f"emulate:{HOPPER}", mode=mode):
        in_turn[1,](x, y, 70, step, COUNT=4, BM=16, BN=64, num_warps=8)
    np.testing.assert_array_equal(y, want)


@tile.jit
def through_memory(x, y, z, BM: tile.constexpr, BN: tile.constexpr, HOW: tile.constexpr):
    """Pass a tile on through `y`: what is read there is what was stored before."""
    out = tile.make_tensor_descriptor(y, [BM, BN], [BN, 1], [BM, BN])
    places = tile.arange(0, BM)[:, None] * BN + tile.arange(0, BN)[None, :]
    value = tile.load(x + places)
    if HOW == "store first":
        tile.store(y + places, value * 3)
        out.store([0, 0], value)
    elif HOW == "atomics first":
        tile.atomic_add(y + places, value)
        out.store([0, 0], value)
    else:
        out.store([0, 0], value)
    if HOW == "barrier":
        tile.debug_barrier()
    if HOW == "atomics":
        tile.atomic_add(y + places, value)
    tile.store(z + places, tile.trans(tile.load(y + tile.trans(places))))
    out.store([0, 0], value + 1)


@both_modes
@pytest.mark.parametrize("how", ["load", "barrier", "atomics", "store first", "atomics first"])
def test_what_comes_later_sees_a_store_and_what_came_before_does_not(how: str, mode: Any) -> None:
    x = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    y, z = np.full_like(x, -1), np.full_like(x, -1)
    with tile.device(f"emulate:{HOPPER}", mode=mode):
        through_memory[1,](x, y, z, BM=64, BN=64, HOW=how, num_warps=8)
    np.testing.assert_array_equal(z, 2 * x if how == "atomics" else x)
    np.testing.assert_array_equal(y, x + 1)


@tile.jit
def handed_over(x, y, z, flag, BM: tile.constexpr, BN: tile.constexpr):
    """Let the last of the programs read what all of them stored."""
    out = tile.make_tensor_descriptor(y, [4 * BM, BN], [BN, 1], [BM, BN])
    places = tile.arange(0, BM)[:, None] * BN + tile.arange(0, BN)[None, :]
    own = tile.program_id(0) * BM
    out.store([own, 0], tile.load(x + own * BN + places))
    if tile.atomic_add(flag, 1, sem="acq_rel") == 3:
        for i in range(4):
            tile.store(z + i * BM * BN + places, tile.load(y + i * BM * BN + places, volatile=True))


@both_modes
def test_a_release_comes_after_the_stores_before_it(mode: Any) -> None:
    x = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    y, z, flag = np.zeros_like(x), np.zeros_like(x), np.zeros(1, np.int32)
    with tile.device(f"emulate:{HOPPER}", mode=mode):
        handed_over[4,](x, y, z, flag, BM=16, BN=64)
    np.testing.assert_array_equal(z, x)


@tile.jit
def added(x, y, M, N, sx, sy, BM: tile.constexpr, BN: tile.constexpr):
    """Add twice what is at the same place in each of the boxes of x, from all programs."""
    out = tile.make_tensor_descriptor(y, [M, N], [sy, 1], [BM, BN])
    rows, columns = tile.arange(0, BM)[:, None], tile.arange(0, BN)[None, :]
    value = tile.load(x + (tile.program_id(0) * BM + rows) * sx + columns)
    out.atomic_add([0, 0], value)
    out.atomic_add([0, 0], value)


@both_modes
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int32, ml_dtypes.bfloat16, np.int64])
def test_boxes_are_added_inside_only(dtype: Any, mode: Any) -> None:
    rng = np.random.default_rng(5)
    x, y = rng.integers(-4, 5, (64, 64)).astype(dtype), np.full((20, 64), 7, dtype)
    with tile.device(f"emulate:{HOPPER}", mode=mode):
        added[4,](x, y, 13, 48, 64, 64, BM=16, BN=64, num_warps=8)
    want = np.full((20, 64), 7, dtype)
    want[:13, :48] += (2 * x.reshape(4, 16, 64).astype(np.int64).sum(0))[:13, :48].astype(dtype)
    np.testing.assert_array_equal(y, want)


def test_additions_wait_for_none_of_each_other() -> None:
    types = {"x": "*fp32:16", "y": "*fp32:16"} | dict.fromkeys(("M", "N", "sx", "sy"), "i32:16")
    ptx = _ptx(added, types, 4, BM=16, BN=32)
    assert ptx.count("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add") == 2
    assert "wait_group 0" not in ptx


def test_nothing_is_written_to_a_tensor_without_elements() -> None:
    x, y = np.ones((16, 64), np.float32), np.full((16, 64), 7, np.float32)
    with tile.device(f"emulate:{HOPPER}"):
        move[1, 1](x, y, 0, 64, 64, 64, BM=16, BN=64)
        move[1, 1](x, y, 16, 0, 64, 64, BM=16, BN=64)
    assert (y == 7).all()


def _ptx(kernel: Any, types: dict[str, str], warps: int, **constants: Any) -> str:
    made = tile.compile(kernel, types, constants, target=HOPPER, num_warps=warps, num_stages=4)
    return str(made.asm["ptx"])


_PRODUCT = dict.fromkeys("abc", "*bf16:16") | dict.fromkeys(
    ("M", "N", "K", "sa", "sb", "sc"), "i32:16"
)


def test_warpgroups_store_their_own_boxes_through_a_ring_beside_the_pipeline() -> None:
    ptx = _ptx(persistent, _PRODUCT, 8, BM=128, BN=256, BK=64)
    assert ptx.count(STORE) == 4
    assert ptx.count("stmatrix.sync.aligned.m8n8.x4") == 16
    assert "st.global" not in ptx
    assert len(re.findall(r"bar(rier)?\S*\.sync\S*\s+%r\d+, 128", ptx)) >= 4
    assert "cp.async.bulk.wait_group.read 1" in ptx


_SYNCHRONIZES = r"bar(rier)?\.(sync|cta)|fence\.proxy|cp\.async\.bulk\.(wait|commit)"


def _survivors(run: Callable[[], None]) -> list[str]:
    """Take away what orders stores one by one; give what nobody misses."""
    found: list[str] = []

    def texts(text: str) -> Iterator[tuple[str, str]]:
        lines = text.splitlines()
        first = next(i for i, line in enumerate(lines) if re.search("stmatrix|st.shared", line))
        last = max(i for i, line in enumerate(lines) if STORE in line)
        after = next(i for i, line in enumerate(lines) if i > last and "commit_group" in line)
        final = max(i for i, line in enumerate(lines) if "wait_group.read" in line)
        for number in (*range(first, after + 1), final):
            if re.search(_SYNCHRONIZES, lines[number]):
                yield lines[number].strip(), "\n".join([*lines[:number], *lines[number + 1 :]])

    def use(recorded: Recorded) -> None:
        assert recorded.judge(recorded.text) == ""
        found.extend(name for name, text in texts(recorded.text) if not recorded.judge(text))

    record(HOPPER, run, use)
    return found


def test_nothing_that_orders_stores_is_idle_but_waits_for_boxes_stored_twice() -> None:
    blocks = {"BM": 128, "BN": 128, "BK": 16}
    found = _survivors(
        lambda: multiply((200, 144, 16), **blocks, num_warps=8, num_stages=1) and None
    )
    assert all(re.fullmatch(r"@%p\d+ cp\.async\.bulk\.wait_group 1;", one) for one in found)
    assert len(found) == 2


def test_boxes_stored_twice_wait_for_the_first_time() -> None:
    x = np.arange(64 * 64, dtype=np.float16).reshape(64, 64)
    y = np.zeros((16, 64), np.float16)
    found = _survivors(
        lambda: in_turn[1,](x, y, 16, 0, COUNT=2, BM=16, BN=64, num_warps=8) and None
    )
    assert found == []
