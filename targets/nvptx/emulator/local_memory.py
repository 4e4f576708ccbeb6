"""Local memory: a frame of bytes for each thread, which no other thread sees.

`load` and `store` are contracted like those of `gpu.emulator.memory`, with offsets in the frame for
addresses; the lanes are those of the access.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.cohort import Access, Mask
from tiledsl.targets.gpu.emulator.findings import Kind
from tiledsl.targets.gpu.emulator.memory import UNSIGNED

Offsets = NDArray[np.uint64]


class LocalMemory:
    """The frames of all threads."""

    def __init__(self, threads: int, size: int) -> None:
        self.size = size
        self._stride = -(-size // 16) * 16
        self._data = np.zeros(threads * self._stride, np.uint8)
        self._words = {width: self._data.view(kind) for width, kind in UNSIGNED.items()}

    def load(self, access: Access, offset: Offsets, size: int, count: int = 1) -> NDArray[Any]:
        """Return the elements at `offset`: (n,), or (n, count) where count > 1."""
        flat, bad = self._checked(access, offset, size * count, "read")
        if not self._stride:
            shape = (len(offset), count) if count > 1 else len(offset)
            return np.zeros(shape, UNSIGNED[size])
        values = self._words[size][self._index(flat, size, count)]
        if bad is not None:
            values[bad] = 0
        return values

    def store(
        self, access: Access, offset: Offsets, values: NDArray[Any], size: int, count: int = 1
    ) -> None:
        """Write the elements, (n,) or (n, count), to `offset`."""
        flat, bad = self._checked(access, offset, size * count, "write")
        if bad is not None:
            flat, values = flat[~bad], values[~bad]
        self._words[size][self._index(flat, size, count)] = values

    def _index(self, flat: NDArray[np.int64], size: int, count: int) -> NDArray[np.int64]:
        index = flat // size
        return index[:, None] + np.arange(count) if count > 1 else index

    def _checked(
        self, access: Access, offset: Offsets, width: int, verb: str
    ) -> tuple[NDArray[np.int64], Mask | None]:
        """Return offsets into all frames that are safe, and the lanes that were wrong, if any."""
        inside = offset.view(np.int64)
        outside = (inside < 0) | (inside + width > self.size)
        crooked = (inside & (width - 1)) != 0
        bad = outside | crooked
        base = access.lanes * self._stride
        if not bad.any():
            return inside + base, None

        def message(at: int) -> str:
            return (
                f"{verb} of {width} bytes at byte {int(inside[at])} of {self.size} of local memory"
            )

        if outside.any():
            access.report(Kind.OUT_OF_BOUNDS, outside, message)
        if crooked.any():
            access.report(Kind.MISALIGNED, crooked, message)
        return np.where(bad, 0, inside) + base, bad
