"""Time the contenders of a case by two protocols, which a hot GPU makes necessary.

An H200 runs a product at full clocks for about 35 ms and then, at its power limit, 15 percent
slower for as long as the work lasts; a block timed after a slow kernel profits from the rest that
the card had. So each case is timed

- in a *burst*: 60 ms of rest, then a block of about 8 ms; the median of three, and
- *sustained*: 100 ms of the same kernel to warm up, then 250 ms; each contender twice, the second
  time in the opposite order.

Contenders take turns within a round. Blocks are timed by the device's events. Launches shorter than
0.2 ms are captured in a CUDA graph, 20 at a time, so that what is timed is the device and not the
queue. Inputs are random; where they fit in the L2 cache there are as many sets of them as do not,
and launches go round.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from benchmarks.case import Case, Contender, Row, with_ratios

REST, BLOCK, ROUNDS = 0.06, 8.0, 3
"""Seconds of rest before a burst, milliseconds of one, and how many."""
WARM, LONG = 100.0, 250.0
"""Milliseconds before and of a sustained measurement."""
GRAPHED, IN_GRAPH = 0.2, 20
"""Milliseconds of a launch below which it goes into a graph, and how many go."""
L2_BYTES = 60 << 20
_HEAD_START = 2_000_000
"""Cycles, about a millisecond, that the queue has to fill before anything is timed."""
MOST_SETS = IN_GRAPH


@dataclass(frozen=True)
class _Block:
    """Launches that are timed together: each `go` makes `launches` of them, of `ms` each."""

    go: Callable[[], object]
    launches: int
    ms: float

    def time(self, wanted: float) -> float:
        """Return the milliseconds of a launch, over a block of `wanted` milliseconds."""
        count = max(1, round(wanted / (self.ms * self.launches)))

        def run() -> None:
            for _ in range(count):
                self.go()

        return elapsed(run) / (count * self.launches)


def elapsed(run: Callable[[], object]) -> float:
    """Return the milliseconds that the device takes for what `run` queues.

    It spins first, so that the first launches are in its queue when it begins.
    """
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(_HEAD_START)  # pyright: ignore[reportPrivateUsage]
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def sets_of(size: int) -> int:
    """Return how many sets of inputs of `size` bytes do not fit in the cache together."""
    return min(MOST_SETS, -(-2 * L2_BYTES // size))


def _block(contender: Contender, sets: int) -> _Block:
    for number in range(sets):
        contender.run(number)
    torch.cuda.synchronize()
    ms = min(elapsed(lambda: contender.run(0)) for _ in range(3))
    if ms >= GRAPHED:
        turns = itertools.cycle(range(sets))
        return _Block(lambda: contender.run(next(turns)), 1, ms)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(IN_GRAPH):
            contender.run(number % sets)
    graph.replay()
    return _Block(graph.replay, IN_GRAPH, elapsed(graph.replay) / IN_GRAPH)


def check(case: Case) -> list[Row]:
    """Make a case's contenders, which checks their results; returns a row for each."""
    rows = [
        Row(case.family, case.what, case.size, one.name, case.unit, 0.0, error=one.error)
        for one in case.contenders()
    ]
    torch.cuda.synchronize()
    return rows


def measure(case: Case) -> list[Row]:
    """Time a case's contenders; returns a row for each."""
    contenders = case.contenders()
    blocks = {one.name: _block(one, case.sets) for one in contenders}
    names = list(blocks)
    bursts: dict[str, list[float]] = {name: [] for name in names}
    for number in range(ROUNDS):
        for name in names if number % 2 == 0 else reversed(names):
            torch.cuda.synchronize()
            time.sleep(REST)
            bursts[name].append(blocks[name].time(BLOCK))
    long: dict[str, list[float]] = {name: [] for name in names}
    held = [one.name for one in contenders if one.sustained and case.sustained]
    for order in (held, held[::-1]):
        for name in order:
            blocks[name].time(WARM)
            long[name].append(blocks[name].time(LONG))
    rows = [
        Row(
            *(case.family, case.what, case.size, one.name, case.unit),
            burst=case.work / median(bursts[one.name]),
            sustained=case.work / median(long[one.name]) if long[one.name] else None,
            error=one.error,
            rounds=[case.work / ms for ms in bursts[one.name] + long[one.name]],
        )
        for one in contenders
    ]
    return with_ratios(rows, case.base)


def relative_error(found: torch.Tensor, reference: torch.Tensor) -> float:
    """Return the relative Frobenius error; NaN where anything is."""
    difference = found.double() - reference.double()
    return float(difference.norm() / reference.double().norm())


OTHERS = ("triton", "flash")
"""Contenders that are measured in bursts alone: what is sustained is for the library's ratio."""


def checked(
    name: str, run: Callable[[int], object], error: Callable[[], float], most: float
) -> Contender:
    """Run a contender once and look at what it computed.

    Raises:
        ValueError: It is wrong.
    """
    run(0)
    torch.cuda.synchronize()
    found = error()
    if not found < most:
        raise ValueError(f"{name}: expected an error below {most}, found {found}")
    return Contender(name, run, found, name not in OTHERS)


def those_that_run(makers: Sequence[Callable[[], Contender]]) -> list[Contender]:
    """Make contenders; tell which ones cannot take part, and why."""
    found: list[Contender] = []
    for make in makers:
        try:
            found.append(make())
        except Exception as problem:
            print(f"  left out: {type(problem).__name__}: {str(problem)[:800]}", flush=True)
    return found
