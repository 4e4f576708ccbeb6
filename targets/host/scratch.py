"""Place the buffers of one program in its scratch memory.

Buffers that are never in use at the same time share bytes. Use is told in the order in which code
is emitted: `touch` at each access. A loop repeats its body, so what was there before the loop and
is touched in it stays in use until the loop's end.

Free of MLIR; a placed arena is checked by a property test: no two buffers in use at once overlap.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector."""


@dataclass
class Slot:
    """One buffer: its size and the first and last moment of its use."""

    size: int
    first: int
    last: int
    offset: int = 0


class Arena:
    """Collects buffers, then places them."""

    def __init__(self) -> None:
        self._now = 0
        self.slots: list[Slot] = []

    def add(self, size: int) -> int:
        """Return the number of a new buffer of `size` bytes, in use from now."""
        self._now += 1
        self.slots.append(Slot(-(-size // ALIGNMENT) * ALIGNMENT, self._now, self._now))
        return len(self.slots) - 1

    def touch(self, number: int) -> None:
        """Note a use."""
        self._now += 1
        self.slots[number].last = self._now

    @contextmanager
    def loop(self) -> Generator[None]:
        """Within, code is emitted that runs again and again."""
        start = self._now
        yield
        self._now += 1
        for slot in self.slots:
            if slot.first <= start < slot.last:
                slot.last = self._now

    def place(self) -> int:
        """Set every buffer's offset; return the bytes needed in all.

        Largest first, each at the lowest offset that is free throughout its use.
        """
        placed: list[Slot] = []
        end = 0
        for slot in sorted(self.slots, key=lambda slot: -slot.size):
            others = sorted(
                (o for o in placed if o.first <= slot.last and slot.first <= o.last),
                key=lambda other: other.offset,
            )
            offset = 0
            for other in others:
                if offset + slot.size <= other.offset:
                    break
                offset = max(offset, other.offset + other.size)
            slot.offset = offset
            placed.append(slot)
            end = max(end, offset + slot.size)
        return end
