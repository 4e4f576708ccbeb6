"""Run a whole launch: cut the grid into cohorts, run them in processes, gather what they found.

A cohort is as many blocks as have `_THREADS` threads together, fewer where their shared memory
would be large; many more where the program has atomics on global memory, by which blocks may wait
for each other as a GPU's resident blocks may. The first one runs here and is timed; if the rest
would take longer than starting processes costs, children forked from here run it. Memory is shared
with them, so what they store is simply there; what they counted and found comes back through a
pipe. A program with atomics on global memory stays in one process, as does one that prints: both
would depend on who is first.

Which child runs which cohort does not depend on time, and results are merged in the order of the
grid, so a launch gives the same findings, counters and (unless its blocks race with each other) the
same memory each time.
"""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import time
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tiledsl.dialects.diagnostics import CompilerBug, KernelError
from tiledsl.targets.gpu.emulator.cohort import Cohort
from tiledsl.targets.gpu.emulator.counters import Counters
from tiledsl.targets.gpu.emulator.engine import describe_place
from tiledsl.targets.gpu.emulator.findings import Finding, Findings
from tiledsl.targets.gpu.emulator.launch import Launch, Program
from tiledsl.targets.gpu.emulator.settings import processes

_THREADS = 4096
"""Threads of a cohort: enough for NumPy's cost a call to be small beside its cost an element."""
_RESIDENT_THREADS = 1 << 16
"""Those of a cohort whose blocks may wait for one another."""
_SHARED_BYTES = 32 << 20
"""The most shared memory that the blocks of a cohort have together."""
_WORTH_FORKING = 0.4
"""Seconds that the rest of a launch must take for processes to pay."""


@dataclass(frozen=True)
class _Outcome:
    """What one cohort found and cost."""

    findings: Sequence[Finding]
    counters: Counters | None


