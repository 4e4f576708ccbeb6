"""Fences and grid dependencies: what is accepted, and what is not."""

from __future__ import annotations

import pytest

from tests.targets.nvptx.emulator.running import run
from tiledsl.dialects.diagnostics import CompilerBug


@pytest.mark.parametrize(
    "instruction",
    ["fence.acq_rel.gpu", "fence.sc.cta", "membar.gl", "membar.cta", "fence.acquire.cluster",
     "fence.proxy.alias", "fence.proxy.async", "fence.proxy.async.global",
     "fence.proxy.async.shared::cta", "fence.proxy.tensormap::generic.release.gpu",
     "fence.mbarrier_init.release.cluster", "griddepcontrol.wait",
     "griddepcontrol.launch_dependents"],
)  # fmt: skip
def test_what_orders_memory_is_executed(instruction: str) -> None:
    assert run(f"{instruction};", chip="sm_90a", threads=128).findings == []


@pytest.mark.parametrize(
    "instruction",
    ["fence.bogus", "fence.proxy.bogus", "griddepcontrol.bogus"],
)  # fmt: skip
def test_what_is_no_instruction_is_named(instruction: str) -> None:
    with pytest.raises(CompilerBug, match=instruction.replace(".", r"\.")):
        run(f"{instruction};", chip="sm_90a", threads=128)
