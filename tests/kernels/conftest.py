"""Where the kernels of this suite run, and how many warps they have.

The suite is one: every test names the fixture `place` or `warps` and runs once for each parameter:
on the host, on emulated chips, and, marked `gpu`, on a CUDA device. An emulated launch runs twice,
eagerly and lazily, where that can differ, see `both_modes`. The arrays are NumPy's everywhere; a launch
copies them to the device and back. NumPy is the oracle, see `oracle`. With --compare-emulator what runs
on the CUDA device runs on an emulated one too, see `device_comparison`.

By default a chip of each family is emulated, with 4 warps. Each has every test for every operation
and type; cases that differ in a form only (a shape, a number of stages) take turns on the chips.
--nightly runs all cases there, with 1, 2 and 8 warps too, and a part of them on the ten other chips.
`selection` has these rules in full.

Kernels' parameters have no types, because what they are (a pointer, a tile, a constant) is decided
by each launch; pyproject.toml tells pyright so for this folder.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import settings

import tiledsl as tile
from tests.conftest import COMPARED
from tests.kernels import selection
from tests.kernels.both_modes import launch_in_both_modes
from tests.kernels.device_comparison import Comparison
from tests.kernels.selection import FAMILIES, NIGHTLY, OTHER_WARPS, OTHERS, WARPS, Lengths
from tiledsl import launch
from tiledsl.targets.nvptx import ptxas

_GPU = pytest.mark.gpu
_EXAMPLES = 4
"""Hypothesis examples a test on an emulated chip; the host, which is quicker, has them all."""


def _emulated_places() -> list[Any]:
    return [
        *(f"emulate:{chip}" for chip in FAMILIES),
        *(pytest.param(f"emulate:{chip}", marks=NIGHTLY) for chip in OTHERS),
    ]


def _emulated_warps() -> list[Any]:
    nightly = [(c, n) for c in FAMILIES for n in OTHER_WARPS] + [(c, WARPS) for c in OTHERS]
    return [
        *(pytest.param((f"emulate:{c}", WARPS), id=f"emulate:{c}-{WARPS}") for c in FAMILIES),
        *(pytest.param((f"emulate:{c}", n), id=f"emulate:{c}-{n}", marks=NIGHTLY) for c, n in nightly),
    ]  # fmt: skip


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose what runs on emulated chips."""
    left_out = selection.choose(items)
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


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


@pytest.fixture
def emulated(request: pytest.FixtureRequest) -> bool:
    """Whether the test runs on an emulated chip: there a thousand programs show no more than a few."""
    item: Any = request.node
    return selection.chip_of(item) is not None


@pytest.fixture
def lengths(request: pytest.FixtureRequest, emulated: bool) -> Lengths:
    """The lengths of arrays that a test goes through for a type."""
    full = not emulated or bool(request.config.getoption("--nightly"))
    return lambda dtype: selection.lengths(dtype, full)


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
        nightly = bool(request.config.getoption("--nightly"))
        launch_in_both_modes(monkeypatch, always=nightly)
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
