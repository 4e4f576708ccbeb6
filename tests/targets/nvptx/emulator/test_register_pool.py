"""setmaxnreg: registers given back, taken, and waited for in vain."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.nvptx.emulator.running import Outcome, run
from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.gpu.emulator.findings import Kind


def _specialized(producer: int, consumers: int, first: str = "dec") -> Outcome:
    """Three warpgroups, which begin with 168 registers a thread; each says that it went on."""
    body = f"""
    mul.wide.u32 %d1, %t, 4; add.s64 %d2, %a0, %d1; mov.u32 %r1, 1;
    setp.lt.u32 %p1, %t, 256; @!%p1 bra PRODUCER;
    setmaxnreg.inc.sync.aligned.u32 {consumers};
    bra END;
    PRODUCER: setmaxnreg.{first}.sync.aligned.u32 {producer};
    END: st.global.u32 [%d2], %r1;
    """
    return run(body, np.zeros(384, np.uint32), chip="sm_90a", threads=384)


@pytest.mark.parametrize(("producer", "consumers"), [(40, 232), (32, 232), (24, 240)])
def test_consumers_get_what_the_producer_gives_back(producer: int, consumers: int) -> None:
    outcome = _specialized(producer, consumers)
    assert outcome.findings == []
    assert outcome.arrays[0].all()


def test_more_than_there_are_is_waited_for_in_vain() -> None:
    outcome = _specialized(32, 240)
    assert outcome.kinds == {Kind.DEADLOCK}
    assert "240 registers a thread" in outcome.findings[0].message
    assert outcome.arrays[0][256:].all()


def test_growing_downwards_is_found() -> None:
    assert _specialized(40, 160).kinds == {Kind.UNDEFINED}
    assert Kind.UNDEFINED in _specialized(176, 168).kinds


@pytest.mark.parametrize("count", [16, 233, 264])
def test_what_is_no_count_is_named(count: int) -> None:
    with pytest.raises(CompilerBug, match=f"setmaxnreg.dec.sync.aligned.u32 {count}"):
        run(f"setmaxnreg.dec.sync.aligned.u32 {count};", chip="sm_90a", threads=128)
