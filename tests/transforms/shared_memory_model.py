"""A model of shared memory that refuses what hardware leaves undefined.

Reading a slot before its asynchronous copy was waited for, or one that was never written, is an
error. With `barriers`, so are two accesses of a slot, one of them a write, that no barrier
separates, unless both go by one layout and so are made element by element by the same threads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mlir import ir

Array = np.ndarray[Any, Any]
Layout = str | None


@dataclass
class Slot:
    """One tile's place.

    Attributes:
        held: What it holds, None before it is written.
        flying: Copies to it that are not waited for yet.
        written: Barriers passed when it was last written, and by which layout.
        read: The same of each layout that read it since.
    """

    held: Array | None = None
    flying: int = 0
    written: tuple[int, Layout] | None = None
    read: dict[Layout, int] = field(default_factory=dict[Layout, int])


Group = list[tuple[Slot, Array]]


@dataclass
class SharedMemory:
    """The shared memory of one program.

    Attributes:
        barriers: Whether missing barriers are errors.
    """

    barriers: bool = False
    passed: int = 0
    buffers: dict[ir.Operation, list[Slot]] = field(default_factory=dict[ir.Operation, list[Slot]])
    open: Group = field(default_factory=list[tuple[Slot, Array]])
    closed: list[Group] = field(default_factory=list[Group])

    def allocate(self, op: ir.Operation, slots: int) -> list[Slot]:
        """Return the slots that an op allocates, the same ones each time."""
        found = self.buffers.setdefault(op, [Slot() for _ in range(slots)])
        for slot in found:
            assert slot.flying == 0, "allocated while copies are in flight"
            slot.held = None
        return found

    def store(self, slot: Slot, value: Array, layout: Layout) -> None:
        """Write a slot from registers."""
        assert slot.flying == 0, "stored to a slot that is being copied to"
        self._before_write(slot, layout)
        slot.held = value
        slot.written = (self.passed, layout)

    def load(self, slot: Slot, layout: Layout) -> Array:
        """Read a slot."""
        assert slot.flying == 0, "read a slot before its copy was waited for"
        assert slot.held is not None, "read a slot that was never written"
        self._apart(slot.written, layout, "read a slot before a barrier after its write")
        slot.read[layout] = self.passed
        return slot.held

    def _apart(self, before: tuple[int, Layout] | None, layout: Layout, fault: str) -> None:
        if self.barriers and before is not None:
            same = layout is not None and before[1] == layout
            assert before[0] < self.passed or same, fault

    def _before_write(self, slot: Slot, layout: Layout) -> None:
        self._apart(slot.written, layout, "wrote a slot twice without a barrier between")
        for reader, when in slot.read.items():
            self._apart((when, reader), layout, "wrote a slot before a barrier after its read")
        slot.read.clear()

    def copy(self, slot: Slot, value: Array) -> None:
        """Begin an asynchronous copy."""
        self._before_write(slot, None)
        slot.flying += 1
        slot.held = None
        self.open.append((slot, value))

    def commit(self) -> None:
        """Close the group of copies."""
        self.closed.append(self.open)
        self.open = []

    def wait(self, pending: int) -> None:
        """Finish groups until `pending` are unfinished."""
        while len(self.closed) > pending:
            for slot, value in self.closed.pop(0):
                slot.flying -= 1
                slot.held = value
                slot.written = (self.passed, None)

    def barrier(self) -> None:
        """Let all threads meet."""
        self.passed += 1
