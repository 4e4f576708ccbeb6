"""Exchanges between lanes by the LDS unit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.targets.amdgpu.emulator.fragments import Fragment
from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.amdgpu.emulator.lds_exchange import swizzled
from tiledsl.targets.gpu.emulator.cohort import Mode

_LANE = np.arange(64, dtype=np.uint32)


def _run(text: str, index: NDArray[Any] | None = None, chip: str = "gfx942") -> NDArray[np.uint32]:
    """Return v4 of a wave whose v2 is 100 + lane and whose v1 is four times `index`."""
    lanes = 64 if chip == "gfx942" else 32
    vectors = {2: 100 + _LANE[:lanes]}
    if index is not None:
        vectors[1] = 4 * index.astype(np.uint32)
    wait = "s_wait_dscnt 0x0" if chip == "gfx1201" else "s_waitcnt lgkmcnt(0)"
    results = [Fragment(f"{text}\n{wait}", chip, mode=mode).run(vectors) for mode in Mode]
    assert not any(len(one.findings) for one in results)
    assert np.array_equal(results[0].vector(4), results[1].vector(4))
    return results[0].vector(4)[0]


def test_bpermute_pulls() -> None:
    index = (_LANE * 7 + 3) % 64
    assert np.array_equal(_run("ds_bpermute_b32 v4, v1, v2", index), 100 + index)
    assert np.array_equal(
        _run("ds_bpermute_b32 v4, v1, v2 offset:4", index), 100 + (index + 1) % 64
    )
    wrapped = _run("ds_bpermute_b32 v4, v1, v2", _LANE[:32] + 33, "gfx1201")
    assert np.array_equal(wrapped, 100 + (_LANE[:32] + 1) % 32)


def test_bpermute_gets_0_from_lanes_that_are_switched_off() -> None:
    text = "v_mov_b32_e32 v4, 7\ns_mov_b64 exec, 15\nds_bpermute_b32 v4, v1, v2"
    assert _run(text, _LANE + 2)[:5].tolist() == [102, 103, 0, 0, 7]


def test_permute_pushes_and_the_highest_lane_wins() -> None:
    assert np.array_equal(_run("ds_permute_b32 v4, v1, v2", 63 - _LANE), 100 + 63 - _LANE)
    found = _run("ds_permute_b32 v4, v1, v2", _LANE // 2)
    assert np.array_equal(found[:32], 101 + 2 * _LANE[:32])
    assert (found[32:] == 0).all()


@pytest.mark.parametrize(
    ("spelled", "source"),
    [
        ("swizzle(SWAP,16)", _LANE ^ 16),
        ('swizzle(BITMASK_PERM,"00p11")', _LANE & 32 | _LANE & 4 | 3),
        ('swizzle(BITMASK_PERM,"ppppi")', _LANE ^ 1),
        ("swizzle(QUAD_PERM,3,2,1,0)", _LANE ^ 3),
        ("swizzle(BROADCAST,8,5)", _LANE & ~np.uint32(7) | 5),
        ("swizzle(REVERSE,16)", _LANE ^ 15),
        ("swizzle(ROTATE,0,3)", _LANE & 32 | (_LANE + 3) % 32),
        ("swizzle(ROTATE,1,3)", _LANE & 32 | (_LANE - 3) % 32),
        ("0x401f", _LANE ^ 16),
    ],
)
def test_swizzles(spelled: str, source: NDArray[np.uint32]) -> None:
    assert np.array_equal(_run(f"ds_swizzle_b32 v4, v2 offset:{spelled}"), 100 + source)


def test_swizzles_that_are_not_known_are_refused() -> None:
    with pytest.raises(CompilerBug, match="FFT swizzle"):
        swizzled(0xE000, np.arange(32))
    with pytest.raises(CompilerBug, match="does not know this swizzle"):
        Fragment("ds_swizzle_b32 v4, v2 offset:swizzle(FFT,1)", "gfx942")
