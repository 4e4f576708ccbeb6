"""Pipelines of boxes on Hopper: right for any trips, no meeting of all threads, and nothing idle."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tiledsl as tile
from tests.kernels.mutations import Recorded, record

HOPPER = "sm_90a"
MODES = ("eager", "lazy")


@tile.jit
def product(
    a, b, c, M, N, K, sa, sb, sc,
    BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr,
):  # fmt: skip
    left = tile.make_tensor_descriptor(a, [M, K], [sa, 1], [BM, BK])
    right = tile.make_tensor_descriptor(b, [K, N], [sb, 1], [BK, BN])
    out = tile.make_tensor_descriptor(c, [M, N], [sc, 1], [BM, BN])
    m, n = tile.program_id(0) * BM, tile.program_id(1) * BN
    acc = tile.zeros((BM, BN), tile.float32)
    for k in range(0, K, BK):
        acc = tile.dot(left.load([m, k]), right.load([k, n]), acc)
    out.store([m, n], acc)


@tile.jit
def scaled(
    a, b, c, M, N, K, sa, sb, sc,
    BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr,
):  # fmt: skip
    """Multiply twice the boxes of `a`, which threads read themselves for that."""
    left = tile.make_tensor_descriptor(a, [M, K], [sa, 1], [BM, BK])
    right = tile.make_tensor_descriptor(b, [K, N], [sb, 1], [BK, BN])
    out = tile.make_tensor_descriptor(c, [M, N], [sc, 1], [BM, BN])
    m, n = tile.program_id(0) * BM, tile.program_id(1) * BN
    acc = tile.zeros((BM, BN), tile.float32)
    for k in range(0, K, BK):
        acc = tile.dot(left.load([m, k]) * 2, right.load([k, n]), acc)
    out.store([m, n], acc)


def matrix(rng: np.random.Generator, rows: int, columns: int) -> NDArray[np.float16]:
    """Make small integers, rows a multiple of 16 elements apart, with others behind them."""
    whole = np.full((max(rows, 1), max(-(-columns // 16), 1) * 16), 9, np.float16)
    whole[:, :columns] = rng.integers(-4, 5, (max(rows, 1), columns))
    return whole


def launch(
    kernel: Any, size: tuple[int, int, int], block: tuple[int, int, int], **options: Any
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Run a product on the device in use; returns what it gave and a @ b."""
    (m, n, k), (bm, bn, bk) = size, block
    rng = np.random.default_rng(m + n + k)
    a, b = matrix(rng, m, k), matrix(rng, k, n)
    c = np.full((m, n), np.nan, np.float32)
    strides = (one.shape[1] for one in (a, b, c))
    grid = options.pop("grid", (tile.cdiv(m, bm), tile.cdiv(n, bn)))
    kernel[grid](a, b, c, m, n, k, *strides, BM=bm, BN=bn, BK=bk, **options)
    return c, a[:, :k].astype(np.float32) @ b[:k, :n].astype(np.float32)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize(("kernel", "factor"), [(product, 1), (scaled, 2)])
def test_any_number_of_trips_is_right(kernel: Any, factor: int, stages: int, mode: Any) -> None:
    with tile.device(f"emulate:{HOPPER}", mode=mode):
        for k in (0, 16, 64, 80, 128, 200, 330):
            found, want = launch(kernel, (100, 72, k), (64, 64, 64), num_stages=stages)
            np.testing.assert_array_equal(found, factor * want)


def _ptx(kernel: Any, **constants: Any) -> str:
    types = dict.fromkeys("ab", "*fp16:16") | {"c": "*fp32:16"}
    sizes = dict.fromkeys(("M", "N", "K", "sa", "sb", "sc"), "i32:16")
    made = tile.compile(kernel, types | sizes, constants, target=HOPPER, num_warps=4, num_stages=3)
    return str(made.asm["ptx"])


def _loop(ptx: str) -> str:
    """Return the text of the loop around the products."""
    label = re.findall(r"^(\$\w+):", ptx[: ptx.index("wgmma.mma_async")], re.MULTILINE)[-1]
    start = ptx.index(f"{label}:")
    return ptx[start : ptx.index(f"{label};", start)]


def test_warps_arrive_at_a_slot_s_barrier_and_only_the_issuer_waits_there() -> None:
    loop = _loop(_ptx(product, BM=64, BN=64, BK=64))
    assert "bar.sync" not in loop
    assert len(re.findall(r"@%p\d+ mbarrier\.arrive\.shared", loop)) == 1
    assert loop.count("mbarrier.try_wait.parity") == 2
    assert len(re.findall(r"@!%p\d+ bra\.uni over", loop)) == 1
    assert "fence.proxy" not in loop


def test_threads_that_read_a_slot_themselves_fence_before_their_warp_arrives() -> None:
    loop = _loop(_ptx(scaled, BM=64, BN=64, BK=64))
    arrive = loop.index("mbarrier.arrive.shared")
    assert "bar.sync" not in loop
    assert loop.rindex("fence.proxy.async", 0, arrive) < loop.rindex("bar.warp.sync", 0, arrive)


_SYNCHRONIZES = r"mbarrier\.(arrive|init)|wgmma\.(wait|commit)|cp\.async\.bulk"
"""What is missed if it goes. Not the fences, nor the last barrier before mbarriers are given up."""


def _without(text: str) -> Iterator[tuple[str, str]]:
    """Give the text without one of what synchronizes, and what that is."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        name = line.strip()
        if re.match(rf"(@!?%p\d+\s+)?({_SYNCHRONIZES})", name):
            yield name, "\n".join([*lines[:number], *lines[number + 1 :]]) + "\n"
        if "mbarrier.try_wait" in name and "bra.uni" in lines[number + 1]:
            yield name, "\n".join([*lines[:number], *lines[number + 2 :]]) + "\n"


def _survivors(run: Callable[[], None]) -> list[str]:
    """Take away what synchronizes one by one; give what nobody misses."""
    found: list[str] = []

    def use(recorded: Recorded) -> None:
        assert recorded.judge(recorded.text) == ""
        found.extend(name for name, text in _without(recorded.text) if not recorded.judge(text))

    record(HOPPER, run, use)
    return found


@pytest.mark.parametrize("kernel", [product, scaled])
def test_nothing_that_synchronizes_is_idle(kernel: Any) -> None:
    survivors = _survivors(lambda: launch(kernel, (64, 64, 400), (64, 64, 64)) and None)
    assert survivors == []
