"""Where the kernels of this suite run, and how many warps they have.

The suite is one: every test names the fixture `place` or `warps` and runs once for each parameter,
on the host everywhere and, marked `gpu`, on a CUDA device. The arrays are NumPy's either way; inside
`tile.device("cuda")` a launch copies them there and back. NumPy is the oracle, see `oracle`.

Kernels' parameters have no types, because what they are (a pointer, a tile, a constant) is decided
by each launch; pyproject.toml tells pyright so for this folder.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

import tiledsl as tile

_GPU = pytest.mark.gpu


@pytest.fixture(autouse=True)
def no_disk_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile every kernel anew: an old result must not stand in for the compiler's."""
    monkeypatch.setenv("TILEDSL_CACHE", "0")


@pytest.fixture(params=["host", pytest.param("cuda", marks=_GPU)])
def place(request: pytest.FixtureRequest) -> Generator[str]:
    """The device that the test's launches run on."""
    with tile.device(request.param):
        yield request.param


@pytest.fixture(
    params=[
        pytest.param(("host", 4), id="host"),
        *(pytest.param(("cuda", n), id=f"cuda-{n}", marks=_GPU) for n in (1, 2, 4, 8)),
    ]
)
def warps(request: pytest.FixtureRequest) -> Generator[int]:
    """The `num_warps` to launch with, on its device; the host ignores it, so there one will do."""
    where, count = request.param
    with tile.device(where):
        yield count
