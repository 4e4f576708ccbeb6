"""Releases and acquires: whether a program may see what another one stored."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.nvptx.emulator.running import run
from tiledsl.targets.gpu.emulator.cohort import Mode
from tiledsl.targets.gpu.emulator.findings import Kind

_ATOMIC = "atom{}.global.add.u32 %r3, [%a1], 1;"


def _kinds(between: str, load: str = "ld.global.u32") -> set[Kind]:
    """Let program 1 load what program 0 has stored, in a kernel that has atomics."""
    body = f"""
        mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 0;
        @%p1 st.global.u32 [%a0], 7;
        {between}
        @!%p1 {load} %r2, [%a0];
        red.global.add.u32 [%a1], 1;
    """
    array = np.zeros(4, np.uint32)
    found = [run(body, array, array, blocks=2, mode=mode).kinds for mode in Mode]
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize(
    "between",
    [
        "fence.acq_rel.gpu;",
        "fence.sc.sys;",
        "membar.gl;",
        "@%p1 fence.release.gpu; @!%p1 fence.acquire.gpu;",
        _ATOMIC.format(".acq_rel.gpu"),
        _ATOMIC.format(".acq_rel.sys"),
        "@%p1 st.release.gpu.global.u32 [%a1], 1; @!%p1 ld.acquire.gpu.global.u32 %r3, [%a1];",
        f"fence.acq_rel.gpu; {_ATOMIC.format('.relaxed.gpu')} fence.acq_rel.gpu;",
    ],
)
def test_a_release_and_an_acquire_let_a_program_see_a_store(between: str) -> None:
    assert _kinds(between) == set()


@pytest.mark.parametrize(
    "between",
    [
        "",
        "fence.acq_rel.cta;",
        "membar.cta;",
        "fence.proxy.async;",
        "fence.release.gpu;",
        "fence.acquire.gpu;",
        "@!%p1 fence.acq_rel.gpu;",
        "@%p1 fence.acq_rel.gpu;",
        _ATOMIC.format(""),
        _ATOMIC.format(".relaxed.gpu"),
        _ATOMIC.format(".acquire.gpu"),
        _ATOMIC.format(".release.gpu"),
        _ATOMIC.format(".acq_rel.cta"),
        "bar.sync 0;",
    ],
)
def test_without_both_of_them_it_is_a_race(between: str) -> None:
    assert _kinds(between) == {Kind.RACE}


@pytest.mark.parametrize("load", ["ld.volatile.global.u32", "ld.relaxed.gpu.global.u32"])
def test_a_strong_load_may_come_at_any_time(load: str) -> None:
    assert _kinds("", load) == set()
