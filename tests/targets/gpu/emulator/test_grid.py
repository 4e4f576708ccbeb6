"""A launch runs every block once, in one process or several, and gathers what they found."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from tests.targets.gpu.emulator.worlds import instruction
from tiledsl.dialects.diagnostics import CompilerBug, KernelError
from tiledsl.targets.gpu.emulator import grid as grids
from tiledsl.targets.gpu.emulator.cohort import Access, Cohort
from tiledsl.targets.gpu.emulator.counters import Rules
from tiledsl.targets.gpu.emulator.engine import Engine
from tiledsl.targets.gpu.emulator.findings import Findings, Kind
from tiledsl.targets.gpu.emulator.launch import Launch
from tiledsl.targets.gpu.emulator.memory import GlobalMemory
from tiledsl.targets.gpu.emulator.program import BasicBlock, Instruction

Body = Callable[[Cohort], None]


@dataclass
class FakeProgram:
    """One instruction that does what `body` says, once a cohort."""

    body: Body
    atomic: bool = False
    cluster: tuple[int, int, int] = (1, 1, 1)
    static_shared_bytes: int = 0
    warp_size: int = 32
    rules: Rules = field(default_factory=Rules)

    @property
    def instructions(self) -> Sequence[Instruction]:
        return [instruction(0)]

    @property
    def blocks(self) -> Sequence[BasicBlock]:
        def end(machine: Engine) -> None:
            self.body(machine.cohort)
            machine.scheduler.exit(machine.active)

        return [BasicBlock([], end, self.instructions)]

    def machine(self, cohort: Cohort) -> Engine:
        return Engine(cohort, self.blocks, len(cohort.block_of))


def _launch(memory: GlobalMemory, blocks: tuple[int, int, int], threads: int = 2048) -> Launch:
    return Launch(blocks, threads, b"", 0, memory, counting=True)


def _marking(memory: GlobalMemory, base: int, seconds: float = 0.0) -> Body:
    """Add 1 to the word of each block, and remember in whose process it ran."""

    def body(cohort: Cohort) -> None:
        time.sleep(seconds)
        x, y, z = cohort.grid
        linear = cohort.programs @ np.array([1, x, x * y])
        words = memory.bytes_at(base, 8 * x * y * z).view(np.uint64)
        words[linear] += np.uint64(1)
        words[linear] += np.uint64(os.getpid()) << np.uint64(8)

    return body


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork as soon as there is anything to share."""
    monkeypatch.setattr(grids, "_WORTH_FORKING", 0.0)
    monkeypatch.setattr(grids, "processes", lambda: 2)


def _words(
    memory: GlobalMemory, base: int, count: int
) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return memory.bytes_at(base, 8 * count).view(np.uint64)


@pytest.mark.usefixtures("quick")
def test_every_block_runs_once_and_in_several_processes() -> None:
    memory = GlobalMemory()
    base = memory.allocate(8 * 30, written=True)
    findings = Findings()
    counters = grids.run(FakeProgram(_marking(memory, base)), _launch(memory, (5, 3, 2)), findings)
    words = _words(memory, base, 30)
    assert (words & np.uint64(255) == 1).all()
    assert len(np.unique(words >> np.uint64(8))) == 3  # here, and two children
    assert counters is not None
    assert counters.blocks[0] == 30 * 2048  # this engine's units are threads
    assert not findings


@pytest.mark.usefixtures("quick")
def test_atomics_keep_a_launch_in_one_process() -> None:
    memory = GlobalMemory()
    base = memory.allocate(8 * 30, written=True)
    program = FakeProgram(_marking(memory, base), atomic=True)
    grids.run(program, _launch(memory, (30, 1, 1)), Findings())
    assert (_words(memory, base, 30) >> np.uint64(8) == os.getpid()).all()


def test_short_launches_do_not_fork() -> None:
    memory = GlobalMemory()
    base = memory.allocate(8 * 6, written=True)
    grids.run(FakeProgram(_marking(memory, base)), _launch(memory, (6, 1, 1)), Findings())
    assert (_words(memory, base, 6) >> np.uint64(8) == os.getpid()).all()


