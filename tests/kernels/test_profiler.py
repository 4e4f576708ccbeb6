"""The emulator's counts of memory traffic are those of Nsight Compute on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import pytest

from tests.kernels.profiled_kernels import CHIP, KERNELS, emulated, kind_of, patterns
from tests.kernels.profiler import METRICS, find_profiler, profiled
from tiledsl.targets.nvptx.driver import driver

Counts = Mapping[str, Mapping[str, int]]

COMPARED = (
    "global load requests", "global load sectors", "global store requests", "global store sectors",
    "shared load wavefronts", "shared load conflicts", "shared store wavefronts", "shared store conflicts",
)  # fmt: skip
"""What is the same. Instructions are not: the profiler counts those of the chip, not of PTX."""


@cache
def _emulated() -> Counts:
    return emulated()


@cache
def _profiled() -> Counts:
    ncu = find_profiler()
    assert ncu is not None
    return profiled(ncu)


def expected(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the profiler's counts by the emulator's: it counts what copies read among loads.

    The wavefronts of copies to shared memory it counts as they happen to arrive; they are not
    compared.
    """
    found = {name: counts.get(name, 0) for name in COMPARED}
    for name in ("requests", "sectors"):
        found[f"global load {name}"] += counts.get(f"copy {name}", 0)
    return found


def different(name: str, emulator: Counts, profiler: Counts) -> dict[str, tuple[int, int]]:
    """Return the counts of a kernel that differ: the emulator's and the profiler's."""
    wanted, found = expected(emulator[name]), profiler[name]
    return {one: (wanted[one], found[one]) for one in COMPARED if wanted[one] != found[one]}


def _profiled_here() -> Counts:
    found = driver().devices()[0].chip
    if found != CHIP:
        pytest.skip(f"compared on {CHIP}, not {found}")
    return _profiled()


@pytest.mark.gpu
@pytest.mark.skipif(find_profiler() is None, reason="ncu is not on the PATH")
def test_kernels_move_and_conflict_as_the_profiler_counts() -> None:
    """One test, so that processes that share a GPU profile once: the kernels, then every pattern."""
    profiler, emulator = _profiled_here(), _emulated()
    names = [*KERNELS, *(name for name, _ in patterns())]
    told = {name: different(name, emulator, profiler) for name in names}
    assert {name: found for name, found in told.items() if found} == {}


# --- without a profiler --------------------------------------------------------------------------


def test_the_kernels_have_what_is_compared() -> None:
    """Each count is more than nothing in one of them, and some access conflicts."""
    found = _emulated()
    assert set(KERNELS) <= set(found)
    assert {one for one in COMPARED if any(counts.get(one) for counts in found.values())} == set(
        COMPARED
    )
    assert found["matmul"]["copy sectors"] > 0
    assert found["copy_strided"]["global load sectors"] == 5000  # one a lane
    assert set(COMPARED) <= set(METRICS)


def test_a_difference_is_told() -> None:
    emulator = {"k": {"global load sectors": 5, "copy sectors": 2}}
    profiler = {"k": {**dict.fromkeys(COMPARED, 0), "global load sectors": 8}}
    assert different("k", emulator, profiler) == {"global load sectors": (7, 8)}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("@%p1 ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1];", "global load"),
        ("st.volatile.shared.b32 [%r1], %r2;", "shared store"),
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1}, [%r2];", "shared load"),
        ("cp.async.cg.shared.global [%rd1], [%rd2], 16;", "copy"),
        ("ld.param.b64 %rd1, [p];", ""),
    ],
)
def test_instructions_are_sorted(text: str, kind: str) -> None:
    assert kind_of(text) == kind
