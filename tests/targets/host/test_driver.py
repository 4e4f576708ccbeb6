"""Launching: grids, threads, memory, errors."""

# Kernels are built by small lambdas, whose parameters nothing types, and traced.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiledsl
from tiledsl.dialects import tile
from tiledsl.dialects.diagnostics import CompilerBug, KernelError
from tiledsl.targets.host.driver import HostDriver, driver
from tiledsl.targets.host.pool import Pool, thread_count

from .kernels import Kernel


def counting() -> Kernel:
    k = Kernel("*i32", "*i64")
    counts, last = k.args
    k.atomic("add", counts + k.pid(), 1)
    wide = k.pid().convert("extsi", "i64") * k.constant(256, "i64")
    k.store(last, wide, k.pid().eq(k.programs() - 1))
    return k


@pytest.mark.parametrize("programs", [1, 2, 3, 1000, 72000])
def test_every_program_of_a_grid_runs_once(programs: int) -> None:
    counts, last = np.zeros(programs, np.int32), np.zeros(1, np.int64)
    k = counting()
    for trip in range(1, 4):
        k.run(programs, counts, last)
        assert (counts == trip).all()
    assert last[0] == (programs - 1) * 256


def test_a_grid_with_a_zero_runs_nothing() -> None:
    counts, last = np.zeros(4, np.int32), np.zeros(1, np.int64)
    k = counting()
    for grid in ((0,), (4, 0), (4, 1, 0)):
        k.run(grid, counts, last)
    assert not counts.any()


def test_threads_launch_at_the_same_time_with_scratch_of_their_own() -> None:
    k = Kernel("*f32", "*f32")
    x, out = k.args
    i = k.range(512)
    row = k.load(x + (k.pid() * 512 + i))
    total = k.reduce(row, 0, "arith.addf")
    k.store(out + (k.pid() * 512 + i), row / total)
    data = np.random.default_rng(0).random((50, 512), dtype=np.float32) + 1
    wanted = data / data.sum(1, keepdims=True)
    _ = k.artifact
    wrong: list[Any] = []

    def work() -> None:
        for _ in range(20):
            found = np.zeros_like(data)
            k.run(50, data, found)
            if not np.allclose(found, wanted, rtol=1e-5):
                wrong.append(found)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_small_launch_takes_microseconds() -> None:
    k = Kernel("*i32")
    (x,) = k.args
    k.store(x, 1)
    found = np.zeros(1, np.int32)
    packed = found.ctypes.data.to_bytes(8, "little")
    loaded = driver().load(k.artifact.binary, k.artifact.entry, k.artifact.shared_bytes)
    best = 1.0
    for _ in range(200):
        start = time.perf_counter()
        loaded.launch((1, 1, 1), 1, packed)
        best = min(best, time.perf_counter() - start)
    assert found[0] == 1
    assert best < 100e-6


def test_the_number_of_threads_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEDSL_NUM_THREADS", "3")
    assert thread_count() == 3
    monkeypatch.setenv("TILEDSL_NUM_THREADS", "many")
    assert thread_count() >= 1


def test_workers_share_the_work_and_the_last_one_ends_it() -> None:
    pool, seen, lock = Pool(), set[int](), threading.Lock()
    both = threading.Barrier(2, timeout=10)

    def share() -> None:
        both.wait()
        with lock:
            seen.add(threading.get_ident())

    pool.run(share, 2)
    assert len(seen) == 2


def test_a_worker_that_wakes_late_finds_the_task_closed() -> None:
    pool, entered = Pool(), list[int]()
    for i in range(200):
        pool.run(lambda i=i: entered.append(i), 4)
        assert set(entered[-1:]) == {i}
    assert entered == sorted(entered)


def test_work_done_apart_leaves_this_thread_and_ends_when_all_is_claimed() -> None:
    pool, seen = Pool(), set[int]()
    pool.run_apart(lambda: seen.add(threading.get_ident()), 3, lambda: None)
    assert seen
    assert threading.get_ident() not in seen


def test_what_a_worker_raises_is_raised_where_the_work_was_asked_for() -> None:
    def fail() -> None:
        raise MemoryError

    pool = Pool()
    with pytest.raises(MemoryError):
        pool.run_apart(fail, 2, lambda: None)
    pool.run_apart(lambda: None, 2, lambda: None)


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("launches", [0, 3])
def test_ctrl_c_ends_a_long_launch(threads: int, launches: int) -> None:
    program = Path(__file__).with_name("interrupted.py")
    environment = {**os.environ, "TILEDSL_NUM_THREADS": str(threads)}
    done = subprocess.run(
        [sys.executable, program, str(launches)],
        capture_output=True, text=True, timeout=60, check=False, env=environment,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, "True 10 True"), done.stderr


@pytest.mark.parametrize("threads", ["1", "3"])
def test_a_failed_assertion_ends_a_launch_of_any_form(
    threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEDSL_NUM_THREADS", threads)

    @tiledsl.jit(debug=True)
    def kernel(x, wrong):
        tiledsl.atomic_add(x, 1)
        tiledsl.device_assert(tiledsl.program_id(0) != wrong, "wrong")

    for _ in range(2):  # of unknown cost, and of known
        x = np.zeros(1, np.int32)
        with pytest.raises(KernelError, match="wrong"):
            kernel[1 << 24](x, 5)
        assert x[0] < 1 << 23  # how far others get depends on what else the machine does
        kernel[100](x, -1)


def test_launches_work_after_a_fork() -> None:
    program = Path(__file__).with_name("fork_and_launch.py")
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "64 64"), done.stderr


def test_the_one_device_is_this_machine() -> None:
    (device,) = HostDriver().devices()
    assert (device.index, device.chip, device.native) == (0, "host", True)
    assert device.memory_bytes > 0


def test_memory_is_the_processs_own() -> None:
    host = HostDriver()
    address = host.allocate(400)
    assert address % 64 == 0
    host.copy_in(address, np.arange(100, dtype=np.int32))
    found = np.zeros(100, np.int32)
    host.copy_out(found, address)
    assert (found == np.arange(100)).all()
    host.free(address)
    with pytest.raises(KernelError, match="expected an address that was allocated"):
        host.free(address)
    assert host.allocate(0) != host.allocate(0)


def test_streams_and_events_are_there() -> None:
    host = HostDriver()
    stream = host.create_stream()
    start = host.record_event(stream)
    host.synchronize()
    end = host.record_event(stream)
    assert host.elapsed_ms(start, end) >= 0
    host.destroy_event(start)
    host.destroy_stream(stream)


def test_a_broken_object_is_a_bug_not_an_abort() -> None:
    with pytest.raises(CompilerBug, match="cannot link kernel"):
        driver().load(b"no object", "kernel", 0)


def test_an_unknown_op_is_a_bug_with_its_name() -> None:
    k = Kernel("*f32")
    (x,) = k.args
    strange = k.op("math.cbrt", k.load(x))
    k.store(x, strange)
    with pytest.raises(CompilerBug, match=r"math\.cbrt"):
        _ = k.artifact


def test_a_print_is_no_reason_to_run_in_one_thread() -> None:
    k = Kernel("i32")
    k.build(tile.PrintOp, None, prefix="x")
    k.run(0, 1)
