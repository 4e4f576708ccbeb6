"""Which cases of the suite run on which emulated chips.

Emulating costs, so not every case runs on every chip each time. The rules are functions of what was
collected, in its order, so that each process and each day choose the same:

1. By default the chips are three, one of each family of matrix instructions (`FAMILIES`), with 4
   warps.
2. Every test runs on each of them for every operation and every type. Only cases that differ in
   nothing but a form (`FORMS`: a shape, an axis, a number of stages, ...) take turns: the first goes
   to one chip, the second to the next, and so round. With each type the round begins at another
   chip. So each chip has all operations and types, and each form some chip.
3. Tests that go through lengths of arrays (the fixture `lengths`) have all of them for two types,
   and for the others those that share one compilation, which costs most of a test's time.
4. What takes an emulator minutes runs nightly, and what takes it hours not at all (`TOO_LONG`).

With --nightly the three chips have all cases, all lengths, and 1, 2 and 8 warps too; and the ten
`OTHERS` take part: products (`PRODUCTS`), in which chips differ most, by rule 2 on each of them, and
the cases of all other tests in turn, each on one chip.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import pytest

from tests.kernels.oracle import PLAIN_SIZES, SIZES
from tiledsl import dtypes
from tiledsl.dtypes import DType

FAMILIES = ("sm_80", "gfx942", "gfx1201")
"""mma.sync, mfma, wmma."""
OTHERS = (
    "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120",
    "gfx90a", "gfx950", "gfx1100", "gfx1151", "gfx1200",
)  # fmt: skip
WARPS = 4
OTHER_WARPS = (1, 2, 8)
NIGHTLY = pytest.mark.nightly

FORMS = frozenset({
    "axis", "block", "body", "bounds", "causal", "columns", "d", "divisor", "fused", "k", "length", "m",
    "module", "n", "order", "other", "rows", "shape", "shift", "size", "stages", "stride", "total",
    "transpose", "turned", "values", "words", "wrong",
})  # fmt: skip
"""Parameters of tests that say how an operation is asked for, not which one or on which type.

Of the examples that means masks and epilogues, and whole examples (`module`): what they run on any
chip is tested kernel by kernel, type by type."""
PRODUCTS = ("test_dot.py", "test_cases_dot.py", "test_descriptors.py", "test_examples.py")
"""Files of tests."""
TOO_LONG = {
    "test_grids_are_as_long_as_the_machine_allows[": NIGHTLY,
    "-8400000]": pytest.mark.skip("millions of programs take an emulator hours"),
}
"""By a part of the test's name."""
_FULL_LENGTHS = (dtypes.int32, dtypes.float32)

Lengths = Callable[[DType], Sequence[int]]
"""The lengths of arrays to go through for a type."""


def lengths(dtype: DType, full: bool) -> Sequence[int]:
    """Return the lengths of arrays to go through by rule 3; all of them if `full`."""
    return SIZES if full or dtype in _FULL_LENGTHS else PLAIN_SIZES


def choose(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """Mark what runs nightly only, and return what does not run at all.

    Args:
        items: All that was collected.
    """
    left_out: set[pytest.Item] = set()
    for by_chip in _by_test(items, FAMILIES):
        for number, chip in enumerate(FAMILIES):
            cases = by_chip[chip]
            for item in _not_chosen(cases, by_form(_subjects(cases), number, len(FAMILIES))):
                item.add_marker(NIGHTLY)
    for test, by_chip in enumerate(_by_test(items, OTHERS)):
        for number, chip in enumerate(OTHERS):
            cases = by_chip[chip]
            if any(f"/{file}::" in item.nodeid for item in cases for file in PRODUCTS):
                chosen = by_form(_subjects(cases), number, len(OTHERS))
            else:
                chosen = in_turn(len(cases), number - test, len(OTHERS))
            left_out.update(_not_chosen(cases, chosen))
    for item in items:
        if chip_of(item) is not None:
            for part, mark in TOO_LONG.items():
                if part in item.nodeid:
                    item.add_marker(mark)
    return left_out


def by_form(subjects: Sequence[Hashable], chip: int, chips: int) -> list[bool]:
    """Return which cases of one test run on one chip, by rule 2.

    Args:
        subjects: What each case is about, all but its form.
        chip: The chip's number.
        chips: How many chips take turns.
    """
    count = Counter(subjects)
    numbers = {subject: number for number, subject in enumerate(count)}
    seen: Counter[Hashable] = Counter()
    chosen: list[bool] = []
    for subject in subjects:
        turn = seen[subject] - numbers[subject] - chip
        chosen.append(turn % min(chips, count[subject]) == 0)
        seen[subject] += 1
    return chosen


def in_turn(cases: int, first: int, chips: int) -> list[bool]:
    """Return which of the cases run on the chip whose first is `first`, if each has one chip."""
    return [(case - first) % chips == 0 for case in range(cases)]


def chip_of(item: pytest.Item) -> str | None:
    """Return the emulated chip that a test runs on, or None."""
    found = re.search(r"\[(?:.*-)?emulate:(\w+)", item.nodeid)
    return found[1] if found else None


def _by_test(items: Sequence[pytest.Item], chips: Sequence[str]) -> list[dict[str, list[Any]]]:
    """Return the cases of each test on each of the chips, with `WARPS` if it asks for warps."""
    tests: dict[str, dict[str, list[Any]]] = {}
    for item in items:
        chip = chip_of(item)
        if (
            chip is not None
            and chip in chips
            and _place(item) in (f"emulate:{chip}", (f"emulate:{chip}", WARPS))
        ):
            test = item.nodeid.partition("[")[0]
            tests.setdefault(test, {chip: [] for chip in chips})[chip].append(item)
    return list(tests.values())


def _place(item: Any) -> object:
    """Return the parameter that says where a test runs, if one does."""
    given = item.callspec.params
    return given["place"] if "place" in given else given.get("warps")


def _subjects(cases: Sequence[Any]) -> list[Hashable]:
    """Return what each case is about: its parameters but for where it runs and its form."""
    left_out = FORMS | {"place"}
    return [
        tuple(
            (name, repr(value))
            for name, value in case.callspec.params.items()
            if name not in left_out and not (name == "warps" and isinstance(value, tuple))
        )
        for case in cases
    ]


def _not_chosen(cases: Sequence[Any], chosen: Sequence[bool]) -> list[Any]:
    return [case for case, yes in zip(cases, chosen, strict=True) if not yes]
