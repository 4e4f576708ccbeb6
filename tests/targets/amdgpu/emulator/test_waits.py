"""Waits: what is late without one, on every generation's counters."""

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

_LANES = {"gfx90a": 64, "gfx942": 64, "gfx1100": 32, "gfx1201": 32}
_OLD = "s_load_dwordx4 s[4:7], s[0:1], 0x0\ns_waitcnt lgkmcnt(0)\n"
_NEW = "s_load_b128 s[4:7], s[0:1], 0x0\ns_wait_kmcnt 0x0\n"
_GFX11 = "s_load_b128 s[4:7], s[0:1], 0x0\ns_waitcnt lgkmcnt(0)\n"
_BEGIN = {"gfx90a": _OLD, "gfx942": _OLD, "gfx1100": _GFX11, "gfx1201": _NEW}
"""Reads the addresses of two arrays into s[4:5] and s[6:7]."""


def _run(
    text: str, chip: str = "gfx942", mode: Mode = Mode.LAZY, **more: Any
) -> tuple[Array, Result]:
    """Run with two arrays, 0 to 1023 and zeros; v1 is four times the thread. Returns the second."""
    fragment = Fragment(_BEGIN[chip] + text, chip, mode=mode, **more)
    fragment.array(np.arange(1024, dtype=np.uint32))
    out = fragment.array(np.zeros(1024, np.uint32))
    lanes = _LANES[chip]
    thread = np.arange(fragment.blocks * fragment.threads).reshape(-1, lanes) % fragment.threads
    return out, fragment.run({1: 4 * thread.astype(np.uint32)})


_COPIES = {
    "gfx942": ("global_load_dword", "s_waitcnt vmcnt(0)", "global_store_dword"),
    "gfx90a": ("global_load_dword", "s_waitcnt vmcnt(0) lgkmcnt(0)", "global_store_dword"),
    "gfx1100": ("global_load_b32", "s_waitcnt vmcnt(0)", "global_store_b32"),
    "gfx1201": ("global_load_b32", "s_wait_loadcnt 0x0", "global_store_b32"),
}


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("chip", list(_COPIES))
def test_a_load_is_there_after_its_wait(chip: str, mode: Mode) -> None:
    load, wait, store = _COPIES[chip]
    out, result = _run(f"{load} v2, v1, s[4:5]\n{wait}\n{store} v1, v2, s[6:7]", chip, mode)
    assert not len(result.findings)
    assert np.array_equal(out[: _LANES[chip]], np.arange(_LANES[chip]))


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("chip", list(_COPIES))
def test_a_register_named_before_the_wait_is_a_finding(chip: str, mode: Mode) -> None:
    load, wait, store = _COPIES[chip]
    out, result = _run(f"{load} v2, v1, s[4:5]\n{store} v1, v2, s[6:7]\n{wait}", chip, mode)
    assert result.kinds == [Kind.MISSING_WAIT]
    found = result.findings.all()[0]
    assert f"v2 used before a wait for what `{load} v2, v1, s[4:5]` loads" in str(found)
    # EAGER has the value, LAZY poison.
    assert out[1] == (1 if mode is Mode.EAGER else 0xFFFFFFFF)


def test_overwriting_what_a_load_has_yet_to_write_is_a_finding_too() -> None:
    _, result = _run("global_load_dword v2, v1, s[4:5]\ns_nop 0\nv_mov_b32_e32 v2, 0")
    assert result.kinds == [Kind.MISSING_WAIT]


def test_loads_of_one_queue_may_write_one_register_in_turn() -> None:
    out, result = _run("""
        global_load_dword v2, v1, s[4:5]
        global_load_dword v2, v1, s[4:5] offset:4
        s_waitcnt vmcnt(0)
        global_store_dword v1, v2, s[6:7]
    """)
    assert not len(result.findings)
    assert out[0] == 1


@pytest.mark.parametrize(
    ("first", "wait", "kinds"),
    [
        ("ushort", "", [Kind.MISSING_WAIT]),
        ("ushort", "s_waitcnt vmcnt(0)", []),
        ("short_d16", "", []),
    ],
)
def test_a_load_of_half_a_register_needs_what_a_whole_one_writes(
    first: str, wait: str, kinds: list[Kind]
) -> None:
    _, result = _run(f"""
        global_load_{first} v2, v1, s[4:5]
        {wait}
        global_load_short_d16_hi v2, v1, s[4:5] offset:4
        s_waitcnt vmcnt(0)
        v_mov_b32_e32 v8, v2
    """)
    assert result.kinds == kinds


