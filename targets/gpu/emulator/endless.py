"""Tell loops that never end from those that take long.

Two things do. A state that comes again: where one group alone can run, and every register and all
memory are as they were when it was at this place before, what follows was all there before, too.
That is found soon, whatever the kernel waits for. And a limit to the steps of one unit, for loops
that change something for ever (a counter, say).

States are compared only where the engine looks, every few steps. Registers are kept at the looks
1, 2, 4, 8, ... and compared at each one (Brent, "An improved Monte Carlo factorization algorithm",
BIT 20, 1980: a period is found once it is shorter than the distance of two of these). Memory is
kept only after registers have come again, and both must come again once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Sequence[NDArray[Any]]
Place = tuple[int, bytes]
"""The basic block and the units that are there."""


@dataclass
class _Kept:
    """A state: where, the registers, and memory once that is worth a copy."""

    place: Place
    registers: list[NDArray[Any]]
    memory: list[NDArray[Any]] | None = None


class Repetition:
    """The states that one engine has been in."""

    def __init__(self) -> None:
        self._looks = 0
        self._kept: _Kept | None = None
        self._different = 0
        """The array that was different last: it will be again, in a loop that counts."""

    def look(self, place: Place, registers: Arrays, memory: Arrays) -> bool:
        """Say whether the state is one of before.

        Args:
            place: Where the only group that can run is.
            registers: All of them; arrays of integers, always the same ones.
            memory: All that the kernel can write, likewise.
        """
        self._looks += 1
        kept = self._kept
        if kept is not None and kept.place == place and self._same(registers, kept.registers):
            if kept.memory is None:
                kept.memory = [one.copy() for one in memory]
            elif len(memory) == len(kept.memory) and all(map(np.array_equal, kept.memory, memory)):
                return True
        if self._looks & (self._looks - 1) == 0:
            self._kept = _Kept(place, [one.copy() for one in registers])
        return False

    def _same(self, registers: Arrays, kept: Arrays) -> bool:
        count = len(registers)
        first = self._different
        for number in (*range(first, count), *range(first)):
            if not np.array_equal(registers[number], kept[number]):
                self._different = number
                return False
        return True
