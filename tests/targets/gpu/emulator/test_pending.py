"""Asynchronous operations complete in order, unit by unit, and no sooner than a wait says."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledsl.targets.gpu.emulator.pending import Pending


def _units(*which: int) -> Any:
    return np.array(which, np.intp)


def _mask(*which: int, of: int = 4) -> Any:
    mask = np.zeros(of, np.bool_)
    mask[list(which)] = True
    return mask


class Log:
    """Says which units an operation completed for, and when."""

    def __init__(self) -> None:
        self.done: list[tuple[str, list[int]]] = []

    def operation(self, name: str, units: Any) -> Any:
        def complete(rows: Any) -> None:
            self.done.append((name, units[rows].tolist()))

        return complete


def test_a_wait_completes_all_but_the_youngest() -> None:
    pending, log = Pending(4), Log()
    units = _units(0, 1, 2, 3)
    for name in "abc":
        pending.issue(units, log.operation(name, units))
    pending.wait(_mask(0, 1, 2, 3), keep=1)
    assert log.done == [("a", [0, 1, 2, 3]), ("b", [0, 1, 2, 3])]
    pending.wait(_mask(0, 1, 2, 3))
    assert log.done[2:] == [("c", [0, 1, 2, 3])]
    assert not pending


def test_each_unit_waits_for_its_own() -> None:
    pending, log = Pending(4), Log()
    both = _units(0, 1)
    pending.issue(both, log.operation("a", both))
    pending.wait(_mask(1))
    assert log.done == [("a", [1])]
    assert pending.outstanding(_mask(0))
    assert not pending.outstanding(_mask(1, 2))
    pending.wait(_mask(0, 1, 2, 3))
    assert log.done == [("a", [1]), ("a", [0])]


def test_units_may_keep_different_numbers() -> None:
    pending, log = Pending(2), Log()
    units = _units(0, 1)
    for name in "ab":
        pending.issue(units, log.operation(name, units))
    pending.wait(_mask(0, 1, of=2), keep=np.array([2, 1]))
    assert log.done == [("a", [1])]


def test_a_group_completes_as_one_operation() -> None:
    pending, log = Pending(1), Log()
    unit = _units(0)
    for name in "ab":
        pending.issue(unit, log.operation(name, unit), advance=False)
    pending.commit(unit)
    pending.issue(unit, log.operation("c", unit), advance=False)
    pending.commit(unit)
    pending.wait(_mask(0, of=1), keep=1)
    assert [name for name, _ in log.done] == ["a", "b"]


def test_what_was_not_committed_does_not_complete() -> None:
    pending, log = Pending(1), Log()
    unit = _units(0)
    pending.issue(unit, log.operation("a", unit), advance=False)
    pending.wait(_mask(0, of=1))
    assert not log.done
    pending.commit(unit)
    pending.wait(_mask(0, of=1))
    assert log.done == [("a", [0])]


def test_an_empty_group_counts() -> None:
    pending, log = Pending(1), Log()
    unit = _units(0)
    pending.issue(unit, log.operation("a", unit), advance=False)
    pending.commit(unit)
    pending.commit(unit)
    pending.wait(_mask(0, of=1), keep=1)
    assert log.done == [("a", [0])]


UNITS = 3
_some = st.lists(st.integers(0, UNITS - 1), min_size=1, unique=True).map(sorted)
_steps = st.one_of(
    st.tuples(st.just("issue"), _some, st.booleans()),
    st.tuples(st.just("commit"), _some, st.none()),
    st.tuples(st.just("wait"), _some, st.integers(0, 3)),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(_steps, max_size=30))
def test_what_completes_is_what_each_units_own_queue_says(
    steps: list[tuple[str, list[int], Any]],
) -> None:
    pending, done = Pending(UNITS), list[tuple[int, int]]()
    queues = defaultdict[int, list[tuple[int, int]]](list)
    """For each unit the group and the number of each operation that it waits for."""
    groups, expected = [0] * UNITS, list[tuple[int, int]]()
    for number, (what, some, how) in enumerate(steps):
        units = _units(*some)
        if what == "issue":

            def complete(rows: Any, number: int = number, units: Any = units) -> None:
                done.extend((number, unit) for unit in units[rows].tolist())

            pending.issue(units, complete, advance=how)
            for unit in some:
                queues[unit].append((groups[unit], number))
                groups[unit] += int(how)
        elif what == "commit":
            pending.commit(units)
            for unit in some:
                groups[unit] += 1
        else:
            pending.wait(_mask(*some, of=UNITS), how)
            for unit in some:
                over = [one for one in queues[unit] if one[0] < groups[unit] - how]
                queues[unit] = queues[unit][len(over) :]
                expected += [(of, unit) for _, of in over]
        assert sorted(done) == sorted(expected)
    for unit in range(UNITS):
        assert pending.outstanding(_mask(unit, of=UNITS)) == bool(queues[unit])