@pytest.mark.parametrize("keep", [0, 1, 2, 3])
def test_a_wait_leaves_the_youngest(keep: int) -> None:
    loads = "".join(f"global_load_dword v{2 + i}, v1, s[4:5] offset:{4 * i}\n" for i in range(3))
    for register in range(3):
        use = f"v_mov_b32_e32 v8, v{2 + register}"
        _, result = _run(f"{loads}s_waitcnt vmcnt({keep})\n{use}")
        assert bool(len(result.findings)) == (register >= 3 - keep), (keep, register)


def test_stores_count_with_loads_on_gfx9_and_apart_later() -> None:
    body = "{0}_load_{2} v2, v1, s[4:5]\n{0}_store_{2} v1, v9, s[6:7]\n{1}\nv_mov_b32_e32 v8, v2"
    _, old = _run(body.format("global", "s_waitcnt vmcnt(1)", "dword"), "gfx942")
    assert not len(old.findings)
    for chip, wait in (("gfx1100", "s_waitcnt vmcnt(1)"), ("gfx1201", "s_wait_loadcnt 0x1")):
        _, new = _run(body.format("global", wait, "b32"), chip)
        assert new.kinds == [Kind.MISSING_WAIT]


@pytest.mark.parametrize(
    ("chip", "wait", "enough"),
    [
        ("gfx942", "s_waitcnt lgkmcnt(0)", True),
        ("gfx942", "s_waitcnt lgkmcnt(1)", False),
        ("gfx942", "s_waitcnt vmcnt(0)", False),
        ("gfx942", "s_waitcnt 0", True),
        ("gfx942", "s_waitcnt 0xc07f", True),
        ("gfx942", "s_waitcnt 0x3f70", False),
        ("gfx1100", "s_waitcnt lgkmcnt(0)", True),
        ("gfx1100", "s_waitcnt 0xfc07", True),
        ("gfx1100", "s_waitcnt_lgkmcnt null, 0x0", True),
        ("gfx1100", "s_waitcnt_vscnt null, 0x0", False),
        ("gfx1201", "s_wait_kmcnt 0x0", True),
        ("gfx1201", "s_wait_dscnt 0x0", False),
        ("gfx1201", "s_wait_idle", True),
    ],
)
def test_scalar_loads_come_in_any_order(chip: str, wait: str, enough: bool) -> None:
    load = "s_load_dword" if chip == "gfx942" else "s_load_b32"
    text = f"{load} s8, s[4:5], 0x4\n{load} s9, s[4:5], 0x8\n{wait}\ns_mov_b32 s10, s8"
    _, result = _run(text, chip)
    assert bool(len(result.findings)) != enough
    if enough:
        assert result.scalar(10)[0] == 1


@pytest.mark.parametrize(
    ("chip", "load", "wait", "enough"),
    [
        ("gfx942", "ds_read_b32", "s_waitcnt lgkmcnt(0)", True),
        ("gfx942", "ds_read_b32", "s_waitcnt lgkmcnt(1)", False),
        ("gfx1201", "ds_load_b32", "s_wait_dscnt 0x0", True),
        ("gfx1201", "ds_load_b32", "s_wait_kmcnt 0x0", False),
        ("gfx1201", "ds_load_b32", "s_wait_loadcnt_dscnt 0x300", True),
        ("gfx1201", "ds_load_b32", "s_wait_storecnt_dscnt 0x1", False),
    ],
)
def test_lds_has_a_queue_of_its_own(chip: str, load: str, wait: str, enough: bool) -> None:
    store = "ds_write_b32" if chip == "gfx942" else "ds_store_b32"
    text = f"{store} v1, v1\n{load} v2, v1\n{wait}\nv_mov_b32_e32 v8, v2"
    _, result = _run(text, chip, lds=512)
    assert bool(len(result.findings)) != enough
    if enough:
        assert np.array_equal(result.vector(8)[0], 4 * np.arange(_LANES[chip]))


def test_a_count_that_scalar_loads_share_says_nothing_of_them() -> None:
    """Of three LDS reads and a scalar load, lgkmcnt(1) covers the first two reads, and no more."""
    text = "ds_write_b32 v1, v1\ns_waitcnt lgkmcnt(0)\n"
    text += "ds_read_b32 v2, v1\nds_read_b32 v3, v1\ns_load_dword s8, s[4:5], 0x4\n"
    text += "ds_read_b32 v4, v1\ns_waitcnt lgkmcnt(1)\n"
    for use, late in (("v8, v2", False), ("v8, v3", False), ("v8, v4", True), ("v8, s8", True)):
        _, result = _run(f"{text}v_mov_b32_e32 {use}", lds=512)
        assert bool(len(result.findings)) == late, use


def test_a_flat_load_waits_for_both_of_its_queues() -> None:
    text = "v_mov_b32_e32 v2, s4\nv_mov_b32_e32 v3, s5\nflat_load_dword v4, v[2:3]\n"
    for wait, late in (
        ("s_waitcnt vmcnt(0)", True),
        ("s_waitcnt lgkmcnt(0)", True),
        ("s_waitcnt vmcnt(0) lgkmcnt(0)", False),
    ):
        _, result = _run(f"{text}{wait}\nv_mov_b32_e32 v8, v4")
        assert bool(len(result.findings)) == late, wait


