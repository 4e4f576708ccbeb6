"""Caches written back and invalidated: whether a workgroup may see what another one stored."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.amdgpu.emulator.fragments import Fragment
from tiledsl.targets.gpu.emulator.cohort import Mode
from tiledsl.targets.gpu.emulator.findings import Kind

_OLD = """
    s_load_dwordx4 s[4:7], s[0:1], 0x0
    s_waitcnt lgkmcnt(0)
    v_mov_b32_e32 v1, 0
    s_cmp_eq_u32 s2, 0
    s_cselect_b64 exec, 1, 0
    global_store_dword v1, v1, s[4:5]
    {before}
    s_waitcnt vmcnt(0)
    s_mov_b64 exec, 1
    global_atomic_add v1, v1, s[6:7]
    s_waitcnt vmcnt(0)
    {after}
    s_cselect_b64 exec, 0, 1
    global_load_dword v2, v1, s[4:5]{hint}
    s_waitcnt vmcnt(0)
"""
"""Workgroup 0 stores, both do an atomic, workgroup 1 loads."""
_NEW = (
    _OLD.replace("dwordx4", "b128").replace("_dword", "_b32").replace("atomic_add", "atomic_add_u32")
    .replace("_b64 exec", "_b32 exec_lo")
)  # fmt: skip
_GFX12 = _NEW.replace("s_waitcnt lgkmcnt(0)", "s_wait_kmcnt 0x0").replace(
    "s_waitcnt vmcnt(0)", "s_wait_loadcnt 0x0\ns_wait_storecnt 0x0"
)
_GFX11 = _NEW.replace("s_waitcnt vmcnt(0)", "s_waitcnt vmcnt(0)\ns_waitcnt_vscnt null, 0x0")
_TEXTS = {"gfx90a": _OLD, "gfx942": _OLD, "gfx1100": _GFX11, "gfx1201": _GFX12}


def _numbers(waves: int) -> dict[int, np.ndarray[tuple[int, ...], np.dtype[np.intp]]]:
    """Return each wave's workgroup, in s2, and its number there, in s3."""
    every = np.arange(2 * waves)
    return {2: every // waves, 3: every % waves}


def _kinds(chip: str, before: str, after: str, hint: str = "", waves: int = 1) -> list[Kind]:
    lanes = 64 if "gfx9" in chip else 32
    found: list[list[Kind]] = []
    for mode in Mode:
        text = _TEXTS[chip].format(before=before, after=after, hint=hint)
        fragment = Fragment(text, chip, mode=mode, blocks=2, threads=waves * lanes)
        fragment.array(np.ones(4, np.uint32))
        fragment.array(np.zeros(4, np.uint32))
        found.append(fragment.run(scalars=_numbers(waves)).kinds)
    assert found[0] == found[1]
    return found[0]


_BOTH = [
    ("gfx90a", "", "buffer_wbinvl1_vol"),
    ("gfx942", "buffer_wbl2 sc1", "buffer_inv sc1"),
    ("gfx942", "buffer_wbl2 sc0 sc1", "buffer_inv sc0 sc1"),
    ("gfx1100", "", "buffer_gl1_inv\nbuffer_gl0_inv"),
    ("gfx1201", "", "global_inv scope:SCOPE_DEV"),
    ("gfx1201", "", "global_inv scope:SCOPE_SYS"),
]


@pytest.mark.parametrize(("chip", "before", "after"), _BOTH)
def test_caches_that_are_written_back_and_invalidated_show_a_store(
    chip: str, before: str, after: str
) -> None:
    assert _kinds(chip, before, after) == []


@pytest.mark.parametrize(
    ("chip", "before", "after"),
    [
        ("gfx90a", "", ""),
        ("gfx942", "", "buffer_inv sc1"),
        ("gfx942", "buffer_wbl2 sc1", ""),
        ("gfx942", "buffer_wbl2 sc1", "buffer_inv sc0"),
        ("gfx1100", "", "buffer_gl0_inv"),
        ("gfx1100", "", "buffer_gl1_inv"),
        ("gfx1100", "", "buffer_gl0_inv\nbuffer_gl1_inv"),
        ("gfx1201", "", ""),
        ("gfx1201", "", "global_inv scope:SCOPE_SE"),
    ],
)
def test_caches_that_are_not_may_hide_it(chip: str, before: str, after: str) -> None:
    assert _kinds(chip, before, after) == [Kind.RACE]


@pytest.mark.parametrize(
    ("chip", "acquire", "refresh", "needed"),
    [
        ("gfx90a", "buffer_wbinvl1_vol", "", False),
        ("gfx1100", "buffer_gl1_inv\nbuffer_gl0_inv", "buffer_gl0_inv", True),
        ("gfx1201", "global_inv scope:SCOPE_DEV", "global_inv scope:SCOPE_SE", True),
    ],
)
def test_after_a_barrier_waves_that_may_have_another_cache_invalidate_it(
    chip: str, acquire: str, refresh: str, needed: bool
) -> None:
    barrier = "s_barrier_signal -1\ns_barrier_wait -1" if chip == "gfx1201" else "s_barrier"
    first = "s_cmp_lg_u32 s3, 0\ns_cbranch_scc1 .L0\n"
    after = f"{first}{acquire}\n.L0:\n{barrier}\n{{}}\ns_cmp_eq_u32 s2, 0"
    assert _kinds(chip, "", after.format(refresh), waves=2) == []
    found = _kinds(chip, "", after.format(""), waves=2)
    assert found == ([Kind.RACE] if needed else [])


@pytest.mark.parametrize(
    ("chip", "hint"), [("gfx942", " sc1"), ("gfx1100", " glc"), ("gfx1201", " scope:SCOPE_DEV")]
)
def test_a_load_past_the_caches_needs_neither(chip: str, hint: str) -> None:
    assert _kinds(chip, "", "", hint) == []
