"""Faults that users of other kernel languages met: launches, caches, arguments, messages."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn, Optional

import numpy as np
import pytest

import tiledsl as tile
from tests.kernels.oracle import check, is_poison, poisoned


@pytest.mark.parametrize("programs", [65535, 65536, 72000, 8_400_000])
def test_grids_are_as_long_as_the_machine_allows(place: str, programs: int) -> None:  # K073
    @tile.jit
    def kernel(counter, out, BLOCK: tile.constexpr):
        pid = tile.program_id(0)
        tile.atomic_add(counter, 1, sem="relaxed")
        if pid == tile.num_programs(0) - 1:
            tile.store(out, pid.to(tile.int64) * BLOCK)

    counter, out = np.zeros(1, np.int32), poisoned(1, tile.int64)
    kernel[programs,](counter, out, BLOCK=256)
    assert counter[0] == programs
    check(out, np.array([(programs - 1) * 256]), "last")


def test_a_grid_over_the_limit_names_axis_value_and_limit(
    place: str, emulated: bool
) -> None:  # K074
    @tile.jit
    def kernel(counter):
        tile.atomic_add(counter, 1)

    counter = np.zeros(1, np.int32)
    within = (1, 3) if emulated else (1, 65535)  # where that many take seconds
    for grid in (within, (1, 65536), (1, 1, 65536)):
        counter[0] = 0
        try:
            kernel[grid](counter)
        except tile.KernelError as error:
            axis = len(grid) - 1
            for word in (f"axis {axis}", "65536", "65535"):
                assert word in str(error)  # noqa: PT017
        else:
            assert counter[0] == grid[-1]
    counter[0] = 0
    kernel[3,](counter)
    assert counter[0] == 3


def test_only_the_marker_makes_a_constant(place: str) -> None:  # K101
    # This module has `from __future__ import annotations`: every annotation here is a string.
    def body(x, out, n, BLOCK):
        i = tile.arange(0, BLOCK)
        tile.store(out + i, tile.load(x + i, mask=i < n) * n, mask=i < n)

    @tile.jit
    def plain(x, out, n, BLOCK: tile.constexpr):
        body(x, out, n, BLOCK)

    @tile.jit
    def typed(x: np.ndarray, out: np.ndarray, n: int, BLOCK: tile.constexpr) -> None:
        body(x, out, n, BLOCK)

    @tile.jit
    def quoted(x: "np.ndarray", out: "torch.Tensor", n: "int", BLOCK: "tile.constexpr") -> NoReturn:  # noqa: F821, UP037  # pyright: ignore
        body(x, out, n, BLOCK)

    @tile.jit
    def optional(x: Optional[np.ndarray], out, n: Optional[int], BLOCK: "constexpr") -> None:  # noqa: F821, UP037, UP045  # pyright: ignore
        body(x, out, n, BLOCK)

    x = np.arange(7, dtype=np.int32)
    for kernel in (plain, typed, quoted, optional):
        out = poisoned(7, tile.int32)
        kernel[1,](x, out, 7, BLOCK=8)
        check(out, x * 7, repr(kernel))


# --- caches --------------------------------------------------------------------------------------

HELPERS = """
import tiledsl as tile

@tile.jit
def deep(x, y):
    return x {op} y

def add(x, y):
    return deep(x, y)

TABLE = {{"add": add}}
"""
MAIN = """
import numpy as np
import tiledsl as tile
import helpers
from helpers import add

@tile.jit
def direct(x, y, out):
    tile.store(out, add(tile.load(x), tile.load(y)))

@tile.jit
def through_module(x, y, out):
    tile.store(out, helpers.deep(tile.load(x), tile.load(y)))

@tile.jit
def given(x, y, out, HELPER: tile.constexpr):
    tile.store(out, HELPER(tile.load(x), tile.load(y)))

@tile.jit
def by_name(x, y, out, NAME: tile.constexpr):
    tile.store(out, helpers.TABLE[NAME](tile.load(x), tile.load(y)))

two, three, out = np.array([2]), np.array([3]), np.zeros(1, np.int64)
for kernel, extra in ((direct, {}), (through_module, {}), (given, {"HELPER": add}), (by_name, {"NAME": "add"})):
    kernel[1,](two, three, out, **extra)
    print(out[0], end=" ")
