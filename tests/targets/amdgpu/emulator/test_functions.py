"""Functions made of functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tiledsl.targets.amdgpu.emulator.functions import (
    composed,
    multiply_add,
    negated,
    nested,
    saturated,
    swapped,
)


def _joined(*values: Any) -> str:
    return "".join(str(value) for value in values)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_composed_function_reads_each_source_once_in_order(count: int) -> None:
    order: list[int] = []

    def reader(number: int) -> Any:
        def read(machine: Any) -> str:
            order.append(number)
            return f"{machine}{number} "

        return read

    compute = composed(_joined, [reader(number) for number in range(count)])
    assert order == []
    assert compute("m").split() == [f"m{number}" for number in range(count)]
    assert order == list(range(count))


def test_sources_change_places_and_results_are_turned_over_or_go_on() -> None:
    seven, two = np.array([7]), np.array([2])
    assert swapped(np.subtract)(seven, two) == -5
    assert negated(np.less)(seven, two)
    assert not negated(np.greater)(seven, two)
    assert nested(np.subtract, np.multiply)(seven, two, np.array([4])) == 10
    assert multiply_add(seven, two, np.array([4])) == 18


@pytest.mark.parametrize(
    ("kind", "a", "b", "total"),
    [
        (np.uint32, (1 << 32) - 2, 5, (1 << 32) - 1),
        (np.int32, -(1 << 31), -1, -(1 << 31)),
        (np.int32, (1 << 31) - 1, 1, (1 << 31) - 1),
        (np.int16, 30000, 30000, 32767),
        (np.uint16, 30000, 30000, 60000),
        (np.int32, 3, -5, -2),
    ],
)
def test_saturated_sums_stay_at_the_ends_of_their_kind(
    kind: Any, a: int, b: int, total: int
) -> None:
    add: Any = saturated(np.add, kind)
    found = add(np.array([a], kind), np.array([b], kind))
    assert found.dtype == kind
    assert found.tolist() == [total]
