"""What a machine begins with."""

from __future__ import annotations

import numpy as np

from tests.targets.nvptx.emulator.running import run
from tiledsl.targets.gpu.emulator.cohort import Mode


def test_a_register_that_nothing_wrote_shows_in_sums_minima_and_maxima() -> None:
    body = """
    mov.f32 %f2, 0f40000000;
    add.f32 %f3, %f1, %f2; min.f32 %f4, %f1, %f2; max.f32 %f5, %f1, %f2;
    st.global.f32 [%a0], %f3; st.global.f32 [%a0+4], %f4; st.global.f32 [%a0+8], %f5;
    """
    found = [run(body, np.zeros(3, np.float32), mode=mode).arrays[0] for mode in Mode]
    assert (np.abs(found)[:, 0] > 1e8).all()
    assert [sorted(one[1:] == 2) for one in found] == [[False, True]] * 2
    assert (found[0] != found[1]).all()


def test_a_predicate_that_nothing_wrote_is_false() -> None:
    for mode in Mode:
        outcome = run("@!%p1 st.global.u32 [%a0], 7;", np.zeros(1, np.uint32), mode=mode)
        assert outcome.arrays[0].tolist() == [7]