"""


def run_script(folder: Path, name: str, *arguments: str) -> str:
    environment = {**os.environ, "TILEDSL_CACHE_DIR": str(folder / "cache"), "TILEDSL_CACHE": "1"}
    environment.pop("TILEDSL_DEVICE", None)
    done = subprocess.run(
        [sys.executable, name, *arguments], cwd=folder, env=environment, capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_changed_helper_is_seen_by_a_new_process(tmp_path: Path) -> None:  # K097
    (tmp_path / "main.py").write_text(MAIN)
    (tmp_path / "helpers.py").write_text(HELPERS.format(op="*"))
    assert run_script(tmp_path, "main.py").split() == ["6"] * 4
    (tmp_path / "helpers.py").write_text(HELPERS.format(op="+"))
    later = time.time() + 10
    os.utime(tmp_path / "helpers.py", (later, later))
    assert run_script(tmp_path, "main.py").split() == ["5"] * 4


SCOPES = """
import sys
import numpy as np
import tiledsl as tile

K = 1

def make(k):
    K = k
    @tile.jit
    def kernel(out):
        tile.store(out, K)
    return kernel

out = np.zeros(1, np.int64)
for k in map(int, sys.argv[1:]):
    make(k)[1,](out)
    print(out[0], end=" ")
"""


def test_captured_values_are_told_apart_on_disk_too(tmp_path: Path) -> None:  # K098
    (tmp_path / "scopes.py").write_text(SCOPES)
    assert run_script(tmp_path, "scopes.py", "2", "3").split() == ["2", "3"]
    assert run_script(tmp_path, "scopes.py", "3", "2", "4").split() == ["3", "2", "4"]


RACE = """
import sys
import threading
import numpy as np
import tiledsl as tile

def make(k):
    @tile.jit
    def kernel(x, out, N: tile.constexpr):
        i = tile.arange(0, N)
        tile.store(out + i, tile.load(x + i) * k)
    return kernel

x = np.arange(64)
kernels = [make(k) for k in range(4)]

def work():
    for k, kernel in enumerate(kernels):
        out = np.zeros(64, np.int64)
        kernel[1,](x, out, N=64)
        assert (out == x * k).all()

