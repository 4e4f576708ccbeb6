from __future__ import annotations

import pytest

from tiledsl.targets.immediate import Immediate


def test_events_are_readings_of_the_clock_and_are_forgotten() -> None:
    driver = Immediate()
    start, end = driver.record_event(), driver.record_event()
    assert start != end
    assert driver.elapsed_ms(start, end) >= 0
    assert driver.elapsed_ms(end, start) <= 0
    driver.destroy_event(start)
    with pytest.raises(KeyError):
        driver.elapsed_ms(start, end)


def test_streams_differ_and_never_capture() -> None:
    driver = Immediate()
    assert driver.create_stream() != driver.create_stream()
    assert not driver.is_capturing()
