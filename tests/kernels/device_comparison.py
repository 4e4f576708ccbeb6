"""Run every launch on a CUDA device on the PTX emulator too, and compare all memory.

`pytest -m gpu --compare-emulator` does this to the kernel suite. Before a launch the memory that its
pointers lie in is copied; after it, the emulator executes the PTX that the device's code was made of
on that copy, and every byte must be equal. Instructions whose results PTX does not define
(`approximations.BOUNDS`) the emulator has the device compute one by one, so what is compared is
all the rest; `tests/targets/nvptx/emulator/test_on_device.py` holds those to their bounds.

Tests whose memory depends on which program comes first are named in `UNORDERED`: there a difference
counts, and is none. What is not compared (memory of another library, graphs, launches that take an
emulator too long) is counted too.
"""

from __future__ import annotations

import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.targets.nvptx.emulator.on_device import Functions, record
from tiledsl import launch
from tiledsl.targets.driver import Grid
from tiledsl.targets.nvptx.emulator import approximations

Array = NDArray[Any]
SECONDS = 30
"""The longest that one launch may take the emulator; what takes longer is not compared."""
_MOST_THREADS = 1 << 22
"""Threads of a launch that would certainly take longer."""
_MOST_BYTES = 1 << 28

UNORDERED = ("test_scalar_atomics_act_once_a_program",)
"""Tests that hand out tickets: which program gets which is nobody's promise."""


class Difference(AssertionError):
    """The device and the emulator left different memory."""


@dataclass(frozen=True)
class Copied:
    """An allocation of the device: where it lies, and what it holds."""

    address: int
    content: Array


