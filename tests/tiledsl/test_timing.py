"""Timing of launches."""

# Kernels are traced, not typed.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from typing import Any

import numpy as np
import pytest

import tiledsl as tile
from tiledsl import launch
from tiledsl.timing import Budget, milliseconds


@tile.jit
def count(x):
    tile.atomic_add(x, 1)


def test_a_launch_is_repeated_within_its_budget_with_what_comes_before_each() -> None:
    x, before = np.zeros(1, np.int32), list[int]()
    call = count.prepare((x,), {})
    taken = milliseconds(call, 1, lambda: before.append(int(x[0])), Budget(0.5, 2.0))
    assert taken is not None
    assert 0 < taken < 1000
    assert before == list(range(x[0]))
    assert 7 <= x[0] <= 2006
    assert milliseconds(call, 0, lambda: None, Budget()) is None


def test_a_device_tells_its_own_time_and_no_event_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    events: dict[int, Any] = {}

    class Driver:
        def record_event(self, stream: int, device: int) -> int:
            events[len(events) + 1] = (stream, device)
            return len(events)

        def elapsed_ms(self, start: int, end: int, device: int) -> float:
            assert end == start + 1
            return float(end)

        def destroy_event(self, event: int, device: int) -> None:
            assert events[event] == (5, 1)
            events[event] = None

    monkeypatch.setattr(launch, "driver_of", lambda place: Driver())
    monkeypatch.setattr(launch, "current_stream", lambda place, arrays: 5)
    x = np.zeros(1, np.int32)
    call = count.prepare((x,), {})
    monkeypatch.setattr(call.loaded, "place", "cuda:1")
    elsewhere = call._replace(places=["cuda:1"])
    taken = milliseconds(elsewhere, 1, lambda: None, Budget(0, 100))
    # One launch first, five to estimate (8 ms on the average), then 100 / 8 that count.
    assert len(events) == 2 * (1 + 5 + 12)
    assert set(events.values()) == {None}
    assert taken == 25
