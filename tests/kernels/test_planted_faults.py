"""One fault of each kind, planted in a kernel or in its text, is reported at the author's line.

A line that is at fault ends in a comment with the fault's name. What the compiler would never do
(leave out a barrier) is planted in the text that it made.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiledsl as tile
from tests.kernels.good_kernels import GOOD
from tests.kernels.mutations import Recorded, record
from tiledsl.targets.gpu.emulator import engine
from tiledsl.targets.gpu.emulator.findings import Finding, Kind

CHIPS = ("sm_80", "sm_90a", "gfx942", "gfx1201")
_SOURCE = Path(__file__).read_text().splitlines()


def line_of(fault: str) -> int:
    """Return the line that ends in the comment."""
    (found,) = (number for number, line in enumerate(_SOURCE, 1) if line.endswith(f"# {fault}"))
    return found


def check(findings: Sequence[Finding], kind: Kind, fault: str) -> None:
    """Require findings, all of one kind and at one line."""
    assert findings
    assert {finding.kind for finding in findings} == {kind}, [str(one) for one in findings]
    for finding in findings:
        source = finding.instruction.source
        assert source is not None
        assert Path(source.file).name == Path(__file__).name
        assert source.line == line_of(fault), str(finding)


chips = pytest.mark.parametrize("chip", CHIPS)


# --- in the kernel -------------------------------------------------------------------------------


@tile.jit
def overrun(x, out, BLOCK: tile.constexpr):
    i = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
    value = tile.load(x + i) * 2  # out of bounds
    tile.store(out + i, value)


@chips
def test_reading_beyond_an_array(chip: str) -> None:
    x, out = np.zeros(1000, np.float32), np.zeros(1024, np.float32)
    report = tile.emulate(overrun, (4,), (x, out), target=chip, findings="report", BLOCK=256)
    check(report.findings, Kind.OUT_OF_BOUNDS, "out of bounds")
    assert "argument `x`, element 1000 of 1000" in report.findings[0].message
    assert report.findings[0].block == (3, 0, 0)


@tile.jit
def unwritten(x, out, BLOCK: tile.constexpr):
    i = tile.arange(0, BLOCK)
    tile.store(x + i, i.to(tile.float32), mask=i < BLOCK - 1)
    tile.debug_barrier()
    tile.store(out + i, tile.load(x + i) + 1)  # unwritten


@chips
def test_reading_what_nobody_wrote(chip: str) -> None:
    x = np.zeros(256, np.float32)
    report = tile.emulate(
        unwritten,
        (1,),
        (x, np.zeros_like(x)),
        target=chip,
        findings="report",
        uninitialized=["x"],
        BLOCK=256,
    )
    check(report.findings, Kind.UNINITIALIZED, "unwritten")
    assert "element 25" in report.findings[0].message


@tile.jit
def crooked(x, out, start, BLOCK: tile.constexpr):
    i = tile.multiple_of(start, 4) + tile.arange(0, BLOCK)
    tile.store(out + tile.arange(0, BLOCK), tile.load(x + i))  # misaligned


@pytest.mark.parametrize("chip", ["sm_80", "sm_90a"])  # AMD reads at any address
def test_a_promise_of_alignment_that_is_not_kept(chip: str) -> None:
    x = np.zeros(512, np.float32)
    report = tile.emulate(
        crooked, (1,), (x, x.copy(), 3), target=chip, findings="report", BLOCK=256
    )
    check(report.findings, Kind.MISALIGNED, "misaligned")


@tile.jit
def all_store(x, out, BLOCK: tile.constexpr):
    i = tile.arange(0, BLOCK)
    tile.store(out + i, tile.load(x + i) + tile.program_id(0))  # race of programs


@chips
def test_programs_that_store_different_values_to_one_place(chip: str) -> None:
    x = np.zeros(256, np.int32)
    report = tile.emulate(
        all_store, (2,), (x, np.zeros_like(x)), target=chip, findings="report", BLOCK=256
    )
    check(report.findings, Kind.RACE, "race of programs")


@tile.jit
def assuming(x, n):
    value = tile.load(x)
    tile.device_assert(value > n, "larger than n")  # assertion


@chips
def test_an_assertion_that_does_not_hold(chip: str) -> None:
    report = tile.emulate(
        assuming, (1,), (np.array([5], np.int32), 7), target=chip, findings="report", debug=True
    )
    check(report.findings, Kind.ASSERTION, "assertion")


@tile.jit
def spinning(flag, out):
    while tile.atomic_add(flag, 0) == 0:  # endless
        pass
    tile.store(out, 1)


@chips
def test_waiting_for_what_nobody_does(chip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "LIMIT", 2000)
    flag = np.zeros(1, np.int32)
    report = tile.emulate(spinning, (1,), (flag, flag.copy()), target=chip, findings="report")
    assert [finding.kind for finding in report.findings] == [Kind.DEADLOCK]


# --- in the text ---------------------------------------------------------------------------------


@tile.jit
def turn_over(x, out, N: tile.constexpr):
    i = tile.arange(0, N)
    value = tile.load(x + i[:, None] * N + i[None, :])  # exchange
    tile.store(out + i[:, None] * N + i[None, :], tile.trans(value))


def _turn_over() -> None:
    x = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    turn_over[1,](x, np.zeros_like(x), N=64)


def planted(chip: str, run: Any, pattern: str, new: str, count: int = 1) -> list[Finding]:
    """Return what the first launch of `run` does wrong with a line of its text replaced."""
    found: list[list[Finding]] = []

    def use(recorded: Recorded) -> None:
        assert not recorded.findings(recorded.text)
        text, times = re.subn(pattern, new, recorded.text, count=count, flags=re.MULTILINE)
        assert times, "nothing to replace"
        found.append(list(recorded.findings(text)))

    record(chip, run, use)
    return found[0]


_BARRIER = {
    "sm": r"^\s+bar\.sync.*$",
    "gfx9": r"^\s+s_barrier$",
    "gfx12": r"^\s+s_barrier_(signal|wait).*\n\s+s_barrier_wait.*$",
}


def _barrier(chip: str) -> str:
    return next(text for prefix, text in _BARRIER.items() if chip.startswith(prefix))


@chips
def test_a_missing_barrier_is_a_race(chip: str) -> None:
    findings = planted(chip, _turn_over, _barrier(chip), "")
    check(findings, Kind.RACE, "exchange")
    assert "no barrier after the write by warp" in findings[0].message


@chips
def test_a_missing_wait_is_found(chip: str) -> None:
    if chip.startswith("sm"):
        findings = planted(chip, GOOD["attention"], r"^\s+cp\.async\.wait_group.*$", "", 2)
        if not findings and chip == "sm_90a":
            pytest.skip("no cp.async in this kernel")
    else:
        findings = planted(chip, _turn_over, r"^\s+s_wait(cnt|_loadcnt).*$", "", 99)
    assert Kind.MISSING_WAIT in {finding.kind for finding in findings}


@chips
def test_reading_shared_memory_that_nobody_wrote_is_found(chip: str) -> None:
    store = r"^\s+(@%p\d+ )?st\.shared.*$" if chip.startswith("sm") else r"^\s+ds_(write|store).*$"
    findings = planted(chip, _turn_over, store, "")
    assert Kind.UNINITIALIZED in {finding.kind for finding in findings}


@pytest.mark.parametrize("chip", ["sm_80", "sm_90a"])
def test_a_barrier_that_counts_too_many_is_a_deadlock(chip: str) -> None:
    findings = planted(chip, _turn_over, r"^\s+bar\.sync\s+0;", "\tbar.sync 0, 256;")
    assert {finding.kind for finding in findings} == {Kind.DEADLOCK}
    assert "barrier 0" in findings[0].message


def test_a_barrier_that_nobody_signals_is_a_deadlock() -> None:
    findings = planted("gfx1201", _turn_over, r"^\s+s_barrier_signal.*$", "")
    assert {finding.kind for finding in findings} == {Kind.DEADLOCK}


@pytest.mark.parametrize("chip", ["sm_80", "sm_90a"])
def test_a_barrier_for_some_threads_of_a_warp_is_divergent(chip: str) -> None:
    replaced = (
        "{ .reg .pred %odd; .reg .b32 %t; mov.u32 %t, %tid.x; and.b32 %t, %t, 1;\n"
        "setp.eq.b32 %odd, %t, 1; @%odd bra $L__skip; bar.warp.sync 0xffffffff;\n"
        "$L__skip: bar.sync 0; }"
    )
    findings = planted(chip, _turn_over, r"^\s+bar\.sync\s+0;", replaced)
    check(findings, Kind.DIVERGENT_BARRIER, "exchange")


# --- and in no good kernel -----------------------------------------------------------------------


@pytest.mark.parametrize("chip", ["sm_90a"])  # the whole suite says it of the others
@pytest.mark.parametrize("name", GOOD)
def test_good_kernels_give_no_findings(chip: str, name: str) -> None:
    launches = 0

    def use(recorded: Recorded) -> None:
        nonlocal launches
        launches += 1
        assert not recorded.findings(recorded.text)

    record(chip, GOOD[name], use)
    assert launches
