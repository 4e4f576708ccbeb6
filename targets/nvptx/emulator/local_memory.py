"""Local memory: a frame of bytes for each thread, which no other thread sees.

`load` and `store` are contracted like those of `gpu.emulator.memory`, with offsets in the frame for
addresses; the lanes are those of the access. A read of bytes that the thread never wrote is a
finding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.cohort import Access, Mask
from tiledsl.targets.gpu.emulator.findings import Kind
from tiledsl.targets.gpu.emulator.memory import UNSIGNED

Offsets = NDArray[np.uint64]

_ALL_WRITTEN: dict[int, Any] = {
    size: kind(int.from_bytes(b"\1" * size, "little")) for size, kind in UNSIGNED.items()
}


class LocalMemory:
    """The frames of all threads."""

    def __init__(self, threads: int, size: int) -> None:
        self.size = size
        self._stride = -(-size // 16) * 16
        self.data, written = (np.zeros(threads * self._stride, np.uint8) for _ in range(2))
        self._words = {width: self.data.view(kind) for width, kind in UNSIGNED.items()}
        self._written = {width: written.view(kind) for width, kind in UNSIGNED.items()}
        """Bytes of 1 where something was written."""

    def load(self, access: Access, offset: Offsets, size: int, count: int = 1) -> NDArray[Any]:
        """Return the elements at `offset`: (n,), or (n, count) where count > 1."""
        flat, bad = self._checked(access, offset, size * count, "read")
        if not self._stride:
            shape = (len(offset), count) if count > 1 else len(offset)
            return np.zeros(shape, UNSIGNED[size])
        index = self._index(flat, size, count)
        values = self._words[size][index]
        fresh = self._written[size][index] != _ALL_WRITTEN[size]
        if bad is not None:
            fresh[bad] = False
        if fresh.any():
            self._report_fresh(access, fresh if count == 1 else fresh.any(1), offset, size * count)
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
        index = self._index(flat, size, count)
        self._words[size][index] = values
        self._written[size][index] = _ALL_WRITTEN[size]

    def _report_fresh(self, access: Access, fresh: Mask, offset: Offsets, width: int) -> None:
        access.report(
            Kind.UNINITIALIZED,
            fresh,
            lambda at: f"read of {width} bytes at byte {int(offset[at])} of local memory",
        )

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
                f"{verb} of {width} bytes at byte {int(inside[at])} of local memory, "
                f"which has {self.size}"
            )

        if outside.any():
            access.report(Kind.OUT_OF_BOUNDS, outside, message)
        if crooked.any():
            access.report(Kind.MISALIGNED, crooked, message)
        return np.where(bad, 0, inside) + base, bad
