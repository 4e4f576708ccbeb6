"""LDS: widths, halves, two places at once, faults, costs."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.amdgpu.emulator.fragments import Fragment
from tiledsl.targets.gpu.emulator.cohort import Mode
from tiledsl.targets.gpu.emulator.findings import Kind

_LANE = np.arange(64, dtype=np.uint32)
_WAIT = "s_waitcnt lgkmcnt(0)"


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_width_of_words(count: int, mode: Mode) -> None:
    data = {4 + i: 100 * i + _LANE for i in range(count)}
    for chip, verbs, size in (
        ("gfx942", ("write", "read"), 64),
        ("gfx1100", ("store", "load"), 32),
    ):
        span = f"[4:{3 + count}]" if count > 1 else "4"
        text = f"""
            ds_{verbs[0]}_b{32 * count} v1, v{span} offset:16
            ds_{verbs[1]}_b{32 * count} v[8:{7 + count}], v1 offset:16
            {_WAIT}
        """
        stride = 16 if count == 4 else 4 * count
        vectors = {r: one[:size] for r, one in {1: stride * _LANE, **data}.items()}
        result = Fragment(text, chip, lds=16 + stride * size, mode=mode).run(vectors)
        assert not len(result.findings)
        for i in range(count):
            assert np.array_equal(result.vector(8 + i)[0], 100 * i + _LANE[:size])


@pytest.mark.parametrize(
    ("store", "load", "expected"),
    [
        ("b8", "u8", 0x8D),
        ("b8", "i8", 0xFFFFFF8D),
        ("b16", "u16", 0xF08D),
        ("b16", "i16", 0xFFFFF08D),
        ("b8_d16_hi", "u8", 0xFE),
        ("b16_d16_hi", "u16", 0xCAFE),
        ("b16", "u16_d16", 0x1111F08D),
        ("b16", "u16_d16_hi", 0xF08D2222),
        ("b8", "u8_d16", 0x1111008D),
        ("b8", "i8_d16_hi", 0xFF8D2222),
    ],
)
def test_short_elements(store: str, load: str, expected: int) -> None:
    text = f"""
        v_mov_b32_e32 v4, 0xcafef08d
        v_mov_b32_e32 v5, 0x11112222
        ds_write_{store} v1, v4
        ds_read_{load} v5, v1
        {_WAIT}
    """
    result = Fragment(text, "gfx942", lds=128).run({1: 2 * _LANE})
    assert not len(result.findings)
    assert (result.vector(5)[0] == expected).all()


@pytest.mark.parametrize("mode", list(Mode))
def test_two_places_at_once(mode: Mode) -> None:
    text = f"""
        ds_write2_b32 v1, v4, v5 offset0:1 offset1:65
        ds_read2st64_b32 v[8:9], v2 offset1:1
        ds_write2st64_b64 v3, v[4:5], v[6:7] offset0:1 offset1:2
        ds_read2_b64 v[12:15], v3 offset0:64 offset1:128
        {_WAIT}
    """
    data = {4 + i: 100 * i + _LANE for i in range(4)}
    vectors = {1: 4 * _LANE, 2: 4 * (_LANE + 1), 3: 8 * _LANE, **data}
    result = Fragment(text, "gfx942", lds=2048, mode=mode).run(vectors)
    assert not len(result.findings)
    assert np.array_equal(result.vector(8)[0], _LANE)
    assert np.array_equal(result.vector(9)[0], 100 + _LANE)
    for i in range(4):
        assert np.array_equal(result.vector(12 + i)[0], 100 * i + _LANE)


def test_two_places_under_gfx11_names() -> None:
    text = f"""
        ds_store_2addr_b64 v1, v[4:5], v[6:7] offset1:32
        ds_store_2addr_stride64_b32 v2, v4, v5 offset0:2 offset1:3
        ds_load_2addr_stride64_b32 v[8:9], v2 offset0:2 offset1:3
        ds_load_2addr_b64 v[12:15], v1 offset1:32
        {_WAIT}
    """
    data = {4 + i: 100 * i + _LANE[:32] for i in range(4)}
    result = Fragment(text, "gfx1151", lds=1024).run({1: 8 * _LANE[:32], 2: 4 * _LANE[:32], **data})
    assert not len(result.findings)
    assert np.array_equal(result.vector(9)[0], 100 + _LANE[:32])
    assert np.array_equal(result.vector(15)[0], 300 + _LANE[:32])


def test_faults() -> None:
    read = f"ds_read_b32 v4, v1\n{_WAIT}"
    assert Fragment(read, "gfx942", lds=256).run({1: 4 * _LANE}).kinds == [Kind.UNINITIALIZED]
    write = f"ds_write_b32 v1, v0 offset:4\n{_WAIT}"
    result = Fragment(write, "gfx942", lds=256).run({1: 4 * _LANE})
    assert [(f.kind, f.thread) for f in result.findings.all()] == [(Kind.OUT_OF_BOUNDS, 63)]
    crooked = f"ds_write_b64 v1, v[2:3]\n{_WAIT}"
    result = Fragment(crooked, "gfx942", lds=512).run({1: 8 * _LANE + 4 * (_LANE == 3)})
    assert [(f.kind, f.thread) for f in result.findings.all()] == [(Kind.MISALIGNED, 3)]
    same = f"ds_write_b32 v1, v0\n{_WAIT}"
    result = Fragment(same, "gfx942", lds=256).run({1: 4 * (_LANE // 2)})
    assert result.kinds == [Kind.RACE]


def test_bank_conflicts_are_counted() -> None:
    text = f"ds_write_b32 v1, v0\nds_write_b32 v2, v0\n{_WAIT}"
    result = Fragment(text, "gfx942", lds=64 * 128).run({1: 4 * _LANE, 2: 128 * _LANE})
    counters = result.counters
    assert counters.shared_accesses[:2].tolist() == [1, 1]
    assert counters.wavefronts[0] == counters.phases[0]
    assert counters.wavefronts[1] == 32 * counters.phases[1]
