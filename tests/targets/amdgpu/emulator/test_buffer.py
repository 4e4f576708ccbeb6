"""Buffer instructions: descriptors, offsets, ranges, private memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.targets.amdgpu.emulator.fragments import Fragment, Result
from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.gpu.emulator.cohort import Mode
from tiledsl.targets.gpu.emulator.findings import Kind

Array = NDArray[Any]

_LANE = np.arange(64, dtype=np.uint32)


def _run(
    text: str,
    records: int,
    stride: int = 0,
    vectors: dict[int, Array] | None = None,
    mode: Mode = Mode.LAZY,
    chip: str = "gfx942",
    scalars: dict[int, int] | None = None,
) -> tuple[Array, Result]:
    """Run with a descriptor in s[4:7] of an array of 0 to 255, which is returned."""  # fmt: skip
    fragment = Fragment(text, chip, mode=mode)
    array = fragment.array(np.arange(256, dtype=np.uint32))
    address = array.ctypes.data
    words = {4: address & 0xFFFFFFFF, 5: address >> 32 | stride << 16, 6: records, 7: 0x27000}
    return array, fragment.run(vectors, {**words, **(scalars or {})})


def test_offsets_add_up() -> None:
    text = """
        buffer_load_dword v4, off, s[4:7], 0
        buffer_load_dword v5, v1, s[4:7], 0 offen offset:16
        buffer_load_dword v6, v1, s[4:7], s8 offen offset:4
        buffer_load_dwordx2 v[8:9], off, s[4:7], 8 offset:4
        s_waitcnt vmcnt(0)
    """
    _, result = _run(text, 1024, vectors={1: 4 * _LANE}, scalars={8: 40})
    assert not len(result.findings)
    assert [int(result.vector(r)[0, 2]) for r in (4, 5, 6, 8, 9)] == [0, 6, 13, 3, 4]


@pytest.mark.parametrize("mode", list(Mode))
def test_what_is_out_of_range_reads_0_and_is_not_written(mode: Mode) -> None:
    text = """
        buffer_load_dwordx2 v[4:5], v1, s[4:7], 0 offen
        s_waitcnt vmcnt(0)
        buffer_store_dwordx2 v[8:9], v1, s[4:7], 0 offen
    """
    vectors = {1: 4 * _LANE, 8: np.full(64, 900, np.uint32), 9: np.full(64, 900, np.uint32)}
    array, result = _run(text, 40, vectors=vectors, mode=mode)
    assert not len(result.findings)
    assert result.vector(4)[0, 8:11].tolist() == [8, 9, 0]
    assert result.vector(5)[0, 8:11].tolist() == [9, 0, 0]
    assert array[8:12].tolist() == [900, 900, 10, 11]


def test_a_range_may_reach_beyond_the_memory() -> None:
    text = "buffer_load_dword v4, v1, s[4:7], 0 offen\ns_waitcnt vmcnt(0)"
    _, result = _run(text, 4096, vectors={1: 32 * _LANE})
    assert result.kinds == [Kind.OUT_OF_BOUNDS]


def test_records_with_a_stride_are_counted_by_index() -> None:
    text = """
        buffer_load_dword v4, v1, s[4:7], 0 idxen offset:4
        buffer_load_dword v5, v[1:2], s[4:7], 0 idxen offen
        s_waitcnt vmcnt(0)
    """
    _, result = _run(text, 10, stride=16, vectors={1: _LANE, 2: np.full(64, 8, np.uint32)})
    assert not len(result.findings)
    assert result.vector(4)[0, 8:12].tolist() == [33, 37, 0, 0]
    assert result.vector(5)[0, 8:12].tolist() == [34, 38, 0, 0]


def test_gfx12_has_no_scalar_offset_by_name() -> None:
    text = "buffer_load_b32 v4, v1, s[4:7], null offen\ns_wait_loadcnt 0x0"
    _, result = _run(text, 1024, vectors={1: 4 * _LANE[:32]}, chip="gfx1201")
    assert np.array_equal(result.vector(4)[0], np.arange(32))


def test_private_memory_by_its_descriptor() -> None:
    """As gfx90a spills: the descriptor in s[0:3] is what the hardware provides."""
    text = """
        buffer_store_dword v0, off, s[0:3], 0 offset:4
        buffer_store_dword v1, v2, s[0:3], 0 offen
        s_waitcnt vmcnt(0)
        buffer_load_dword v4, off, s[0:3], 0 offset:4
        buffer_load_dword v5, off, s[0:3], 0 offset:12
        s_waitcnt vmcnt(0)
    """
    vectors = {1: 3 * _LANE, 2: np.full(64, 12, np.uint32)}
    result = Fragment(text, "gfx90a", private=16, scratch=True).run(vectors)
    assert not len(result.findings)
    assert np.array_equal(result.vector(4)[0], _LANE)
    assert np.array_equal(result.vector(5)[0], 3 * _LANE)


def test_a_buffer_without_a_descriptor_is_refused() -> None:
    with pytest.raises(CompilerBug, match="expected a descriptor"):
        Fragment("buffer_load_dword v4, off, s[4:5], 0", "gfx942")
