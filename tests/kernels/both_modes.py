"""Run every emulated launch twice: eagerly and lazily, from the same memory, and compare.

A kernel's result may not depend on when an asynchronous operation takes effect between its issue and
the wait for it. One compilation serves both runs, and compiling is what most tests spend their time
on.
"""

from __future__ import annotations

import pytest

from tiledsl.targets.driver import Grid
from tiledsl.targets.gpu.emulator import settings
from tiledsl.targets.gpu.emulator.driver import EmulatedKernel


def launch_in_both_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make emulated launches do that for the rest of a test."""
    launch_once = EmulatedKernel.launch

    def launch(
        self: EmulatedKernel, grid: Grid, threads: int, arguments: bytes, stream: int = 0
    ) -> None:
        memory = self.driver.memory
        before = memory.snapshot()
        with settings.use(mode="eager"):
            launch_once(self, grid, threads, arguments, stream)
        eager = memory.snapshot()
        memory.restore(before)
        with settings.use(mode="lazy"):
            launch_once(self, grid, threads, arguments, stream)
        assert memory.snapshot() == eager, "EAGER and LAZY mode give different results"

    monkeypatch.setattr(EmulatedKernel, "launch", launch)
