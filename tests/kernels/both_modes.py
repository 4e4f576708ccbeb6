"""Run every emulated launch twice: eagerly and lazily, from the same memory, and compare.

A kernel's result may not depend on when an asynchronous operation takes effect between its issue and
the wait for it. One compilation serves both runs.

A kernel that has none is run once: the modes do not differ in anything it does. Of AMD, whose every
load is asynchronous, a kernel without LDS runs lazily only, unless all is asked for: what a load
brings is then the lane's own, and is missed most where it comes latest.
"""

from __future__ import annotations

import re

import pytest

from tiledsl.targets.driver import Grid
from tiledsl.targets.gpu.emulator import settings
from tiledsl.targets.gpu.emulator.driver import EmulatedKernel

_OF_NVIDIA = re.compile(r"\b(?:cp\.|mbarrier\.|wgmma\.)")
_OF_AMD = re.compile(r"^\s+(?:ds_|global_load_lds|buffer_load.* lds)", re.MULTILINE)


def modes_differ(text: str) -> bool:
    """Whether the modes differ in what a kernel does: by asynchronous operations, on AMD by LDS."""
    return (_OF_AMD if ".amdgcn_target" in text else _OF_NVIDIA).search(text) is not None


def launch_in_both_modes(monkeypatch: pytest.MonkeyPatch, *, always: bool = True) -> None:
    """Make emulated launches do that for the rest of a test.

    Args:
        monkeypatch: The test's.
        always: Also those of kernels that run alike in both modes.
    """
    launch_once = EmulatedKernel.launch

    def launch(
        self: EmulatedKernel, grid: Grid, threads: int, arguments: bytes, stream: int = 0
    ) -> None:
        if not always and not modes_differ(self.text):
            with settings.use(mode="lazy"):
                launch_once(self, grid, threads, arguments, stream)
            return
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
