"""Streams and events of a driver whose launches have ended when they return.

Nothing is ever queued, so all streams are one, there is nothing to wait for, and an event is a
reading of this machine's clock.
"""

from __future__ import annotations

import itertools
import time


class Immediate:
    """Those calls of `tiledsl.targets.driver.Driver`; a driver derives from it."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._events: dict[int, float] = {}

    def synchronize(self, device: int = 0) -> None:
        """Do nothing: a launch has ended when it returns."""

    def create_stream(self, device: int = 0) -> int:
        """Return a number; all streams are one."""
        return next(self._numbers)

    def destroy_stream(self, stream: int, device: int = 0) -> None:
        """Do nothing."""

    def is_capturing(self, stream: int = 0, device: int = 0) -> bool:
        """Return False: nothing here records launches."""
        return False

    def record_event(self, stream: int = 0, device: int = 0) -> int:
        """Note the time."""
        event = next(self._numbers)
        self._events[event] = time.perf_counter()
        return event

    def elapsed_ms(self, start: int, end: int, device: int = 0) -> float:
        """Return the milliseconds between two events."""
        return (self._events[end] - self._events[start]) * 1e3

    def destroy_event(self, event: int, device: int = 0) -> None:
        """Forget an event."""
        del self._events[event]