@pytest.mark.usefixtures("quick")
def test_findings_are_merged_in_the_order_of_the_grid() -> None:
    memory = GlobalMemory()

    def body(cohort: Cohort) -> None:
        lanes = np.arange(len(cohort.block_of))
        Access(cohort, instruction(0), lanes).report(
            Kind.RACE, np.ones(len(lanes), np.bool_), lambda at: "planted"
        )

    for _ in range(3):
        findings = Findings()
        grids.run(FakeProgram(body), _launch(memory, (10, 1, 1)), findings)
        (only,) = findings.all()
        assert (only.block, only.thread, only.times) == ((0, 0, 0), 0, 10 * 2048)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("how", ["exit", "signal", "error", "kernel error", "any error"])
def test_what_fails_in_a_child_is_raised_here(how: str) -> None:
    memory, here = GlobalMemory(), os.getpid()

    def body(cohort: Cohort) -> None:
        if os.getpid() == here:
            return
        if how == "exit":
            os._exit(3)
        if how == "signal":
            os.kill(os.getpid(), 9)
        if how == "error":
            raise CompilerBug("unknown instruction v_foo")
        if how == "kernel error":
            raise KernelError("too much")
        raise ZeroDivisionError("of course")

    expected, text = {
        "exit": (CompilerBug, r"a process of the emulator died \(status 3\)"),
        "signal": (CompilerBug, r"a process of the emulator died \(signal 9\)"),
        "error": (CompilerBug, "^unknown instruction v_foo$"),
        "kernel error": (KernelError, "^too much$"),
        "any error": (CompilerBug, "(?s)in an emulator's process:.*ZeroDivisionError: of course"),
    }[how]
    with pytest.raises(expected, match=text):
        grids.run(FakeProgram(body), _launch(memory, (10, 1, 1)), Findings())
    try:
        ended, _ = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        ended = 0
    assert ended == 0  # of our children none is left; a code generator may be running


def test_cohorts_hold_whole_blocks_bounded_by_threads_and_shared_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory, sizes = GlobalMemory(), list[int]()
    program = FakeProgram(lambda cohort: sizes.append(cohort.blocks), atomic=True)
    grids.run(program, Launch((40, 1, 1), 128, b"", 0, memory), Findings())
    assert sizes == [40]  # blocks that may wait for one another are all there
    sizes.clear()
    grids.run(program, Launch((70, 1, 1), 1024, b"", 0, memory), Findings())
    assert sizes == [64, 6]
    sizes.clear()
    grids.run(program, Launch((300, 1, 1), 32, b"", 1 << 20, memory), Findings())
    assert sizes == [32] * 9 + [12]
    sizes.clear()
    program = FakeProgram(lambda cohort: sizes.append(cohort.blocks))
    monkeypatch.setenv("TILEDSL_EMULATE_PROCESSES", "1")
    grids.run(program, Launch((40, 1, 1), 128, b"", 0, memory), Findings())
    assert sizes == [32, 8]
    sizes.clear()
    grids.run(program, Launch((3, 1, 1), 8192, b"", 0, memory), Findings())
    assert sizes == [1, 1, 1]


def test_clusters_stay_together() -> None:
    memory, seen = GlobalMemory(), list[list[tuple[int, ...]]]()

    def body(cohort: Cohort) -> None:
        seen.append([tuple(int(one) for one in row) for row in cohort.programs])

    program = FakeProgram(body, atomic=True, cluster=(2, 2, 1))
    grids.run(program, Launch((4, 4, 1), 1024, b"", 4 << 20, memory), Findings())
    assert sorted(block for cohort in seen for block in cohort) == sorted(
        (x, y, 0) for x in range(4) for y in range(4)
    )
    assert [len(cohort) for cohort in seen] == [8] * 2
    for cohort in seen:
        assert len({(x // 2, y // 2) for x, y, _ in cohort}) == 2


@pytest.mark.usefixtures("quick")
def test_an_interrupt_says_what_a_process_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(pipe: int) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(grids, "_read", interrupted)
    program = FakeProgram(lambda cohort: time.sleep(0.01))
    with pytest.raises(KeyboardInterrupt, match=r"^kernel\.py:1: emulating `access`$"):
        grids.run(program, _launch(GlobalMemory(), (8, 1, 1)), Findings())


def test_after_an_endless_loop_no_other_cohort_is_run() -> None:
    ran: list[int] = []

    def spin(cohort: Cohort) -> None:
        ran.append(len(cohort.programs))
        cohort.report(Kind.ENDLESS, instruction(0), "spins", 0)

    findings = Findings()
    grids.run(FakeProgram(spin, atomic=True), _launch(GlobalMemory(), (64, 1, 1)), findings)
    assert ran == [32]
    assert findings.endless
