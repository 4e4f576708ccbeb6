"""Which emulated launches run in both modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tiledsl as tile
from tests.kernels.both_modes import launch_in_both_modes
from tiledsl.targets.gpu.emulator import settings
from tiledsl.targets.gpu.emulator.driver import EmulatedKernel


@tile.jit
def plus_one(x, out, N: tile.constexpr):
    i = tile.arange(0, N)
    tile.store(out + i, tile.load(x + i) + 1)


@tile.jit
def total(x, out, N: tile.constexpr):
    tile.store(out, tile.sum(tile.load(x + tile.arange(0, N)), axis=0))


@tile.jit
def squared(x, out, trips, N: tile.constexpr):
    i = tile.arange(0, N)
    places = i[:, None] * N + i[None, :]
    acc = tile.zeros((N, N), tile.float32)
    for k in range(trips):
        a = tile.load(x + k * N * N + places)
        acc = tile.dot(a, a, acc)
    tile.store(out + places, acc.to(tile.float16))


def _modes(monkeypatch: pytest.MonkeyPatch, chip: str, run: Callable[[], Any], always: bool) -> Any:
    ran: list[str] = []
    launch = EmulatedKernel.launch

    def watching(self: EmulatedKernel, *arguments: Any) -> None:
        ran.append(settings.current_mode())
        launch(self, *arguments)

    monkeypatch.setattr(EmulatedKernel, "launch", watching)
    launch_in_both_modes(monkeypatch, always=always)
    with tile.device(f"emulate:{chip}"):
        run()
    return ran


def _plus_one() -> None:
    plus_one[1,](np.zeros(128, np.float32), np.zeros(128, np.float32), N=128)


def _total() -> None:
    total[1,](np.zeros(512, np.float32), np.zeros(1, np.float32), N=512)


def _squared() -> None:
    x, out = np.zeros((4, 32, 32), np.float16), np.zeros((32, 32), np.float16)
    squared[1,](x, out, 4, N=32)


_ONCE, _TWICE = ["lazy"], ["eager", "lazy"]


@pytest.mark.parametrize(
    ("chip", "run", "modes"),
    [
        ("sm_80", _plus_one, _ONCE),
        ("gfx942", _plus_one, _ONCE),
        ("gfx1201", _plus_one, _ONCE),
        ("sm_80", _total, _ONCE),  # shared memory, and nothing asynchronous
        ("gfx942", _total, _TWICE),
        ("gfx1201", _total, _TWICE),
        ("sm_80", _squared, _TWICE),
        ("sm_90a", _squared, _TWICE),
    ],
)
def test_kernels_run_twice_where_modes_differ(
    monkeypatch: pytest.MonkeyPatch, chip: str, run: Callable[[], Any], modes: list[str]
) -> None:
    assert _modes(monkeypatch, chip, run, always=False) == modes


def test_kernels_always_run_twice_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _modes(monkeypatch, "sm_80", _plus_one, always=True) == _TWICE