def run(program: Program, launch: Launch, findings: Findings) -> Counters | None:
    """Run every block of a launch; returns what it cost if that is counted.

    Raises:
        CompilerBug: The emulator failed, here or in a child.
    """
    cohorts = _cut(program, launch)
    warps = -(-launch.threads // program.warp_size)
    launch.memory.races.begin(int(np.prod(launch.grid)) * warps, program.instructions)
    start = time.perf_counter()
    total = _add(None, _run_cohort(program, launch, cohorts[0]), findings)
    rest = (time.perf_counter() - start) * (len(cohorts) - 1)
    workers = min(processes(), len(cohorts) - 1)
    alone = program.atomic or workers < 2 or rest < _WORTH_FORKING or not hasattr(os, "fork")
    if findings.endless:
        return total  # the other cohorts' time is not worth hearing it again
    if alone:
        for blocks in cohorts[1:]:
            total = _add(total, _run_cohort(program, launch, blocks), findings)
            if findings.endless:
                break
        return total
    for outcome in _run_forked(program, launch, cohorts[1:], workers):
        total = _add(total, outcome, findings)
    return total


def _cut(program: Program, launch: Launch) -> list[NDArray[np.int64]]:
    """Return the linear ids of the blocks of each cohort; no cluster is in two of them."""
    x, y, z = launch.grid
    every = np.arange(x * y * z)
    size = int(np.prod(program.cluster))
    if size > 1:
        along = np.stack((every % x, every // x % y, every // (x * y)), axis=1)
        cluster = along // program.cluster
        every = np.lexsort((every, *cluster.T))
    threads = _RESIDENT_THREADS if program.atomic else _THREADS
    blocks = max(threads // launch.threads, 1)
    shared_bytes = launch.shared_bytes + program.static_shared_bytes
    if shared_bytes:
        blocks = max(min(blocks, _SHARED_BYTES // shared_bytes), 1)
    blocks = -(-blocks // size) * size
    return [every[first : first + blocks] for first in range(0, len(every), blocks)]


def _run_cohort(
    program: Program,
    launch: Launch,
    blocks: NDArray[np.int64],
    progress: NDArray[np.int64] | None = None,
) -> _Outcome:
    x, y, _ = launch.grid
    findings = Findings()
    cohort = Cohort(
        launch.grid,
        np.stack((blocks % x, blocks // x % y, blocks // (x * y)), axis=1),
        launch.threads,
        program.warp_size,
        launch.arguments,
        launch.shared_bytes,
        launch.memory,
        findings,
        mode=launch.mode,
        atomic=program.atomic,
        clustered=max(program.cluster) > 1,
        step_limit=launch.step_limit,
        progress=progress,
    )
    if launch.counting:
        cohort.counters = Counters(len(program.instructions), program.rules, cohort.warp_of)
    with np.errstate(all="ignore"):
        program.machine(cohort).run()
    return _Outcome(findings.all(), cohort.counters)


def _add(total: Counters | None, outcome: _Outcome, findings: Findings) -> Counters | None:
    findings.merge(outcome.findings)
    if total is None or outcome.counters is None:
        return outcome.counters
    total.merge(outcome.counters)
    return total


# --- processes -----------------------------------------------------------------------------------


def _run_forked(
    program: Program, launch: Launch, cohorts: Sequence[NDArray[np.int64]], workers: int
) -> list[_Outcome]:
    """Return the outcomes of the cohorts, in order; child k runs each `workers`-th from k on."""
    children: list[tuple[int, int]] = []
    progress = np.frombuffer(mmap.mmap(-1, 8 * workers), np.int64)
    number = 0
    try:
        for number in range(workers):
            mine = progress[number : number + 1]
            children.append(_start(program, launch, cohorts[number::workers], mine))
        outcomes: list[_Outcome | None] = [None] * len(cohorts)
        for number in range(workers):
            data = _read(children[0][1])
            process, pipe = children.pop(0)
            os.close(pipe)
            outcomes[number::workers] = _outcomes(data, os.waitpid(process, 0)[1])
    except KeyboardInterrupt:
        here = program.blocks[int(progress[number])]
        raise KeyboardInterrupt(describe_place(here)) from None
    finally:
        for process, pipe in children:
            os.close(pipe)
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
    return [outcome for outcome in outcomes if outcome is not None]


def _start(
    program: Program,
    launch: Launch,
    cohorts: Sequence[NDArray[np.int64]],
    progress: NDArray[np.int64],
) -> tuple[int, int]:
    """Fork a child that runs some cohorts; returns its id and the pipe that it answers through."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns where other threads exist; the child only computes, and takes no lock.
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
    if process:
        os.close(writing)
        return process, reading
    status = 1
    try:
        os.close(reading)
        with os.fdopen(writing, "wb") as answer:
            pickle.dump(_answer(program, launch, cohorts, progress), answer)
        status = 0
    finally:
        os._exit(status)  # neither the parent's handlers nor its buffers are the child's


def _answer(
    program: Program,
    launch: Launch,
    cohorts: Sequence[NDArray[np.int64]],
    progress: NDArray[np.int64],
) -> list[_Outcome] | tuple[str, str]:
    """Return the outcomes, or the kind and text of an error."""
    try:
        return [_run_cohort(program, launch, blocks, progress) for blocks in cohorts]
    except (KernelError, CompilerBug) as error:
        return type(error).__name__, error.message
    except BaseException:
        return "CompilerBug", f"in an emulator's process:\n{traceback.format_exc()}"


def _read(pipe: int) -> bytes:
    """Return all that a child answers; the pipe stays open."""
    with os.fdopen(pipe, "rb", closefd=False) as answer:
        return answer.read()


def _outcomes(data: bytes, status: int) -> list[_Outcome]:
    """Return what a child answered, given how it ended.

    Raises:
        CompilerBug: It died, or what it did failed.
        KernelError: As it raised it.
    """
    if status or not data:
        how = f"signal {status & 127}" if status & 127 else f"status {status >> 8}"
        raise CompilerBug(f"a process of the emulator died ({how})")
    found: list[_Outcome] | tuple[str, str] = pickle.loads(data)
    if isinstance(found, list):
        return found
    kind, message = found
    raise KernelError(message) if kind == "KernelError" else CompilerBug(message)
