"""Pipelines of boxes on Hopper: right for any trips, no meeting of all threads, and nothing idle."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tiledsl as tile
from tests.kernels.both_modes import launch_in_both_modes
from tests.kernels.mutations import Recorded, record
from tests.kernels.ptx_text import loop_of
from tiledsl.targets.nvptx import ptxas

HOPPER = "sm_90a"


@tile.jit
def product(
    a, b, c, M, N, K, sa, sb, sc,
    BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr, WS: tile.constexpr,
):  # fmt: skip
    left = tile.make_tensor_descriptor(a, [M, K], [sa, 1], [BM, BK])
    right = tile.make_tensor_descriptor(b, [K, N], [sb, 1], [BK, BN])
    out = tile.make_tensor_descriptor(c, [M, N], [sc, 1], [BM, BN])
    m, n = tile.program_id(0) * BM, tile.program_id(1) * BN
    acc = tile.zeros((BM, BN), tile.float32)
    for k in tile.range(0, K, BK, warp_specialize=WS):
        acc = tile.dot(left.load([m, k]), right.load([k, n]), acc)
    out.store([m, n], acc)


@tile.jit
def scaled(
    a, b, c, M, N, K, sa, sb, sc,
    BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr, WS: tile.constexpr,
):  # fmt: skip
    """Multiply twice the boxes of `a`, which threads read themselves for that."""
    left = tile.make_tensor_descriptor(a, [M, K], [sa, 1], [BM, BK])
    right = tile.make_tensor_descriptor(b, [K, N], [sb, 1], [BK, BN])
    out = tile.make_tensor_descriptor(c, [M, N], [sc, 1], [BM, BN])
    m, n = tile.program_id(0) * BM, tile.program_id(1) * BN
    acc = tile.zeros((BM, BN), tile.float32)
    for k in tile.range(0, K, BK, warp_specialize=WS):
        acc = tile.dot(left.load([m, k]) * 2, right.load([k, n]), acc)
    out.store([m, n], acc)


@tile.jit
def persistent(
    a, b, c, M, N, K, sa, sb, sc,
    BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr, WS: tile.constexpr,
    TURNED: tile.constexpr,
):  # fmt: skip
    left = tile.make_tensor_descriptor(a, [M, K], [sa, 1], [BM, BK])
    if TURNED:
        right = tile.make_tensor_descriptor(b, [N, K], [sb, 1], [BN, BK])
    else:
        right = tile.make_tensor_descriptor(b, [K, N], [sb, 1], [BK, BN])
    out = tile.make_tensor_descriptor(c, [M, N], [sc, 1], [BM, BN])
    columns = tile.cdiv(N, BN)
    tiles = tile.cdiv(M, BM) * columns
    for number in range(tile.program_id(0), tiles, tile.num_programs(0)):
        m, n = number // columns * BM, number % columns * BN
        acc = tile.zeros((BM, BN), tile.float32)
        for k in tile.range(0, K, BK, warp_specialize=WS):
            y = tile.trans(right.load([n, k])) if TURNED else right.load([k, n])
            acc = tile.dot(left.load([m, k]), y, acc)
        out.store([m, n], acc)


@tile.jit
def uneven(
    a, b, c, M, N, K, sa, sb, sc,
    BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr, WS: tile.constexpr,
):  # fmt: skip
    """Let tile number p multiply k from p % 3 to p % 5 blocks; what it carries says so, too."""
    left = tile.make_tensor_descriptor(a, [M, K], [sa, 1], [BM, BK])
    right = tile.make_tensor_descriptor(b, [K, N], [sb, 1], [BK, BN])
    out = tile.make_tensor_descriptor(c, [M, N], [sc, 1], [BM, BN])
    columns = tile.cdiv(N, BN)
    tiles = tile.cdiv(M, BM) * columns
    last = tile.program_id(0) * BK
    loop = tile.range(tile.program_id(0), tiles, tile.num_programs(0), warp_specialize=WS)
    for number in loop:
        m, n = number // columns * BM, number % columns * BN
        acc = tile.zeros((BM, BN), tile.float32)
        for k in range(number % 3 * BK, last % (5 * BK), BK):
            acc = tile.dot(left.load([m, k]), right.load([k, n]), acc)
        out.store([m, n], acc)
        last += tile.num_programs(0) * BK


@tile.jit
def hidden(
    a, b, c, M, N, K, sa, sb, sc,
    BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr, WS: tile.constexpr,
):  # fmt: skip
    """Find out in the loop where the next box lies: no other warp can know that."""
    left = tile.make_tensor_descriptor(a, [M, K], [sa, 1], [BM, BK])
    right = tile.make_tensor_descriptor(b, [K, N], [sb, 1], [BK, BN])
    out = tile.make_tensor_descriptor(c, [M, N], [sc, 1], [BM, BN])
    acc = tile.zeros((BM, BN), tile.float32)
    k = 0
    for _ in tile.range(0, K, BK, warp_specialize=WS):
        x = left.load([0, k])
        acc = tile.dot(x, right.load([k, 0]), acc)
        k += tile.where(tile.max(tile.abs(x.to(tile.float32))) < 100, BK, 0)
    out.store([0, 0], acc)


def matrix(rng: np.random.Generator, rows: int, columns: int) -> NDArray[np.float16]:
    """Make small integers, rows a multiple of 16 elements apart, with others behind them."""
    whole = np.full((max(rows, 1), max(-(-columns // 16), 1) * 16), 9, np.float16)
    whole[:, :columns] = rng.integers(-4, 5, (max(rows, 1), columns))
    return whole


def launch(
    kernel: Any, size: tuple[int, int, int], block: tuple[int, int, int], **options: Any
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Run a product on the device in use; returns what it gave and what it should."""
    (m, n, k), (bm, bn, bk) = size, block
    options.setdefault("WS", False)
    rng = np.random.default_rng(m + n + k)
    turned = options.get("TURNED", False)
    a = matrix(rng, m, k)
    b = matrix(rng, n, k) if turned else matrix(rng, k, n)
    c = np.full((m, n), np.nan, np.float32)
    strides = (one.shape[1] for one in (a, b, c))
    grid = options.pop("grid", (tile.cdiv(m, bm), tile.cdiv(n, bn)))
    kernel[grid](a, b, c, m, n, k, *strides, BM=bm, BN=bn, BK=bk, **options)
    right = b[:n, :k].T if turned else b[:k, :n]
    return c, _want(kernel, a[:m, :k].astype(np.float32), right.astype(np.float32), block)


