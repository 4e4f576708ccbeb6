"""Run kernels on the cores of this machine.

Satisfies `targets.driver` with the one device there is: its memory is the process's own, a launch
has ended when it returns, and streams are numbers without meaning. A launch is shared out over the
threads of `pool`, unless it is too short to be worth waking them.
"""

from __future__ import annotations

import ctypes
import os
import platform
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.dialects.diagnostics import KernelError
from tiledsl.targets.buffers import contiguous_address
from tiledsl.targets.driver import PLAIN_LAUNCH, DeviceInfo, Driver, Grid, LaunchOptions, Resources
from tiledsl.targets.host.callbacks import callbacks
from tiledsl.targets.host.job import Job
from tiledsl.targets.host.pool import pool, thread_count
from tiledsl.targets.immediate import Immediate

_WORTH_SHARING = 50e-6
"""Seconds of work below which waking another thread costs more than it saves."""
_PATIENCE = 5e-3
"""Seconds that a launch may keep the main thread from acting on Ctrl-C; waiting for workers instead
costs some 20 us."""
_SOON = 20e-3
"""Seconds after which a thread should ask whether to go on."""
_CHUNKS_A_THREAD = 16
_FIRST_CHUNK, _MOST_CHUNK = 16, 4096
"""Programs that a thread claims at once: of unknown cost, and at most."""
_NOWHERE = Resources(registers=0, spill_bytes=None, local_bytes=0, shared_bytes=0)


class _Scratch(threading.local):
    """Each thread's scratch memory, grown to the largest that a kernel asked for."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)
        self._address = 0

    def address(self, size: int) -> int:
        """Return the address of `size` bytes, at a multiple of 64."""
        if size > self._memory.size - 64:
            self._memory = np.empty(size + 64, np.uint8)
            self._address = -(-self._memory.ctypes.data // 64) * 64
        return self._address


_scratch = _Scratch()


_Job = ctypes.Array[ctypes.c_char]


def _set(job: _Job, field: str, value: int) -> None:
    """Write a field of 8 bytes, which no reader sees half written."""
    ctypes.c_int64.from_buffer(job, Job.offset(field)).value = value


class HostKernel:
    """An entry point in this process; see `tiledsl.targets.driver.Kernel`."""

    def __init__(self, code: object, address: int, scratch_bytes: int) -> None:
        self._code = code  # keeps the machine code in memory
        self._function = _signature()(address)
        self._scratch_bytes = scratch_bytes
        self._seconds_a_program: float | None = None

    @property
    def resources(self) -> Resources:
        """Nothing of interest: no tool reports registers of host code."""
        return _NOWHERE

    def launch(self, grid: Grid, threads: int, arguments: bytes, stream: int = 0) -> None:
        """Run all programs and return when they have ended; see the Protocol.

        Raises:
            KernelError: An assertion of the kernel failed.
        """
        nx, ny, nz = grid
        programs = nx * ny * nz
        if not programs:
            return
        packed = ctypes.create_string_buffer(arguments, max(1, len(arguments)))
        back = callbacks()
        fields = (0, programs, programs, ctypes.addressof(packed), back.print, back.fail, *grid)
        job = ctypes.create_string_buffer(Job.FORMAT.pack(*fields), Job.SIZE)
        start = time.perf_counter()
        try:
            team = self._run(job, programs)
        finally:
            failure = back.failures.pop(ctypes.addressof(job), None) if back.failures else None
        if failure is not None:
            raise KernelError(failure)
        self._learn((time.perf_counter() - start) * team / programs)

    def _run(self, job: _Job, programs: int) -> int:
        """Run all programs; returns how many threads it was shared out over.

        Python acts on Ctrl-C when the main thread is back from native code, so only what will soon
        be done runs on this thread in one go.
        """
        known = self._seconds_a_program
        if programs == 1 or (known is not None and known * programs <= _WORTH_SHARING):
            self._share(job)
            return 1
        team = min(thread_count(), programs)
        if team == 1:
            self._run_in_slices(job, programs)
            return 1
        chunk = -(-programs // (team * _CHUNKS_A_THREAD))
        _set(job, "chunk", min(chunk, self._soon()))
        if known is not None and known * programs <= _PATIENCE * team:
            pool().run(lambda: self._share(job), team)
        else:
            pool().run_apart(lambda: self._share(job), team, lambda: _set(job, "next", programs))
        return team

    def _run_in_slices(self, job: _Job, programs: int) -> None:
        """Run all programs on this thread, coming back to Python now and then."""
        first, count = 0, self._soon()
        failures = callbacks().failures
        while first < programs and ctypes.addressof(job) not in failures:
            end = min(first + count, programs)
            for field, value in (("next", first), ("end", end), ("chunk", count)):
                _set(job, field, value)
            start = time.perf_counter()
            self._share(job)
            if time.perf_counter() - start < _SOON / 2:
                count *= 2
            first = end

    def _soon(self) -> int:
        """Return how many programs one thread will soon have run, as far as is known."""
        known = self._seconds_a_program
        if known is None:
            return _FIRST_CHUNK
        return min(_MOST_CHUNK, max(1, int(_SOON / max(known, 1e-9))))

    def _share(self, job: _Job) -> None:
        self._function(job, _scratch.address(self._scratch_bytes))

    def _learn(self, seconds: float) -> None:
        """Take note of what a program cost; what disturbs a measurement makes it longer."""
        known = self._seconds_a_program
        self._seconds_a_program = (
            seconds if known is None else min(seconds, 0.9 * known + 0.1 * seconds)
        )


@cache
def _signature() -> Callable[[int], Callable[[Any, int], None]]:
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


class HostDriver(Immediate):
    """The CPU; see `tiledsl.targets.driver.Driver`."""

    name = "host"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._allocated: dict[int, NDArray[np.uint8]] = {}
        super().__init__()

    def devices(self) -> Sequence[DeviceInfo]:
        """The one device."""
        return [_device()]

    def load(
        self,
        binary: bytes,
        entry: str,
        shared_bytes: int,
        device: int = 0,
        options: LaunchOptions = PLAIN_LAUNCH,
    ) -> HostKernel:
        """Link an object into this process; `shared_bytes` is the scratch memory of a thread."""
        from tiledsl.targets.host.link import link

        with self._lock:
            code, address = link(binary, entry)
        return HostKernel(code, address, shared_bytes)

    def allocate(self, size: int, device: int = 0) -> int:
        """Return the address of `size` new bytes."""
        memory = np.empty(size + 64, np.uint8)
        address = -(-memory.ctypes.data // 64) * 64
        self._allocated[address] = memory
        return address

    def free(self, address: int, device: int = 0) -> None:
        """Release what `allocate` returned."""
        if self._allocated.pop(address, None) is None:
            raise KernelError(f"expected an address that was allocated, found {address:#x}")

    def copy_in(self, address: int, array: NDArray[Any], device: int = 0) -> None:
        """Copy an array to allocated memory."""
        ctypes.memmove(address, contiguous_address(array), array.nbytes)

    def copy_out(self, array: NDArray[Any], address: int, device: int = 0) -> None:
        """Copy allocated memory to an array."""
        ctypes.memmove(contiguous_address(array), address, array.nbytes)


@cache
def _device() -> DeviceInfo:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return DeviceInfo(
        index=0,
        name=platform.processor() or platform.machine(),
        chip="host",
        native=True,
        memory_bytes=pages,
        multiprocessors=os.cpu_count() or 1,
        shared_bytes=pages,
    )


@cache
def driver() -> Driver:
    """Return the process's driver."""
    return HostDriver()
