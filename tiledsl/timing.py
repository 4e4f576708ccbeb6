"""Time a launch: by the device's events on a GPU, by the wall clock on the host.

The time of a launch is the median of many, in milliseconds. What has to be done before each one
(setting an output to zero) is queued between the marks of two launches and not timed. Caches stay
warm between launches, as they do in a loop that a program runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from tiledsl import launch
from tiledsl.arrays import HOST
from tiledsl.call import Call

_ESTIMATE = 5
"""Launches whose mean decides how many there are."""
_MOST = 1000
"""Launches at most, for those that take microseconds."""


@dataclass(frozen=True)
class Budget:
    """How long one call is measured, in milliseconds: before it counts, and while it does."""

    warmup: float = 25.0
    rep: float = 100.0


def milliseconds(
    call: Call, grid: object, before: Callable[[], None], budget: Budget
) -> float | None:
    """Return how long a launch takes, or None where the grid is empty.

    Args:
        call: What to launch.
        grid: Its grid.
        before: What to do before each launch.
        budget: How long to measure.

    Raises:
        KernelError: The launch fails.
    """
    with call.ready(grid) as run:
        if run is None:
            return None
        if call.loaded.place == HOST:
            return _repeated(lambda: _wall_clock(run, before), budget)
        stream = call.stream()
        place = call.loaded.place
        return _repeated(lambda: _events(run, before, place, stream), budget)


def _repeated(once: Callable[[], Callable[[], float]], budget: Budget) -> float:
    """Return the median of as many launches as a budget allows.

    Args:
        once: Launches, and returns a function that says how long it took, once that is known.
        budget: How long to measure.
    """
    once()()  # the first is slower than all others
    estimate = max(sum(finish() for finish in [once() for _ in range(_ESTIMATE)]) / _ESTIMATE, 1e-4)
    for _ in range(min(_MOST, int(budget.warmup / estimate))):
        once()()
    count = min(_MOST, max(1, int(budget.rep / estimate)))
    return median([finish() for finish in [once() for _ in range(count)]])


def _wall_clock(run: Callable[[], None], before: Callable[[], None]) -> Callable[[], float]:
    before()
    start = time.perf_counter()
    run()
    taken = (time.perf_counter() - start) * 1e3
    return lambda: taken


def _events(
    run: Callable[[], None], before: Callable[[], None], place: str, stream: int
) -> Callable[[], float]:
    driver, index = launch.driver_of(place), launch.split_place(place)[1]
    before()
    start = driver.record_event(stream, index)
    run()
    end = driver.record_event(stream, index)

    def finish() -> float:
        try:
            return driver.elapsed_ms(start, end, index)
        finally:
            driver.destroy_event(start, index)
            driver.destroy_event(end, index)

    return finish