def _want(
    kernel: Any, a: NDArray[Any], b: NDArray[Any], block: tuple[int, int, int]
) -> NDArray[Any]:
    if kernel is not uneven:
        return a @ b * (2 if kernel is scaled else 1)
    bm, bn, bk = block
    c = np.zeros((len(a), b.shape[1]), np.float32)
    columns = -(-b.shape[1] // bn)
    for number in range(-(-len(a) // bm) * columns):
        rows = slice(number // columns * bm, (number // columns + 1) * bm)
        some = slice(number % columns * bn, (number % columns + 1) * bn)
        ks = slice(number % 3 * bk, max(number % 3, number % 5) * bk)
        c[rows, some] = a[rows, ks] @ b[ks, some]
    return c


@pytest.fixture(autouse=True)
def _without_ptxas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Emulators run PTX: what ptxas makes of it takes time and is not asked for."""
    monkeypatch.setattr(ptxas, "find_ptxas", lambda: None)


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run launches on an emulated Hopper chip, eagerly and lazily."""
    launch_in_both_modes(monkeypatch)
    with tile.device(f"emulate:{HOPPER}"):
        yield


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("specialized", [False, True])
@pytest.mark.parametrize(("kernel", "stages"), [(product, 2), (product, 4), (scaled, 3)])
def test_any_number_of_trips_is_right(kernel: Any, stages: int, specialized: bool) -> None:
    options = {"WS": specialized, "num_stages": stages}
    for k in (0, 16, 80, 128, 330):
        found, want = launch(kernel, (100, 72, k), (64, 64, 64), **options)
        np.testing.assert_array_equal(found, want)


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("specialized", [False, True])
@pytest.mark.parametrize(("turned", "stages"), [(False, 2), (True, 4)])
def test_a_pipeline_over_tiles_is_right(turned: bool, stages: int, specialized: bool) -> None:
    for programs, k in ((2, 0), (2, 64), (1, 130), (7, 200)):
        options: dict[str, Any] = {"TURNED": turned, "WS": specialized, "num_stages": stages}
        options["grid"] = (programs,)
        found, want = launch(persistent, (200, 100, k), (64, 64, 64), **options)
        np.testing.assert_array_equal(found, want)


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("specialized", [False, True])
@pytest.mark.parametrize("stages", [2, 4])
def test_tiles_may_have_any_trips_each(stages: int, specialized: bool) -> None:
    for programs in (1, 3):
        options = {"grid": (programs,), "WS": specialized, "num_stages": stages}
        found, want = launch(uneven, (200, 200, 256), (64, 64, 64), **options)
        np.testing.assert_array_equal(found, want)


def _ptx(kernel: Any, **constants: Any) -> str:
    return str(_compiled(kernel, **constants).asm["ptx"])


def _compiled(kernel: Any, **constants: Any) -> Any:
    constants.setdefault("WS", False)
    types = dict.fromkeys("ab", "*fp16:16") | {"c": "*fp32:16"}
    sizes = dict.fromkeys(("M", "N", "K", "sa", "sb", "sc"), "i32:16")
    options = {"num_warps": constants.pop("num_warps", 4), "num_stages": 3}
    return tile.compile(kernel, types | sizes, constants, target=HOPPER, **options)


def test_warps_arrive_at_a_slot_s_barrier_and_only_the_issuer_waits_there() -> None:
    loop = loop_of(_ptx(product, BM=64, BN=64, BK=64))
    assert "bar.sync" not in loop
    assert len(re.findall(r"@%p\d+ mbarrier\.arrive\.shared", loop)) == 1
    assert loop.count("mbarrier.try_wait.parity") == 2
    branch = r"mbarrier\.arrive\.shared.*?@%p\d+ bra.*?mbarrier\.try_wait"
    assert re.search(branch, loop, re.DOTALL)
    assert "fence.proxy" not in loop


def test_what_a_warpgroup_executes_as_one_is_not_to_be_copied_for_some_warps() -> None:
    text = str(_compiled(product, BM=64, BN=64, BK=64).asm["llvm"])
    calls = [line for line in text.splitlines() if "wgmma." in line]
    assert len(calls) == 5  # fence, products, commit, two waits
    assert all(re.search(r"\) convergent\b", line) for line in calls)


def test_threads_that_read_a_slot_themselves_fence_before_their_warp_arrives() -> None:
    loop = loop_of(_ptx(scaled, BM=64, BN=64, BK=64))
    arrive = loop.index("mbarrier.arrive.shared")
    assert "bar.sync" not in loop
    assert loop.rindex("fence.proxy.async", 0, arrive) < loop.rindex("bar.warp.sync", 0, arrive)


def test_the_boxes_of_the_next_tile_come_during_the_epilogue_of_this_one() -> None:
    ptx = _ptx(persistent, BM=64, BN=64, BK=64, TURNED=False)
    after = ptx[ptx.index("wgmma.mma_async") :]
    assert after.count("mbarrier.init") == 0  # counted on, never made anew
    made = _compiled(persistent, BM=64, BN=64, BK=64, TURNED=False)
    assert "2 boxes a trip, 2 trips ahead over the ends" in dict(made.stages)["pipeline_loops"]


def test_a_warp_of_its_own_copies_boxes_where_that_pays_or_is_asked_for() -> None:
    for warps, width, asked, producers in (
        (4, 64, None, 1), (8, 128, None, 1), (8, 256, None, 0), (8, 256, True, 1), (4, 64, False, 0),
    ):  # fmt: skip
        made = _compiled(product, BM=128, BN=width, BK=64, WS=asked, num_warps=warps)
        ptx = str(made.asm["ptx"])
        assert f".reqntid {32 * (warps + producers)}" in ptx
        assert ("by a warp of its own" in dict(made.stages)["pipeline_loops"]) is bool(producers)


def test_warps_that_hold_tiles_meet_without_the_one_that_copies() -> None:
    ptx = _ptx(persistent, BM=64, BN=64, BK=64, TURNED=False, WS=True)
    meetings = re.findall(r"bar\.sync\s+(.*);", ptx)
    assert meetings[0] == "0"  # the barriers are made
    assert set(meetings[1:]) == {"9, 128"}


def test_a_hint_that_cannot_be_followed_is_none() -> None:
    for target in ("sm_80", "gfx942", "host"):
        types = {"a": "*fp16:16", "b": "*fp16:16", "c": "*fp32:16"}
        sizes = dict.fromkeys(("M", "N", "K", "sa", "sb", "sc"), "i32:16")
        constants = {"BM": 64, "BN": 64, "BK": 64, "WS": True}
        tile.compile(product, types | sizes, constants, target=target)
    with tile.device(f"emulate:{HOPPER}"):
        found, want = launch(hidden, (64, 64, 256), (64, 64, 64), WS=True)
    np.testing.assert_array_equal(found, want)


_SYNCHRONIZES = r"mbarrier\.(arrive|init)|wgmma\.(wait|commit)|cp\.async\.bulk(?!\.wait_group )"
"""What is missed if it goes. Not the fences, nor the last barrier before mbarriers are given up, nor
the waits for a tile's last copy to its place: no tile is stored twice here."""


def _without(text: str) -> Iterator[tuple[str, str]]:
    """Give the text without one of what synchronizes, and what that is."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        name = line.strip()
        if "bulk.commit_group" in name and "bulk.commit_group" in "".join(lines[number + 1 :]):
            continue  # the next one closes a group of both
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


@pytest.mark.parametrize("specialized", [False, True])
@pytest.mark.parametrize("kernel", [scaled, persistent])
def test_nothing_that_synchronizes_is_idle(kernel: Any, specialized: bool) -> None:
    options: dict[str, Any] = {"WS": specialized}
    options |= {"grid": (1,), "TURNED": False} if kernel is persistent else {}
    size = (128, 64, 200) if kernel is persistent else (64, 64, 400)
    survivors = _survivors(lambda: launch(kernel, size, (64, 64, 64), **options) and None)
    assert survivors == []
