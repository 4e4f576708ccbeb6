"""Where buffers that live at different times go in shared memory.

First fit by decreasing size over live intervals: the largest buffer goes to offset 0, each next one
to the lowest aligned offset at which it meets no buffer that lives while it does. Good enough
because kernels have few buffers of few sizes; what matters is that the big ones of the main loop
and the big ones of the epilogue share bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Lifetime:
    """A buffer: when it lives, first and last moment included, and what room it takes."""

    start: int
    end: int
    bytes: int
    alignment: int = 16

    def meets(self, other: Lifetime) -> bool:
        """Whether both live at some moment."""
        return self.start <= other.end and other.start <= self.end


@dataclass(frozen=True)
class Placement:
    """Byte offsets of the buffers, in the order they were given, and the bytes of all together."""

    offsets: tuple[int, ...]
    bytes: int


def place(buffers: Sequence[Lifetime], lone_bytes: int = 0) -> Placement:
    """Place `buffers`; those of at most `lone_bytes` share their bytes with none."""
    order = sorted(range(len(buffers)), key=lambda i: -buffers[i].bytes)
    offsets: dict[int, int] = {}
    for i in order:
        one = buffers[i]
        taken = sorted(
            (offset, offset + buffers[j].bytes)
            for j, offset in offsets.items()
            if one.meets(buffers[j]) or min(one.bytes, buffers[j].bytes) <= lone_bytes
        )
        offsets[i] = _first_gap(taken, one)
    end = max((offset + buffers[i].bytes for i, offset in offsets.items()), default=0)
    return Placement(tuple(offsets[i] for i in range(len(buffers))), end)


def _first_gap(taken: Sequence[tuple[int, int]], one: Lifetime) -> int:
    offset = 0
    for start, end in taken:
        if offset + one.bytes <= start:
            break
        offset = max(offset, -(-end // one.alignment) * one.alignment)
    return offset
