"""Global loads and stores: forms of addresses, widths, halves of registers, EXEC, faults."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.targets.amdgpu.emulator.fragments import Fragment, Result, pairs
from tiledsl.targets.gpu.emulator.cohort import Mode
from tiledsl.targets.gpu.emulator.findings import Kind

Array = NDArray[Any]

_LANE = np.arange(64, dtype=np.uint32)


def _run(
    text: str,
    given: Array,
    chip: str = "gfx942",
    vectors: dict[int, Array] | None = None,
    mode: Mode = Mode.LAZY,
) -> tuple[Array, Result]:
    """Run on an array at s[4:5] and zeros of its size at s[6:7], which is returned."""  # fmt: skip
    wait = "\ns_wait_loadcnt 0x0" if chip == "gfx1201" else "\ns_waitcnt vmcnt(0)"
    fragment = Fragment(text.replace("WAIT", wait), chip, mode=mode)
    source, out = fragment.array(given), fragment.array(np.zeros_like(given))
    return out, fragment.run(vectors, pairs(4, source, out))


@pytest.mark.parametrize(
    ("chip", "names"),
    [("gfx942", ("dword", "dwordx2", "dwordx3", "dwordx4")),
     ("gfx1100", ("b32", "b64", "b96", "b128")), ("gfx1201", ("b32", "b64", "b96", "b128"))],
)  # fmt: skip
def test_every_width_of_words(chip: str, names: tuple[str, ...]) -> None:
    size = 64 if chip == "gfx942" else 32
    for count, name in enumerate(names, 1):
        text = f"global_load_{name} v[4:{3 + count}], v1, s[4:5] WAIT\n"
        text += f"global_store_{name} v1, v[4:{3 + count}], s[6:7]"
        given = np.arange(size * count, dtype=np.uint32)
        out, result = _run(text, given, chip, {1: 4 * count * _LANE[:size]})
        assert not len(result.findings)
        assert np.array_equal(out, given)


def test_forms_of_addresses() -> None:
    given = np.arange(256, dtype=np.uint32)
    text = """
        v_mov_b32_e32 v2, s4
        v_mov_b32_e32 v3, s5
        global_load_dword v4, v[2:3], off
        global_load_dword v5, v[2:3], off offset:16
        global_load_dword v6, v1, s[4:5] offset:8 nt
        v_mov_b32_e32 v7, 32
        v_lshl_add_u64 v[2:3], v[2:3], 0, v[10:11]
        global_load_dword v8, v[2:3], off offset:-4 sc0 sc1
        WAIT
    """
    vectors = {1: 4 * _LANE, 10: np.full(64, 32, np.uint32)}
    _, result = _run(text, given, vectors=vectors)
    assert not len(result.findings)
    assert [result.vector(r)[0, 0] for r in (4, 5, 6, 8)] == [0, 4, 2, 7]
    assert np.array_equal(result.vector(6)[0], 2 + np.arange(64))


_BYTES = np.array([0x11, 0x92, 0x23, 0xA4] * 64, np.uint8)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("ubyte", "u8", 0x92),
        ("sbyte", "i8", 0xFFFFFF92),
        ("ushort", "u16", 0x2392),
        ("sshort", "i16", 0x2392),
        ("short_d16", "d16_b16", 0xCAFE2392),
        ("short_d16_hi", "d16_hi_b16", 0x2392F00D),
        ("ubyte_d16", "d16_u8", 0xCAFE0092),
        ("ubyte_d16_hi", "d16_hi_u8", 0x0092F00D),
        ("sbyte_d16", "d16_i8", 0xCAFEFF92),
        ("sbyte_d16_hi", "d16_hi_i8", 0xFF92F00D),
    ],
)
def test_short_loads(old: str, new: str, expected: int) -> None:
    for chip, name in (("gfx942", old), ("gfx1100", new), ("gfx1201", new)):
        text = f"v_mov_b32_e32 v4, 0xcafef00d\nglobal_load_{name} v4, v1, s[4:5] offset:1 WAIT"
        _, result = _run(text, _BYTES, chip)
        assert not len(result.findings)
        assert result.vector(4)[0, 0] == expected, (chip, name)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("byte", "b8", [0x0D, 0, 0, 0]),
        ("short", "b16", [0x0D, 0xF0, 0, 0]),
        ("byte_d16_hi", "d16_hi_b8", [0xFE, 0, 0, 0]),
        ("short_d16_hi", "d16_hi_b16", [0xFE, 0xCA, 0, 0]),
    ],
)
def test_short_stores(old: str, new: str, expected: list[int]) -> None:
    for chip, name in (("gfx90a", old), ("gfx1201", new)):
        text = f"v_mov_b32_e32 v4, 0xcafef00d\nglobal_store_{name} v1, v4, s[6:7]"
        out, result = _run(text, _BYTES, chip, {1: 4 * _LANE[: 32 if chip == "gfx1201" else 64]})
        assert not len(result.findings)
        assert out[:4].tolist() == expected


@pytest.mark.parametrize("mode", list(Mode))
def test_lanes_that_exec_switches_off_neither_read_nor_write(mode: Mode) -> None:
    text = """
        s_mov_b64 exec, 5
        global_load_dword v4, v1, s[4:5]
        s_mov_b64 exec, 7
        WAIT
        global_store_dword v1, v4, s[6:7]
    """
    vectors = {1: 4 * _LANE, 4: np.full(64, 77, np.uint32)}
    out, result = _run(text, np.arange(100, 164, dtype=np.uint32), vectors=vectors, mode=mode)
    assert not len(result.findings)
    assert out[:5].tolist() == [100, 77, 102, 0, 0]


def test_unaligned_accesses_are_right() -> None:
    given = np.arange(300, dtype=np.uint8)
    text = "global_load_dwordx2 v[4:5], v1, s[4:5] offset:3 WAIT\n"
    text += "global_store_dwordx2 v1, v[4:5], s[6:7] offset:5"
    out, result = _run(text, given, vectors={1: 8 * (_LANE % 32)})
    assert not len(result.findings)
    assert np.array_equal(out[5 : 5 + 256], given[3 : 3 + 256])


def test_out_of_bounds_accesses_are_findings_with_their_lanes() -> None:
    text = "global_load_dword v4, v1, s[4:5] offset:8 WAIT\nglobal_store_dword v1, v4, s[6:7]"
    _, result = _run(text, np.zeros(64, np.uint32), vectors={1: 4 * _LANE})
    assert result.kinds == [Kind.OUT_OF_BOUNDS]
    found = result.findings.all()[0]
    assert (found.thread, found.times) == (62, 2)
    assert (result.vector(4)[0, 62:] == 0).all()


def test_accesses_are_counted_by_transactions() -> None:
    text = "global_load_dword v4, v1, s[4:5] WAIT\nglobal_load_dword v5, v2, s[4:5] WAIT"
    _, result = _run(text, np.zeros(64 * 16, np.uint32), vectors={1: 4 * _LANE, 2: 64 * _LANE})
    counters = result.counters
    loads = [i for i, one in enumerate(result.machine.code.parsed) if "load" in one.mnemonic]
    assert counters.accesses[loads].tolist() == [1, 1]
    assert counters.transactions[loads].tolist() == [4, 64]
    assert counters.used[loads].tolist() == [256, 256]
