"""What is compared, and what was found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Contender:
    """One of those compared.

    Attributes:
        name: As the table has it.
        run: Launches once, on the set of inputs of that number.
        error: Relative error of what it computed, None if nobody looked.
        sustained: Whether it takes part in sustained measurements.
    """

    name: str
    run: Callable[[int], object]
    error: float | None = None
    sustained: bool = True


@dataclass(frozen=True)
class Case:
    """One thing that all contenders compute.

    Attributes:
        family: As "gemm".
        what: What is computed, without the size: a panel of the plot.
        size: The size, as text: a place along a plot.
        work: What is done; divided by milliseconds it is in `unit`.
        unit: "TFLOP/s" or "GB/s".
        base: The contender that ratios are to.
        contenders: Makes them, and checks their results.
        sets: How many sets of inputs there are.
        sustained: Whether to measure that, too.
    """

    family: str
    what: str
    size: str
    work: float
    unit: str
    base: str
    contenders: Callable[[], Sequence[Contender]]
    sets: int = 1
    sustained: bool = False


@dataclass
class Row:
    """A contender's result in a case; rates are in `unit`."""

    family: str
    what: str
    size: str
    who: str
    unit: str
    burst: float
    sustained: float | None = None
    burst_ratio: float | None = None
    sustained_ratio: float | None = None
    error: float | None = None
    rounds: list[float] = field(default_factory=list[float])


def with_ratios(rows: list[Row], base: str) -> list[Row]:
    """Add what each row is of the one that all are compared to."""
    found = next((row for row in rows if row.who == base), None)
    if found is None:
        return rows
    for row in rows:
        row.burst_ratio = row.burst / found.burst
        if row.sustained is not None and found.sustained is not None:
            row.sustained_ratio = row.sustained / found.sustained
    return rows
