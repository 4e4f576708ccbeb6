"""Memory of a program's threads, as bytes, refusing what hardware leaves undefined.

Global memory refuses accesses outside of its arrays and misaligned ones. Shared memory knows which
thread touched each byte since the last barrier, and refuses what would be a race.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mlir import ir

from tests.transforms.arith_evaluator import DTYPES, Array

_GLOBAL_BASE = 1 << 32
_GUARD = 256


def dtype_of(type_: ir.Type) -> np.dtype[Any]:
    """Return the NumPy type of a scalar or of a vector's elements."""
    element = type_.element_type if isinstance(type_, ir.VectorType) else type_
    text = str(element)
    return np.dtype(np.int64) if text.startswith("!llvm.ptr") else DTYPES[text]


@dataclass
class Global:
    """Global memory: copies of arrays, far apart, at 256-byte boundaries."""

    data: Array = field(default_factory=lambda: np.zeros(0, np.uint8))
    valid: Array = field(default_factory=lambda: np.zeros(0, np.bool_))
    places: list[tuple[int, Array]] = field(default_factory=list[tuple[int, Array]])

    def add(self, array: Array) -> int:
        """Put an array in memory; return its address."""
        start = len(self.data) + _GUARD
        size = -(-array.nbytes // _GUARD) * _GUARD
        self.data = np.concatenate([self.data, np.zeros(_GUARD + size, np.uint8)])
        self.valid = np.concatenate([self.valid, np.zeros(_GUARD + size, np.bool_)])
        self.data[start : start + array.nbytes] = array.view(np.uint8).ravel()
        self.valid[start : start + array.nbytes] = True
        self.places.append((start, array))
        return _GLOBAL_BASE + start

    def copy_back(self) -> None:
        """Write memory back to the arrays."""
        for start, array in self.places:
            held = self.data[start : start + array.nbytes]
            array[...] = held.view(array.dtype).reshape(array.shape)

    def read(self, addresses: Array, count: int, dtype: np.dtype[Any], active: Array) -> Array:
        """Return `count` elements from each active thread's address; zeros elsewhere."""
        places = self._places(addresses, count * dtype.itemsize, active)
        found = self.data[np.where(active[:, None], places, 0)]
        found[~active] = 0
        return np.ascontiguousarray(found).view(dtype)

    def write(self, addresses: Array, values: Array, active: Array) -> None:
        """Write each active thread's vector, threads in order."""
        data = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)
        places = self._places(addresses, data.shape[1], active)
        self.data[places[active]] = data[active]

    def _places(self, addresses: Array, size: int, active: Array) -> Array:
        assert np.all(addresses[active] % size == 0), "misaligned access of global memory"
        places = (addresses - _GLOBAL_BASE)[:, None] + np.arange(size)
        inside = (places >= 0) & (places < len(self.data))
        assert np.all(inside[active]), "wild pointer"
        assert np.all(self.valid[places[active]]), "out of bounds"
        return places


@dataclass
class Shared:
    """Shared memory, and who touched each byte since the last barrier (-1: nobody, -2: several)."""

    size: int
    threads: int

    def __post_init__(self) -> None:
        self.data = np.full(self.size, 0xA5, np.uint8)
        self.written = np.zeros(self.size, np.bool_)
        self.barrier()

    def barrier(self, warps: bool = False) -> None:
        """Forget accesses: all of them, or those that only one warp made."""
        if warps:
            # What one warp touched, its own threads may now touch.
            self.writer = np.where(self.writer >= 0, -3 - self.writer // 32, self.writer)
            self.reader = np.where(self.reader >= 0, -3 - self.reader // 32, self.reader)
            return
        self.writer = np.full(self.size, -1)
        self.reader = np.full(self.size, -1)

    def _conflict(self, owner: Array, places: Array, thread: int) -> bool:
        held = owner[places]
        mine = (held == -1) | (held == thread) | (held == -3 - thread // 32)
        return not bool(np.all(mine))

    def read(self, addresses: Array, size: int, active: Array) -> Array:
        """Return `size` bytes from each active thread's address."""
        found = np.zeros((self.threads, size), np.uint8)
        for thread in np.flatnonzero(active).tolist():
            places = self._places(int(addresses[thread]), size)
            assert np.all(self.written[places]), "shared memory read before it was written"
            assert not self._conflict(self.writer, places, thread), "race: read of a fresh write"
            held = self.reader[places]
            self.reader[places] = np.where((held == -1) | (held == thread), thread, -2)
            found[thread] = self.data[places]
        return found

    def write(self, addresses: Array, data: Array, active: Array) -> None:
        """Write each active thread's bytes."""
        for thread in np.flatnonzero(active).tolist():
            places = self._places(int(addresses[thread]), data.shape[1])
            assert not self._conflict(self.writer, places, thread), "race: two writers"
            assert not self._conflict(self.reader, places, thread), "race: write under a reader"
            self.writer[places] = thread
            self.written[places] = True
            self.data[places] = data[thread]

    def _places(self, address: int, size: int) -> Array:
        assert address % size == 0, "misaligned access of shared memory"
        assert 0 <= address <= self.size - size, "shared memory out of bounds"
        return np.arange(address, address + size)
