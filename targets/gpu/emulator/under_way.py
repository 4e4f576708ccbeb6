"""Which bytes of shared memory asynchronous operations are using.

They are counted by granule, which is exact, and by page, which is cheap to ask: a pipelined loop
copies into other pages than it reads, so most accesses look no further.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tiledsl.targets.gpu.emulator.races import Positions, Touch, granules_of

Mask = NDArray[np.bool_]

_PAGE = 9
"""Binary logarithm of a page's bytes."""


class UnderWay:
    """Which granules asynchronous operations are using, counted by granule and by page."""

    def __init__(self, granules: int, shift: int, stride: int) -> None:
        self._shift = shift
        self._stride = stride
        self._writes = np.zeros(granules, np.int32)
        self._reads = np.zeros(granules, np.int32)
        pages = (stride >> _PAGE) + 1
        self._pages = {True: np.zeros(pages, np.int64), False: np.zeros(pages, np.int64)}

    def begin(self, granules: Positions, touch: Touch, *, writing: bool) -> None:
        """Count lanes' operations in."""
        # One granule may be in use twice. NumPy's `add.at` is quick where all types agree.
        np.add.at(self._writes if writing else self._reads, granules.ravel(), np.int32(1))
        self._pages[writing] += self._by_page(granules)

    def end(self, granules: Positions, *, writing: bool) -> None:
        """Count lanes' operations out."""
        np.add.at(self._writes if writing else self._reads, granules.ravel(), np.int32(-1))
        self._pages[writing] -= self._by_page(granules)

    def _by_page(self, granules: Positions) -> NDArray[np.int64]:
        each = max(1 << _PAGE >> self._shift, 1)
        ends = np.concatenate((granules[:, ::each], granules[:, -1:]), axis=1)
        pages = ((ends << self._shift) % self._stride) >> _PAGE
        return np.bincount(pages.ravel(), minlength=len(self._pages[True]))

    def by_writes(self, touch: Touch) -> Mask | None:
        """Return which lanes touch a granule that is being written; None if none does."""
        return self._busy(touch, self._writes) if self._any(touch, True) else None

    def by_any(self, touch: Touch) -> Mask | None:
        """Return which lanes touch a granule that is being used; None if none does."""
        writing = self.by_writes(touch)
        reading = self._busy(touch, self._reads) if self._any(touch, False) else None
        if writing is None or reading is None:
            return reading if writing is None else writing
        return writing | reading

    def _any(self, touch: Touch, writing: bool) -> bool:
        low, high = touch.low >> _PAGE, (touch.high - 1 >> _PAGE) + 1
        return bool(self._pages[writing][low:high].any())

    def _busy(self, touch: Touch, counts: NDArray[np.int32]) -> Mask | None:
        counted = counts[granules_of(touch.flat, touch.width, self._shift)]
        busy = np.logical_or.reduce(counted > 0, 1)
        return busy if busy.any() else None