class Comparison:
    """Compares launches on one device.

    Args:
        device: Its driver.
        chip: Which chip it is.

    Attributes:
        name: Of the test that runs, for the log.
        counts: How many launches ended in which way.
    """

    def __init__(self, device: Any, chip: str) -> None:
        self.device = device
        self.counts: Counter[str] = Counter()
        self._place = f"emulate:{chip}"
        self._emulator: Any = launch.driver_of(self._place)
        self._sizes: dict[int, int] = {}
        self._shadows: dict[int, tuple[launch.Loaded, launch.Loaded]] = {}
        self._functions = Functions(device, chip)
        self._lock = threading.RLock()
        self.name = ""

    # --- what the device does --------------------------------------------------------------------

    @contextmanager
    def watching(self) -> Generator[None]:
        """Follow the device's allocations, and compare its launches, within this block."""
        mine, allocate, free = self.device, self.device.allocate, self.device.free
        run = launch.Loaded.launch

        def allocating(size: int, device: int = 0) -> int:
            address = allocate(size, device)
            self._sizes[address] = size
            return address

        def freeing(address: int, device: int = 0) -> None:
            self._sizes.pop(address, None)
            free(address, device)

        def launching(
            loaded: launch.Loaded, grid: Grid, values: Sequence[int | float], stream: int
        ) -> None:
            if launch.driver_of(loaded.place) is not mine:
                run(loaded, grid, values, stream)
                return
            with self._lock:
                self._launch(run, loaded, grid, values, stream)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mine, "allocate", allocating)
            patch.setattr(mine, "free", freeing)
            patch.setattr(launch.Loaded, "launch", launching)
            yield

    def _launch(
        self,
        run: Callable[..., None],
        loaded: launch.Loaded,
        grid: Grid,
        values: Sequence[int | float],
        stream: int,
    ) -> None:
        why = self._why_not(loaded, grid, values, stream)
        before = [] if why else self._copied(loaded, values)
        run(loaded, grid, values, stream)
        if why:
            self._note(loaded, grid, why)
            return
        self.device.synchronize()
        after = [self._content(one.address, len(one.content)) for one in before]
        try:
            with _limit(SECONDS):
                found = self._emulate(loaded, grid, values, before)
        except TimeoutError:
            self._note(loaded, grid, "too long for the emulator")
            return
        self._judge(loaded, grid, before, after, found)

    def _why_not(
        self, loaded: launch.Loaded, grid: Grid, values: Sequence[int | float], stream: int
    ) -> str:
        """Return why a launch cannot be compared, "" if it can."""
        if self.device.is_capturing(stream):
            return "recorded into a graph"
        if int(np.prod(grid)) * loaded.compiled.artifact.threads > _MOST_THREADS:
            return "too long for the emulator"
        for position in _pointers(loaded):
            address = int(values[position])
            if address and self._owner(address) is None:
                return "memory that another library allocated"
        if sum(self._sizes[one] for one in self._owners(loaded, values)) > _MOST_BYTES:
            return "too much memory"
        return ""

    def _owner(self, address: int) -> int | None:
        """Return the allocation that holds a byte, or that ends there."""
        sizes = list(self._sizes.items())
        inside = [one for one, size in sizes if one <= address < one + size]
        ends = [one for one, size in sizes if address == one + size]
        return next(iter(inside + ends), None)

    def _owners(self, loaded: launch.Loaded, values: Sequence[int | float]) -> list[int]:
        found = [self._owner(int(values[position])) for position in _pointers(loaded)]
        return sorted({one for one in found if one is not None})

    def _content(self, address: int, size: int) -> Array:
        content = np.empty(size, np.uint8)
        self.device.copy_out(content, address)
        return content

    def _copied(self, loaded: launch.Loaded, values: Sequence[int | float]) -> list[Copied]:
        self.device.synchronize()
        owners = self._owners(loaded, values)
        return [Copied(one, self._content(one, self._sizes[one])) for one in owners]

    # --- what the emulator does ------------------------------------------------------------------

    def _shadow(self, loaded: launch.Loaded) -> launch.Loaded:
        """Return the same kernel on the emulator, approximations left to the device."""
        held = self._shadows.get(id(loaded))
        if held is None:
            with approximations.computed_by(self._functions):
                held = loaded, launch.Loaded(loaded.compiled, self._place)
            self._shadows[id(loaded)] = held
        return held[1]

    def _emulate(
        self, loaded: launch.Loaded, grid: Grid, values: Sequence[int | float], before: list[Copied]
    ) -> list[Array]:
        """Return what the emulator leaves in the same memory."""
        memory = self._emulator.memory
        places = [memory.allocate(len(one.content), written=True) for one in before]
        try:
            for place, one in zip(places, before, strict=True):
                memory.bytes_at(place, len(one.content))[:] = one.content
            passed = list(values)
            for position in _pointers(loaded):
                address = int(values[position])
                owner = self._owner(address) if address else None
                for place, one in zip(places, before, strict=True):
                    if one.address == owner:
                        passed[position] = place + address - one.address
            self._shadow(loaded).launch(grid, passed, 0)
            return [
                memory.bytes_at(place, len(one.content)).copy()
                for place, one in zip(places, before, strict=True)
            ]
        finally:
            for place in places:
                memory.free(place)

    # --- what comes of it ------------------------------------------------------------------------

    def _judge(
        self,
        loaded: launch.Loaded,
        grid: Grid,
        before: list[Copied],
        after: list[Array],
        found: list[Array],
    ) -> None:
        unequal = sum(int((x != y).sum()) for x, y in zip(after, found, strict=True))
        size = sum(map(len, after))
        if not unequal:
            self._note(loaded, grid, "equal", bytes=size)
            return
        if self.name.startswith(UNORDERED):
            self._note(loaded, grid, "in another order", bytes=size, unequal=unequal)
            return
        told = "; ".join(
            _first(after[i], found[i], before[i].content)
            for i in range(len(after))
            if (after[i] != found[i]).any()
        )
        self._note(loaded, grid, "different", bytes=size, unequal=unequal, told=told)
        raise Difference(
            f"{loaded.compiled.name}: the device and the emulator differ in {unequal} of {size} "
            f"bytes: {told}"
        )

    def _note(self, loaded: launch.Loaded, grid: Grid, how: str, **more: object) -> None:
        self.counts[how] += 1
        used = sorted(set(_APPROXIMATE.findall(ptx_of(loaded)))) if how == "equal" else []
        record(
            kind="launch", test=self.name, kernel=loaded.compiled.name, grid=list(grid), how=how,
            approximate=[one for one in used if approximations.bound_of(one)], **more,
        )  # fmt: skip


_APPROXIMATE = re.compile(r"\b\w+\.(?:approx|full)[.\w]*")


def _pointers(loaded: launch.Loaded) -> list[int]:
    signature = loaded.compiled.request.signature.values()
    return [i for i, one in enumerate(signature) if one.pointer]


def ptx_of(loaded: launch.Loaded) -> str:
    """Return the PTX that a kernel's code was made of."""
    return str(loaded.compiled.artifact.texts["ptx"])


def _first(device: Array, emulator: Array, before: Array) -> str:
    """Show the first bytes that differ, as words."""
    at = int(np.flatnonzero(device != emulator)[0]) // 4 * 4
    words = (one[at : at + 8].tobytes().hex(" ", 4) for one in (before, device, emulator))
    return "at byte {}: {} became {} on the device, {} on the emulator".format(at, *words)


@contextmanager
def _limit(seconds: int) -> Generator[None]:
    """Raise a TimeoutError in this block once it has taken so long."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets signals
        return

    def stop(number: int, frame: object) -> None:
        raise TimeoutError

    old = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)
