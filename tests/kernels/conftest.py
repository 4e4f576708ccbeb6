"""Where the kernels of this suite run, and how many warps they have.

The suite is one: every test names the fixture `place` or `warps` and runs once for each parameter:
on the host, on an emulated chip of each family (each launch in both modes, see `both_modes`), with
--nightly on every chip that can be emulated and with other numbers of warps, and, marked `gpu`, on a
CUDA device. The arrays are NumPy's everywhere; a launch copies them to the device and back. NumPy is
the oracle, see `oracle`. With --compare-emulator what runs on the CUDA device runs on an emulated
one too, see `device_comparison`.

Kernels' parameters have no types, because what they are (a pointer, a tile, a constant) is decided
by each launch; pyproject.toml tells pyright so for this folder.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import settings

import tiledsl as tile
from tests.conftest import COMPARED
from tests.kernels.both_modes import launch_in_both_modes
from tests.kernels.device_comparison import Comparison
from tiledsl import launch
from tiledsl.targets.nvptx import ptxas

_GPU = pytest.mark.gpu
_NIGHTLY = pytest.mark.nightly
_EMULATED = ("sm_80", "gfx942", "gfx1201")
"""One chip of each family: mma.sync, mfma, wmma."""
_OTHERS = (
    "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120",
    "gfx90a", "gfx950", "gfx1100", "gfx1151", "gfx1200",
)  # fmt: skip
_EXAMPLES = 4
"""Hypothesis examples a test on an emulated chip; the host, which is quicker, has them all."""

_MANY = 9
"""Cases of one test on one chip above which they take turns on the chips."""
_GRIDS = "test_grids_are_as_long_as_the_machine_allows["
_TOO_LONG = {
    f"{_GRIDS}emulate:": _NIGHTLY,
    "-8400000]": pytest.mark.skip("millions of programs take an emulator hours"),
}

_EMULATE = os.environ.get("TILEDSL_TEST_EMULATE") == "1"


def _emulated_places() -> list[Any]:
    if not _EMULATE:
        return []
    return [
        *(f"emulate:{chip}" for chip in _EMULATED),
        *(pytest.param(f"emulate:{chip}", marks=_NIGHTLY) for chip in _OTHERS),
    ]


def _emulated_warps() -> list[Any]:
    if not _EMULATE:
        return []
    return [
        pytest.param((place, n), id=f"{place}-{n}", marks=() if n == 4 else _NIGHTLY)
        for place in (f"emulate:{chip}" for chip in _EMULATED)
        for n in (1, 2, 4, 8)
    ]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let each case of a test with many cases run on one emulated chip, all of them nightly.

    Which chip goes round, so that such a test runs on every chip. What takes an emulator minutes
    runs nightly, and what takes it hours not at all.
    """
    functions: dict[str, dict[str, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        chip = _emulated_chip(item)
        if chip in _EMULATED:
            functions[item.nodeid.partition("[")[0]][chip].append(item)
    for chips in functions.values():
        for number, chip in enumerate(_EMULATED):
            cases = chips.get(chip, [])
            for position, item in enumerate(cases):
                if len(cases) > _MANY and position % len(_EMULATED) != number:
                    item.add_marker(_NIGHTLY)
    for item in items:
        if _emulated_chip(item) is None:
            continue
        for part, mark in _TOO_LONG.items():
            if part in item.nodeid:
                item.add_marker(mark)


def _emulated_chip(item: pytest.Item) -> str | None:
    found = re.search(r"\[(?:.*-)?emulate:(\w+)", item.nodeid)
    return found[1] if found else None


@pytest.fixture(autouse=True)
def no_disk_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile every kernel anew: an old result must not stand in for the compiler's."""
    monkeypatch.setenv("TILEDSL_CACHE", "0")


@pytest.fixture(scope="session")
def comparison(request: pytest.FixtureRequest) -> Generator[Comparison | None]:
    """What compares launches on the CUDA device with the emulator's, where that is asked for."""
    if not request.config.getoption("--compare-emulator"):
        yield None
        return
    compared = Comparison(launch.driver_of("cuda"), launch.chip_of("cuda"))
    with compared.watching():
        yield compared
    request.config.stash[COMPARED].update(compared.counts)


@pytest.fixture(params=["host", *_emulated_places(), pytest.param("cuda", marks=_GPU)])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Generator[str]:
    """The device that the test's launches run on."""
    _prepare(request, monkeypatch, request.param)
    with tile.device(request.param):
        yield request.param


@pytest.fixture(
    params=[
        pytest.param(("host", 4), id="host"),
        *_emulated_warps(),
        *(pytest.param(("cuda", n), id=f"cuda-{n}", marks=_GPU) for n in (1, 2, 4, 8)),
    ]
)
def warps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Generator[int]:
    """The `num_warps` to launch with, on its device; the host ignores it, so there one will do."""
    where, count = request.param
    _prepare(request, monkeypatch, where)
    with tile.device(where):
        yield count


def _prepare(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    if where.startswith("emulate"):
        launch_in_both_modes(monkeypatch)
        monkeypatch.setattr(ptxas, "find_ptxas", lambda: None)  # the emulator reads PTX
    elif where == "cuda" and request.config.getoption("--compare-emulator"):
        compared: Comparison = request.getfixturevalue("comparison")
        compared.name = request.node.nodeid.partition("::")[2]
        monkeypatch.setenv("TILEDSL_EMULATE_PROCESSES", "1")  # no child can use the device
    else:
        return
    property_: Any = getattr(request.function, "hypothesis", None)
    if property_ is not None:
        name = "_hypothesis_internal_use_settings"
        full: settings = getattr(request.function, name)
        few = settings(full, max_examples=min(full.max_examples, _EXAMPLES))
        monkeypatch.setattr(request.function, name, few)
