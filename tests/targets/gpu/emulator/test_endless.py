"""States that come again, among states that do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tiledsl.targets.gpu.emulator.endless import Repetition

_HERE = 3, b"\1"


def _array(*values: int) -> Any:
    return np.array(values, np.uint32)


def _looks_until_found(states: Callable[[int], tuple[Any, Any]], most: int = 10000) -> int | None:
    repetition = Repetition()
    for number in range(most):
        registers, memory = states(number)
        if repetition.look(_HERE, registers, memory):
            return number
    return None


@pytest.mark.parametrize("period", [1, 2, 7, 100])
def test_a_period_is_found_in_a_few_times_its_length(period: int) -> None:
    found = _looks_until_found(lambda n: ([_array(1, n % period)], [_array(2)]))
    assert found is not None
    assert found <= 6 * period + 2


def test_what_came_before_the_period_does_not_matter() -> None:
    found = _looks_until_found(lambda n: ([_array(max(0, 50 - n))], []))
    assert found is not None
    assert found > 50


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_register_that_counts_is_progress(which: int) -> None:
    def states(n: int) -> Any:
        registers = [_array(5, 6) for _ in range(3)]
        registers[which][1] = n
        return registers, []

    assert _looks_until_found(states) is None


def test_memory_that_changes_is_progress() -> None:
    assert _looks_until_found(lambda n: ([_array(1)], [_array(2), _array(n)])) is None


def test_memory_that_comes_again_is_none() -> None:
    assert _looks_until_found(lambda n: ([_array(1)], [_array(n % 2)])) is not None


def test_another_place_is_progress() -> None:
    repetition = Repetition()
    assert not any(repetition.look((n, b"\1"), [_array(1)], []) for n in range(1000))