_MEETING = """
    global_store_{0} v1, v0, s[6:7]
    {1}
    {2}
    v_xor_b32_e32 v2, {3}, v1
    global_load_{0} v3, v2, s[6:7]
    {4}
"""


@pytest.mark.parametrize(
    ("chip", "names"),
    [("gfx1100", ("b32", "s_waitcnt_vscnt null, 0x0", "s_barrier", "s_waitcnt vmcnt(0)")),
     ("gfx1201", ("b32", "s_wait_storecnt 0x0", "s_barrier_signal -1\ns_barrier_wait -1",
                  "s_wait_loadcnt 0x0"))],
)  # fmt: skip
def test_a_store_is_in_memory_only_when_it_is_waited_for(
    chip: str, names: tuple[str, str, str, str]
) -> None:
    """Wave 1 reads what wave 0 stored: a barrier without the wait before it is not enough."""
    width, wait, barrier, last = names
    for line, there in ((wait, True), ("s_nop 0", False)):
        text = _MEETING.format(width, line, barrier, "0x80", last)
        _, result = _run(text, chip, threads=64)
        read = result.vector(3)[0]
        assert (read == 32 + np.arange(32)).all() == there, line


@pytest.mark.parametrize("mode", list(Mode))
def test_on_gfx9_a_barrier_orders_global_memory_without_a_wait(mode: Mode) -> None:
    text = _MEETING.format("dword", "s_nop 0", "s_barrier", "0x100", "s_waitcnt vmcnt(0)")
    _, result = _run(text, "gfx942", mode=mode, threads=128)
    assert not len(result.findings)
    assert (result.vector(3)[0] == 64 + np.arange(64)).all()
    text = """
        global_load_dword v3, v1, s[4:5]
        s_barrier
        v_xor_b32_e32 v2, 0x100, v1
        global_store_dword v2, v9, s[4:5]
        s_waitcnt vmcnt(0)
    """
    _, result = _run(text, "gfx942", mode=mode, threads=128)
    assert not len(result.findings)
    assert (result.vector(3)[1] == 64 + np.arange(64)).all()


@pytest.mark.parametrize("mode", list(Mode))
def test_one_wave_s_accesses_to_one_place_stay_in_order(mode: Mode) -> None:
    text = """
        global_load_dword v2, v1, s[4:5]
        global_store_dword v1, v9, s[4:5]
        global_load_dword v3, v1, s[4:5]
        s_waitcnt vmcnt(0)
        global_store_dword v1, v2, s[6:7]
        global_store_dword v1, v3, s[6:7] offset:256
    """
    out, result = _run(text, mode=mode)
    assert not len(result.findings)
    assert np.array_equal(out[:64], np.arange(64))
    assert (out[64:128] == 0).all()


def test_a_wave_that_ends_finishes_its_stores() -> None:
    out, result = _run("global_store_dword v1, v0, s[6:7]")
    assert not len(result.findings)
    assert np.array_equal(out[:64], np.arange(64))


def test_a_store_that_another_wave_waits_for_happens_at_last() -> None:
    """Wave 1 spins on a flag that wave 0 stores without a wait, before a barrier."""
    text = """
        v_mov_b32_e32 v5, 0
        v_mov_b32_e32 v6, 1
        v_readfirstlane_b32 s8, v0
        s_cmp_eq_u32 s8, 0
        s_cbranch_scc0 spin
        global_store_dword v5, v6, s[6:7]
        s_branch meet
        spin:
        global_atomic_add v7, v5, v9, s[6:7] sc0
        s_waitcnt vmcnt(0)
        v_readfirstlane_b32 s9, v7
        s_cmp_eq_u32 s9, 1
        s_cbranch_scc0 spin
        meet:
        s_barrier
    """
    _, result = _run(text, threads=128)
    assert not len(result.findings)


def test_a_counter_that_is_full_waits_for_the_oldest() -> None:
    more = "global_load_dword v3, v1, s[4:5]\n" * 63
    text = "global_load_dword v2, v1, s[4:5]\n{0}v_mov_b32_e32 v8, v2"
    _, result = _run(text.format(more))
    assert not len(result.findings)
    _, result = _run(text.format(more.removesuffix("global_load_dword v3, v1, s[4:5]\n")))
    assert result.kinds == [Kind.MISSING_WAIT]


def test_an_unreadable_wait_is_refused() -> None:
    with pytest.raises(CompilerBug, match="does not know the wait"):
        Fragment("s_waitcnt somecnt(0)", "gfx942")