threads = [threading.Thread(target=work) for _ in range(4)]
failures = []
threading.excepthook = lambda args: failures.append(args)
[t.start() for t in threads]
[t.join() for t in threads]
sys.exit(f"{failures[0]}" if failures else 0)
"""


def start(folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "TILEDSL_CACHE_DIR": str(folder / "cache"), "TILEDSL_CACHE": "1"}
    environment.pop("TILEDSL_DEVICE", None)
    return subprocess.Popen(
        [sys.executable, "race.py"], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True
    )


def test_processes_and_threads_share_one_empty_cache(tmp_path: Path) -> None:  # K100
    (tmp_path / "race.py").write_text(RACE)
    processes = [start(tmp_path) for _ in range(3)]
    victim = start(tmp_path)
    time.sleep(1)
    victim.send_signal(signal.SIGKILL)
    victim.communicate(timeout=60)
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    entries = [
        f for f in (tmp_path / "cache").rglob("*") if f.is_file() and not f.name.startswith(".")
    ]
    assert len(entries) >= 4
    for entry in entries[:2]:
        entry.write_bytes(entry.read_bytes()[: entry.stat().st_size // 2])  # torn
    again = start(tmp_path)
    _, errors = again.communicate(timeout=120)
    assert again.returncode == 0, errors


# --- messages ------------------------------------------------------------------------------------


@tile.jit
def scale(x, out, n, BLOCK: tile.constexpr):
    i = tile.arange(0, BLOCK)
    tile.store(out + i, tile.load(x + i, mask=i < n) * 2, mask=i < n)


@pytest.mark.parametrize(
    "wrong",
    [[1, 2], np.zeros(4, np.complex64), {"a": 1}, object(), 2**64],
    ids=lambda v: type(v).__name__,
)
def test_an_argument_of_a_wrong_kind_is_named(place: str, wrong: object) -> None:  # K109
    out = poisoned(4, tile.float32)
    with pytest.raises(tile.KernelError, match="`x`"):
        scale[1,](wrong, out, 4, BLOCK=4)
    assert is_poison(out)


@pytest.mark.parametrize("warps", [1, 2, 4, 8, 16, 32])
def test_every_number_of_warps_works(place: str, warps: int) -> None:  # K112
    @tile.jit
    def kernel(a, b, out, x, total, N: tile.constexpr):
        i, j = tile.arange(0, 16), tile.arange(0, N)
        at = i[:, None] * 16 + i[None, :]
        tile.store(out + at, tile.dot(tile.load(a + at), tile.load(b + at)))
        tile.store(total, tile.sum(tile.load(x + j), 0))

    if place == "host" and warps != 4:
        pytest.skip("the host has no warps")
    a, b = np.random.default_rng(3).integers(-4, 5, (2, 16, 16)).astype(np.float16)
    x = np.arange(1024, dtype=np.int32)
    out, total = poisoned(256, tile.float32), poisoned(1, tile.int32)
    if place.startswith("emulate:gfx9") and warps == 32:
        with pytest.raises(
            tile.KernelError, match=r"expected at most 16 on gfx9.*, whose waves have"
        ):
            kernel[1,](a, b, out, x, total, N=1024, num_warps=warps)
        return
    kernel[1,](a, b, out, x, total, N=1024, num_warps=warps)
    check(out, a.astype(np.float32) @ b.astype(np.float32), "dot")
    check(total, np.array([x.sum()], np.int32), "sum")


@pytest.mark.parametrize("warps", [0, 3, 64, -1, "4"])
def test_an_impossible_number_of_warps_is_refused(place: str, warps: object) -> None:  # K112
    out = poisoned(4, tile.float32)
    with pytest.raises(tile.KernelError, match=r"num_warps: expected a power of two from 1 to 32"):
        scale[1,](np.zeros(4, np.float32), out, 4, BLOCK=4, num_warps=warps)
    assert is_poison(out)


@pytest.mark.parametrize("chip", ["sm_80", "sm_120", "gfx942", "gfx1100"])
def test_a_tile_that_cannot_fit_says_bytes_wanted_and_available(chip: str) -> None:  # K110
    signature: dict[str, str] = dict.fromkeys(("a", "b", "c"), "*fp32:16")

    @tile.jit
    def product(a, b, c, N: tile.constexpr, K: tile.constexpr):
        i, k = tile.arange(0, N), tile.arange(0, K)
        x = tile.load(a + i[:, None] * K + k[None, :])
        y = tile.load(b + k[:, None] * N + i[None, :])
        tile.store(c + i[:, None] * N + i[None, :], tile.dot(x, y))

    sizes = {"N": 64, "K": 32}
    assert tile.compile(product, signature, sizes, target=chip).resources.shared_bytes > 0
    with pytest.raises(tile.KernelError, match=r"\d+ .*bytes.*\d+"):
        tile.compile(product, signature, {"N": 64, "K": 2048}, target=chip, num_warps=16)


def other_without_mask(x, n):
    tile.load(x, other=1.0)


def nested_loop_variable(x, n):
    if n > 3:
        y = 1
    tile.store(x, y)  # pyright: ignore[reportPossiblyUnboundVariable]


def three_to_eight(x, n):
    tile.arange(0, 5)


def run_time_arange(x, n):
    tile.arange(0, n)


def undefined(x, n):
    tile.store(x, no_such_name)  # noqa: F821  # pyright: ignore


def wrong_hint(x, n):
    tile.multiple_of(n, -7)


def uneven_contiguity(x, n):
    tile.max_contiguous(x + tile.arange(0, 4), 3)


def do_not_broadcast(x, n):
    tile.store(x, tile.arange(0, 8) + tile.arange(0, 4))


def changes_type(x, n):
    y = 1
    for _ in range(n):
        y = y + 1.5
    tile.store(x, y)


def more_values_than_pointers(x, n):
    tile.store(x, tile.arange(0, 4))


MISTAKES = [
    (other_without_mask, "`mask`"), (nested_loop_variable, "`y`"), (three_to_eight, "powers of two"),
    (run_time_arange, "known at compile time"), (undefined, "no_such_name"), (wrong_hint, "-7"),
    (uneven_contiguity, "found 3"), (do_not_broadcast, r"\(8,\) and \(4,\)"), (changes_type, "`y`"),
    (more_values_than_pointers, "pointer"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "words"), MISTAKES, ids=lambda v: getattr(v, "__name__", ""))
def test_a_mistake_is_shown_in_the_authors_line(place: str, body, words: str) -> None:  # K113
    kernel = tile.jit(body)
    with pytest.raises(tile.KernelError) as raised:
        kernel[1,](np.zeros(4, np.float32), 7)
    text = str(raised.value)
    assert re.search(words, text), text
    assert re.search(r"test_cases_runtime\.py:\d+:\d+", text), text
    assert "^" in text


def test_a_pointer_cast_stores_as_told_and_helpers_may_be_nested(place: str) -> None:  # K113
    @tile.jit
    def kernel(x):
        def inner(v):
            return v + 1

        tile.store(x.to(tile.pointer_type(tile.float32)), inner(1.5))

    x = np.zeros(1, np.int32)
    kernel[1,](x)
    assert x.view(np.float32)[0] == 2.5
