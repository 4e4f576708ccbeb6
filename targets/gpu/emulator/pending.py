"""Asynchronous operations that were issued and have not yet taken effect, for each unit in order.

A unit is whatever counts its operations for itself: a wave (AMD's counters) or a thread (NVIDIA's
cp.async groups). `issue` files an operation for some units; `wait` completes, unit by unit, all but
the youngest `keep` of them. In EAGER mode an operation takes effect when it is issued, and is only
kept to know what is outstanding.

Invariant: the operations of one unit complete in the order in which it issued them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Units = NDArray[np.intp]
Complete = Callable[[NDArray[np.bool_]], None]
"""Lets an operation take effect for the rows (positions in its `units`) in the mask."""


@dataclass
class _Operation:
    units: Units
    serial: NDArray[np.int64]
    complete: Complete
    waiting: NDArray[np.bool_]


class Pending:
    """The queue of one counter, for all units of a cohort."""

    def __init__(self, units: int) -> None:
        self.issued = np.zeros(units, np.int64)
        """Operations each unit has issued so far."""
        self._completed = np.zeros(units, np.int64)
        """Of these, the oldest that have been completed."""
        self._operations: list[_Operation] = []

    def __bool__(self) -> bool:
        return bool(self._operations)

    def __len__(self) -> int:
        return len(self._operations)

    def issue(self, units: Units, complete: Complete, *, advance: bool = True) -> None:
        """File an operation of some units, each at most once.

        Args:
            units: Who issues it.
            complete: What happens when it takes effect; called once for each row.
            advance: Whether it counts as one more operation; False adds it to the group that is
                being gathered, which `commit` closes.
        """
        serial = self.issued[units]
        self._operations.append(_Operation(units, serial, complete, np.ones(len(units), np.bool_)))
        if advance:
            self.issued[units] += 1

    def commit(self, units: Units) -> None:
        """Close the group that each of the units has been gathering."""
        self.issued[units] += 1

    def wait(self, units: NDArray[np.bool_], keep: int | NDArray[Any] = 0) -> None:
        """Complete all but the youngest `keep` operations of the units in a mask.

        Nothing is looked at that is younger than what the units wait for: queues may be long, and
        waits many.
        """
        limit = self.issued - keep
        behind = units & (self._completed < limit)
        if not behind.any():
            return
        self._completed[behind] = limit[behind]
        left: list[_Operation] = []
        for place, operation in enumerate(self._operations):
            if not behind.any():
                left += self._operations[place:]
                break
            owner = operation.units
            asked = behind[owner]
            early = operation.serial < limit[owner]
            ready = operation.waiting & asked & early
            if ready.any():
                operation.complete(ready)
                operation.waiting &= ~ready
            behind[owner[asked & ~early]] = False
            if operation.waiting.any():
                left.append(operation)
        self._operations = left

    def outstanding(self, units: NDArray[np.bool_]) -> bool:
        """Say whether any unit in a mask waits for something."""
        return any((one.waiting & units[one.units]).any() for one in self._operations)
